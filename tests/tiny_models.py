"""
The smallest model of every type of layouts.csv that transformers can build: CASES, for tests/test_layouts.py.

A case is a model_type, what its config has beside the sizes that all have, what the model reads if that is not in
INPUTS, and the name of its class if it is not the first of CLASSES. A type without a line below has one case, without
more of these. A part, such as clip_text_model, is proven in its whole.
"""

import dataclasses
import inspect
import json
import re
from collections import defaultdict

import pytest
import torch
from safetensors.torch import load_file

from data.pretrained.architectures import TABLE

transformers = pytest.importorskip("transformers")
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# ---- sizes --------------------------------------------------------------------------------------------------------

# A config takes of these what its class has a field for. head_dim is not hidden_size / num_attention_heads.
NUMBERS = {
    1: "squeeze_factor bos_token_id n_shared_experts n_group topk_group temporal_patch_size",
    2: """num_hidden_layers num_key_value_heads eos_token_id num_layers encoder_layers num_experts_per_tok
        linear_num_key_heads linear_num_value_heads num_codebooks num_conv_pos_embedding_groups
        subsampling_factor""",
    3: "decoder_layers num_decoder_layers depth",
    4: """num_attention_heads num_heads n_head n_heads encoder_attention_heads attention_window num_experts
        num_local_experts n_routed_experts qk_rope_head_dim rotary_dim shape_size mamba_n_heads max_source_positions
        hidden_size_per_layer_input""",
    6: "d_kv coordinate_size qk_nope_head_dim",
    8: """num_mel_bins input_feat_per_channel feature_projection_input_dim patch_size chunk_size mamba_chunk_size
        linear_key_head_dim linear_value_head_dim prediction_length""",
    16: "head_dim embedding_size intra_bottleneck_size moe_intermediate_size image_size mamba_head_dim",
    32: """hidden_size d_model n_embd emb_dim dim decoder_hidden_size out_hidden_size projection_dim shape_embed_dim
        image_token_embed_dim upsample_initial_channel""",
    48: """intermediate_size dff ffn_dim encoder_ffn_dim decoder_ffn_dim t2u_encoder_ffn_dim t2u_decoder_ffn_dim
        projection_intermediate_size""",
    64: "max_position_embeddings num_embeddings",
}
SMALL = {name: number for number, names in NUMBERS.items() for name in names.split()} | dict(
    pad_token_id=0, decoder_attention_heads=2, v_head_dim=7, kv_lora_rank=10, q_lora_rank=12, vocab_size=50,
    entity_vocab_size=50, conv_dim=(8, 8), conv_stride=(5, 5), conv_kernel=(5, 5),
    attention_types=[[["global", "local"], 1]], relative_attention=True, pos_att_type=["c2p", "p2c"])
# Other sizes for what only sees images, for what takes their patches with a grid, and for what only hears.
IMAGES = dict(hidden_size=24, num_hidden_layers=3, num_key_value_heads=4, head_dim=6)
GRID = dict(hidden_size=32, embed_dim=32, patch_size=4, image_size=32)
SOUND = dict(IMAGES, d_model=24, encoder_layers=3)
# Latents, and RoPE for text, height and width.
MLA = dict(num_key_value_heads=4, head_dim=4)
MROPE = dict(hidden_size=64, rope_parameters=dict(
    rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0, mrope_section=[2, 3, 3]))


def sizes(known):
    """What a config class takes of the sizes above."""
    fields = {field.name for field in dataclasses.fields(known)}
    found = dict(SMALL)
    if fields & {"image_size", "patch_size"} and "max_position_embeddings" not in fields:
        found |= IMAGES
    if fields >= {"spatial_merge_size", "patch_size"}:
        found |= GRID
    if "num_mel_bins" in fields and "vocab_size" not in fields:
        found |= SOUND
    if "kv_lora_rank" in fields:
        found |= MLA
    if "mrope_section" in getattr(known, "ignore_keys_at_rope_validation", ()):
        found |= MROPE
    return {key: size for key, size in found.items() if key in fields}


def small(known, config):
    """The config for a class, and for those of the models in it, with its sizes where it says nothing else."""
    filled = sizes(known) | config
    for name in known.sub_configs.keys() | config.keys():
        inner = config.get(name, {})
        if not isinstance(inner, dict):
            continue
        kind = inner.get("model_type")
        its_class = configuration_auto.CONFIG_MAPPING[kind] if kind else known.sub_configs.get(name)
        if its_class is transformers.AutoConfig:  # it may have any class: take the default
            its_class = type(getattr(known(), name))
            inner = dict(inner, model_type=getattr(its_class, "model_type", None))
        if dataclasses.is_dataclass(its_class):
            filled[name] = small(its_class, inner)
    return filled


# Of four layers, those with an odd number have softmax attention.
HYBRID = dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2)
GEMMA = dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)


# ---- what a model reads: n rows of t tokens, t = 1 first, or inputs of another kind, at least as long --------------

def ids(n, t):
    return torch.randint(3, 50, (n, t), generator=torch.Generator().manual_seed(0))


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# What a model takes: the first of these names that its forward has an argument for tells which kind it is.
INPUTS = {
    "grid_thw": dict(hidden_states=noise(64, 48), grid_thw=torch.tensor([[1, 8, 8]])),  # 8 x 8 patches of 3 x 4 x 4
    "pixel_attention_mask": dict(
        pixel_values=noise(9, 4, 192), pixel_attention_mask=torch.ones(9, 4),
        spatial_shapes=torch.tensor([[2, 2]] * 9)),
    "pixel_position_ids": dict(  # the row and the column of 8 x 8 patches
        pixel_values=noise(1, 64, 48), pixel_position_ids=torch.cartesian_prod(torch.arange(8), torch.arange(8))[None]),
    "query_embeds": dict(  # a Q-Former
        query_embeds=noise(12, 3, 32), encoder_hidden_states=noise(12, 3, 24), input_ids=ids(12, 1)),
    "input_ids": dict(input_ids=ids, decoder_input_ids=ids),
    "input_features": dict(input_features=noise(40, 8, 8), input_features_mask=torch.ones(40, 8)),
    "input_values": dict(input_values=noise(4, 400)),
    "pixel_values": dict(pixel_values=noise(32, 3, 16, 16), image_sizes=[(16, 16)] * 32),
}


def inputs(module, reads, n, t):
    """The arguments for the forward of a module, from INPUTS and what its case reads; {}: it takes none of them."""
    takes = inspect.signature(module.forward).parameters
    for sign in (*INPUTS, *reads):
        if sign in takes:
            of_its_kind = INPUTS.get(sign, {}) | reads
            return {name: x(n, t) if callable(x) else x for name, x in of_its_kind.items() if name in takes}
    return {}


# ---- the cases ----------------------------------------------------------------------------------------------------

CASES_OF = defaultdict(list)  # model_type -> its cases


def case(types, reads=None, model=None, **config):
    """
    reads: {name of an input: a tensor, or a function of n and t}, or a function of the model, n and t that runs it;
    model: the name of its class, if it is not the first of CLASSES.
    """
    for kind in types.split():
        CASES_OF[kind].append((config, reads or {}, model))


# One model with other flags, with other heads in some layers, or with the keys of an earlier layer.
case("gpt_bigcode falcon bert xlm deepseek_v2 deepseek_v3")
case("gpt_bigcode", multi_query=False)
case("falcon", multi_query=False, alibi=True)
case("falcon", new_decoder_architecture=True, num_kv_heads=2)
case("bert", is_decoder=True, add_cross_attention=True)
case("xlm", causal=True)
case("deepseek_v2 deepseek_v3", q_lora_rank=None)
case("gemma3n_text", **GEMMA, num_kv_shared_layers=2)
case("gemma4_text", **GEMMA, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True)
case("gemma4_text", **GEMMA, num_kv_shared_layers=2)
# Softmax attention in some layers only.
case("qwen3_next qwen3_5_text qwen3_5_moe_text minimax olmo_hybrid", **HYBRID)
case("kimi_linear", **HYBRID, linear_head_dim=8, linear_num_heads=2)
case("granitemoehybrid", num_hidden_layers=4, layer_types=["mamba", "attention"] * 2)
case("lfm2 lfm2_moe lfm3", num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2)
case("nemotron_h", hybrid_override_pattern="M*-*", n_groups=1, conv_kernel=4)
# Encoders, and encoders with decoders.
case("big_bird bigbird_pegasus", attention_type="original_full")
case("t5gemma", dict(encoder_hidden_states=lambda n, t: noise(n, t, 32)), decoder=dict(num_hidden_layers=3))
case("helium", head_dim=8)
FEW = dict(num_filters=2)
case("vibevoice_asr", acoustic_tokenizer_encoder_config=FEW, semantic_tokenizer_encoder_config=FEW)
case("esmc", num_key_value_heads=4)
case("lilt", hidden_size=48)
case("xmod", default_language="en_XX")
case("speecht5", lambda model, *_: model(noise(4, 400), decoder_input_ids=ids(4, 9)))
case("vit_mae", model="ViTMAEForPreTraining", decoder_num_attention_heads=2)
case("detr", backbone_config=dict(model_type="resnet", hidden_sizes=[8, 16], depths=[1, 1]))
case("mask2former", dict(pixel_values=0.1 * noise(1, 3, 64, 64)), hidden_dim=32, backbone_config=dict(
    depths=[1] * 4, num_heads=[2, 2, 2, 3], patch_size=2, out_features=["stage1", "stage2", "stage3", "stage4"]))
# Images and sound.
case("dinov3_vit", hidden_size=32)
case("tipsv2_vision_model mlcd_vision_model", hidden_size=32)
case("aimv2", dict(attention_mask=torch.ones))
case("vitpose", model="VitPoseForPoseEstimation", backbone_config=dict(num_experts=1))
case("vitpose_backbone", num_experts=1)
case("vivit timesformer", dict(pixel_values=noise(10, 4, 3, 16, 16)))
case("mgp-str yolos", image_size=[16, 16])
case("audio-spectrogram-transformer", dict(input_values=noise(12, 16, 16)), max_length=16, num_mel_bins=16)
case("wav2vec2-bert", add_adapter=True)
case("musicgen", model="MusicgenForConditionalGeneration")
case("musicgen_melody", model="MusicgenMelodyForConditionalGeneration")
# Models made of others: text, and images or sound.
case("blip", dict(is_decoder=True))
case("blip", model="BlipModel")
case("qwen3_5 qwen3_5_moe", text_config=HYBRID)
case("gemma4", audio_config=None, text_config=dict(GEMMA, global_head_dim=24), vision_config=dict(
    model_type="gemma4_vision", num_hidden_layers=3, num_key_value_heads=4, patch_size=4, pooling_kernel_size=1,
    use_clipped_linears=True))
case("mllama", dict(
    pixel_values=noise(9, 1, 1, 3, 16, 16), aspect_ratio_ids=torch.ones(9, 1, dtype=torch.long),
    aspect_ratio_mask=torch.ones(9, 1, 1)),
    text_config=dict(num_hidden_layers=3, cross_attention_layers=[1]), vision_config=dict(
        num_global_layers=1, max_num_tiles=1, supported_aspect_ratios=[[1, 1]],
        intermediate_layers_indices=[0, 1, 2]))
case("granite_docling_vision", scale_factor=2)
case("granite_docling", vision_config=dict(out_hidden_size=32, scale_factor=2))
case("ernie4_5_vl_moe", text_config=dict(
    rope_parameters=dict(mrope_section=[3, 3, 2]), moe_k=2, moe_intermediate_size=[16, 16]))
case("llama4", vision_config=dict(
    hidden_size=32, intermediate_size=128, projector_input_dim=24, projector_output_dim=24))
CROSS = dict(add_cross_attention=True, is_decoder=True)
case("encoder-decoder", decoder=CROSS)
case("vision-encoder-decoder", decoder=dict(model_type="gpt2", **CROSS))
case("speech-encoder-decoder", decoder=dict(model_type="mbart"))

# ---- from a case to a model, and to its files ---------------------------------------------------------------------

CLASSES = [getattr(modeling_auto, f"MODEL_{name}MAPPING_NAMES") for name in (
    "FOR_IMAGE_TEXT_TO_TEXT_", "FOR_SPEECH_SEQ_2_SEQ_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_CAUSAL_LM_", "FOR_MASKED_LM_",
    "FOR_CTC_", "", "FOR_BACKBONE_", "FOR_DEPTH_ESTIMATION_")]
# Parts, which are proven in their wholes; and what needs another package.
NOT_ALONE = re.compile(".*_(model|qformer|encoder|decoder)|gemma4_vision|gemma3n|layoutlmv2|"
                       "voxtral_realtime_text|fast_vlm|perception_lm|(kimi_k25|video_llama_3)_vision")
# Types that need inputs of their own: their layers are only counted, and nothing is run.
NOT_RUN = set("""bros dia fsmt idefics kimi_k25 longt5 moonshine paddleocr_vl patchtst pegasus_x qwen3_asr seamless_m4t
    seamless_m4t_v2 seggpt udop video_llama_3 videomae vilt vivit vjepa2 voxtral_realtime
    time_series_transformer cohere_asr minicpmv4_6""".split())
for kind in TABLE.keys() - CASES_OF.keys():
    if any(kind in names for names in CLASSES) and not NOT_ALONE.fullmatch(kind):
        case(kind)
CASES = [pytest.param(kind, *values, id=f"{kind}-{i}")
         for kind in sorted(CASES_OF) for i, values in enumerate(CASES_OF[kind])]


def small_config(kind, config):
    known = configuration_auto.CONFIG_MAPPING[kind]
    return known(**small(known, config))


def build(kind, config, name=None):
    """The tiny model, with random numbers in every weight, no cache, and the attention written out in its own file."""
    torch.manual_seed(0)
    config = small_config(kind, config)
    for inner in config, *vars(config).values():
        if isinstance(inner, transformers.PretrainedConfig):
            inner.use_cache = False
    config._attn_implementation = "eager"
    name = name or next(names[kind] for names in CLASSES if kind in names)
    model = getattr(transformers, name if isinstance(name, str) else name[0])(config).eval()
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.normal_(0, 0.3)
    return model


def saved(model, folder):
    """-> config.json and the tensors, as they are on the disk."""
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
