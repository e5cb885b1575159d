"""data/pretrained/layouts.py on names and shapes made by hand: what it finds, and what it refuses in one line."""

import pytest
import torch

from data.pretrained.files import CheckpointError
from data.pretrained.layout_table import TABLE
from data.pretrained.layouts import BESIDE, find_stacks

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
LAGUNA = dict(LLAMA, model_type="laguna", head_dim=8, num_key_value_heads=2, num_attention_heads_per_layer=[4, 6])
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
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
    "CLIP's parts may name no model_type, and vision_config_dict of early files replaces vision_config": (
        CLIP, qk("vision_model.encoder.layers.{i}.self_attn", [0], (768, 768))
        | qk("text_model.encoder.layers.{i}.self_attn", range(12), (512, 512)),
        {"vision": (False, 1, 12, 12), "text": (True, 12, 8, 8)}),
    "an encoder may be there without its decoder": (
        dict(model_type="t5", num_layers=2, num_heads=4, d_kv=6),
        qk("encoder.block.{i}.layer.0.SelfAttention", BOTH, (24, 32), weights="q k"), {"encoder": (False, 2, 4, 4)}),
    "the number of heads may be one for each layer": (
        LAGUNA, llama([0], k=(16, 32)) | llama([1], (48, 32), (16, 32)), {"": (True, 2, 6, 2)}),
    "layers of Gemma 4 that attend to everything have other heads": (
        GEMMA_4, llama([0], k=(16, 32)) | llama([1], (64, 32), (16, 32)), {"": (True, 2, 4, 1)}),
    "layers that predict further tokens are left out": (
        LLAMA | {"num_nextn_predict_layers": 1}, llama(range(3)) | llama([0], prefix="mtp."),
        {"": (True, 2, 4, 4)}),
    "a causal model trained on without its mask is neither": (
        LLAMA | {"is_causal": False}, llama(), {"": (None, 2, 4, 4)}),
    "nor is the text of PaliGemma, whose first files do not say so": (
        dict(model_type="paligemma", text_config=LLAMA), llama(), {"text": (None, 2, 4, 4)}),
    "quantised experts leave the attention readable": (
        dict(LLAMA, model_type="gpt_oss", quantization_config=MXFP4),
        llama() | {"model.layers.0.mlp.experts.gate_up_proj_blocks": (4, 32, 2, 16)}, {"": (True, 2, 4, 4)}),
    "a bias and an adapter elsewhere change no query or key": (
        LLAMA, llama() | {"model.layers.0.mlp.down_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.v_proj.lora_A.weight": (8, 32),
                          "model.layers.0.self_attn.q_proj.bias": (32,),
                          "model.layers.0.self_attn.q_proj.input_scale": ()}, {"": (True, 2, 4, 4)}),
}


@pytest.mark.parametrize("config, names, stacks", FOUND.values(), ids=FOUND)
def test_what_is_found(config, names, stacks):
    meta = {name: torch.empty(shape, device="meta") for name, shape in names.items()}
    seen = {}
    for stack in find_stacks(config, names):
        layers = [layer.index for layer in stack.layers]
        w_q, w_k = stack.layers[-1].heads(meta)
        n = len(layers) if layers == [*range(len(layers))] else layers  # numbered from 0, or not
        seen[stack.name] = (stack.causal, n, len(w_q), len(w_k))
    assert seen == stacks


# ---- what is refused ------------------------------------------------------------------------------------------------

C_ATTN = qk("h.{i}.attn", BOTH, (96, 32), weights="c_attn")
Q_PROJ = "model.layers.0.self_attn.q_proj"

CHANGED_CONFIGS = [  # in that of Llama
    (dict(model_type=None), "no config.json says its type: "),
    (dict(model_type="llava", text_config={}), "'llava_text' is not known"),
    (dict(model_type="swin", num_attention_heads=None, num_heads=[2, 4]), "'swin' is not known.*--q.*--heads H,HKV"),
    (dict(num_hidden_layers=3), "3 attention layers in config.json, q_proj of layer 2 missing"),
    (dict(num_hidden_layers=1), "1 attention layers in config.json, and all weights of layer 1 as well"),
    (dict(model_type="olmo", num_attention_heads=None), "no number of heads"),
    (dict(model_type="olmo", num_hidden_layers=None), "no number of layers"),
    (dict(num_kv_shared_layers=2), "no layer has queries and keys of its own"),
    (dict(num_key_value_heads=2), "do not fit"),
    (dict(head_dim=16), "do not fit"),
    (dict(num_attention_heads=3), "do not fit"),
    (dict(num_attention_heads="4"), "num_attention_heads is '4', expected int"),
    (dict(layer_types=[[1], None]), "makes no sense"),
    *[({key: 10**9}, "is 1000000000, expected") for key in ("num_hidden_layers", "num_nextn_predict_layers")],
]
CHANGED_TENSORS = [  # of Llama
    ({"lm_head.weight": (50, 32)}, "no q and k weights"),
    (llama() | llama(prefix="teacher."), "model. and teacher."),
    (llama() | {"model.layers.0.other.q_proj.weight": (32, 32)}, "no known place for model.layers.0.other"),
    (llama() | {"model.vision.blocks.0.attn.qkv.weight": (96, 32)}, "no known place for model.vision"),
    (llama(q=(24, 32)), "do not fit"),  # pruned heads
    (llama(k=(24, 32)), "do not fit"),  # 4 query heads for 3 key heads
    (llama(k=(32, 48)), "do not fit"),
    (llama() | {f"{Q_PROJ}.qweight": (4, 32)}, "quantised weights .*qweight"),
    *[(llama() | {f"{Q_PROJ}.{part}": (32,)}, f"quantised weights .*{part}.*score the model it was made from")
      for part in ("SCB", "qzeros", "g_idx", "weight_packed", "weight_shape", "codes", "codebooks",
                   "biases", "_weight_qdata")],  # the last two are of MLX and torchao
    *[(llama() | {f"{Q_PROJ}{beside}": (8, 32)}, "q_proj.* lies beside .*merge_and_unload.*prune.*remove_param")
      for beside in (".lora_A.default.weight", ".base_layer.weight", "_lora.down.weight", ".weight_orig",
                     ".weight_mask", ".parametrizations.weight.original0")],
]


@pytest.mark.parametrize("config, names, message", [
    *[(LLAMA | change, llama(), message) for change, message in CHANGED_CONFIGS],
    *[(LLAMA, names, message) for names, message in CHANGED_TENSORS],
    (dict(LLAMA, model_type="gpt2"), C_ATTN, "do not fit"),  # a Linear where Conv1D should be
    (dict(LLAMA, model_type="bert"), qk("layer.{i}.attention.self", k=(16, 32), weights="query key"), "do not fit"),
    ({}, llama(), "no config.json.*--q 'model.layers.{i}.self_attn.q_proj.weight' --k .*--heads H,HKV"),
    (dict(LLAMA, model_type="gpt_bigcode"), C_ATTN, "do not fit"),  # three heads of everything where k and v have one
])
def test_what_is_not_certain_is_refused_in_one_line(config, names, message):
    with pytest.raises(CheckpointError, match=message) as error:
        find_stacks(config, names)
    assert "\n" not in str(error.value)


def test_what_lies_beside_the_weights_of_any_row_is_noticed():
    """So a new row whose weights have new names needs these in QK of layouts.py."""
    for weight in {weight for rows in TABLE.values() for row in rows for weight in row.weights}:
        assert BESIDE.search(f"layers.0.{weight}.lora_A.weight"), weight
