"""The checkpoint reader of data/pretrained, with the real Hub client against the stand-in of tests/hub.py."""

import json
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants
from safetensors.torch import save

import data.pretrained.hub
from data.pretrained import checkpoint, files
from data.pretrained.sources import CheckpointError, open_checkpoint
from data.pretrained.tensors import HEAD
from tests.hub import hub  # noqa: F401 (a fixture)
from tests.toy import (CONFIG, FILE, GROUPS, INDEX, SHARDED, SHARDS, SINGLE, WANTED, WEIGHTS, as_bin, cache,
                       folder, make, name, read, refusal)


def header_size(file: bytes) -> int:
    return 8 + struct.unpack("<Q", file[:8])[0]


def with_header(header, data: bytes = b"") -> bytes:
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


# What is read, and from where


def test_only_the_header_and_the_wanted_tensors_travel(hub):
    commit = hub.add("org/toy", SINGLE)
    opened = read("org/toy")
    needed = WANTED + header_size(FILE)
    assert needed <= hub.sent("model.safetensors") <= 1.02 * needed
    assert opened.bytes_read == hub.sent("model.safetensors")
    assert all(r.headers["accept-encoding"] == "identity" for r in hub.log if "range" in r.headers)
    assert (opened.size, opened.revision, opened.note) == (len(FILE), commit, "")
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values()) and opened.config["model_type"] == "toy"


def test_shards_are_read_by_their_index(hub):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    opened = read("org/toy")
    needed = WANTED + sum(header_size(SHARDED[file]) for file in SHARDS)
    assert sum(map(hub.sent, SHARDS)) <= 1.02 * needed + HEAD  # the second header's first read
    assert opened.size == sum(len(SHARDED[file]) for file in SHARDS) and set(opened.tensors) == set(WEIGHTS)


@pytest.mark.parametrize("length", [HEAD - 9, HEAD - 8, HEAD - 7, HEAD + 5000])
def test_headers_around_the_size_of_the_first_read_are_whole(tmp_path, length):
    header, data = FILE[8 : header_size(FILE)], FILE[header_size(FILE) :]
    header = b"{" + header[1:].rjust(length - 1)  # spaces inside, so that every byte counts
    assert len(header) == length
    read(folder(tmp_path / "toy", {"model.safetensors": with_header(header, data)}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_tensors_keep_their_dtype(tmp_path, dtype):
    weights = make(dtype, 16)
    read(folder(tmp_path / "toy", {"model.safetensors": save(weights)}), weights=weights)


def test_local_folders_files_and_shards_give_the_same_tensors(tmp_path, monkeypatch):
    single = folder(tmp_path / "single", {"model.safetensors": FILE})
    opened = read(single)
    assert opened.revision is None and WANTED <= opened.bytes_read <= WANTED + HEAD
    read(single / "model.safetensors")
    read(folder(tmp_path / "sharded", SHARDED))
    read(folder(tmp_path / "named", {"weights_v2.safetensors": FILE, "adapter_model.safetensors": b""}))
    monkeypatch.setattr(files, "PIECE", 1000)  # a tensor in many ranges
    assert read(single).bytes_read == WANTED + HEAD
    monkeypatch.chdir(single)
    read("model.safetensors")


def test_the_commit_is_pinned_once_and_revisions_are_honoured(hub):
    hub.add("gpt2", SINGLE)
    change = hub.add("gpt2", SINGLE, branch="refs/pr/1")
    for source in "gpt2@refs/pr/1", f"gpt2@{change}":
        hub.log.clear()
        assert read(source).revision == change
        assert all(f"/resolve/{change}/" in r.path for r in hub.log if r.file == "model.safetensors")
        assert sum(r.path.startswith("/api/models") for r in hub.log) == 1


def test_the_token_reaches_the_hub_and_never_the_cdn(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add("org/toy", SINGLE, gated=True, allowed="hf_secret")
    read("org/toy")
    assert all(r.headers["authorization"] == "Bearer hf_secret" for r in hub.log if r.host == "hub")
    assert any(r.host == "cdn" for r in hub.log)
    assert "hf_secret" not in repr([r for r in hub.log if r.host == "cdn"])


# The cache and offline mode


def test_cached_files_are_read_in_place_without_a_request(hub, monkeypatch):
    commit = hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    cache("org/toy", hub)
    hub.log.clear()
    read("org/toy")
    assert [r.path.partition("?")[0] for r in hub.log] == ["/api/models/org/toy"]  # which commit is main?
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    opened = read("org/toy")
    assert opened.revision == commit and not hub.log
    read(f"org/toy@{commit}")


def test_what_is_cached_is_read_when_the_hub_is_out_of_reach(hub, monkeypatch):
    hub.add("org/toy", SINGLE)
    cache("org/toy", hub)
    hub.fail("api", 503, times=9)
    assert "cache" in read("org/toy").note
    hub.close()
    close_session()
    assert "cache" in read("org/toy").note


def test_without_network_or_cache_one_line_says_so(hub, monkeypatch):
    hub.add("org/toy", SINGLE)
    read("org/toy")  # caches config.json alone
    hub.close()
    close_session()
    told = refusal("out/misspelt")
    assert "127.0.0.1" in told and "network" in told and "no folder" in told
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal("org/other")
    assert "local cache" in refusal("org/toy")


# A connection that fails


@pytest.mark.parametrize("fault", [500, 503, 429, "cut", "reset", "stall"])
@pytest.mark.parametrize("file, content", [("model.safetensors", FILE), ("pytorch_model.bin", as_bin(WEIGHTS))])
def test_a_fault_of_the_connection_is_survived(hub, monkeypatch, fault, file, content):
    if fault == "stall":
        monkeypatch.setattr(data.pretrained.hub, "TIMEOUT", 0.4)
    hub.add("org/toy", {"config.json": CONFIG, file: content})
    hub.fail(file, fault, times=2)
    opened = read("org/toy")
    assert len(hub.waits) >= 2 and not hub.faults and all(r.status > 0 for r in hub.log)
    assert opened.bytes_read <= hub.sent(file)


@pytest.mark.parametrize("headers", [{"Retry_After": 7}, {"ratelimit": '"resolvers";r=0;t=7'}])
def test_the_server_says_how_long_to_wait(hub, headers):
    hub.add("org/toy", SINGLE)
    hub.fail("model.safetensors", 429, **headers)
    read("org/toy")
    assert hub.waits == [7]
    hub.fail("model.safetensors", 429, Retry_After=3600)
    told = refusal("org/toy")
    assert "429" in told and "60 min" in told and "network" not in told and hub.waits == [7]


def test_the_questions_about_the_repository_are_repeated_too(hub):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    for file in ("api", "config.json", "model.safetensors.index.json"):
        hub.fail(file, 503)
    hub.fail("config.json", "reset")
    read("org/toy")
    assert not hub.faults


@pytest.mark.parametrize("fault, told", [(503, "503"), ("cut", "127.0.0.1")])
def test_five_tries_are_enough(hub, fault, told):
    hub.add("org/toy", SINGLE)
    hub.fail("model.safetensors", fault, times=99)
    assert told in refusal("org/toy")
    assert hub.waits == list(data.pretrained.hub.BACKOFF)


@pytest.mark.parametrize("fault", ["whole", "unranged"])
@pytest.mark.parametrize("file, content", [("model.safetensors", FILE), ("pytorch_model.bin", as_bin(WEIGHTS))])
def test_only_the_very_range_asked_for_is_accepted(hub, tmp_path, fault, file, content):
    (tmp_path / "big").write_bytes(content)
    if fault == "whole":
        os.truncate(tmp_path / "big", 1 << 28)
    hub.add("org/toy", {"config.json": CONFIG, file: tmp_path / "big"})
    for n_before in range(1 if fault == "whole" else 4):  # the fault is at the header, the directory, a tensor, ...
        hub.faults = [(file, ("", {}))] * n_before
        hub.fail(file, fault)
        assert "does not serve byte ranges" in refusal("org/toy")
    assert not hub.waits
    if fault == "whole":
        assert hub.sent(file) < 1 << 25  # what fits into the socket's buffers, not the file


# What the Hub refuses


def test_gated_missing_and_private_repositories_are_told_apart(hub, monkeypatch):
    hub.add("org/closed", SINGLE, gated=True)
    for token in ("", "hf_other"):
        monkeypatch.setenv("HF_TOKEN", token)
        told = refusal("org/closed")
        assert "gated" in told and f"{hub.url}/org/closed" in told and "HF_TOKEN" in told
        told = refusal("org/none")
        assert "gated" not in told and f"{hub.url}/org/none" in told and "HF_TOKEN" in told
    hub.add("org/toy", SINGLE)
    assert "no revision v9" in refusal("org/toy@v9") and "org/toy" in refusal("org/toy@" + "0" * 40)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_token_that_may_not_read_gated_repositories_is_told(hub, file):
    hub.add("org/toy", SINGLE)
    hub.forbidden = file
    told = refusal("org/toy")
    assert "HF_TOKEN" in told and "403" in told and "gated" in told and "network" not in told


@pytest.mark.parametrize("source", ["./none", "~/none", "a/b/c", "org/model.safetensors", "x.bin", "", "a b", "org/",
                                    "a--b", "a..b"])
def test_what_is_neither_a_path_nor_an_id_is_refused_without_a_request(hub, source):
    assert "no file or folder" in refusal(source)
    assert not hub.log


def test_a_server_that_is_no_hub_is_named(hub):
    hub.fail("api", 200)
    assert hub.url in refusal("org/toy") and not hub.faults


# What there is on the Hub


def test_branches_and_tags_of_a_repository_are_listed_and_each_has_its_own_weights(hub):
    hub.add("org/toy", SINGLE)
    for step in (0, 1000):
        weights = {n: tensor + step for n, tensor in WEIGHTS.items()}
        hub.add("org/toy", SINGLE | {"model.safetensors": save(weights)}, branch=f"step{step}")
        read(f"org/toy@step{step}", weights=weights)
    hub.add("org/toy", SINGLE, tag="v1.0")
    hub.fail("api", 503)
    assert sorted(data.pretrained.hub.list_revisions("org/toy")) == ["main", "step0", "step1000", "v1.0"]
    read("org/toy@v1.0")
    assert len(hub.waits) == 1


def test_repositories_are_listed_by_a_pattern_over_all_pages(hub):
    steps = [f"google/multiberts-seed_0-step_{k}k" for k in (0, 20, 100, 2000)]
    others = ["google/multiberts-seed_0", "google/multiberts-seed_1-step_0k", "googles/multiberts-seed_0-step_7k"]
    for repo in steps + others:
        hub.add(repo, SINGLE)
    assert sorted(data.pretrained.hub.list_repos("google/multiberts-seed_0-step_*k")) == sorted(steps)
    assert len(data.pretrained.hub.list_repos("google/multiberts-seed_?-step_0k")) == 2
    assert sum("author=google" in r.path and "search=multiberts-seed_" in r.path for r in hub.log) >= 2


def test_what_cannot_be_listed_is_one_line(hub, monkeypatch):
    def told(call, name):
        with pytest.raises(CheckpointError) as error:
            call(name)
        assert "\n" not in str(error.value)
        return str(error.value)

    list_revisions, list_repos = data.pretrained.hub.list_revisions, data.pretrained.hub.list_repos
    assert "org/none" in told(list_revisions, "org/none") and "HF_TOKEN" in told(list_revisions, "org/none")
    assert "org/none*" in told(list_repos, "org/none*")
    assert "name before" in told(list_repos, "*/bert-*") and "name before" in told(list_repos, "bert-*")
    hub.add("org/toy", SINGLE)
    hub.fail("api", 200)
    assert hub.url in told(list_revisions, "org/toy")
    monkeypatch.setattr(data.pretrained.hub, "TIMEOUT", 0.1)
    for call in list_revisions, list_repos, open_checkpoint:
        hub.faults.clear()
        hub.waits.clear()
        hub.fail("api", "stall", times=9)
        assert "Timeout" in told(call, "org/toy") and hub.waits == list(data.pretrained.hub.BACKOFF)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in told(list_revisions, "org/toy") and "HF_HUB_OFFLINE" in told(list_repos, "org/t*")


# Damaged files


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
LIES = [  # the header, and how many bytes of data there are
    (GOOD, 17),
    (GOOD | {"b": entry("F32", [3], 8, 16)}, 16),  # a shape of another size
    (GOOD | {"b": entry("F16", [2], 8, 16)}, 16),  # a dtype of another size
    (b"{not json}", 16),
]
FIRST = next(iter(SHARDS))
INDEX_FILE = "model.safetensors.index.json"
INDEXES = [(INDEX["weight_map"] | {"new": FIRST}, "'new'"), ({"a": "none.safetensors"}, "none.safetensors"),
           ({}, "weight_map")]
DAMAGED = [  # files, and what is said of them
    *[({"model.safetensors": with_header(header, bytes(n))}, "model.safetensors") for header, n in LIES],
    *[({"model.safetensors": data}, "model.safetensors")
      for data in (b"1234567", FILE[:40], b"<html>" + bytes(99))],
    ({"model.safetensors": FILE[:-1]}, "cut short"),
    *[(SHARDED | {INDEX_FILE: json.dumps({"weight_map": index}).encode()}, words) for index, words in INDEXES],
    (SHARDED | {INDEX_FILE: b"{"}, INDEX_FILE),
    ({file: data for file, data in SHARDED.items() if file != FIRST}, FIRST),
    *[(SINGLE | {"config.json": text}, "config.json is not a JSON object") for text in (b"[]", b"")],
]


@pytest.mark.parametrize("files, words", DAMAGED)
def test_what_is_damaged_is_refused_in_one_line(hub, tmp_path, files, words):
    hub.add("org/toy", {"config.json": CONFIG} | files)
    for source in folder(tmp_path / "toy", {"config.json": CONFIG} | files, config=None), "org/toy":
        assert words in refusal(source)


# Tensors that cannot be scored


def test_other_dtypes_are_refused_only_when_asked_for(tmp_path):
    weights = {"q": torch.ones(4, 4), "i": torch.ones(4, dtype=torch.int32), "bool": torch.ones(3, dtype=torch.bool),
               "f8": torch.ones(4).to(torch.float8_e4m3fn), "none": torch.ones(0, 5)}
    toy = folder(tmp_path / "toy", {"model.safetensors": save(weights)})
    assert read(toy, [["q", "none"]], weights).n_params == 20
    for n, dtype in (("i", "I32"), ("f8", "F8_E4M3"), ("bool", "BOOL")):
        told = refusal(toy, [["q"], [n]])
        assert repr(n) in told and dtype in told


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_without_a_score_are_named(tmp_path, value, dtype):
    weights = make(dtype, 8)
    weights[name(2, "k")].view(-1)[37].fill_(value)
    toy = folder(tmp_path / "toy", {"model.safetensors": save(weights)})
    assert "NaN or infinity" in refusal(toy) and name(2, "k") in refusal(toy)
    read(toy, [[name(2, "q")]], weights)


# Order, memory, threads


def test_groups_come_in_order_and_little_is_read_ahead(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(checkpoint, "AHEAD", 2)
    monkeypatch.setattr(checkpoint.Checkpoint, "_read", lambda self, name: begun.append(name))
    with open_checkpoint(folder(tmp_path / "toy", {"model.safetensors": FILE})) as opened:
        opened._pool = ThreadPoolExecutor(1)  # in order
        for i, group in enumerate(opened.stream(GROUPS)):
            opened._pool.submit(int).result()  # all that was asked for is read
            assert list(group) == GROUPS[i] and begun == sum(GROUPS[: i + 1 + checkpoint.AHEAD], [])
        assert i + 1 == len(GROUPS)
        stream = opened.stream(GROUPS)
        next(stream)
        stream.close()  # in the middle: nothing hangs


def test_a_local_folder_needs_no_hub_client(tmp_path):
    toy = folder(tmp_path / "toy", {"model.safetensors": FILE})
    code = ("import sys; from data.pretrained.sources import open_checkpoint\n"
            f"with open_checkpoint({str(toy)!r}) as opened: list(opened.stream([list(opened.tensors)]))\n"
            "assert 'huggingface_hub' not in sys.modules and 'httpx2' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], cwd=Path(checkpoint.__file__).parents[2], check=True, timeout=60)
