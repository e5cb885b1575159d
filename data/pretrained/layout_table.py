"""
Where each model_type keeps the queries and keys of its self-attention: the table that layouts.py reads.

It was read from transformers 5.23, models/NAME/modeling_NAME.py, where NAME is the first model_type of a row if no
comment says otherwise. To add a model, add a word to a row, or a row, and its proof in tests/test_layouts.py.
"""

from typing import NamedTuple

from data.pretrained.files import pick, require

# ---- the rows -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """
    One way of storing q and k, for the model_types (words) that have it. A model_type in two rows has two stacks.

    path: of a layer, a regular expression but for "." and {i}, the number of the layer; any prefix may come before it.
    weights: the tensors in that layer (words), with or without ".weight". form: how they hold q and k, a function of
    layout_forms.py. causal: whether the mask is; None where it cannot be told. stack: its name if there are several.
    n_layer, n_head, head_dim, n_shared: defaults of the class, which a nested config may leave out; n_shared is the
    number of last layers that take the keys of an earlier one.
    """

    types: str
    path: str
    weights: str
    causal: bool | None
    form: str = "separate"
    stack: str = ""
    n_layer: int | None = None
    n_head: int | None = None
    head_dim: int | None = None
    n_shared: int = 0


# What several rows share. In the decoders since LLaMA:
LLAMA = dict(path="layers.{i}.self_attn", weights="q_proj k_proj", causal=True)
# Attention to both sides: in BERT and ViT; in CLIP, wav2vec2 and DINOv3; one Linear for all three in SAM and Qwen2-VL.
BERT = dict(path="layer.{i}.attention.(self|attention)", weights="query key", causal=False)
CLIP = dict(path="layers?.{i}.(self_attn|attention)", weights="q_proj k_proj", causal=False)
VISION_QKV = dict(path="(blocks|layers).{i}.(self_)?attn", weights="qkv", form="blocks", causal=False)
# Encoders and decoders of one model.
BART_ENCODER = dict(path="encoder.(wrapped_encoder.)?layers.{i}.(self_attn|attention)", weights="q_proj k_proj",
                    causal=False, stack="encoder")
BART_DECODER = dict(path="decoder.(wrapped_decoder.)?layers.{i}.self_attn", weights="q_proj k_proj", stack="decoder")
T5_ENCODER = dict(path="encoder.block.{i}.layer.0.SelfAttention", weights="q k", causal=False, stack="encoder")
T5_DECODER = dict(path="decoder.block.{i}.layer.0.SelfAttention", weights="q k", causal=True, stack="decoder")

ROWS = [
    # Decoders with separate Linears.
    Row("""ministral ministral3 mixtral qwen2_moe qwen3_moe phi phimoe olmo olmo2 olmo3 olmoe flex_olmo starcoder2
        stablelm cohere cohere2 granite granitemoe granitemoeshared smollm3 glm glm4 glm4_moe gpt_oss helium arcee
        apertus ernie4_5 ernie4_5_moe exaone4 seed_oss hunyuan_v1_dense hunyuan_v1_moe dots1 minimax_m2 nemotron
        vaultgemma xglm biogpt afmoe bitnet cohere2_moe cwm diffllama doge exaone_moe granite_swa hy_v3 hyperclovax
        internlm3 iquestcoder jais2 laguna mellum minimax_m3_vl_text nanochat solar_open qwen2_vl_text qwen2_5_vl_text
        qwen2_5_omni_text qwen2_5_omni_talker qwen3_omni_moe_text qwen3_omni_moe_talker_text
        qwen3_omni_moe_talker_code_predictor qwen3_vl_text qwen3_vl_moe_text glm4v_text glm4v_moe_text llama4_text
        falcon_h1 lfm2_moe granitemoehybrid minimax olmo_hybrid aria_text granitemoe_swa granite_docling_text
        higgs_audio_v2 cosmos3_edge_text beam flint kolibri1 muse_glimmer_text muse_spark_text idefics_text
        mimo_v2_flash chameleon lfm3 step3p5 exaone4_5_text hunyuan_vl_text granite4_vision_text csm_text
        csm_depth_decoder_model kyutai_speech_to_text timesfm minicpm jamba bamba lfm2 t5gemma_decoder
        mobilellm""",  # not in transformers: facebook/MobileLLM-125M prints its attention as LlamaSdpaAttention
        **LLAMA),
    Row("llama mistral qwen2 voxtral_realtime_text", **LLAMA, n_layer=32, n_head=32),
    Row("qwen3", **LLAMA, n_layer=32, n_head=32, head_dim=128),
    Row("gemma", **LLAMA, n_layer=28, n_head=16, head_dim=256),
    Row("gemma2 gemma3_text", **LLAMA, n_layer=26, n_head=8, head_dim=256),
    Row("paddleocr_vl_text", **LLAMA, n_layer=18, n_head=16, head_dim=128),  # paddleocr_vl
    Row("dia_decoder", **(LLAMA | dict(path="layers.{i}.self_attention")), n_layer=18, n_head=16, head_dim=128),  # dia
    Row("ernie4_5_vl_moe_text", **LLAMA, n_layer=28, n_head=20),  # ernie4_5_vl_moe
    Row("glm_ocr_text", **LLAMA, n_layer=16, n_head=16),  # glm_ocr
    Row("gemma3n_text", **LLAMA, n_layer=35, n_head=8, head_dim=256, n_shared=15),
    Row("gemma4_text gemma4_unified_text", **LLAMA, n_layer=30, n_head=8, head_dim=256),
    Row("diffusion_gemma_text", **(LLAMA | dict(causal=None))),  # diffusion_gemma: reads with a mask, writes without
    Row("opt", **LLAMA, n_layer=12, n_head=12),
    Row("musicgen_decoder musicgen_melody_decoder", **LLAMA, n_layer=24, n_head=16),  # musicgen
    Row("""clip_text_model metaclip_2_text_model owlvit_text_model owlv2_text_model clipseg_text_model
        xclip_text_model""", **LLAMA, n_layer=12, n_head=8),  # clip
    Row("groupvit_text_model", **LLAMA, n_layer=12, n_head=4),  # groupvit
    Row("aimv2_text_model", **(CLIP | dict(causal=True)), n_layer=12, n_head=6),  # aimv2
    Row("kosmos_2_text_model", **LLAMA, n_layer=24, n_head=32),  # kosmos2
    Row("kosmos_2_5_text_model", **LLAMA, n_layer=24, n_head=16),  # kosmos2_5
    Row("mllama_text_model", **LLAMA, n_layer=40, n_head=32),  # mllama
    Row("recurrent_gemma", **(LLAMA | dict(path="layers.{i}.temporal_block"))),
    # The depth decoder has weights of its own for each codebook: no single W_qk.
    Row("moshi", **(LLAMA | dict(path="decoder.model.layers.{i}.self_attn"))),
    Row("cohere_asr_text", path="layers.{i}.first_sub_layer", weights="query_net key_net", causal=True),  # cohere_asr
    Row("gptj gpt_neo modernbert-decoder exaone", path="(h|layers).{i}.(attn|attn.attention)", weights="q_proj k_proj",
        causal=True),
    Row("nemotron_h", path="layers.{i}.mixer", weights="q_proj k_proj", causal=True),
    Row("qwen3_next qwen3_5_text qwen3_5_moe_text", **LLAMA, form="gated"),

    # Decoders with q, k and v in one tensor, or in a product of two.
    Row("gpt2 openai-gpt imagegpt decision_transformer", path="h.{i}.attn", weights="c_attn", form="conv1d",
        causal=True),
    Row("gpt_bigcode", path="h.{i}.attn", weights="c_attn", form="multi_query", causal=True),  # GPT-2's name: a Linear
    # ckpt.pt of nanoGPT (its model.py) and model_N.pt of nanochat (its gpt.py); the reader gives them these types.
    Row("nanogpt qwen", path="h.{i}.attn", weights="c_attn", form="blocks", causal=True),
    Row("nanochat-checkpoint", path="h.{i}.attn", weights="c_q c_k", causal=True),
    Row("train.py-checkpoint", path="blocks.{i}.attn", weights="q k", causal=False),  # ckpt.pt
    Row("semantic coarse_acoustics", path="layers.{i}.attn", weights="att_proj", form="blocks", causal=True),  # bark
    Row("fine_acoustics", path="layers.{i}.attn", weights="att_proj", form="blocks", causal=False),
    Row("codegen", path="h.{i}.attn", weights="qkv_proj", form="codegen", causal=True),
    Row("falcon chatglm", path="(h|encoder.layers).{i}.self_attention", weights="query_key_value", form="multi_query",
        causal=True),
    Row("gpt_neox gpt_neox_japanese persimmon bloom", path="(h|layers).{i}.(self_attn|self_attention|attention)",
        weights="query_key_value", form="grouped", causal=True),
    Row("phi3 phi4_multimodal_text", path="layers.{i}.self_attn", weights="qkv_proj", form="blocks", causal=True),
    # Not in transformers, read off copies of the code that comes with the weights: modeling_openelm.py, _baichuan.py,
    # _bailing_moe.py (Ling), _olmo.py, _internlm2.py; as above modeling_qwen.py, _chatglm.py, _exaone.py, _minicpm.py.
    Row("openelm", path="layers.{i}.attn", weights="qkv_proj", form="blocks", causal=True),
    Row("baichuan", path="layers.{i}.self_attn", weights="W_pack", form="blocks", causal=True),
    Row("bailing_moe", path="layers.{i}.attention", weights="query_key_value", form="blocks", causal=True),
    Row("hf_olmo molmo2_text", path="blocks.{i}(.self_attn)?", weights="att_proj", form="blocks", causal=True),
    Row("internlm2", path="layers.{i}.attention", weights="wqkv", form="grouped", causal=True),
    Row("mpt dbrx", path="blocks.{i}.(norm_attn_norm.)?attn", weights="Wqkv", form="blocks", causal=True),
    Row("""deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 glm4_moe_lite youtu mistral4 axk1
        bailing_hybrid kimi_linear kimi_k2""",  # which kimi_k25 reads as deepseek_v3
        path="(layers|blocks).{i}.(self_attn|attention)", form="latent", causal=True,
        weights="q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"),
    Row("longcat_flash", path="layers.{i}.self_attn.0", form="scaled_latent", causal=True, stack="first",
        weights="q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"),  # two attentions a layer
    Row("longcat_flash", path="layers.{i}.self_attn.1", form="scaled_latent", causal=True, stack="second",
        weights="q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"),
    # W_qk is of a query and the key of one token. Keys that the compressor makes of several tokens have other weights.
    Row("deepseek_v4", path="layers.{i}.attn", weights="wq_a wq_b wkv", form="low_rank_queries", causal=True),
    Row("deepseek_v4", path="layers.{i}.self_attn", weights="q_a_proj q_b_proj kv_proj", form="low_rank_queries",
        causal=True),  # the same in a state_dict of transformers
    Row("zamba zamba2", path="layers.{i}.shared_transf(ormer)?.self_attn", weights="q_proj k_proj", causal=True),
    Row("ctrl", path="h.{i}.multi_head_attention", weights="Wq Wk", causal=True),

    # Encoders of text.
    Row("""bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert xmod electra ernie megatron-bert
        rembert roformer big_bird splinter layoutlm layoutlmv2 layoutlmv3 markuplm data2vec-text esm bert-generation dpr
        longformer nystromformer roc_bert tapas convbert mobilebert
        ibert lilt luke visual_bert bros vilt canine""",
        **BERT),  # of LiLT the text, not its boxes; of LUKE the words; of CANINE the middle
    Row("layoutlmv2", path="layer.{i}.attention.self", weights="qkv_linear", form="blocks", causal=False),  # fast_qkv
    Row("deberta-v2 sew-d", path="layer.{i}.attention.self", weights="query_proj key_proj", causal=False),
    Row("deberta", path="layer.{i}.attention.self", weights="in_proj", form="grouped", causal=False),
    Row("distilbert", path="layer.{i}.attention", weights="q_lin k_lin", causal=False),
    Row("mpnet", path="layer.{i}.attention.attn", weights="q k", causal=False),
    Row("xlnet", path="layer.{i}.rel_attn", weights="q k", form="xlnet", causal=None),  # in a random order of positions
    Row("squeezebert", path="layers.{i}.attention", weights="query key", form="grouped_convolution", causal=False),
    Row("xlm flaubert", path="attentions.{i}", weights="q_lin k_lin", causal=False),
    Row("albert", path="albert_layer_groups.{i}.albert_layers.0.attention", weights="query key", causal=False),
    Row("modernbert", path="layers.{i}.attn", weights="Wqkv", form="blocks", causal=False, n_layer=22, n_head=12),
    # Of words, of regions of an image, and of both in the layers where they meet.
    Row("lxmert", **(BERT | dict(path="encoder.layer.{i}.attention.self")), stack="l.text"),
    Row("lxmert", **(BERT | dict(path="r_layers.{i}.attention.self")), stack="r.vision"),
    Row("lxmert", **(BERT | dict(path="x_layers.{i}.lang_self_att.self")), stack="x.text"),
    Row("lxmert", **(BERT | dict(path="x_layers.{i}.visn_self_att.self")), stack="x.vision"),
    Row("nomic_bert", path="layers.{i}.attn", weights="Wqkv", form="blocks", causal=False),
    Row("jina_embeddings_v3", path="layers.{i}.mixer", weights="Wqkv", form="blocks", causal=False),
    Row("gte new", path="layer.{i}.attention", weights="qkv_proj", form="blocks", causal=False),  # new: gte on the Hub
    Row("eurobert openai_privacy_filter embedding_gemma2_text esmc vits ultrabert", **CLIP),
    # MLMvsCLM's own name for its models, EuroBERT's network with or without a mask. Their code was not seen: this is
    # how a fork of the library that trained EuroBERT exports it (github.com/lgcharpe/EuroBERT, hf_conversion_script).
    Row("sl_model", **(LLAMA | dict(causal=None))),
    # Not in transformers, read off the code that comes with the weights.
    # huggingface.co/Dream-org/Dream-v0-Base-7B, modeling_dream.py: Qwen2 without a mask.
    Row("Dream", **CLIP),
    # huggingface.co/GSAI-ML/LLaDA-8B-Base, modeling_llada.py, LLaDALlamaBlock.
    Row("llada", path="blocks.{i}", weights="q_proj k_proj", causal=False),
    # huggingface.co/BabyLM-community, modeling_gpt_bert.py: in_proj_qk(x).chunk(2, -1). Both masks in training.
    Row("gpt_bert", path="layers.{i}.attention", weights="in_proj_qk", form="query_key", causal=None),
    # huggingface.co/chandar-lab/NeoBERT, model.py: qkv(x).view(batch, length, n_head, 3 * head_dim).chunk(3, -1).
    Row("neobert", path="transformer_encoder.{i}", weights="qkv", form="grouped", causal=False),

    # Encoders of text beside an image or a sound.
    Row("git_text", **(BERT | dict(causal=True))),  # git
    Row("blip_text_model", **(BERT | dict(path="text_(model|encoder).encoder.layer.{i}.attention.self")),
        stack="encoder", n_layer=12, n_head=8),  # blip_text
    Row("blip_text_model", **(BERT | dict(path="text_decoder.bert.encoder.layer.{i}.attention.self", causal=True)),
        stack="decoder", n_layer=12, n_head=8),
    Row("siglip_text_model siglip2_text_model", **CLIP, n_layer=12, n_head=12),  # siglip, siglip2
    Row("chinese_clip_text_model clap_text_model align_text_model bridgetower_text_model", **BERT,
        n_layer=12, n_head=12),  # chinese_clip, clap, align, bridgetower
    Row("flava_text_model flava_image_model", **BERT, n_layer=12, n_head=12),  # flava
    Row("flava_multimodal_model", **BERT, n_layer=6, n_head=12),
    Row("altclip_text_model", **BERT, n_layer=24, n_head=16),  # altclip
    Row("blip_2_qformer instructblip_qformer instructblipvideo_qformer", **BERT,
        n_layer=12, n_head=12),  # blip_2, instructblip, instructblipvideo

    # Images and sound.
    Row("""vit deit beit data2vec-vision dinov2 dinov2_with_registers ijepa vit_msn yolos
        audio-spectrogram-transformer dpt vivit vitpose_backbone""", **BERT, n_layer=12, n_head=12),
    Row("pixio", **BERT, n_layer=32, n_head=16),
    # The same in a state_dict of transformers 5, which save_pretrained renames.
    Row("vit deit beit dinov2 dinov2_with_registers ijepa vit_msn audio-spectrogram-transformer vivit",
        **CLIP, n_layer=12, n_head=12),
    Row("pixio", **CLIP, n_layer=32, n_head=16),
    # Swin 2 multiplies queries and keys of length 1: as with other norms of queries and keys, W_qk is of those before.
    Row("swin swinv2 donut-swin clap_audio_model", path="blocks.{i}.attention.self", weights="query key", causal=False),
    # Every other layer is attention of channels to channels, which has no W_qk. The original files have davit and
    # florence2_language for vision and text (huggingface.co/microsoft/Florence-2-base), and a "fn" in names.
    Row("florence_vision davit", path="blocks.\\d+.{i}.spatial_block.window_attn(.fn)?", weights="qkv", form="blocks",
        causal=False),  # florence2
    # The first layer of a stage pools its queries.
    Row("hiera", path="stages.\\d+.layers.{i}.attn", weights="qkv", form="widening", causal=False),
    Row("hiera", path="decoder_block.layers.{i}.attn", weights="qkv", form="widening", causal=False, stack="decoder"),
    Row("sam2_hiera_det_model", path="backbone.blocks.{i}.attn", weights="qkv", form="widening", causal=False),  # sam2
    Row("groupvit_vision_model", path="stages.\\d+.layers.{i}.self_attn", weights="q_proj k_proj", causal=False),
    Row("segformer glpn pvt", path="block.\\d+.{i}.attention.self", weights="query key", causal=False),
    Row("vjepa2", path="encoder.layer.{i}.attention", weights="query key", causal=False, stack="encoder"),
    Row("vjepa2", path="predictor.layer.{i}.attention", weights="query key", causal=False, stack="pred"),
    Row("vitdet", path="layer.{i}.attention", weights="qkv", form="blocks", causal=False, n_layer=12, n_head=12),
    Row("timesformer", path="layer.{i}.attention.attention", weights="qkv", form="blocks", causal=False, stack="space"),
    Row("timesformer", path="layer.{i}.temporal_attention.attention", weights="qkv", form="blocks", causal=False,
        stack="time"),
    Row("""dinov3_vit mlcd_vision_model granite_docling_vision llama4_vision_model wav2vec2 hubert wavlm
        unispeech unispeech-sat data2vec-audio sew patchtst""", **CLIP),
    Row("""clip_vision_model chinese_clip_vision_model altclip_vision_model metaclip_2_vision_model
        owlvit_vision_model owlv2_vision_model clipseg_vision_model siglip_vision_model siglip2_vision_model
        git_vision_model idefics2_vision minicpmv4_6_vision video_llama_3_vision""", **CLIP,
        n_layer=12, n_head=12),  # clip, siglip, ...; and so those below
    Row("xclip_vision_model", path="layers.{i}.self_attn", weights="q_proj k_proj", causal=False,
        stack="space", n_layer=12, n_head=12),  # x_clip
    Row("xclip_vision_model", path="layers.{i}.message_attn", weights="q_proj k_proj", causal=False,
        stack="time", n_layer=12, n_head=12),
    Row("idefics3_vision smolvlm_vision", **CLIP, n_layer=12, n_head=16),
    Row("paddleocr_vl_vision hunyuan_vl_vision phi4_multimodal_vision", **CLIP, n_layer=27, n_head=16),
    Row("molmo2_vision", path="resblocks.{i}.attention", weights="wq wk", causal=False),
    Row("got_ocr2_vision", **VISION_QKV, n_layer=12, n_head=12),  # got_ocr2
    Row("voxtral_realtime_encoder", **(CLIP | dict(causal=True)), n_layer=32, n_head=32, head_dim=64),
    Row("parakeet_encoder ovis2_vision aimv2_vision_model", **CLIP, n_layer=24, n_head=8),
    Row("parakeet_encoder", **(CLIP | dict(weights="linear_q linear_k")), n_layer=24, n_head=8),  # cohere_asr
    Row("granite_speech_encoder", path="layers.{i}.attn", weights="to_q to_kv", form="query_key_value", causal=False),
    Row("dia_encoder", **(CLIP | dict(path="layers.{i}.self_attention")), n_layer=12, n_head=16, head_dim=128),
    Row("mgp-str seggpt", path="(blocks|layers).{i}.(attn|attention)", weights="qkv", form="blocks", causal=False),
    Row("sam3_vit_model idefics_vision", **CLIP, n_layer=32, n_head=16),  # sam3
    Row("phi4_multimodal_audio", **(CLIP | dict(path="encoders.{i}.self_attn")), n_layer=24, n_head=16),
    Row("kosmos_2_5_vision_model", **(BERT | dict(path="layer.{i}.attention")), n_layer=18, n_head=24, head_dim=64),
    Row("pix2struct_vision_model", **(BERT | dict(path="layer.{i}.attention")), n_layer=12, n_head=12, head_dim=64),
    Row("gemma4_vision", **CLIP, n_layer=16, n_head=12, head_dim=64),
    Row("gemma4_audio", **CLIP, n_layer=12, n_head=8),
    Row("gemma3n_audio", path="conformer.{i}.attention.attn", weights="q_proj k_proj", causal=False),
    Row("pixtral internvl_vision janus_vision_model qwen3_asr_encoder kosmos_2_vision_model", **CLIP,
        n_layer=24, n_head=16),
    Row("""qwen2_audio_encoder voxtral_encoder qwen2_5_omni_audio_encoder qwen3_omni_moe_audio_encoder glmasr_encoder
        audioflamingo3_encoder""", **CLIP, n_layer=32, n_head=20),
    Row("qwen2_5_omni_vision_encoder", path="blocks.{i}.attn", weights="q k", causal=False, n_layer=32, n_head=16),
    Row("wav2vec2-bert wav2vec2-conformer", path="encoder.layers.{i}.self_attn", weights="linear_q linear_k",
        causal=False),
    Row("wav2vec2-bert", path="adapter.layers.{i}.self_attn", weights="linear_q linear_k", causal=False,
        stack="adapter"),
    Row("""glm4v_vision glm4v_moe_vision radio tipsv2_vision_model glm_ocr_vision glm5_next_vision
        cohere_compass_vision""", **VISION_QKV),
    Row("timm_vit", **VISION_QKV, head_dim=64),  # timm's vision_transformer.py; the reader gives them this type
    Row("blip_vision_model sam_vision_model sam_hq_vision_model", **VISION_QKV, n_layer=12, n_head=12),
    Row("blip_2_vision_model instructblip_vision_model instructblipvideo_vision_model", **VISION_QKV,
        n_layer=39, n_head=16),
    Row("qwen2_vl_vision qwen2_5_vl_vision ernie4_5_vl_moe_vision exaone4_5_vision", **VISION_QKV,
        n_layer=32, n_head=16),
    Row("""qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision qwen3_omni_moe_vision_encoder""",
        **VISION_QKV, n_layer=27, n_head=16),
    Row("kimi_k25_vision moonvit", path="blocks.{i}", weights="wqkv", form="blocks", causal=False),  # kimi_k25
    Row("bridgetower_vision_model", path="resblocks.{i}.attn", weights="in_proj_weight", form="blocks", causal=False,
        head_dim=64),
    Row("mllama_vision_model", path="transformer.layers.{i}.self_attn", weights="q_proj k_proj", causal=False,
        n_layer=32, n_head=16),  # mllama
    Row("mllama_vision_model", path="global_transformer.layers.{i}.self_attn", weights="q_proj k_proj",
        causal=False, stack="global", n_layer=32, n_head=16),

    # Two stacks.
    Row("bart", **BART_ENCODER, n_layer=12, n_head=16),
    Row("bart", **BART_DECODER, causal=True, n_layer=12, n_head=16),
    Row("""mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe whisper speech_to_text
        speecht5 mvp fsmt moonshine detr table-transformer florence2_language pegasus_x
        conditional_detr dab-detr time_series_transformer""", **BART_ENCODER),
    Row("rt_detr rt_detr_v2 d_fine", **(BART_ENCODER | dict(path="encoder.(encoder|aifi).0.layers.{i}.self_attn"))),
    Row("t5gemma_encoder", **(LLAMA | dict(causal=False))),  # t5gemma
    Row("t5gemma2_text", **(LLAMA | dict(causal=False)), n_layer=26, n_head=8, head_dim=256),  # t5gemma2
    Row("bigbird_pegasus", path="encoder.layers.{i}.self_attn.self", weights="query key", causal=False,
        stack="encoder"),
    Row("led", path="encoder.layers.{i}.self_attn.longformer_self_attn", weights="query key", causal=False,
        stack="encoder"),
    Row("""mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe whisper speech_to_text
        speecht5 mvp fsmt moonshine led trocr florence2_language pegasus_x
        bigbird_pegasus time_series_transformer""", **BART_DECODER, causal=True),
    Row("pix2struct_text_model", **(BERT | dict(path="layer.{i}.self_attention.attention", causal=True)), n_layer=12,
        n_head=12, head_dim=64),  # pix2struct
    Row("t5gemma2_decoder", **LLAMA, n_layer=26, n_head=8, head_dim=256),  # it has cross-attention in the same tensors
    # Text, speech, and the units of speech that are made of them.
    Row("seamless_m4t seamless_m4t_v2", **(BART_ENCODER | dict(path="text_encoder.layers.{i}.self_attn"))),
    Row("seamless_m4t seamless_m4t_v2", **(BART_DECODER | dict(path="text_decoder.layers.{i}.self_attn")), causal=True),
    Row("seamless_m4t seamless_m4t_v2", path="speech_encoder.encoder.layers.{i}.self_attn", weights="linear_q linear_k",
        causal=False, stack="speech_encoder"),
    Row("seamless_m4t seamless_m4t_v2", path="speech_encoder.adapter.layers.{i}.self_attn", weights="linear_q linear_k",
        causal=False, stack="adapter"),
    Row("seamless_m4t seamless_m4t_v2", path="t2u_model.model.encoder.layers.{i}.self_attn", weights="q_proj k_proj",
        causal=False, stack="t2u_encoder"),
    Row("seamless_m4t", path="t2u_model.model.decoder.layers.{i}.self_attn", weights="q_proj k_proj", causal=True,
        stack="t2u_decoder"),
    Row("seamless_m4t_v2", path="t2u_model.model.decoder.layers.{i}.self_attn", weights="q_proj k_proj",
        causal=False, stack="t2u_decoder"),  # all units at once
    Row("prophetnet", **(BART_ENCODER | dict(weights="query_proj key_proj"))),
    Row("prophetnet", **(BART_DECODER | dict(weights="query_proj key_proj")), causal=True),
    Row("longt5", **(T5_ENCODER | dict(path="encoder.block.{i}.layer.0.(Local|TransientGlobal)SelfAttention"))),
    Row("longt5", **T5_DECODER),
    # Detectors: every query sees all queries. Deformable attention to the image has no queries and keys. In Conditional
    # DETR and DAB-DETR, positions have weights of their own.
    Row("detr table-transformer deformable_detr rt_detr rt_detr_v2 d_fine mask2former", **BART_DECODER, causal=False),
    Row("conditional_detr", path="decoder.layers.{i}", weights="sa_qcontent_proj sa_kcontent_proj", causal=False,
        stack="decoder"),
    Row("dab-detr", path="decoder.layers.{i}.self_attn", causal=False, stack="decoder",
        weights="self_attn_query_content_proj self_attn_key_content_proj"),
    Row("grounding-dino mm-grounding-dino", **(BART_DECODER | dict(weights="query key")), causal=False),
    Row("t5", **T5_ENCODER, n_layer=6, n_head=8, head_dim=64),
    Row("t5", **T5_DECODER, n_layer=6, n_head=8, head_dim=64),
    Row("mt5 umt5 switch_transformers pop2piano udop", **T5_ENCODER),
    Row("mt5 umt5 switch_transformers pop2piano udop", **T5_DECODER),
    Row("vit_mae videomae", path="encoder.layer.{i}.attention.attention", weights="query key", causal=False,
        stack="encoder"),
    Row("vit_mae videomae", path="decoder.decoder_(layers|encoder.layer).{i}.attention.attention", weights="query key",
        causal=False, stack="decoder"),
]
KNOWN = {model_type for row in ROWS for model_type in row.types.split()}

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
# How the names of parts, and of other stacks, begin that see images, or hear or say something.
IMAGES = ("vision", "image", "video", "backbone", "high_res_vision")
SOUND = ("audio", "speech", "adapter", "projector", "depth_decoder", "t2u", "semantic", "coarse_acoustics",
         "fine_acoustics")
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
