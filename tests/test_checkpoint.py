"""The checkpoint reader of data/pretrained, with the real Hub client against the stand-in of tests/hub.py."""

import io
import json
import os
import struct
import time

import pytest
import torch
from huggingface_hub import close_session, constants, hf_hub_download
from safetensors.torch import save

from data.pretrained import checkpoint
from data.pretrained import hub as client
from data.pretrained.files import CheckpointError, only_checkpoint_errors
from data.pretrained.formats import BLOCK
from data.pretrained.sources import open_checkpoint
from tests.toy import (CONFIG, FILE, GROUPS, SHARDED, SHARDS, SINGLE, WANTED, WEIGHTS, as_bin, folder, name,
                       one_line, read, records_of, refusal, zip_of)


BIN = "pytorch_model.bin"
# An older torch named the zip after its file, and wrote fewer records.
OLDER = zip_of({name: data for name, data in records_of(as_bin(WEIGHTS)).items() if name.startswith("data")},
               folder="pytorch_model")


@pytest.mark.parametrize("files, overhead", [
    ({"model.safetensors": FILE}, 0), (SHARDED, 0), ({BIN: as_bin(WEIGHTS)}, 6 * BLOCK), ({BIN: OLDER}, 6 * BLOCK)])
def test_only_what_says_where_tensors_lie_and_the_wanted_ones_travel(hub, files, overhead):
    hub.add("org/toy", {"config.json": CONFIG, **files})
    opened = read("org/toy")
    weights = {file: data for file, data in files.items() if not file.endswith(".json")}
    sent = sum(map(hub.sent, weights))
    assert WANTED < sent == sum(opened.folder.lengths) <= WANTED + overhead + 2500
    assert len([r for r in hub.log if r.host == "cdn"]) <= 14 + overhead // BLOCK
    ranges = [r for r in hub.log if "range" in r.headers]
    assert all(r.headers["accept-encoding"] == "identity" for r in ranges)  # or other bytes would come
    assert opened.size == sum(map(len, weights.values()))
    assert len(opened.notes) == 1 and opened.config == json.loads(CONFIG)
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values()) and set(opened.tensors) == set(WEIGHTS)


def test_tensors_keep_their_dtype_and_may_be_large(tmp_path):
    weights = {str(dtype): torch.randn(40, 30).to(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)}
    weights["large"] = torch.randn(5_000_000)  # more than is read at once
    read(folder(tmp_path / "toy", {"model.safetensors": save(weights)}), [list(weights)], weights)


def test_local_folders_files_and_shards_give_the_same_tensors(tmp_path, monkeypatch):
    single = folder(tmp_path / "single", {"model.safetensors": FILE})
    read(single)
    read(single / "model.safetensors")
    read(folder(tmp_path / "sharded", SHARDED))
    read(folder(tmp_path / "named", {"weights_v2.safetensors": FILE, "adapter_model.safetensors": b""}))
    monkeypatch.chdir(single)
    read("model.safetensors")


def test_the_commit_is_pinned_once_and_revisions_are_honoured(hub):
    hub.add("org/toy", SINGLE | {"model.safetensors": b"of another branch"})
    change = hub.add("org/toy", SINGLE, branch="refs/pr/1")
    for source in "org/toy@refs/pr/1", f"org/toy@{change}":
        hub.log.clear()
        read(source)
        assert all(f"/resolve/{change}/" in r.path for r in hub.log if r.file == "model.safetensors")
        assert [r.file for r in hub.log].count("api") == 1


def test_a_folder_of_a_repository_or_a_file_is_read_and_a_refusal_names_the_folders(hub):
    inner = {f"transformer/{name}": data for name, data in SINGLE.items()}
    commit = hub.add("org/parts", {"model_index.json": b"{}"} | inner)
    for end in "", f"@{commit}", "/model.safetensors":
        assert read(f"org/parts/transformer{end}").config == json.loads(CONFIG)
    told = "but model_index.json, transformer: give one of its folders, as org/parts/transformer"
    assert told in refusal("org/parts")
    hf_hub_download("org/parts", "transformer/config.json")
    assert len(read("org/parts/transformer").notes) == 1


def test_the_token_reaches_the_hub_and_never_the_cdn(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add("org/toy", SINGLE, gated="hf_secret")
    read("org/toy")
    assert all(r.headers["authorization"] == "Bearer hf_secret" for r in hub.log if r.host == "hub")
    assert any(r.host == "cdn" for r in hub.log)
    assert "hf_secret" not in repr([r for r in hub.log if r.host == "cdn"])


@pytest.mark.parametrize("offline", [True, False])
def test_cached_files_are_read_with_and_without_the_hub(hub, monkeypatch, offline):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    for file in ("config.json", *SHARDED):
        hf_hub_download("org/toy", file)
    hub.log.clear()
    assert len(read("org/toy").notes) == 1
    assert [r.file for r in hub.log] == ["api"]  # which commit is main?
    hub.fail("api", 403)
    assert "403" in refusal("org/toy")  # the Hub is there, and says no
    hub.add("org/half", SINGLE)
    hf_hub_download("org/half", "config.json")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    hub.close()
    close_session()
    assert "cache" in read("org/toy").notes[1]
    assert refusal("org/half").startswith("the Hub is out of reach, and the local cache has config.json alone")


@pytest.mark.parametrize("fault", [503, "cut"])
def test_a_fault_of_the_connection_is_survived(hub, fault):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    for file in [*SHARDS, *SHARDS, *(3 * ["api"] if fault == 503 else [])]:
        hub.fail(file, fault)
    opened = read("org/toy")
    assert not hub.faults and len(hub.waits) >= 2  # of a range of one byte the end is not waited for
    assert sum(opened.folder.lengths) <= sum(map(hub.sent, SHARDS))


def test_what_the_hub_does_not_give_is_refused_in_one_line(hub, monkeypatch):
    hub.add("org/toy", SINGLE)
    hub.add("org/closed", SINGLE, gated="hf_right")
    for source, words in {"org/closed": f"gated: log in at {hub.url}/org/closed, click on 'Agree",
                          "org/none": "no file or folder of this name, and no public",
                          "org/toy@v9": "org/toy has no branch, tag or commit of this name",
                          "https://huggingface.co/org/toy": "no file or folder of this name; a Hub id is org/name",
                          "./none": "no file or folder"}.items():
        assert refusal(source).startswith(words)
    hub.add("org/large", SINGLE | {"model.safetensors": bytes(1 << 26)})
    hub.ranges = False
    assert "does not serve byte ranges" in refusal("org/large")
    assert sum(answer.sent for answer in hub.log) < 1 << 25  # what fits into the socket's buffers, not the file
    monkeypatch.setattr(client, "TIMEOUT", 0.1)
    for _ in range(6):  # it is asked six times
        hub.fail("api", "stall")
    assert "Timeout" in refusal("org/toy")
    assert not hub.faults
    hub.close()
    close_session()
    assert refusal("out/misspelt").startswith("the Hub is out of reach, and there is no file or folder")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal("org/other")


PAGE = b"<!doctype html>" + 999 * b" "
DEEP = b"[" * 100_000
FIRST = next(iter(SHARDS))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440473133\n"
DAMAGED = [  # files, and what is said of them
    *[({"model.safetensors": data}, "cut short") for data in (b"", FILE[:40], FILE[:-1], PAGE, POINTER)],
    *[({BIN: data}, ".bin is damaged") for data in (as_bin(WEIGHTS)[:-300], PAGE, POINTER)],
    ({file: data for file, data in SHARDED.items() if file != FIRST}, FIRST),
    *[(SINGLE | {"config.json": text}, "config.json makes no sense") for text in (PAGE, DEEP)],
    ({"model.safetensors.index.json": b'{"weight_map": {"a": 3}}'}, "3 is not there"),
    *[({"model.safetensors": struct.pack("<Q", len(header)) + header}, "safetensors makes no sense") for header in (
        DEEP, b"[1]", b'{"q": 3}', b'{"q": {"dtype": 3, "shape": [2], "data_offsets": ["0", null]}}',
        b'{"q": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"q": {"dtype": [], "shape": [], "data_offsets": [0, 0]}}')],
]


@pytest.mark.parametrize("files, words", DAMAGED)
def test_what_is_damaged_is_refused_in_one_line(hub, tmp_path, files, words):
    files = {"config.json": CONFIG} | files
    hub.add("org/toy", files)
    for source in folder(tmp_path / "toy", files, config=None), "org/toy":
        assert words in refusal(source)


def test_the_boundary_lets_bugs_of_ours_pass():
    for error, raised in (KeyError, CheckpointError), (RecursionError, CheckpointError), (NameError, NameError):
        with pytest.raises(raised), only_checkpoint_errors("it"):
            raise error


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path):
    toy = folder(tmp_path / "toy", {"model.safetensors": FILE})
    opened = open_checkpoint(toy)
    os.truncate(toy / "model.safetensors", len(FILE) // 2)
    assert "cut short" in one_line(lambda: list(opened.stream(GROUPS)))


def test_the_index_says_which_file_holds_a_tensor(tmp_path):
    """An old copy of one, in the file that is read last, does not win; nor is what is not there left out."""
    first, last = SHARDS
    stale = next(iter(SHARDS[first]))
    both = SHARDED | {last: save(SHARDS[last] | {stale: torch.zeros_like(WEIGHTS[stale])})}
    read(folder(tmp_path / "old", both))
    alone = {file: data for file, data in both.items() if not file.endswith("json")}
    assert f"{stale} is in {last} and in another file" in refusal(folder(tmp_path / "both", alone))
    lost = SHARDED | {first: save({name: weight for name, weight in SHARDS[first].items() if name != stale})}
    assert f"{stale} is not in the file that the index names" in refusal(folder(tmp_path / "lost", lost))


def test_a_piece_stands_for_all_pieces(tmp_path):
    pieces = {file: save(part) for file, part in SHARDS.items()}
    toy = folder(tmp_path / "toy", pieces)
    for source in toy, *[toy / file for file in pieces]:  # without an index
        read(source)
    first, last = pieces
    (toy / last).unlink()
    for source in toy, toy / first:
        assert f"{last} is not there, and {first} is of 2 files" in refusal(source)


@pytest.mark.parametrize("wrap", [
    lambda name: f"module.{name}", lambda name: f"_orig_mod.{name}",
    lambda name: name.replace(".q.", "._fsdp_wrapped_module.q._checkpoint_wrapped_module.")])
def test_names_are_those_of_the_plain_model_whatever_wrapped_it(tmp_path, wrap):
    """TransformerEngine adds _extra_state: bytes in a safetensors file, and anything at all in a file of torch."""
    state = {wrap(name): weight for name, weight in WEIGHTS.items()}
    one = {"model.safetensors": save(state | {wrap("layers.0.q._extra_state"): torch.ones(3, dtype=torch.uint8)})}
    extra = {wrap("layers.0.q._extra_state"): io.BytesIO(b"scales"), wrap("layers.1.q._extra_state"): {"a": [1]}}
    for files in one, {BIN: as_bin(state | extra)}:
        assert set(read(folder(tmp_path / next(iter(files)), files)).tensors) == set(WEIGHTS)


def test_two_tensors_that_have_one_name_in_the_plain_model_are_refused(tmp_path):
    wrapped = {f"_orig_mod.{name(0, 'q')}": WEIGHTS[name(1, "q")].clone()}
    toy = folder(tmp_path / "toy", {"model.safetensors": save(WEIGHTS | wrapped)})
    assert f"are both called {name(0, 'q')} in the plain model" in refusal(toy)


def test_tensors_that_have_no_score_are_named_and_only_when_they_are_asked_for(tmp_path):
    weights = {"q": torch.ones(4, 4), "i": torch.ones(4, dtype=torch.int32), "bool": torch.ones(3, dtype=torch.bool),
               "f8": torch.ones(4).to(torch.float8_e4m3fn), "nan": torch.tensor([1, torch.nan]).bfloat16(),
               "inf": torch.tensor([-torch.inf, 1])}
    toy = folder(tmp_path / "toy", {"model.safetensors": save(weights)})
    assert read(toy, [["q"]], weights).n_params == 24
    for n, words in (("i", "I32"), ("f8", "float8_e4m3fn"), ("bool", "BOOL"), ("nan", "NaN or"), ("inf", "infinity")):
        told = refusal(toy, [["q"], [n]])
        assert repr(n) in told and words in told


def test_little_is_read_ahead_and_a_stream_may_be_left(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "AHEAD", 2)
    opened = open_checkpoint(folder(tmp_path / "toy", {"model.safetensors": FILE}))
    next(opened.stream(GROUPS))
    time.sleep(0.2)  # time enough to read everything
    assert sum(opened.folder.lengths) <= 2500 + 3 * WANTED // len(GROUPS)
