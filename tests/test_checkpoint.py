"""The checkpoint reader of data/pretrained, with the real Hub client against the stand-in of tests/hub.py."""

import argparse
import io
import json
import os
import struct
import zipfile

import pytest
import torch
from huggingface_hub import close_session, constants, hf_hub_download
from safetensors.torch import save

from analyze.data.pretrained import checkpoint
from analyze.data.pretrained.checkpoint import find_source, open_checkpoint
from tests.toy import (CONFIG, FILE, GROUPS, SHARDED, SHARDS, SINGLE, WANTED, WEIGHTS, as_bin, folder, name,
                       one_line, read, refusal, stacks_of)

BIN = "pytorch_model.bin"

# ---- the Hub -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [{"model.safetensors": FILE}, SHARDED])
def test_only_what_says_where_tensors_lie_and_the_wanted_ones_travel(hub, files):
    hub.add("org/toy", {"config.json": CONFIG, **files})
    opened = read("org/toy")
    weights = {file: data for file, data in files.items() if not file.endswith(".json")}
    sent = sum(map(hub.sent, weights))
    assert WANTED < sent == sum(opened.folder.lengths) <= WANTED + 2500
    ranges = [r for r in hub.log if "range" in r.headers]
    assert all(r.headers["accept-encoding"] == "identity" for r in ranges)  # or other bytes would come
    assert opened.size == sum(map(len, weights.values()))
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values()) and set(opened.tensors) == set(WEIGHTS)


def test_a_bin_comes_whole_and_its_size_is_told_first(hub, capsys):
    hub.add("org/toy", {"config.json": CONFIG, BIN: as_bin(WEIGHTS)})
    for said in f"org/toy: {BIN} comes as a whole, 4.20MB\n", "":  # the second time it is in the cache
        read("org/toy")
        assert capsys.readouterr().err.startswith(said)
    assert hub.sent(BIN) == len(as_bin(WEIGHTS))


def test_the_commit_is_pinned_once_and_revisions_are_honoured(hub):
    hub.add("org/toy", SINGLE | {"model.safetensors": b"of another branch"})
    change = hub.add("org/toy", SINGLE, branch="refs/pr/1")
    for source in "org/toy@refs/pr/1", f"org/toy@{change}":
        hub.log.clear()
        read(source)
        assert all(f"/resolve/{change}/" in r.path for r in hub.log if r.file == "model.safetensors")
        assert [r.file for r in hub.log].count("api") == 1


def test_a_folder_of_a_repository_or_a_file_is_read(hub):
    inner = {f"transformer/{name}": data for name, data in SINGLE.items()}
    commit = hub.add("org/parts", {"model_index.json": b"{}"} | inner)
    for end in "", f"@{commit}", "/model.safetensors":
        assert read(f"org/parts/transformer{end}").config == json.loads(CONFIG)
    assert "but model_index.json, transformer: " in refusal("org/parts")


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
    read("org/toy")
    assert [r.file for r in hub.log] == ["api"]  # which commit is main?
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    hub.close()
    close_session()
    assert "cache" in read("org/toy").notes[1]
    assert "the Hub is out of reach" in refusal("org/other")


@pytest.mark.parametrize("fault", [503, "cut"])
def test_a_fault_of_the_connection_is_survived(hub, fault):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    for file in [*SHARDS, *SHARDS, *(3 * ["api"] if fault == 503 else [])]:
        hub.fail(file, fault)
    read("org/toy")
    assert not hub.faults and len(hub.waits) >= 4


@pytest.mark.parametrize("fault", ["shifted", "whole"])
def test_a_range_is_believed_if_it_is_the_one_that_was_asked_for(hub, fault):
    hub.add("org/toy", SINGLE)
    hub.fail("model.safetensors", fault)
    assert "does not serve byte ranges" in refusal("org/toy")


def test_a_host_without_ranges_does_not_send_the_file(hub):
    hub.add("org/large", SINGLE | {"model.safetensors": bytes(1 << 26)})
    hub.ranges = False
    assert "does not serve byte ranges" in refusal("org/large")
    assert sum(answer.sent for answer in hub.log) < 1 << 25  # what fits into the socket's buffers


def test_a_wait_that_a_host_asks_for_is_told_once(hub, caplog):
    hub.add("org/toy", SINGLE)
    for file in "api", "model.safetensors", "model.safetensors":
        hub.fail(file, 429)
    read("org/toy")
    assert hub.waits == [31, 31, 31]  # Retry-After, and a second more
    assert [record.getMessage() for record in caplog.records] == [
        "Rate limited. Waiting 31.0s before retry [Retry 1/5]."]


def test_what_the_hub_does_not_give_is_refused_in_one_line(hub):
    hub.add("org/toy", SINGLE)
    hub.add("org/closed", SINGLE, gated="hf_right")
    for source, words in {"org/closed": "gated: agree to its terms", "org/none": "no file or folder of this name",
                          "org/toy@v9": "the repository has no branch, tag or commit of this name",
                          "https://huggingface.co/org/toy": "no file or folder of this name; a Hub id is org/name",
                          "./none": "no file or folder"}.items():
        assert refusal(source).startswith(words)


# ---- files of safetensors ----------------------------------------------------------------------------------------


def test_local_folders_files_and_shards_give_the_same_tensors(tmp_path, monkeypatch):
    single = folder(tmp_path / "single", {"model.safetensors": FILE})
    read(single)
    read(folder(tmp_path / "sharded", SHARDED))
    read(folder(tmp_path / "named", {"weights_v2.safetensors": FILE, "adapter_model.safetensors": b""}))
    below = {f"shards/{file}": data for file, data in SHARDED.items() if file in SHARDS}
    index = json.dumps({"weight_map": {n: f"shards/{file}" for n, file in json.loads(
        SHARDED["model.safetensors.index.json"])["weight_map"].items()}}).encode()
    read(folder(tmp_path / "below", below | {"model.safetensors.index.json": index}))
    monkeypatch.chdir(single)
    read("model.safetensors")


def header(tensors, n_bytes=16, text=None):
    """A file with this header, and so many bytes of data. tensors: {name: (shape, first, end)}"""
    entries = {n: dict(dtype="F32", shape=shape, data_offsets=offsets) for n, (shape, *offsets) in tensors.items()}
    text = text or json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(n_bytes)


TWICE = b'{"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"q":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
FIRST = next(iter(SHARDS))
PAGE = b"<!doctype html>" + 999 * b" "
DEEP = b"[" * 100_000
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440473133\n"
DAMAGED = [
    *[{"model.safetensors": data} for data in (b"", FILE[:40], FILE[:-1], PAGE, POINTER)],
    *[{"model.safetensors": header(tensors)} for tensors in (
        {"a": ([2], 0, 8), "b": ([1], 12, 16)}, {"a": ([2], 4, 12)},  # a hole, and not from 0 on
        {"a": ([2], 0, 8), "b": ([3], 4, 16)}, {"a": ([4], 0, 16), "b": ([4], 0, 16)},  # in each other
        {"a": ([1], -4, 0), "b": ([4], 0, 16)}, {"a": ([3], 0, 16)}, {"a": ([2], 0, 8)})],
    *[{"model.safetensors": header({}, 16, text)} for text in (TWICE, DEEP, b"[1]", b'{"q": 3}')],
    *[{BIN: data} for data in (as_bin(WEIGHTS)[:-300], PAGE, POINTER)],
    {file: data for file, data in SHARDED.items() if file != FIRST},
    *[SINGLE | {"config.json": text} for text in (PAGE, DEEP)],
    {"model.safetensors.index.json": b'{"weight_map": {"a": 3}}'},
]


@pytest.mark.parametrize("files", DAMAGED)
def test_what_is_damaged_is_refused_in_one_line(hub, tmp_path, files):
    files = {"config.json": CONFIG} | files
    hub.add("org/toy", files)
    for source in folder(tmp_path / "toy", files, config=None), "org/toy":
        refusal(source)


def test_a_header_as_the_library_writes_it_is_read(tmp_path):
    weights = {"a": torch.zeros(2), "b": torch.zeros(0, 3), "c": torch.zeros(2, dtype=torch.float16)}
    assert open_checkpoint(folder(tmp_path / "toy", {"model.safetensors": save(weights)})).n_params == 4


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
    both = save(WEIGHTS | {f"_orig_mod.{name(0, 'q')}": torch.zeros(3)})
    assert "are both called" in refusal(folder(tmp_path / "both", {"model.safetensors": both}))


def test_tensors_that_have_no_score_are_named_and_only_when_they_are_asked_for(tmp_path):
    weights = {"q": torch.ones(4, 4), "i": torch.ones(4, dtype=torch.int32), "bool": torch.ones(3, dtype=torch.bool),
               "f8": torch.ones(4).to(torch.float8_e4m3fn), "nan": torch.tensor([1, torch.nan]).bfloat16(),
               "inf": torch.tensor([-torch.inf, 1])}
    more = {"complex": torch.ones(2, 2) * 1j, "sparse": torch.eye(3).to_sparse()}
    refused = {"i": "'i' is", "f8": "FP8: multiply the weights by their scales first", "bool": "'bool' is",
               "nan": "NaN or", "inf": "infinity", "complex": "complex64", "sparse": "'sparse' is sparse"}
    for file, data in {"model.safetensors": save(weights), BIN: as_bin(weights | more)}.items():
        toy = folder(tmp_path / file, {file: data})
        read(toy, [["q"]], weights)
        for n, words in refused.items():
            if n in weights or file == BIN:
                assert words in refusal(toy, [["q"], [n]])


def test_little_is_read_ahead_and_a_stream_may_be_left(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "AHEAD", 1)
    opened = open_checkpoint(folder(tmp_path / "toy", {"model.safetensors": FILE}))
    stream = opened.stream(GROUPS)
    next(stream)
    stream.close()  # what was begun ends
    assert sum(opened.folder.lengths) <= 2500 + 2 * WANTED // len(GROUPS)


# ---- files of torch.save -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, dict(_use_new_zipfile_serialization=False),
                                     dict(compression=zipfile.ZIP_DEFLATED)])
def test_views_ties_and_dtypes_come_out_as_torch_loads_them(tmp_path, options):
    """Also out of a zip that is not stored flat, and out of a file of before torch 1.6."""
    wide = torch.randn(48, 40)
    state = {
        "whole": wide, "tied": wide, "rows": wide[8:24], "columns": wide[:, 5:20], "transposed": wide.T,
        "every other": wide[::2, ::3], "half": wide.half().T, "bfloat16": wide.bfloat16()[3:], "double": wide.double(),
        "parameter": torch.nn.Parameter(torch.randn(5, 3)), "three": torch.randn(2, 3, 4).permute(2, 0, 1),
    }
    path = folder(tmp_path / "toy", {BIN: as_bin(state | {"epoch": 3}, **options)})
    opened = read(path, [[n] for n in state], state)
    distinct = [t for n, t in state.items() if n not in ("tied", "transposed")]  # the same bytes, seen otherwise
    assert opened.n_params == sum(t.numel() for t in distinct)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("hit",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, monkeypatch, zipped):
    monkeypatch.chdir(tmp_path)
    told = refusal(folder(tmp_path / "toy", {BIN: as_bin({"x": Bomb()}, _use_new_zipfile_serialization=zipped)}))
    assert BIN in told and not (tmp_path / "hit").exists()


# ---- what other programs write -----------------------------------------------------------------------------------

C, H, D, N = 24, 4, 6, 2  # n_embd, n_head, head_dim, n_layer
Q, K, V = torch.randn(3, N, C, C)  # of Linear layers: (out, in)
SIZES = dict(n_layer=N, n_head=H, n_embd=C, vocab_size=30)


def of_nanogpt(prefix=""):
    """The output of one Linear is split into q, k and v. An old export beside it is not what is scored."""
    state = {f"{prefix}transformer.h.{i}.attn.c_attn.weight": torch.cat([Q[i], K[i], V[i]]) for i in range(N)}
    saved = {"model": state, "optimizer": {"state": {0: {"step": torch.tensor(10.0)}}}, "iter_num": 10,
             "model_args": SIZES | dict(block_size=8, bias=False), "config": {"out_dir": "out"}}
    return {"ckpt.pt": as_bin(saved), "model.safetensors": FILE, "config.json": CONFIG}


def of_ours():
    """With gains of the norms of queries and keys, which a fork may have."""
    state = {f"blocks.{i}.attn.{x}.weight": w[i].clone() for x, w in (("q", Q), ("k", K), ("v", V)) for i in range(N)}
    state |= {f"blocks.{i}.attn.{x}.weight": torch.ones(D) for x in ("q_norm", "k_norm") for i in range(N)}
    return {"ckpt.pt": as_bin({"model": state, "config": SIZES | dict(causal=True), "n_heads": [H] * N})}


def of_nanochat():
    """Two key heads. Its newest step counts."""
    state, older = {}, {}
    for i in range(N):
        name = f"_orig_mod.transformer.h.{i}.attn.c_"
        state |= {f"{name}q.weight": Q[i], f"{name}k.weight": K[i, : 2 * D].clone()}
        older |= {f"{name}q.weight": K[i], f"{name}k.weight": Q[i, : 2 * D].clone()}
    meta = {"step": 20, "model_config": SIZES | dict(sequence_len=8, n_kv_head=2)}
    return {"model_000010.pt": as_bin(older), "meta_000010.json": b"{}", "optim_000020_rank0.pt": b"",
            "model_000020.pt": as_bin(state), "meta_000020.json": json.dumps(meta).encode()}


@pytest.mark.parametrize("files, lone, n_kv_head", [
    (of_nanogpt(), "ckpt.pt", H), (of_nanogpt("_orig_mod."), "ckpt.pt", H), (of_ours(), "ckpt.pt", H),
    (of_nanochat(), "model_000020.pt", 2)])
def test_training_scripts_have_their_own_config(tmp_path, hub, files, lone, n_kv_head):
    out = folder(tmp_path / "out", files, None)
    hub.add("org/out", files | {"another/model.safetensors": b""})
    for source in out, out / lone, "org/out":
        opened = open_checkpoint(source)
        [stack] = stacks_of(opened)
        assert stack.causal and len(stack.layers) == N
        groups = opened.stream([layer.names for layer in stack.layers])
        for layer, tensors, q, k in zip(stack.layers, groups, Q, K):
            w_q, w_k = layer.heads(tensors)  # (H, C, D), (Hkv, C, D)
            assert (len(w_q), len(w_k)) == (H, n_kv_head)
            assert torch.equal(torch.cat([*w_q], 1), q.T)
            assert torch.equal(torch.cat([*w_k], 1), k[: n_kv_head * D].T)


def below(inner, files):
    return {f"{inner}/{name}": data for name, data in files.items()}


OLD = {"config.json": CONFIG, "model.safetensors": save({name: weight + 1 for name, weight in WEIGHTS.items()})}
TRAINER = {"training_args.bin": b"", "trainer_state.json": b"{}"} | below("checkpoint-900", OLD)
BESIDE = {"config.json": CONFIG, "optimizer.pt": b"", "scheduler.pt": b"", "rng_state_0.pth": b""}
# As MAE, DeiT and DINO save.
OPTIONS = {"epoch": 3, "loss": torch.tensor(0.5), "args": argparse.Namespace(lr=0.1, model="vit", betas=(0.9, 0.95))}
HALVES = [dict(list(WEIGHTS.items())[i::2]) for i in range(2)]


@pytest.mark.parametrize("files, note", [
    (TRAINER | below("checkpoint-best", OLD) | below("checkpoint-1000", SINGLE),
     "of checkpoint-1000, the newest of 2 in it"),
    (TRAINER | SINGLE, ""),  # what was saved at the end
    *[(BESIDE | {file: as_bin({"state_dict": WEIGHTS})}, "") for file in ("epoch=3-step=100.ckpt", "last.pt")],
    *[({"config.json": CONFIG, "mae.pth": as_bin(OPTIONS | {key: WEIGHTS})}, "") for key in checkpoint.STATE_DICTS],
    ({f"model_{i + 1}_of_2.pt": as_bin(half) for i, half in enumerate(HALVES)}, ""),
])
def test_the_folders_of_other_programs_are_read(tmp_path, files, note):
    opened = read(folder(tmp_path / "run", files, None))
    assert note in ", ".join(opened.notes) and set(opened.tensors) == set(WEIGHTS)


def test_an_adapter_is_refused_also_by_its_file_and_merged_weights_beside_it_are_read_by_theirs(tmp_path):
    run = folder(tmp_path / "run", SINGLE | {"adapter_config.json": CONFIG, "adapter_model.safetensors": FILE}, None)
    for source in run, run / "adapter_model.safetensors":
        assert "an adapter, not a model" in refusal(source)
    assert set(read(run / "model.safetensors").tensors) == set(WEIGHTS)
    assert "the path of one file" in refusal(folder(tmp_path / "two", {"other.ckpt": b"", "another.pt": b""}))


@pytest.mark.parametrize("paths", [
    "consolidated.00.pth consolidated.01.pth", "rank0.safetensors rank1.safetensors", "shard_1.pt shard_2.pt",
    "model-rank-0-part-0.safetensors model-rank-1-part-0.safetensors", "mp_rank_00/a.pt mp_rank_01/a.pt",
    "mp_rank_00_000/a.pt mp_rank_00_001/a.pt", "iter/tp_0/a.pt iter/tp_1/a.pt", "model_1_of_2.pt"])
def test_a_piece_is_known_by_what_lies_beside_it(tmp_path, paths):
    run = folder(tmp_path / "run", dict.fromkeys(paths.split(), as_bin(WEIGHTS)))
    first = run / paths.split()[0]
    for source in first, first.parent:
        assert "piece" in refusal(source) or "get them all" in refusal(source) or "convert it" in refusal(source)


@pytest.mark.parametrize("path", [
    "llama-rank16-merged llama-rank8-merged", "best-of-3", "part2 part1", "mp_rank_01", "rank_0.pt",
    "step_1.pt step_2.pt", "consolidated.00.pth"])
def test_a_whole_model_is_read_whatever_it_is_called(tmp_path, path):
    names = path.split()
    for name in names:
        if "." in name:
            folder(tmp_path / "run", {name: as_bin(WEIGHTS)})
        else:
            folder(tmp_path / "run" / name, SINGLE, None)
    read(tmp_path / "run" / names[0])


def test_names_that_are_near_are_told():
    assert find_source("bert-base@v2") == "google-bert/bert-base-uncased@v2"
    assert "bert-base" in one_line(lambda: find_source("bert-bas"))
    one_line(lambda: open_checkpoint({}))
