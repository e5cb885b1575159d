"""The checkpoint reader of data/pretrained, with the real Hub client against the stand-in of tests/hub.py."""

import argparse
import json
import os
import time
import zipfile

import pytest
import torch
from huggingface_hub import close_session, constants, hf_hub_download
from safetensors.torch import save

import analyze
from data.pretrained.checkpoint import open_checkpoint
from data.pretrained.folders import find_source
from tests.toy import (CONFIG, FILE, INDEX, SHARDED, SHARDS, SINGLE, WANTED, WEIGHTS, as_bin, folder, name,
                       layers_of, one_line, read, refusal)

BIN = "pytorch_model.bin"


@pytest.mark.parametrize("files", [{"model.safetensors": FILE}, SHARDED])
def test_only_what_says_where_tensors_lie_and_the_wanted_ones_travel(hub, files):
    hub.add("org/toy", {"config.json": CONFIG, **files})
    opened = read("org/toy")
    weights = {file: data for file, data in files.items() if not file.endswith(".json")}
    sent = sum(map(hub.sent, weights))
    assert WANTED < sent == sum(opened.folder.bytes_read) <= WANTED + 2500
    ranges = [r for r in hub.log if "range" in r.headers]
    assert all(r.headers["accept-encoding"] == "identity" for r in ranges)  # or other bytes would come
    assert sum(map(opened.folder.size, opened.files)) == sum(map(len, weights.values()))
    assert opened.n_params == sum(t.numel() for t in WEIGHTS.values()) and set(opened.tensors) == set(WEIGHTS)


def test_a_folder_or_file_of_a_repository_is_read_at_the_commit_of_its_revision(hub):
    hub.add("org/toy", {"inner/model.safetensors": b"of another branch"})
    change = hub.add("org/toy", {f"inner/{file}": data for file, data in SINGLE.items()}, branch="refs/pr/1")
    for source in "org/toy/inner@refs/pr/1", f"org/toy/inner/model.safetensors@{change}":
        assert read(source).config == json.loads(CONFIG)


def test_a_gated_repository_needs_a_token_which_reaches_the_hub_and_never_the_cdn(hub, monkeypatch):
    hub.add("org/toy", SINGLE, gated="hf_secret")
    assert "gated repo" in refusal("org/toy")
    hub.log.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    read("org/toy")
    assert all(r.headers["authorization"] == "Bearer hf_secret" for r in hub.log if r.host == "hub")
    assert any(r.host == "cdn" for r in hub.log)
    assert "hf_secret" not in repr([r for r in hub.log if r.host == "cdn"])


@pytest.mark.parametrize("offline", [True, False])
def test_cached_files_are_read_without_the_hub(hub, monkeypatch, capsys, offline):
    hub.add("org/toy", {"config.json": CONFIG, **SHARDED})
    for file in ("config.json", *SHARDED):
        hf_hub_download("org/toy", file)
    hub.log.clear()
    read("org/toy")
    assert [r.file for r in hub.log] == ["api"]  # which commit is main?
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    hub.close()
    close_session()
    read("org/toy")
    assert "org/toy: the Hub is out of reach" in capsys.readouterr().err


@pytest.mark.parametrize("ranges, shift", [(False, 0), (True, 1)])
def test_a_host_that_does_not_send_the_range_asked_for_is_refused(hub, ranges, shift):
    hub.add("org/toy", SINGLE | {"model.safetensors": FILE + bytes(50_000_000)})
    hub.ranges, hub.shift = ranges, shift
    assert "does not serve byte ranges" in refusal("org/toy")
    assert hub.sent("model.safetensors") < 20_000_000  # what lies between two programs when the one hangs up


def test_the_first_question_is_asked_again_when_a_busy_hub_says_and_not_for_ever(hub, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    hub.add("org/toy", SINGLE)
    hub.busy = [30, 7]
    assert read("org/toy@main").config and waits == [8, 31]  # a second more, in case clocks differ
    hub.busy = [0] * 20
    assert "429" in refusal("org/toy") and len(hub.busy) > 10


def test_a_name_of_models_csv_has_an_id_and_an_unknown_name_is_refused(hub):
    assert find_source("bert-base@v2") == "google-bert/bert-base-uncased@v2"
    assert "the nearest names are bert-base" in refusal("bert-bas")
    assert "Repository Not Found" in refusal("org/none")


# ---- which files are one whole model -----------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("hit",)


FIRST, LAST = SHARDS
MOVED, *LEFT = SHARDS[FIRST]  # names of tensors
STALE = {LAST: save(SHARDS[LAST] | {MOVED: torch.zeros_like(WEIGHTS[MOVED])})}  # an old copy, in the file read last
LOST = {FIRST: save({name: WEIGHTS[name] for name in LEFT})}
HALF = {"weight_map": {name: file for name, file in INDEX["weight_map"].items() if name != MOVED}}
BESIDE = {"ckpt.pt": as_bin({"model": {"of another model": torch.ones(2)}}), "model.safetensors": FILE}
# With what MAE, DeiT and DINO save beside the weights.
MAE = {"mae.pth": as_bin({"model": WEIGHTS, "epoch": 3, "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.95))}),
       "optimizer.pt": b""}
ADAPTER = SINGLE | {"adapter_config.json": CONFIG, "adapter_model.safetensors": FILE}


def wrapped(rename):
    return {"model.safetensors": save({rename(name): weight for name, weight in WEIGHTS.items()})}


REFUSED = [  # files, which of them is asked for ("": their folder), what is said
    *[({"model.safetensors": data}, "", words) for data, words in {
        b"": "cut short", FILE[:-1]: "cut short", FILE.replace(b"[1024,256]", b"[1024,257]"): "damaged at emb",
        FILE.replace(b"[1310720,1572864]", b"[1048576,1310720]"): "damaged at layers.0",  # two at the same place
        FILE.replace(b"layers.0.q.weight", b"layers.0.k.weight"): "damaged at layers.0"}.items()],
    ({BIN: as_bin(WEIGHTS)[:-300]}, "", ""),
    ({file: data for file, data in SHARDED.items() if file != FIRST}, "", FIRST),
    (SHARDED | LOST, "", MOVED),
    (SHARDED | {"model.safetensors.index.json": json.dumps(HALF).encode()}, "", f"does not list ['{MOVED}']"),
    ({file: SHARDED[file] for file in SHARDS}, "", "get the index.json of its pieces"),
    *[({file: SHARDED[file], "config.json": CONFIG}, file, "is a piece by its name") for file in SHARDS],
    *[({path: as_bin(WEIGHTS)}, path, "is a piece by its name")
      for path in ("consolidated.00.pth", "rank_0/a.pt", "a-00001-of-00002.pt")],
    ({"model.safetensors": save(WEIGHTS | {f"_orig_mod.{name(0, 'q')}": torch.zeros(3)})}, "", "are both called"),
    ({BIN: as_bin({"x": Bomb()})}, "", f"{BIN} would run code"),
    (BESIDE, "", "model.safetensors and ckpt.pt may be of two models: give the path of one file"),
    (MAE, "", "mae.pth, optimizer.pt: give the path of the file"),
    *[(ADAPTER, file, "an adapter, not a model") for file in ("", "adapter_model.safetensors")],
]


@pytest.mark.parametrize("files, file, words", REFUSED)
def test_what_is_not_one_whole_model_is_refused_in_one_line_and_runs_no_code(tmp_path, monkeypatch, files, file, words):
    monkeypatch.chdir(tmp_path)
    assert words in one_line(lambda: open_checkpoint(folder(tmp_path / "toy", files, None) / file))
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("files, file", [
    *[(SHARDED, file) for file in SHARDS], (SHARDED | STALE, ""), (MAE, "mae.pth"), (BESIDE, "model.safetensors"),
    ({"step_1-00001-of-00001.pt": as_bin(WEIGHTS)}, "step_1-00001-of-00001.pt"),
    (wrapped(lambda name: f"module._orig_mod.{name}"), ""),
    (wrapped(lambda name: name.replace(".q.", "._fsdp_wrapped_module.q._checkpoint_wrapped_module.")), "")])
def test_of_the_right_files_every_tensor_is_read_by_its_name_in_the_plain_model(tmp_path, files, file):
    assert set(read(folder(tmp_path / "toy", files, None) / file).tensors) == set(WEIGHTS)


@pytest.mark.parametrize("file, written", [("model.safetensors", save), (BIN, as_bin)])
def test_tensors_that_have_no_score_are_named_and_only_when_they_are_asked_for(tmp_path, file, written):
    weights = {"q": torch.ones(4, 4), "i": torch.ones(4, dtype=torch.int32),
               "f8": torch.ones(4).to(torch.float8_e4m3fn)}
    toy = folder(tmp_path / "toy", {file: written(weights)})
    read(toy, [["q"]], weights)
    for asked, words in {"i": "'i' is", "f8": "FP8: multiply the weights by"}.items():
        assert words in refusal(toy, [["q"], [asked]])


@pytest.mark.parametrize("options", [{}, dict(_use_new_zipfile_serialization=False),
                                     dict(compression=zipfile.ZIP_DEFLATED)])
def test_views_and_ties_come_out_as_torch_has_saved_them(tmp_path, options):
    """Also out of a compressed zip, and out of a file from before torch 1.6."""
    wide = torch.randn(48, 40)
    state = {"whole": wide, "tied": wide, "transposed": wide.T, "rows": wide[8:24], "half": wide.half().T}
    opened = read(folder(tmp_path / "toy", {BIN: as_bin(state | {"epoch": 3}, **options)}), [[*state]], state)
    distinct = "whole", "rows", "half"  # the others are the same bytes
    assert opened.n_params == sum(state[name].numel() for name in distinct)


# ---- what other programs write -----------------------------------------------------------------------------------

C, H, D, N = 24, 4, 6, 2  # n_embd, n_head, head_dim, n_layer
Q, K, V = torch.randn(3, N, C, C)  # of Linear layers: (out, in)
SIZES = dict(n_layer=N, n_head=H, n_embd=C, vocab_size=30)


def of_nanogpt():
    """The output of one Linear is split into q, k and v. An old export lies beside it."""
    state = {f"transformer.h.{i}.attn.c_attn.weight": torch.cat([Q[i], K[i], V[i]]) for i in range(N)}
    saved = {"model": state, "optimizer": {"state": {0: {"step": torch.tensor(10.0)}}}, "iter_num": 10,
             "model_args": SIZES | dict(block_size=8, bias=False), "config": {"out_dir": "out"}}
    return {"ckpt.pt": as_bin(saved), "model.safetensors": FILE, "config.json": CONFIG}


def test_an_adapter_in_memory_is_refused_as_one_on_disk():
    module = torch.nn.Linear(2, 2)
    module.peft_config = {}
    assert "an adapter, not a model: merge it" in one_line(lambda: open_checkpoint(module))


def of_ours():
    """With gains of the norms of queries and keys, which a fork may have."""
    state = {f"blocks.{i}.attn.{x}.weight": w[i].clone() for x, w in (("q", Q), ("k", K), ("v", V)) for i in range(N)}
    state |= {f"blocks.{i}.attn.{x}.weight": torch.ones(D) for x in ("q_norm", "k_norm") for i in range(N)}
    return {"ckpt.pt": as_bin({"model": state, "config": SIZES | dict(causal=True), "n_heads": [H] * N})}


@pytest.mark.parametrize("files, file", [(of_nanogpt(), "ckpt.pt"), (of_ours(), "")])
def test_training_scripts_have_their_own_config(tmp_path, files, file):
    opened = open_checkpoint(folder(tmp_path / "out", files, None) / file)
    layers = layers_of(opened)
    assert [(layer.stack, layer.causal) for layer in layers] == N * [("", True)]
    groups = opened.stream([layer.names for layer in layers])
    for layer, tensors, q, k in zip(layers, groups, Q, K):
        w_q, w_k = layer.heads(tensors)  # (H, C, D), (Hkv, C, D)
        assert len(w_q) == len(w_k) == H
        assert torch.equal(torch.cat([*w_q], 1), q.T) and torch.equal(torch.cat([*w_k], 1), k.T)


def test_of_several_models_in_one_file_those_that_are_not_read_are_named(tmp_path):
    one, other = [{f"layers.0.self_attn.{x}_proj.weight": torch.randn(16, 16) for x in "qk"} for _ in range(2)]
    saved = {"net": other, "model": one, "model_ema": other, 7: other, "rng": {"cpu": torch.get_rng_state()},
             "optimizer": {"state": {0: {"exp_avg": torch.ones(2, 2)}}, "param_groups": []}}
    config = b'{"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2}'
    run = folder(tmp_path / "run", {"a.pt": as_bin(saved), "b.pt": as_bin({"model": one, "epoch": 3})}, config)
    scored, alone = analyze.score_model(run / "a.pt"), analyze.score_model(run / "b.pt")
    assert scored.note.endswith(" in a.pt; left out: net; model_ema; 7") and "left out" not in alone.note
    assert list(scored.table.symmetry) == list(alone.table.symmetry)
