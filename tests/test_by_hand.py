"""A layout by the user's own words: what is scored, and what is not scored in silence. pytest tests/test_by_hand.py"""

import shlex

import pytest
import torch

from analyze.data.pretrained.by_hand import read_hand
from analyze.data.pretrained.checkpoint import CheckpointError
from analyze.data.pretrained.layouts import find_stacks
from tests.toy import one_line

C, H, HKV, D = 12, 4, 2, 5
torch.manual_seed(0)
Q, K, V = torch.randn(2, H, D, C), torch.randn(2, HKV, D, C), torch.randn(2, HKV, D, C)  # of two layers
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
TOWERS = {"text_config": {"num_hidden_layers": 2, "num_attention_heads": H, "head_dim": D},
          "vision_config": {"num_hidden_layers": 3, "num_attention_heads": 2, **HYBRID}}
SCORED = [  # tensors, words beside WORDS, the config.json, numbers of the layers, a note
    (separate(), {}, None, [0, 1], ""), (separate([1, 2]), {}, None, [1, 2], ""),
    # The numbers of one tower are not compared with those of another.
    (separate(path="language_model.b"), dict(q="language_model.b.{i}.wq.weight", k="language_model.b.{i}.wk.weight"),
     TOWERS, [0, 1], ""),
    # The others have no softmax, though they have weights of these names.
    (separate([0, 2]) | separate([1, 3]), {}, HYBRID, [1, 3], ""),
    (separate([0, 2]), dict(layers=2), None, [0, 2], ""),  # x-transformers, whose layer 1 has no attention
    (separate(path="b.0") | separate(path="b.1"), dict(q="b.0.{i}.wq.weight", k="b.0.{i}.wk.weight"), None, [0, 1],
     "2 other tensors, as b.1.0.wq.weight, are not scored"),
    (head_by_head(), HEADS, None, [0, 1], ""),
    (named("b.{i}.to_q", stacked(Q)) | named("b.{i}.to_kv", stacked(K, V)),
     dict(q="b.{i}.to_q", k="b.{i}.to_kv", order="kv"), None, [0, 1], ""),
    *[(named(FUSED["qkv"], weights.mT if turned else weights), dict(FUSED, order=order, transposed=turned), None,
       [0, 1], "")
      for order, weights in (("qkv", stacked(Q, K, V)), ("qk", stacked(Q, K)), ("grouped", GROUPED))
      for turned in (False, True)],
]


def heads_of(tensors, config, words):
    """-> the layers as the user names them: their numbers, w_q and w_k; and the notes. words: beside WORDS"""
    hand = read_hand(**(words if "qkv" in words else WORDS | words))
    [stack], notes = find_stacks(config or {}, {name: weight.shape for name, weight in tensors.items()}, hand)
    return [(layer.index, *layer.heads(tensors)) for layer in stack.layers], notes


@pytest.mark.parametrize("tensors, words, config, layers, note", SCORED)
def test_what_the_user_names_is_scored(tensors, words, config, layers, note):
    found, notes = heads_of(tensors, config, words)
    assert [i for i, *_ in found] == layers and ", ".join(notes).startswith(note) and bool(notes) == bool(note)
    for (_, w_q, w_k), q, k in zip(found, Q, K):
        assert torch.equal(w_q, q.mT) and torch.equal(w_k, k.mT)


def test_heads_that_grow_with_the_layer_are_cut_by_the_lists_of_the_config():
    config, numbers = {"num_attention_heads": [4, 6], "num_key_value_heads": [2, 3]}, [(4, 2), (6, 3)]
    shapes = [(n_head * D, n_kv_head * D) for n_head, n_kv_head in numbers]
    tensors = named(WORDS["q"], [torch.randn(n, C) for n, _ in shapes])
    tensors |= named(WORDS["k"], [torch.randn(n, C) for _, n in shapes])
    found, _ = heads_of(tensors, config, {})
    for (i, w_q, w_k), (n_head, n_kv_head) in zip(found, numbers):
        assert torch.equal(w_q.mT.flatten(0, 1), tensors[f"b.{i}.wq.weight"]) and len(w_q) == n_head
        assert torch.equal(w_k.mT.flatten(0, 1), tensors[f"b.{i}.wk.weight"]) and len(w_k) == n_kv_head


# ---- what is not scored in silence -------------------------------------------------------------------------------


GROWN = named(WORDS["q"], [torch.ones(20, C), torch.ones(40, C)])
GROWN |= named(WORDS["k"], [torch.ones(10, C), torch.ones(20, C)])
REFUSED = [  # tensors, words beside WORDS, the config.json, what is said
    (separate(), dict(k=WORDS["q"]), None, "cannot be both q and k: .* order qk"),
    (separate(), dict(heads=None), None, "heads = None"),
    (separate(), dict(q="wq"), None, "{i} has to stand once"),
    (separate(), dict(FUSED, order="qqk"), None, "order = qqk, expected"),
    (separate(), dict(q="a.{i}.q"), None, "nothing matches a.{i}.q: there are b.{i}.wk"),
    # What lies beside the weights, as for a model of the table; and a wrapped weight is no way around.
    (separate() | {"b.1.wq.lora_A.weight": torch.ones(3)}, {}, None, "may change it.*merge_and_unload.*remove_param"),
    (named("a.{i}.theta", Q.flatten(1, 2)) | named("a.{i}.phi", K.flatten(1, 2)) | {"a.1.theta_x": torch.ones(3)},
     dict(q="a.{i}.theta", k="a.{i}.phi"), None, "a.1.theta_x .*may change it"),
    (named(FUSED["qkv"], stacked(Q, K, V)) | {"h.1.attn.attn.lora_A.weight": torch.ones(3)}, FUSED, None,
     "may change it"),
    (named("h.{i}.attn.in_proj_weight_orig", stacked(Q, K, V)), dict(FUSED, qkv="h.{i}.attn.in_proj_weight_orig"), None,
     "may change it"),
    # What is missing or double, and other numbers in the config
    (separate() | separate(["01"]), {}, None, "b.01.wq.weight have the same number|b.1.wq.weight have the same"),
    (separate([0, 2]), {}, None, "of layer 1 missing: get all files.*--layers N"),
    (separate([0, 2]), dict(layers=3), None, "2 layers match, and 3 have attention by your words"),
    (separate(), {}, {"num_hidden_layers": 1}, "weights of layer 1 as well"),
    # As q_proj of Qwen3-Next, which holds each head and its gate: they are no heads.
    (separate(), {}, {"num_attention_heads": 2, "linear_num_value_heads": 4}, "4 heads by your words, and .2. in conf"),
    (separate(path="decoder.b"), dict(q="decoder.b.{i}.wq.weight", k="decoder.b.{i}.wk.weight"),
     {"encoder_layers": 2, "decoder_layers": 3}, "layer 2 missing"),
    # As in_proj_qk, which holds both.
    (named(WORDS["q"], stacked(Q, Q)) | named(WORDS["k"], stacked(K, K)), {}, {"hidden_size": 20},
     "10 dimensions of a head by your words, and .5. in config.json.*--qkv and its --order"),
    (GROWN, {}, {"num_hidden_layers": 2, "n_head": 4}, "different shapes"),  # each layer is checked
    (separate() | {"b.1.wk.weight": torch.ones(20, C)}, {}, None, "do not fit"),
    (named(FUSED["qkv"], torch.ones(2, 12, 36)), dict(FUSED, heads=4), None, "add --transposed"),
    (head_by_head(), dict(HEADS, heads=4), None, "6 tensors are not 4 heads of q, and 4 of k"),
    (head_by_head() | {name: torch.cat([weight, weight]) for name, weight in head_by_head().items() if "key" in name},
     dict(HEADS, order="kv"), None, "6 tensors are not"),  # each holds a key and a value
    ({name: weight[..., None].repeat(1, 1, 3) for name, weight in separate().items()}, {}, None,
     "expected weights of two dimensions, .*of kernel 1"),  # nor (H, C, D), as in TransformerLens
    # It has weights for each codebook.
    (separate(), dict(FUSED, qkv="depformer.layers.{i}.self_attn.in_proj_weight"), None, "step of Moshi's depformer"),
]


@pytest.mark.parametrize("tensors, words, config, message", REFUSED)
def test_what_does_not_name_all_of_the_queries_and_keys_is_refused(tensors, words, config, message):
    with pytest.raises(CheckpointError, match=message.replace("{", r"\{")):
        heads_of(tensors, config, words)


# ---- a refusal names the words to try ----------------------------------------------------------------------------


def test_the_flags_of_a_refusal_score_the_model():
    q, k = "d.{i}.attn1.to_q.weight", "d.{i}.attn1.to_k.weight"
    tensors = named(q, Q.flatten(1, 2)) | named(k, K.flatten(1, 2))
    config = dict(model_type="strange", num_attention_heads=H, num_key_value_heads=HKV)
    line = one_line(lambda: find_stacks(config, {name: weight.shape for name, weight in tensors.items()}))
    assert "'strange' is not known" in line
    flags = shlex.split(line[line.index("--q ") :])
    words = dict(zip((flag.removeprefix("--") for flag in flags[::2]), flags[1::2]))
    assert words == dict(q=q, k=k, heads="4,2")
    found, _ = heads_of(tensors, config, words)
    assert torch.equal(found[1][1], Q[1].mT)


def test_the_order_of_a_fused_tensor_is_not_guessed():
    config, shapes = dict(model_type="codegen", n_head=H), {"h.0.attn.c_attn.weight": (3 * C, C)}
    line = one_line(lambda: find_stacks(config, shapes))
    assert "h.{i}.attn.c_attn.weight" in line and "order" in line and "--heads" not in line
