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
GEMMA_4 = dict(LLAMA, model_type="gemma4_text", layer_types=["sliding_attention", "full_attention"], head_dim=8,
               global_head_dim=16, num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True)
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
CLIP = dict(model_type="clip", text_config={}, vision_config=dict(num_attention_heads=4, num_hidden_layers=3),
            vision_config_dict=dict(num_hidden_layers=1))
TEXT = {"text": (True, 2, 4, 4)}

BERT = dict(model_type="bert", num_hidden_layers=2, num_attention_heads=4, hidden_size=32)
OURS = dict(model_type="train.py-checkpoint", n_layer=2, n_head=4, causal=True)
BLOCKS = qk("blocks.{i}.attn", weights="q k")  # of OURS

FOUND = {  # config, names; of each stack: causal, layers, query heads, key heads (of the last layer); notes, if any
    "the text of old Qwen2-VL files has its sizes at the top": (
        dict(LLAMA, model_type="qwen2_vl", vision_config={"depth": 1, "num_heads": 2}),
        llama() | qk("visual.blocks.{i}.attn", [0], (72, 24), weights="qkv"), {"vision": (False, 1, 2, 2)} | TEXT),
    "a backbone of timm is no stack, and usually 15 layers of Gemma 3n take the keys of others": (
        GEMMA_3N, llama(range(17), prefix="model.language_model.")
        | {"model.vision_tower.timm_model.blocks.3.0.attn.key.proj.weight": (32, 32)}, TEXT,
        ["its vision has no queries and keys here", "15 layers with the keys of an earlier one are left out"]),
    "the audio tower of Gemma, which scales its queries by the dimension, is left out by name": (
        dict(model_type="gemma4", text_config=LLAMA, audio_config={"model_type": "gemma4_audio"}),
        llama(prefix="model.language_model.") | qk("model.audio_tower.layers.{i}.self_attn")
        | {"model.audio_tower.layers.0.self_attn.per_dim_scale": (8,)}, TEXT,
        ["its audio_tower is left out", "its audio has no queries and keys here"]),
    "CLIP's parts may name no model_type, and vision_config_dict of early files replaces vision_config": (
        CLIP, qk("vision_model.encoder.layers.{i}.self_attn", [0], (768, 768))
        | qk("text_model.encoder.layers.{i}.self_attn", range(12), (512, 512)),
        {"vision": (False, 1, 12, 12), "text": (True, 12, 8, 8)}),
    "in a layer some heads may be pruned": (
        BERT | {"pruned_heads": {"1": [0, 2, 3]}},
        qk("layer.{i}.attention.self", [0], weights="query key")
        | qk("layer.{i}.attention.self", [1], (8, 32), weights="query key"), {"": (False, 2, 1, 1)}),
    "the positions of ours have weights of their own": (
        OURS, BLOCKS | qk("blocks.{i}.attn", weights="pos_q pos_k") | qk("blocks.{i}.attn", weights="v proj"),
        {"": (True, 2, 4, 4)}),
    "layers of Gemma 4 that attend to everything have other heads": (
        GEMMA_4, llama([0], k=(16, 32)) | llama([1], (64, 32), (16, 32)), {"": (True, 2, 4, 1)}),
    "layers that predict further tokens are left out": (
        LLAMA | {"num_nextn_predict_layers": 1},
        llama(range(3)) | llama([0], prefix="mtp.") | qk("model.mtp_block.{i}.self_attn", [0]),
        {"": (True, 2, 4, 4)}, ["its mtp is left out", "its mtp_block is left out"]),
    "a causal model trained on without its mask is neither": (
        LLAMA | {"is_causal": False}, llama(), {"": (None, 2, 4, 4)}),
    "as the name of its architecture may say": (
        LLAMA | {"architectures": ["LlamaBidirectionalModel"]}, llama(), {"": (None, 2, 4, 4)}),
    "nor is the text of PaliGemma, whose first files do not say so": (
        dict(model_type="paligemma", text_config=LLAMA), llama(), {"text": (None, 2, 4, 4)}),
    "quantised experts leave the attention readable": (
        dict(LLAMA, model_type="gpt_oss", quantization_config=MXFP4),
        llama() | {"model.layers.0.mlp.experts.gate_up_proj_blocks": (4, 32, 2, 16)}, {"": (True, 2, 4, 4)}),
    "a bias and an adapter elsewhere change no query or key": (
        LLAMA, llama() | {"model.layers.0.mlp.down_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.v_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.rotary_emb.inv_freq": (4,),
                          "model.layers.0.self_attn.q_proj.bias": (32,)}, {"": (True, 2, 4, 4)}),
}


@pytest.mark.parametrize("config, names, stacks, notes", [(*case, [])[:4] for case in FOUND.values()], ids=FOUND)
def test_what_is_found(config, names, stacks, notes):
    meta = {name: torch.empty(shape, device="meta") for name, shape in names.items()}
    seen = {}
    found, told = find_stacks(config, names)
    for stack in found:
        assert [layer.index for layer in stack.layers] == [*range(len(stack.layers))]
        w_q, w_k = stack.layers[-1].heads(meta)
        seen[stack.name] = (stack.causal, len(stack.layers), len(w_q), len(w_k))
    assert seen == stacks and told == notes


@pytest.mark.parametrize("keys, layers", [
    ({"layers_block_type": ["mamba", "attention", "conv", "sliding_attention"] * 2}, [1, 3, 5, 7]),
    ({"layer_types": ["linear_attention", "full_attention"] * 5}, [1, 3, 5, 7]),  # the last two predict further tokens
    ({"attn_type_list": [0, 0, 0, 1] * 2}, [3, 7]),  # MiniMax
    ({"hybrid_override_pattern": "M-M*M-E*"}, [3, 7]),  # Nemotron-H
    ({"full_attention_interval": 4}, [3, 7]),  # Qwen3-Next
    ({"attn_layer_period": 4, "attn_layer_offset": 1}, [1, 5]),  # Jamba
    ({"full_attn_idxs": [2, 5]}, [2, 5]), ({"attn_layer_indices": [2, 5]}, [2, 5]),  # LFM2, Bamba
    ({"linear_attn_config": {"full_attn_layers": [4, 8]}}, [3, 7]),  # Kimi, from 1 on
    ({"cross_attention_layers": [0, 3, 6]}, [1, 2, 4, 5, 7]),  # of Llama 3.2, to images
    ({"num_hidden_groups": 2}, [0, 1]),  # ALBERT
])
def test_the_config_says_which_layers_have_softmax_attention_and_each_of_them_is_there(keys, layers):
    config = LLAMA | {"num_hidden_layers": 8} | keys
    [stack], _ = find_stacks(config, llama(layers))
    assert [layer.index for layer in stack.layers] == layers
    for lost in layers:
        with pytest.raises(CheckpointError, match=f"layer {lost} missing: get all files.*layer_types"):
            find_stacks(config, llama(i for i in layers if i != lost))


# ---- what is refused ------------------------------------------------------------------------------------------------

C_ATTN = qk("h.{i}.attn", BOTH, (96, 32), weights="c_attn")
Q_PROJ = "model.layers.0.self_attn.q_proj"

CHANGED_CONFIGS = [  # in that of Llama
    (dict(model_type=None), "no config.json says its type: "),
    (dict(model_type="llava", text_config={}), "'llava_text' is not known"),
    (dict(model_type="swin", num_attention_heads=None, num_heads=[2, 4], depths=[1, 1]),
     "'swin' is not known: name its weights"),
    (dict(num_hidden_layers=1), "weights of layer 1 as well"),
    (dict(model_type="olmo", num_attention_heads=None), "no number of heads"),
    (dict(model_type="olmo", num_hidden_layers=None), "no number of layers"),
    (dict(num_kv_shared_layers=2), "no layer has queries and keys of its own"),
    (dict(num_key_value_heads=2), "do not fit"),
    (dict(num_attention_heads="4"), "num_attention_heads is '4', expected int"),
    (dict(layer_types=[[1], None]), "cannot be read"),
    (dict(quantization_config={"quant_method": "fp8"}, num_hidden_layers=3), "quantised weights .fp8.: .*FP8: mult"),
    (dict(num_attention_heads=-1), "is -1, expected"), (dict(num_hidden_layers=10**9), "is 1000000000, expected"),
]
CHANGED_TENSORS = [  # of Llama
    ({"lm_head.weight": (50, 32)}, "no q and k weights"),
    ({f"{Q_PROJ}.base_layer.weight": (32, 32)}, "no q and k weights"),  # all of them
    # A second tower, whatever it is called, and however its weights are.
    *[(llama() | llama(prefix=prefix), "under each of") for prefix in ("teacher.", "cross_encoder.", "vqmodel.")],
    *[(llama() | qk("cross_encoder.blocks.{i}.attn", weights=weights), "no known place for cross_encoder")
      for weights in ("query key", "to_q to_k", "qkv", "Wq Wk", "linear_q linear_k", "in_proj", "c_attn", "wqkv",
                      "query_key_value", "q_proj.x k_proj.x")],
    # Of it only layers that the config leaves out, as if they predicted further tokens.
    (llama() | llama([2, 3], prefix="tower."), "under each of"),
    (llama() | {Q_PROJ: (32, 32)}, "have the same number"),
    *[({name.replace("q_proj", f"q_proj.{wrapped}"): shape for name, shape in llama().items()},
       "q_proj of layer 0, 1 missing")
      for wrapped in ("base_layer", "parametrizations")],
    (llama() | qk("model.layers.0.other", [0]), "no known place for model.layers.0.other"),
    (llama(k=(24, 32)), "do not fit"),  # 4 query heads for 3 key heads
    (llama(k=(32, 48)), "do not fit"),
    *[(llama(q=(n,), k=(32, 32)), "is no matrix, but a piece") for n in (0, 1)],  # ZeRO-3
    # Quantised weights, adapters, parametrizations, masks, scales: in the module of a weight, in its block, around it.
    *[(llama() | {f"{Q_PROJ}{name}": (8, 32)}, "q_proj.* lies beside .*merge_and_unload.*prune.*remove_param")
      for name in (".qweight", ".weight_scale_inv", ".weight._data", ".lora_A.default.weight", ".base_layer.weight",
                   "_lora.down.weight", ".weight_orig", ".weight_mask", ".parametrizations.weight.original0")],
    *[(llama() | {f"model.layers.0.self_attn.{name}": (8, 32)}, "may change it")
      for name in ("lora_q_a", "delta.weight", "mask_adapter.weight", "per_dim_scale", "q_norm.lora_A", "relation_q")],
    *[(llama() | {f"{name}.weight": (8, 32)}, "may change it|no known place")
      for name in ("model.layers.0.q_adapter", "model.layers.1.lora_k.a", "lora.model.layers.0.self_attn.q_proj.a")],
]


@pytest.mark.parametrize("config, names, message", [
    *[(LLAMA | change, llama(), message) for change, message in CHANGED_CONFIGS],
    *[(LLAMA, names, message) for names, message in CHANGED_TENSORS],
    (dict(LLAMA, model_type="gpt2"), C_ATTN, "do not fit"),  # a Linear where Conv1D should be
    (dict(LLAMA, model_type="bert"), qk("layer.{i}.attention.self", k=(16, 32), weights="query key"), "do not fit"),
    ({}, llama(), "no config.json says its type: name its weights with --q, --k and --heads"),
    (OURS, BLOCKS | {"blocks.1.attn.gate.weight": (32, 32)}, "may change it"),
    (dict(LLAMA, model_type="gpt_bigcode"), C_ATTN, "do not fit"),  # three heads of everything where k and v have one
])
def test_what_is_not_certain_is_refused_in_one_line(config, names, message):
    with pytest.raises(CheckpointError, match=message) as error:
        find_stacks(config, names)
    assert "\n" not in str(error.value)
