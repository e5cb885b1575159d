"""The checkpoint reader of data/pretrained, with the real Hub client against the stand-in of tests/hub.py."""

import contextlib
import copy
import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants
from safetensors import SafetensorError
from safetensors.torch import load, save

import data.pretrained.hub
from data.pretrained import checkpoint
from data.pretrained.files import DTYPES
from data.pretrained.safetensors_header import HEAD
from data.pretrained.sources import CheckpointError, open_checkpoint
from tests.hub import hub  # noqa: F401 (a fixture)
from tests.toy import (CONFIG, FILE, GROUPS, INDEX, N_EMBD, SHARDED, SHARDS, SINGLE, WANTED, WEIGHTS, as_bin, cache,
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


@pytest.mark.parametrize("length", [HEAD + d for d in (-9, -8, -7, -1, 0, 1, 5000)])
def test_headers_around_the_size_of_the_first_read_are_whole(hub, length):
    header, data = FILE[8 : header_size(FILE)], FILE[header_size(FILE) :]
    header = b"{" + header[1:].rjust(length - 1)  # spaces inside, so that every byte counts
    hub.add("org/toy", SINGLE | {"model.safetensors": with_header(header, data)})
    assert len(header) == length
    read("org/toy")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_tensors_keep_their_dtype(tmp_path, dtype):
    weights = make(dtype, 16)
    read(folder(tmp_path / "toy", {"model.safetensors": save(weights)}), weights=weights)


def test_local_folders_files_and_shards_give_the_same_tensors(tmp_path):
    single = folder(tmp_path / "single", {"model.safetensors": FILE})
    opened = read(single)
    assert opened.revision is None and WANTED <= opened.bytes_read <= WANTED + HEAD
    read(single / "model.safetensors")
    assert "revision" in refusal(single, revision="main")
    read(folder(tmp_path / "sharded", SHARDED))
    read(folder(tmp_path / "named", {"weights_v2.safetensors": FILE, "adapter_model.safetensors": b""}))


def test_ranges_are_cut_in_pieces_and_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", 1000)
    opened = read(folder(tmp_path / "toy", {"model.safetensors": FILE}))
    assert opened.bytes_read == WANTED + HEAD


def test_the_commit_is_pinned_once_and_revisions_are_honoured(hub):
    hub.add("gpt2", SINGLE)
    change = hub.add("gpt2", SINGLE, branch="refs/pr/1")
    for source, revision in (("gpt2@refs/pr/1", None), ("gpt2", "refs/pr/1"), (f"gpt2@{change}", None)):
        hub.log.clear()
        assert read(source, revision=revision).revision == change
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
    assert opened.revision == commit and opened.source == "org/toy" and not hub.log
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
    assert "127.0.0.1" in refusal("org/other") and "network" in refusal("org/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal("org/other")
    assert "local cache" in refusal("org/toy")


# A connection that fails


@pytest.mark.parametrize("fault", [500, 503, 429, 403, "cut", "reset", "stall", "drip"])
def test_a_fault_of_the_connection_is_survived(hub, monkeypatch, fault):
    if fault == "stall":
        monkeypatch.setattr(data.pretrained.hub, "TIMEOUT", 0.4)
    if fault == "drip":
        monkeypatch.setattr(data.pretrained.hub, "DEADLINE", 0.4)
    hub.add("org/toy", SINGLE)
    hub.fail("model.safetensors", fault, times=2)
    opened = read("org/toy")
    assert len(hub.waits) >= 2 and not hub.faults and all(r.status > 0 for r in hub.log)
    assert opened.bytes_read <= hub.sent("model.safetensors")


@pytest.mark.parametrize("headers", [{"Retry_After": 7}, {"ratelimit": '"resolvers";r=0;t=7'}])
def test_the_server_says_how_long_to_wait(hub, headers):
    hub.add("org/toy", SINGLE)
    hub.fail("model.safetensors", 429, **headers)
    read("org/toy")
    assert hub.waits == [7]
    hub.fail("model.safetensors", 429, Retry_After=3600)
    assert "429" in refusal("org/toy") and hub.waits == [7]


def test_the_questions_about_the_repository_are_repeated_too(hub):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    for file in ("api", "config.json", "model.safetensors.index.json"):
        hub.fail(file, 503)
    hub.fail("config.json", "reset")
    read("org/toy")
    assert not hub.faults


@pytest.mark.parametrize("fault, told", [(503, "503"), (403, "expired"), ("cut", "127.0.0.1")])
def test_five_tries_are_enough(hub, fault, told):
    hub.add("org/toy", SINGLE)
    hub.fail("model.safetensors", fault, times=99)
    assert told in refusal("org/toy")
    assert hub.waits == list(data.pretrained.hub.BACKOFF)


@pytest.mark.parametrize("fault", ["whole", "odd", "shifted", "unranged", "short", "gzip"])
def test_only_the_very_range_asked_for_is_accepted(hub, tmp_path, fault):
    (tmp_path / "big").write_bytes(FILE)
    os.truncate(tmp_path / "big", 1 << 28)
    hub.add("org/toy", SINGLE | {"model.safetensors": tmp_path / "big"})
    hub.fail("model.safetensors", fault)
    assert "does not serve byte ranges" in refusal("org/toy")
    assert not hub.waits
    assert hub.sent("model.safetensors") < 1 << 25  # what fits into the socket's buffers, not the file


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
    assert "no revision v9" in refusal("org/toy@v9") and "org/toy" in refusal("org/toy", revision="0" * 40)


@pytest.mark.parametrize("source", ["./none", "/none/at/all", "~/none", "a/b/c", "org/model.safetensors", "x.bin", "",
                                    "a b", "org/", "a--b", "a..b", "org/-x"])
def test_what_is_neither_a_path_nor_an_id_is_refused_without_a_request(hub, source):
    assert "no file or folder" in refusal(source)
    assert not hub.log


def test_a_server_that_is_no_hub_is_named(hub):
    hub.fail("api", 200)
    assert hub.url in refusal("org/toy") and not hub.faults


def test_the_formats_that_were_found_are_named(hub, tmp_path):
    files = {"config.json": CONFIG, "tf_model.h5": b"", "flax_model.msgpack": b"", "toy.Q4.gguf": b""}
    hub.add("org/toy", files)
    local = folder(tmp_path / "toy", files)
    for source in ("org/toy", local):
        assert all(file in refusal(source) for file in ("tf_model.h5", "flax_model.msgpack", "toy.Q4.gguf"))
    hub.add("org/bare", {"model.safetensors": FILE})
    assert "config.json" in refusal("org/bare") and "config.json" in refusal(folder(tmp_path / "x", {}, config=None))
    (tmp_path / "notes.txt").write_text("")
    assert "no file of weights" in refusal(tmp_path / "notes.txt")


def test_a_file_under_a_name_of_its_own_comes_after_the_usual_ones(tmp_path):
    other = save({name: torch.zeros_like(weight) for name, weight in WEIGHTS.items()})
    read(folder(tmp_path / "bin", {"pytorch_model.bin": as_bin(WEIGHTS), "ema.safetensors": other}))
    read(folder(tmp_path / "lone", {"toy.safetensors": FILE}))


# What there is on the Hub


def test_branches_and_tags_of_a_repository_are_listed_and_each_has_its_own_weights(hub):
    hub.add("org/toy", SINGLE)
    for step in (0, 1000):
        weights = {n: tensor + step for n, tensor in WEIGHTS.items()}
        hub.add("org/toy", SINGLE | {"model.safetensors": save(weights)}, branch=f"step{step}")
        read("org/toy", weights=weights, revision=f"step{step}")
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
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in told(list_revisions, "org/toy") and "HF_HUB_OFFLINE" in told(list_repos, "org/t*")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_an_empty_file_of_the_hub_is_named(hub, file):
    hub.add("org/toy", {"config.json": CONFIG, file: b""})
    assert f"{file} is empty" in refusal("org/toy")


def test_a_hub_that_does_not_answer_ends_in_one_line(hub, monkeypatch):
    monkeypatch.setattr(data.pretrained.hub, "TIMEOUT", 0.1)
    hub.add("org/toy", SINGLE)
    for call in data.pretrained.hub.list_revisions, data.pretrained.hub.list_repos, open_checkpoint:
        hub.faults.clear()
        hub.waits.clear()
        hub.fail("api", "stall", times=9)
        with pytest.raises(CheckpointError, match="127.0.0.1.*Timeout.*network") as error:
            call("org/toy")
        assert "\n" not in str(error.value)
        assert hub.waits == list(data.pretrained.hub.BACKOFF)


# Files that lie


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
LIES = {
    "a hole": (GOOD | {"b": entry("F32", [2], 12, 20)}, 20),
    "an overlap": (GOOD | {"b": entry("F32", [2], 4, 12)}, 12),
    "the same bytes twice": (GOOD | {"b": entry("F32", [2], 0, 8)}, 8),
    "the end beyond the file": (GOOD, 15),
    "bytes after the end": (GOOD, 17),
    "offsets past everything": (GOOD | {"b": entry("F32", [2], 1 << 62, (1 << 62) + 8)}, 16),
    "a shape of another size": (GOOD | {"b": entry("F32", [3], 8, 16)}, 16),
    "a dtype of another size": (GOOD | {"b": entry("F16", [2], 8, 16)}, 16),
    "an unknown dtype": (GOOD | {"b": entry("float", [2], 8, 16)}, 16),
    "a negative shape": (GOOD | {"b": entry("F32", [-1, -2], 8, 16)}, 16),
    "a fraction": (GOOD | {"b": entry("F32", [2.0], 8, 16)}, 16),
    "a truth value": (GOOD | {"b": entry("F32", [True, 2], 8, 16)}, 16),
    "a huge shape": (GOOD | {"b": entry("F32", [0] + [1 << 63] * 9, 8, 8)}, 8),
    "reversed offsets": (GOOD | {"b": entry("F32", [2], 16, 8)}, 16),
    "three offsets": (GOOD | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16, 16]}}, 16),
    "a missing key": (GOOD | {"b": {"dtype": "F32", "shape": [2]}}, 16),
    "no table": (GOOD | {"b": 7}, 16),
    "a list": ([GOOD], 16),
    "a name that comes twice": (json.dumps(GOOD | {"c": GOOD["a"]}).encode().replace(b'"c"', b'"a"'), 16),
    "no JSON": (b"{not json}", 16),
    "no UTF-8": (json.dumps(GOOD).encode().replace(b"b", b"\xff"), 16),
    "brackets without end": (b"[" * 20000, 16),
    "a number without end": (json.dumps(GOOD).encode().replace(b"16", b"9" * 9000), 16),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(tmp_path, lie):
    header, n_bytes = LIES[lie]
    file = with_header(header, bytes(range(1, n_bytes + 1)))
    assert "model.safetensors" in refusal(folder(tmp_path / "toy", {"model.safetensors": file}), [["a"]])


@pytest.mark.parametrize("data", [b"", b"1234567", bytes(8), b"\xff" * 64, FILE[:40], struct.pack("<Q", 1 << 40),
                                  b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_file_cut_short_in_its_header_is_refused(hub, tmp_path, data):
    told = refusal(folder(tmp_path / "toy", {"model.safetensors": data}))
    assert "model.safetensors" in told
    hub.add("org/toy", SINGLE | {"model.safetensors": data})
    refusal("org/toy")


def test_a_file_cut_short_in_its_data_is_refused(hub, tmp_path):
    hub.add("org/toy", SINGLE | {"model.safetensors": FILE[:-1]})
    local = folder(tmp_path / "toy", {"model.safetensors": FILE[:-1]})
    assert "cut short" in refusal("org/toy") and "cut short" in refusal(local)
    (local / "model.safetensors").write_bytes(FILE)
    with open_checkpoint(str(local)) as opened, pytest.raises(CheckpointError, match="cut short"):
        os.truncate(local / "model.safetensors", 5000)
        list(opened.stream(GROUPS))


def test_an_index_that_lies_is_refused(tmp_path):
    toy, first = folder(tmp_path / "toy", SHARDED), next(iter(SHARDS))
    lies = [(INDEX["weight_map"] | {"new": first}, "'new'"), ({"a": "none.safetensors"}, "none.safetensors"),
            ({"a": "../toy/" + first}, "is not there")]
    lies += [(no_map, "weight_map") for no_map in ({}, [], {"a": 1})]
    for weight_map, told in lies:
        (toy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        assert told in refusal(toy)
    for text in ("[]", "3", "{", ""):
        (toy / "model.safetensors.index.json").write_text(text)
        assert "model.safetensors.index.json" in refusal(toy)
    folder(toy, SHARDED)
    (toy / first).unlink()
    assert first in refusal(toy)
    assert "config.json" in refusal(folder(toy, SHARDED, config=b"[1]"))


# Tensors that cannot be scored


def test_other_dtypes_are_refused_only_when_asked_for(tmp_path):
    weights = {"q": torch.ones(4, 4), "i": torch.ones(4, dtype=torch.int32), "bool": torch.ones(3, dtype=torch.bool),
               "f8": torch.ones(4).to(torch.float8_e4m3fn), "none": torch.ones(0, 5)}
    toy = folder(tmp_path / "toy", {"model.safetensors": save(weights)})
    read(toy, [["q", "none"]], weights)
    for n, dtype in (("i", "I32"), ("f8", "F8_E4M3"), ("bool", "BOOL")):
        told = refusal(toy, [["q"], [n]])
        assert repr(n) in told and dtype in told
    assert "'no'" in refusal(toy, [["q", "no"]])
    with open_checkpoint(str(toy)) as opened:
        assert opened.n_params == 20


@pytest.mark.parametrize("value, told", [(float("nan"), "NaN"), (float("inf"), "infinity"), (-float("inf"), "infinity"),
                                         (None, "zeros")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_without_a_score_are_named(tmp_path, value, told, dtype):
    weights = make(dtype, 8)
    bad = weights[name(2, "k")]
    bad.zero_() if value is None else bad.view(-1)[37].fill_(value)
    toy = folder(tmp_path / "toy", {"model.safetensors": save(weights)})
    assert told in refusal(toy) and name(2, "k") in refusal(toy)
    read(toy, [[name(2, "q")]], weights)


def test_zeros_are_let_through_when_asked_for(tmp_path):
    toy = folder(tmp_path / "toy", {"model.safetensors": save({"bias": torch.zeros(3)})})
    with open_checkpoint(str(toy)) as opened:
        assert not next(opened.stream([["bias"]], zeros=True))["bias"].any()


def flip_bytes(rng, file):
    """Some bytes of the header are others."""
    hurt = bytearray(file)
    for _ in range(rng.randint(1, 4)):
        hurt[rng.randrange(header_size(file))] = rng.choice([rng.randrange(256), *b'0123456789abcdefBF"[]{},: '])
    return bytes(hurt)


def change_length(rng, file):
    """The header says that it is shorter or longer."""
    n = header_size(file)
    length = n - 8 + rng.choice([-1, 1, 8, -8, 1 << 20, 1 << 33, rng.randrange(-n, n)])
    return struct.pack("<Q", max(0, length)) + file[8:]


def cut_or_extend(rng, file):
    if rng.random() < 0.7:
        return file[: rng.randrange(len(file))]
    return file + bytes(rng.randrange(1, 99))


def cut_or_repeat_json(rng, file):
    """A piece of the header is missing, or comes twice."""
    n = header_size(file)
    a, b = sorted(rng.randrange(8, n) for _ in range(2))
    if rng.random() < 0.5:
        return with_header(file[8:a] + file[b:n], file[n:])
    return with_header(file[8:b] + file[a:n], file[n:])


def shuffle_entries(rng, file):
    """Another dtype, shapes and names in another order, an empty tensor more: most of these are valid files again."""
    n = header_size(file)
    header = json.loads(file[8:n])
    e = rng.choice(entries_of(header))
    e["dtype"] = rng.choice(["F32", "F16", "BF16", "I16", "U32", "F8_E4M3", e["dtype"]])
    rng.shuffle(e["shape"])
    names = list(header)
    rng.shuffle(names)
    return with_header({k: header[k] for k in names} | {"new": entry("F64", [0, 3], 0, 0)}, file[n:])


JUNK = [None, -1, 0, 1, 2, 8, 1 << 31, 1 << 64, 0.5, "", "F16", "BF16", "I32", [], [1], [0, 8], {}, True]


def put_junk(rng, header):
    """The values of some entries are others, or missing -> the header."""
    for _ in range(rng.randint(1, 3)):
        e = rng.choice(entries_of(header))
        key = rng.choice(list(e) or ["dtype"])
        if isinstance(e.get(key), list) and e[key] and rng.random() < 0.7:
            e[key][rng.randrange(len(e[key]))] = copy.copy(rng.choice(JUNK))
        elif rng.random() < 0.2:
            e.pop(key, None)
        else:
            e[key] = copy.copy(rng.choice(JUNK))
    return header


def junk_in_entries(rng, file):
    n = header_size(file)
    return with_header(put_junk(rng, json.loads(file[8:n])), file[n:])


def junk_as_entry(rng, file):
    """The same, and an entry more that is none."""
    n = header_size(file)
    header = put_junk(rng, json.loads(file[8:n]))
    header[rng.choice(["__metadata__", "a", "new"])] = rng.choice(JUNK + entries_of(header))
    return with_header(header, file[n:])


def entries_of(header):
    return [entry for name, entry in header.items() if name != "__metadata__"]


DAMAGES = [flip_bytes, change_length, cut_or_extend, cut_or_repeat_json, shuffle_entries, junk_in_entries,
           junk_as_entry]


def test_three_thousand_damaged_files_are_refused_or_read_as_the_library_reads_them(tmp_path):
    rng, n_refused, n_read = random.Random(0), 0, 0
    weights = {"a": torch.rand(3, 4), "b": torch.rand(5).bfloat16(), "c": torch.rand(2, 2).half(), "d": torch.rand(())}
    file, toy = save(weights, {"format": "pt"}), folder(tmp_path / "toy", {})
    hurt_files = [file.replace(b'{"format":"pt"}', b"null".ljust(15))]
    for _ in range(3000):
        damage = rng.choice(DAMAGES)
        hurt_files.append(damage(rng, file))
    for hurt in hurt_files:
        (toy / "model.safetensors").write_bytes(hurt)
        try:
            right = load(hurt)
        except (SafetensorError, KeyError):  # KeyError: a dtype that torch lacks
            right = {}
        try:
            with open_checkpoint(str(toy)) as opened:
                for n in weights.keys() & opened.tensors.keys():
                    if opened.tensors[n].dtype in DTYPES:
                        with contextlib.suppress(CheckpointError):  # as other floats its bytes may be NaN
                            got = next(opened.stream([[n]]))[n]
                            n_read += 1
                            assert torch.equal(got, right.get(n, weights[n])) and got.nbytes < len(hurt)
        except CheckpointError as e:
            assert not right or "twice" in str(e), hurt  # of equal names the library keeps the last
            n_refused += 1
    assert n_read > 500 and n_refused > 1500


# Order, memory, threads


def test_groups_come_in_order_and_little_is_read_ahead(hub, monkeypatch):
    monkeypatch.setattr(checkpoint, "AHEAD", 3 * 2 * N_EMBD * N_EMBD * 4)  # three groups, with the one in hand
    hub.add("org/toy", SINGLE)
    with open_checkpoint("org/toy") as opened:
        starts = {opened.tensors[n].start: i for i, group in enumerate(GROUPS) for n in group}

        def asked():
            ranges = [r.headers["range"][6:].partition("-")[0] for r in hub.log if r.host == "cdn"]
            return {starts[int(start)] for start in ranges if start != "0"}

        stream = opened.stream(GROUPS)
        assert list(next(stream)) == GROUPS[0]
        deadline = time.monotonic() + 5
        while asked() != {0, 1, 2} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert asked() == {0, 1, 2}
        assert [list(group) for group in stream] == GROUPS[1:]
        stream = opened.stream(GROUPS)
        next(stream)
        stream.close()  # in the middle: nothing hangs


MEMORY = """
import resource, sys
sys.path.insert(0, {root!r})
from data.pretrained import checkpoint, sources
checkpoint.AHEAD = 1 << 24
with sources.open_checkpoint({toy!r}) as opened:
    names = list(opened.tensors)
    for groups, limit in (([[names[-1]]], 30), ([[n] for n in names], 100)):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        n_bytes = sum(t.nbytes for group in opened.stream(groups) for t in group.values())
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < limit, f"{{grown:.0f}} MB more for {{n_bytes / 1e6:.0f}} MB of tensors"
    assert n_bytes > 300e6
assert "huggingface_hub" not in sys.modules and "httpx2" not in sys.modules
"""


def test_memory_holds_the_ranges_and_a_local_folder_needs_no_hub_client(tmp_path):
    n, side = 38, 1024
    header = {f"w{i}": entry("F64", [side, side], i * 8 * side**2, (i + 1) * 8 * side**2) for i in range(n)}
    toy = folder(tmp_path / "toy", {"model.safetensors": with_header(header)})
    with open(toy / "model.safetensors", "r+b") as f:
        start = f.seek(0, 2)
        f.truncate(start + n * 8 * side**2)  # sparse, but for a one in each tensor
        for i in range(n):
            f.seek(start + i * 8 * side**2)
            f.write(struct.pack("<d", 1.0))
    script = MEMORY.format(root=str(Path(checkpoint.__file__).parents[2]), toy=str(toy))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
