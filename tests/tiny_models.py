"""
The smallest models of transformers that have a layout each: CASES, for tests/test_layouts.py.

A case is a model_type, what its config has beside the sizes that all have, the names of the stacks that must be found,
what the model reads if that is not in INPUTS, and the name of its class if it is not the first of CLASSES.
"""

import dataclasses
import inspect
import json

import pytest
import torch
from safetensors.torch import load_file

transformers = pytest.importorskip("transformers")
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# ---- sizes --------------------------------------------------------------------------------------------------------

# A config takes of these what its class has a field for. head_dim is not hidden_size / num_attention_heads.
SMALL = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=48, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    # The same under other names, and what else text has.
    d_model=32, n_embd=32, emb_dim=32, dim=32, embed_dim=32, num_layers=2, n_layer=2, n_layers=2, layers=2, num_heads=4,
    n_head=4, n_heads=4, attention_heads=4, d_kv=6, embedding_size=16, rotary_dim=4, intra_bottleneck_size=16,
    coordinate_size=6, shape_size=4, attention_types=[[["global", "local"], 1]], visual_embed=False,
    default_language="en_XX", relative_attention=True, pos_att_type=["c2p", "p2c"], num_kv_shared_layers=0,
    hidden_size_per_layer_input=4, vocabulary_map={"<image>": 3}, downsampling_rate=1,
    # An encoder and a decoder.
    encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, encoder_num_hidden_layers=2,
    encoder_num_attention_heads=4, encoder_num_key_value_heads=4, decoder_layers=3, decoder_attention_heads=2,
    decoder_ffn_dim=48, decoder_num_hidden_layers=3, decoder_num_attention_heads=4, decoder_num_key_value_heads=4,
    num_decoder_layers=3, decoder_start_token_id=1, attention_window=4, num_queries=5,
    # Experts.
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
    moe_intermediate_size=16, shared_expert_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1,
    # Latents, and attention without a softmax.
    q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, index_topk=64,
    linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, mamba_n_heads=4,
    mamba_d_head=16, mamba_d_ssm=64, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8, use_mamba_kernels=False,
    # Sound.
    num_mel_bins=8, max_source_positions=4, input_feat_per_channel=8, conv_dim=(8, 8), conv_stride=(5, 5),
    conv_kernel=(5, 5), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, squeeze_factor=1,
    feature_projection_input_dim=8, num_codebooks=2, subsampling_factor=2, num_filters=4, upsample_groups=32,
    upsampling_ratios=[2, 2], upsample_initial_channel=64,
    # Images.
    image_size=16, patch_size=8, num_channels=3, num_frames=4, depth=3, temporal_patch_size=1, out_hidden_size=64,
    fullatt_block_indexes=[0, 1, 2], deepstack_visual_indexes=[], global_attn_indexes=[0, 1, 2], output_channels=16,
    pretrain_image_size=16, patch_embed_hidden_size=24, max_image_size=32, base_channels=32, channel_multiplier=[1, 1],
    encoder_hidden_size=24, projection_dim=24)
# Beside them, of what sees images only, of what takes their patches with a grid, and of what hears only.
IMAGES = dict(hidden_size=24, num_hidden_layers=3, num_key_value_heads=4, head_dim=6)
GRID = dict(hidden_size=32, embed_dim=32, patch_size=4, image_size=32)
SOUND = dict(IMAGES, d_model=24, encoder_layers=3)
# Latents, and RoPE for text, height and width.
MLA = dict(num_key_value_heads=4, head_dim=4)
MULTIMODAL_ROPE = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0, mrope_section=[2, 3, 3])
MROPE = dict(hidden_size=64, rope_parameters=MULTIMODAL_ROPE)


def sizes(known):
    """What a config class takes of the sizes above."""
    fields = {field.name for field in dataclasses.fields(known)}
    found = dict(SMALL)
    if fields & {"image_size", "patch_size", "patch_embed_hidden_size"} and "max_position_embeddings" not in fields:
        found |= IMAGES
    if fields >= {"spatial_merge_size", "patch_size"}:
        found |= GRID
    if "num_mel_bins" in fields and "vocab_size" not in fields:
        found |= SOUND
    if "kv_lora_rank" in fields:
        found |= MLA
    if "mrope_section" in getattr(known, "ignore_keys_at_rope_validation", ()):
        found |= dict(rope_parameters=MULTIMODAL_ROPE) if "head_dim" in fields else MROPE
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
        if its_class is transformers.AutoConfig:  # it may be of any class: take that of the default
            its_class = type(getattr(known(), name))
            inner = dict(inner, model_type=getattr(its_class, "model_type", None))
        if dataclasses.is_dataclass(its_class):
            filled[name] = small(its_class, inner)
    return filled


def part(kind, **config):
    """The config of a model in another."""
    return dict(config, model_type=kind)


# ---- what several configs add to them -----------------------------------------------------------------------------

# Of four layers, those with an odd number have softmax attention.
HYBRID = dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2)
GEMMA = dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
TWO_STAGES = dict(embed_dim=12, depths=[1, 2], num_heads=[2, 4], patch_size=2, window_size=2)
SWIN = part("swin", **TWO_STAGES | dict(depths=[1] * 4, num_heads=[2, 2, 2, 3]),
            out_features=["stage1", "stage2", "stage3", "stage4"])


# ---- what a model reads: n rows of t tokens, t = 1 first, or inputs of another kind, at least as long --------------

def ids(n, t):
    return torch.randint(3, 50, (n, t), generator=torch.Generator().manual_seed(0))


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def places(rows):
    """The row and the column of each of rows x rows patches, (rows^2, 2)."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(rows))


def states(size):
    return lambda n, t: noise(n, t, size)


EMBEDDED = dict(input_ids=None, inputs_embeds=states(32))  # where tokens have no embeddings, or several

# What a model takes: the first of these names that its forward has an argument for tells which kind it is.
INPUTS = {
    "grid_thw": dict(  # 8 x 8 patches of 3 x 4 x 4
        hidden_states=noise(64, 48), pixel_values=noise(64, 48), grid_thw=torch.tensor([[1, 8, 8]]),
        merge_sizes=torch.tensor([1])),
    "pixel_attention_mask": dict(
        pixel_values=noise(9, 4, 192), pixel_attention_mask=torch.ones(9, 4),
        spatial_shapes=torch.tensor([[2, 2]] * 9)),
    "pixel_position_ids": dict(pixel_values=noise(1, 64, 48), pixel_position_ids=places(8)[None]),
    "flattened_patches": dict(
        flattened_patches=torch.cat([places(2).expand(25, 4, 2), noise(25, 4, 24)], -1)),
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

CASES = []


def case(types, stacks="", reads=None, model=None, **config):
    """
    stacks: their names; reads: {name of an input: a tensor, or a function of n and t}, or a function of the model, n
    and t that runs it; model: name of its class, if it is not the first of CLASSES.
    """
    for kind in types.split():
        CASES.append(pytest.param(kind, config, stacks.split(", "), reads or {}, model, id=f"{kind}-{len(CASES)}"))


# Separate Linears: LLaMA and those after it. Then those with q, k and v in one tensor.
case("llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text olmo olmo2 olmo3 starcoder2 cohere "
     "cohere2 granite smollm3 glm glm4 arcee apertus ernie4_5 exaone4 seed_oss hunyuan_v1_dense nemotron vaultgemma "
     "phi qwen3_vl_text mixtral qwen2_moe qwen3_moe phimoe olmoe flex_olmo granitemoe granitemoeshared glm4_moe "
     "gpt_oss ernie4_5_moe hunyuan_v1_moe dots1 minimax_m2 llama4_text qwen3_vl_moe_text afmoe cohere2_moe cwm "
     "diffllama doge exaone_moe granite_swa hy_v3 hyperclovax internlm3 iquestcoder jais2 laguna mellum "
     "minimax_m3_vl_text nanochat solar_open aria_text granitemoe_swa granite_docling_text higgs_audio_v2 beam flint "
     "kolibri1 muse_glimmer_text muse_spark_text cosmos3_edge_text qwen2_vl_text qwen2_5_vl_text glm4v_text stablelm "
     "bitnet opt xglm biogpt modernbert-decoder ctrl gptj gpt_neo decision_transformer "
     "chameleon gpt2 openai-gpt imagegpt gpt_bigcode gpt_neox gpt_neox_japanese persimmon bloom falcon phi3 "
     "mpt deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 glm4_moe_lite youtu axk1")
case("helium", head_dim=8)
case("gpt_bigcode", multi_query=False)
case("falcon", multi_query=False, alibi=True)
case("falcon", new_decoder_architecture=True, num_kv_heads=2)
case("dbrx", attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=1e9))
# Other heads in some layers, two attentions in a layer, or the keys of an earlier one.
case("gemma3n_text", **GEMMA, num_kv_shared_layers=2)
case("gemma4_text", **GEMMA, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True)
case("gemma4_text", **GEMMA, num_kv_shared_layers=2)
# Latents.
case("mistral4", head_dim=4, rope_parameters=dict(llama_4_scaling_beta=0.1, original_max_position_embeddings=64))
case("deepseek_v2 deepseek_v3", q_lora_rank=None)
# Softmax attention in some layers only.
case("qwen3_next qwen3_5_text qwen3_5_moe_text minimax olmo_hybrid", **HYBRID)
case("granitemoehybrid", num_hidden_layers=4, layer_types=["mamba", "attention"] * 2)
case("kimi_linear", **HYBRID, linear_head_dim=8, linear_num_heads=2)
case("kimi_linear", num_hidden_layers=4, q_lora_rank=None, linear_attn_config=dict(
    full_attn_layers=[2, 4], kda_layers=[1, 3], head_dim=8, num_heads=2, short_conv_kernel_size=4))
case("bailing_hybrid", **HYBRID, q_lora_rank=None)
case("falcon_h1", num_hidden_layers=4)
case("lfm2 lfm2_moe", num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2)
case("lfm3", num_hidden_layers=3, layer_types=["conv", "full_attention", "sliding_attention"])
case("nemotron_h", hybrid_override_pattern="M*-*", mamba_num_heads=4, mamba_head_dim=16, n_groups=1,
     ssm_state_size=8, chunk_size=8, conv_kernel=4)
# Encoders of text.
case("bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert electra ernie megatron-bert rembert "
     "roformer splinter layoutlm markuplm data2vec-text esm bert-generation dpr modernbert nomic_bert mpnet roc_bert "
     "tapas jina_embeddings_v3 gte ibert visual_bert embedding_gemma2_text openai_privacy_filter luke xlm "
     "flaubert nystromformer distilbert eurobert ultrabert mobilebert xmod layoutlmv3 deberta deberta-v2 "
     "longformer vits canine wav2vec2 hubert wavlm unispeech unispeech-sat data2vec-audio sew sew-d "
     "wav2vec2-conformer wav2vec2-bert parakeet_encoder")
case("esmc", num_key_value_heads=4)
case("bros", "", dict(bbox=lambda n, t: torch.zeros(n, t, 8)), hidden_size=64)
case("lilt", hidden_size=48)
case("bert", is_decoder=True, add_cross_attention=True)
case("xlm", causal=True)
case("big_bird", attention_type="original_full")
case("albert")  # two layers, one set of weights
case("lxmert", "l.text, r.vision, x.text, x.vision",
     dict(input_ids=ids(9, 8), visual_feats=noise(9, 7, 16), visual_pos=noise(9, 7, 4)),
     l_layers=2, r_layers=3, x_layers=1, visual_feat_dim=16)
# Two stacks.
case("t5 mt5 umt5 switch_transformers pop2piano bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 "
     "nllb-moe mvp fsmt whisper speech_to_text led", "encoder, decoder")
case("bigbird_pegasus", "encoder, decoder", attention_type="original_full")
case("udop", "encoder, decoder", dict(bbox=lambda n, t: torch.zeros(n, t, 4)))
case("t5gemma", "encoder, decoder", dict(encoder_hidden_states=states(32)), decoder=dict(num_hidden_layers=3))
case("moonshine", "encoder, decoder", dict(input_values=noise(4, 8000)))
case("speecht5", "encoder, decoder", lambda model, *_: model(noise(4, 400), decoder_input_ids=ids(4, 9)))
case("dia", "encoder, decoder", lambda model, n, t: model(ids(n, t), decoder_input_ids=ids(n, 2 * t).view(n, t, 2)),
     delay_pattern=[0, 1], decoder_config=dict(
         num_hidden_layers=3, cross_num_key_value_heads=4, cross_hidden_size=32, num_channels=2))
case("time_series_transformer", "encoder, decoder", dict(
    past_values=noise(9, 10), past_time_features=noise(9, 10, 1), past_observed_mask=torch.ones(9, 10),
    future_values=noise(9, 8), future_time_features=noise(9, 8, 1)),
    prediction_length=8, lags_sequence=[1, 2], num_time_features=1)
case("trocr", "decoder")
case("t5gemma2", "encoder.vision, encoder.text, decoder", dict(encoder_hidden_states=states(32)),
     decoder=dict(num_hidden_layers=3))
case("vit_mae", "encoder, decoder", model="ViTMAEForPreTraining", decoder_hidden_size=32,
     decoder_num_hidden_layers=2, decoder_num_attention_heads=2)
case("videomae", "encoder, decoder", dict(
    pixel_values=noise(9, 4, 3, 16, 16), bool_masked_pos=torch.tensor([[True, False] * 4] * 9)),
    "VideoMAEForPreTraining", decoder_hidden_size=32, decoder_num_hidden_layers=2, decoder_num_attention_heads=2)
# Detectors.
BIG = dict(pixel_values=0.1 * noise(9, 3, 64, 64))
RESNET = part("resnet", hidden_sizes=[8, 16], depths=[1, 1])
case("detr table-transformer conditional_detr", "encoder, decoder", backbone_config=RESNET)
case("deformable_detr", "decoder", backbone_config=RESNET, num_feature_levels=2)
case("rt_detr rt_detr_v2", "encoder, decoder", BIG, encoder_hidden_dim=32,
     encoder_in_channels=[16] * 3, decoder_in_channels=[32] * 3, backbone_config=part(
         "rt_detr_resnet", embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, layer_type="basic",
         out_features=["stage2", "stage3", "stage4"]))
case("grounding-dino mm-grounding-dino", "decoder", BIG | dict(input_ids=ids(9, 8)), num_feature_levels=3,
     backbone_config=dict(SWIN, out_features=["stage2", "stage3", "stage4"]))
case("mask2former", "decoder", BIG, backbone_config=SWIN, hidden_dim=32, feature_size=32, decoder_layers=4)
SEAMLESS = dict(speech_encoder_layers=2, speech_encoder_attention_heads=8, adaptor_kernel_size=1, t2u_encoder_layers=1,
                t2u_encoder_attention_heads=2, t2u_decoder_layers=2, t2u_decoder_attention_heads=8,
                t2u_variance_predictor_embed_dim=32)
UNITS = dict(EMBEDDED, encoder_hidden_states=states(32), char_input_ids=ids,
             char_count_per_id=lambda n, t: torch.ones(n, t, dtype=torch.long))
for kind, name in ("seamless_m4t", "SeamlessM4TModel"), ("seamless_m4t_v2", "SeamlessM4Tv2Model"):
    case(kind, "encoder, decoder, speech_encoder, adapter, t2u_encoder, t2u_decoder", UNITS, name, **SEAMLESS)
# Images.
case("vit deit beit data2vec-vision dpt pixio radio tipsv2_vision_model chinese_clip_vision_model dinov2 "
     "dinov2_with_registers ijepa vit_msn aimv2_vision_model glm_ocr_vision glm5_next_vision "
     "cohere_compass_vision internvl_vision vitdet")
case("dinov3_vit mlcd_vision_model sam3_vit_model", hidden_size=32, window_size=0)
case("granite_docling_vision", scale_factor=2)
case("mgp-str yolos", image_size=[16, 16])
case("seggpt", "", dict.fromkeys(["pixel_values", "prompt_pixel_values", "prompt_masks"], noise(9, 3, 16, 16)),
     image_size=[32, 16], merge_index=0)
case("vitpose_backbone", num_experts=1)
case("vilt", "", dict(input_ids=ids(8, 5), pixel_values=noise(8, 3, 16, 16)))
FILM = dict(pixel_values=noise(10, 4, 3, 16, 16))
case("vivit", "", FILM)
case("timesformer", "space, time", FILM)


def film_without_places(model, n, t):
    for module in model.modules():
        if hasattr(module, "apply_rotary_embeddings"):
            module.apply_rotary_embeddings = lambda queries_or_keys, positions: queries_or_keys
    model(FILM["pixel_values"])


case("vjepa2", "encoder, pred", film_without_places,
     pred_hidden_size=12, pred_num_attention_heads=2, pred_num_hidden_layers=2)
case("swin donut-swin swinv2", "stage 0, stage 1", **TWO_STAGES)
case("segformer glpn pvt", "stage 0, stage 1", num_encoder_blocks=2, depths=[1, 2], hidden_sizes=[8, 16],
     num_attention_heads=[2, 4], sr_ratios=[1, 1], sequence_reduction_ratios=[1, 1])
# What sees depth and poses and so on with another model.
case("depth_anything prompt_depth_anything zoedepth", "backbone")
case("vitpose", "backbone", model="VitPoseForPoseEstimation", backbone_config=dict(num_experts=1))
case("upernet", "backbone.stage 0, backbone.stage 1, backbone.stage 2, backbone.stage 3", BIG, backbone_config=SWIN)
case("vitmatte", "backbone", dict(pixel_values=noise(25, 4, 16, 16)), "VitMatteForImageMatting",
     backbone_config=dict(num_channels=4), fusion_hidden_sizes=[8] * 4)
case("sam sam_hq", "vision")
case("sam3", "vision, text", vision_config=dict(backbone_config=part("sam3_vit_model", hidden_size=32, window_size=0)))
# Sound.
case("audio-spectrogram-transformer", "", dict(input_values=noise(12, 16, 16)), max_length=16, num_mel_bins=16)
case("wav2vec2-bert", ", adapter", add_adapter=True)
case("parakeet_ctc parakeet_tdt parakeet_rnnt", "encoder")
for kind, name in ("musicgen", "Musicgen"), ("musicgen_melody", "MusicgenMelody"):
    case(kind, "encoder, decoder", None, f"{name}ForConditionalGeneration", decoder=dict(num_attention_heads=2))
    case(f"{kind}_decoder", model=f"{name}ForCausalLM")


def forecast(model, n, t):
    for name, weight in model.named_parameters():
        if name.endswith("self_attn.scaling"):  # of each dimension of the queries, as in a norm
            weight.data.zero_()
    model.decoder(noise(9, 64), torch.zeros(9, 64, dtype=torch.long), torch.zeros(9, 1, dtype=torch.long))


case("timesfm", "", forecast, "TimesFmModelForPrediction", patch_length=4)
case("patchtst", "", dict(past_values=noise(9, 32, 3)), patch_length=4, num_input_channels=3)
# Speech in codes. Those of Mimi are made and read by layers that are not scored.
case("kyutai_speech_to_text", "", EMBEDDED, codebook_vocab_size=20, audio_pad_token_id=0)
case("moshi", model="MoshiForConditionalGeneration")
case("cohere_asr", "encoder, text", dict(encoder_hidden_states=states(24)))
# Models made of others: text and images.
case("llava llava_next vipllava llava_next_video aria llava_onevision gemma3 shieldgemma2 deepseek_vl got_ocr2 "
     "lighton_ocr mistral3 hyperclovax_vision_v2 cohere2_vision aya_vision idefics3 smolvlm qwen2_vl "
     "qwen2_5_vl qwen3_vl qwen3_vl_moe glm4v glm4v_moe glm_ocr glm46v glmga kosmos-2 clip clipseg metaclip_2 owlvit "
     "owlv2 git janus lfm2_vl ovis2 internvl idefics2 hunyuan_vl chinese_clip altclip siglip siglip2 paligemma "
     "vision-text-dual-encoder colpali colqwen2 colmodernvbert", "vision, text")
case("kosmos-2.5", "vision, text", vision_config=dict(head_dim=8))
case("pix2struct", "vision, text", text_config=dict(d_kv=8), vision_config=dict(d_kv=8))
case("video_llama_3", "vision, text", vision_config=dict(hidden_size=32, patch_size=4))
case("granite_docling", "vision, text", vision_config=dict(out_hidden_size=32, scale_factor=2))
case("exaone4_5", "vision, text", vision_config=dict(num_key_value_heads=2))
case("idefics", "vision, text", lambda model, n, t: model(
    input_ids=ids(n, t), pixel_values=noise(n, 1, 3, 16, 16), image_attention_mask=torch.ones(n, t, 1)),
    vision_config=dict(embed_dim=24), use_resampler=True, perceiver_config=dict(resampler_depth=1))
# The windows are as large as the image, so that its patches stay in their order.
case("florence2", "vision.stage 0, vision.stage 1, text.encoder, text.decoder",
     dict(hidden_states=noise(9, 3, 16, 16)), vision_config=dict(
         depths=[1, 2], embed_dim=[8, 16], num_heads=[2, 4], num_groups=[2, 4], window_size=8, patch_size=[3, 3],
         patch_stride=[2, 1], patch_padding=[1, 1]))
case("ernie4_5_vl_moe", "vision, text", text_config=dict(
    rope_parameters=dict(mrope_section=[3, 3, 2]), moe_k=2, moe_intermediate_size=[16, 16]))
case("paddleocr_vl", "vision, text", dict(pixel_values=noise(1, 64, 3, 4, 4)),
     text_config=dict(rope_parameters=MULTIMODAL_ROPE))
case("qwen3_5 qwen3_5_moe", "vision, text", text_config=HYBRID)
case("minicpmv4_6", "vision, text",
     dict(pixel_values=noise(1, 3, 8, 8 * 64), target_sizes=torch.tensor([[8, 8]])),
     text_config=HYBRID)
case("fuyu vibevoice_asr embedding_gemma2", "text")
GEMMA4_VIT = part("gemma4_vision", num_hidden_layers=3, num_key_value_heads=4, patch_size=4, pooling_kernel_size=1,
                  use_clipped_linears=True)
case("gemma4", "vision, text", audio_config=None, text_config=dict(GEMMA, global_head_dim=24), vision_config=GEMMA4_VIT)
case("gemma4_unified", "text", text_config=dict(
    GEMMA, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True))
case("diffusion_gemma", "vision, text", vision_config=GEMMA4_VIT,
     text_config=dict(GEMMA, global_head_dim=24, num_experts=2, top_k_experts=1))
case("kimi_k25", "vision, text", dict(pixel_values=noise(64, 3, 4, 4)),
     vision_config=dict(hidden_size=32, patch_size=4))
case("mllama", "vision, vision.global, text", dict(
    pixel_values=noise(9, 1, 1, 3, 16, 16), aspect_ratio_ids=torch.ones(9, 1, dtype=torch.long),
    aspect_ratio_mask=torch.ones(9, 1, 1)),
    text_config=dict(num_hidden_layers=3, cross_attention_layers=[1]), vision_config=dict(
        num_global_layers=1, max_num_tiles=1, supported_aspect_ratios=[[1, 1]],
        intermediate_layers_indices=[0, 1, 2]))
case("llama4", "vision, text", vision_config=dict(
    hidden_size=32, intermediate_size=128, projector_input_dim=24, projector_output_dim=24))
case("aimv2", "vision, text", dict(attention_mask=torch.ones))
case("groupvit", "vision.stage 0, vision.stage 1, text", dict(pixel_values=noise(25, 3, 16, 16)), vision_config=dict(
    depths=[1, 2], num_group_tokens=[2, 0]))
case("xclip", "vision.space, vision.time, text")
case("blip", "vision, text", dict(is_decoder=True))
case("blip", "vision, text", model="BlipModel")
case("blip", "vision, text.encoder, text.decoder", lambda model, n, t: (
    model.vision_model(noise(25, 3, 16, 16)), model.text_encoder(ids(n, t)), model.text_decoder(ids(n, t))),
    "BlipForQuestionAnswering")
case("blip-2", "vision, text, qformer")
case("instructblip instructblipvideo", "vision, qformer, text.encoder, text.decoder", text_config=part("t5"))
# Text, and sound or all three.
case("phi4_multimodal", "vision, text, audio", dict(hidden_states=noise(4, 80, 8), mask=None),
     audio_config=dict(num_blocks=2, input_size=8, ext_pw_out_channel=32, depthwise_separable_out_channel=32))
case("qwen2_audio audioflamingo3 musicflamingo", "audio, text")
case("glmasr", "audio, text", audio_config=dict(num_key_value_heads=2))
case("voxtral", "audio, text", audio_config=dict(hidden_size=24, num_hidden_layers=3))
case("voxtral_realtime", "audio, text", lambda model, n, t: (
    model.model.language_model(ids(n, t), t_cond=noise(n, 1, 32)), model.model.audio_tower(noise(9, 8, 32))))
case("qwen3_asr", "audio, text", dict(input_features=noise(1, 8, 400), input_features_mask=torch.ones(1, 400)))
# Of any two.
CROSS = dict(add_cross_attention=True, is_decoder=True)
case("encoder-decoder", "encoder, decoder", decoder=CROSS)
case("vision-encoder-decoder", "encoder, decoder", decoder=part("gpt2", **CROSS))
case("vision-encoder-decoder", "encoder.stage 0, encoder.stage 1, decoder",
     encoder=part("donut-swin", **TWO_STAGES), decoder=part("mbart"))  # Donut
case("speech-encoder-decoder", "encoder, decoder", decoder=part("mbart"))
case("clap", "audio.stage 0, audio.stage 1, text",
     dict(input_features=noise(9, 1, 64, 16)), audio_config=dict(
         patch_embeds_hidden_size=8, depths=[1, 2], num_attention_heads=[2, 4], num_mel_bins=16, window_size=2))


# ---- from a case to a model, and to its files ---------------------------------------------------------------------

CLASSES = [getattr(modeling_auto, f"MODEL_{name}MAPPING_NAMES") for name in (
    "FOR_IMAGE_TEXT_TO_TEXT_", "FOR_SPEECH_SEQ_2_SEQ_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_CAUSAL_LM_", "FOR_MASKED_LM_",
    "FOR_CTC_", "FOR_OBJECT_DETECTION_", "FOR_ZERO_SHOT_OBJECT_DETECTION_", "", "FOR_BACKBONE_",
    "FOR_DEPTH_ESTIMATION_", "FOR_SEMANTIC_SEGMENTATION_", "FOR_PRETRAINING_")]


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
