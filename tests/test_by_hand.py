"""A layout by the user's own words: what is scored, and what is not scored in silence. pytest tests/test_by_hand.py"""

import math
import shlex

import pytest
import torch

import analyze
from data import options
from data.pretrained.by_hand import read_hand
from data.pretrained.files import CheckpointError
from data.pretrained.layouts import find_stacks
from tests.test_analyze import bert
from tests.toy import layer_symmetry, model_folder, one_line

C, H, HKV, D = 12, 4, 2, 5
torch.manual_seed(0)
Q, K, V = torch.randn(2, H, D, C), torch.randn(2, HKV, D, C), torch.randn(2, HKV, D, C)  # of two layers
SYMMETRIES = [layer_symmetry(q, k) for q, k in zip(Q, K)]
WORDS = dict(q="b.{i}.wq.weight", k="b.{i}.wk.weight", heads=(H, HKV))
FUSED = dict(qkv="h.{i}.attn.attn.weight", heads=(H, HKV))


def named(pattern, weights, numbers=(0, 1)):
    """{name: weight}. weights: of one layer after the other"""
    return {pattern.format(i=i): weight for i, weight in zip(numbers, weights)}


def separate(numbers=(0, 1), path="b"):
    """A weight of q and one of k in each layer."""
    q, k = Q.flatten(1, 2), K.flatten(1, 2)
    return named(f"{path}.{{i}}.wq.weight", q, numbers) | named(f"{path}.{{i}}.wk.weight", k, numbers)


def stacked(*parts):
    """One tensor (rows, C) for each layer, which holds these parts (L, heads, D, C) one below the other."""
    return torch.cat([part.flatten(1, 2) for part in parts], 1)


def head_by_head():
    """Queries and keys with a tensor for each head."""
    return {f"b.{i}.heads.{h}.{name}.weight": head for name, part in (("query", Q), ("key", K))
            for i, heads in enumerate(part) for h, head in enumerate(heads)}


# Each key head lies beside its queries.
GROUPED = torch.cat([stacked(Q[:, 2 * g : 2 * g + 2], K[:, g : g + 1], V[:, g : g + 1]) for g in range(HKV)], 1)
HEADS = dict(q="b.{i}.heads.{h}.query.weight", k="b.{i}.heads.{h}.key.weight")
HYBRID = {"num_hidden_layers": 4, "layer_types": ["mamba", "attention"] * 2}
HARMLESS = {f"b.0.{name}": torch.ones(3) for name in (
    "wq.bias", "wq_norm.weight", "wv.lora_A.weight", "wq._extra_state")}
SCORED = [  # tensors, words beside WORDS, the config.json, numbers of the layers, a note
    (separate(), {}, None, [0, 1], ""),
    (separate(), {}, {"num_hidden_layers": 2, "n_head": 4, "hidden_size": 20}, [0, 1], ""),
    (separate(), dict(heads=[H, HKV]), {"text_config": {"n_layer": 2, "head_dim": D}}, [0, 1], ""),
    (separate(), {}, {"depths": [3, 6], "num_heads": [5, 8]}, [0, 1], ""),  # of stages: they are not compared
    (separate([1, 3]), {}, HYBRID, [1, 3], ""),
    # The others have no softmax, though they have weights of these names.
    (separate([0, 2]) | separate([1, 3]), {}, HYBRID, [1, 3], "2 layers without softmax are left out"),
    # The list goes on with layers that predict further tokens.
    (separate(), {}, {"n_layer": 2, "layer_types": ["attention"] * 3}, [0, 1], ""),
    (separate([0, 2]), dict(layers=2), None, [0, 2], ""),  # x-transformers, whose layer 1 has no attention
    (separate([0, 2]) | named(WORDS["q"], Q.flatten(1, 2), [1, 3]), {},
     {"num_hidden_layers": 4, "use_cla": True, "cla_share_factor": 2}, [0, 2], "2 layers with the keys of an earlier"),
    (separate(path="b.0") | separate(path="b.1"), dict(q="b.0.{i}.wq.weight", k="b.0.{i}.wk.weight"), None, [0, 1],
     "2 other layers, as b.1.0.wq.weight, are not scored"),
    (separate() | HARMLESS, {}, None, [0, 1], ""),
    ({name: weight[..., None] for name, weight in separate().items()}, {}, None, [0, 1], ""),  # Conv1d of kernel 1
    (head_by_head(), HEADS, None, [0, 1], ""),
    (named("b.{i}.to_q", stacked(Q)) | named("b.{i}.to_kv", stacked(K, V)),
     dict(q="b.{i}.to_q", k="b.{i}.to_kv", order="kv"), None, [0, 1], ""),
    # The gain of a norm before the weight.
    (named("b.{i}.ln_qkv.1.weight", stacked(Q, K, V)) | named("b.{i}.ln_qkv.0.weight", torch.ones(2, C)),
     dict(FUSED, qkv="b.{i}.ln_qkv.1.weight"), None, [0, 1], ""),
    *[(named(FUSED["qkv"], weights.mT if turned else weights), dict(FUSED, order=order, transposed=turned), None,
       [0, 1], "")
      for order, weights in (("qkv", stacked(Q, K, V)), ("qk", stacked(Q, K)), ("grouped", GROUPED))
      for turned in (False, True)],
]


@pytest.mark.parametrize("tensors, words, config, layers, note", SCORED)
def test_what_the_user_names_is_scored(tmp_path, tensors, words, config, layers, note):
    words = words if "qkv" in words else WORDS | words
    found = analyze.score_model(model_folder(tmp_path / "m", tensors, config), **words)
    assert list(found.table.layer) == layers and list(found.table.symmetry) == pytest.approx(SYMMETRIES, abs=1e-6)
    [told] = set(found.table.note)
    assert told.startswith(note) and bool(told) == bool(note) and found.note.endswith(told)


# ---- what is not scored in silence -------------------------------------------------------------------------------


def beside(name, end="weight"):
    """An adapter or the like beside weights whose names end in `end`."""
    return {key.replace("weight", end): weight for key, weight in separate().items()} | {f"b.1.{name}": torch.ones(3)}


def ending(end):
    return dict(q=f"b.{{i}}.wq.{end}", k=f"b.{{i}}.wk.{end}")


REFUSED = [  # tensors, words beside WORDS, the config.json, what is said
    (separate(), dict(k=WORDS["q"]), None, "cannot be both q and k: .* order qk"),
    *[(separate(), {name: None}, None, "name q and k") for name in "qk"],
    *[(separate(), dict(q=None, k=None, heads=heads, order=order), None, "heads, order, layers, transposed go with")
      for heads, order in ((4, None), (None, "qk"))],
    (separate(), dict(heads=None), None, "heads = None"),
    (separate(), dict(q="wq"), None, "{i} has to stand once"),
    *[(separate(), dict(q=q), None, "{h} counts heads, and stands once in q and once in k")
      for q in ("b.{i}.{h}.wq", "b.{i}.{h}.{h}.wq")],
    (separate(), dict(order="qk"), None, "order = qk, expected"),
    (separate(), dict(FUSED, order="qqk"), None, "order = qqk, expected"),
    (separate(), dict(q="a.{i}.q"), None, "nothing matches a.{i}.q: there are b.{i}.wk"),
    ({}, {}, None, "there are no tensors"),
    *[(separate(), dict(gamma=gamma), None, f"gamma = {gamma}") for gamma in (math.nan, -1.0, math.inf)],
    # Adapters and the like
    *[(beside(f"{name}.weight"), {}, None, "may change it.*merge_and_unload.*remove_parametrizations") for name in (
        "wq.lora_A", "wk.lora_B.default", "wq_lora.down", "lora_q_a", "q_a", "adapter_q.a")],
    *[(beside("wq.lora_A.weight", end), ending(end), None, "may change it")  # the wrapped weight is no way around
      for end in ("base_layer.weight", "weight_orig", "parametrizations.weight.original")],
    (beside("wq.weight_mask", "weight_orig"), ending("weight_orig"), None, "may change it"),
    *[(beside(name), {}, None, "quantised") for name in ("wk.weight_scale", "wq.scales", "wk.weight_global_scale")],
    # What is missing or double, and other numbers in the config
    (separate() | separate(["01"]), {}, None, "b.01.wq.weight have the same number|b.1.wq.weight have the same"),
    (separate([0, 2]), {}, None, "of layer 1 missing: get all files.*--layers N"),
    (separate([2, 3]), {}, None, "of layer 1 missing"),
    (separate([0, 2]), dict(layers=3), None, "2 layers match, and 3 have attention by your words"),
    (separate(), {}, {"layer_types": ["attention"] * 3, "n_layer": 3}, "of layer 2 missing"),
    (separate(), {}, {"num_hidden_layers": 4}, "2 layers by your words, and 4 in config.json"),
    # As q_proj of Qwen3-Next, which holds each head and its gate: they are no heads.
    (separate(), {}, {"num_attention_heads": 2, "linear_num_value_heads": 4},
     "4 heads by your words, and 2 in config.json"),
    # As in_proj_qk, which holds both.
    (named(WORDS["q"], stacked(Q, Q)) | named(WORDS["k"], stacked(K, K)), {}, {"hidden_size": 20},
     "10 dimensions of a head by your words, and 5 in config.json.*--qkv and its --order"),
    (separate(), {}, {"hidden_size": 20, "head_dim": 4}, "5 dimensions of a head by your words, and 4"),
    *[(named(FUSED["qkv"], torch.ones(2, 12, 36).mT if turned else torch.ones(2, 12, 36)),
       dict(FUSED, heads=4, transposed=turned), None, f"{way} --transposed")
      for turned, way in ((False, "add"), (True, "leave out"))],
    (head_by_head(), dict(HEADS, heads=4), None, "6 tensors are not 4 heads of q, and 4 of k"),
    ({name: weight[..., None].repeat(1, 1, 3) for name, weight in separate().items()}, {}, None,
     "expected weights of two dimensions, .*of kernel 1"),  # nor (H, C, D), as in TransformerLens
]


@pytest.mark.parametrize("tensors, words, config, message", REFUSED)
def test_what_does_not_name_all_of_the_queries_and_keys_is_refused(tmp_path, tensors, words, config, message):
    words = WORDS | words if "qkv" not in words else words
    with pytest.raises(CheckpointError, match=message.replace("{", r"\{")):
        analyze.score_model(model_folder(tmp_path / "m", tensors, config), **words)


# ---- a refusal names the words to try ----------------------------------------------------------------------------


def told(config, shapes):
    return one_line(lambda: find_stacks(config, shapes))


def flags_of(refusal, heads):
    return shlex.split(refusal.partition("score it with ")[2].partition(" (")[0].replace("H,HKV", heads))


ALONE, PLAIN, GROUPS = (C, C), (3 * C, C), ((H + 2 * HKV) * D, C)


@pytest.mark.parametrize("name, key, shape, order", [
    ("transformer.h.{i}.attn.attn.weight", "", GROUPS, "grouped"),  # LitGPT, a key head beside its queries
    ("transformer.h.{i}.attn.qkv.weight", "", GROUPS, "qkv"),  # LitGPT now
    ("decoder.layers.{i}.self_attention.linear_qkv.weight", "", GROUPS, "grouped"),  # Megatron
    ("layers.{i}.attention.wqkv.weight", "", GROUPS, "qkv"),  # gpt-fast
    ("sentence_encoder.layers.{i}.self_attn.q_proj.weight", "k_proj", ALONE, ""),  # fair-esm, torchtune
    ("encoder.blocks.{i}.attn.query.weight", "key", ALONE, ""),  # Whisper's .pt
    ("transformer.resblocks.{i}.attn.in_proj_weight", "", PLAIN, "qkv"),  # open_clip
    ("h.{i}.attn.c_attn.weight", "", PLAIN[::-1], "qkv"),  # a Conv1D, which is (in, out)
    ("layers.{i}.attention.wq.weight", "wk", ALONE, ""),  # llama2.c
    ("layers.{i}.attention.in_proj_qk.weight", "", (2 * C, C), "qk"),  # LTG-BERT
    ("layers.{i}.0.fn.to_q.weight", "to_kv", ALONE, "kv"),  # many of lucidrains
    ("blocks.{i}.sa.heads.{h}.query.weight", "key", (C // H, C), ""),  # Karpathy's lecture
])
def test_the_words_of_a_refusal_are_those_that_score_the_model(name, key, shape, order):
    other = name.replace(name.split(".")[-2], key) if key else name
    shapes = {pattern.format(i=i, h=h): shape for i in range(2) for h in range(H) for pattern in (name, other)}
    shapes |= {name: (2 * C, C) for name in shapes if key == "to_kv" and "to_kv" in name}
    heads = "4,2" if shape == GROUPS else "4"
    args = options.parse(["--hf", "m", *flags_of(told({}, shapes), heads)], "", 2.0)
    hand = read_hand(**args.layout)
    [stack], notes = find_stacks({}, shapes, hand)
    assert len(stack.layers) == 2 and not notes
    assert (hand.patterns[0], hand.order, hand.transposed) == (name, order, shape == PLAIN[::-1])


def attention(path, kind="{}_proj"):
    return {f"{path.format(i=i)}.{kind.format(x)}.weight": ALONE for i in range(2) for x in "qk"}


TORCH = {f"{stack}.layers.{i}.{kind}.in_proj_weight": PLAIN for i in range(2) for stack, kind in (
    ("encoder", "self_attn"), ("decoder", "self_attn"), ("decoder", "multihead_attn"))}  # nn.Transformer


@pytest.mark.parametrize("config", [{}, dict(model_type="nanogpt", n_layers=2)])  # as llama2.c's, with model_args too
@pytest.mark.parametrize("shapes, shown, hidden", [
    (attention("a.{i}.attn") | attention("b.{i}.attn") | attention("c.{i}.attn"), "abc", ""),
    (TORCH, ["encoder.layers.{i}.self_attn", "decoder.layers.{i}.self_attn"], ["multihead_attn"]),
    (attention("d.{i}.attn1", "to_{}") | attention("d.{i}.attn2", "to_{}"), ["attn1"], ["attn2"]),  # diffusers
    (attention("d.{i}.attn") | {f"d.{i}.attn.k_proj.weight": (C, 7) for i in range(2)} | attention("e.{i}"),
     ["e.{i}"], ["d.{i}"]),  # keys of something else
])
def test_all_stacks_are_shown_and_cross_attention_never(config, shapes, shown, hidden):
    line = told(config, shapes)
    assert all(f"'{word}" in line or f".{word}" in line for word in shown) and not any(word in line for word in hidden)
    assert line.count("--heads") == len(shown)


@pytest.mark.parametrize("config, shapes", [
    (dict(model_type="codegen", n_head=4), {"h.0.attn.qkv_proj.weight": PLAIN}), ({}, {"b.0.attn.W_QKV": (3, C, C)}),
    ({}, {"in_proj_weight": PLAIN}), ({}, {"heads.0.query.weight": (D, C), "heads.0.key.weight": (D, C)})])
def test_no_words_are_proposed_that_the_model_does_not_have(config, shapes):
    assert "with --q, --k and --heads H,HKV, or score a layer in Python: scores(" in told(config, shapes)


def test_the_flags_of_a_refusal_score_the_model_and_are_written_beside_its_scores(tmp_path, analysed):
    model_folder(tmp_path / "m", separate(), dict(model_type="strange", num_attention_heads=H, num_key_value_heads=HKV))
    told = analysed("--hf", "m").err
    assert "'strange' is not known" in told and "if its code says so" in told and len(told) < 500
    found = analysed("--hf", "m", *flags_of(told, "4,2"))
    assert found.status == 0 and set(found.table.causal) == {""}
    assert list(found.table.symmetry) == pytest.approx(SYMMETRIES, abs=1e-5)
    assert set(found.table.layout) == {"b.{i}.wq.weight b.{i}.wk.weight heads (4, 2)"}
    assert "was scored with" in analysed("--hf", bert("known", 0.5)).status  # such rows are not mixed with others
