"""Checkpoints that others write: nanoGPT, nanochat, a Trainer, sentence-transformers; what is no checkpoint says so."""

import json
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save
from torch import nn
from torch.distributed import checkpoint as distributed

from data.pretrained.layouts import find_stacks
from data.pretrained.sources import CheckpointError, find_source, open_checkpoint, with_sizes_of_timm
from model import ModelConfig, Transformer
from tests.hub import hub  # noqa: F401 (a fixture)
from tests.toy import CONFIG, FILE, SINGLE, WEIGHTS, as_bin, folder, read, refusal

C, H, HKV, D, N = 24, 4, 2, 6, 2  # n_embd, n_head, n_kv_head, head_dim, n_layer


def heads_of(source) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(W_q, W_k) of each layer."""
    with open_checkpoint(str(source)) as opened:
        (stack,) = find_stacks(opened.config, {name: info.shape for name, info in opened.tensors.items()})
        assert stack.causal
        return [layer.heads(tensors)
                for layer, tensors in zip(stack.layers, opened.stream([layer.names for layer in stack.layers]))]


def check_heads(got, queries: list[nn.Linear], keys: list[nn.Linear]):
    """What each head makes of an input is what the modules make of it."""
    x = torch.randn(3, C)
    assert len(got) == len(queries) == N
    for (w_q, w_k), q, k in zip(got, queries, keys):
        torch.testing.assert_close(torch.cat([x @ head for head in w_q], 1), q(x))
        torch.testing.assert_close(torch.cat([x @ head for head in w_k], 1), k(x))


class NanoGPT(nn.Module):
    """Attention of nanoGPT's model.py: one Linear, whose output is split into q, k and v."""

    def __init__(self):
        super().__init__()
        block = [nn.ModuleDict({"attn": nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C, bias=False)})}) for _ in range(N)]
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(30, C), "h": nn.ModuleList(block)})
        self.lm_head = nn.Linear(C, 30, bias=False)


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_a_checkpoint_of_nanogpt_is_read_without_a_config(tmp_path, hub, prefix):
    torch.manual_seed(0)
    model = NanoGPT()
    saved = {
        "model": {prefix + name: weight for name, weight in model.state_dict().items()},
        "optimizer": {"state": {0: {"step": torch.tensor(10.0), "exp_avg": torch.zeros(30, C)}}, "param_groups": []},
        "model_args": dict(n_layer=N, n_head=H, n_embd=C, block_size=8, bias=False, vocab_size=30, dropout=0.0),
        "iter_num": 10, "best_val_loss": torch.tensor(1.5), "config": {"out_dir": "out", "eval_only": False},
    }
    hub.add("org/nano", {"ckpt.pt": as_bin(saved)})
    out = folder(tmp_path / "out", {"ckpt.pt": as_bin(saved)}, config=None)

    class Part(nn.Module):
        def __init__(self, linear, i):
            super().__init__()
            self.linear, self.i = linear, i

        def forward(self, x):
            return self.linear(x).split(C, dim=1)[self.i]  # as in nanoGPT: q, k, v

    fused = [block["attn"]["c_attn"] for block in model.transformer["h"]]
    (out / "ckpt_000010.pt").write_bytes(as_bin(saved))
    for source in (out, out / "ckpt_000010.pt", "org/nano"):
        check_heads(heads_of(source), [Part(linear, 0) for linear in fused], [Part(linear, 1) for linear in fused])


def test_the_newest_checkpoint_of_nanochat_is_read_with_its_meta_file(tmp_path):
    torch.manual_seed(0)
    queries = [nn.Linear(C, H * D, bias=False) for _ in range(N)]
    keys = [nn.Linear(C, HKV * D, bias=False) for _ in range(N)]
    state = {}
    for i in range(N):
        state[f"_orig_mod.transformer.h.{i}.attn.c_q.weight"] = queries[i].weight.data
        state[f"_orig_mod.transformer.h.{i}.attn.c_k.weight"] = keys[i].weight.data
    sizes = dict(sequence_len=8, vocab_size=30, n_layer=N, n_head=H, n_kv_head=HKV, n_embd=C)
    meta = {"step": 20, "model_config": sizes}
    older = {name: torch.zeros_like(weight) for name, weight in state.items()}
    files = {"model_000010.pt": as_bin(older), "meta_000010.json": b"{}", "model_000020.pt": as_bin(state),
             "meta_000020.json": json.dumps(meta).encode(), "optim_000020_rank0.pt": b""}
    out = folder(tmp_path / "d2", files, config=None)
    for source in (out, out / "model_000020.pt"):
        check_heads(heads_of(source), queries, keys)
    assert "meta_000010.json" in refusal(out / "model_000010.pt")


def test_the_checkpoints_of_train_py_are_read_beside_the_model_that_it_exports(tmp_path):
    """A BERT in the words of model.py, beside the config.json of the export, which has other names."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocab_size=30, block_size=8, n_layer=N, n_head=H, n_embd=C, causal=True))
    config = dict(n_layer=N, n_head=H, n_embd=C, causal=True, init="random", seed=1)
    state = dict(config=config, data={"tokenizer": "bytes"}, step=40, model=model.state_dict(), scaler={})
    out = folder(tmp_path / "out", {"ckpt-00000040.pt": as_bin(state), "ckpt.pt": as_bin(state), "run.json": b"{}"},
                 b'{"model_type": "bert"}')
    for source in (out, out / "ckpt-00000040.pt"):
        check_heads(heads_of(source), [unbiased(block.attn.q) for block in model.blocks],
                    [unbiased(block.attn.k) for block in model.blocks])


def unbiased(linear: nn.Linear) -> nn.Linear:
    copy = nn.Linear(linear.in_features, linear.out_features, bias=False)
    copy.weight = linear.weight
    return copy


def test_of_a_trainer_the_newest_checkpoint_is_read_and_named(tmp_path, hub):
    root = folder(tmp_path / "run", {"training_args.bin": b"", "trainer_state.json": b"{}"}, config=None)
    old = save({name: weight + 1 for name, weight in WEIGHTS.items()})
    folder(root / "checkpoint-900", {"model.safetensors": old})
    folder(root / "checkpoint-1000", {"model.safetensors": FILE})
    folder(root / "checkpoint-best", {"model.safetensors": old})
    assert "checkpoint-1000, the newest of 2" in read(root).note
    hub.add("org/run", {f"checkpoint-{step}/{name}": data for step, weights in ((900, old), (1000, FILE))
                        for name, data in (SINGLE | {"model.safetensors": weights}).items()})
    assert "checkpoint-1000, the newest of 2" in read("org/run").note
    folder(root, {"model.safetensors": FILE})
    folder(root / "checkpoint-1000", {"model.safetensors": old})
    assert read(root).note == ""  # what was saved at the end


def test_the_config_of_the_folder_above_is_read_as_accelerate_writes_it(tmp_path, hub):
    files = {"model.safetensors": FILE, "optimizer.bin": b"", "random_states_0.pkl": b""}
    root = folder(tmp_path / "run", {})
    for step in (9, 10):
        folder(root / f"step_{step}", files, config=None)
    for source in (root / "step_9", root / "step_9" / "model.safetensors"):
        assert "folder above" in read(source).note
    assert "of step_10, the newest of 2" in read(root).note
    hub.add("org/run", {"config.json": CONFIG, **{f"step_10/{name}": data for name, data in files.items()}})
    assert "of step_10" in read("org/run").note


@pytest.mark.parametrize("file", ["epoch=3-step=100.ckpt", "model_best.pth", "last.pt", "pytorch_model_fsdp.bin"])
def test_one_lone_file_of_weights_is_read_whatever_its_name(tmp_path, file):
    beside = {"optimizer.bin": b"", "scheduler.pt": b"", "rng_state_0.pth": b"", "training_args.bin": b""}
    root = folder(tmp_path / "run", beside | {file: as_bin({"state_dict": WEIGHTS})})
    read(root)
    if file != "pytorch_model_fsdp.bin":
        (root / "other.ckpt").write_bytes(as_bin(WEIGHTS))
        (root / "another.pt").write_bytes(as_bin(WEIGHTS))
        assert file in refusal(root) and "path of one file" in refusal(root)


def test_the_transformer_of_a_sentence_transformers_root_is_read(tmp_path, hub):
    files = {"modules.json": b"[]", "config_sentence_transformers.json": b"{}"}
    root = folder(tmp_path / "sbert", files, config=None)
    folder(root / "1_Pooling", {})
    folder(root / "0_Transformer", {"pytorch_model.bin": as_bin(WEIGHTS)})
    assert "0_Transformer" in read(root).note
    hub.add("org/sbert", files | {"1_Pooling/config.json": b"{}", "0_Transformer/config.json": CONFIG,
                                  "0_Transformer/pytorch_model.bin": as_bin(WEIGHTS)})
    read("org/sbert")
    assert hub.sent("0_Transformer/pytorch_model.bin") < 0.6 * len(as_bin(WEIGHTS))


# What is no checkpoint says so


def test_a_pointer_of_git_lfs_says_to_pull(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440473133\n"
    for file in "model.safetensors", "pytorch_model.bin":
        assert "git lfs pull" in refusal(folder(tmp_path / file, {file: pointer}))
    assert "git lfs pull" in refusal(folder(tmp_path / "toy", {"model.safetensors": FILE}, config=pointer))


def test_an_adapter_is_refused_with_its_base(tmp_path, hub):
    files = {"adapter_config.json": b'{"base_model_name_or_path": "org/base", "peft_type": "LORA"}',
             "adapter_model.safetensors": FILE}
    hub.add("org/lora", files)
    for source in (folder(tmp_path / "lora", files, config=None), "org/lora"):
        told = refusal(source)
        assert "org/base" in told and "merge_and_unload" in told


@pytest.mark.parametrize("files, told", [
    (["snapshots/0123abc/config.json", "refs/main", "blobs/9"], "org/name"),
    (["config.json", "zero_to_fp32.py", "latest"], "zero_to_fp32.py ."),
    (["config.json", "global_step9/mp_rank_00_model_states.pt"], "zero_to_fp32.py ."),
    (["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"], "zero_to_fp32.py ."),
    (["config.json", "pytorch_model_fsdp_0/__0_0.distcp"], "dcp_to_torch"),
    (["__0_0.distcp", "__1_0.distcp", ".metadata"], "dcp_to_torch"),
    (["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"], "Megatron"),
    (["__0_0.distcp", ".metadata", "common.pt", "metadata.json"], "Megatron"),
    (["open_clip_config.json", "open_clip_model.safetensors"], "OpenCLIP"),
    (["config.json", "tf_model.h5", "flax_model.msgpack", "toy.Q4.gguf"], "tf_model.h5, toy.Q4.gguf"),
    (["model.safetensors"], "no config.json"), (["README.md"], "no config.json and no model.safetensors"),
])
def test_what_cannot_be_read_says_what_to_do(tmp_path, hub, files, told):
    contents = {file: CONFIG if file == "config.json" else FILE for file in files}
    for file, data in contents.items():
        (tmp_path / "toy" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / file).write_bytes(data)
    hub.add("org/toy", contents)
    for source in (tmp_path / "toy", "org/toy"):
        assert told in refusal(source).replace("flax_model.msgpack, ", "")


def test_pieces_of_fsdp_are_read_after_the_command_that_is_told(tmp_path):
    pieces = tmp_path / "pieces"
    distributed.save({"model": WEIGHTS}, checkpoint_id=pieces, no_dist=True)
    words = re.search(r"-m (\S+) (dcp_to_torch)", refusal(pieces))
    merged = folder(tmp_path / "merged", {})
    subprocess.run([sys.executable, "-m", words[1], words[2], pieces, merged / "model.pt"], check=True, timeout=60)
    read(merged)


def test_a_plain_vit_of_timm_is_read_with_the_sizes_that_its_name_tells(tmp_path):
    torch.manual_seed(0)
    weights = {f"blocks.{i}.attn.qkv.weight": torch.randn(3 * 192, 192) for i in range(12)}
    config = b'{"architecture": "vit_tiny_patch16_224", "num_classes": 1000, "pretrained_cfg": {}}'
    with open_checkpoint(str(folder(tmp_path / "vit", {"model.safetensors": save(weights)}, config))) as opened:
        [stack] = find_stacks(opened.config, {name: info.shape for name, info in opened.tensors.items()})
    assert stack.causal is False
    x = torch.randn(1, 5, 192)
    for layer, weight in zip(stack.layers, weights.values(), strict=True):
        qkv = nn.functional.linear(x, weight).reshape(1, 5, 3, 3, 64).permute(2, 0, 3, 1, 4)  # as in timm's Attention
        w_q, w_k = layer.heads(weights)
        torch.testing.assert_close(x @ w_q, qkv[0, 0])
        torch.testing.assert_close(x @ w_k, qkv[1, 0])


@pytest.mark.parametrize("name, sizes", [
    ("vit_small_patch14_reg4_dinov2", (12, 6)), ("vit_base_patch16_clip_quickgelu_224", (12, 12)),
    ("vit_large_patch32_384", (24, 16)), ("deit_base_distilled_patch16_384", (12, 12))])
def test_the_architecture_of_timm_tells_how_many_layers_and_heads_there_are(name, sizes):
    config = with_sizes_of_timm({"architecture": name})
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == sizes


@pytest.mark.parametrize("name, more", [
    ("vit_base_patch16_gap_224", {}),  # 16 heads
    ("vit_small_patch16_18x2_224", {}), ("vit_huge_patch14_224", {}), ("resnet50", {}),
    ("vit_base_patch16_224", {"model_args": {"num_heads": 6}})])
def test_other_checkpoints_of_timm_say_what_to_give_instead(name, more, tmp_path):
    config = json.dumps({"architecture": name, "pretrained_cfg": {}, **more}).encode()
    told = refusal(folder(tmp_path / "vit", {"model.safetensors": FILE}, config))
    assert "timm" in told and str(name) in told and "transformers" in told


@pytest.mark.parametrize("address, source", [
    ("https://huggingface.co/org/toy", "org/toy"), ("https://huggingface.co/org/toy/", "org/toy"),
    ("huggingface.co/org/toy/tree/main", "org/toy@main"), ("https://hf.co/org/toy?library=x", "org/toy"),
    ("https://huggingface.co/org/toy/tree/refs%2Fpr%2F1", "org/toy@refs/pr/1"), (" org/toy ", "org/toy"),
    ("https://huggingface.co/org/toy/blob/v2/model.safetensors", "org/toy@v2"),
    ("https://huggingface.co/org/toy/commits/v2", "org/toy@v2"),
    ("https://huggingface.co/gpt2/tree/v2", "openai-community/gpt2@v2"),
    ("/huggingface.co/org/toy", "/huggingface.co/org/toy"), ("bert-base@v2", "google-bert/bert-base-uncased@v2"),
])
def test_the_address_of_a_page_and_spaces_around_a_name_are_understood(address, source):
    assert find_source(address) == source


def test_the_address_of_a_page_is_opened(hub):
    hub.add("org/toy", SINGLE, branch="v2")
    for source in ("https://huggingface.co/org/toy/tree/v2", f"{hub.url}/org/toy/tree/v2", "org/toy@v2\n"):
        read(source)


def test_no_line_repeats_the_name_or_holds_a_control_character(tmp_path, hub):
    clear_screen = "\x1b[2J\n\x07"
    hub.add("org/closed", SINGLE, gated=True)
    hub.add("org/bare", {"model.safetensors": FILE})
    bad = {f"q{clear_screen}": torch.tensor([float("nan")])}
    toy = folder(tmp_path / "toy", {"model.safetensors": save(bad)})
    config = json.dumps({"architecture": clear_screen}).encode()
    told = [refusal(toy, [list(bad)]), refusal("org/closed"), refusal("org/bare"),
            refusal(folder(tmp_path / "vit", {"model.safetensors": FILE}, config)),
            refusal(folder(tmp_path / "cut", {"model.safetensors": FILE[:-1]})),
            refusal(folder(tmp_path / "none", {f"{clear_screen}.gguf": b""})), refusal(tmp_path / "absent")]
    for line in told:
        assert line.isprintable() and str(tmp_path) not in line and not line.startswith("org/")
    with pytest.raises(CheckpointError) as error:
        find_source(f"bert{clear_screen}")
    assert str(error.value).isprintable()


def test_names_that_are_near_are_told_and_others_are_not():
    with pytest.raises(CheckpointError, match="nearest names are .*bert-base"):
        find_source("bert-bas")
    with pytest.raises(CheckpointError) as error:
        find_source("nowhere.safetensors")
    assert "nearest" not in str(error.value) and "no model or folder" in str(error.value)
