"""Files of torch.save: read by ranges of bytes, compared with torch.load of the whole file."""

import argparse
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from data.pretrained.tensors import HEAD
from tests.hub import hub  # noqa: F401 (a fixture)
from tests.toy import CONFIG, SHARDS, WANTED, WEIGHTS, as_bin, folder, make, read, refusal

BIN = "pytorch_model.bin"
ADDED = ("version", "byteorder", ".data/serialization_id")  # records that the writer of torch adds by itself
NEWER = (".format_version", ".storage_alignment")  # that torch writes since 2.x


def records_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        return {info.filename.partition("/")[2]: zipped.read(info) for info in zipped.infolist()}


def write_zip(path: Path, records: dict[str, bytes], holes={}) -> Path:
    """With the writer of torch.save. holes: record -> how many bytes of zeros it has, which take no place on disk."""
    writer = torch._C.PyTorchFileWriter(str(path))
    for record, content in records.items():
        if record in holes:
            writer.write_record_metadata(record, holes[record])
        elif record not in ADDED:
            writer.write_record(record, content, len(content))
    writer.write_end_of_file()
    return path


# What is read by ranges


@pytest.mark.parametrize("kind", ["as torch writes it", "older torch", "another prefix"])
def test_of_a_bin_only_the_directory_the_pickle_and_the_wanted_tensors_travel(hub, tmp_path, kind):
    records = records_of(as_bin(WEIGHTS))
    older = {name: content for name, content in records.items() if name not in NEWER}
    data = {"as torch writes it": lambda: as_bin(WEIGHTS),
            "older torch": lambda: write_zip(tmp_path / "archive", older).read_bytes(),
            "another prefix": lambda: write_zip(tmp_path / "another", records).read_bytes()}[kind]()
    commit = hub.add("org/toy", {"config.json": CONFIG, BIN: data})
    opened = read("org/toy")
    assert WANTED <= hub.sent(BIN) <= WANTED + 3 * HEAD < 1.1 * WANTED
    assert len([r for r in hub.log if r.host == "cdn"]) <= 8 + 8  # however many tensors there are, and those wanted
    assert (opened.bytes_read, opened.size, opened.revision, opened.note) == (hub.sent(BIN), len(data), commit, "")
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values())
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / "any.bin").write_bytes(data)
    assert read(tmp_path / "any.bin").bytes_read == opened.bytes_read


def test_views_ties_and_dtypes_come_out_as_torch_loads_them(hub, tmp_path):
    torch.manual_seed(0)
    wide = torch.randn(48, 40)
    state = {
        "whole": wide, "tied": wide, "rows": wide[8:24], "columns": wide[:, 5:20], "transposed": wide.T,
        "every other": wide[::2, ::3], "half": wide.half().T, "bfloat16": wide.bfloat16()[3:], "double": wide.double(),
        "scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "parameter": torch.nn.Parameter(torch.randn(5, 3)),
        "three": torch.randn(2, 3, 4).permute(2, 0, 1),
    }
    data = as_bin(state | {"mask": torch.zeros(3, dtype=torch.int8), "epoch": 3, "sparse": torch.eye(3).to_sparse()})
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
    records = records_of(as_bin({"first": torch.zeros(12345), **make(n_embd=8)}))
    two_bytes, eight_bytes = b"M" + struct.pack("<H", 12345), b"\x8a\x08" + struct.pack("<q", numel)
    records["data.pkl"] = records["data.pkl"].replace(two_bytes, eight_bytes)
    path = write_zip(folder(tmp_path / "toy", {}) / BIN, records, holes={"data/0": 4 * numel})
    right = torch.load(path, weights_only=True, mmap=True)
    assert right["first"].numel() == numel
    opened = read(tmp_path / "toy", weights=right)
    assert opened.size > 4 * numel and opened.bytes_read < 5 * HEAD


# What is loaded whole


@pytest.mark.parametrize("kind", ["before torch 1.6", "compressed"])
def test_other_bins_are_downloaded_whole_and_said_so(hub, tmp_path, monkeypatch, kind):
    tied = WEIGHTS | {"head": WEIGHTS["emb"], "mask": torch.zeros(3, dtype=torch.int8), "epoch": 3}
    data = as_bin(tied, _use_new_zipfile_serialization=kind != "before torch 1.6")
    if kind == "compressed":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in records_of(data).items():
                zipped.writestr(f"archive/{name}", content)
        data = buffer.getvalue()
    hub.add("org/toy", {"config.json": CONFIG, BIN: data})
    opened = read("org/toy", weights=tied)
    assert BIN in opened.note and "GB" in opened.note and opened.bytes_read >= opened.size == len(data)
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "downloaded" not in read("org/toy", weights=tied).note
    path = folder(tmp_path / "toy", {BIN: data})
    assert read(path / BIN, weights=tied).note == read(path, weights=tied).note == ""
    assert set(opened.tensors) == {*WEIGHTS, "head", "mask"} and "mask" in refusal(path, [["mask"]])


# What lies beside the weights


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net", "module"])
@pytest.mark.parametrize("zipped", [True, False])
def test_weights_inside_of_another_dict_are_found(tmp_path, key, zipped):
    options = argparse.Namespace(lr=0.1, model="vit_base", betas=(0.9, 0.95))  # as MAE, DeiT and DINO save
    saved = {key: WEIGHTS, "epoch": 3, "loss": torch.tensor(0.5), "args": options}
    data = as_bin(saved, _use_new_zipfile_serialization=zipped)
    path = folder(tmp_path / "toy", {"mae.pth": data})
    for source in path, path / "mae.pth":
        assert set(read(source).tensors) == set(WEIGHTS)


def test_a_file_without_weights_says_what_it_holds(tmp_path):
    saved = {"student": WEIGHTS, "teacher": WEIGHTS, "epoch": 3}  # as in DINO's full checkpoints
    told = refusal(folder(tmp_path / "toy", {"dino.pth": as_bin(saved)}))
    assert "dino.pth holds student, teacher, epoch" in told and "state_dict()" in told


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
    folder(tmp_path / "toy", {BIN: pickle.dumps(Bomb(tmp_path / "hit"), 5)})
    assert BIN in refusal(tmp_path / "toy") and not (tmp_path / "hit").exists()


STATE = make(n_embd=8)
DAMAGED = {
    "no pickle": lambda records: {name: records[name] for name in records if name != "data.pkl"},
    "no dict": lambda records: records | {"data.pkl": pickle.dumps([1, 2], 2)},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_zip_is_refused(hub, tmp_path, damage):
    records = records_of(as_bin(STATE))
    path = folder(tmp_path / "toy", {}) / BIN
    write_zip(path, DAMAGED[damage](records))
    hub.add("org/toy", {"config.json": CONFIG, BIN: path})
    for source in (tmp_path / "toy", "org/toy"):
        assert BIN in refusal(source, [list(STATE)])


@pytest.mark.parametrize("cut", [0, 3, 100, 2000, -1, -300])
def test_a_bin_cut_short_is_refused(tmp_path, cut):
    assert BIN in refusal(folder(tmp_path / "toy", {BIN: as_bin(STATE)[:cut]}))
