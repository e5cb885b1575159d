"""data/pretrained/layouts.py on names and shapes made by hand: what it finds, and what it refuses in one line."""

import pytest
import torch

from analyze.data.pretrained.checkpoint import CheckpointError
from analyze.data.pretrained.layouts import find_stacks

LLAMA = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=4)
BOTH = range(2)  # layers


def qk(path, layers=BOTH, q=(32, 32), k=None, weights="q_proj k_proj"):
    """Names and shapes of the weights in some layers; k: as q."""
    return {f"{path.format(i=i)}.{weight}.weight": shape
            for i in layers for weight, shape in zip(weights.split(), (q, k or q))}


def llama(layers=BOTH, q=(32, 32), k=None, prefix="model."):
    return qk(prefix + "layers.{i}.self_attn", layers, q, k)


# ---- what is found --------------------------------------------------------------------------------------------------

GEMMA_3N = dict(model_type="gemma3n", vision_config={"model_type": "gemma3n_vision"}, text_config=dict(
    LLAMA, model_type="gemma3n_text", num_hidden_layers=17, head_dim=8, use_bidirectional_attention="vision"))
CLIP = dict(model_type="clip", text_config={}, vision_config=dict(num_attention_heads=4, num_hidden_layers=3),
            vision_config_dict=dict(num_hidden_layers=1))
TEXT = {"text": (True, 2, 4, 4)}

FOUND = {  # config, names; of each stack: causal, layers, query heads, key heads (of the last layer)
    "the text of old Qwen2-VL files has its sizes at the top": (
        dict(LLAMA, model_type="qwen2_vl", vision_config={"depth": 1, "num_heads": 2}),
        llama() | qk("visual.blocks.{i}.attn", [0], (72, 24), weights="qkv"), {"vision": (False, 1, 2, 2)} | TEXT),
    "a backbone of timm is no stack, and usually 15 layers of Gemma 3n take the keys of others": (
        GEMMA_3N, llama(range(17), prefix="model.language_model.")
        | {"model.vision_tower.timm_model.blocks.3.0.attn.key.proj.weight": (32, 32)}, TEXT),
    "the audio tower of Gemma, which scales its queries by the dimension, is left out by name": (
        dict(model_type="gemma4", text_config=LLAMA, audio_config={"model_type": "gemma4_audio"}),
        llama(prefix="model.language_model.") | qk("model.audio_tower.layers.{i}.self_attn")
        | {"model.audio_tower.layers.0.self_attn.per_dim_scale": (8,)}, TEXT),
    "CLIP's parts may name no model_type, and vision_config_dict of early files replaces vision_config": (
        CLIP, qk("vision_model.encoder.layers.{i}.self_attn", [0], (768, 768))
        | qk("text_model.encoder.layers.{i}.self_attn", range(12), (512, 512)),
        {"vision": (False, 1, 12, 12), "text": (True, 12, 8, 8)}),
    "layers that predict further tokens are left out": (
        LLAMA | {"num_nextn_predict_layers": 1},
        llama(range(3)) | llama([0], prefix="mtp.") | qk("model.mtp_block.{i}.self_attn", [0]),
        {"": (True, 2, 4, 4)}),
    "a causal model trained on without its mask is neither": (
        LLAMA | {"is_causal": False}, llama(), {"": (None, 2, 4, 4)}),
    "as the name of its architecture may say": (
        LLAMA | {"architectures": ["LlamaBidirectionalModel"]}, llama(), {"": (None, 2, 4, 4)}),
    "a bias and an adapter elsewhere change no query or key": (
        LLAMA, llama() | {"model.layers.0.mlp.down_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.v_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.rotary_emb.inv_freq": (4,),
                          "model.layers.0.self_attn.q_proj.bias": (32,)}, {"": (True, 2, 4, 4)}),
}


@pytest.mark.parametrize("config, names, stacks", FOUND.values(), ids=FOUND)
def test_what_is_found(config, names, stacks):
    meta = {name: torch.empty(shape, device="meta") for name, shape in names.items()}
    seen = {}
    found = find_stacks(config, names)
    for stack in found:
        assert [layer.index for layer in stack.layers] == [*range(len(stack.layers))]
        w_q, w_k = stack.layers[-1].heads(meta)
        seen[stack.name] = (stack.causal, len(stack.layers), len(w_q), len(w_k))
    assert seen == stacks


@pytest.mark.parametrize("keys, layers", [
    ({"layer_types": ["linear_attention", "full_attention"] * 5}, [1, 3, 5, 7]),  # the last two predict further tokens
    ({"attn_type_list": [0, 0, 0, 1] * 2}, [3, 7]),  # MiniMax
    ({"hybrid_override_pattern": "M-M*M-E*"}, [3, 7]),  # Nemotron-H
])
def test_the_config_says_which_layers_have_softmax_attention_and_each_of_them_is_there(keys, layers):
    config = LLAMA | {"num_hidden_layers": 8} | keys
    [stack] = find_stacks(config, llama(layers))
    assert [layer.index for layer in stack.layers] == layers
    for lost in layers:
        with pytest.raises(CheckpointError, match=f"layer {lost} missing: get all files.*layer_types"):
            find_stacks(config, llama(i for i in layers if i != lost))


def test_where_the_config_has_a_rule_for_layers_those_with_queries_and_keys_are_scored():
    config = LLAMA | {"num_hidden_layers": 8, "full_attention_interval": 4}  # Qwen3-Next
    others = {f"model.layers.{i}.self_attn.q_proj.weight": (32, 32) for i in (0, 1)}  # Kimi's layers have these, too
    [stack] = find_stacks(config, llama([3, 7]) | others)
    assert [layer.index for layer in stack.layers] == [3, 7]


# ---- what is refused ------------------------------------------------------------------------------------------------

C_ATTN = qk("h.{i}.attn", BOTH, (96, 32), weights="c_attn")
Q_PROJ = "model.layers.0.self_attn.q_proj"

REFUSED = [  # config, names, what is said
    ({}, llama(), "no config.json says its type: name its weights .*q_proj.* with --q"),
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
    # Of it only layers that the config leaves out, as if they predicted further tokens.
    (LLAMA, llama() | llama([2, 3], prefix="tower."), "under each of"),
    (LLAMA, llama() | {Q_PROJ: (32, 32)}, "have the same number"),
    # Quantised weights, adapters, parametrizations, masks, scales: in the module of a weight, in its block, around it.
    (LLAMA, {name.replace("q_proj", "q_proj.base_layer"): shape for name, shape in llama().items()},
     "q_proj of layer 0, 1 missing"),
    *[(LLAMA, llama() | {f"{Q_PROJ}{name}": (8, 32)}, "q_proj.* lies beside .*merge_and_unload.*prune.*remove_param")
      for name in (".qweight", ".lora_A.default.weight", "_lora.down.weight", ".weight_orig", ".weight_scale",
                   ".weight_scale_inv", ".g_idx", ".scales")],
    *[(LLAMA, llama() | {f"model.layers.0.self_attn.{name}": (8, 32)}, "may change it")
      for name in ("delta.weight", "per_dim_scale")],
    (LLAMA, llama() | {"lora.model.layers.0.self_attn.q_proj.a.weight": (8, 32)}, "no known place"),
    (dict(LLAMA, model_type="hf_olmo"), qk("blocks.{i}", q=(96, 32), weights="att_proj")  # in the layer itself
     | {"blocks.0.att_proj_delta": (8, 32)}, "may change it"),
]


@pytest.mark.parametrize("config, names, message", REFUSED)
def test_what_is_not_certain_is_refused_in_one_line(config, names, message):
    with pytest.raises(CheckpointError, match=message) as error:
        find_stacks(config, names)
    assert "\n" not in str(error.value)
