"""
Where every tensor lies in a file of torch.save, such as pytorch_model.bin.

Since torch 1.6 such a file is a zip of uncompressed records. PREFIX/data.pkl is the pickled dict, in which a tensor is
its dtype, shape, strides and the key of its storage. PREFIX/data/KEY holds the bytes of a storage. So the directory at
the end of the zip and data.pkl tell where every tensor is. Older files and compressed zips are loaded as a whole. In
both cases torch's restricted unpickler refuses a pickle that would run code.
"""

import io
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from data.pretrained.files import DTYPES, CheckpointError, Folder, TensorInfo, WeightFile, require

HEAD = 64  # bytes of the first read, which shows whether the file is a zip
TAIL = 1 << 10  # bytes at the end of a zip, where zipfile looks for the directory in several small reads
MAX_RECORD = 100_000_000  # bytes of the directory or of data.pkl
ALIGNMENT = 64  # torch begins every storage at a multiple of this
LOCAL_HEADER = 30  # bytes before the name and the padding of a record
# What zipfile and torch's unpickler raise for damaged files.
DAMAGE = (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError,
          AttributeError, AssertionError, ArithmeticError, MemoryError, struct.error)


class ZipRecord(NamedTuple):
    """A file inside of the zip, which is called a record: its bytes are [start, end) of the zip."""

    start: int
    end: int
    crc: int  # of its bytes; 0 if torch was told to write none


def read_torch(folder: Folder, file: str) -> WeightFile:
    """CheckpointError if the file is damaged, or would run code."""
    head, size = folder.read_head(file, HEAD)
    try:
        records = None
        if head.startswith(b"PK\3\4"):  # it is a zip
            records = read_directory(folder, file, size)
        if records is None:
            return read_whole(folder, file, size)
        return read_places(folder, file, size, records)
    except DAMAGE as e:
        code = re.search(r"GLOBAL (\S+)", str(e))
        why = f"is refused: unpickling it would run {code[1]:.80}" if code else "is damaged, or no PyTorch state dict"
        raise CheckpointError(f"{file} {why}; look for a safetensors version") from e


def read_whole(folder: Folder, file: str, size: int) -> WeightFile:
    """Load an older or a compressed file. Its tensors are in memory afterwards."""
    saved = torch.load(folder.fetch(file), map_location="cpu", weights_only=True)
    folder.bytes_read_of[file] = size
    tensors = {name: find_loaded(file, name, tensor) for name, tensor in named_tensors(saved, file)}
    return WeightFile(size, tensors, find_model_args(saved))


def read_places(folder: Folder, file: str, size: int, records: dict[str, ZipRecord]) -> WeightFile:
    """Read data.pkl alone, which tells where in the file the tensors lie."""
    data_pkl = read_pickle(folder, file, records["data.pkl"])
    saved, record_at = unpickle(data_pkl, records)
    tensors = {name: find_in_zip(file, name, tensor, record_at) for name, tensor in named_tensors(saved, file)}
    return WeightFile(size, tensors, find_model_args(saved))


def find_model_args(saved: dict) -> dict | None:
    """nanoGPT's config, which it saves beside the weights; None if this is no file of nanoGPT."""
    model_args = saved.get("model_args")
    return model_args if isinstance(model_args, dict) else None


# ---- the directory of the zip ------------------------------------------------------------------------------------


class SeekableRanges(io.RawIOBase):
    """
    A file of a Folder with seek and read, as zipfile wants it. Each read is one range of bytes, except for the tail,
    which is read only once.
    """

    def __init__(self, folder: Folder, file: str, size: int):
        self.folder, self.file, self.size, self.position = folder, file, size, 0
        self.tail_start = max(0, size - TAIL)
        self.tail = folder.read_bytes(file, self.tail_start, size)

    def seekable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise ValueError("the directory says that something lies before the file")
        self.position = origin + offset
        return self.position

    def read(self, n=-1):
        start = min(self.position, self.size)
        end = self.size if n is None or n < 0 else min(start + n, self.size)
        require(end - start <= MAX_RECORD, f"{self.file} has a directory of {end - start:,} bytes")
        self.position = end
        before_tail = self.folder.read_bytes(self.file, start, min(end, self.tail_start))
        return before_tail + self.tail[max(0, start - self.tail_start) : max(0, end - self.tail_start)]


def read_directory(folder: Folder, file: str, size: int) -> dict[str, ZipRecord] | None:
    """{name without the prefix: ZipRecord} of the zip; None if torch has to load the whole file."""
    with zipfile.ZipFile(SeekableRanges(folder, file, size)) as zipped:
        infos = zipped.infolist()
        directory_start = zipped.start_dir
    prefix = infos[0].filename.partition("/")[0] + "/"
    infos.sort(key=lambda info: info.header_offset)
    ends = [info.header_offset for info in infos[1:]] + [directory_start]  # where the next record begins
    records = {}
    stored = True
    for info, end in zip(infos, ends):
        header_end = info.header_offset + LOCAL_HEADER
        if header_end > end:
            raise ValueError(f"{info.filename!r:.60} lies beyond the file, or begins inside of another")
        record = find_record(folder, file, info, end)
        if record.start < header_end or record.end > end:
            raise ValueError(f"the bytes of {info.filename!r:.60} overlap others")
        name = info.filename.removeprefix(prefix)
        if name in records:
            raise ValueError(f"{info.filename!r:.60} comes twice")
        records[name] = record
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:  # the bit: encrypted
            stored = False
    if not stored or is_big_endian(records.get("byteorder")):
        return None
    return records


def is_big_endian(record: ZipRecord | None) -> bool:
    """record: byteorder, which holds "little" or "big"; absent from older files, which are little."""
    return record is not None and record.end - record.start != len("little")


def find_record(folder: Folder, file: str, info: zipfile.ZipInfo, end: int) -> ZipRecord:
    """
    Where the bytes of a record are. `end` is where the next record begins.

    A record is a local header, its name, padding, the bytes and, if a flag says so, a descriptor. The directory does
    not have the length of the padding, so we count back from `end`. If the result is no place where torch, or a writer
    without padding, would put the bytes, we read the local header.
    """
    descriptor = 0
    if info.flag_bits & 8 and info.file_size:
        zip64 = max(info.file_size, info.header_offset) >= 0xFFFFFFFF
        descriptor = 24 if zip64 else 16
    start = end - descriptor - info.compress_size
    unpadded = info.header_offset + LOCAL_HEADER + len(info.orig_filename.encode())
    if start % ALIGNMENT and start != unpadded and info.file_size:
        header = folder.read_bytes(file, info.header_offset, info.header_offset + LOCAL_HEADER)
        name_length, extra_length = struct.unpack("<HH", header[-4:])
        start = info.header_offset + LOCAL_HEADER + name_length + extra_length
    return ZipRecord(start, start + info.compress_size, info.CRC)


# ---- the tensors -------------------------------------------------------------------------------------------------


def read_pickle(folder: Folder, file: str, record: ZipRecord) -> bytes:
    require(record.end - record.start <= MAX_RECORD, f"{file} has a data.pkl of more than {MAX_RECORD:,} bytes")
    data_pkl = folder.read_bytes(file, record.start, record.end)
    require(record.crc in (0, zlib.crc32(data_pkl)), f"{file} is damaged (checksum of its data.pkl): get it again")
    return data_pkl


def unpickle(data_pkl: bytes, records: dict[str, ZipRecord]) -> tuple[dict, dict[int, ZipRecord]]:
    """
    -> the saved object, whose tensors are on the meta device and have no values; and {offset: ZipRecord of a storage}.

    torch reads a zip in memory that has the same data.pkl and the same records, but all of them empty. To a storage on
    the meta device it gives a _checkpoint_offset, the place of its bytes in the zip. This offset finds the ZipRecord.
    """
    small, record_at = io.BytesIO(), {}
    with zipfile.ZipFile(small, "w") as zipped:
        zipped.writestr("archive/data.pkl", data_pkl)
        zipped.writestr("archive/version", "3")
        for name, record in records.items():
            if name.startswith("data/"):
                zipped.writestr(f"archive/{name}", b"")
                record_at[small.tell()] = record  # where the bytes of an empty record would be
    small.seek(0)
    return torch.load(small, map_location="meta", weights_only=True), record_at


def find_in_zip(file: str, name: str, tensor: torch.Tensor, record_at: dict[int, ZipRecord]) -> TensorInfo:
    """Where the values of a tensor on the meta device lie."""
    storage = tensor.untyped_storage()
    offset = getattr(storage, "_checkpoint_offset", None)
    require(offset is not None, without_values(file, name))
    record = record_at[offset]
    start = record.start + tensor.itemsize * tensor.storage_offset()
    end = start
    if tensor.numel():
        steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride())]  # to the last element
        end = start + tensor.itemsize * (1 + sum(steps))
    if start < record.start or end > record.end or storage.nbytes() > record.end - record.start:
        raise ValueError(f"{name!r:.60} reaches beyond its storage")
    return TensorInfo(file, dtype_name(tensor.dtype), tuple(tensor.shape), start, end, tensor.stride())


def find_loaded(file: str, name: str, tensor: torch.Tensor) -> TensorInfo:
    """The same for a tensor of a file that was loaded as a whole: it lies in memory."""
    require(not tensor.is_meta, without_values(file, name))
    start = tensor.data_ptr()
    return TensorInfo(file, dtype_name(tensor.dtype), tuple(tensor.shape), start, start + tensor.nbytes,
                      loaded=tensor.detach())


def without_values(file: str, name: str) -> str:
    return f"{file}: {name!r:.60} was saved from the meta device, without values: save it from another"


def named_tensors(saved: dict, file: str) -> Iterator[tuple[str, torch.Tensor]]:
    """
    The tensors of a state dict, which may be inside of another dict as "state_dict" or "model". Left out are sparse
    tensors, and tensors that repeat a few elements, such as those that expand makes.
    """
    for key in "state_dict", "model":
        if isinstance(saved.get(key), dict):
            saved = saved[key]
    seen = set()
    for name, tensor in saved.items():
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            require(isinstance(name, str),
                    f"{file} has {name!r:.60} among the names of its tensors: save a state_dict()")
            name = name.removeprefix("_orig_mod.")  # which torch.compile puts before every name
            require(name not in seen, f"{file} has {name:.60} with and without _orig_mod.: save one state_dict()")
            seen.add(name)
            if tensor.nbytes <= tensor.untyped_storage().nbytes():
                yield name, tensor


def dtype_name(dtype: torch.dtype) -> str:
    """As safetensors writes it: torch.bfloat16 is BF16."""
    for name, known in DTYPES.items():
        if dtype == known:
            return name
    return str(dtype).removeprefix("torch.").upper()
