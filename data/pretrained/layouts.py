"""
Where pretrained Transformers keep the query and key weights of their self-attention layers.

find_stacks takes a checkpoint's config.json and the names and shapes of its tensors, Layer.heads the tensors of one
layer. What is not certain is refused: a fused tensor cut in the wrong order has the right shape and the wrong score.

nn.Linear stores (out, in), so W_q,h is D rows of the query weight, transposed; query head h meets key head
h // (n_head // n_kv_head). These are the raw projections: biases, RoPE, scaling and the norms of queries, keys and
latents stay outside, nothing is folded in.

Layouts and class defaults were read off transformers 5.23, models/NAME/modeling_NAME.py with NAME the first model_type
of a row if no comment says otherwise, and are proven against it in tests/test_layouts.py.
"""

import re
from collections import defaultdict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


class LayoutError(ValueError):
    """The query and key weights cannot be told with certainty. One line: the model_type and what was found."""


def split(form, sizes, config, *w):
    """The tensors of a layer -> q (H, D, C), k (Hkv, D, C). RuntimeError if they do not have the shapes of the form."""
    n, kv, dim = sizes  # Hkv may be None: as the shape of k says, or H in a fused tensor; D too: C / H
    dim = dim or w[0].shape[1] // n
    if form in ("separate", "gated"):  # q (H D, C), or (q, gate) of each head (2 H D, C); k (Hkv D, C)
        return w[0].unflatten(0, (n, 1 + (form == "gated"), dim))[:, 0], w[1].unflatten(0, (kv or -1, dim))
    if form == "conv1d":  # [q, k, v] (C, 3 H D): Conv1D stores (in, out)
        return split("blocks", sizes, config, w[0].mT)
    if form == "blocks":  # [q; k; v] ((H + 2 Hkv) D, C)
        return w[0].unflatten(0, (n + 2 * (kv or n), dim)).split([n, kv or n, kv or n])[:2]
    if form == "grouped":  # [q_1; ...; q_G; k; v] of each key head (Hkv (G + 2) D, C), G = H / Hkv
        x = w[0].unflatten(0, (kv or n, n // (kv or n) + 2, dim))
        return x[:, :-2].flatten(0, 1), x[:, -2]
    if form == "codegen":  # 4 blocks of [q; v; k] (3 H D, C)
        x = w[0].unflatten(0, (4, 3, n // 4, dim))
        return x[:, 0].flatten(0, 1), x[:, 2].flatten(0, 1)
    if form == "multi_query":  # num_kv_heads counts in the new architecture only: falcon-7b says 71 and has one
        new = config.get("new_decoder_architecture", False)
        one = config.get("multi_query", True) and not new
        kv = 1 if one else config.get("num_kv_heads") if new else n
        return split("blocks" if one else "grouped", (n, kv, dim), config, *w)
    if form == "xlnet":  # (C, H, D) both
        return w[0].permute(1, 2, 0), w[1].permute(1, 2, 0)
    # Latent attention: W_q,h = Q_b,h Q_a (or Q_h), rows [nope; rope]; W_k,h = [K_b,h A; R], R of all heads. In float32.
    *q, a, b = (x.float() for x in w)  # [(r_q, C)], (H (nope + rope), r_q or C), (r + rope, C), (H (nope + v), r)
    nope, rope, v = (config[f"{key}_head_dim"] for key in ("qk_nope", "qk_rope", "v"))
    a, r = a.split([config["kv_lora_rank"], rope])
    k = b.unflatten(0, (n, nope + v))[:, :nope] @ a  # (H, nope, C)
    q = (q[-1] @ q[0] if len(q) == 2 else q[0]).unflatten(0, (n, nope + rope))
    return q, torch.cat([k, r.expand(n, -1, -1)], 1)


# One row per way of storing q and k. path: of a layer, a regular expression but for "." and {i}, after any prefix.
# weights: in that layer, with or without ".weight". types: model_types; one that is in two rows has two stacks.
Row = namedtuple("Row", "path weights form causal types stack", defaults=[""])
BART = "bart mbart pegasus marian blenderbot blenderbot-small plbart m2m_100 nllb-moe whisper speech_to_text speecht5 "
T5, MAE, DETR = "t5 mt5 umt5 switch_transformers", "vit_mae videomae", "detr table-transformer "
Q_K, MLA = "q_proj k_proj", "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"
ROWS = [
    Row("layers.{i}.self_attn", Q_K, "separate", True,
        """llama mistral ministral ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi
        phimoe olmo olmo2 olmo3 olmoe flex_olmo starcoder2 stablelm cohere cohere2 granite granitemoe granitemoeshared
        smollm3 glm glm4 glm4_moe gpt_oss helium arcee apertus ernie4_5 ernie4_5_moe exaone4 seed_oss hunyuan_v1_dense
        hunyuan_v1_moe dots1 minimax_m2 nemotron vaultgemma xglm biogpt opt musicgen_decoder clip_text_model
        qwen2_vl_text qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text glm4v_text mllama_text_model llama4_text
        jamba bamba falcon_h1 lfm2 lfm2_moe granitemoehybrid minimax olmo_hybrid
        mobilellm"""),  # not in transformers: facebook/MobileLLM-125M prints its attention as LlamaSdpaAttention
    Row("layers?.{i}.(self_attn|attention)", Q_K, "separate", False,  # as in clip, wav2vec2, dinov3_vit
        """clip_vision_model siglip_text_model siglip_vision_model siglip2_text_model siglip2_vision_model pixtral
        git_vision_model idefics2_vision idefics3_vision smolvlm_vision internvl_vision llama4_vision_model dinov3_vit
        qwen2_audio_encoder voxtral_encoder wav2vec2 hubert wavlm unispeech unispeech-sat data2vec-audio sew
        eurobert"""),
    Row("layer.{i}.attention.(self|attention)", "query key", "separate", False,  # as in bert, vit
        """bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert xmod electra ernie megatron-bert
        rembert roformer big_bird splinter layoutlm layoutlmv3 markuplm data2vec-text esm bert-generation dpr longformer
        vit deit beit data2vec-vision dinov2 dinov2_with_registers ijepa vit_msn yolos audio-spectrogram-transformer
        blip_2_qformer instructblip_qformer"""),
    Row("layer.{i}.attention.self", "query key", "separate", True, "git_text"),  # git
    Row("layer.{i}.attention.self", "query key", "separate", None, "blip_text_model"),  # blip_text: encoder or decoder
    Row("layer.{i}.attention.self", "query_proj key_proj", "separate", False, "deberta-v2"),
    Row("layer.{i}.attention.self", "in_proj", "grouped", False, "deberta"),
    Row("layer.{i}.attention", "q_lin k_lin", "separate", False, "distilbert"),
    Row("layer.{i}.attention.attn", "q k", "separate", False, "mpnet"),
    Row("layer.{i}.rel_attn", "q k", "xlnet", None, "xlnet"),  # causal in a random order of the positions
    Row("blocks.{i}.attention.self", "query key", "separate", False, "swin"),
    Row("attentions.{i}", "q_lin k_lin", "separate", False, "xlm flaubert"),
    Row("albert_layer_groups.{i}.albert_layers.0.attention", "query key", "separate", False, "albert"),  # shared layers
    Row("layers.{i}.self_attn", Q_K, "gated", True, "qwen3_next qwen3_5_text qwen3_5_moe_text"),
    Row("layers.{i}.self_attn", "linear_q linear_k", "separate", False, "wav2vec2-bert wav2vec2-conformer"),
    Row("(h|layers).{i}.(attn|attn.attention|mixer)", Q_K, "separate", True,
        "gptj gpt_neo modernbert-decoder nemotron_h"),
    Row("h.{i}.attn", "c_attn", "conv1d", True, "gpt2 openai-gpt imagegpt"),
    Row("h.{i}.attn", "c_attn", "multi_query", True, "gpt_bigcode"),  # GPT-2's name, but a Linear
    Row("h.{i}.attn", "qkv_proj", "codegen", True, "codegen"),
    Row("h.{i}.self_attention", "query_key_value", "multi_query", True, "falcon"),
    Row("(h|layers).{i}.(self_attn|self_attention|attention)", "query_key_value", "grouped", True,
        "gpt_neox gpt_neox_japanese persimmon bloom"),
    Row("layers.{i}.self_attn", "qkv_proj", "blocks", True, "phi3"),
    Row("blocks.{i}.(norm_attn_norm.)?attn", "Wqkv", "blocks", True, "mpt dbrx"),
    Row("layers.{i}.attn", "Wqkv", "blocks", False, "modernbert nomic_bert"),
    Row("(blocks|layers).{i}.(self_)?attn", "qkv", "blocks", False,  # in qwen2_vl, blip, sam
        """qwen2_vl_vision qwen2_5_vl_vision qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision
        glm4v_vision blip_vision_model blip_2_vision_model instructblip_vision_model sam_vision_model"""),
    Row("layers.{i}.self_attn", MLA, "latent", True, "deepseek_v2 deepseek_v3 minicpm3 glm4_moe_lite youtu"),
    Row("encoder.(wrapped_encoder.)?layers.{i}.(self_attn|attention)", Q_K, "separate", False, BART + DETR, "encoder"),
    Row("encoder.layers.{i}.self_attn.longformer_self_attn", "query key", "separate", False, "led", "encoder"),
    Row("decoder.(wrapped_decoder.)?layers.{i}.self_attn", Q_K, "separate", True, BART + "led trocr", "decoder"),
    Row("decoder.layers.{i}.self_attn", Q_K, "separate", False, DETR + "mask2former", "decoder"),  # queries see all
    Row("encoder.block.{i}.layer.0.SelfAttention", "q k", "separate", False, T5, "encoder"),
    Row("decoder.block.{i}.layer.0.SelfAttention", "q k", "separate", True, T5, "decoder"),
    Row("encoder.layer.{i}.attention.attention", "query key", "separate", False, MAE, "encoder"),
    Row("decoder.decoder_(layers|encoder.layer).{i}.attention.attention", "query key", "separate", False, MAE,
        "decoder"),
    Row("transformer.layers.{i}.self_attn", Q_K, "separate", False, "mllama_vision_model"),  # mllama
    Row("global_transformer.layers.{i}.self_attn", Q_K, "separate", False, "mllama_vision_model", "global"),
]
KNOWN = {kind for row in ROWS for kind in row.types.split()}
# Models made of parts, each with a nested config, and how the names of a part's tensors start: text has what is left.
COMPOSITES = """llava llava_next llava_onevision vipllava paligemma gemma3 mistral3 internvl idefics2 idefics3 smolvlm
    mllama llama4 clip siglip siglip2 blip blip-2 instructblip git qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5
    qwen3_5_moe glm4v qwen2_audio voxtral musicgen sam encoder-decoder vision-encoder-decoder speech-encoder-decoder
    vision-text-dual-encoder"""
PARTS = {"vision": r"(.*\.)?(vision_tower|vision_model|vision_encoder|image_encoder|visual)\.",
         "audio": r"(.*\.)?audio_tower\.", "qformer": r"(.*\.)?qformer\.", "text_encoder": r"text_encoder\.",
         "encoder": r"encoder\.", "decoder": r"decoder\.", "text": ""}
# Nested configs leave out what their class defaults to: (number of layers, of heads, head_dim).
DEFAULTS = {
    (12, 12): """opt clip_vision_model siglip_text_model siglip_vision_model siglip2_text_model siglip2_vision_model
        git_vision_model blip_vision_model idefics2_vision blip_2_qformer instructblip_qformer sam_vision_model""",
    (12, 8): "clip_text_model blip_text_model", (12, 16): "idefics3_vision smolvlm_vision", (6, 8, 64): "t5",
    (24, 16): "pixtral internvl_vision musicgen_decoder", (39, 16): "blip_2_vision_model instructblip_vision_model",
    (27, 16): "qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision", (40, 32): "mllama_text_model",
    (32, 16): "mllama_vision_model qwen2_vl_vision qwen2_5_vl_vision", (32, 20): "qwen2_audio_encoder voxtral_encoder",
    (32, 32): "llama mistral qwen2", (32, 32, 128): "qwen3", (28, 16, 256): "gemma", (26, 8, 256): "gemma2 gemma3_text",
}
# Where not every layer has queries and keys of its own for a softmax: which of the n have, unless layer_types says it.
LAYERS = {
    "albert": lambda c, n: range(c.get("num_hidden_groups", 1)),
    "mask2former": lambda c, n: range(n - 1),
    "mllama_text_model": lambda c, n: sorted({*range(n)} - {*c.get("cross_attention_layers", range(3, 39, 5))}),
    "jamba": lambda c, n: range(c.get("attn_layer_offset", 4), n, c.get("attn_layer_period", 8)),
    "bamba": lambda c, n: c.get("attn_layer_indices") or [],
    "lfm2": lambda c, n: c.get("full_attn_idxs") or range(n),
    "nemotron_h": lambda c, n: [i for i, kind in enumerate(c.get("hybrid_override_pattern", "")) if kind == "*"],
    "qwen3_next": lambda c, n: [i for i in range(n) if (i + 1) % c.get("full_attention_interval", 4) == 0],
}
SOFTMAX = {"attention", "full_attention", "sliding_attention", "chunked_attention", "hybrid"}  # of those in layer_types
# Not layers: cross-attention, pooling, backbones, prediction of further tokens. Position projections have other names.
UNSCORED = re.compile(r"cross|encoder_attn|EncDecAttention|resampler|head\.attention|mask_decoder|pixel_level|\bmtp\.")
QK = (r"(^|\.)([qk]|W?qkv|w[qk]|query|key|query_key_value|c_attn|att_proj|(q|k|qkv|query|key)_(proj|lin)|"
      r"(linear|to)_(q|k|qkv)|q_[ab]_proj)")
LOOKS_LIKE_QK = re.compile(QK + r"(\.weight)?$|in_proj_weight$")
QUANTISED = re.compile(QK + r"\.(qweight|weight_(scale|packed)|weight\.|scales|SCB)")
# Keys of config.json, tried in this order; {0} is the name of the stack.
N_LAYER = """{0}_layers num_{0}_layers {0}_num_hidden_layers num_hidden_layers n_layer n_layers num_layers depth
    encoder_layers"""
N_HEAD = """{0}_attention_heads {0}_num_attention_heads num_attention_heads n_head n_heads num_heads attention_heads
    encoder_attention_heads"""


@dataclass(frozen=True)
class Layer:
    """One self-attention layer: its number in the model, and the tensors to read."""

    index: int
    names: tuple[str, ...]
    layout: tuple = field(repr=False, compare=False)  # model_type, form, (n_head, n_kv_head, head_dim), config

    def heads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        -> w_q (n_head, C, D), w_k (n_kv_head, C, D) in the checkpoint's dtype, views where the form allows it.

        LayoutError if the shapes do not fit the config, or the dtype is not a float of 16 bits or more.
        """
        (kind, form, sizes, config), w = self.layout, [tensors[name] for name in self.names]
        try:
            q, k = split(form, sizes, config, *w)
            fits = len(q) == sizes[0] and len(q) % len(k) == 0 and q.shape[1:] == k.shape[1:]
        except (RuntimeError, KeyError):
            fits = False
        if not fits or not all(x.is_floating_point() and x.itemsize > 1 for x in w):
            found = ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in zip(self.names, w))
            raise LayoutError(f"{kind}: {found} do not fit n_head, n_kv_head, head_dim = {sizes}")
        return q.mT, k.mT


@dataclass(frozen=True)
class Stack:
    """Layers on top of each other. name: "" if the model has one stack; causal: None where the mask cannot be told."""

    name: str
    causal: bool | None
    layers: tuple[Layer, ...]


def find_stacks(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> list[Stack]:
    """
    The stacks of self-attention layers in a checkpoint, from its config.json and the shapes of its tensors by name.

    LayoutError: an unknown model_type, missing layers, tensors that look like q or k and have no known place, shapes
    that do not fit the config, quantised weights.
    """
    model_type = config.get("model_type")
    how = _pick(config, "quantization_config compression_config quantization", default={})
    spared = _pick(how, "modules_to_not_convert ignore", default=[])  # in gpt-oss, the attention
    marks = [name for name in shapes if QUANTISED.search(name)]
    if marks or how and not any("attn" in pattern for pattern in spared):
        raise LayoutError(f"{model_type}: quantised weights ({marks[0] if marks else how.get('quant_method', how)})")
    left = {name for name in shapes if len(shapes[name]) > 1 and not UNSCORED.search(name)}
    stacks, unknown = [], set()
    for part, pattern, kind, sub in _parts(model_type, config):
        inside = {name for name in left if re.match(pattern, name)}
        left -= inside
        if inside and kind not in KNOWN:
            raise LayoutError(f"{model_type}: model_type {kind!r} is not known")
        rows = [row for row in ROWS if kind in row.types.split()]
        found = [(row, layers) for row in rows if (layers := _layers(row, kind, sub, inside, shapes))]
        for row, layers in found:  # "vision"; "vision.global" if the part has several; "encoder" if there are no parts
            name = part if part and len(found) == 1 else ".".join(filter(None, [part, row.stack]))
            stacks.append(Stack(name.removeprefix("text_"), _causal(row, sub), layers))  # MusicGen's text_encoder
        unknown |= inside
    unknown = sorted(filter(LOOKS_LIKE_QK.search, unknown | left))
    if unknown or not stacks:
        raise LayoutError(f"{model_type}: " + (f"no known place for {unknown[0]}" if unknown else "no q and k weights"))
    return stacks


def _pick(config, keys, stack="", default=None):
    return next((config[key] for key in keys.format(stack).split() if config.get(key) is not None), default)


def _parts(model_type, config):
    """-> [(name, how its tensors start, model_type, config)] of a model's parts, one without a name if it has none."""
    if model_type == "swin":  # a stack for each stage, of its own width and number of heads
        stages = zip(config.get("depths", [2, 2, 6, 2]), config.get("num_heads", [3, 6, 12, 24]))
        return [(f"stage {i}", rf"(.*\.)?layers\.{i}\.blocks\.", "swin",
                 dict(num_hidden_layers=n, num_attention_heads=h)) for i, (n, h) in enumerate(stages)]
    if model_type not in COMPOSITES.split():
        return [("", "", model_type, config)]
    parts = []
    for part in PARTS:
        sub = _pick(config, f"{part}_config {part} {part}_config_dict")
        if sub is None and part == "text" and _pick(config, N_HEAD):
            sub = config  # GIT, and Qwen2-VL's first files
        if sub is not None:
            kind, own = sub.get("model_type", model_type), f"{model_type}_{part}".replace("-", "_")
            if kind == model_type:  # also where the part names no type, as in CLIP's files
                kind = own if own in KNOWN else f"{own}_model"
            if model_type == "paligemma" and part == "text":  # the image and the prompt see each other
                sub = {"use_bidirectional_attention": True, **sub}
            parts.append((part, PARTS[part], kind, sub))
    return parts


def _causal(row, config):
    if row.causal is False and not row.stack:  # BERT as a decoder, XLM
        return bool(config.get("is_decoder") or config.get("causal"))
    if row.causal and (config.get("use_bidirectional_attention") or config.get("is_causal") is False):
        return None  # by its first training, and not by its last
    return row.causal


def _layers(row, kind, config, left, shapes):
    """The layers of one stack, () if there are none; takes their tensors out of left."""
    weights = row.weights.split()
    if row.form == "latent" and not config.get("q_lora_rank"):
        weights = ["q_proj", *weights[2:]]
    pattern = row.path.replace(".", r"\.").replace("{i}", r"(?P<i>\d+)")
    pattern = re.compile(rf"(?P<prefix>(.*\.)?){pattern}\.(?P<weight>{'|'.join(weights)})(\.weight)?")
    found, prefixes = defaultdict(dict), set()
    for match in filter(None, map(pattern.fullmatch, left)):
        found[int(match["i"])][match["weight"]] = match[0]
        prefixes.add(match["prefix"])
    if not found:
        return ()
    default = (*next((sizes for sizes, kinds in DEFAULTS.items() if kind in kinds.split()), ()), None, None, None)
    kinds = _pick(config, "layer_types layers_block_type", default=[])
    n_layer = _pick(config, N_LAYER, row.stack, default[0] or len(kinds))
    sizes = (_pick(config, N_HEAD, row.stack, default[1]),
             _pick(config, "num_key_value_heads", default=(config.get("attn_config") or {}).get("kv_n_heads")),
             _pick(config, "head_dim d_kv d_head attention_head_size", default=default[2]))
    if not n_layer or not sizes[0]:
        raise LayoutError(f"{kind}: config.json has no number of layers or of heads")
    own = ([i for i, layer_type in enumerate(kinds[:n_layer]) if layer_type in SOFTMAX] if kinds
           else [*LAYERS.get(kind, lambda c, n: range(n))(config, n_layer)])
    further = range(n_layer, n_layer + (config.get("num_nextn_predict_layers") or 0))
    found = {i: names for i, names in found.items() if i not in further}
    missing = [f"{row.path.replace('{i}', str(i))}.{w}" for i in own for w in weights if w not in found.get(i, {})]
    if missing or len(found) > len(own) or len(prefixes) > 1:
        what = f"{missing[0]} missing" if missing else f"{len(found)} found under {' and '.join(sorted(prefixes))!r}"
        raise LayoutError(f"{kind}: {len(own)} attention layers in config.json, {what}")
    layers = tuple(Layer(i, tuple(found[i][w] for w in weights), (kind, row.form, sizes, config)) for i in own)
    for layer in layers:
        layer.heads({name: torch.empty(shapes[name], device="meta") for name in layer.names})
        left.difference_update(layer.names)
    others = {*range(n_layer), *further} - {*own}  # without softmax attention, or to predict further tokens
    left -= {name for name in left if (i := re.search(r"(^|\.)layers\.(\d+)\.", name)) and int(i[2]) in others}
    return layers
