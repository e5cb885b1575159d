"""A toy checkpoint for the tests of data/pretrained: its weights, its files, and reading it back."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from data.pretrained import CheckpointError
from data.pretrained.checkpoint import open_checkpoint
from data.pretrained.layouts import find_stacks

N_LAYER, N_EMBD = 4, 256
CONFIG = b'{"model_type": "toy", "num_hidden_layers": 4}'


def name(layer: int, part: str) -> str:
    return f"layers.{layer}.{part}.weight"


torch.manual_seed(0)
WEIGHTS = {name(i, part): torch.randn(N_EMBD, N_EMBD) for i in range(N_LAYER) for part in "qkv"}
WEIGHTS["emb"] = torch.randn(4 * N_EMBD, N_EMBD)
GROUPS = [[name(i, "q"), name(i, "k")] for i in range(N_LAYER)]
FILE = save(WEIGHTS)
WANTED = sum(WEIGHTS[n].nbytes for group in GROUPS for n in group)
SHARDS = {f"model-0000{i + 1}-of-00002.safetensors": dict(list(WEIGHTS.items())[i::2]) for i in range(2)}
INDEX = {"weight_map": {n: file for file, part in SHARDS.items() for n in part}}
SHARDED = {"model.safetensors.index.json": json.dumps(INDEX).encode(), **{f: save(part) for f, part in SHARDS.items()}}
SINGLE = {"config.json": CONFIG, "model.safetensors": FILE}


def as_bin(saved, compression=zipfile.ZIP_STORED, **options) -> bytes:
    """What torch.save writes; compressed: the same in another zip."""
    buffer = io.BytesIO()
    torch.save(saved, buffer, **options)
    if compression == zipfile.ZIP_STORED:
        return buffer.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(buffer) as zipped, zipfile.ZipFile(packed, "w", compression) as other:
        for info in zipped.infolist():
            other.writestr(info.filename, zipped.read(info))
    return packed.getvalue()


def read(source, groups=GROUPS, weights=WEIGHTS):
    """Streams the groups and compares them with the weights; -> the checkpoint."""
    opened = open_checkpoint(source)
    got = list(opened.stream(groups))
    assert [list(group) for group in got] == [list(group) for group in groups]
    for group in got:
        for n, tensor in group.items():
            assert tensor.dtype == weights[n].dtype and torch.equal(tensor, weights[n])
    return opened


def layers_of(opened):
    return find_stacks(opened.config, {name: info.shape for name, info in opened.tensors.items()})[0]


def one_line(call) -> str:
    """What a call is refused with."""
    with pytest.raises(CheckpointError) as error:
        call()
    line = str(error.value)
    assert line.isprintable() and len(line) < 900
    return line


def refusal(source, groups=GROUPS) -> str:
    return one_line(lambda: list(open_checkpoint(source).stream(groups)))


def folder(path: Path, files: dict[str, bytes], config: bytes | None = CONFIG) -> Path:
    """A folder with these files, which may be in folders inside of it, and a config.json."""
    path.mkdir(parents=True, exist_ok=True)
    for file, data in (files | ({"config.json": config} if config else {})).items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_bytes(data)
    return path


def model_folder(path, tensors, config: dict | None = None) -> Path:
    """A folder with these tensors in a model.safetensors (two may be one), and with this config.json if any."""
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    return folder(Path(path), {"model.safetensors": save(copies)}, json.dumps(config).encode() if config else None)
