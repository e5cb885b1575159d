"""A layout by the user's own words: what is scored, and what is not scored in silence. pytest tests/test_by_hand.py"""

import json
import shlex

import pytest
import torch
from safetensors.torch import save

import analyze
from data import options
from data.pretrained.by_hand import read_hand
from data.pretrained.files import CheckpointError
from data.pretrained.layouts import find_stacks
from tests.test_analyze import bert
from tests.toy import folder, layer_symmetry

C, H, HKV, D = 12, 4, 2, 5
torch.manual_seed(0)
Q, K, V = torch.randn(2, H, D, C), torch.randn(2, HKV, D, C), torch.randn(2, HKV, D, C)  # of two layers
SYMMETRIES = [layer_symmetry(q, k) for q, k in zip(Q, K)]


def strange(path, tensors, config=None):
    files = {"model.safetensors": save({name: weight.clone(memory_format=torch.contiguous_format)
                                        for name, weight in tensors.items()})}
    return folder(path, files, json.dumps(config).encode() if config else None)


def separate(numbers=(0, 1), path="b"):
    """A weight of q and one of k in each layer."""
    weights = {}
    for i, q, k in zip(numbers, Q.flatten(1, 2), K.flatten(1, 2)):
        weights |= {f"{path}.{i}.wq.weight": q, f"{path}.{i}.wk.weight": k}
    return weights


def score(model, **words):
    return analyze.score_model(model, **dict(q="b.{i}.wq.weight", k="b.{i}.wk.weight", heads=(H, HKV)) | words)


def fused(order):
    """(L, (H + 2 Hkv) D, C): all queries, keys and values, or each key head beside its queries."""
    if order == "qkv":
        return torch.cat([part.flatten(1, 2) for part in (Q, K, V)], 1)
    groups = [torch.cat([Q[:, 2 * g : 2 * g + 2].flatten(1, 2), K[:, g], V[:, g]], 1) for g in range(HKV)]
    return torch.cat(groups, 1)


# ---- what is scored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["qkv", "grouped"])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_tensor_with_fewer_keys_than_queries_is_cut_as_it_was_made(tmp_path, order, transposed):
    weights = fused(order).mT if transposed else fused(order)
    model = strange(tmp_path / "m", {f"h.{i}.attn.attn.weight": weight for i, weight in enumerate(weights)})
    found = analyze.score_model(model, qkv="h.{i}.attn.attn.weight", heads=(H, HKV), order=order, transposed=transposed)
    assert list(found.table.symmetry) == pytest.approx(SYMMETRIES, abs=1e-6)


@pytest.mark.parametrize("numbers, config", [
    ((0, 1), None), ((0, 1), {"num_hidden_layers": 2, "num_attention_heads": 4}),
    ((0, 1), {"text_config": {"n_layer": 2, "n_head": 4}}),
    ((0, 1), {"depths": [3, 6], "num_heads": [5, 8]}),  # of stages: not compared
    ((1, 3), {"num_hidden_layers": 4, "layer_types": ["mamba", "attention"] * 2})])  # the others have no softmax
def test_a_config_that_agrees_or_none_is_fine(tmp_path, numbers, config):
    found = score(strange(tmp_path / "m", separate(numbers), config)).table
    assert tuple(found.layer) == numbers and list(found.symmetry) == pytest.approx(SYMMETRIES)


def test_one_chunk_of_several_is_said_to_be_one(tmp_path):
    found = score(strange(tmp_path / "m", separate(path="b.0") | separate(path="b.1")),
                  q="b.0.{i}.wq.weight", k="b.0.{i}.wk.weight")
    assert "2 other layers, as b.1.0.wq.weight, are not scored" in found.note and len(found.table) == 2
    assert "not scored" not in score(strange(tmp_path / "one", separate())).note


# ---- what is not scored in silence -------------------------------------------------------------------------------


@pytest.mark.parametrize("beside, end, words", [
    *[(name, "weight", "may change it.*merge_and_unload.*remove_parametrizations") for name in (
        "wq.lora_A.weight", "wk.lora_B.default.weight", "wq_lora.down.weight", "wq.weight_mask",
        "wk.parametrizations.weight.0.base")],
    *[(name, "weight", "quantised") for name in ("wk.weight_scale", "wq.scales")],
    # The wrapped weight itself is no way around.
    *[("wq.lora_A.weight", end, "may change it")
      for end in ("base_layer.weight", "weight_orig", "parametrizations.weight.original")]])
def test_what_lies_beside_a_named_weight_and_may_change_it_is_refused(tmp_path, beside, end, words):
    tensors = {name.replace("weight", end): weight for name, weight in separate().items()}
    model = strange(tmp_path / "m", tensors | {f"b.1.{beside}": torch.ones(3)})
    with pytest.raises(CheckpointError, match=words):
        score(model, q=f"b.{{i}}.wq.{end}", k=f"b.{{i}}.wk.{end}")


def test_what_changes_no_query_or_key_is_not_refused(tmp_path):
    others = ["b.0.wq.bias", "b.0.wq_norm.weight", "b.0.wv.lora_A.weight", "b.0.wq._extra_state"]
    model = strange(tmp_path / "m", separate() | {name: torch.ones(3) for name in others})
    assert list(score(model).table.symmetry) == pytest.approx(SYMMETRIES)


@pytest.mark.parametrize("numbers, config, words", [
    ((0, 2), None, "of layer 1 missing: get all files"),
    ((2, 3), None, "of layer 1 missing: get all files"),
    ((0, 1), {"num_hidden_layers": 4}, "2 layers by your words, and 4 in config.json"),
    # As q_proj of Qwen3-Next, which holds each head and its gate: they are no heads.
    ((0, 1), {"num_attention_heads": 2, "linear_num_value_heads": 4}, "4 heads by your words, and 2 in config.json"),
    ((0, 1), {"layer_types": ["attention"] * 3, "n_layer": 3}, "of layer 2 missing")])
def test_layers_that_are_missing_and_other_numbers_in_the_config_are_refused(tmp_path, numbers, config, words):
    with pytest.raises(CheckpointError, match=words):
        score(strange(tmp_path / "m", separate(numbers), config))


# ---- a refusal names the words to try ----------------------------------------------------------------------------


def flags_of(refusal, heads):
    return shlex.split(refusal.partition("score it with ")[2].partition(" (")[0].replace("H,HKV", heads))


ALONE, PLAIN, GROUPED = (C, C), (3 * C, C), ((H + 2 * HKV) * D, C)


@pytest.mark.parametrize("name, shape, order", [
    ("transformer.h.{i}.attn.attn.weight", GROUPED, "grouped"),  # LitGPT, with the queries of a key head beside it
    ("transformer.h.{i}.attn.qkv.weight", GROUPED, "qkv"),  # LitGPT now
    ("decoder.layers.{i}.self_attention.linear_qkv.weight", GROUPED, "grouped"),  # Megatron
    ("layers.{i}.attention.wqkv.weight", GROUPED, "qkv"),  # gpt-fast
    ("sentence_encoder.layers.{i}.self_attn.q_proj.weight", ALONE, "qkv"),  # fair-esm
    ("encoder.blocks.{i}.attn.query.weight", ALONE, "qkv"),  # Whisper's .pt
    ("transformer.resblocks.{i}.attn.in_proj_weight", PLAIN, "qkv"),  # open_clip
    ("h.{i}.attn.c_attn.weight", PLAIN[::-1], "qkv"),  # a Conv1D, which is (in, out)
    ("layers.{i}.attention.wq.weight", ALONE, "qkv"),  # llama2.c
    ("layers.{i}.attn.q_proj.weight", ALONE, "qkv")])  # torchtune
def test_the_words_of_a_refusal_are_those_that_score_the_model(name, shape, order):
    key = name.replace("q_proj", "k_proj").replace("query", "key").replace("wq.", "wk.")
    shapes = {pattern.format(i=i): shape for i in range(2) for pattern in (name, key)}
    with pytest.raises(CheckpointError, match="no config.json") as error:
        find_stacks({}, shapes)
    args = options.parse(["--hf", "m", *flags_of(str(error.value), "4,2" if shape == GROUPED else "4")], "", 2.0)
    [stack] = find_stacks({}, shapes, read_hand(**args.layout))
    assert len(stack.layers) == 2
    assert (args.layout["order"], args.layout["transposed"]) == (order, shape[0] < shape[1])


def test_both_towers_are_named_and_so_are_weights_that_lie_elsewhere_than_their_type_has_them():
    shapes = {f"{tower}.{i}.attn.w{x}.weight": ALONE for tower in "ab" for i in range(2) for x in "qk"}
    for config in {}, dict(model_type="nanogpt", n_layers=2):  # as llama2.c's, which has model_args too
        with pytest.raises(CheckpointError) as error:
            find_stacks(config, shapes)
        for tower in "ab":
            assert f"--q '{tower}.{{i}}.attn.wq.weight' --k '{tower}.{{i}}.attn.wk.weight' --heads" in str(error.value)


@pytest.mark.parametrize("config, shapes", [
    (dict(model_type="codegen", n_head=4), {"h.0.attn.qkv_proj.weight": PLAIN}), ({}, {"b.0.attn.W_QKV": (3, C, C)})])
def test_no_order_is_proposed_that_the_model_does_not_have(config, shapes):
    with pytest.raises(CheckpointError, match="name its weights with --q, --k and --heads"):
        find_stacks(config, shapes)


def test_weights_of_three_dimensions_are_refused():
    shapes = {f"b.0.W_{x}": (H, C, D) for x in "QK"}  # as in TransformerLens
    with pytest.raises(CheckpointError, match="expected weights of two dimensions"):
        find_stacks({}, shapes, read_hand("b.{i}.W_Q", "b.{i}.W_K", heads=H))


def test_the_flags_of_a_refusal_score_the_model_and_are_written_beside_its_scores(tmp_path, analysed):
    strange(tmp_path / "m", separate(), dict(model_type="strange", num_attention_heads=H, num_key_value_heads=HKV))
    told = analysed("--hf", "m").err
    assert "'strange' is not known" in told and "if its code says so" in told and len(told) < 500
    found = analysed("--hf", "m", *flags_of(told, "4,2"))
    assert found.status == 0 and set(found.table.causal) == {""}
    assert list(found.table.symmetry) == pytest.approx(SYMMETRIES, abs=1e-5)
    assert set(found.table.layout) == {"b.{i}.wq.weight b.{i}.wk.weight heads (4, 2)"}
    assert "was scored with" in analysed("--hf", bert("known", 0.5)).status  # such rows are not mixed with others
