"""
data/pretrained/layouts.py against transformers: for a tiny random model of every family, saved and read back, W_q and
W_k of find_stacks must give the products of queries and keys that the model's own attention computes from basis
vectors.

    python -m pytest tests/test_layouts.py
"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import analyze
from data.pretrained import layout_table
from data.pretrained.layouts import LayoutError, find_stacks, missing_stacks

transformers = pytest.importorskip("transformers")
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
aten = torch.ops.aten
# Attention that is no layer of a stack.
NOT_SELF = re.compile(r"cross|encoder_attn|EncDec|head\.attention|(^|\.)head$|resampler|mask_decoder|pixel_level")
NORMS = re.compile(r"(q|k|query|key)_(a_)?(layer)?norm$|kv_a_layernorm$")  # outside of W_qk: replaced by the identity


# ---- the tiny models ----------------------------------------------------------------------------------------------

TEXT = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GQA = dict(TEXT, num_key_value_heads=2)
WIDE = dict(GQA, head_dim=16)  # head_dim is not hidden_size / num_attention_heads
GEMMA = dict(WIDE, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=0,
             hidden_size_per_layer_input=4, vocab_size_per_layer_input=50)
MOE = dict(WIDE, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
           moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1)
MROPE = dict(MOE, hidden_size=64, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0,
                                                       mrope_section=[2, 3, 3]))
MLA = dict(MOE, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, head_dim=4,
           num_key_value_heads=4)
GPT = dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4)
XLM = dict(vocab_size=50, emb_dim=32, n_layers=2, n_heads=4, n_langs=1, use_lang_emb=False)
T5 = dict(vocab_size=50, d_model=32, d_kv=6, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4, pad_token_id=0,
          decoder_start_token_id=0)
BART = dict(vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
            decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
            max_encoder_position_embeddings=64, max_decoder_position_embeddings=64, attention_window=4, num_experts=4,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, forced_eos_token_id=2, decoder_start_token_id=1)
SPEECH = dict(BART, num_conv_layers=2, conv_kernel_sizes=[3, 3], conv_channels=16, input_feat_per_channel=8,
              input_channels=1, num_mel_bins=8, max_source_positions=8, max_target_positions=64)
CONV = dict(conv_dim=(8, 8), conv_stride=(5, 5), conv_kernel=(5, 5), num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2, num_feat_extract_layers=2)
WAVE = dict(TEXT, **CONV, squeeze_factor=1, num_codevectors_per_group=4, codevector_dim=8, proj_codevector_dim=8,
            feature_projection_input_dim=8)
SPEECHT5 = dict(BART, **CONV, hidden_size=32)
VIT = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, image_size=16,
           patch_size=8, num_channels=3)
SQUARE = dict(VIT, image_size=[16, 16], patch_size=[8, 8])
MAE = dict(VIT, decoder_hidden_size=32, decoder_num_hidden_layers=2, decoder_num_attention_heads=2,
           decoder_intermediate_size=48, mask_ratio=0.5, num_frames=4)
QWEN_VIT = dict(depth=3, num_heads=4, embed_dim=32, hidden_size=32, out_hidden_size=64, intermediate_size=48,
                image_size=32, patch_size=4, temporal_patch_size=1, spatial_merge_size=2, num_position_embeddings=64,
                fullatt_block_indexes=[0, 1, 2], deepstack_visual_indexes=[])
MLLAMA_VIT = dict(hidden_size=24, intermediate_size=48, num_hidden_layers=3, attention_heads=4, num_global_layers=1,
                  vision_output_dim=96, image_size=16, patch_size=8, max_num_tiles=1, supported_aspect_ratios=[[1, 1]],
                  intermediate_layers_indices=[0, 1, 2])
LLAMA4_VIT = dict(VIT, hidden_size=32, intermediate_size=128, vision_output_dim=24, projector_input_dim=24,
                  projector_output_dim=24, pixel_shuffle_ratio=0.5)
WHISPER = dict(SPEECH, d_model=24, encoder_layers=3, max_source_positions=4, model_type="qwen2_audio_encoder")
VOXTRAL = dict(VIT, num_mel_bins=8, max_source_positions=4, model_type="voxtral_encoder")
SAM = dict(vision_config=dict(VIT, output_channels=16, patch_size=4, window_size=0, global_attn_indexes=[0, 1, 2],
                              mlp_dim=48, num_pos_feats=8),
           prompt_encoder_config=dict(hidden_size=16, image_size=16, patch_size=4, mask_input_channels=4),
           mask_decoder_config=dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mlp_dim=24))
RESNET = dict(model_type="resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
              out_features=["stage2"])
DETR = dict(SPEECH, num_queries=5, use_timm_backbone=False, backbone=None, backbone_config=RESNET)
SWIN = dict(model_type="swin", embed_dim=12, depths=[1] * 4, num_heads=[2, 2, 2, 3], image_size=32, patch_size=2,
            window_size=2, out_features=["stage1", "stage2", "stage3", "stage4"])
MASK2FORMER = dict(backbone_config=SWIN, hidden_dim=32, feature_size=32, mask_feature_size=32, num_attention_heads=4,
                   decoder_layers=4, encoder_layers=1, dim_feedforward=48, num_queries=5)
MUSIC = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=48, num_codebooks=2,
             pad_token_id=0, bos_token_id=0)
ENCODEC = dict(model_type="encodec", num_filters=4, hidden_size=16, codebook_size=64, codebook_dim=16,
               upsampling_ratios=[2, 2])
# Of four layers, those with an odd number have softmax attention.
HYBRID_LAYERS = dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2)
HYBRID = dict(MOE, **HYBRID_LAYERS, linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8,
              linear_value_head_dim=8, shared_expert_intermediate_size=16)
MAMBA = dict(GQA, num_hidden_layers=4, mamba_n_heads=4, mamba_d_head=16, mamba_d_ssm=64, mamba_n_groups=1,
             mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False)


def ids(n, t):
    return torch.randint(3, 50, (n, t), generator=torch.Generator().manual_seed(0))


# How a model is run: with n rows of t tokens, t = 1 first, or with inputs of its own kind, at least as long.
def text(model, n, t):
    model(input_ids=ids(n, t))


def embeddings(model, n, t):
    model(inputs_embeds=torch.randn(n, t, model.config.hidden_size))


def window(model, n, t):  # the window of 4 tokens must be full
    (seq2seq if model.config.is_encoder_decoder else text)(model, n, 4)


def seq2seq(model, n, t):
    model(input_ids=ids(n, t), decoder_input_ids=ids(n, t))


def speech(model, n, t):
    frames = torch.randn(n, 8, 16) if model.config.model_type == "whisper" else torch.randn(n, 16, 8)
    model(input_features=frames, decoder_input_ids=ids(n, t))


def images(model, n=0, t=0, size=16, **inputs):
    model(pixel_values=torch.randn(25, 3, size, size), **inputs)


def waves(model, n, t):
    inputs = torch.randn(*{"input_features": (4, 10, 8), "input_values": (4, 400)}[model.main_input_name])
    model(inputs, **({"decoder_input_ids": ids(4, 9)} if model.config.is_encoder_decoder else {}))


def patches(model, n=0, t=0):  # of one image, 8 x 8 patches of 3 x 4 x 4
    model(torch.randn(64, 48), grid_thw=torch.tensor([[1, 8, 8]]))


def of(text_path, other_path, run):  # a text model and another inside of a model
    def drive(model, n, t):
        model.get_submodule(text_path)(input_ids=ids(n, t))
        run(model.get_submodule(other_path))
    return drive


CASES = []


def case(types, config, stacks, run=text, model=None, **more):
    """stacks: {name: (causal, numbers of the layers)}; model: name of its class, if it is not the first of CLASSES."""
    for kind in types.split():
        CASES.append(pytest.param(kind, config | more, stacks, run, model, id=f"{kind}-{len(CASES)}"))


def decoder(*numbers, name=""):
    return {name: (True, list(numbers))}


def encoder(*numbers, name=""):
    return {name: (False, list(numbers))}


TWO = encoder(0, 1, name="encoder") | decoder(0, 1, 2, name="decoder")
# Separate Linears: LLaMA and those after it.
case("llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text olmo olmo2 olmo3 starcoder2 cohere "
     "cohere2 granite smollm3 glm glm4 arcee apertus ernie4_5 exaone4 seed_oss hunyuan_v1_dense nemotron vaultgemma "
     "phi qwen3_vl_text", WIDE, decoder(0, 1))
case("mixtral qwen2_moe qwen3_moe phimoe olmoe flex_olmo granitemoe granitemoeshared glm4_moe gpt_oss ernie4_5_moe "
     "hunyuan_v1_moe dots1 minimax_m2 llama4_text qwen3_vl_moe_text", MOE, decoder(0, 1))
case("afmoe cohere2_moe cwm diffllama doge exaone_moe granite_swa hy_v3 hyperclovax internlm3 iquestcoder jais2 laguna "
     "mellum minimax_m3_vl_text nanochat solar_open", MOE, decoder(0, 1))
case("gemma3n_text", GEMMA, decoder(0, 1), num_kv_shared_layers=2, laurel_rank=4, intermediate_size=[48] * 4,
     activation_sparsity_pattern=[0.0] * 4, altup_num_inputs=2)
case("gemma4_text", GEMMA, decoder(0, 1, 2, 3), global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True)
case("gemma4_text", GEMMA, decoder(0, 1), num_kv_shared_layers=2)
case("llama stablelm helium bitnet", GQA, decoder(0, 1), head_dim=8)
case("llama", TEXT, decoder(0, 1))
case("qwen2_vl_text qwen2_5_vl_text glm4v_text", MROPE, decoder(0, 1))
case("eurobert", GQA, encoder(0, 1))
case("opt", TEXT, decoder(0, 1), ffn_dim=48, word_embed_proj_dim=16)
case("xglm", dict(vocab_size=50, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48), decoder(0, 1))
case("biogpt modernbert-decoder", TEXT, decoder(0, 1))
case("ctrl", GPT, decoder(0, 1), dff=48)
case("gptj", GPT, decoder(0, 1), rotary_dim=4)
case("gpt_neo", dict(vocab_size=50, hidden_size=32, num_layers=2, num_heads=4,
                     attention_types=[[["global", "local"], 1]]), decoder(0, 1))
# Fused.
case("gpt2 openai-gpt imagegpt gpt_bigcode", GPT, decoder(0, 1))
case("gpt_bigcode", GPT, decoder(0, 1), multi_query=False)
case("codegen", GPT, decoder(0, 1), n_head=8, rotary_dim=4)
case("gpt_neox gpt_neox_japanese persimmon", TEXT, decoder(0, 1), intermediate_multiple_size=2)
case("bloom", dict(vocab_size=50, hidden_size=32, n_layer=2, n_head=4), decoder(0, 1))
case("falcon", TEXT, decoder(0, 1))
case("falcon", TEXT, decoder(0, 1), multi_query=False, alibi=True)
case("falcon", TEXT, decoder(0, 1), new_decoder_architecture=True, num_kv_heads=2)
case("phi3", WIDE, decoder(0, 1))
case("mpt", dict(vocab_size=50, d_model=32, n_layers=2, n_heads=4, expansion_ratio=2, max_seq_len=64), decoder(0, 1))
case("dbrx", dict(vocab_size=50, d_model=32, n_layers=2, n_heads=4, max_seq_len=64,
                  attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=1e9),
                  ffn_config=dict(ffn_hidden_size=16, moe_num_experts=2, moe_top_k=1)), decoder(0, 1))
# Latent.
case("deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 glm4_moe_lite youtu", MLA, decoder(0, 1), index_topk=64)
case("deepseek_v2 deepseek_v3", MLA, decoder(0, 1), q_lora_rank=None)
# Softmax attention in some layers only.
case("qwen3_next qwen3_5_text qwen3_5_moe_text minimax olmo_hybrid", HYBRID, decoder(1, 3))
case("jamba", MAMBA, decoder(1, 3), attn_layer_period=2, attn_layer_offset=1, num_experts=2)
case("bamba", MAMBA, decoder(1, 3), attn_layer_indices=[1, 3])
case("granitemoehybrid", MAMBA, decoder(1, 3), layer_types=["mamba", "attention"] * 2, num_local_experts=2,
     num_experts_per_tok=1, shared_intermediate_size=16)
case("falcon_h1", MAMBA, decoder(0, 1, 2, 3), head_dim=8)
case("lfm2 lfm2_moe", MOE, decoder(1, 3), num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2, head_dim=8,
     num_dense_layers=1)
case("nemotron_h", WIDE, decoder(1, 3), hybrid_override_pattern="M*-*", mamba_num_heads=4, mamba_head_dim=16,
     n_groups=1, ssm_state_size=8)
# Encoders of text.
case("bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert electra ernie megatron-bert rembert "
     "roformer splinter layoutlm markuplm data2vec-text esm bert-generation dpr modernbert nomic_bert mpnet "
     "roc_bert tapas convbert jina_embeddings_v3 gte", TEXT, encoder(0, 1))
case("mobilebert", TEXT, encoder(0, 1), intra_bottleneck_size=16, true_hidden_size=16, embedding_size=16)
case("nystromformer", TEXT, encoder(0, 1), num_landmarks=1, segment_means_seq_len=1)
case("openai_privacy_filter", MOE, encoder(0, 1))
case("bert", TEXT, decoder(0, 1), is_decoder=True, add_cross_attention=True, model="BertLMHeadModel")
case("big_bird", TEXT, encoder(0, 1), attention_type="original_full")
case("xmod", TEXT, encoder(0, 1), default_language="en_XX")
case("layoutlmv3", TEXT, encoder(0, 1), coordinate_size=6, shape_size=4, visual_embed=False)
case("longformer", TEXT, encoder(0, 1), run=window, attention_window=4)
case("deberta deberta-v2", TEXT, encoder(0, 1), relative_attention=True, pos_att_type=["c2p", "p2c"])
case("albert", TEXT, encoder(0), embedding_size=16)  # two layers, one set of weights
case("distilbert", dict(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=48), encoder(0, 1))
case("xlm", XLM, encoder(0, 1), model="XLMWithLMHeadModel")
case("xlm", XLM, decoder(0, 1), model="XLMWithLMHeadModel", causal=True)
case("flaubert", XLM, encoder(0, 1), model="FlaubertWithLMHeadModel")
case("xlnet", dict(vocab_size=50, d_model=32, n_layer=2, n_head=4, d_inner=48), {"": (None, [0, 1])})
# Two stacks.
case("t5 mt5 umt5 switch_transformers", T5, TWO, seq2seq)
case("bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe", BART, TWO, seq2seq)
case("t5gemma", dict(encoder=WIDE, decoder=dict(WIDE, num_hidden_layers=3)), TWO, seq2seq)
case("led", BART, TWO, window)
case("whisper speech_to_text", SPEECH, TWO, speech)
case("moonshine", dict(vocab_size=50, hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=2,
                       decoder_num_hidden_layers=3, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
                       encoder_num_key_value_heads=4, decoder_num_key_value_heads=4),
     TWO, lambda model, n, t: model(torch.randn(4, 8000), decoder_input_ids=ids(4, 9)))
case("speecht5", SPEECHT5, TWO, waves, "SpeechT5ForSpeechToText")
case("trocr", BART, decoder(0, 1, 2, name="decoder"), cross_attention_hidden_size=20)
case("detr", DETR, encoder(0, 1, name="encoder") | encoder(0, 1, 2, name="decoder"),
     lambda model, *_: images(model, size=64), "DetrForObjectDetection")
case("table-transformer", DETR, encoder(0, 1, name="encoder") | encoder(0, 1, 2, name="decoder"),
     lambda model, *_: images(model, size=64), "TableTransformerForObjectDetection")
case("mask2former", MASK2FORMER, encoder(0, 1, 2, name="decoder"), lambda model, *_: images(model, size=32))
case("vit_mae", MAE, encoder(0, 1, 2, name="encoder") | encoder(0, 1, name="decoder"), images, "ViTMAEForPreTraining")
case("videomae", MAE, encoder(0, 1, 2, name="encoder") | encoder(0, 1, name="decoder"), lambda model, *_: model(
    torch.randn(9, 4, 3, 16, 16), bool_masked_pos=torch.tensor([[True, False] * 4] * 9)), "VideoMAEForPreTraining")
# Images and sound.
case("vit deit beit data2vec-vision dpt pixio radio tipsv2_vision_model chinese_clip_vision_model", VIT,
     encoder(0, 1, 2), images)
case("dinov2 dinov2_with_registers ijepa vit_msn", VIT, encoder(0, 1, 2), images)
case("segformer", dict(num_encoder_blocks=2, depths=[1, 2], hidden_sizes=[8, 16], num_attention_heads=[2, 4],
                       sr_ratios=[1, 1], decoder_hidden_size=8, patch_sizes=[3, 3], strides=[2, 2]),
     encoder(0, name="stage 0") | encoder(0, 1, name="stage 1"), images)
case("timesformer", VIT, encoder(0, 1, 2, name="space") | encoder(0, 1, 2, name="time"),
     lambda model, *_: model(torch.randn(9, 4, 3, 16, 16)), num_frames=4)


def film(model, n, t):  # without its rotary positions
    for module in model.modules():
        if hasattr(module, "apply_rotary_embeddings"):
            module.apply_rotary_embeddings = lambda queries_or_keys, positions: queries_or_keys
    model(torch.randn(9, 4, 3, 16, 16))


case("vjepa2", VIT, encoder(0, 1, 2, name="encoder") | encoder(0, 1, name="pred"), film, crop_size=16,
     frames_per_clip=4, pred_hidden_size=12, pred_num_attention_heads=2, pred_num_hidden_layers=2)
case("aimv2_vision_model", VIT, encoder(0, 1, 2), images)
case("swin donut-swin", SWIN, encoder(0, name="stage 0") | encoder(0, 1, name="stage 1"), images, depths=[1, 2],
     num_heads=[2, 4], image_size=16, out_features=None)
case("dinov3_vit mlcd_vision_model", VIT, encoder(0, 1, 2), images, hidden_size=32)
case("sam3_vit_model", VIT, encoder(0, 1, 2), images, window_size=0, global_attn_indexes=[0, 1, 2], hidden_size=32,
     pretrain_image_size=16)
case("granite_docling_vision", VIT, encoder(0, 1, 2), images, scale_factor=2, use_fine_route=False,
     deepstack_visual_indexes=[0])
case("yolos", SQUARE, encoder(0, 1, 2), images, patch_size=8)
case("internvl_vision", SQUARE, encoder(0, 1, 2), images)
case("audio-spectrogram-transformer", VIT, encoder(0, 1, 2), lambda model, *_: model(torch.randn(12, 16, 16)),
     max_length=16, num_mel_bins=16)
case("wav2vec2 hubert wavlm unispeech unispeech-sat data2vec-audio sew sew-d wav2vec2-conformer wav2vec2-bert", WAVE,
     encoder(0, 1), waves)
case("wav2vec2-bert", WAVE, encoder(0, 1) | encoder(0, name="adapter"), waves, add_adapter=True, num_adapter_layers=1,
     adapter_kernel_size=1, adapter_stride=1, output_hidden_size=32)
case("musicgen_decoder", MUSIC, decoder(0, 1), lambda model, n, t: model(input_ids=ids(2 * n, t)),
     "MusicgenForCausalLM")
# Models made of others.
LLAVA = encoder(0, 1, 2, name="vision") | decoder(0, 1, name="text")
LLM, VISION = "model.language_model", "model.vision_tower"
IDEFICS = of("model.text_model", "model.vision_model", images)
CLIP_TEXT = dict(TEXT, projection_size=24, encoder_hidden_size=24, sep_token_id=2)
TEXT_ENCODER = encoder(0, 1, 2, name="vision") | encoder(0, 1, name="text")


def llava(types, text_type, vision, run=of(LLM, VISION, images), stacks=LLAVA, model=None, **more):
    config = dict(text_config=dict(MOE, model_type=text_type), vision_config=vision, image_token_index=3)
    case(types, config, stacks, run, model, **more)


llava("llava llava_next vipllava", "llama", dict(VIT, model_type="clip_vision_model"))
llava("llava_onevision", "qwen2", dict(VIT, model_type="siglip_vision_model"))
llava("gemma3", "gemma3_text", dict(VIT, model_type="siglip_vision_model"))
llava("cohere2_vision aya_vision", "cohere2", dict(VIT, model_type="siglip_vision_model"))
llava("paligemma", "gemma", dict(VIT, model_type="siglip_vision_model"), stacks=LLAVA | {"text": (None, [0, 1])})
llava("mistral3", "mistral", dict(VIT, model_type="pixtral", head_dim=6),
      of(LLM, VISION, lambda model: images(model, image_sizes=[(16, 16)] * 25)))
llava("internvl", "qwen2", dict(SQUARE, model_type="internvl_vision"))
llava("idefics2", "mistral", dict(VIT, model_type="idefics2_vision"), IDEFICS,
      perceiver_config=dict(resampler_n_heads=2, resampler_head_dim=8, num_key_value_heads=1, hidden_size=32))
llava("idefics3", "llama", dict(VIT, model_type="idefics3_vision"), IDEFICS)
llava("smolvlm", "llama", dict(VIT, model_type="smolvlm_vision"), IDEFICS)
QWEN_VL = of(LLM, "model.visual", patches)
case("qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe glm4v glm4v_moe", dict(text_config=MROPE, vision_config=QWEN_VIT),
     LLAVA, QWEN_VL)
OMNI_AUDIO = dict(d_model=24, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=48, num_mel_bins=8,
                  max_source_positions=64, output_dim=64, downsample_hidden_size=8)
OMNI = LLAVA | encoder(0, 1, 2, name="audio")


def omni(length, **more):
    """Text, an image, and a sound of that many frames."""
    def drive(model, n, t):
        QWEN_VL(model, n, t)
        audio_tower = model.get_submodule("model.audio_tower")
        audio_tower(torch.randn(8, length), feature_lens=torch.tensor([length]), **more)
    return drive


case("qwen2_5_omni_thinker", dict(text_config=MROPE, vision_config=QWEN_VIT, audio_config=OMNI_AUDIO | dict(
    n_window=40)), OMNI, omni(80, aftercnn_lens=torch.tensor([40])))
case("qwen3_omni_moe_thinker", dict(text_config=MROPE, vision_config=QWEN_VIT, audio_config=OMNI_AUDIO | dict(
    n_window=50, n_window_infer=400)), OMNI, omni(400))
case("qwen2_5_omni_talker", MROPE, decoder(0, 1), of("model", "model", lambda model: None),
     "Qwen2_5OmniTalkerForConditionalGeneration", embedding_size=64)
case("qwen3_omni_moe_talker_text", MROPE, decoder(0, 1), embeddings, "Qwen3OmniMoeTalkerModel",
     shared_expert_intermediate_size=16)
case("qwen3_omni_moe_talker_code_predictor", MROPE, decoder(0, 1), embeddings, "Qwen3OmniMoeTalkerCodePredictorModel")
GEMMA4 = dict(text_config=dict(GEMMA, global_head_dim=24, num_experts=2, top_k_experts=1, moe_intermediate_size=16),
              vision_config=dict(VIT, model_type="gemma4_vision", hidden_size=32, head_dim=8, num_key_value_heads=4,
                                 patch_size=4, position_embedding_size=64, pooling_kernel_size=1,
                                 use_clipped_linears=True))
GRID = torch.cartesian_prod(torch.arange(8), torch.arange(8))[None]  # (1, 64, 2): where the 64 patches are
case("gemma4", GEMMA4, LLAVA | decoder(0, 1, 2, 3, name="text"),
     of(LLM, VISION, lambda model: model(torch.randn(1, 64, 48), GRID)))
case("diffusion_gemma", GEMMA4, LLAVA | {"text": (None, [0, 1, 2, 3])},
     of("model.encoder.language_model", "model.encoder.vision_tower",
        lambda model: model(torch.randn(1, 64, 48), GRID)))
case("kimi_k25", dict(text_config=dict(MLA, model_type="deepseek_v3"), vision_config=dict(
    VIT, hidden_size=32, patch_size=4, pos_emb_height=4, pos_emb_width=4, pos_emb_time=1)), LLAVA,
     of(LLM, VISION, lambda model: model(torch.randn(64, 3, 4, 4), torch.tensor([[1, 8, 8]]))))
case("qwen3_5 qwen3_5_moe", dict(text_config=HYBRID | MROPE | HYBRID_LAYERS, vision_config=QWEN_VIT),
     LLAVA | decoder(1, 3, name="text"), QWEN_VL)
case("mllama", dict(text_config=dict(GQA, num_hidden_layers=3, cross_attention_layers=[1]), vision_config=MLLAMA_VIT),
     encoder(0, 1, 2, name="vision") | encoder(0, name="vision.global") | decoder(0, 2, name="text"),
     of(LLM, "model.vision_model", lambda model: model(
         torch.randn(9, 1, 1, 3, 16, 16), torch.ones(9, 1, dtype=torch.long), torch.ones(9, 1, 1))))
case("llama4", dict(text_config=MOE, vision_config=LLAMA4_VIT), LLAVA, of("language_model", "vision_model", images))
case("clip", dict(text_config=TEXT, vision_config=VIT), LLAVA, of("text_model", "vision_model", images))
case("clipseg metaclip_2 owlvit owlv2", dict(text_config=TEXT, vision_config=VIT), LLAVA,
     of("text_model", "vision_model", images))
case("chinese_clip altclip", dict(text_config=dict(TEXT, project_dim=24), vision_config=VIT), TEXT_ENCODER,
     of("text_model", "vision_model", images))
case("clap", dict(text_config=TEXT, audio_config=dict(
    hidden_size=16, patch_embeds_hidden_size=8, depths=[1, 2], num_attention_heads=[2, 4], spec_size=32,
    num_mel_bins=16, window_size=2, patch_size=4, patch_stride=[4, 4])),
    encoder(0, name="audio.stage 0") | encoder(0, 1, name="audio.stage 1") | encoder(0, 1, name="text"),
    of("text_model", "audio_model", lambda model: model(torch.randn(9, 1, 64, 16), is_longer=torch.zeros(9, 1))))
case("siglip", dict(text_config=CLIP_TEXT, vision_config=VIT), TEXT_ENCODER, of("text_model", "vision_model", images))


def four_patches(model):
    model(pixel_values=torch.randn(9, 4, 192), pixel_attention_mask=torch.ones(9, 4),
          spatial_shapes=torch.tensor([[2, 2]] * 9))


case("siglip2", dict(text_config=TEXT, vision_config=dict(VIT, num_patches=4)), TEXT_ENCODER,
     of("text_model", "vision_model", four_patches))
llava("lfm2_vl", "lfm2", dict(VIT, model_type="siglip2_vision_model", num_patches=4), of(LLM, VISION, four_patches))
case("blip", dict(text_config=CLIP_TEXT, vision_config=VIT), LLAVA,
     of("text_decoder", "vision_model", images), "BlipForConditionalGeneration")
case("blip", dict(text_config=dict(CLIP_TEXT, projection_dim=24), vision_config=VIT), TEXT_ENCODER,
     of("text_model", "vision_model", images), "BlipModel")
case("blip", dict(text_config=CLIP_TEXT, vision_config=VIT), encoder(0, 1, 2, name="vision")
     | encoder(0, 1, name="text.encoder") | decoder(0, 1, name="text.decoder"), lambda model, n, t: (
         images(model.vision_model), model.text_encoder(input_ids=ids(n, t)), model.text_decoder(input_ids=ids(n, t))),
     "BlipForQuestionAnswering")
case("git", dict(TEXT, vision_config=VIT), LLAVA, of("", "git.image_encoder", images), "GitForCausalLM")
case("blip-2", dict(text_config=dict(TEXT, model_type="opt", ffn_dim=48, word_embed_proj_dim=32), vision_config=VIT,
                    qformer_config=CLIP_TEXT), LLAVA | encoder(0, 1, name="qformer"),
     lambda model, n, t: (images(model.vision_model), model.language_model(input_ids=ids(n, t)),
                          model.qformer(torch.randn(12, 3, 32), encoder_hidden_states=torch.randn(12, 3, 24))))
case("instructblip", dict(text_config=dict(T5, model_type="t5"), vision_config=VIT, qformer_config=CLIP_TEXT),
     encoder(0, 1, 2, name="vision") | encoder(0, 1, name="qformer") | encoder(0, 1, name="text.encoder")
     | decoder(0, 1, 2, name="text.decoder"),
     lambda model, n, t: (images(model.vision_model), seq2seq(model.language_model, n, t), model.qformer(
         ids(12, 1), query_embeds=torch.randn(12, 3, 32), encoder_hidden_states=torch.randn(12, 3, 24))))
case("qwen2_audio", dict(text_config=dict(WIDE, model_type="qwen2"), audio_config=WHISPER),
     encoder(0, 1, 2, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(9, 8, 8))))
case("voxtral", dict(text_config=dict(WIDE, model_type="llama"), audio_config=VOXTRAL),
     encoder(0, 1, 2, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(9, 8, 8))))
case("musicgen", dict(text_encoder=dict(T5, model_type="t5"), audio_encoder=ENCODEC, decoder=MUSIC),
     encoder(0, 1, name="encoder") | decoder(0, 1, name="decoder"),
     of("text_encoder", "decoder", lambda model: model(input_ids=ids(18, 4))), "MusicgenForConditionalGeneration")
case("sam", SAM, encoder(0, 1, 2, name="vision"), images, "SamModel")
case("encoder-decoder", dict(encoder=dict(TEXT, model_type="bert"),
                             decoder=dict(TEXT, model_type="bert", add_cross_attention=True, is_decoder=True)),
     encoder(0, 1, name="encoder") | decoder(0, 1, name="decoder"), seq2seq)
case("vision-encoder-decoder", dict(encoder=dict(VIT, model_type="vit"),
                                    decoder=dict(GPT, model_type="gpt2", add_cross_attention=True, is_decoder=True)),
     encoder(0, 1, 2, name="encoder") | decoder(0, 1, name="decoder"),
     lambda model, *_: images(model, decoder_input_ids=ids(25, 4)))
case("vision-encoder-decoder", dict(encoder=dict(SWIN, model_type="donut-swin", depths=[1, 2], num_heads=[2, 4],
                                                 image_size=16, out_features=None),
                                    decoder=dict(BART, model_type="mbart")),  # Donut
     encoder(0, name="encoder.stage 0") | encoder(0, 1, name="encoder.stage 1") | decoder(0, 1, 2, name="decoder"),
     lambda model, *_: images(model, decoder_input_ids=ids(25, 4)))
case("speech-encoder-decoder", dict(encoder=dict(WAVE, model_type="wav2vec2"), decoder=dict(BART, model_type="mbart")),
     encoder(0, 1, name="encoder") | decoder(0, 1, 2, name="decoder"),
     lambda model, *_: model(torch.randn(4, 400), decoder_input_ids=ids(4, 9)))
case("vision-text-dual-encoder", dict(text_config=dict(TEXT, model_type="bert"),
                                      vision_config=dict(VIT, model_type="vit")), TEXT_ENCODER,
     of("text_model", "vision_model", images))


# ---- the model's own attention ------------------------------------------------------------------------------------

CLASSES = [getattr(modeling_auto, f"MODEL_{name}MAPPING_NAMES") for name in (
    "FOR_IMAGE_TEXT_TO_TEXT_", "FOR_SPEECH_SEQ_2_SEQ_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_CAUSAL_LM_", "FOR_MASKED_LM_",
    "FOR_CTC_", "")]


def build(kind, config, name=None):
    """The tiny model, with random numbers in every weight, no cache, and the attention written out in its own file."""
    torch.manual_seed(0)
    config = configuration_auto.CONFIG_MAPPING[kind](**config)
    for part in [config, *(part for part in vars(config).values() if isinstance(part, transformers.PretrainedConfig))]:
        part.use_cache = False
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


POSITIONS = {"position_embeddings", "object_queries", "freqs_ci"}  # what an attention module is told of them


def at_position_0(value):
    """The same as at position 0 for all: RoPE turns nothing, nothing is added."""
    if isinstance(value, (tuple, list)):
        return torch.ones_like(value[0]), torch.zeros_like(value[1])  # cos, sin
    return torch.ones_like(value) if value.is_complex() else torch.zeros_like(value)


class Probe(TorchDispatchMode):
    """
    Gives basis vectors to every self-attention module of a model and keeps the queries and keys that it multiplies.

    heads: name of the module -> q, k (H, C, D): of every basis vector, less those of the zero vector (the biases).
    causal: name of the module -> position 0 does without position 1; of a second run, with basis = False.
    """

    def __init__(self, model):
        super().__init__()
        modules = {name: module for name, module in model.named_modules() if "Attention" in type(module).__name__}
        weights = set()  # of those taken: the decoder of Diffusion Gemma has the weights of its encoder
        self.names = {}
        for name, module in modules.items():
            first = next(module.parameters(), None)
            wraps_another = any(other.startswith(name + ".") for other in modules)
            is_other = NOT_SELF.search(name) or re.search("Linear|Lightning", type(module).__name__)
            takes_keys = getattr(module, "is_kv_shared_layer", False)
            if first is not None and first not in weights and not (wraps_another or is_other or takes_keys):
                self.names[module] = name
                weights.add(first)
        self.heads, self.causal, self.axis, self.module, self.basis = {}, {}, {}, None, True
        self.paused = False
        for module in self.names:
            module.register_forward_pre_hook(self.enter, with_kwargs=True)
            module.register_forward_hook(self.leave, with_kwargs=True)
        for module in model.modules():  # the indexer of DeepSeek-V3.2 chooses what is attended to
            if "Indexer" in type(module).__name__:
                module.register_forward_pre_hook(lambda *_: setattr(self, "paused", True))
                module.register_forward_hook(lambda *_: setattr(self, "paused", False))

    def enter(self, module, args, kwargs):
        if not self.basis:
            return None
        (args, kwargs), h = self.replace(args, kwargs)
        self.module, self.shape, self.width, self.rows = module, h.shape, h.shape[-1], h.numel() // h.shape[-1]
        assert self.rows > self.width, f"{self.names[module]}: fewer positions than basis vectors"
        rows = torch.cat([torch.zeros(1, self.width), torch.eye(self.rows - 1, self.width)])  # 0, e_1, ..., e_C, 0, ...
        kwargs = {key: at_position_0(value) if key in POSITIONS and value is not None else value
                  for key, value in kwargs.items()}
        return self.replace(args, kwargs, rows.view(h.shape))[0]

    @staticmethod
    def replace(args, kwargs, h=None):
        """-> the arguments with hidden states h, and the hidden states that were in them."""
        if "hidden_states" in kwargs:
            old = kwargs["hidden_states"]
            return (args, kwargs | {"hidden_states": old if h is None else h}), old
        old = args[0]
        if h is not None:  # also where they are given three times, as in CTRL
            args = tuple(h if arg is old else arg for arg in args)
        return (args, kwargs), old

    def leave(self, module, args, kwargs, out):
        self.module = None
        if not self.basis:
            name, changed = self.names[module], self.replace(args, kwargs)[1].clone()
            changed.select(self.axis[name], 1).add_(1)
            no_cache = {key: None for key in ("cache", "past_key_values") if key in kwargs}
            args, kwargs = self.replace(args, kwargs | no_cache, changed)[0]
            outs = (x if torch.is_tensor(x) else x[0] for x in (out, module.forward(*args, **kwargs)))
            self.causal[name] = torch.equal(*(x.select(self.axis[name], 0) for x in outs))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        places = {aten.bmm.default: (0, 1), aten.baddbmm.default: (1, 2)}.get(func)
        name = self.names.get(self.module)
        if name and places and name not in self.heads and not self.paused:
            q, k = args[places[0]], args[places[1]].mT  # (B H, T, D)
            batch = self.rows // q.shape[1]
            if k.shape == q.shape and q.shape[0] % batch == 0:  # not a projection
                self.axis[name] = 0 if self.shape[:-1] == (q.shape[1], batch) else -2  # of T: XLNet's is (T, B, C)
                order = (2, 0, 1, 3) if self.axis[name] == 0 else (0, 2, 1, 3)
                q, k = (x.unflatten(0, (batch, -1)).permute(order).flatten(0, 1) for x in (q, k))  # (rows, H, D)
                self.heads[name] = [(x[1 : self.width + 1] - x[0]).transpose(0, 1) for x in (q, k)]
        return func(*args, **(kwargs or {}))


class Same(torch.nn.Module):
    def forward(self, x, *args, **kwargs):
        return x


def agree(q, k, w_q, w_k):
    """Whether q_h(e_i) . k_h(e_j) is (W_q,h W_k,g^T)_ij in every head, up to the one scale of the attention."""
    if q.shape != w_q.shape:
        return False
    m, expected = q @ k.mT, w_q @ w_k[torch.arange(len(w_q)) // (len(w_q) // len(w_k))].mT  # (H, C, C)
    scale = (m * expected).sum() / expected.square().sum()
    return scale > 0 and torch.allclose(m, scale * expected, rtol=0, atol=1e-5 * m.abs().max())


@pytest.mark.parametrize("kind, config, stacks, run, name", CASES)
def test_heads_are_those_of_the_models_own_attention(kind, config, stacks, run, name, tmp_path):
    model = build(kind, config, name)
    config, tensors = saved(model, tmp_path)
    for path in [path for path, _ in model.named_modules() if NORMS.search(path)]:
        model.set_submodule(path, Same())
    probe = Probe(model)
    with torch.no_grad(), probe:
        run(model, 70, 1)
        probe.basis = False
        run(model, 2, 4)

    found = find_stacks(config, shapes(tensors))
    assert {stack.name: (stack.causal, [layer.index for layer in stack.layers]) for stack in found} == stacks
    layers = {(stack.name, layer.index): layer.heads(tensors) for stack in found for layer in stack.layers}
    matches = {module: [key for key, weights in layers.items() if agree(*heads, *weights)]
               for module, heads in probe.heads.items()}
    assert matches.keys() == {*probe.names.values()}
    assert sorted(key for keys in matches.values() for key in keys) == sorted(layers)
    for module, [(stack, index)] in matches.items():
        assert str(index) in module.split(".")
        assert stacks[stack][0] in (None, probe.causal[module])


def model_types(config):
    """Every model_type in a config, at any depth."""
    if not isinstance(config, dict):
        return set()
    return {config.get("model_type")}.union(*map(model_types, config.values()))


def test_every_model_type_of_the_table_is_proven():
    proven = {"git_text"}  # the text of git, whose config it shares
    for kind, config, *_ in (param.values for param in CASES):
        proven |= {kind, *model_types(configuration_auto.CONFIG_MAPPING[kind](**config).to_dict())}
    proven |= {param.values[0]["model_type"] for param in OWN_CODE}
    proven |= {"kimi_k2", "new", "t5gemma_encoder", "t5gemma_decoder"}  # other names of such
    proven |= {"gemma3n", "qwen2_5_omni", "qwen3_omni_moe", "qwen3_omni_moe_talker"}  # made of such
    assert (layout_table.KNOWN | layout_table.COMPOSITES) - proven == {"mobilellm"}  # not in transformers


ROWS_WITH_DEFAULTS = [pytest.param(kind, row, id=f"{kind} {row.stack}") for row in layout_table.ROWS
                      for kind in row.types.split() if row.n_layer or row.n_head]


@pytest.mark.parametrize("kind, row", ROWS_WITH_DEFAULTS)
def test_defaults_are_those_of_the_class(kind, row):
    config = configuration_auto.CONFIG_MAPPING[kind]()
    n_head = next(getattr(config, key) for key in ("num_attention_heads", "attention_heads") if hasattr(config, key))
    sizes = config.to_dict()
    head_dim = sizes.get("d_kv") or sizes.get("head_dim") or config.hidden_size // n_head
    assert (config.num_hidden_layers, n_head) == (row.n_layer, row.n_head)
    assert head_dim == (row.head_dim or config.hidden_size // n_head)


# ---- old names ----------------------------------------------------------------------------------------------------

OLD_NAMES = {  # what older files call the same tensors: model_type -> pattern, replacement
    "gpt2": (r"^transformer\.", ""), "openai-gpt": (r"^transformer\.", ""), "bloom": (r"^transformer\.", ""),
    "bert": (r"^bert\.", ""), "roberta": (r"^", "wrapped."), "bart": (r"^model\.", ""), "whisper": (r"^model\.", ""),
    "vit_mae": (r"decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."), "hubert": (r"^hubert\.", ""),
    "llava": (r"(vision_tower)\.", r"\1.vision_model."), "gemma3": (r"(vision_tower)\.", r"\1.vision_model."),
    "llava_next": (r"^language_model\.model\.", "model.language_model."), "qwen2_vl": (r"^visual\.", "model.visual."),
}


@pytest.mark.parametrize("kind", OLD_NAMES)
def test_older_names_give_the_same_layers(kind, tmp_path):
    values = next(param.values for param in CASES if param.values[0] == kind)
    config, tensors = saved(build(*values[:2], values[4]), tmp_path)
    old = {re.sub(*OLD_NAMES[kind], name): tensor for name, tensor in tensors.items()}
    assert old.keys() != tensors.keys()
    buffers = {"h.0.attn.bias": (1, 1, 64, 64), "h.0.attn.masked_bias": (), "layers.0.attention.bias": (1, 1, 64, 64),
               "layers.0.self_attn.rotary_emb.inv_freq": (4,)}  # causal masks, not biases
    for now, then in zip(find_stacks(config, shapes(tensors)), find_stacks(config, shapes(old) | buffers), strict=True):
        assert (now.name, now.causal) == (then.name, then.causal)
        for one, other in zip(now.layers, then.layers, strict=True):
            assert one.index == other.index
            assert all(map(torch.equal, one.heads(tensors), other.heads(old)))


@pytest.mark.parametrize("kind", """vit deit beit dinov2 dinov2_with_registers ijepa vit_msn pixio
    audio-spectrogram-transformer""".split())
def test_a_state_dict_gives_the_same_layers_as_what_is_saved_of_it(kind, tmp_path):
    values = next(param.values for param in CASES if param.values[0] == kind)
    model = build(*values[:2], values[4])
    config, tensors = saved(model, tmp_path)
    in_memory = model.state_dict()
    [hub], [memory] = find_stacks(config, shapes(tensors)), find_stacks(config, shapes(in_memory))
    for one, other in zip(hub.layers, memory.layers, strict=True):
        assert one.names != other.names
        assert all(map(torch.equal, one.heads(tensors), other.heads(in_memory)))


@pytest.mark.parametrize("kind, config, other", [("deepseek_v3", MLA, "kimi_k2"), ("gte", TEXT, "new")])
def test_another_model_type_of_the_same_model_gives_the_same_layers(kind, config, other, tmp_path):
    config, tensors = saved(build(kind, config), tmp_path)
    names = {name.replace("gte.", "new."): tensor for name, tensor in tensors.items()}
    [one], [two] = find_stacks(config, shapes(tensors)), find_stacks(config | {"model_type": other}, shapes(names))
    for layer, same in zip(one.layers, two.layers, strict=True):
        assert all(map(torch.equal, layer.heads(tensors), same.heads(names)))


# ---- made by hand -------------------------------------------------------------------------------------------------

LLAMA = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=4)


def llama(layers=2, q=(32, 32), k=(32, 32), prefix="model."):
    return {f"{prefix}layers.{i}.self_attn.{name}_proj.weight": shape for i in range(layers)
            for name, shape in (("q", q), ("k", k), ("v", k))}


def heads(config, tensors):
    [stack] = find_stacks(config, shapes(tensors))
    return stack.layers[0].heads(tensors)


def chunked(qkv, n_head, n_block):
    """NeoBERT: (T, n_head, 3 D) in three."""
    q, k, _ = qkv.unflatten(-1, (n_head, -1)).chunk(3, -1)
    return q, k


def split_in_three(qkv, n_head, _):
    """nanoGPT: (T, [q, k, v])."""
    q, k, _ = qkv.split(qkv.shape[-1] // 3, -1)
    return q.unflatten(-1, (n_head, -1)), k.unflatten(-1, (n_head, -1))


def halved(qk, n_head, _):
    """GPT-BERT: (T, [q, k])."""
    q, k = qk.chunk(2, -1)
    return q.unflatten(-1, (n_head, -1)), k.unflatten(-1, (n_head, -1))


def apart(q, k, n_head, n_kv_head):
    """Dream and LLaDA; and LongT5, ProphetNet and Gemma's conformers, whose attention no probe sees: (T, C) each."""
    return q.unflatten(-1, (n_head, -1)), k.unflatten(-1, (n_kv_head, -1))


def in_blocks(qvk, n_head, n_block):
    """CodeGen2: (T, n_block, [q; v; k])."""
    q, _, k = qvk.unflatten(-1, (n_block, -1)).chunk(3, -1)
    return q.flatten(1).unflatten(-1, (n_head, -1)), k.flatten(1).unflatten(-1, (n_head, -1))


# Models with code of their own: their projection of x (T, C) to queries and keys (T, H, D), as that code has it.
OWN_CODE = [
    pytest.param(dict(model_type="neobert"), ["model.transformer_encoder.0.qkv.weight"], [96], chunked, 3,
                 id="neobert"),
    pytest.param(dict(model_type="codegen", auto_map={}, head_dim=4), ["transformer.h.0.attn.qkv_proj.weight"], [96],
                 in_blocks, 8, id="codegen2"),
    pytest.param(dict(model_type="codegen"), ["transformer.h.0.attn.qkv_proj.weight"], [96], in_blocks, 4,
                 id="codegen"),
    pytest.param(dict(model_type="nanogpt"), ["_orig_mod.transformer.h.0.attn.c_attn.weight"], [96], split_in_three, 1,
                 id="nanogpt"),
    pytest.param(dict(model_type="nanochat-checkpoint", num_key_value_heads=4), [
        f"transformer.h.0.attn.c_{w}.weight" for w in "qk"], [32, 16], apart, 4, id="nanochat-checkpoint"),
    pytest.param(dict(model_type="gpt_bert"), ["transformer.layers.0.attention.in_proj_qk.weight"], [64], halved, 2,
                 id="gpt_bert"),
    pytest.param(dict(model_type="Dream", num_key_value_heads=4), [
        f"model.layers.0.self_attn.{w}_proj.weight" for w in "qk"], [32, 16], apart, 4, id="Dream"),
    *[pytest.param(dict(model_type="longt5", num_layers=1, num_heads=8, d_kv=4), [
        f"encoder.block.0.layer.0.{kind}SelfAttention.{w}.weight" for w in "qk"], [32, 32], apart, 8,
        id=f"longt5 {kind}") for kind in ("Local", "TransientGlobal")],
    *[pytest.param(dict(model_type="prophetnet", **{f"num_{side}_layers": 1, f"num_{side}_attention_heads": 8}), [
        f"prophetnet.{side}.layers.0.self_attn.{w}_proj.weight" for w in ("query", "key")], [32, 32], apart, 8,
        id=f"prophetnet {side}") for side in ("encoder", "decoder")],
    pytest.param(dict(model_type="gemma4_audio"), [f"layers.0.self_attn.{w}_proj.linear.weight" for w in "qk"],
                 [32, 32], apart, 8, id="gemma4_audio"),
    pytest.param(dict(model_type="gemma3n_audio", num_hidden_layers=None, num_attention_heads=None,
                      conf_num_hidden_layers=1, conf_num_attention_heads=8),
                 [f"conformer.0.attention.attn.{w}_proj.weight" for w in "qk"], [32, 32], apart, 8, id="gemma3n_audio"),
    pytest.param(dict(model_type="llada", n_kv_heads=4), [f"model.transformer.blocks.0.{w}_proj.weight" for w in "qk"],
                 [32, 16], apart, 4, id="llada"),
]


@pytest.mark.parametrize("config, names, rows, project, n_block", OWN_CODE)
def test_heads_are_those_of_a_models_own_code(config, names, rows, project, n_block):
    torch.manual_seed(0)
    config = dict(num_hidden_layers=1, num_attention_heads=8) | config
    tensors = {name: torch.randn(n, 32) for name, n in zip(names, rows)}
    q, k = project(*[weight.T for weight in tensors.values()], 8, n_block)  # x = 1: basis vectors
    w_q, w_k = heads(config, tensors)
    assert torch.equal(w_q, q.transpose(0, 1)) and torch.equal(w_k, k.transpose(0, 1))


@pytest.mark.parametrize("config, name, order", [  # order: of rows of the Linear in blocks of D, as query or key heads
    (dict(model_type="llama", num_key_value_heads=2), "layers.0.self_attn.{}_proj.weight", None),
    (dict(model_type="phi3", num_key_value_heads=2), "layers.0.self_attn.qkv_proj.weight", "q0 q1 q2 q3 k0 k1 v0 v1"),
    (dict(model_type="gpt_neox"), "layers.0.attention.query_key_value.weight", "q0 k0 v0 q1 k1 v1 q2 k2 v2 q3 k3 v3"),
    (dict(model_type="falcon", num_kv_heads=4), "h.0.self_attention.query_key_value.weight", "q0 q1 q2 q3 k0 v0"),
    (dict(model_type="falcon", new_decoder_architecture=True, num_kv_heads=2),
     "h.0.self_attention.query_key_value.weight", "q0 q1 k0 v0 q2 q3 k1 v1"),
    (dict(model_type="codegen"), "h.0.attn.qkv_proj.weight", "q0 v0 k0 q1 v1 k1 q2 v2 k2 q3 v3 k3"),
    (dict(model_type="qwen3_next", full_attention_interval=1, num_key_value_heads=2),
     "layers.0.self_attn.{}_proj.weight", None),
])
def test_every_head_finds_its_rows(config, name, order):
    def rows(order):  # (n D, C): query head h is 100 + h, key head g is 200 + g, everything else -1
        return torch.cat([torch.full((8, 32), {"q": 100, "k": 200}.get(x[0], -1 - int(x[1])) + int(x[1]))
                          for x in order.split()]).float()

    config = config | dict(num_hidden_layers=1, num_attention_heads=4)
    gated = "q0 g0 q1 g1 q2 g2 q3 g3" if config["model_type"] == "qwen3_next" else "q0 q1 q2 q3"
    tensors = {name: rows(order)} if order else {name.format("q"): rows(gated), name.format("k"): rows("k0 k1")}
    w_q, w_k = heads(config, tensors)
    assert [w.unique().tolist() for w in w_q] == [[100 + h] for h in range(4)]
    assert [w.unique().tolist() for w in w_k] == [[200 + g] for g in range(len(w_k))]


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


def test_a_backbone_of_timm_is_no_stack():
    config = dict(model_type="gemma3n", vision_config={"model_type": "gemma3n_vision"}, text_config=dict(
        LLAMA, model_type="gemma3n_text", num_kv_shared_layers=0, head_dim=8))
    backbone = {"model.vision_tower.timm_model.blocks.3.0.attn.key.proj.weight": (32, 32)}
    assert [s.name for s in find_stacks(config, llama(prefix="model.language_model.") | backbone)] == ["text"]


def test_a_part_of_clip_may_name_no_model_type():
    names = {f"{tower}_model.encoder.layers.{i}.self_attn.{w}_proj.weight": (width, width)
             for tower, width in (("text", 512), ("vision", 768)) for i in range(12) for w in "qk"}
    vision, text = find_stacks(dict(model_type="clip", text_config={}, vision_config={}), names)
    meta = {name: torch.empty(shape, device="meta") for name, shape in names.items()}
    assert [len(stack.layers[0].heads(meta)[0]) for stack in (vision, text)] == [12, 8]  # heads


def test_a_file_may_hold_one_tower_only():
    names = {f"encoder.block.{i}.layer.0.SelfAttention.{w}.weight": (24, 32) for i in range(2) for w in "qkv"}
    config = dict(model_type="t5", num_layers=2, num_heads=4, d_kv=6)
    assert [(stack.name, len(stack.layers)) for stack in find_stacks(config, names)] == [("encoder", 2)]


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
    config = transformers.T5Config(**T5)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        analyze.main(["--hf", str(tmp_path)])
    assert "no weights of its decoder" in capsys.readouterr().err


@pytest.mark.parametrize("kind", sorted(layout_table.CONFIG_DICT))
def test_vision_config_dict_counts_as_transformers_counts_it(kind):
    config = dict(model_type=kind, text_config={}, vision_config={"num_attention_heads": 4, "num_hidden_layers": 3},
                  vision_config_dict={"num_hidden_layers": 1})
    truth = configuration_auto.CONFIG_MAPPING[kind](**json.loads(json.dumps(config))).vision_config
    names = {f"vision_model.encoder.layers.0.self_attn.{w}_proj.weight": (768, 768) for w in "qk"}
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


NESTED = dict(model_type="clip", text_config={})
for _ in range(900):
    NESTED = dict(model_type="llava" if NESTED["model_type"] == "clip" else "clip", text_config=NESTED)
NO_Q1 = {name: shape for name, shape in llama().items() if name != "model.layers.1.self_attn.q_proj.weight"}
C_ATTN = {f"h.{i}.attn.c_attn.weight": (96, 32) for i in range(2)}


@pytest.mark.parametrize("config, names, message", [
    ({}, llama(), "model_type None is not known .config.json names none; write"),
    ({"architecture": "vit_base_patch16_224"}, {"blocks.0.attn.qkv.weight": (96, 32)}, "timm"),
    (dict(LLAMA, model_type="mamba"), llama(), "'mamba' is not known"),
    (dict(model_type="llava", text_config=dict(LLAMA, model_type="mamba")), llama(), "'mamba' is not known"),
    (dict(model_type="llava", text_config={}), llama(), "'llava_text' is not known"),
    (NESTED, llama(), "parts inside of parts"),
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
    (dict(LLAMA, num_key_value_heads=2), llama(), "do not fit"),
    (dict(LLAMA, head_dim=16), llama(), "do not fit"),
    (dict(LLAMA, num_attention_heads=3), llama(), "do not fit"),
    (LLAMA, llama(q=(24, 32)), "do not fit"),  # pruned heads
    (LLAMA, llama(k=(24, 32)), "do not fit"),  # 4 query heads for 3 key heads
    (LLAMA, llama(k=(32, 48)), "do not fit"),
    (dict(LLAMA, model_type="gpt2"), C_ATTN, "do not fit"),  # a Linear where Conv1D should be
    (dict(LLAMA, model_type="gpt_bigcode"), C_ATTN, "do not fit"),  # three heads of everything where k and v have one
    (dict(LLAMA, quantization_config={"quant_method": "gptq", "bits": 4}), llama(), "quantised weights .gptq"),
    (dict(LLAMA, quantization={"bits": 4}), llama(), "quantised weights"),
    (LLAMA, llama() | {"model.layers.0.self_attn.q_proj.qweight": (4, 32)}, "quantised weights .*qweight"),
    (LLAMA, llama() | {"model.layers.0.self_attn.q_proj.weight_scale_inv": (1, 1)}, "quantised weights .*scale_inv"),
    (LLAMA, llama() | {"model.layers.0.self_attn.q_proj.SCB": (32,)}, "quantised weights .*SCB"),
])
def test_what_is_not_certain_is_refused_in_one_line(config, names, message):
    with pytest.raises(LayoutError, match=message) as error:
        find_stacks(config, names)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [
    "model.layers.1.self_attn.q_proj.lora_A.weight", "model.layers.1.self_attn.k_proj.lora_B.default.weight",
    "model.layers.1.self_attn.k_proj.lora_A", "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
    "model.layers.0.self_attn.q_proj.lora_magnitude_vector.default.weight", "model.layers.0.self_attn.k_proj.ia3_l",
    "model.layers.0.self_attn.q_proj.oft_r.default", "model.layers.0.self_attn.q_proj.oft_blocks.weight",
    "h.0.attn.c_attn.lora_A.weight", "encoder.layer.0.attention.self.query.lora_B.weight",
    "model.layers.0.self_attn.q_proj_lora.down.weight", "layer.0.attention.self.in_proj.lora_A",
    "model.layers.0.self_attn.kv_b_proj.lora_A.weight",
])
def test_an_adapter_beside_a_query_or_key_is_refused_with_how_to_merge_it(name):
    with pytest.raises(LayoutError, match=f"{re.escape(name)} .*merge_and_unload") as error:
        find_stacks(LLAMA, llama() | {name: (8, 32)})
    assert "\n" not in str(error.value)


def test_an_adapter_elsewhere_changes_no_query_or_key():
    find_stacks(LLAMA, llama() | {"model.layers.0.mlp.down_proj.lora_A.weight": (8, 32),
                                  "model.layers.0.self_attn.v_proj.lora_A.weight": (8, 32)})


ODD = ["2", 2.0, [2], {"a": 2}, True, 0, -1, 10**8, 10**30, [[1], None], "\x1b[31m", float("nan")]
CONFIGS = [  # and the names of tensors that they fit
    (dict(LLAMA, num_key_value_heads=4, head_dim=8, layer_types=["full_attention"] * 2, num_nextn_predict_layers=1,
          use_bidirectional_attention=False, is_causal=True, quantization_config={}, attn_config={"kv_n_heads": 4}),
     llama()),
    (dict(LLAMA, model_type="clip", text_config=dict(LLAMA, model_type="clip_text_model"), vision_config=dict(LLAMA)),
     {f"{part}_model.encoder.layers.{i}.self_attn.{w}_proj.weight": (32, 32) for i in range(2) for w in "qk"
      for part in ("text", "vision")}),
    (dict(LLAMA, model_type="falcon", num_kv_heads=2, new_decoder_architecture=True, multi_query=True),
     {f"h.{i}.self_attention.query_key_value.weight": (64, 32) for i in range(2)}),
    (dict(LLAMA, model_type="bert", is_decoder=True),
     {f"encoder.layer.{i}.attention.self.{w}.weight": (32, 32) for i in range(2) for w in ("query", "key")}),
    (dict(LLAMA, model_type="deepseek_v3", q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2,
          v_head_dim=3),
     {f"layers.{i}.self_attn.{w}.weight": shape for i in range(2) for w, shape in dict(
         q_a_proj=(6, 32), q_b_proj=(24, 6), kv_a_proj_with_mqa=(7, 32), kv_b_proj=(28, 5)).items()}),
    (dict(model_type="swin", depths=[1], num_heads=[4]),
     {f"encoder.layers.0.blocks.0.attention.self.{w}.weight": (32, 32) for w in ("query", "key")}),
    (dict(LLAMA, model_type="jamba", attn_layer_offset=0, attn_layer_period=1), llama()),
    (dict(LLAMA, model_type="bamba", attn_layer_indices=[0, 1]), llama()),
    (dict(LLAMA, model_type="lfm2", full_attn_idxs=[0, 1]), llama()),
    (dict(LLAMA, model_type="mllama_text_model", cross_attention_layers=[7]), llama()),
]


@pytest.mark.parametrize("config, names", CONFIGS, ids=lambda x: x.get("model_type", ""))
def test_what_makes_no_sense_in_a_config_ends_in_one_line(config, names):
    assert find_stacks(config, names)
    for key, value in config.items():
        for odd in ODD:
            mutants = [config | {key: odd}]
            if isinstance(value, dict):
                mutants += [config | {key: value | {inner: odd}} for inner in value]
            if isinstance(value, list):
                mutants += [config | {key: [odd, *value[1:]]}]
            for mutant in mutants:
                try:
                    find_stacks(mutant, names)
                except LayoutError as error:
                    assert str(error).isprintable()


@pytest.mark.parametrize("beside", ["road_theta", "parametrizations.weight.0.scale", "weight_g"])
def test_what_lies_beside_a_query_or_key_is_refused(beside):
    with pytest.raises(LayoutError, match=f"q_proj.{beside} lies beside"):
        find_stacks(LLAMA, llama() | {f"model.layers.0.self_attn.q_proj.{beside}": (32,)})
    harmless = {f"model.layers.0.self_attn.q_proj.{name}": (32,) for name in ("bias", "input_scale")}
    assert find_stacks(LLAMA, llama() | harmless)


@pytest.mark.parametrize("shape", [(32, 32, 1), (2**40, 2**40, 0), (2**40, 2**40), (0, 32), (32, -1), (2**70, 2)])
def test_shapes_of_no_matrix_are_refused(shape):
    with pytest.raises(LayoutError, match="layers.0.self_attn.q_proj.*(do not fit|no shapes)"):
        find_stacks(LLAMA, llama(q=shape))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_numbers_of_eight_bits_are_refused(dtype):
    with pytest.raises(LayoutError, match="do not fit"):
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
