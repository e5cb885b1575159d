"""A toy checkpoint for the tests of data/pretrained: its weights, its files, and reading it back."""

import io
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import save

from data.pretrained.sources import CheckpointError, open_checkpoint

N_LAYER, N_EMBD = 4, 256
CONFIG = b'{"model_type": "toy", "num_hidden_layers": 4}'


def name(layer: int, part: str) -> str:
    return f"layers.{layer}.{part}.weight"


def make(dtype=torch.float32, n_embd=N_EMBD) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    parts = [name(i, part) for i in range(N_LAYER) for part in "qkv"]
    weights = {part: torch.randn(n_embd, n_embd) for part in parts} | {"emb": torch.randn(4 * n_embd, n_embd)}
    return {part: weight.to(dtype) for part, weight in weights.items()}


GROUPS = [[name(i, "q"), name(i, "k")] for i in range(N_LAYER)]
WEIGHTS = make()
FILE = save(WEIGHTS)
WANTED = sum(WEIGHTS[n].nbytes for group in GROUPS for n in group)
SHARDS = {f"model-0000{i + 1}-of-00002.safetensors": dict(list(WEIGHTS.items())[i::2]) for i in range(2)}
INDEX = {"weight_map": {n: file for file, part in SHARDS.items() for n in part}}
SHARDED = {"model.safetensors.index.json": json.dumps(INDEX).encode(), **{f: save(part) for f, part in SHARDS.items()}}
SINGLE = {"config.json": CONFIG, "model.safetensors": FILE}


def as_bin(saved, **options) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(saved, buffer, **options)
    return buffer.getvalue()


def read(source, groups=GROUPS, weights=WEIGHTS):
    """Streams the groups and compares them with the weights; -> the closed checkpoint."""
    with open_checkpoint(str(source)) as opened:
        got = list(opened.stream(groups))
        assert [list(group) for group in got] == [list(group) for group in groups]
        for group in got:
            for n, tensor in group.items():
                assert tensor.dtype == weights[n].dtype and torch.equal(tensor, weights[n])
    return opened


def refusal(source, groups=GROUPS) -> str:
    with pytest.raises(CheckpointError) as error, open_checkpoint(str(source)) as opened:
        list(opened.stream(groups))
    assert str(error.value).isprintable() and len(str(error.value)) < 500
    return str(error.value)


def folder(path: Path, files: dict[str, bytes], config: bytes | None = CONFIG) -> Path:
    path.mkdir(exist_ok=True)
    for file, data in (files | ({"config.json": config} if config else {})).items():
        (path / file).write_bytes(data)
    return path


def cache(repo: str, hub) -> None:
    """The files of its main branch are in the local cache."""
    held = hub.repos[repo]
    for file in held.files[held.branches["main"]]:
        hf_hub_download(repo, file)
