"""
The header of a safetensors file: where every tensor lies (https://huggingface.co/docs/safetensors).

A file is 8 bytes, the length of the header as a little-endian number; the header, JSON: name -> dtype, shape,
data_offsets; and the data, to which the offsets refer. So one small read tells where every tensor is.
"""

import json
import math
import re
from collections.abc import Mapping

from data.pretrained.files import CheckpointError, Folder, TensorInfo, WeightFile, require

HEAD = 1 << 15  # bytes of the first read of a file; most headers are shorter
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library


def read_header(folder: Folder, file: str) -> WeightFile:
    head, size = folder.read_head(file, HEAD)
    start = 8 + int.from_bytes(head[:8], "little")  # of the data
    require(9 < start <= min(size, MAX_HEADER), f"{file} is cut short or no safetensors: get it again")
    return WeightFile(size, parse_header(folder.read_bytes(file, 8, start), file, start, size))


def parse_header(header: bytes, file: str, start: int, size: int) -> dict[str, TensorInfo]:
    """The tensors of a file of `size` bytes, whose data begin at `start`; they must fill it exactly."""
    tensors, end = {}, start
    try:
        table = json.loads(header.decode(), object_pairs_hook=without_repeats)
        check_metadata(table.pop("__metadata__", {}))
        for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = [*shape, first, last]
            if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
                raise ValueError("a size is not a natural number")
            if math.prod(max(1, n) for n in shape) >= 1 << 63:  # torch refuses it, also where another size is 0
                raise ValueError(f"the shape of {name!r:.60} is too large")
            if start + first != end or 8 * (last - first) != math.prod(shape) * bits_of(dtype):
                raise ValueError(f"the bytes of {name!r:.60} overlap, leave a hole or do not fit its dtype and shape")
            end = start + last
            tensors[name] = TensorInfo(file, dtype, tuple(shape), start + first, end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{file} has a damaged header ({str(e):.150}): get it again") from e
    require(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return tensors


def without_repeats(pairs: list[tuple]) -> dict:
    """What json.loads makes of an object; by itself it keeps the last of two equal names."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name comes twice")
    return table


def check_metadata(metadata: Mapping | None):
    if metadata is not None and not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("metadata that is not text")


def bits_of(dtype: str) -> int:
    """The bits of an element: F32 has 32, F8_E4M3 has 8."""
    if dtype == "BOOL":
        return 8
    return int(re.match(r"[A-Z]+(\d{1,3})", dtype)[1])  # TypeError where there is no match
