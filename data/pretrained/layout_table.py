"""
Where each model_type keeps the queries and keys of its self-attention: the table that layouts.py reads.

It was read from transformers 5.23, models/NAME/modeling_NAME.py, where NAME is the model_type, for clip_text_model and
other parts that of the whole, if no comment says otherwise. To add a model, add a word to a row, or a row, and its
proof in tests/tiny_models.py.
"""

from typing import NamedTuple

from data.pretrained.files import pick, require

# ---- the rows -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """
    One way of storing q and k, for the model_types (words) that have it. A model_type in two rows has two stacks, or
    two names for the tensors of one.

    path: of a layer, a regular expression but for "." and {i}, the number of the layer; any prefix may come before it.
    weights: the tensors in that layer (words), with or without ".weight". causal: whether the mask is; None where it
    cannot be told. form: how the tensors hold q and k, a function of layout_forms.py. stack: its name, if there are
    several.
    """

    types: str
    path: str
    weights: str
    causal: bool | None
    form: str = "separate"
    stack: str = ""


CAUSAL, BOTH_SIDES, UNKNOWN = True, False, None

# Paths and weights that several rows share. In the decoders since LLaMA:
LLAMA = "layers.{i}.self_attn", "q_proj k_proj"
# In BERT and ViT; in CLIP, wav2vec2 and DINOv3; one Linear for all three in SAM and Qwen2-VL.
BERT = "layer.{i}.attention(.self|.attention)?", "query key"
CLIP = "(layers?|encoders).{i}.(self_attn|self_attention|attention)", "q_proj k_proj"
VISION_QKV = "(blocks|layers?).{i}.(attn|self_attn|attention)", "qkv"
LATENT = "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"
# Encoders and decoders of one model.
BART_ENCODER = "encoder.(wrapped_encoder.)?layers.{i}.(self_attn|attention)", "q_proj k_proj"
BART_DECODER = "decoder.(wrapped_decoder.)?layers.{i}.self_attn", "q_proj k_proj"
T5_ENCODER = "encoder.block.{i}.layer.0.SelfAttention", "q k"
T5_DECODER = "decoder.block.{i}.layer.0.SelfAttention", "q k"


def encoder(types: str, path: str, weights: str, stack="encoder") -> Row:
    return Row(types, path, weights, BOTH_SIDES, stack=stack)


def decoder(types: str, path: str, weights: str, causal=CAUSAL, stack="decoder") -> Row:
    return Row(types, path, weights, causal, stack=stack)


ROWS = [
    # Decoders with separate Linears.
    Row("""llama mistral ministral ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text
        gemma3n_text gemma4_text gemma4_unified_text phi phimoe olmo olmo2 olmo3 olmoe flex_olmo starcoder2
        stablelm cohere cohere2 granite granitemoe granitemoeshared smollm3 glm glm4 glm4_moe gpt_oss helium arcee
        apertus ernie4_5 ernie4_5_moe exaone4 seed_oss hunyuan_v1_dense hunyuan_v1_moe dots1 minimax_m2 nemotron
        vaultgemma xglm biogpt opt afmoe bitnet cohere2_moe cwm diffllama doge exaone_moe granite_swa hy_v3 hyperclovax
        internlm3 iquestcoder jais2 laguna mellum minimax_m3_vl_text nanochat solar_open qwen2_vl_text qwen2_5_vl_text
        qwen2_5_omni_text qwen2_5_omni_talker qwen3_omni_moe_text qwen3_omni_moe_talker_text
        qwen3_omni_moe_talker_code_predictor qwen3_vl_text qwen3_vl_moe_text glm4v_text glm4v_moe_text glm_ocr_text
        llama4_text falcon_h1 lfm2_moe granitemoehybrid minimax olmo_hybrid aria_text granitemoe_swa
        granite_docling_text higgs_audio_v2 cosmos3_edge_text beam flint kolibri1 muse_glimmer_text muse_spark_text
        idefics_text mimo_v2_flash chameleon lfm3 step3p5 exaone4_5_text hunyuan_vl_text granite4_vision_text csm_text
        csm_depth_decoder_model kyutai_speech_to_text timesfm minicpm jamba bamba lfm2 t5gemma_decoder t5gemma2_decoder
        paddleocr_vl_text ernie4_5_vl_moe_text voxtral_realtime_text musicgen_decoder musicgen_melody_decoder
        clip_text_model metaclip_2_text_model owlvit_text_model owlv2_text_model clipseg_text_model xclip_text_model
        groupvit_text_model kosmos_2_text_model kosmos_2_5_text_model mllama_text_model
        mobilellm""",  # not in transformers: facebook/MobileLLM-125M prints its attention as LlamaSdpaAttention
        *LLAMA, CAUSAL),  # in T5Gemma 2's decoder, cross-attention is in the same tensors
    Row("qwen3_next qwen3_5_text qwen3_5_moe_text", *LLAMA, CAUSAL, "gated"),
    # Diffusion Gemma reads with a mask and writes without. MLMvsCLM's own name for its models is sl_model: EuroBERT's
    # network with or without a mask. Their code was not seen: this is how a fork of the library that trained EuroBERT
    # exports it (github.com/lgcharpe/EuroBERT, hf_conversion_script).
    Row("diffusion_gemma_text sl_model", *LLAMA, UNKNOWN),
    Row("aimv2_text_model voxtral_realtime_encoder dia_decoder", *CLIP, CAUSAL),
    # The depth decoder has weights of its own for each codebook: no single W_qk.
    Row("moshi", "decoder.model.layers.{i}.self_attn", "q_proj k_proj", CAUSAL),
    Row("cohere_asr_text", "layers.{i}.first_sub_layer", "query_net key_net", CAUSAL),
    Row("gptj gpt_neo modernbert-decoder exaone nemotron_h recurrent_gemma",
        "(h|layers).{i}.(attn|attn.attention|mixer|temporal_block)", "q_proj k_proj", CAUSAL),
    Row("zamba zamba2", "layers.{i}.shared_transf(ormer)?.self_attn", "q_proj k_proj", CAUSAL),
    Row("ctrl", "h.{i}.multi_head_attention", "Wq Wk", CAUSAL),
    Row("git_text", *BERT, CAUSAL),
    Row("pix2struct_text_model", "layer.{i}.self_attention.attention", "query key", CAUSAL),

    # Decoders with q, k and v in one tensor, or in a product of two.
    Row("gpt2 openai-gpt imagegpt decision_transformer", "h.{i}.attn", "c_attn", CAUSAL, "conv1d"),
    Row("gpt_bigcode", "h.{i}.attn", "c_attn", CAUSAL, "multi_query"),  # GPT-2's name: a Linear
    # ckpt.pt of nanoGPT (its model.py) and model_N.pt of nanochat (its gpt.py); the reader gives them these types.
    Row("nanogpt qwen", "h.{i}.attn", "c_attn", CAUSAL, "blocks"),
    Row("nanochat-checkpoint", "h.{i}.attn", "c_q c_k", CAUSAL),
    Row("codegen", "h.{i}.attn", "qkv_proj", CAUSAL, "codegen"),
    Row("falcon chatglm", "(h|encoder.layers).{i}.self_attention", "query_key_value", CAUSAL, "multi_query"),
    Row("gpt_neox gpt_neox_japanese persimmon bloom", "(h|layers).{i}.(self_attn|self_attention|attention)",
        "query_key_value", CAUSAL, "grouped"),
    # Not in transformers, read off copies of the code that comes with the weights: modeling_openelm.py, _baichuan.py,
    # _bailing_moe.py (Ling), _olmo.py, _internlm2.py; as above modeling_qwen.py, _chatglm.py, _exaone.py, _minicpm.py.
    Row("phi3 phi4_multimodal_text openelm", "layers.{i}.(self_)?attn", "qkv_proj", CAUSAL, "blocks"),
    Row("baichuan", "layers.{i}.self_attn", "W_pack", CAUSAL, "blocks"),
    Row("bailing_moe", "layers.{i}.attention", "query_key_value", CAUSAL, "blocks"),
    Row("semantic coarse_acoustics hf_olmo molmo2_text", "(layers|blocks).{i}(.attn|.self_attn)?", "att_proj", CAUSAL,
        "blocks"),  # the first two, and the third, are of Bark
    Row("fine_acoustics", "layers.{i}.attn", "att_proj", BOTH_SIDES, "blocks"),
    Row("internlm2", "layers.{i}.attention", "wqkv", CAUSAL, "grouped"),
    Row("mpt dbrx", "blocks.{i}.(norm_attn_norm.)?attn", "Wqkv", CAUSAL, "blocks"),
    Row("""deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 glm4_moe_lite youtu mistral4 axk1
        bailing_hybrid kimi_linear kimi_k2""",  # which kimi_k25 reads as deepseek_v3
        "(layers|blocks).{i}.(self_attn|attention)", LATENT, CAUSAL, "latent"),
    # Two attentions a layer.
    Row("longcat_flash", "layers.{i}.self_attn.0", LATENT, CAUSAL, "scaled_latent", "first"),
    Row("longcat_flash", "layers.{i}.self_attn.1", LATENT, CAUSAL, "scaled_latent", "second"),
    # W_qk is of a query and the key of one token. Keys that the compressor makes of several tokens have other weights.
    Row("deepseek_v4", "layers.{i}.attn", "wq_a wq_b wkv", CAUSAL, "low_rank_queries"),
    # The same in a state_dict of transformers.
    Row("deepseek_v4", "layers.{i}.self_attn", "q_a_proj q_b_proj kv_proj", CAUSAL, "low_rank_queries"),

    # Encoders. Of LiLT the text, not its boxes; of LUKE the words; of CANINE the middle.
    Row("""bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert xmod electra ernie megatron-bert
        rembert roformer big_bird splinter layoutlm layoutlmv2 layoutlmv3 markuplm data2vec-text esm bert-generation dpr
        longformer nystromformer roc_bert tapas convbert mobilebert ibert lilt luke visual_bert bros vilt canine
        chinese_clip_text_model clap_text_model align_text_model bridgetower_text_model altclip_text_model
        flava_text_model flava_image_model flava_multimodal_model
        blip_2_qformer instructblip_qformer instructblipvideo_qformer
        vit deit beit data2vec-vision dinov2 dinov2_with_registers ijepa vit_msn yolos audio-spectrogram-transformer dpt
        vivit vitpose_backbone pixio kosmos_2_5_vision_model pix2struct_vision_model""", *BERT, BOTH_SIDES),
    Row("""eurobert openai_privacy_filter embedding_gemma2_text esmc vits ultrabert t5gemma_encoder t5gemma2_text
        siglip_text_model siglip2_text_model dinov3_vit mlcd_vision_model granite_docling_vision llama4_vision_model
        wav2vec2 hubert wavlm unispeech unispeech-sat data2vec-audio sew patchtst clip_vision_model
        chinese_clip_vision_model altclip_vision_model metaclip_2_vision_model owlvit_vision_model owlv2_vision_model
        clipseg_vision_model siglip_vision_model siglip2_vision_model git_vision_model idefics_vision idefics2_vision
        idefics3_vision smolvlm_vision minicpmv4_6_vision video_llama_3_vision paddleocr_vl_vision hunyuan_vl_vision
        phi4_multimodal_vision phi4_multimodal_audio parakeet_encoder ovis2_vision aimv2_vision_model dia_encoder
        sam3_vit_model gemma4_vision gemma4_audio pixtral internvl_vision janus_vision_model qwen3_asr_encoder
        kosmos_2_vision_model groupvit_vision_model qwen2_audio_encoder voxtral_encoder qwen2_5_omni_audio_encoder
        qwen3_omni_moe_audio_encoder glmasr_encoder audioflamingo3_encoder
        Dream""",  # huggingface.co/Dream-org/Dream-v0-Base-7B, modeling_dream.py: Qwen2 without a mask
        *CLIP, BOTH_SIDES),
    # The same in a state_dict of transformers 5, which save_pretrained renames.
    Row("vit deit beit dinov2 dinov2_with_registers ijepa vit_msn audio-spectrogram-transformer vivit pixio", *CLIP,
        BOTH_SIDES),
    Row("parakeet_encoder", "layers.{i}.self_attn", "linear_q linear_k", BOTH_SIDES),  # of Cohere ASR
    Row("""glm4v_vision glm4v_moe_vision radio tipsv2_vision_model glm_ocr_vision glm5_next_vision cohere_compass_vision
        blip_vision_model sam_vision_model sam_hq_vision_model blip_2_vision_model instructblip_vision_model
        instructblipvideo_vision_model qwen2_vl_vision qwen2_5_vl_vision ernie4_5_vl_moe_vision exaone4_5_vision
        qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision qwen3_omni_moe_vision_encoder
        got_ocr2_vision vitdet mgp-str seggpt
        timm_vit""",  # timm's vision_transformer.py; the reader gives them this type
        *VISION_QKV, BOTH_SIDES, "blocks"),

    # Encoders of text with other names.
    Row("layoutlmv2", "layer.{i}.attention.self", "qkv_linear", BOTH_SIDES, "blocks"),  # fast_qkv
    Row("deberta-v2 sew-d", "layer.{i}.attention.self", "query_proj key_proj", BOTH_SIDES),
    Row("deberta", "layer.{i}.attention.self", "in_proj", BOTH_SIDES, "grouped"),
    Row("distilbert xlm flaubert", "(layer|attentions).{i}(.attention)?", "q_lin k_lin", BOTH_SIDES),
    # train.py's is a ckpt.pt.
    Row("mpnet qwen2_5_omni_vision_encoder train.py-checkpoint", "(layer|blocks).{i}(.attention)?.attn", "q k",
        BOTH_SIDES),
    Row("xlnet", "layer.{i}.rel_attn", "q k", UNKNOWN, "xlnet"),  # in a random order of positions
    Row("squeezebert", "layers.{i}.attention", "query key", BOTH_SIDES, "grouped_convolution"),
    Row("albert", "albert_layer_groups.{i}.albert_layers.0.attention", "query key", BOTH_SIDES),
    Row("modernbert nomic_bert jina_embeddings_v3", "layers.{i}.(attn|mixer)", "Wqkv", BOTH_SIDES, "blocks"),
    # Of words, of regions of an image, and of both in the layers where they meet.
    encoder("lxmert", "encoder.layer.{i}.attention.self", "query key", "l.text"),
    encoder("lxmert", "r_layers.{i}.attention.self", "query key", "r.vision"),
    encoder("lxmert", "x_layers.{i}.lang_self_att.self", "query key", "x.text"),
    encoder("lxmert", "x_layers.{i}.visn_self_att.self", "query key", "x.vision"),
    Row("gte new", "layer.{i}.attention", "qkv_proj", BOTH_SIDES, "blocks"),  # new: gte on the Hub
    # Not in transformers, read off the code that comes with the weights.
    # huggingface.co/GSAI-ML/LLaDA-8B-Base, modeling_llada.py, LLaDALlamaBlock.
    Row("llada", "blocks.{i}", "q_proj k_proj", BOTH_SIDES),
    # huggingface.co/BabyLM-community, modeling_gpt_bert.py: in_proj_qk(x).chunk(2, -1). Both masks in training.
    Row("gpt_bert", "layers.{i}.attention", "in_proj_qk", UNKNOWN, "query_key"),
    # huggingface.co/chandar-lab/NeoBERT, model.py: qkv(x).view(batch, length, n_head, 3 * head_dim).chunk(3, -1).
    Row("neobert", "transformer_encoder.{i}", "qkv", BOTH_SIDES, "grouped"),

    # Encoders of images and sound with other names.
    # Swin 2 multiplies queries and keys of length 1: as with other norms of queries and keys, W_qk is of those before.
    Row("swin swinv2 donut-swin clap_audio_model segformer glpn pvt", "block(s|.\\d+).{i}.attention.self", "query key",
        BOTH_SIDES),
    # Every other layer is attention of channels to channels, which has no W_qk. The original files have davit and
    # florence2_language for vision and text (huggingface.co/microsoft/Florence-2-base), and a "fn" in names.
    Row("florence_vision davit", "blocks.\\d+.{i}.spatial_block.window_attn(.fn)?", "qkv", BOTH_SIDES, "blocks"),
    # The first layer of a stage pools its queries.
    Row("hiera", "stages.\\d+.layers.{i}.attn", "qkv", BOTH_SIDES, "widening"),
    Row("hiera", "decoder_block.layers.{i}.attn", "qkv", BOTH_SIDES, "widening", "decoder"),
    Row("sam2_hiera_det_model", "backbone.blocks.{i}.attn", "qkv", BOTH_SIDES, "widening"),
    encoder("vjepa2", "encoder.layer.{i}.attention", "query key"),
    encoder("vjepa2", "predictor.layer.{i}.attention", "query key", "pred"),
    Row("timesformer", "layer.{i}.attention.attention", "qkv", BOTH_SIDES, "blocks", "space"),
    Row("timesformer", "layer.{i}.temporal_attention.attention", "qkv", BOTH_SIDES, "blocks", "time"),
    encoder("xclip_vision_model", "layers.{i}.self_attn", "q_proj k_proj", "space"),
    encoder("xclip_vision_model", "layers.{i}.message_attn", "q_proj k_proj", "time"),
    Row("molmo2_vision", "resblocks.{i}.attention", "wq wk", BOTH_SIDES),
    Row("granite_speech_encoder", "layers.{i}.attn", "to_q to_kv", BOTH_SIDES, "query_key_value"),
    Row("gemma3n_audio", "conformer.{i}.attention.attn", "q_proj k_proj", BOTH_SIDES),
    Row("wav2vec2-bert wav2vec2-conformer", "encoder.layers.{i}.self_attn", "linear_q linear_k", BOTH_SIDES),
    encoder("wav2vec2-bert", "adapter.layers.{i}.self_attn", "linear_q linear_k", "adapter"),
    Row("kimi_k25_vision moonvit", "blocks.{i}", "wqkv", BOTH_SIDES, "blocks"),
    Row("bridgetower_vision_model", "resblocks.{i}.attn", "in_proj_weight", BOTH_SIDES, "blocks"),
    Row("mllama_vision_model", "transformer.layers.{i}.self_attn", "q_proj k_proj", BOTH_SIDES),
    encoder("mllama_vision_model", "global_transformer.layers.{i}.self_attn", "q_proj k_proj", "global"),

    # Two stacks.
    encoder("""bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe whisper speech_to_text
        speecht5 mvp fsmt moonshine detr table-transformer florence2_language pegasus_x
        conditional_detr dab-detr time_series_transformer""", *BART_ENCODER),
    encoder("rt_detr rt_detr_v2 d_fine", "encoder.(encoder|aifi).0.layers.{i}.self_attn", "q_proj k_proj"),
    encoder("bigbird_pegasus led", "encoder.layers.{i}.self_attn.(self|longformer_self_attn)", "query key"),
    decoder("""bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe whisper speech_to_text
        speecht5 mvp fsmt moonshine led trocr florence2_language pegasus_x
        bigbird_pegasus time_series_transformer""", *BART_DECODER),
    encoder("t5 mt5 umt5 switch_transformers pop2piano udop", *T5_ENCODER),
    encoder("longt5", "encoder.block.{i}.layer.0.(Local|TransientGlobal)SelfAttention", "q k"),
    decoder("t5 mt5 umt5 switch_transformers pop2piano udop longt5", *T5_DECODER),
    encoder("prophetnet", "encoder.layers.{i}.self_attn", "query_proj key_proj"),
    decoder("prophetnet", "decoder.layers.{i}.self_attn", "query_proj key_proj"),
    encoder("blip_text_model", "text_(model|encoder).encoder.layer.{i}.attention.self", "query key"),
    decoder("blip_text_model", "text_decoder.bert.encoder.layer.{i}.attention.self", "query key"),
    encoder("vit_mae videomae", "encoder.layer.{i}.attention.attention", "query key"),
    decoder("vit_mae videomae", "decoder.decoder_(layers|encoder.layer).{i}.attention.attention", "query key",
            BOTH_SIDES),
    # Text, speech, and the units of speech that are made of them.
    encoder("seamless_m4t seamless_m4t_v2", "text_encoder.layers.{i}.self_attn", "q_proj k_proj"),
    decoder("seamless_m4t seamless_m4t_v2", "text_decoder.layers.{i}.self_attn", "q_proj k_proj"),
    encoder("seamless_m4t seamless_m4t_v2", "speech_encoder.encoder.layers.{i}.self_attn", "linear_q linear_k",
            "speech_encoder"),
    encoder("seamless_m4t seamless_m4t_v2", "speech_encoder.adapter.layers.{i}.self_attn", "linear_q linear_k",
            "adapter"),
    encoder("seamless_m4t seamless_m4t_v2", "t2u_model.model.encoder.layers.{i}.self_attn", "q_proj k_proj",
            "t2u_encoder"),
    decoder("seamless_m4t", "t2u_model.model.decoder.layers.{i}.self_attn", "q_proj k_proj", CAUSAL, "t2u_decoder"),
    decoder("seamless_m4t_v2", "t2u_model.model.decoder.layers.{i}.self_attn", "q_proj k_proj", BOTH_SIDES,
            "t2u_decoder"),  # all units at once
    # Detectors: every query sees all queries. Deformable attention to the image has no queries and keys. In Conditional
    # DETR and DAB-DETR, positions have weights of their own.
    decoder("detr table-transformer deformable_detr rt_detr rt_detr_v2 d_fine mask2former", *BART_DECODER, BOTH_SIDES),
    decoder("conditional_detr", "decoder.layers.{i}", "sa_qcontent_proj sa_kcontent_proj", BOTH_SIDES),
    decoder("dab-detr", "decoder.layers.{i}.self_attn", "self_attn_query_content_proj self_attn_key_content_proj",
            BOTH_SIDES),
    decoder("grounding-dino mm-grounding-dino", "decoder.layers.{i}.self_attn", "query key", BOTH_SIDES),
]
KNOWN = {model_type for row in ROWS for model_type in row.types.split()}

# ---- sizes ----------------------------------------------------------------------------------------------------------


class Usual(NamedTuple):
    """The sizes of a class, which a config inside of another may leave out."""

    n_layer: int | None = None
    n_head: int | None = None
    head_dim: int | None = None
    n_shared: int = 0  # number of last layers that take the keys of an earlier one


USUAL = {model_type: usual for usual, model_types in {
    Usual(6, 8, 64): "t5",
    Usual(6, 12): "flava_multimodal_model",
    Usual(12, 4): "groupvit_text_model",
    Usual(12, 6): "aimv2_text_model",
    Usual(12, 8): """clip_text_model metaclip_2_text_model owlvit_text_model owlv2_text_model clipseg_text_model
        xclip_text_model blip_text_model gemma4_audio""",
    Usual(12, 12): """opt siglip_text_model siglip2_text_model chinese_clip_text_model clap_text_model align_text_model
        bridgetower_text_model flava_text_model flava_image_model blip_2_qformer instructblip_qformer
        instructblipvideo_qformer vit deit beit data2vec-vision dinov2 dinov2_with_registers ijepa vit_msn yolos
        audio-spectrogram-transformer dpt vivit vitpose_backbone vitdet clip_vision_model chinese_clip_vision_model
        altclip_vision_model metaclip_2_vision_model owlvit_vision_model owlv2_vision_model clipseg_vision_model
        siglip_vision_model siglip2_vision_model git_vision_model idefics2_vision minicpmv4_6_vision
        video_llama_3_vision xclip_vision_model got_ocr2_vision blip_vision_model sam_vision_model
        sam_hq_vision_model""",
    Usual(12, 12, 64): "pix2struct_vision_model pix2struct_text_model",
    Usual(12, 16): "idefics3_vision smolvlm_vision bart",
    Usual(12, 16, 128): "dia_encoder",
    Usual(16, 12, 64): "gemma4_vision",
    Usual(16, 16): "glm_ocr_text",
    Usual(18, 16, 128): "paddleocr_vl_text dia_decoder",
    Usual(18, 24, 64): "kosmos_2_5_vision_model",
    Usual(22, 12): "modernbert",
    Usual(24, 8): "parakeet_encoder ovis2_vision aimv2_vision_model",
    Usual(24, 16): """musicgen_decoder musicgen_melody_decoder kosmos_2_5_text_model altclip_text_model
        phi4_multimodal_audio pixtral internvl_vision janus_vision_model qwen3_asr_encoder kosmos_2_vision_model""",
    Usual(24, 32): "kosmos_2_text_model",
    Usual(26, 8, 256): "gemma2 gemma3_text t5gemma2_text t5gemma2_decoder",
    Usual(27, 16): """paddleocr_vl_vision hunyuan_vl_vision phi4_multimodal_vision qwen3_vl_vision qwen3_vl_moe_vision
        qwen3_5_vision qwen3_5_moe_vision qwen3_omni_moe_vision_encoder""",
    Usual(28, 16, 256): "gemma",
    Usual(28, 20): "ernie4_5_vl_moe_text",
    Usual(30, 8, 256): "gemma4_text gemma4_unified_text",
    Usual(32, 16): """pixio sam3_vit_model idefics_vision qwen2_5_omni_vision_encoder qwen2_vl_vision qwen2_5_vl_vision
        ernie4_5_vl_moe_vision exaone4_5_vision mllama_vision_model""",
    Usual(32, 20): """qwen2_audio_encoder voxtral_encoder qwen2_5_omni_audio_encoder qwen3_omni_moe_audio_encoder
        glmasr_encoder audioflamingo3_encoder""",
    Usual(32, 32): "llama mistral qwen2 voxtral_realtime_text",
    Usual(32, 32, 64): "voxtral_realtime_encoder",
    Usual(32, 32, 128): "qwen3",
    Usual(35, 8, 256, 15): "gemma3n_text",
    Usual(39, 16): "blip_2_vision_model instructblip_vision_model instructblipvideo_vision_model",
    Usual(40, 32): "mllama_text_model",
    Usual(head_dim=64): "timm_vit bridgetower_vision_model",
}.items() for model_type in model_types.split()}

# ---- models made of parts, each with a config of its own inside of config.json ---------------------------------------

COMPOSITES = set("""depth_anything prompt_depth_anything zoedepth vitpose upernet vitmatte got_ocr2 janus
    video_llama_3 paddleocr_vl lighton_ocr ovis2 glm46v deepseek_vl qwen3_asr voxtral_realtime glmasr audioflamingo3
    musicflamingo shieldgemma2 granite_docling parakeet_ctc dia bark llava llava_next llava_next_video
    llava_onevision aria fuyu instructblipvideo vipllava paligemma colpali colqwen2 colmodernvbert modernvbert
    ernie4_5_vl_moe phi4_multimodal glm_ocr gemma4_unified t5gemma2 t5gemma2_encoder florence2 flava pix2struct
    kosmos-2 kosmos-2.5 gemma3 gemma3n gemma4 mistral3 internvl idefics idefics2 idefics3 smolvlm mllama llama4 clip
    chinese_clip altclip clipseg metaclip_2 owlvit owlv2 siglip siglip2 blip blip-2 instructblip git lfm2_vl
    cohere2_vision aya_vision diffusion_gemma kimi_k25 glm4v_moe qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5
    qwen3_5_moe qwen2_5_omni qwen2_5_omni_thinker qwen3_omni_moe qwen3_omni_moe_thinker qwen3_omni_moe_talker glm4v
    qwen2_audio voxtral clap musicgen musicgen_melody sam sam_hq encoder-decoder vision-encoder-decoder
    speech-encoder-decoder vision-text-dual-encoder t5gemma aimv2 groupvit xclip sam2 sam2_video
    sam2_vision_model sam3 sam3_vision_model sam3_video parakeet_tdt parakeet_rnnt embedding_gemma2 glmga
    hyperclovax_vision_v2 deepseek_vl_hybrid vibevoice_asr align bridgetower csm exaone4_5 fast_vlm granite4_vision
    granite_speech hunyuan_vl kimi_vl minicpmv4_6 molmo2 perception_lm video_llava cohere_asr""".split())
# How the names of a part's tensors start. Tried in this order: the text has what is left.
PARTS = {
    "vlm": r"vlm\.",
    "detector": r"detector_model\.",
    "thinker": r"thinker\.",
    "talker": r"talker\.",
    "code_predictor": r"(.*\.)?code_predictor\.",
    "depth_decoder": r"depth_decoder\.",
    "high_res_vision": r"(.*\.)?high_res_vision_model\.",
    "vision": r"(.*\.)?(vision_tower|vision_model|vision_encoder|image_encoder|visual|image_embed)\.|"
              r"(.*\.)?image_vit\.|vit\.|encoder\.encoder\.",  # Molmo 2, HunyuanVL, Pix2Struct
    "image": r"(.*\.)?image_(model|tower)\.",
    "video": r"(.*\.)?video_tower\.",
    "multimodal": r"(.*\.)?multimodal_model\.",
    "audio": r"(.*\.)?(audio_tower|audio_model|audio_embed)\.",
    "qformer": r"(.*\.)?qformer\.",
    "projector": r"projector\.",
    "backbone": "",
    "text_encoder": r"text_encoder\.",
    "encoder": r"(model\.)?encoder\.",
    "decoder": r"(model\.)?decoder\.",
    "semantic": r"semantic\.",
    "coarse_acoustics": r"coarse_acoustics\.",
    "fine_acoustics": r"fine_acoustics\.",
    "text": "",
}
# Of Align a network of convolutions, of Granite 4 Vision several stacks of one layer.
NOT_READ = {("align", "vision"), ("granite4_vision", "qformer")}
# Whose text_config_dict, left over from early files, replaces text_config, as vision_config_dict does vision_config.
CONFIG_DICT = {"clip", "chinese_clip", "altclip", "clipseg", "metaclip_2", "flava"}


class Stages(NamedTuple):
    """Models whose width grows from stage to stage: each stage is a stack. {i}: the number of the stage."""

    path: str  # how the names of its tensors go on, after any prefix; {layer}: a number that counts through all stages
    n_layer: str  # key of the config: numbers of layers
    n_head: str  # key: numbers of heads, or one number for all
    default_n_layer: list[int]
    default_n_head: list[int]


STAGES = {name: stages for names, stages in {
    "swin swinv2 donut-swin": Stages(r"layers\.{i}\.blocks\.", "depths", "num_heads", [2, 2, 6, 2], [3, 6, 12, 24]),
    "clap_audio_model": Stages(r"layers\.{i}\.blocks\.", "depths", "num_attention_heads", [2, 2, 6, 2], [4, 8, 16, 32]),
    "glpn pvt segformer": Stages(r"block\.{i}\.", "depths", "num_attention_heads", [2, 2, 2, 2], [1, 2, 5, 8]),
    "florence_vision davit": Stages(r"blocks\.{i}\.", "depths", "num_heads", [1, 1, 9, 1], [4, 8, 16, 32]),
    "hiera": Stages(r"stages\.{i}\.", "depths", "num_heads", [2, 3, 16, 3], [1, 2, 4, 8]),
    "sam2_hiera_det_model": Stages(r"blocks\.{layer}\.", "blocks_per_stage", "num_attention_heads_per_stage",
                                   [1, 2, 7, 2], [1, 2, 4, 8]),
    "groupvit_vision_model": Stages(r"stages\.{i}\.", "depths", "num_attention_heads", [6, 3, 3], [6, 6, 6]),
}.items() for name in names.split()}

# ---- layers without queries and keys of their own -------------------------------------------------------------------


def attention_blocks(config: dict, n: int) -> list[int]:
    """RecurrentGemma repeats its block_types; the first files have them as _block_types."""
    block_types = pick(config, "block_types _block_types", list) or ["recurrent", "recurrent", "attention"]
    return [i for i in range(n) if block_types[i % len(block_types)] == "attention"]


def shared_blocks(config: dict, n: int) -> list[int]:
    """Zamba: the hybrid layers share a few blocks, whose weights are in the first of these layers."""
    require(not pick(config, "use_shared_attention_adapter use_shared_attention_lora", bool),
            "zamba2: with use_shared_attention_adapter, each layer adds its own part to the shared queries and keys")
    hybrid = [i for i, layer_type in enumerate(pick(config, "layers_block_type", list, [])) if layer_type == "hybrid"]
    return hybrid[: pick(config, "num_mem_blocks", int, 1)]


# model_type -> from the config and the number n of layers, the numbers of those that have their own
OWN = {
    "albert": lambda config, n: range(pick(config, "num_hidden_groups", int, 1)),  # a group shares one set of weights
    "mask2former": lambda config, n: range(n - 1),  # it counts the prediction before its first layer
    "mllama_text_model": lambda config, n: [
        i for i in range(n) if i not in pick(config, "cross_attention_layers", list, range(3, 39, 5))],
    "jamba": lambda config, n: range(
        pick(config, "attn_layer_offset", int, 4), n, pick(config, "attn_layer_period", int, 8)),
    "qwen3_next": lambda config, n: [
        i for i in range(n) if (i + 1) % pick(config, "full_attention_interval", int, 4) == 0],
    "bamba": lambda config, n: pick(config, "attn_layer_indices", list, []),
    "lfm2": lambda config, n: pick(config, "full_attn_idxs", list) or range(n),
    # SAM 2 counts its layers through all stages.
    "sam2_hiera_det_model": lambda config, n: range(config["first_layer"], config["first_layer"] + n),
    # Kimi Linear counts from 1.
    "kimi_linear": lambda config, n: [i - 1 for i in config["linear_attn_config"]["full_attn_layers"]],
    # Nemotron-H: "M*-*" is Mamba, attention, MLP, attention.
    "nemotron_h": lambda config, n: [
        i for i, letter in enumerate(pick(config, "hybrid_override_pattern", str, "")) if letter == "*"],
    "recurrent_gemma": attention_blocks,
    "zamba": shared_blocks,
    "zamba2": shared_blocks,
}
