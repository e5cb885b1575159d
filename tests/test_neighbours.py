"""Checkpoints that others write: nanoGPT, nanochat, a Trainer; what is no checkpoint says so."""

import argparse
import json

import pytest
import torch
from safetensors.torch import save

from data.pretrained.files import CheckpointError
from data.pretrained.sources import find_source, open_checkpoint
from tests.toy import CONFIG, FILE, SHARDS, SINGLE, WEIGHTS, as_bin, folder, read, refusal, stacks_of


def below(inner: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{inner}/{name}": data for name, data in files.items()}


C, H, D, N = 24, 4, 6, 2  # n_embd, n_head, head_dim, n_layer
torch.manual_seed(0)
Q, K, V = torch.randn(3, N, C, C)  # of Linear layers: (out, in)
SIZES = dict(n_layer=N, n_head=H, n_embd=C, vocab_size=30)


def of_nanogpt(prefix="") -> dict[str, bytes]:
    """The output of one Linear is split into q, k and v."""
    state = {f"{prefix}transformer.h.{i}.attn.c_attn.weight": torch.cat([Q[i], K[i], V[i]]) for i in range(N)}
    optimizer = {"state": {0: {"step": torch.tensor(10.0), "exp_avg": torch.zeros(30, C)}}, "param_groups": []}
    saved = {"model": state, "optimizer": optimizer, "iter_num": 10, "best_val_loss": torch.tensor(1.5),
             "model_args": SIZES | dict(block_size=8, bias=False), "config": {"out_dir": "out", "eval_only": False}}
    return {"ckpt.pt": as_bin(saved)}


def of_nanochat() -> dict[str, bytes]:
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
    (of_nanogpt(), "ckpt.pt", H), (of_nanogpt("_orig_mod."), "ckpt.pt", H), (of_nanochat(), "model_000020.pt", 2)])
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


OLD = {"config.json": CONFIG, "model.safetensors": save({name: weight + 1 for name, weight in WEIGHTS.items()})}
TRAINER = {"training_args.bin": b"", "trainer_state.json": b"{}"} | below("checkpoint-900", OLD)
BESIDE = {"config.json": CONFIG, "optimizer.pt": b"", "scheduler.pt": b"", "rng_state_0.pth": b"",
          "training_args.bin": b""}
SHARDED_BIN = {"config.json": CONFIG, **{f"{file}.bin": as_bin(part) for file, part in SHARDS.items()}}
SHARDED_BIN["pytorch_model.bin.index.json"] = json.dumps(
    {"weight_map": {name: f"{file}.bin" for file, part in SHARDS.items() for name in part}}).encode()
# As MAE, DeiT and DINO save.
OPTIONS = {"epoch": 3, "loss": torch.tensor(0.5), "args": argparse.Namespace(lr=0.1, model="vit", betas=(0.9, 0.95))}
MAE = [{"config.json": CONFIG, "mae.pth": as_bin(OPTIONS | {key: WEIGHTS})}
       for key in ("state_dict", "model", "model_state_dict", "net", "module")]
ONE_FILE = ["epoch=3-step=100.ckpt", "model_best.pth", "last.pt"]


@pytest.mark.parametrize("files, note", [
    (TRAINER | below("checkpoint-best", OLD) | below("checkpoint-1000", SINGLE),
     "of checkpoint-1000, the newest of 2 in it"),
    (TRAINER | SINGLE, ""),  # what was saved at the end
    *[(BESIDE | {file: as_bin({"state_dict": WEIGHTS})}, "") for file in ONE_FILE],
    *[(files, "") for files in (*MAE, SHARDED_BIN)],
])
def test_the_folders_of_other_programs_are_read(tmp_path, files, note):
    opened = read(folder(tmp_path / "run", files, None))
    assert note in ", ".join(opened.notes) and set(opened.tensors) == set(WEIGHTS)


def bare(names: str) -> dict[str, bytes]:
    return {name: CONFIG if name == "config.json" else FILE for name in names.split()}


@pytest.mark.parametrize("files, told", [
    (bare("config.json zero_to_fp32.py latest"), "DeepSpeed"),
    (bare("config.json tf_model.h5"), "from_tf=True"),
    (bare("config.json bert_model.ckpt.data-00000-of-00001 bert_model.ckpt.index"), "from_tf=True"),  # Google's BERT
    (bare("config.json toy.Q4.gguf"), "from_pretrained(FOLDER, gguf_file=FILE)"),
    (bare("config.json other.ckpt another.pt"), "the path of one file"),  # which of them?
    (bare("model.onnx"), "of ONNX take the two initialisers"),
    (bare("notes.txt vocab.json"), "but notes.txt, vocab.json: convert it"),
])
def test_what_cannot_be_read_says_what_to_do(tmp_path, files, told):
    toy = folder(tmp_path / "toy", files, None)
    assert told in refusal(toy)
    if len(files) == 1:
        assert "no file of weights" in refusal(toy / next(iter(files)))


def test_an_adapter_is_refused_also_by_its_file_and_merged_weights_beside_it_are_read_by_theirs(tmp_path):
    run = folder(tmp_path / "run", bare("adapter_config.json adapter_model.safetensors") | SINGLE, None)
    for source in run, run / "adapter_model.safetensors":
        assert "save that with save_pretrained in another folder" in refusal(source)
    assert set(read(run / "model.safetensors").tensors) == set(WEIGHTS)


@pytest.mark.parametrize("paths", [
    "consolidated.00.pth consolidated.01.pth", "consolidated.01.pth", "rank0.safetensors rank1.safetensors",
    "model-rank-0-part-0.safetensors model-rank-1-part-0.safetensors", "model_world_size_2_rank_0.pt",
    "model_1_of_2.pt", "reshard-model_part-0.pt reshard-model_part-1.pt", "mp_rank_00/a.pt mp_rank_01/a.pt",
    "mp_rank_00_000/a.pt mp_rank_00_001/a.pt",
    "iter/tp_0/a.pt iter/tp_1/a.pt",
])
def test_a_piece_of_a_checkpoint_is_never_read_as_the_whole(tmp_path, hub, paths):
    files = dict.fromkeys(paths.split(), as_bin(WEIGHTS))
    run = folder(tmp_path / "run", files)
    hub.add("org/run", files)
    first = run / paths.split()[0]
    for source in [first, first.parent, *([] if "/" in paths else [f"org/run/{first.name}"])]:
        assert "merge the pieces with the program that wrote them" in refusal(source)


@pytest.mark.parametrize("names", ["consolidated.00.pth", "step_1.pt step_2.pt", "ckpt_7.pt", "rank_0.pt"])
def test_a_file_that_may_be_whole_is_read(tmp_path, names):
    run = folder(tmp_path / "run", {name: as_bin(WEIGHTS) for name in names.split()})
    read(run / names.split()[0])


@pytest.mark.parametrize("name, words", [("bert-bas", "nearest names are .*bert-base"),
                                         ("nowhere.safetensors", "no model or folder of this name; a Hub id")])
def test_names_that_are_near_are_told_and_others_are_not(name, words):
    assert find_source("bert-base@v2") == "google-bert/bert-base-uncased@v2"
    with pytest.raises(CheckpointError, match=words):
        find_source(name)
