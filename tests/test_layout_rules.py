"""data/pretrained/layouts.py on names and shapes made by hand: what it finds, and what it refuses in one line."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import analyze
from data.pretrained import layout_table
from data.pretrained.files import CheckpointError
from data.pretrained.layouts import find_modality, find_stacks, missing_stacks

LLAMA = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=4)


def llama(layers=2, q=(32, 32), k=(32, 32), prefix="model."):
    return {f"{prefix}layers.{i}.self_attn.{name}_proj.weight": shape for i in range(layers)
            for name, shape in (("q", q), ("k", k), ("v", k))}


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def heads(config, tensors):
    [stack] = find_stacks(config, shapes(tensors))
    return stack.layers[0].heads(tensors)


def test_heads_are_views_in_the_dtype_of_the_file():
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in llama().items()}
    w_q, w_k = heads(LLAMA, tensors)
    assert w_q.dtype == w_k.dtype == torch.bfloat16
    assert w_q.data_ptr() == tensors["model.layers.0.self_attn.q_proj.weight"].data_ptr()


def test_sizes_that_a_nested_config_leaves_out_are_those_of_the_class():
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
                                                      "num_hidden_layers": 34}}  # as in google/gemma-3-4b-it
    [stack] = find_stacks(config, llama(34, (2048, 2560), (1024, 2560), "language_model.model."))
    meta = {name: torch.empty(shape, device="meta") for name, shape in llama(34, (2048, 2560), (1024, 2560),
                                                                            "language_model.model.").items()}
    w_q, w_k = stack.layers[33].heads(meta)
    assert (w_q.shape, w_k.shape) == ((8, 2560, 256), (4, 2560, 256))


def test_the_text_of_old_qwen2_vl_files_has_its_sizes_at_the_top():
    config = dict(LLAMA, model_type="qwen2_vl", vision_config={"depth": 1, "num_heads": 2})
    stacks = find_stacks(config, llama() | {"visual.blocks.0.attn.qkv.weight": (72, 24)})
    assert [(s.name, s.causal, len(s.layers)) for s in stacks] == [("vision", False, 1), ("text", True, 2)]


@pytest.mark.parametrize("key", ["block_types", "_block_types"])  # the second in google/recurrentgemma-2b
def test_the_blocks_of_recurrent_gemma_repeat(key):
    names = {f"model.layers.{i}.temporal_block.{w}_proj.weight": (32, 32) for i in (1, 3) for w in "qk"}
    [stack] = find_stacks(dict(LLAMA, model_type="recurrent_gemma", num_hidden_layers=5, **{
        key: ["recurrent", "attention"]}), names)
    assert [layer.index for layer in stack.layers] == [1, 3]


def test_the_parts_of_omni_models_are_parts_of_parts():
    text = dict(LLAMA, model_type="qwen3_omni_moe_text")
    vision = dict(model_type="qwen3_omni_moe_vision_encoder", depth=1, num_heads=2)
    config = dict(model_type="qwen3_omni_moe", thinker_config=dict(text_config=text, vision_config=vision),
                  talker_config=dict(text_config=dict(LLAMA, num_hidden_layers=1), code_predictor_config=LLAMA))
    names = (llama(prefix="thinker.model.") | {"thinker.visual.blocks.0.attn.qkv.weight": (72, 24)}
             | llama(1, prefix="talker.model.") | llama(prefix="talker.code_predictor.model.")
             | llama(prefix="code2wav.pre_transformer."))
    assert {stack.name: (stack.causal, len(stack.layers)) for stack in find_stacks(config, names)} == {
        "vision": (False, 1), "text": (True, 2), "talker.code_predictor": (True, 2), "talker.text": (True, 1)}


def test_the_memory_and_the_mask_decoder_of_sam_2_are_no_stacks():
    vision = dict(model_type="sam2_vision_model", backbone_config=dict(
        model_type="sam2_hiera_det_model", blocks_per_stage=[2, 1], num_attention_heads_per_stage=[2, 4]))
    names = {f"vision_encoder.backbone.blocks.{i}.attn.qkv.weight": shape
             for i, shape in enumerate([(24, 8), (24, 8), (48, 8)])}
    names |= {f"{part}.layers.0.self_attn.{w}_proj.weight": (16, 16) for w in "qk"
              for part in ("memory_attention", "mask_decoder.transformer")}
    stacks = find_stacks(dict(model_type="sam2_video", vision_config=vision), names)
    assert [(stack.name, [layer.index for layer in stack.layers]) for stack in stacks] == [
        ("vision.stage 0", [0, 1]), ("vision.stage 1", [2])]


def test_sam_3_for_films_holds_the_towers_of_its_detector():
    vit = dict(LLAMA, model_type="sam3_vit_model")
    detector = dict(model_type="sam3", text_config=dict(LLAMA, model_type="clip_text_model"),
                    vision_config=dict(model_type="sam3_vision_model", backbone_config=vit))
    tracker = {"model_type": "sam3_tracker_video"}
    config = dict(model_type="sam3_video", detector_config=detector, tracker_config=tracker)
    layers = ["detector_model.vision_encoder.backbone.layers.{i}.attention",
              "detector_model.text_encoder.text_model.encoder.layers.{i}.self_attn",
              "detector_model.detr_decoder.layers.{i}.self_attn", "tracker_model.memory_attention.layers.{i}.self_attn"]
    names = {f"{layer.format(i=i)}.{w}_proj.weight": (32, 32) for layer in layers for i in range(2) for w in "qk"}
    stacks = find_stacks(config, names)
    found = [(stack.name, stack.causal, len(stack.layers)) for stack in stacks]
    assert found == [("vision", False, 2), ("text", True, 2)]
    assert missing_stacks(config, stacks) == []


def test_the_decoder_that_hiera_is_trained_with_is_a_stack():
    config = dict(model_type="hiera", depths=[1], num_heads=[2], decoder_depth=2, decoder_num_heads=4)
    names = {"hiera.encoder.stages.0.layers.0.attn.qkv.weight": (24, 8)}
    decoder = {f"decoder.decoder_block.layers.{i}.attn.qkv.weight": (48, 16) for i in range(2)}
    stacks = find_stacks(config, names | decoder)
    assert [(stack.name, len(stack.layers)) for stack in stacks] == [("stage 0", 1), ("decoder", 2)]
    assert missing_stacks(config, find_stacks(config, names)) == ["decoder"]
    assert missing_stacks(config | {"decoder_depth": None}, find_stacks(config, names)) == []


@pytest.mark.parametrize("config, shapes, n_heads", [  # (query heads, key heads) of each layer, 8 numbers each
    (dict(model_type="openelm", num_transformer_layers=2, num_query_heads=[2, 4], num_kv_heads=[1, 2], head_dim=8), {
        f"transformer.layers.{i}.attn.qkv_proj.weight": (32 * (i + 1), 16) for i in range(2)}, [(2, 1), (4, 2)]),
    (dict(model_type="step3p5", num_hidden_layers=2, num_attention_heads=4, num_attention_groups=2, head_dim=8,
          layer_types=["full_attention"] + 2 * ["sliding_attention"], num_nextn_predict_layers=1,
          attention_other_setting={"attention_type": "sliding_attention", "num_attention_heads": 6}), {
        f"model.layers.{i}.self_attn.{w}_proj.weight": (rows, 16)
        for i, q in enumerate([32, 48, 48]) for w, rows in (("q", q), ("k", 16))}, [(4, 2), (6, 2)])])
def test_the_number_of_heads_may_change_from_layer_to_layer(config, shapes, n_heads):
    [stack] = find_stacks(config, shapes)
    heads = [layer.heads({name: torch.empty(shapes[name]) for name in layer.names}) for layer in stack.layers]
    assert [(len(w_q), len(w_k)) for w_q, w_k in heads] == n_heads
    assert all(w_q.shape[1:] == w_k.shape[1:] == (16, 8) for w_q, w_k in heads)


def test_the_image_tower_of_molmo_2_ends_at_the_deepest_layer_that_is_read():
    config = dict(model_type="molmo2", text_config={}, vit_config=dict(num_hidden_layers=4, num_attention_heads=4),
                  adapter_config={"vit_layers": [-2, -3]})  # of 4 layers the third and the second
    names = {f"model.vision_backbone.image_vit.transformer.resblocks.{i}.attention.w{w}.weight": (32, 32)
             for i in range(3) for w in "qk"}
    [stack] = find_stacks(config, names | {"model.vision_backbone.image_pooling_2d.wq.weight": (32, 64)})
    assert (stack.name, len(stack.layers)) == ("vision", 3)


def test_a_backbone_of_timm_is_no_stack():
    config = dict(model_type="gemma3n", vision_config={"model_type": "gemma3n_vision"}, text_config=dict(
        LLAMA, model_type="gemma3n_text", num_kv_shared_layers=0, head_dim=8))
    backbone = {"model.vision_tower.timm_model.blocks.3.0.attn.key.proj.weight": (32, 32)}
    stacks = find_stacks(config, llama(prefix="model.language_model.") | backbone)
    assert [stack.name for stack in stacks] == ["text"]
    assert missing_stacks(config, stacks) == []


def test_a_part_of_clip_may_name_no_model_type():
    names = {f"{tower}_model.encoder.layers.{i}.self_attn.{w}_proj.weight": (width, width)
             for tower, width in (("text", 512), ("vision", 768)) for i in range(12) for w in "qk"}
    vision, text = find_stacks(dict(model_type="clip", text_config={}, vision_config={}), names)
    meta = {name: torch.empty(shape, device="meta") for name, shape in names.items()}
    assert [len(stack.layers[0].heads(meta)[0]) for stack in (vision, text)] == [12, 8]  # heads


def test_a_backbone_of_the_usual_size_may_leave_it_out():
    names = {f"backbone.encoder.layer.{i}.attention.attention.{w}.weight": (384, 384)
             for i in range(12) for w in ("query", "key")}
    backbone = {"model_type": "dinov2", "hidden_size": 384, "num_attention_heads": 6}  # Depth-Anything-V2-Small-hf
    [stack] = find_stacks(dict(model_type="depth_anything", backbone_config=backbone), names)
    assert (stack.name, len(stack.layers)) == ("backbone", 12)
    with pytest.raises(CheckpointError, match="12 attention layers in config.json"):
        find_stacks(dict(model_type="depth_anything", backbone_config=backbone),
                    {name: shape for name, shape in names.items() if ".11." not in name})


@pytest.mark.parametrize("config, stack, modality", [
    ({}, "vision.stage 0", "vision"), ({}, "image", "vision"), ({}, "backbone.stage 3", "vision"),
    ({}, "text", "language"), ({}, "encoder.vision", "vision"), ({}, "high_res_vision", "vision"),
     ({}, "encoder.text", "language"),
    ({"num_queries": 100}, "decoder", "vision"), ({"image_size": 224}, "", "vision"), ({}, "audio", "audio"),
    ({"encoder_layers": 24}, "encoder", "language"), ({"encoder_layers": 24}, "speech_encoder", "audio"),
    ({"encoder_layers": 24}, "adapter", "audio"), ({}, "t2u_decoder", "audio"), ({}, "coarse_acoustics", "audio"),
    ({"encoder_config": {"num_mel_bins": 80}}, "encoder", "audio"), ({"encoder_config": {}}, "encoder", "language"),
    ({"encoder_config": {"num_mel_bins": 80}}, "text", "language"), ({"conv_stride": [5]}, "", "audio")])
def test_what_a_stack_sees_is_told_by_its_name_or_by_a_key_of_the_config(config, stack, modality):
    assert find_modality(config, stack) == modality


@pytest.mark.parametrize("config, names, missing", [
    (dict(model_type="t5", num_layers=2, num_heads=4, d_kv=6), {
        f"encoder.block.{i}.layer.0.SelfAttention.{w}.weight": (24, 32) for i in range(2) for w in "qkv"}, ["decoder"]),
    (dict(model_type="clip", text_config={}, vision_config=dict(num_hidden_layers=1)), {
        f"vision_model.encoder.layers.0.self_attn.{w}_proj.weight": (768, 768) for w in "qk"}, ["text"]),
    (LLAMA, llama(), []),
    (dict(LLAMA, model_type="wav2vec2-bert"), {
        f"encoder.layers.{i}.self_attn.linear_{w}.weight": (32, 32) for i in range(2) for w in "qk"}, []),
])
def test_a_stack_that_the_file_does_not_hold_is_named(config, names, missing):
    assert missing_stacks(config, find_stacks(config, names)) == missing


def test_the_half_of_an_encoder_decoder_says_what_it_lacks(tmp_path, capsys):
    config = dict(model_type="t5", num_layers=1, num_heads=4, d_kv=6)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({f"encoder.block.0.layer.0.SelfAttention.{w}.weight": torch.randn(24, 32) for w in "qk"},
              tmp_path / "model.safetensors")
    with pytest.raises(SystemExit, match="0"):
        analyze.main(["--hf", str(tmp_path)])
    assert "no weights of its decoder" in capsys.readouterr().err


@pytest.mark.parametrize("kind", sorted(layout_table.CONFIG_DICT))
def test_vision_config_dict_counts_as_transformers_counts_it(kind):
    part = "image" if kind == "flava" else "vision"
    config = {"model_type": kind, "text_config": {}, f"{part}_config": {"num_attention_heads": 4,
              "num_hidden_layers": 3}, f"{part}_config_dict": {"num_hidden_layers": 1}}
    configuration_auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    truth = getattr(configuration_auto.CONFIG_MAPPING[kind](**json.loads(json.dumps(config))), f"{part}_config")
    names = {f"vision_model.encoder.layers.0.self_attn.{w}_proj.weight": (768, 768) for w in "qk"}
    if kind == "flava":
        names = {f"image_model.encoder.layer.0.attention.attention.{w}.weight": (768, 768) for w in ("query", "key")}
    [stack] = find_stacks(config, names)
    w_q, _ = stack.layers[0].heads({name: torch.empty(shape) for name, shape in names.items()})
    assert (len(stack.layers), len(w_q)) == (truth.num_hidden_layers, truth.num_attention_heads) == (1, 12)


def test_layers_that_predict_further_tokens_are_left_out():
    [stack] = find_stacks(LLAMA | {"num_nextn_predict_layers": 1}, llama(3) | llama(1, prefix="mtp."))
    assert [layer.index for layer in stack.layers] == [0, 1]


def test_a_causal_model_trained_on_without_its_mask_is_neither():
    for flag in {"is_causal": False}, {"use_bidirectional_attention": True}:
        assert find_stacks(LLAMA | flag, llama())[0].causal is None


def test_quantised_experts_leave_the_attention_readable():
    config = dict(LLAMA, model_type="gpt_oss", quantization_config={
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    blocks = {"model.layers.0.mlp.experts.gate_up_proj_blocks": (4, 32, 2, 16)}
    assert len(find_stacks(config, llama() | blocks)[0].layers) == 2


NO_Q1 = {name: shape for name, shape in llama().items() if name != "model.layers.1.self_attn.q_proj.weight"}
QKV_PROJ = {f"transformer.h.{i}.attn.qkv_proj.weight": (96, 32) for i in range(2)}
C_ATTN = {f"h.{i}.attn.c_attn.weight": (96, 32) for i in range(2)}


@pytest.mark.parametrize("config, names, message", [
    ({}, llama(), "model_type None is not known .config.json names none; write"),
    (dict(LLAMA, model_type="mamba"), llama(), "'mamba' is not known"),
    (dict(model_type="llava", text_config=dict(LLAMA, model_type="mamba")), llama(), "'mamba' is not known"),
    (dict(model_type="llava", text_config={}), llama(), "'llava_text' is not known"),
    (dict(LLAMA, model_type="jetmoe"), llama(), "'jetmoe' is not known"),  # each token's router chooses its W_q
    (LLAMA, {"lm_head.weight": (50, 32)}, "no q and k weights"),
    (LLAMA, llama(1), r"layers.1.self_attn.q_proj missing"),
    (LLAMA, NO_Q1, r"layers.1.self_attn.q_proj missing"),
    (LLAMA, llama(3), "3 found"),
    (LLAMA, llama() | llama(prefix="teacher."), "model. and teacher."),
    (LLAMA, llama() | {"model.layers.0.other.q_proj.weight": (32, 32)}, "no known place for model.layers.0.other"),
    (LLAMA, llama() | {"model.vision.blocks.0.attn.qkv.weight": (96, 32)}, "no known place for model.vision"),
    (dict(model_type="olmo", num_hidden_layers=2), llama(), "no number of layers or of heads"),
    (dict(LLAMA, num_hidden_layers=None, model_type="bert"), {
        f"encoder.layer.0.attention.self.{w}.weight": (32, 32) for w in ("query", "key")}, "no number of layers"),
    (dict(LLAMA, model_type="jamba", num_hidden_layers=8), llama(8), "1 attention layers in config.json, 8 found"),
    (dict(LLAMA, num_kv_shared_layers=2), llama(), "no layer has queries and keys of its own"),
    (dict(LLAMA, num_key_value_heads=2), llama(), "do not fit"),
    (dict(LLAMA, head_dim=16), llama(), "do not fit"),
    (dict(LLAMA, num_attention_heads=3), llama(), "do not fit"),
    (LLAMA, llama(q=(24, 32)), "do not fit"),  # pruned heads
    (LLAMA, llama(k=(24, 32)), "do not fit"),  # 4 query heads for 3 key heads
    (LLAMA, llama(k=(32, 48)), "do not fit"),
    (LLAMA, llama(q=(32, 32, 1)), "do not fit"),
    (LLAMA, llama(q=(0, 32)), "do not fit"),
    (LLAMA, llama(q=(32, -1)), "make no sense"),
    (dict(LLAMA, num_attention_heads="4"), llama(), "num_attention_heads is '4', expected int"),
    (dict(LLAMA, layer_types=[[1], None]), llama(), "make no sense"),
    (dict(LLAMA, model_type="jamba", attn_layer_period=0), llama(), "make no sense"),
    (dict(LLAMA, model_type="gpt2"), C_ATTN, "do not fit"),  # a Linear where Conv1D should be
    (dict(LLAMA, model_type="gpt_bigcode"), C_ATTN, "do not fit"),  # three heads of everything where k and v have one
    (dict(LLAMA, model_type="codegen", auto_map={"AutoModelForCausalLM": "x"}), QKV_PROJ, "has auto_map only"),
    (dict(LLAMA, model_type="codegen", head_dim=8), QKV_PROJ, "has head_dim only: in 4 or in 8 blocks"),
    *[(dict(LLAMA, model_type="zamba2", layers_block_type=["hybrid"] * 2, **{key: True}), {
        f"layers.{i}.shared_transformer.self_attn.{w}_proj.weight": (64, 64) for i in range(2) for w in "qk"},
       "zamba2: with use_shared_attention_adapter, each layer adds its own part")
      for key in ("use_shared_attention_adapter", "use_shared_attention_lora")],
    (dict(LLAMA, model_type="squeezebert", q_groups=2), {
        f"encoder.layers.{i}.attention.{w}.weight": (32, 8, 1) for i in range(2) for w in ("query", "key")}, "not fit"),
    (dict(LLAMA, quantization_config={"quant_method": "gptq", "bits": 4}), llama(), "quantised weights .gptq"),
    (dict(LLAMA, quantization={"bits": 4}), llama(), "quantised weights"),
    (LLAMA, llama() | {"model.layers.0.self_attn.q_proj.qweight": (4, 32)}, "quantised weights .*qweight"),
    (LLAMA, llama() | {"model.layers.0.self_attn.q_proj.weight_scale_inv": (1, 1)}, "quantised weights .*scale_inv"),
    (LLAMA, llama() | {"model.layers.0.self_attn.q_proj.SCB": (32,)}, "quantised weights .*SCB"),
])
def test_what_is_not_certain_is_refused_in_one_line(config, names, message):
    with pytest.raises(CheckpointError, match=message) as error:
        find_stacks(config, names)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [
    "model.layers.1.self_attn.q_proj.lora_A.weight", "model.layers.1.self_attn.k_proj.lora_B.default.weight",
    "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight", "model.layers.0.self_attn.k_proj.ia3_l",
    "model.layers.0.self_attn.q_proj.oft_r.default", "model.layers.0.self_attn.q_proj_lora.down.weight",
    "encoder.layer.0.attention.self.query.lora_B.weight", "model.layers.0.self_attn.kv_b_proj.lora_A.weight",
    "model.layers.0.self_attn.q_proj.road_theta", "model.layers.0.self_attn.q_proj.parametrizations.weight.0.scale"])
def test_what_lies_beside_a_query_or_key_is_refused_with_how_to_merge_it(name):
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} lies beside .*merge_and_unload"):
        find_stacks(LLAMA, llama() | {name: (8, 32)})


def test_a_bias_and_an_adapter_elsewhere_change_no_query_or_key():
    find_stacks(LLAMA, llama() | {"model.layers.0.mlp.down_proj.lora_A.weight": (8, 32),
                                  "model.layers.0.self_attn.v_proj.lora_A.weight": (8, 32),
                                  "model.layers.0.self_attn.q_proj.bias": (32,),
                                  "model.layers.0.self_attn.q_proj.input_scale": ()})


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_numbers_of_eight_bits_are_refused(dtype):
    with pytest.raises(CheckpointError, match="do not fit"):
        heads(LLAMA, {name: torch.zeros(shape, dtype=dtype) for name, shape in llama().items()})


def test_a_real_bert():
    folder = Path(__file__).parents[2] / "shared" / "weights" / "bert-tiny-sst2-qk"
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    tensors = load_file(folder / "model.safetensors")
    [stack] = find_stacks(json.loads((folder / "config.json").read_text()), shapes(tensors))
    w_q, w_k = stack.layers[1].heads(tensors)
    wqk = (w_q @ w_k.mT).sum(0)
    assert (stack.causal, len(stack.layers), w_q.shape) == (False, 2, (2, 128, 64))
    assert (wqk * wqk.T).sum() / wqk.square().sum() == pytest.approx(0.914, abs=1e-3)  # published for BERT-tiny: 0.917
