"""
The smallest models of transformers that have a layout each: CASES, for tests/test_layouts.py.

A case is a model_type, its config, the stacks that must be found, how the model is run, and the name of its class if it
is not the first of CLASSES.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

transformers = pytest.importorskip("transformers")
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# ---- configs that several share -----------------------------------------------------------------------------------

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
             mamba_d_state=8, mamba_dt_rank=4, mamba_chunk_size=8, use_mamba_kernels=False)


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


def detect(model, n, t):
    texts = {"input_ids": ids(9, 8)} if hasattr(model.config, "text_config") else {}
    model(0.1 * torch.randn(9, 3, 64, 64), **texts)


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
case("aria_text granitemoe_swa granite_docling_text higgs_audio_v2 beam flint kolibri1 "
     "muse_glimmer_text muse_spark_text", MOE, decoder(0, 1))
case("cosmos3_edge_text", MROPE, decoder(0, 1))
case("embedding_gemma2_text", MOE, encoder(0, 1))
case("esmc", TEXT, encoder(0, 1))
case("axk1", MLA, decoder(0, 1))
case("visual_bert", TEXT, encoder(0, 1), visual_embedding_dim=8)
case("bros", dict(TEXT, hidden_size=64), encoder(0, 1),
     lambda model, n, t: model(input_ids=ids(n, t), bbox=torch.zeros(n, t, 8)))
case("vits", TEXT, encoder(0, 1), lambda model, n, t: model.text_encoder(ids(n, t), torch.ones(n, t, 1)), ffn_dim=16,
     upsample_initial_channel=16, flow_size=16, spectrogram_bins=8, duration_predictor_filter_channels=16)
case("decision_transformer", dict(GPT, hidden_size=32), decoder(0, 1),
     lambda model, n, t: model.encoder(inputs_embeds=torch.randn(n, t, 32)))
case("glm_ocr_vision glm5_next_vision cohere_compass_vision", QWEN_VIT, encoder(0, 1, 2), patches)
case("gemma3n_text", GEMMA, decoder(0, 1), num_kv_shared_layers=2, laurel_rank=4, intermediate_size=[48] * 4,
     activation_sparsity_pattern=[0.0] * 4, altup_num_inputs=2)
case("gemma4_text", GEMMA, decoder(0, 1, 2, 3), global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True)
case("gemma4_text", GEMMA, decoder(0, 1), num_kv_shared_layers=2)
case("chameleon", GQA, decoder(0, 1), model="ChameleonForConditionalGeneration", swin_norm=False,
     vocabulary_map={"<image>": 3}, vq_config=dict(base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1,
                                                   embed_dim=8, latent_channels=8, num_embeddings=8))
case("mimo_v2_flash", MOE, decoder(0, 1), v_head_dim=8, layer_types=["full_attention", "sliding_attention"])
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
case("mistral4", MLA, decoder(0, 1), rope_parameters=dict(
    rope_type="default", rope_theta=1e4, partial_rotary_factor=0.4, llama_4_scaling_beta=0.1,
    original_max_position_embeddings=64))
case("deepseek_v2 deepseek_v3", MLA, decoder(0, 1), q_lora_rank=None)
case("deepseek_v4", dict(MOE, num_key_value_heads=1, q_lora_rank=12, o_groups=2, o_lora_rank=8, index_n_heads=2,
                         index_head_dim=8, hc_mult=2, num_hidden_layers=3, layer_types=[
                             "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"]),
     decoder(0, 1, 2))
# Softmax attention in some layers only.
case("qwen3_next qwen3_5_text qwen3_5_moe_text minimax olmo_hybrid", HYBRID, decoder(1, 3))
case("jamba", MAMBA, decoder(1, 3), attn_layer_period=2, attn_layer_offset=1, num_experts=2)
case("bamba", MAMBA, decoder(1, 3), attn_layer_indices=[1, 3])
case("granitemoehybrid", MAMBA, decoder(1, 3), layer_types=["mamba", "attention"] * 2, num_local_experts=2,
     num_experts_per_tok=1, shared_intermediate_size=16)
case("kimi_linear", MLA | HYBRID_LAYERS, decoder(1, 3), linear_head_dim=8, linear_num_heads=2)
case("kimi_linear", MLA, decoder(1, 3), num_hidden_layers=4, q_lora_rank=None, linear_attn_config=dict(
    full_attn_layers=[2, 4], kda_layers=[1, 3], head_dim=8, num_heads=2, short_conv_kernel_size=4))
case("recurrent_gemma", GQA, decoder(2), num_hidden_layers=4)
case("recurrent_gemma", GQA, decoder(1, 3), num_hidden_layers=4, block_types=["recurrent", "attention"])
ZAMBA = dict(MAMBA, num_hidden_layers=6, layers_block_type=["mamba", "hybrid"] * 3, num_key_value_heads=4)
case("zamba", ZAMBA, decoder(1), n_mamba_heads=2)  # three hybrid layers, one set of weights
case("zamba2", ZAMBA, decoder(1, 3), n_mamba_heads=4, mamba_headdim=16, mamba_ngroups=1, chunk_size=8, num_mem_blocks=2)
case("falcon_h1", MAMBA, decoder(0, 1, 2, 3), head_dim=8)
case("lfm2 lfm2_moe", MOE, decoder(1, 3), num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2, head_dim=8,
     num_dense_layers=1)
case("nemotron_h", WIDE, decoder(1, 3), hybrid_override_pattern="M*-*", mamba_num_heads=4, mamba_head_dim=16,
     n_groups=1, ssm_state_size=8, chunk_size=8)
# Encoders of text.
case("bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert electra ernie megatron-bert rembert "
     "roformer splinter layoutlm markuplm data2vec-text esm bert-generation dpr modernbert nomic_bert mpnet "
     "roc_bert tapas convbert jina_embeddings_v3 gte ibert", TEXT, encoder(0, 1), pronunciation_vocab_size=50,
     shape_vocab_size=50)
case("mobilebert", TEXT, encoder(0, 1), intra_bottleneck_size=16, true_hidden_size=16, embedding_size=16)
case("lilt", dict(TEXT, hidden_size=48), encoder(0, 1), channel_shrink_ratio=2)
case("luke", TEXT, encoder(0, 1), entity_vocab_size=5, entity_emb_size=8, use_entity_aware_attention=False)
case("luke", TEXT, encoder(0, 1), entity_vocab_size=5, entity_emb_size=8, use_entity_aware_attention=True)
case("nystromformer", TEXT, encoder(0, 1), num_landmarks=1, segment_means_seq_len=1)
case("openai_privacy_filter", MOE, encoder(0, 1))
case("bert", TEXT, decoder(0, 1), is_decoder=True, add_cross_attention=True, model="BertLMHeadModel")
case("canine", TEXT, encoder(0, 1), lambda model, *_: model(ids(9, 8)), "CanineModel", local_transformer_stride=4,
     downsampling_rate=1, upsampling_kernel_size=2, num_hash_buckets=16, num_hash_functions=2)
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
case("lxmert", TEXT, encoder(0, 1, name="l.text") | encoder(0, 1, 2, name="r.vision") | encoder(0, name="x.text")
     | encoder(0, name="x.vision"), lambda model, n, t: model(ids(9, 8), torch.randn(9, 7, 16), torch.randn(9, 7, 4)),
     "LxmertModel", l_layers=2, r_layers=3, x_layers=1, visual_feat_dim=16)
# Two stacks.
case("t5 mt5 umt5 switch_transformers", T5, TWO, seq2seq)
case("bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe", BART, TWO, seq2seq)
case("mvp fsmt", BART, TWO, seq2seq, src_vocab_size=50, tgt_vocab_size=50, langs=["a", "b"])
case("pop2piano", T5, TWO, seq2seq)
case("time_series_transformer", BART, TWO, lambda model, *_: model(
    past_values=torch.randn(9, 10), past_time_features=torch.randn(9, 10, 1), past_observed_mask=torch.ones(9, 10),
    future_values=torch.randn(9, 8), future_time_features=torch.randn(9, 8, 1)), "TimeSeriesTransformerForPrediction",
    prediction_length=8, lags_sequence=[1, 2], num_time_features=1)
case("dia", dict(encoder_config=WIDE, delay_pattern=[0, 1],
                 decoder_config=dict(WIDE, num_hidden_layers=3, cross_num_attention_heads=4, cross_head_dim=8,
                                     cross_num_key_value_heads=4, cross_hidden_size=32, num_channels=2)), TWO,
     lambda model, n, t: model(ids(n, t), decoder_input_ids=ids(n, 2 * t).view(n, t, 2)),
     "DiaForConditionalGeneration")
case("bigbird_pegasus", BART, TWO, seq2seq, attention_type="original_full")
case("udop", T5, TWO, lambda model, n, t: model(input_ids=ids(n, t), decoder_input_ids=ids(n, t),
                                                bbox=torch.zeros(n, t, 4)))
case("t5gemma", dict(encoder=WIDE, decoder=dict(WIDE, num_hidden_layers=3)), TWO, seq2seq)
case("led", BART, TWO, window)
case("whisper speech_to_text", SPEECH, TWO, speech)
case("moonshine", dict(vocab_size=50, hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=2,
                       decoder_num_hidden_layers=3, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
                       encoder_num_key_value_heads=4, decoder_num_key_value_heads=4),
     TWO, lambda model, n, t: model(torch.randn(4, 8000), decoder_input_ids=ids(4, 9)))
case("speecht5", SPEECHT5, TWO, waves, "SpeechT5ForSpeechToText")
case("trocr", BART, decoder(0, 1, 2, name="decoder"), cross_attention_hidden_size=20)
DETECTOR = encoder(0, 1, name="encoder") | encoder(0, 1, 2, name="decoder")
case("detr table-transformer conditional_detr", DETR, DETECTOR, detect)
case("deformable_detr", DETR, encoder(0, 1, 2, name="decoder"), detect, num_feature_levels=2)
RT_DETR = dict(backbone_config=dict(model_type="rt_detr_resnet", embedding_size=8, hidden_sizes=[8, 16, 16, 16],
                                    depths=[1] * 4, layer_type="basic", out_features=["stage2", "stage3", "stage4"]),
               d_model=32, encoder_hidden_dim=32, encoder_in_channels=[16] * 3, decoder_in_channels=[32] * 3,
               encoder_layers=2, encoder_ffn_dim=48, encoder_attention_heads=4, decoder_layers=3, decoder_ffn_dim=48,
               decoder_attention_heads=2, num_queries=5, num_denoising=0, anchor_image_size=None)
case("rt_detr rt_detr_v2 d_fine", RT_DETR, DETECTOR, detect)
GROUNDING = dict(backbone_config=dict(SWIN, out_features=["stage2", "stage3", "stage4"]),
                 text_config=dict(TEXT, model_type="bert"), d_model=32, encoder_layers=2, encoder_ffn_dim=48,
                 encoder_attention_heads=4, decoder_layers=3, decoder_ffn_dim=48, decoder_attention_heads=2,
                 num_queries=5, num_feature_levels=3, max_text_len=16)
case("grounding-dino", GROUNDING, encoder(0, 1, 2, name="decoder"), detect, "GroundingDinoForObjectDetection")
case("mm-grounding-dino", GROUNDING, encoder(0, 1, 2, name="decoder"), detect, "MMGroundingDinoForObjectDetection")
case("mask2former", MASK2FORMER, encoder(0, 1, 2, name="decoder"), lambda model, *_: images(model, size=32))
case("vit_mae", MAE, encoder(0, 1, 2, name="encoder") | encoder(0, 1, name="decoder"), images, "ViTMAEForPreTraining")
case("videomae", MAE, encoder(0, 1, 2, name="encoder") | encoder(0, 1, name="decoder"), lambda model, *_: model(
    torch.randn(9, 4, 3, 16, 16), bool_masked_pos=torch.tensor([[True, False] * 4] * 9)), "VideoMAEForPreTraining")


def seamless(model, n, t):
    states = torch.randn(n, t, 32)
    model.text_encoder(input_ids=ids(n, t))
    model.text_decoder(input_ids=ids(n, t), encoder_hidden_states=states)
    model.speech_encoder(torch.randn(4, 20, 8))
    units = model.t2u_model.model
    units.encoder(inputs_embeds=states)
    if model.config.model_type == "seamless_m4t":
        units.decoder(input_ids=ids(n, t), encoder_hidden_states=states)
    else:
        for layer in units.decoder.layers:
            layer(states, padding_mask=torch.ones(n, t))


SEAMLESS = dict(vocab_size=50, t2u_vocab_size=50, char_vocab_size=50, unit_hifi_gan_vocab_size=20, hidden_size=32,
                encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=3,
                decoder_attention_heads=2, decoder_ffn_dim=48, speech_encoder_layers=2,
                speech_encoder_attention_heads=8, speech_encoder_intermediate_size=48, num_adapter_layers=1,
                adaptor_kernel_size=1, adaptor_stride=1, t2u_encoder_layers=1, t2u_encoder_attention_heads=2,
                t2u_encoder_ffn_dim=48, t2u_decoder_layers=2, t2u_decoder_attention_heads=8, t2u_decoder_ffn_dim=48,
                feature_projection_input_dim=8, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
                position_embeddings_type="none", max_source_positions=64, pad_token_id=0, t2u_pad_token_id=0,
                vocoder_num_langs=3, vocoder_num_spkrs=3, unit_embed_dim=8, lang_embed_dim=8, spkr_embed_dim=8,
                upsample_initial_channel=64, t2u_variance_predictor_embed_dim=32,
                t2u_variance_predictor_hidden_dim=32)
SPEECH_TO_SPEECH = TWO | encoder(0, 1, name="speech_encoder") | encoder(0, name="adapter") | encoder(
    0, name="t2u_encoder")
case("seamless_m4t", SEAMLESS, SPEECH_TO_SPEECH | decoder(0, 1, name="t2u_decoder"), seamless, "SeamlessM4TModel")
case("seamless_m4t_v2", SEAMLESS, SPEECH_TO_SPEECH | encoder(0, 1, name="t2u_decoder"), seamless, "SeamlessM4Tv2Model")
# Images and sound.
case("vit deit beit data2vec-vision dpt pixio radio tipsv2_vision_model chinese_clip_vision_model", VIT,
     encoder(0, 1, 2), images)
case("vivit", VIT, encoder(0, 1, 2), lambda model, *_: model(torch.randn(10, 4, 3, 16, 16)), num_frames=4,
     tubelet_size=[2, 8, 8])
case("dinov2 dinov2_with_registers ijepa vit_msn", VIT, encoder(0, 1, 2), images)
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
STAGES = encoder(0, name="stage 0") | encoder(0, 1, name="stage 1")
case("swin donut-swin", SWIN, STAGES, images, depths=[1, 2], num_heads=[2, 4], image_size=16, out_features=None)
case("vitpose_backbone", VIT, encoder(0, 1, 2), images, "VitPoseBackbone", image_size=[16, 16], patch_size=[8, 8])
case("segformer glpn", dict(num_encoder_blocks=2, depths=[1, 2], hidden_sizes=[8, 16], num_attention_heads=[2, 4],
                            sr_ratios=[1, 1], decoder_hidden_size=8, patch_sizes=[3, 3], strides=[2, 2]),
     STAGES, images)
case("pvt", dict(num_encoder_blocks=2, depths=[1, 2], hidden_sizes=[8, 16], num_attention_heads=[2, 4], image_size=16,
                 sequence_reduction_ratios=[1, 1], mlp_ratios=[2, 2], patch_sizes=[4, 2], strides=[4, 2]),
     STAGES, images)
case("vilt", dict(TEXT, image_size=16, patch_size=8), encoder(0, 1), lambda model, n, t: model(
    input_ids=ids(8, 5), pixel_values=torch.randn(8, 3, 16, 16)), "ViltModel")
case("swinv2", SWIN, STAGES, images, depths=[1, 2], num_heads=[2, 4], image_size=16, out_features=None,
     pretrained_window_sizes=[0, 0])
HIERA = dict(embed_dim=8, depths=[1, 2], num_heads=[2, 4], image_size=[16, 16], patch_size=[3, 3], patch_stride=[2, 2],
             patch_padding=[1, 1], num_query_pool=0, masked_unit_size=[4, 4], masked_unit_attention=[False, False])
case("hiera", HIERA, STAGES, images)
case("dinov3_vit mlcd_vision_model", VIT, encoder(0, 1, 2), images, hidden_size=32)
case("sam3_vit_model", VIT, encoder(0, 1, 2), images, window_size=0, global_attn_indexes=[0, 1, 2], hidden_size=32,
     pretrain_image_size=16)
case("granite_docling_vision", VIT, encoder(0, 1, 2), images, scale_factor=2, use_fine_route=False,
     deepstack_visual_indexes=[0])
case("mgp-str", SQUARE, encoder(0, 1, 2), images, "MgpstrForSceneTextRecognition", patch_size=8, max_token_length=3,
     num_character_labels=9, num_bpe_labels=9, num_wordpiece_labels=9)
case("seggpt", VIT, encoder(0, 1, 2), lambda model, *_: model(*torch.randn(3, 9, 3, 16, 16)), "SegGptModel",
     image_size=[32, 16], merge_index=0, intermediate_hidden_state_indices=[0, 1, 2], decoder_hidden_size=8, mlp_dim=48)
case("patchtst", dict(TEXT, d_model=32, ffn_dim=48, context_length=32, patch_length=4, patch_stride=4,
                      num_input_channels=3), encoder(0, 1), lambda model, *_: model(torch.randn(9, 32, 3)),
     "PatchTSTForPrediction")
case("yolos", SQUARE, encoder(0, 1, 2), images, "YolosModel", patch_size=8)
case("internvl_vision", SQUARE, encoder(0, 1, 2), images)
case("audio-spectrogram-transformer", VIT, encoder(0, 1, 2), lambda model, *_: model(torch.randn(12, 16, 16)),
     max_length=16, num_mel_bins=16)
case("wav2vec2 hubert wavlm unispeech unispeech-sat data2vec-audio sew sew-d wav2vec2-conformer wav2vec2-bert", WAVE,
     encoder(0, 1), waves)
case("wav2vec2-bert", WAVE, encoder(0, 1) | encoder(0, name="adapter"), waves, add_adapter=True, num_adapter_layers=1,
     adapter_kernel_size=1, adapter_stride=1, output_hidden_size=32)
case("parakeet_encoder", TEXT, encoder(0, 1), lambda model, *_: model(torch.randn(9, 40, 16)), "ParakeetEncoder",
     num_mel_bins=16, subsampling_conv_channels=8, subsampling_factor=2)
PARAKEET = dict(encoder_config=dict(TEXT, num_mel_bins=16, subsampling_conv_channels=8, subsampling_factor=2),
                vocab_size=50, decoder_hidden_size=16, pad_token_id=0, blank_token_id=1)
case("parakeet_ctc", PARAKEET, encoder(0, 1, name="encoder"), lambda model, *_: model(torch.randn(9, 40, 16)),
     "ParakeetForCTC")
for kind in "tdt", "rnnt":
    case(f"parakeet_{kind}", PARAKEET, encoder(0, 1, name="encoder"),
         lambda model, *_: model.encoder(torch.randn(9, 40, 16)), f"ParakeetFor{kind.upper()}")
BARK = dict(input_vocab_size=50, output_vocab_size=50, block_size=64, num_layers=2, num_heads=4, hidden_size=32)
case("bark", dict(semantic_config=BARK, coarse_acoustics_config=BARK, codec_config=ENCODEC,
                  fine_acoustics_config=dict(BARK, n_codes_total=3, n_codes_given=1)),
     decoder(0, 1, name="semantic") | decoder(0, 1, name="coarse_acoustics") | encoder(0, 1, name="fine_acoustics"),
     lambda model, n, t: (model.semantic(ids(n, t)), model.coarse_acoustics(ids(n, t)),
                          model.fine_acoustics(1, ids(n, 3 * t).view(n, t, 3))), "BarkModel")
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
case("idefics", dict(TEXT, vision_config=dict(VIT, embed_dim=24), perceiver_config=dict(
    resampler_n_latents=2, resampler_depth=1, resampler_n_heads=2, resampler_head_dim=8), use_resampler=True), LLAVA,
     lambda model, n, t: model(input_ids=ids(n, t), pixel_values=torch.randn(n, 1, 3, 16, 16),
                               image_attention_mask=torch.ones(n, t, 1)))
# The windows are as large as the image, so that its patches stay in their order.
case("florence2", dict(text_config=dict(BART, model_type="bart"), vision_config=dict(
    depths=[1, 2], embed_dim=[8, 16], num_heads=[2, 4], num_groups=[2, 4], window_size=8, projection_dim=32,
    patch_size=[3, 3], patch_stride=[2, 1], patch_padding=[1, 1], patch_prenorm=[False, True])),
     encoder(0, name="vision.stage 0") | encoder(0, 1, name="vision.stage 1") | encoder(0, 1, name="text.encoder")
     | decoder(0, 1, 2, name="text.decoder"),
     lambda model, n, t: (model.model.vision_tower(torch.randn(9, 3, 16, 16)),
                          seq2seq(model.model.language_model, n, t)))
KOSMOS = dict(vocab_size=50, embed_dim=32, layers=2, ffn_dim=48, attention_heads=4)


def flat_patches(model):  # each with its row and column before its pixels
    places = torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0)).expand(25, 4, 2)
    model(torch.cat([places, torch.randn(25, 4, 24)], -1))


case("kosmos-2", dict(text_config=KOSMOS, vision_config=VIT, latent_query_num=2), LLAVA,
     of("text_model", "vision_model", images))
case("kosmos-2.5", dict(text_config=KOSMOS, latent_query_num=2,
                        vision_config=dict(VIT, head_dim=8, patch_embed_hidden_size=24)), LLAVA,
     of("text_model", "vision_model", flat_patches))
case("pix2struct", dict(text_config=dict(vocab_size=50, hidden_size=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
                        vision_config=dict(VIT, d_kv=8, d_ff=48, patch_embed_hidden_size=24, seq_len=16)), LLAVA,
     of("decoder", "encoder", flat_patches))
case("flava", dict(text_config=TEXT, image_config=VIT, multimodal_config=TEXT,
                   image_codebook_config=dict(hidden_size=8, vocab_size=8)),
     encoder(0, 1, 2, name="image") | encoder(0, 1, name="multimodal") | encoder(0, 1, name="text"),
     lambda model, n, t: (images(model.image_model), model.multimodal_model(torch.randn(n, t, 32)),
                          model.text_model(input_ids=ids(n, t))), "FlavaModel")
case("ernie4_5_vl_moe", dict(
    text_config=dict(MROPE, rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[3, 3, 2]),
                     moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_intermediate_size=[16, 16]),
    vision_config=dict(QWEN_VIT, in_channels=3)), LLAVA, of(LLM, VISION, patches))
PHI4_AUDIO = dict(hidden_size=32, num_blocks=2, num_attention_heads=4, intermediate_size=48, input_size=8,
                  nemo_conv_channels=8, ext_pw_out_channel=32, depthwise_separable_out_channel=32)
EXTENDED = "model.embed_tokens_extend"
case("phi4_multimodal", dict(GQA, vision_config=dict(VIT, crop_size=16), audio_config=PHI4_AUDIO),
     LLAVA | encoder(0, 1, name="audio"), lambda model, n, t: (
         text(model, n, t), images(model.get_submodule(f"{EXTENDED}.image_embed.img_processor")),
         model.get_submodule(f"{EXTENDED}.audio_embed.encoder")(torch.randn(4, 80, 8), None)))
case("t5gemma2", dict(encoder=dict(text_config=WIDE, vision_config=dict(VIT, model_type="siglip_vision_model"),
                                   mm_tokens_per_image=4), decoder=dict(WIDE, num_hidden_layers=3)),
     encoder(0, 1, 2, name="encoder.vision") | encoder(0, 1, name="encoder.text") | decoder(0, 1, 2, name="decoder"),
     lambda model, n, t: (seq2seq(model, n, t), images(model.model.encoder.vision_tower)))
llava("llava_next_video", "llama", dict(VIT, model_type="clip_vision_model"))
case("fuyu", dict(text_config=dict(TEXT, model_type="persimmon")), decoder(0, 1, name="text"))
llava("aria", "aria_text", dict(VIT, model_type="idefics3_vision"))
llava("llava_onevision", "qwen2", dict(VIT, model_type="siglip_vision_model"))
llava("gemma3", "gemma3_text", dict(VIT, model_type="siglip_vision_model"))
llava("deepseek_vl", "llama", dict(VIT, model_type="siglip_vision_model"), of(LLM, "model.vision_model", images))
llava("shieldgemma2", "gemma3_text", dict(VIT, model_type="siglip_vision_model"))
llava("got_ocr2", "qwen2", dict(VIT, mlp_dim=48, output_channels=16, window_size=0, global_attn_indexes=[0, 1, 2]))
llava("janus", "llama", VIT, of(LLM, "model.vision_model", images), vq_config=dict(
    base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1, embed_dim=8, latent_channels=32, num_embeddings=8,
    projection_dim=32))
llava("ovis2", "qwen2", dict(VIT, vocab_size=64, num_visual_indicator_tokens=5), vocab_size=50)
llava("granite_docling", "granite_docling_text", dict(
    VIT, hidden_size=32, out_hidden_size=32, scale_factor=2, use_fine_route=False, deepstack_visual_indexes=[0]),
      IDEFICS)
llava("lighton_ocr", "qwen3", dict(VIT, model_type="pixtral", head_dim=6),
      of(LLM, "model.vision_encoder", lambda model: images(model, image_sizes=[(16, 16)] * 25)))
llava("hyperclovax_vision_v2", "hyperclovax", dict(QWEN_VIT, model_type="qwen2_5_vl_vision"),
      of(LLM, "model.vision_model", patches))
llava("deepseek_vl_hybrid", "llama", dict(VIT, model_type="siglip_vision_model"), lambda model, n, t: (
    model.model.language_model(ids(n, t)), images(model.model.vision_model), images(model.model.high_res_vision_model)),
      LLAVA | encoder(0, 1, 2, name="high_res_vision"),
      high_res_vision_config=dict(SAM["vision_config"], model_type="sam_vision_model"))
TOKENIZER = dict(hidden_size=16, num_filters=2, downsampling_ratios=[2, 2], depths=[1, 1, 1])
case("vibevoice_asr", dict(text_config=dict(WIDE, model_type="qwen2"), acoustic_tokenizer_encoder_config=TOKENIZER,
                           semantic_tokenizer_encoder_config=TOKENIZER), decoder(0, 1, name="text"),
     lambda model, n, t: model.model.language_model(ids(n, t)))
case("embedding_gemma2", dict(text_config=MOE), encoder(0, 1, name="text"))
FOURS = dict(VIT, hidden_size=32, patch_size=4)
llava("video_llama_3", "qwen2", FOURS, of(LLM, "model.vision_model", lambda model: model(
    torch.randn(64, 48), torch.tensor([[1, 8, 8]]), torch.tensor([1]))))
case("paddleocr_vl", dict(text_config=MROPE, vision_config=FOURS), LLAVA, of(LLM, "model.visual", lambda model: model(
    torch.randn(1, 64, 3, 4, 4), cu_seqlens=torch.tensor([0, 64]), grid_thw=torch.tensor([[1, 8, 8]]))))
llava("cohere2_vision aya_vision", "cohere2", dict(VIT, model_type="siglip_vision_model"),
      alignment_intermediate_size=16)
llava("paligemma", "gemma", dict(VIT, model_type="siglip_vision_model"), stacks=LLAVA | {"text": (None, [0, 1])})
llava("mistral3", "mistral", dict(VIT, model_type="pixtral", head_dim=6),
      of(LLM, VISION, lambda model: images(model, image_sizes=[(16, 16)] * 25)))
llava("internvl", "qwen2", dict(SQUARE, model_type="internvl_vision"))
llava("idefics2", "mistral", dict(VIT, model_type="idefics2_vision"), IDEFICS,
      perceiver_config=dict(resampler_n_heads=2, resampler_head_dim=8, num_key_value_heads=1, hidden_size=32))
llava("idefics3", "llama", dict(VIT, model_type="idefics3_vision"), IDEFICS)
llava("smolvlm", "llama", dict(VIT, model_type="smolvlm_vision"), IDEFICS)
QWEN_VL = of(LLM, "model.visual", patches)
case("qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe glm4v glm4v_moe glm_ocr glm46v glmga",
     dict(text_config=MROPE, vision_config=QWEN_VIT), LLAVA, QWEN_VL)
# What retrieves pages by the states of another model.
SIGLIP = dict(VIT, model_type="siglip_vision_model")
case("colpali", dict(vlm_config=dict(text_config=dict(WIDE, model_type="gemma"), vision_config=SIGLIP,
                                     model_type="paligemma", image_token_index=3)), LLAVA | {"text": (None, [0, 1])},
     of("vlm.language_model", "vlm.vision_tower", images), "ColPaliForRetrieval")
case("colqwen2", dict(vlm_config=dict(text_config=MROPE, vision_config=QWEN_VIT, model_type="qwen2_vl")), LLAVA,
     of("vlm.language_model", "vlm.visual", patches), "ColQwen2ForRetrieval")
case("colmodernvbert", dict(vlm_config=dict(text_config=dict(TEXT, model_type="modernbert"), vision_config=SIGLIP,
                                            model_type="modernvbert")),
     encoder(0, 1, 2, name="vision") | encoder(0, 1, name="text"),
     of("vlm.text_model", "vlm.vision_model", images), "ColModernVBertForRetrieval")
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
case("gemma4_unified", dict(text_config=dict(
    WIDE, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, global_head_dim=24,
    num_global_key_value_heads=1, attention_k_eq_v=True), vision_config=dict(mm_embed_dim=32, output_proj_dims=32),
    audio_config=dict(audio_embed_dim=16)), decoder(0, 1, 2, 3, name="text"))
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
case("groupvit", dict(text_config=TEXT, vision_config=dict(VIT, depths=[1, 2], num_group_tokens=[2, 0],
                                                           num_output_groups=[2, 2])),
     encoder(0, name="vision.stage 0") | encoder(0, 1, name="vision.stage 1") | decoder(0, 1, name="text"),
     of("text_model", "vision_model", images))
case("aimv2", dict(text_config=TEXT, vision_config=VIT), LLAVA, lambda model, n, t: (
    images(model.vision_model), model.text_model(input_ids=ids(n, t), attention_mask=torch.ones(n, t))))
case("xclip", dict(text_config=TEXT, vision_config=dict(VIT, num_frames=2, mit_hidden_size=24, mit_intermediate_size=24,
                                                        mit_num_hidden_layers=1, mit_num_attention_heads=2),
                   prompt_num_attention_heads=2, projection_dim=24),
     encoder(0, 1, 2, name="vision.space") | encoder(0, 1, 2, name="vision.time") | decoder(0, 1, name="text"),
     of("text_model", "vision_model", lambda model: model(torch.randn(60, 3, 16, 16))))
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
case("instructblip instructblipvideo",
     dict(text_config=dict(T5, model_type="t5"), vision_config=VIT, qformer_config=CLIP_TEXT),
     encoder(0, 1, 2, name="vision") | encoder(0, 1, name="qformer") | encoder(0, 1, name="text.encoder")
     | decoder(0, 1, 2, name="text.decoder"),
     lambda model, n, t: (images(model.vision_model), seq2seq(model.language_model, n, t), model.qformer(
         ids(12, 1), query_embeds=torch.randn(12, 3, 32), encoder_hidden_states=torch.randn(12, 3, 24))))
case("qwen2_audio", dict(text_config=dict(WIDE, model_type="qwen2"), audio_config=WHISPER),
     encoder(0, 1, 2, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(9, 8, 8))))
case("audioflamingo3 musicflamingo",
     dict(text_config=dict(WIDE, model_type="qwen2"), audio_config=dict(WHISPER, model_type="audioflamingo3_encoder")),
     encoder(0, 1, 2, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(9, 8, 8), torch.ones(9, 8))))
case("qwen3_asr", dict(text_config=dict(WIDE, model_type="qwen3"), audio_config=dict(OMNI_AUDIO, n_window=50)),
     encoder(0, 1, 2, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(1, 8, 400), torch.ones(1, 400))))
case("glmasr", dict(text_config=dict(WIDE, model_type="llama"), audio_config=dict(TEXT, num_mel_bins=8)),
     encoder(0, 1, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(9, 8, 32))))
case("voxtral_realtime", dict(text_config=GQA, audio_config=dict(WIDE, num_mel_bins=8)),
     decoder(0, 1, name="audio") | decoder(0, 1, name="text"), lambda model, n, t: (
         model.model.language_model(ids(n, t), t_cond=torch.randn(n, 1, 32)),
         model.model.audio_tower(torch.randn(9, 8, 32))))
case("voxtral", dict(text_config=dict(WIDE, model_type="llama"), audio_config=VOXTRAL),
     encoder(0, 1, 2, name="audio") | decoder(0, 1, name="text"),
     of(LLM, "model.audio_tower", lambda model: model(torch.randn(9, 8, 8))))
for kind, class_name in ("musicgen", "Musicgen"), ("musicgen_melody", "MusicgenMelody"):
    case(kind, dict(text_encoder=dict(T5, model_type="t5"), audio_encoder=ENCODEC, decoder=MUSIC),
         encoder(0, 1, name="encoder") | decoder(0, 1, name="decoder"),
         of("text_encoder", "decoder", lambda model: model(input_ids=ids(18, 4))),
         f"{class_name}ForConditionalGeneration")
    case(f"{kind}_decoder", MUSIC, decoder(0, 1), lambda model, n, t: model(input_ids=ids(2 * n, t)),
         f"{class_name}ForCausalLM")
SAM2 = dict(backbone_config=dict(model_type="sam2_hiera_det_model", hidden_size=8, image_size=[32, 32],
                                 blocks_per_stage=[1, 2], embed_dim_per_stage=[8, 16],
                                 num_attention_heads_per_stage=[1, 1], window_size_per_stage=[8, 8],
                                 num_query_pool_stages=0, global_attention_blocks=[0, 1, 2]),
            backbone_channel_list=[16, 8], backbone_feature_sizes=[[8, 8], [8, 8]], fpn_hidden_size=8,
            fpn_top_down_levels=[1], num_feature_levels=2)
# One head: for several, see test_layouts.py. What the model multiplies first, and does not use, is of tokens by heads.
case("sam2", dict(SAM, vision_config=SAM2), encoder(0, name="vision.stage 0")
     | encoder(1, 2, name="vision.stage 1"),
     lambda model, *_: images(model.vision_encoder, size=32), "Sam2Model")
SMALL = dict(hidden_size=16, num_layers=1, num_attention_heads=2, intermediate_size=16)
case("sam3", dict(vision_config=dict(backbone_config=dict(
    VIT, model_type="sam3_vit_model", window_size=0, global_attn_indexes=[0, 1, 2], hidden_size=32,
    pretrain_image_size=16), fpn_hidden_size=16), text_config=dict(TEXT, model_type="clip_text_model"),
    geometry_encoder_config=dict(SMALL, roi_size=2), detr_encoder_config=SMALL, detr_decoder_config=SMALL,
    mask_decoder_config=SMALL), LLAVA, of("text_encoder", "vision_encoder", images), "Sam3Model")
case("sam", SAM, encoder(0, 1, 2, name="vision"), images, "SamModel")
case("sam_hq", dict(SAM, mask_decoder_config=SAM["mask_decoder_config"] | dict(vit_dim=24)),
     encoder(0, 1, 2, name="vision"), lambda model, *_: images(model.vision_encoder), "SamHQModel")
# What sees depth and poses and so on with another model.
DINO = dict(VIT, model_type="dinov2", out_features=["stage1", "stage2", "stage3"], reshape_hidden_states=False)
DEPTH = dict(backbone_config=DINO, reassemble_hidden_size=24, neck_hidden_sizes=[8] * 3, reassemble_factors=[2, 1, 1],
             fusion_hidden_size=8, head_hidden_size=8)
BACKBONE = encoder(0, 1, 2, name="backbone")


def backbone(model, n, t):
    channels = model.config.backbone_config.num_channels
    model.backbone(torch.randn(25, channels, 16, 16))


case("depth_anything", DEPTH, BACKBONE, backbone, "DepthAnythingForDepthEstimation")
case("prompt_depth_anything", DEPTH, BACKBONE, backbone, "PromptDepthAnythingForDepthEstimation")
case("zoedepth", dict(backbone_config=DINO | dict(model_type="beit"), neck_hidden_sizes=[8] * 3), BACKBONE, backbone,
     "ZoeDepthForDepthEstimation")
case("vitpose", dict(backbone_config=dict(SQUARE, model_type="vitpose_backbone", out_features=["stage3"])), BACKBONE,
     backbone, "VitPoseForPoseEstimation")
case("upernet", dict(backbone_config=SWIN, hidden_size=8, auxiliary_in_channels=48, auxiliary_channels=8,
                     pool_scales=[1, 2]),
     {f"backbone.stage {i}": (False, [0]) for i in range(4)}, backbone, "UperNetForSemanticSegmentation")
case("vitmatte", dict(backbone_config=dict(VIT, model_type="vitdet", num_channels=4, out_features=["stage3"]),
                      hidden_size=24, convstream_hidden_sizes=[8] * 3, fusion_hidden_sizes=[8] * 4), BACKBONE, backbone,
     "VitMatteForImageMatting")
case("vitdet", VIT, encoder(0, 1, 2), images, "VitDetBackbone")
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

# Attention in some layers, two of them in a layer, with other heads in some, or with a gate beside it.
case("lfm3", MOE, decoder(1, 2), num_hidden_layers=3, layer_types=["conv", "full_attention", "sliding_attention"])
case("step3p5", MOE, decoder(0, 1), model="Step3p7TextModel", share_expert_dim=16, num_sliding_attention_heads=6,
     layer_types=["full_attention", "sliding_attention"], sliding_window=64)
case("bailing_hybrid", MLA | HYBRID_LAYERS, decoder(1, 3), q_lora_rank=None)
case("longcat_flash", MLA, decoder(0, 1, name="first") | decoder(0, 1, name="second"), num_layers=2,
     num_hidden_layers=4, ffn_hidden_size=16, moe_topk=2, zero_expert_num=2, expert_ffn_hidden_size=8)


def forecast(model, n, t):
    for name, weight in model.named_parameters():
        if name.endswith("self_attn.scaling"):  # of each dimension of the queries, as in a norm
            weight.data.zero_()
    model.decoder(torch.randn(9, 64), torch.zeros(9, 64, dtype=torch.long), torch.zeros(9, 1, dtype=torch.long))


case("timesfm", dict(TEXT, head_dim=16), decoder(0, 1), forecast, "TimesFmModelForPrediction", context_length=64,
     patch_length=4)
case("ultrabert", GQA, encoder(0, 1))
# Speech in codes. Those of Mimi are made and read by layers that are not scored.
MIMI = dict(model_type="mimi", hidden_size=16, num_filters=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, head_dim=8, intermediate_size=16, upsampling_ratios=[2], codebook_dim=8,
            vector_quantization_hidden_dimension=8, codebook_size=16, num_quantizers=4, num_semantic_quantizers=1,
            upsample_groups=16, sampling_rate=50)
CODES = dict(TEXT, num_key_value_heads=4, ffn_dim=48, num_codebooks=2)
case("kyutai_speech_to_text", CODES, decoder(0, 1), lambda model, n, t: embeddings(model.model, n, t),
     codebook_vocab_size=20, audio_pad_token_id=0, codec_config=MIMI)
case("moshi", CODES, decoder(0, 1), lambda model, n, t: text(model.decoder, n, t), "MoshiForConditionalGeneration",
     depth_decoder_config=dict(CODES, input_size=32), audio_encoder_config=MIMI)
case("csm", CODES, decoder(0, 1, name="depth_decoder") | decoder(0, 1, name="text"), lambda model, n, t: (
    embeddings(model.backbone_model, n, t), text(model.depth_decoder.model, n, t + 1)),
    depth_decoder_config=dict(CODES, num_codebooks=33, backbone_hidden_size=32), codec_config=MIMI)
case("cohere_asr", dict(TEXT, encoder_config=PARAKEET["encoder_config"]),
     encoder(0, 1, name="encoder") | decoder(0, 1, name="text"),
     lambda model, n, t: model(torch.randn(9, 40, 16), decoder_input_ids=ids(9, 8)))
case("granite_speech", dict(
    text_config=dict(WIDE, model_type="granite"), projector_config=dict(CLIP_TEXT, model_type="blip_2_qformer"),
    encoder_config=dict(input_dim=8, num_layers=2, hidden_dim=32, num_heads=4, dim_head=8, context_size=50,
                        max_pos_emb=64, output_dim=5), window_size=4, downsample_rate=2),
     encoder(0, 1, name="encoder") | encoder(0, 1, name="projector") | decoder(0, 1, name="text"),
     lambda model, n, t: (
         text(model.model.language_model, n, t), model.model.encoder(torch.randn(2, 50, 8)),
         model.model.projector.qformer(torch.randn(12, 3, 32), encoder_hidden_states=torch.randn(12, 3, 24))))
# Images and text.
case("align", dict(text_config=TEXT, vision_config=dict(image_size=32, width_coefficient=0.1, depth_coefficient=0.1)),
     encoder(0, 1, name="text"), lambda model, n, t: text(model.text_model, n, t))


def with_weights(attention):
    """It multiplies queries and keys where a probe sees it only if it returns their weights."""
    forward = attention.forward
    attention.forward = lambda *args, **kwargs: forward(*args, **(kwargs | {"need_weights": True}))


def bridgetower(model, n, t):
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            with_weights(module)
    text(model.text_model, n, t)
    model.vision_model(torch.randn(35, 3, 16, 16))


case("bridgetower", dict(TEXT, text_config=TEXT, vision_config=dict(VIT, hidden_size=128)), TEXT_ENCODER, bridgetower,
     "BridgeTowerModel")
llava("video_llava", "llama", dict(VIT, model_type="clip_vision_model"), lambda model, n, t: (
    text(model.model.language_model, n, t), images(model.model.image_tower), images(model.model.video_tower)),
      encoder(0, 1, 2, name="image") | encoder(0, 1, 2, name="video") | decoder(0, 1, name="text"))
case("exaone4_5", dict(text_config=dict(WIDE, model_type="exaone4"),
                       vision_config=dict(QWEN_VIT, num_key_value_heads=2)), LLAVA, QWEN_VL)
case("hunyuan_vl", dict(text_config=MROPE, vision_config=dict(
    VIT, patch_size=4, out_hidden_size=64, text_hidden_size=64, max_image_size=32)), LLAVA, of(LLM, VISION, patches))
case("minicpmv4_6", dict(text_config=HYBRID | MROPE | HYBRID_LAYERS, vision_config=dict(VIT, insert_layer_id=1)),
     LLAVA | decoder(1, 3, name="text"),
     of(LLM, VISION, lambda model: model(torch.randn(1, 3, 8, 8 * 64), target_sizes=torch.tensor([[8, 8]]))))
HEADS = dict(head_dim=6, num_key_value_heads=4)
case("molmo2", dict(
    text_config=WIDE, vision_config=dict(VIT, **HEADS, image_size=[16, 16]), adapter_config=dict(
        VIT, **HEADS, text_hidden_size=32, vision_feature_layer=[2, 1])), LLAVA,
     of(LLM, VISION, lambda model: model(torch.randn(25, 4, 192))))
llava("granite4_vision", "granite4_vision_text", dict(SIGLIP, hidden_size=64), deepstack_layer_map=[[1, 0]],
      downsample_rate="1/2")


# ---- from a case to a model, and to its files ---------------------------------------------------------------------

CLASSES = [getattr(modeling_auto, f"MODEL_{name}MAPPING_NAMES") for name in (
    "FOR_IMAGE_TEXT_TO_TEXT_", "FOR_SPEECH_SEQ_2_SEQ_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_CAUSAL_LM_", "FOR_MASKED_LM_",
    "FOR_CTC_", "FOR_OBJECT_DETECTION_", "")]


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
