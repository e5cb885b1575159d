"""data/pretrained/layouts.py on names and shapes made by hand: what it finds, and what it refuses in one line."""

import pytest
import torch

from data.pretrained import CheckpointError
from data.pretrained.layouts import find_stacks

LLAMA = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=4)
BOTH = range(2)  # layers


def qk(path, layers=BOTH, q=(32, 32), k=None, weights="q_proj k_proj"):
    """Names and shapes of the weights in some layers; k: as q."""
    return {f"{path.format(i=i)}.{weight}.weight": shape
            for i in layers for weight, shape in zip(weights.split(), (q, k or q))}


def llama(layers=BOTH, q=(32, 32), k=None, prefix="model."):
    return qk(prefix + "layers.{i}.self_attn", layers, q, k)


GEMMA_3N = dict(model_type="gemma3n", vision_config={"model_type": "gemma3n_vision"}, text_config=dict(
    LLAMA, model_type="gemma3n_text", num_hidden_layers=17, head_dim=8, use_bidirectional_attention="vision"))
CLIP = dict(model_type="clip", text_config={}, vision_config=dict(num_attention_heads=4, num_hidden_layers=3),
            vision_config_dict=dict(num_hidden_layers=1))
TEXT = {"text": (True, [0, 1], 4, 4)}
PLAIN = {"": (True, [0, 1], 4, 4)}
GEMMA_3N_NAMES = llama(range(17), prefix="model.language_model.") | qk("model.audio_tower.layers.{i}.self_attn") | {
    "model.vision_tower.timm_model.blocks.3.0.attn.key.proj.weight": (32, 32)}
CLIP_VISION = qk("vision_model.encoder.layers.{i}.self_attn", [0], (768, 768))
UNKNOWN_RULE = LLAMA | {"num_hidden_layers": 8, "linear_attn_config": {"head_dim": 8}}
T5 = dict(model_type="t5", num_layers=2, num_heads=4, d_kv=8)
SIGLIP = dict(model_type="siglip", text_config=dict(num_hidden_layers=2, num_attention_heads=4),
              vision_config=dict(num_hidden_layers=2, num_attention_heads=4))

FOUND = {  # config, names; for each stack: causal, layers, query heads, key heads (of the last layer); what is left out
    "the text of old Qwen2-VL files has its sizes at the top": (
        dict(LLAMA, model_type="qwen2_vl", vision_config={"depth": 1, "num_heads": 2}),
        llama() | qk("visual.blocks.{i}.attn", [0], (72, 24), weights="qkv"),
        {"vision": (False, [0], 2, 2)} | TEXT, []),
    "a backbone of timm is no stack, and usually 15 layers of Gemma 3n take the keys of others": (
        GEMMA_3N, GEMMA_3N_NAMES, TEXT, ["audio_tower", "15 of 17 layers, which take the keys of earlier ones"]),
    "the audio tower of Gemma, which scales its queries by the dimension, is left out by name": (
        dict(model_type="gemma4", text_config=LLAMA, audio_config={"model_type": "gemma4_audio"}),
        llama(prefix="model.language_model.") | qk("model.audio_tower.layers.{i}.self_attn")
        | {"model.audio_tower.layers.0.self_attn.per_dim_scale": (8,)}, TEXT, ["audio_tower"]),
    "CLIP's parts may name no model_type, and vision_config_dict of early files replaces vision_config": (
        CLIP, CLIP_VISION | qk("text_model.encoder.layers.{i}.self_attn", range(12), (512, 512)),
        {"vision": (False, [0], 12, 12), "text": (True, [*range(12)], 8, 8)}, []),
    "a part that is not in the files": (
        CLIP, CLIP_VISION, {"vision": (False, [0], 12, 12)}, ["no attention of the text is in these files"]),
    "a side that is not in the files": (
        T5, qk("encoder.block.{i}.layer.0.SelfAttention", weights="q k"), {"encoder": (False, [0, 1], 4, 4)},
        ["the decoder is not in these files"]),
    "layers that predict further tokens, by their name": (
        LLAMA, llama() | llama([0], prefix="mtp.") | qk("model.mtp_block.{i}.self_attn", [0]), PLAIN,
        ["layers that predict tokens"]),
    "by their number, and told once if both are there": (
        LLAMA | {"num_nextn_predict_layers": 1}, llama(range(3)) | llama([0], prefix="mtp."), PLAIN,
        ["layers that predict tokens"]),
    "cross-attention in layers of its own, as in Mllama": (
        LLAMA | {"num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
        llama([0, 2]) | qk("model.layers.{i}.cross_attn", [1, 3]), {"": (True, [0, 2], 4, 4)},
        ["2 of 4 layers, which have no self-attention with a softmax", "cross-attention"]),
    "attention that pools tokens: in SigLIP a query that is learned looks at all tokens of the last layer": (
        SIGLIP, qk("text_model.encoder.layers.{i}.self_attn") | qk("vision_model.encoder.layers.{i}.self_attn")
        | {"vision_model.head.attention.in_proj_weight": (96, 32)},
        {"text": (False, [0, 1], 4, 4), "vision": (False, [0, 1], 4, 4)}, ["attention that pools tokens"]),
    "by a rule that is not known, layers with queries and keys are scored; Kimi's others have queries, too": (
        UNKNOWN_RULE, llama([3, 7]) | {f"model.layers.{i}.self_attn.q_proj.weight": (32, 32) for i in (0, 1)},
        {"": (True, [3, 7], 4, 4)}, ["6 of 8 layers, which have no queries and keys"]),
    "by such a rule, all layers": (UNKNOWN_RULE, llama(range(8)), {"": (True, [*range(8)], 4, 4)}, []),
    **{f"a causal model trained on without its mask is neither, as {keys} says": (
        LLAMA | keys, llama(), {"": (None, [0, 1], 4, 4)}, []) for keys in (
        {"is_causal": False}, {"architectures": ["LlamaBidirectionalModel"]}, {"architectures": ["LlamaBiForMNTP"]},
        {"architectures": ["LlamaEncoderModel"]}, {"is_decoder": False}, {"bidirectional": True})},
    "LTG-BERT as its authors save it": (
        LLAMA | {"model_type": "ltgbert"}, qk("transformer.layers.{i}.attention", q=(64, 32), weights="in_proj_qk")
        | {f"transformer.layers.0.attention.{name}": (32, 32) for name in (
            "in_proj_v.weight", "in_proj_v.bias", "out_proj.weight", "post_layer_norm.weight", "position_indices")},
        {"": (False, [0, 1], 4, 4)}, []),
    "the image tower of AIMv2 alone, with its pooling head": (
        LLAMA | {"model_type": "aimv2_vision_model"}, qk("encoder.layers.{i}.attention")
        | {"head.k_proj.weight": (32, 32), "head.v_proj.weight": (32, 32)}, {"": (False, [0, 1], 4, 4)}, []),
    "a bias and an adapter elsewhere change no query or key": (
        LLAMA, llama() | {"model.layers.0.mlp.down_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.v_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.rotary_emb.inv_freq": (4,),
                          "model.layers.0.self_attn.q_proj.bias": (32,)}, PLAIN, []),
}


@pytest.mark.parametrize("config, names, stacks, left_out", FOUND.values(), ids=FOUND)
def test_what_is_found_and_what_is_told_to_be_left_out(config, names, stacks, left_out):
    meta = {name: torch.empty(shape, device="meta") for name, shape in names.items()}
    seen = {}
    found, told = find_stacks(config, names)
    for layer in found:
        w_q, w_k = layer.heads(meta)
        _, before, *_ = seen.get(layer.stack, (layer.causal, []))
        seen[layer.stack] = (layer.causal, [*before, layer.index], len(w_q), len(w_k))
    assert seen == stacks and told == left_out


@pytest.mark.parametrize("keys, layers", [
    ({"layer_types": ["linear_attention", "full_attention"] * 5}, [1, 3, 5, 7]),  # the last two predict further tokens
    ({"attn_type_list": [0, 0, 0, 1] * 2}, [3, 7]),  # MiniMax
    ({"full_attention_interval": 4}, [3, 7]),  # Qwen3-Next
    ({"attn_layer_period": 4, "attn_layer_offset": 1}, [1, 5]),  # Jamba
    ({"full_attn_idxs": [2, 5]}, [2, 5]), ({"attn_layer_indices": [2, 5]}, [2, 5]),  # LFM2, Bamba
    ({"linear_attn_config": {"full_attn_layers": [4, 8]}}, [3, 7]),  # Kimi counts from 1
    ({"cross_attention_layers": [0, 1, 2, 4, 5, 6]}, [3, 7]),  # Mllama
    ({"hybrid_override_pattern": "M-M*M-E*"}, [3, 7]),  # Nemotron-H
])
def test_the_config_says_which_layers_have_softmax_attention_and_each_of_them_is_there(keys, layers):
    config = LLAMA | {"num_hidden_layers": 8} | keys
    found, left_out = find_stacks(config, llama(layers))
    assert [(layer.stack, layer.index) for layer in found] == [("", i) for i in layers]
    assert left_out == [f"{8 - len(layers)} of 8 layers, which have no self-attention with a softmax"]
    for lost in layers:
        with pytest.raises(CheckpointError, match=f"layer {lost} missing: get all files.*layer_types"):
            find_stacks(config, llama(i for i in layers if i != lost))


# ---- what is refused ------------------------------------------------------------------------------------------------

C_ATTN = qk("h.{i}.attn", BOTH, (96, 32), weights="c_attn")
Q_PROJ = "model.layers.0.self_attn.q_proj"

QWEN_3 = LLAMA | dict(model_type="qwen3", num_hidden_layers=6)
VIT = dict(model_type="vit", num_hidden_layers=2, num_attention_heads=4)
REFUSED = [  # config, names, what is said
    # After a merge in depth, or an edit of kinds: layers with weights of q and k, and no attention.
    (QWEN_3 | {"layer_types": ["full_attention"] * 4}, llama(range(6)), "fewer kinds than layers, 4 for 6"),
    *[(QWEN_3 | {"layer_types": ["full_attention", kind] * 3}, llama(range(6)),
       "layer 1, 3, 5 has weights of q and k, and no attention by its kind")
      for kind in ("moe", "linear_attention", "conv")],
    # The names that a file has, and those of a state_dict of transformers 5, in one.
    (VIT, qk("encoder.layer.{i}.attention.attention", weights="query key") | qk("layers.{i}.attention"),
     "layers under two kinds of names"),
    # Every self-attention is named, and no cross-attention.
    ({}, llama() | qk("encoder.layers.{i}.cross_attn"), "no config.json says its type: its queries may be "
     "model.layers.{i}.self_attn.q_proj.weight: score its layers in Python with score_layers"),
    (dict(model_type="mine"), qk("a.{i}.attn", weights="in_proj") | qk("b.{i}.attn", weights="in_proj"),
     "'mine' is not known: its queries may be a.{i}.attn.in_proj.weight, b.{i}.attn.in_proj.weight: score"),
    (LLAMA | dict(num_hidden_layers=1), llama(), "weights of layer 1 as well"),
    (LLAMA | dict(model_type="olmo", num_attention_heads=None), llama(), "no number of heads"),
    (LLAMA | dict(num_key_value_heads=2), llama(), "do not fit"),
    (LLAMA | dict(num_attention_heads=-1), llama(), "do not fit"),
    (LLAMA | dict(quantization_config={"quant_method": "fp8"}, num_hidden_layers=3), llama(),
     "quantised weights .fp8.: .* multiplied by their scales"),
    (dict(LLAMA, model_type="gpt2"), C_ATTN, "do not fit"),  # a Linear where Conv1D should be
    (dict(LLAMA, model_type="gpt_bigcode"), C_ATTN, "do not fit"),  # three heads of everything where k and v have one
    (LLAMA, llama(k=(24, 32)), "do not fit"),  # 4 query heads for 3 key heads
    (LLAMA, llama(q=(0,), k=(32, 32)), "do not fit"),  # ZeRO-3
    (LLAMA, {"lm_head.weight": (50, 32)}, "no q and k weights"),
    # A second tower, whatever it is called, and however its weights are.
    (LLAMA, llama() | llama(prefix="teacher."), "under each of"),
    *[(LLAMA, llama() | qk("cross_encoder.blocks.{i}.attn", weights=weights), "no known place for cross_encoder")
      for weights in ("query key", "qkv", "in_proj")],
    # The tower has only layers that the config leaves out, as if they predicted further tokens.
    (LLAMA, llama() | llama([2, 3], prefix="tower."), "under each of"),
    (LLAMA, llama() | {Q_PROJ: (32, 32)}, "have the same number"),
    # Quantised weights, adapters, parametrizations, masks, scales: in the module of a weight, in its block, around it.
    (LLAMA, {name.replace("q_proj", "q_proj.base_layer"): shape for name, shape in llama().items()},
     "q_proj of layer 0, 1 missing"),
    *[(LLAMA, llama() | {f"{Q_PROJ}{name}": (8, 32)}, f"q_proj.* lies beside a query or key.*: {remedy}")
      for remedy, tensors in {"merge the adapter.*merge_and_unload": ".lora_A.default.weight _lora.down.weight",
                              "merge the two.*prune.*remove_param": ".weight_orig .weight_mask",
                              "if the weights are quantised": ".qweight .weight_scale .weight_scale_inv .g_idx .scales"
                              }.items() for name in tensors.split()],
    *[(LLAMA, llama() | {f"model.layers.0.self_attn.{name}": (8, 32)}, "may change it")
      for name in ("delta.weight", "per_dim_scale")],
    (LLAMA, llama() | {"lora.model.layers.0.self_attn.q_proj.a.weight": (8, 32)}, "no known place"),
    (dict(LLAMA, model_type="hf_olmo"), qk("blocks.{i}", q=(96, 32), weights="att_proj")  # in the layer itself
     | {"blocks.0.att_proj_delta": (8, 32)}, "may change it"),
]


@pytest.mark.parametrize("config, names, message", REFUSED)
def test_what_is_not_certain_is_refused_in_one_line(config, names, message):
    with pytest.raises(CheckpointError, match=message.replace("{", r"\{")) as error:
        find_stacks(config, names)
    assert "\n" not in str(error.value)
