"""
Files of torch.save: read by ranges of bytes, compared with torch.load of the whole file.

zip_file writes such a zip by hand, as miniz in torch does, with a lie or a hole where a test wants one; that it writes
them as torch does is a test of its own.
"""

import io
import json
import os
import pickle
import random
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from torch.utils.serialization import config as torch_config

import data.pretrained.hub
from data.pretrained.sources import CheckpointError, open_checkpoint
from tests.hub import hub  # noqa: F401 (a fixture)
from tests.toy import CONFIG, SHARDS, WANTED, WEIGHTS, as_bin, folder, make, read, refusal

BIN = "pytorch_model.bin"


def records_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        return {info.filename: zipped.read(info) for info in zipped.infolist()}


def repacked(data: bytes, compression=zipfile.ZIP_STORED, without=(), prefix="archive") -> bytes:
    """The same records in a zip of Python's: no padding, no descriptors."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as zipped:
        for name, content in records_of(data).items():
            name = name.partition("/")[2]
            if name not in without:
                zipped.writestr(f"{prefix}/{name}", content)
    return buffer.getvalue()


@dataclass
class Entry:
    """A record; what is None is as it should be."""
    name: str
    content: bytes
    told_size: int | None = None  # in the directory
    told_offset: int | None = None
    hole: int = 0  # bytes of zeros after the content, which belong to it and are not written


def zip_file(path: Path, entries: list[Entry]) -> Path:
    """As miniz writes them: bytes at multiples of 64, a descriptor after them, 64-bit numbers where 32 do not do."""
    directory = b""
    with open(path, "wb") as f:
        for entry in entries:
            offset, size = f.tell(), len(entry.content) + entry.hole
            wide = max(offset, size) >= 0xFFFFFFFF
            name, crc = entry.name.encode(), zlib.crc32(entry.content)
            extra = b""
            if wide:
                extra = struct.pack("<HHQQQ", 1, 24, size, size, offset)
            padding = -(offset + 30 + len(name) + len(extra) + 4) % 64
            local = extra + struct.pack("<HH", 0x4246, padding) + b"Z" * padding
            f.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 8, 0, 0, 0, 0, 0, 0, len(name), len(local)) + name + local)
            f.write(entry.content)
            f.seek(entry.hole, os.SEEK_CUR)
            f.write(struct.pack("<4sIQQ" if wide else "<4sIII", b"PK\7\10", crc, size, size))
            if entry.told_size is not None:
                size = entry.told_size
            if entry.told_offset is not None:
                offset = entry.told_offset
            wide = wide or max(offset, size) >= 0xFFFFFFFF
            extra = struct.pack("<HHQQQ", 1, 24, size, size, offset) if wide else b""
            sizes = (0xFFFFFFFF,) * 3 if wide else (size, size, offset)
            directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 8, 0, 0, 0, crc, *sizes[:2], len(name),
                                     len(extra), 0, 0, 0, 0, sizes[2]) + name + extra
        start, n = f.tell(), len(entries)
        f.write(directory)
        end = f.tell()
        f.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, n, n, len(directory), start))
        f.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        f.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, n, n, len(directory), 0xFFFFFFFF, 0))
    return path


def entries_of(state) -> list[Entry]:
    return [Entry(name, content) for name, content in records_of(as_bin(state)).items()]


# What is read


def aligned(n: int) -> bytes:
    torch_config.save.storage_alignment = n
    try:
        return as_bin(WEIGHTS)
    finally:
        torch_config.save.storage_alignment = 64


OLD = (".format_version", ".storage_alignment", "byteorder", ".data/serialization_id")  # records of newer torch
KINDS = {
    "as torch writes it": lambda: as_bin(WEIGHTS),
    "without the records of newer torch": lambda: repacked(as_bin(WEIGHTS), without=OLD),
    "another prefix": lambda: repacked(as_bin(WEIGHTS), prefix="pytorch_model"),
    "pages of 4096 bytes": lambda: aligned(4096),
    "bytes at multiples of 8": lambda: aligned(8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_bin_only_the_directory_the_pickle_and_the_wanted_tensors_travel(hub, kind):
    data = KINDS[kind]()
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        overhead = len(data) - zipped.start_dir + zipped.infolist()[0].file_size  # the directory, and data.pkl
    commit = hub.add("org/toy", {"config.json": CONFIG, BIN: data})
    opened = read("org/toy")
    assert WANTED + overhead <= hub.sent(BIN) <= 1.02 * WANTED + overhead
    assert hub.sent(BIN) < 0.55 * len(data)  # half of the toy are queries and keys
    assert (opened.bytes_read, opened.size, opened.revision, opened.note) == (hub.sent(BIN), len(data), commit, "")
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values())


def test_a_local_bin_is_read_by_ranges_too(tmp_path):
    data = as_bin(WEIGHTS)
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / "any.bin").write_bytes(data)
    opened = read(tmp_path / "any.bin")
    assert WANTED < opened.bytes_read < 1.01 * WANTED < len(data) == opened.size


def test_views_ties_and_dtypes_come_out_as_torch_loads_them(hub, tmp_path):
    torch.manual_seed(0)
    wide = torch.randn(48, 40)
    state = {
        "whole": wide, "tied": wide, "rows": wide[8:24], "columns": wide[:, 5:20], "transposed": wide.T,
        "every other": wide[::2, ::3], "half": wide.half().T, "bfloat16": wide.bfloat16()[3:], "double": wide.double(),
        "scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "parameter": torch.nn.Parameter(torch.randn(5, 3)),
        "three": torch.randn(2, 3, 4).permute(2, 0, 1),
    }
    data = as_bin(state | {"mask": torch.zeros(3, dtype=torch.int8), "epoch": 3, "wide": torch.ones(()).expand(1 << 40),
                           "sparse": torch.eye(3).to_sparse()})
    path = folder(tmp_path / "toy", {BIN: data})
    right = torch.load(path / BIN, weights_only=True)
    hub.add("org/toy", {"config.json": CONFIG, BIN: data})
    for source in (path, "org/toy"):
        opened = read(source, [[n] for n in state] + [list(state)], right)
        assert set(opened.tensors) == {*state, "mask"}
        assert {n: opened.tensors[n].shape for n in state} == {n: tuple(t.shape) for n, t in state.items()}
        assert "mask" in refusal(source, [["mask"]])
    distinct = [t for n, t in state.items() if n not in ("tied", "transposed")]  # the same bytes, seen otherwise
    assert opened.n_params == sum(t.numel() for t in distinct)


def test_sharded_bins_are_read(tmp_path):
    files = {f"{i}.bin": as_bin(part) for i, part in enumerate(SHARDS.values())}
    index = {"weight_map": {n: f"{i}.bin" for i, part in enumerate(SHARDS.values()) for n in part}}
    read(folder(tmp_path / "toy", files | {"pytorch_model.bin.index.json": json.dumps(index).encode()}))


@pytest.mark.parametrize("numel", [12345, 1 << 30, (1 << 30) + 16])
def test_zips_of_more_than_four_gigabytes_are_read(tmp_path, numel):
    """The first storage has so many elements, a hole: its size, and the offsets of all others, then need 64 bits."""
    entries = entries_of({"first": torch.zeros(12345), **make(n_embd=8)})
    for entry in entries:
        if entry.name == "archive/data.pkl":
            two_bytes, eight_bytes = b"M" + struct.pack("<H", 12345), b"\x8a\x08" + struct.pack("<q", numel)
            entry.content = entry.content.replace(two_bytes, eight_bytes)
        if entry.name == "archive/data/0":
            entry.hole = 4 * (numel - 12345)
    path = zip_file(folder(tmp_path / "toy", {}) / BIN, entries)
    right = torch.load(path, weights_only=True, mmap=True)
    assert right["first"].numel() == numel
    opened = read(tmp_path / "toy", weights=right)
    assert opened.size > 4 * numel and opened.bytes_read < 20000


# What is loaded whole


@pytest.mark.parametrize("kind", ["before torch 1.6", "compressed", "big endian"])
def test_other_bins_are_downloaded_whole_and_said_so(hub, tmp_path, monkeypatch, kind):
    tied = WEIGHTS | {"head": WEIGHTS["emb"], "mask": torch.zeros(3, dtype=torch.int8), "epoch": 3}
    tied["wide"] = torch.ones(()).expand(1 << 40)  # four bytes in the file
    data = as_bin(tied, _use_new_zipfile_serialization=kind != "before torch 1.6")
    if kind == "compressed":
        data = repacked(data, zipfile.ZIP_DEFLATED)
    if kind == "big endian":
        entries = [Entry(name, content) for name, content in records_of(data).items()]
        for entry in entries:
            if entry.name == "archive/byteorder":
                entry.content = b"big"
            elif entry.name.startswith("archive/data/"):
                width = 1 if len(entry.content) == 3 else 4
                entry.content = torch.frombuffer(bytearray(entry.content), dtype=torch.uint8).view(-1, width).flip(
                    1).numpy().tobytes()
        data = zip_file(tmp_path / "big", entries).read_bytes()
    hub.add("org/toy", {"config.json": CONFIG, BIN: data})
    opened = read("org/toy", weights=tied)
    assert BIN in opened.note and "GB" in opened.note and opened.size == opened.bytes_read == len(data)
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "downloaded" not in read("org/toy", weights=tied).note
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / BIN).write_bytes(data)
    assert read(tmp_path / BIN, weights=tied).note == read(tmp_path, weights=tied).note == ""
    assert set(opened.tensors) == {*WEIGHTS, "head", "mask"} and "mask" in refusal(tmp_path, [["mask"]])


# A connection that fails


@pytest.mark.parametrize("fault", [503, 403, "cut", "reset", "stall"])
def test_a_fault_of_the_connection_is_survived_in_a_bin(hub, monkeypatch, fault):
    monkeypatch.setattr(data.pretrained.hub, "TIMEOUT", 0.4)
    hub.add("org/toy", {"config.json": CONFIG, BIN: as_bin(WEIGHTS)})
    hub.fail(BIN, fault, times=3)
    read("org/toy")
    assert len(hub.waits) >= 3 and not hub.faults


@pytest.mark.parametrize("fault", ["whole", "odd", "shifted", "unranged", "short", "gzip"])
def test_of_a_bin_only_the_very_range_asked_for_is_accepted(hub, fault):
    hub.add("org/toy", {"config.json": CONFIG, BIN: as_bin(WEIGHTS)})
    for n_before in range(6):  # the fault strikes at the magic number, the tail, the pickle, a tensor, ...
        hub.faults = [(BIN, ("", {}))] * n_before
        hub.fail(BIN, fault)
        assert "does not serve byte ranges" in refusal("org/toy")


# What would do harm, or is damaged


class Bomb:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(hub, tmp_path, zipped):
    bomb = as_bin(WEIGHTS | {"x": Bomb(tmp_path / "hit")}, _use_new_zipfile_serialization=zipped)
    hub.add("org/toy", {"config.json": CONFIG, BIN: bomb})
    for source in (folder(tmp_path / "toy", {BIN: bomb}), "org/toy"):
        told = refusal(source)
        assert BIN in told and "mkdir" in told and not (tmp_path / "hit").exists()
    for protocol in (2, 5):
        folder(tmp_path / "toy", {BIN: pickle.dumps(Bomb(tmp_path / "hit"), protocol)})
        assert BIN in refusal(tmp_path / "toy") and not (tmp_path / "hit").exists()


STATE = make(n_embd=8)
PICKLED = entries_of(STATE)[0].content
SHAPE = b"K\x08K\x08\x86"  # (8, 8), of every tensor of STATE
HUGE = b"\x8a\x06" + (1 << 40).to_bytes(6, "little")
assert b"QK\0" + SHAPE in PICKLED  # Q: the storage; K: the first element in it
LIES = {
    "an offset beyond the file": (3, dict(told_offset=1 << 20)),
    "an offset of 64 bits": (3, dict(told_offset=1 << 62)),
    "the header of another record": (3, dict(told_offset=0)),
    "a header inside of another record": (8, dict(told_offset=1300)),
    "more bytes than there are": (6, dict(told_size=1 << 20)),
    "more bytes than 64 bits hold": (6, dict(told_size=(1 << 64) - 1)),
    "bytes of the next record": (6, dict(told_size=600)),
    "fewer bytes than the tensor": (6, dict(content=bytes(40))),
    "no bytes": (6, dict(content=b"")),
    "a name that comes twice": (6, dict(name="archive/data/3")),
    "a storage that is not there": (6, dict(name="archive/data/none")),
    "no pickle": (0, dict(name="archive/data.txt")),
    "an empty pickle": (0, dict(content=b"")),
    "a shape of more elements than 64 bits count": (0, dict(content=PICKLED.replace(SHAPE, HUGE + HUGE + b"\x86"))),
    "a tensor before its storage": (0, dict(content=PICKLED.replace(b"QK\0" + SHAPE, b"QJ" + 4 * b"\xff" + SHAPE))),
    "a tensor behind its storage": (0, dict(content=PICKLED.replace(b"QK\0" + SHAPE, b"QK\1" + SHAPE))),
    "no dict": (0, dict(content=pickle.dumps([1, 2], 2))),
}


@pytest.mark.parametrize("lie", [None, *LIES])
def test_a_zip_that_lies_is_refused(hub, tmp_path, lie):
    entries = entries_of(STATE)
    if lie is None:  # the writer of this test writes what torch writes
        zip_file(folder(tmp_path / "toy", {}) / BIN, entries)
        read(tmp_path / "toy", weights=torch.load(tmp_path / "toy" / BIN, weights_only=True))
        return
    i, change = LIES[lie]
    entries[i] = replace(entries[i], **change)
    path = zip_file(folder(tmp_path / "toy", {}) / BIN, entries)
    hub.add("org/toy", {"config.json": CONFIG, BIN: path})
    for source in (tmp_path / "toy", "org/toy"):
        assert BIN in refusal(source, [list(STATE)])


def test_a_pickle_that_has_changed_since_it_was_written_is_refused(tmp_path):
    data = as_bin(STATE).replace(SHAPE, b"K\x04K\x10\x86")  # (4, 16): as many elements
    assert "checksum" in refusal(folder(tmp_path / "toy", {BIN: data}), [list(STATE)])
    torch_config.save.compute_crc32 = False
    try:
        unchecked = as_bin(STATE)
    finally:
        torch_config.save.compute_crc32 = True
    read(folder(tmp_path / "toy", {BIN: unchecked}), weights=STATE)


@pytest.mark.parametrize("cut", [3, 4, 100, 2000, -1, -22, -300])
def test_a_bin_cut_short_is_refused(tmp_path, cut):
    assert BIN in refusal(folder(tmp_path / "toy", {BIN: as_bin(STATE)[:cut]}))


def test_names_that_are_no_text_and_tensors_without_values_are_refused(tmp_path):
    assert "has 3 among the names" in refusal(folder(tmp_path / "toy", {BIN: as_bin({3: torch.ones(2)})}))
    twice = {"a": torch.ones(2), "_orig_mod.a": torch.zeros(2)}
    assert "has a with and without _orig_mod." in refusal(folder(tmp_path / "toy", {BIN: as_bin(twice)}), [["a"]])
    for zipped in (True, False):
        data = as_bin({"a": torch.ones(2), "b": torch.ones(2, device="meta")}, _use_new_zipfile_serialization=zipped)
        assert "'b'" in refusal(folder(tmp_path / "toy", {BIN: data}), [["a"]])


@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:Defining your")
def test_a_damaged_bin_is_refused(tmp_path):
    rng = random.Random(0)
    for zipped in (True, False):
        data = as_bin(make(n_embd=4), _use_new_zipfile_serialization=zipped)
        for trial in range(120):
            hurt = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                place = rng.randrange(min(len(hurt), 2500))
                hurt[place if trial % 2 else -place] = rng.randrange(256)  # the pickle; the directory
            hurt = hurt[: rng.randrange(len(hurt))] if trial % 5 == 0 else hurt
            try:
                with open_checkpoint(str(folder(tmp_path / "toy", {BIN: bytes(hurt)}))) as opened:
                    list(opened.stream([list(opened.tensors)]))
            except CheckpointError:
                pass
