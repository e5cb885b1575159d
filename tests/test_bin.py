"""Files of torch.save: read by ranges of bytes, compared with torch.load of the whole file."""

import os
import re
import struct
import zipfile

import pytest
import torch

from tests.toy import CONFIG, WEIGHTS, as_bin, folder, read, records_of, refusal, zip_of

BIN = "pytorch_model.bin"


def test_views_ties_and_dtypes_come_out_as_torch_loads_them(tmp_path):
    wide = torch.randn(48, 40)
    noted = torch.randn(4, 6)
    noted.note = "an attribute"
    state = {
        "whole": wide, "tied": wide, "rows": wide[8:24], "columns": wide[:, 5:20], "transposed": wide.T,
        "every other": wide[::2, ::3], "half": wide.half().T, "bfloat16": wide.bfloat16()[3:], "double": wide.double(),
        "scalar": torch.tensor(3.5), "parameter": torch.nn.Parameter(torch.randn(5, 3)),
        "three": torch.randn(2, 3, 4).permute(2, 0, 1), "noted": noted,
    }
    beside = {"mask": torch.zeros(3, dtype=torch.int8), "empty": torch.empty(0, 7)}
    path = folder(tmp_path / "toy", {BIN: as_bin(state | beside | {"epoch": 3})})
    right = torch.load(path / BIN, weights_only=True)
    opened = read(path, [[n] for n in state] + [list(state)], right)
    assert set(opened.tensors) == {*state, *beside}
    assert "'mask' is" in refusal(path, [["mask"]])
    assert {n: opened.tensors[n].shape for n in state} == {n: tuple(t.shape) for n, t in state.items()}
    distinct = [t for n, t in state.items() if n not in ("tied", "transposed")]  # the same bytes, seen otherwise
    assert opened.n_params == sum(t.numel() for t in distinct)


def test_a_file_with_a_sparse_tensor_is_read_and_does_not_disturb_torch(tmp_path):
    path = folder(tmp_path / "toy", {BIN: as_bin(WEIGHTS | {"sparse": torch.eye(3).to_sparse()})})
    with torch.sparse.check_sparse_tensor_invariants():  # as from torch 2.14 on
        opened = read(path)
        assert set(opened.tensors) == {*WEIGHTS, "sparse"}
        assert "'sparse' is sparse, use" in refusal(path, [["sparse"]])
        assert torch.load(path / BIN, weights_only=True)["sparse"].is_sparse


def test_bins_of_before_torch_1_6_are_read_whole(hub):
    tied = WEIGHTS | {"head": WEIGHTS["emb"], "epoch": 3}
    data = as_bin(tied, _use_new_zipfile_serialization=False)
    hub.add("org/toy", {"config.json": CONFIG, BIN: data})
    for _ in "from the Hub", "from the cache":
        opened = read("org/toy", weights=tied)
        assert opened.notes[0].startswith("read all") and opened.size == len(data)
        assert set(opened.tensors) == {*WEIGHTS, "head"}
        assert opened.n_params == sum(t.numel() for t in WEIGHTS.values())
    assert hub.sent(BIN) < 1.5 * len(data)


def test_a_storage_smaller_than_its_tensor_or_than_its_record_says_is_refused(tmp_path):
    freed = torch.randn(64, 64)
    freed.untyped_storage().resize_(64)
    records = records_of(as_bin({"a": torch.zeros(300), "b": torch.ones(300)}))
    cut = zip_of(records | {"data/0": records["data/0"][:100]})
    lies = cut.replace(struct.pack("<II", 100, 100), struct.pack("<II", 1200, 1200))
    assert lies != cut
    for data in as_bin({"q": freed}), cut, lies:
        assert "larger than its bytes" in refusal(folder(tmp_path / "toy", {BIN: data}))


RECORDS = records_of(as_bin(WEIGHTS))


@pytest.mark.parametrize("data, words", [
    (zip_of(RECORDS, zipfile.ZIP_DEFLATED), "is compressed: load it"),
    (zip_of(RECORDS | {"byteorder": b"big"}), "is of a big-endian computer"),
    (torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(3)).save_to_buffer(), "is of TorchScript: save torch.jit.load"),
    (as_bin({"student": WEIGHTS, "teacher": WEIGHTS, "epoch": 3}),  # as DINO's full ones
     r"holds student \(layers.0.q.weight, .*\), epoch, and no weights"),
], ids=["compressed", "big-endian", "TorchScript", "no state dict"])
def test_files_that_hold_no_plain_state_dict_are_refused_with_the_way_on(tmp_path, data, words):
    assert re.search(f"{BIN} {words}", refusal(folder(tmp_path / "toy", {BIN: data})))


def test_a_file_that_was_saved_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    data = as_bin(WEIGHTS)
    torch.serialization.set_crc32_options(True)
    with pytest.raises(zipfile.BadZipFile):
        records_of(data)
    read(folder(tmp_path / "toy", {BIN: data}))


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("hit",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, monkeypatch, zipped):
    monkeypatch.chdir(tmp_path)
    told = refusal(folder(tmp_path / "toy", {BIN: as_bin({"x": Bomb()}, _use_new_zipfile_serialization=zipped)}))
    assert BIN in told and "mkdir" in told and not (tmp_path / "hit").exists()
