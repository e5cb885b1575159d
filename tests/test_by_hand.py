"""A layout by the user's own words: what is scored, and what is not scored in silence. pytest tests/test_by_hand.py"""

import shlex

import pytest
import torch

from analyze.data.pretrained.by_hand import read_hand
from analyze.data.pretrained.checkpoint import CheckpointError
from analyze.data.pretrained.layouts import find_stacks
from tests.toy import one_line

C, H, HKV, D = 12, 4, 2, 5  # D is not C / H
torch.manual_seed(0)
Q, K, V = torch.randn(2, H, D, C), torch.randn(2, HKV, D, C), torch.randn(2, HKV, D, C)  # of two layers
WORDS = dict(q="b.{i}.wq.weight", k="b.{i}.wk.weight", heads=(H, HKV, D))
FUSED = dict(qkv="h.{i}.attn.attn.weight", heads=(H, HKV, D))


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
STAGES, STAGE_0 = separate(path="b.0") | separate(path="b.1"), dict(q="b.0.{i}.wq.weight", k="b.0.{i}.wk.weight")
KERNELS = dict(q="b.{i}.wq.kernel", k="b.{i}.wk.kernel", order="kernels")
FLAX = {"query": Q.permute(0, 3, 1, 2), "key": K.permute(0, 3, 1, 2)}  # (C, H, D) in each layer
FLAX = named("h.{i}.query.kernel", FLAX["query"]) | named("h.{i}.key.kernel", FLAX["key"])
SCORED = [  # tensors, words beside WORDS, numbers of the layers
    (separate(), {}, [0, 1]), (separate([1, 2]), {}, [1, 2]),
    (separate([0, 2]), {}, [0, 2]),  # x-transformers, whose layer 1 has no attention
    (named("layers.{i}.self_attn.linears.0.weight", Q.flatten(1, 2))  # the annotated transformer
     | named("layers.{i}.self_attn.linears.1.weight", K.flatten(1, 2))
     | named("layers.{i}.self_attn.linears.2.weight", V.flatten(1, 2))
     | named("layers.{i}.self_attn.linears.3.weight", torch.ones(2, C, H * D)),
     dict(q="layers.{i}.self_attn.linears.0.weight", k="layers.{i}.self_attn.linears.1.weight"), [0, 1]),
    (STAGES, dict(STAGE_0, unscored="b.1"), [0, 1]),
    ({name.replace("weight", "kernel"): weight.T for name, weight in separate().items()}, KERNELS, [0, 1]),
    (FLAX, dict(q="h.{i}.query.kernel", k="h.{i}.key.kernel", order="kernels"), [0, 1]),
    (head_by_head(), HEADS, [0, 1]),
    (named("b.{i}.to_q", stacked(Q)) | named("b.{i}.to_kv", stacked(K, V)),
     dict(q="b.{i}.to_q", k="b.{i}.to_kv", order="kv"), [0, 1]),
    *[(named(FUSED["qkv"], weights), dict(FUSED, order=order), [0, 1]) for order, weights in (
        ("blocks", stacked(Q, K, V)), ("halves", stacked(Q, K)), ("grouped", GROUPED),
        ("conv1d", stacked(Q, K, V).mT))],
]


def heads_of(tensors, words):
    """-> the layers as the user names them: their numbers, w_q and w_k. words: beside WORDS"""
    hand = read_hand(**(words if "qkv" in words else WORDS | words))
    [stack] = find_stacks({}, {name: weight.shape for name, weight in tensors.items()}, hand)
    return [(layer.index, *layer.heads(tensors)) for layer in stack.layers]


@pytest.mark.parametrize("tensors, words, layers", SCORED)
def test_what_the_user_names_is_scored(tensors, words, layers):
    found = heads_of(tensors, words)
    assert [i for i, *_ in found] == layers
    for (_, w_q, w_k), q, k in zip(found, Q, K):
        assert torch.equal(w_q, q.mT) and torch.equal(w_k, k.mT)


# ---- what is not scored in silence -------------------------------------------------------------------------------


GROWN = named(WORDS["q"], [torch.ones(20, C), torch.ones(40, C)])
GROWN |= named(WORDS["k"], [torch.ones(10, C), torch.ones(20, C)])
BLOCKS = dict(FUSED, order="blocks")
REFUSED = [  # tensors, words beside WORDS, what is said
    (separate(), dict(k=WORDS["q"]), "cannot be both q and k: .* order halves"),
    (separate(), dict(heads=None), "heads = None"),
    (separate(), dict(q="wq"), "{i} has to stand once"),
    (separate(), dict(FUSED, order="qqk"), "order = qqk, expected"),
    (separate(), dict(q="a.{i}.q"), "nothing matches a.{i}.q: there are b.{i}.wk"),
    # What lies beside the weights, as for a model of the table; and a wrapped weight is no way around.
    (separate() | {"b.1.wq.lora_A.weight": torch.ones(3)}, {}, "may change it.*merge_and_unload"),
    (named("a.{i}.theta", Q.flatten(1, 2)) | named("a.{i}.phi", K.flatten(1, 2)) | {"a.1.theta_x": torch.ones(3)},
     dict(q="a.{i}.theta", k="a.{i}.phi"), "a.1.theta_x .*may change it"),
    (named(FUSED["qkv"], stacked(Q, K, V)) | {"h.1.attn.attn.lora_A.weight": torch.ones(3)}, BLOCKS,
     "may change it"),
    (named("h.{i}.attn.in_proj_weight_orig", stacked(Q, K, V)), dict(BLOCKS, qkv="h.{i}.attn.in_proj_weight_orig"),
     "may change it"),
    # Nothing is guessed.
    (named(FUSED["qkv"], stacked(Q, K, V)), FUSED, "order = None, expected one of blocks, halves, grouped, conv1d"),
    ({name.replace("weight", "kernel"): weight.T for name, weight in separate().items()}, dict(KERNELS, order=None),
     "is a kernel, so .in, out.: give order kernels"),
    (separate(), dict(q=WORDS["k"], k=WORDS["q"]), "q = .*word .'wk'. is one of the other side"),
    (named("a.{i}.theta", Q.flatten(1, 2)) | separate(), dict(q="a.{i}.theta", k="b.{i}.query"), "k = .*other side"),
    # Layers that are there, or were, and would not be scored.
    (separate([0, 2]) | separate([3, 4]), {}, "of layers 0, 2, 3, 4 some are missing"),
    (STAGES, STAGE_0, "b.1.0.w.*is named as what is scored, and is not.*--unscored"),
    # What is double, or does not fit
    (separate() | separate(["01"]), {}, "b.01.wq.weight have the same number|b.1.wq.weight have the same"),
    (GROWN, {}, "do not fit"),  # a layer has more heads than another
    (separate() | {"b.1.wk.weight": torch.ones(20, C)}, {}, "do not fit"),
    (separate(), dict(heads=(H, HKV)), "do not fit"),  # then D is C / H
    (named(FUSED["qkv"], torch.ones(2, 12, 36)), dict(BLOCKS, heads=4), "do not fit"),  # it is a Conv1D
    (head_by_head(), dict(HEADS, heads=4), "do not fit"),
    (head_by_head(), dict(HEADS, order="kv"), "order = kv, expected one of listed"),  # each holds a key and a value
    ({name: weight[..., None].repeat(1, 1, 3) for name, weight in separate().items()}, {},
     "do not fit"),  # of a convolution; nor (H, C, D), as in TransformerLens
]


@pytest.mark.parametrize("tensors, words, message", REFUSED)
def test_what_does_not_name_all_of_the_queries_and_keys_is_refused(tensors, words, message):
    with pytest.raises(CheckpointError, match=message.replace("{", r"\{")):
        heads_of(tensors, words)


@pytest.mark.parametrize("config", [dict(num_attention_heads=8), dict(text_config=dict(num_attention_heads=8)),
                                    dict(num_attention_heads=4, num_key_value_heads=4), dict(head_dim=6)])
def test_a_config_of_other_heads_is_not_overruled(config):
    shapes = {name: weight.shape for name, weight in separate().items()}
    with pytest.raises(CheckpointError, match="heads say .*, and config.json says .*: correct one of them"):
        find_stacks(config, shapes, read_hand(**WORDS))
    for same in {}, dict(num_attention_heads=H), dict(text_config=dict(num_attention_heads=H, head_dim=D)):
        assert find_stacks(same, shapes, read_hand(**WORDS))
    towers = {name.replace("b.", "vision_tower."): shape for name, shape in shapes.items()}
    of_tower = {key: str(word).replace("b.", "vision_tower.") for key, word in WORDS.items()}
    assert find_stacks(config, towers, read_hand(**of_tower))


# ---- what lies beside q and k ------------------------------------------------------------------------------------

SIDE = dict(q="a.{i}.attn.q.weight", k="a.{i}.attn.k.weight")
SQUARE, LOW = torch.ones(C, C), torch.ones(2, C)
BESIDE = [  # names in the block of attention, and their tensors; whether they change nothing
    *[({f"{name}.weight": torch.ones(HKV * D, C), f"{name}.bias": torch.ones(HKV * D)}, True)
      for name in ("W_value", "v_linear", "tovalues", "linears.2")],
    *[({f"{name}.weight": torch.ones(C, H * D)}, True) for name in ("unifyheads", "fc", "w_concat")],
    ({"fc_out.weight": SQUARE}, True),
    *[({f"{name}.weight": SQUARE}, False) for name in ("wq2", "query_2", "q_delta", "q2", "kv", "lora_x", "k_adapter")],
    *[({name: tensor}, False) for name, tensor in dict(
        down=LOW, gain=torch.ones(C), mix_scale=SQUARE).items()],
    ({"up.weight": LOW}, False), ({"gain.weight": torch.ones(C)}, False),
    ({"fc.weight": SQUARE, "fc.mask": SQUARE}, False), ({"fc.base_layer.weight": SQUARE}, False),
    *[({name: torch.ones(4, 4)}, True) for name in ("rot_emb.inv_freq", "pos_embeddings.cache", "kv_cache", "cache_k")],
]


@pytest.mark.parametrize("beside, is_harmless", BESIDE)
def test_a_plain_linear_beside_q_and_k_is_another_projection(beside, is_harmless):
    tensors = named(SIDE["q"], Q.flatten(1, 2)) | named(SIDE["k"], K.flatten(1, 2))
    tensors |= {f"a.1.attn.{name}": tensor for name, tensor in beside.items()}
    if not is_harmless:
        with pytest.raises(CheckpointError, match="may change it"):
            heads_of(tensors, SIDE)
    modules = ",".join(name.removesuffix(".weight") for name in beside)
    assert len(heads_of(tensors, dict(SIDE, unscored=None if is_harmless else modules))) == 2


def test_only_an_adapter_is_told_to_be_merged_with_peft():
    tensors = named(SIDE["q"], Q.flatten(1, 2)) | named(SIDE["k"], K.flatten(1, 2)) | {"a.1.attn.gain": torch.ones(C)}
    line = one_line(lambda: heads_of(tensors, SIDE))
    assert "a.1.attn.gain lies beside" in line and "--unscored" in line and "PEFT" not in line


# ---- a refusal names the words to try ----------------------------------------------------------------------------


def test_the_flags_of_a_refusal_score_the_model():
    q, k = "d.{i}.attn1.to_q.weight", "d.{i}.attn1.to_k.weight"
    tensors = named(q, Q.flatten(1, 2)) | named(k, K.flatten(1, 2))
    config = dict(model_type="strange", num_attention_heads=H, num_key_value_heads=HKV, head_dim=D)
    line = one_line(lambda: find_stacks(config, {name: weight.shape for name, weight in tensors.items()}))
    assert "'strange' is not known" in line
    flags = shlex.split(line[line.index("--q ") :])
    words = dict(zip((flag.removeprefix("--") for flag in flags[::2]), flags[1::2]))
    assert words == dict(q=q, k=k, heads="4,2,5")
    found = heads_of(tensors, words)
    assert torch.equal(found[1][1], Q[1].mT)


def test_the_advice_shows_all_self_attention_and_no_cross_attention():
    fused, cross = "{side}.layers.0.self_attn.in_proj_weight", "decoder.layers.0.multihead_attn.in_proj_weight"
    shapes = {fused.format(side=side): (3 * C, C) for side in ("encoder", "decoder")} | {cross: (3 * C, C)}
    line = one_line(lambda: find_stacks(dict(model_type="mine", num_attention_heads=H), shapes))
    for side in "encoder", "decoder":
        assert f"{side}.layers.{{i}}.self_attn.in_proj_weight" in line
    assert "multihead_attn" not in line
    # It is self-attention where nothing else is.
    line = one_line(lambda: find_stacks(dict(model_type="mine"), {cross: (3 * C, C)}))
    assert "decoder.layers.{i}.multihead_attn.in_proj_weight" in line


def test_the_order_of_a_fused_tensor_is_not_guessed():
    config, shapes = dict(model_type="codegen", n_head=H), {"h.0.attn.c_attn.weight": (3 * C, C)}
    line = one_line(lambda: find_stacks(config, shapes))
    assert "h.{i}.attn.c_attn.weight" in line and "--order" in line and "if its code" not in line
