"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks = find_stacks(config, shapes)     # from config.json, and from the names and shapes of all tensors
    w_q, w_k = stacks[0].layers[0].heads(tensors)  # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.
layouts.csv says where each model has these weights, layout_table.py which of its lines a model needs, and FORMS how
tensors hold the heads: all proven against transformers in tests/test_layouts.py. These are the raw weights: biases,
RoPE, scaling and norms are left out. Query head h meets key head h // (n_head // n_kv_head).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from data.pretrained.by_hand import Hand, advice, beside, find_names
from data.pretrained.files import CheckpointError, only_checkpoint_errors, pick, require
from data.pretrained.forms import FORMS
from data.pretrained.layout_table import NUMBER, TABLE, Part, Row, find_parts

# ---- what is found --------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    n_head: int  # H
    n_kv_head: int | None  # Hkv; None: take it from the shape of k, or H in a fused tensor
    head_dim: int | None  # D; None: C / H


class Layer(NamedTuple):
    """One self-attention layer: its number in the model, the tensors to read, and how they hold q and k."""

    index: int
    names: tuple[str, ...]
    model_type: str
    form: str  # key of FORMS
    sizes: Sizes
    config: dict

    def heads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        -> w_q (n_head, C, D), w_k (n_kv_head, C, D) in the dtype of the checkpoint, as views if possible (products are
        float32). CheckpointError if the shapes do not fit.
        """
        weights = [tensors[name] for name in self.names]
        n_head = self.sizes.n_head
        try:
            q, k = FORMS[self.form](weights, self.sizes, self.config)
            fits = (q.ndim == k.ndim == 3 and q.shape[1:] == k.shape[1:]
                    and len(q) == n_head and n_head % len(k) == 0)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            fits = False
        if not fits:
            found = ", ".join(f"{name} {tuple(weight.shape)} {weight.dtype}"
                              for name, weight in zip(self.names, weights))
            raise CheckpointError(f"{self.model_type}: {found} do not fit n_head, n_kv_head, head_dim = "
                                  f"{tuple(self.sizes)}")
        return q.mT, k.mT

    def require_fit(self, shapes: Mapping[str, tuple[int, ...]]):
        """CheckpointError as of `heads`, before anything is read."""
        self.heads({name: torch.empty(shapes[name], device="meta") for name in self.names})


class Stack(NamedTuple):
    """Layers on top of each other. name: "" if the model has one stack. causal: None if the mask is not known."""

    name: str
    causal: bool | None
    layers: tuple[Layer, ...]


@only_checkpoint_errors("config.json, or a shape,")
def find_stacks(config: dict, shapes: Mapping[str, tuple[int, ...]], hand: Hand | None = None,
                in_python=False) -> list[Stack]:
    """
    The stacks of self-attention layers in a checkpoint, from its config.json and the shapes of its tensors by name.
    hand: which tensors they are in the words of the user, instead of the table. in_python: refusals name arguments of
    score_model instead of flags.

    CheckpointError: an unknown model_type, missing layers, tensors that look like q or k but have no known place,
    shapes that do not fit the config, quantised weights, adapters beside the weights, or a config that makes no sense.
    """
    refuse_changed(config, shapes, beside(hand) if hand else BESIDE)
    if hand:
        sizes = Sizes(*hand.heads, None)
        softmax = softmax_layers(config, pick(config, N_LAYER.format(""), int, 0))
        layers = [Layer(i, names, "by hand", "given", sizes, hand._asdict())
                  for i, names in find_names(hand, shapes, config, softmax).items()]
        for layer in layers:
            layer.require_fit(shapes)
        return [Stack("", None, tuple(layers))]
    model_type = pick(config, "model_type", str)
    candidates = {name for name, shape in shapes.items() if len(shape) > 1 and not UNSCORED.search(name)}

    stacks, accounted_for = [], set()
    for part in find_parts(model_type, config, candidates):
        if part.names and not part.rows:
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no model_type in config.json"
            told = told if config else "no config.json, which tells the layout of the weights: put it beside them"
            heads = numbers_of_heads(part.config)
            raise CheckpointError(f"{told}: {advice(part.model_type, part.names, shapes, heads, in_python)}")
        found = []
        for row in part.rows:
            matches = row.match(part.names)
            if matches:
                layers, unscored = find_layers(row, part, matches)
                found.append((row, layers))
                accounted_for |= unscored
        for row, layers in found:
            for layer in layers:
                layer.require_fit(shapes)
                accounted_for.update(layer.names)
            # For example "vision"; "vision.global" if a part has several stacks; "encoder" if there are no parts.
            inner = row.stack if len(found) > 1 or not part.name else ""
            name = ".".join(filter(None, [part.name, inner]))
            stacks.append(Stack(name, mask_is_causal(row, part.config), layers))

    for name in sorted(candidates - accounted_for):
        require(not LOOKS_LIKE_QK.search(name), f"{model_type}: no known place for {name}")
    require(stacks, f"{model_type}: no q and k weights")
    return stacks


# ---- refusals -------------------------------------------------------------------------------------------------------

# Tensors with such names are of no layer of self-attention. (Position projections have other names.)
UNSCORED = re.compile("|".join((
    r"cross|encoder_attn|EncDecAttention|encoder_decoder_attention|\.x_attn|second_sub_layer",  # cross-attention
    r"resampler|head\.attention|\bhead\.[qk]_proj|\battn_pool|multi_modal_projector",  # pooling
    r"vit_merger",  # a single layer between an image tower and the text
    r"\bmtp\.",  # prediction of further tokens
    r"indexer\.",  # which keys are used: DeepSeek-V3.2
    r"char_encoder",  # CANINE: among letters, before the tokens
    r"\bmit\.|prompts_generator",  # X-CLIP: among frames, and from frames to text
    r"mask_decoder",  # SAM
    r"vqmodel|coder_transformer\.|depth_decoder\.",  # codes of images and of sound
    r"pixel_level|timm_model|conv_encoder|bbox_attention",  # DETR and Mask2Former: the backbone, boxes and masks
)))
# The names of queries and keys in the table. (In DeBERTa in_proj is one, in Mamba it is another thing.)
QK = "|".join({weight for rows in TABLE.values() for row in rows for weight in row.weights} - {"in_proj"})
LOOKS_LIKE_QK = re.compile(rf"(^|\.)({QK}|to_k|to_qkv|linear_qkv)(\.weight)?$|attn\.in_proj\.weight$")
# A tensor that lies beside the weight of a query or key and belongs to it; rest: the end of its name.
BESIDE = re.compile(rf"(^|\.)({QK}|in_proj)(\.linear)?(\.|_lora)(?P<rest>.+)")
HARMLESS = {"weight", "bias", "input_scale", "output_scale", "activation_scale", "k_scale",  # of activations
            "input_min", "input_max", "output_min", "output_max",  # of activations too, in Gemma 4
            "weight_integer", "bias_integer", "fc_scaling_factor"}  # of I-BERT, which rounds the weight when it runs
QUANTISED = re.compile(r"_?q?weight_?(scale|packed|shape|g_idx|qdata|zero_point|\.)|qweight|qzeros|g_idx|scales|biases|"
                       "SCB|codes|codebooks")
WRITTEN_OUT = ("score the model it was made from, or have its weights written out as floats: model.dequantize() and "
               "save_pretrained() of transformers (compressed-tensors: with run_compressed=False; GPTQ: GPTQModel)")


# How to write what lies beside a weight into the weight: the first whose pattern is in the rest of the name.
UNDO = {
    "orig$|mask$": "torch.nn.utils.prune.remove(module, 'weight')",
    "parametrizations": "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')",
    "": "PEFT's model.merge_and_unload(), if it is of LoRA or the like",
}


def refuse_changed(config: dict, names: Iterable[str], beside: re.Pattern):
    """CheckpointError if queries or keys are stored in fewer bits, or something beside them changes them."""
    for name in names:
        found = beside.search(name)
        if found and found["rest"] not in HARMLESS and not UNSCORED.search(name):
            require(not QUANTISED.match(found["rest"]), f"quantised weights ({name}): {WRITTEN_OUT}")
            how = next(how for pattern, how in UNDO.items() if re.search(pattern, found["rest"]))
            raise CheckpointError(f"{name} lies beside a query or key and may change it: merge the two with {how}, and "
                                  "save the model again")
    how = pick(config, "quantization_config compression_config quantization", dict, {})
    spared = pick(how, "modules_to_not_convert ignore", list, [])
    attention_is_spared = any("attn" in pattern for pattern in spared)  # as in gpt-oss
    # checkpoint.py multiplies FP8 weights by their scales, so they are ordinary weights here.
    scaled_fp8 = how.get("quant_method") == "fp8" or how.get("format") == "float-quantized"
    require(not how or attention_is_spared or scaled_fp8,
            f"quantised weights ({how.get('quant_method', how)!s:.60}): {WRITTEN_OUT}")


# ---- the layers of a stack ------------------------------------------------------------------------------------------

# The layer_types with a softmax. Others, such as "linear_attention", "conv" and "mamba", have none.
SOFTMAX = {"attention", "full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "hybrid"}
# The same in config.json files without layer_types: key -> from its value, and the number n of layers, their numbers
TOLD = {
    "full_attention_interval": lambda value, n: range(value - 1, n, value),
    "hybrid_override_pattern": lambda value, n: [i for i, kind in enumerate(value) if kind == "*"],
    "attn_type_list": lambda value, n: [i for i, kind in enumerate(value) if kind == 1],
    "full_attn_idxs": lambda value, n: value,
    "attn_layer_indices": lambda value, n: value,
    "linear_attn_config": lambda value, n: [i - 1 for i in value["full_attn_layers"]],
}
# model_types with layers of other kinds. If config.json does not tell which, these are the layers without the weights.
HYBRID = {"bailing_hybrid", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "minimax", "nemotron_h",
          "olmo_hybrid", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"}

# model_type -> from the config and the number n of layers, the numbers of those that have their own
OWN = {
    "albert": lambda config, n: range(pick(config, "num_hidden_groups", int, 1)),  # a group shares one set of weights
    "mask2former": lambda config, n: range(n - 1),  # it counts the prediction before its first layer
    "mllama_text_model": lambda config, n: [
        i for i in range(n) if i not in pick(config, "cross_attention_layers", list, range(3, 39, 5))],
}


def softmax_layers(config: dict, n_layer: int) -> list[int] | None:
    """The layers with a softmax; None if the config does not tell them apart from others."""
    layer_types = pick(config, "layer_types layers_block_type", list, [])
    if layer_types:
        return [i for i, layer_type in enumerate(layer_types[:n_layer]) if layer_type in SOFTMAX]
    told = [layers_of(config[key], n_layer) for key, layers_of in TOLD.items() if config.get(key) is not None]
    return [i for i in told[0] if i < n_layer] if told else None


# Keys of config.json, which are tried in this order. {0} is the name of the stack.
N_LAYER = """{0}_layers num_{0}_layers {0}_num_hidden_layers num_hidden_layers n_layer n_layers num_layers depth
    encoder_layers conf_num_hidden_layers layers num_blocks num_transformer_layers"""


def find_layers(row: Row, part: Part, matches: list[re.Match]) -> tuple[tuple[Layer, ...], set[str]]:
    """-> the layers of a stack, exactly those of the config, and the names of tensors in its other layers."""
    config = part.config
    layer_types = pick(config, "layer_types layers_block_type", list, [])
    n_layer = pick(config, N_LAYER.format(row.stack), int, row.n_layer or len(layer_types))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    # The last layers take the keys of an earlier one (Gemma 3n and 4), or predict further tokens (DeepSeek-V3).
    n_own = max(0, n_layer - pick(config, "num_kv_shared_layers", int, row.n_shared or 0))
    last = range(n_own, n_layer + pick(config, "num_nextn_predict_layers", int, 0))
    names = defaultdict(dict)  # layer -> weight -> name of the tensor
    for match in matches:
        if int(match["i"]) not in last:
            names[int(match["i"])][match["weight"]] = match[0]
    # Some of the weights may be in other layers too, as where these have no softmax.
    whole = [i for i in names if len(names[i]) == len(row.weights)]
    scored = softmax_layers(config, n_own)
    if scored is None:
        own = OWN.get(row.model_type, lambda config, n: range(n))
        scored = sorted(whole) if row.model_type in HYBRID else list(own(config, n_own))
    require(scored, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    told = f"{row.model_type}: {len(scored)} attention layers in config.json"
    for i in scored:
        for weight in row.weights:
            require(weight in names[i], f"{told}, {weight} of layer {i} missing")
    prefixes = {match["prefix"] for match in matches}
    require(len(whole) == len(scored) and len(prefixes) == 1,
            f"{told}, {len(whole)} found under {' and '.join(sorted(prefixes))!r}")

    layers = []
    for i in scored:
        names_of_layer = tuple(names[i][weight] for weight in row.weights)
        layers.append(Layer(i, names_of_layer, row.model_type, row.form, read_sizes(row, config, i), config))
    unscored = {*range(n_layer), *last} - {*scored}
    numbers = {name: re.search(rf"(^|\.)layers\.({NUMBER})\.", name) for name in part.names}
    return tuple(layers), {name for name, number in numbers.items() if number and int(number[2]) in unscored}


def mask_is_causal(row: Row, config: dict) -> bool | None:
    """Whether no token sees a later one; None if it is not known."""
    if row.causal is False and not row.stack:  # BERT as a decoder, XLM
        return pick(config, "is_decoder", bool, False) or pick(config, "causal", bool, False)
    # In Gemma 4 "all", or "vision", which is of images only.
    both_sides = config.get("use_bidirectional_attention")
    if row.causal and (both_sides in (True, "all") or not pick(config, "is_causal", bool, True)):
        return None  # it was first trained as a causal model, and then not
    return row.causal


# ---- the sizes of the heads -----------------------------------------------------------------------------------------

# As N_LAYER.
N_HEAD = """{0}_attention_heads {0}_num_attention_heads num_{0}_attention_heads num_attention_heads n_head n_heads
    num_heads attention_heads speech_encoder_attention_heads encoder_attention_heads conf_num_attention_heads"""
N_KV_HEAD = "{0}_num_key_value_heads num_key_value_heads n_kv_heads num_attention_groups"


def read_sizes(row: Row, config: dict, i: int) -> Sizes:
    """The sizes of the heads of layer i, from the config or the defaults of the class."""
    config = config | of_layer(config, i)
    n_head = pick(config, N_HEAD.format(row.stack), int, row.n_head)
    attn_config = pick(config, "attn_config", dict, {})  # DBRX
    n_kv_head = pick(config, N_KV_HEAD.format(row.stack), int, pick(attn_config, "kv_n_heads", int))
    head_dim = pick(config, "head_dim attention_head_dim d_kv d_head attention_head_size", int, row.head_dim)
    require(n_head, f"{row.model_type}: config.json has no number of heads")
    return Sizes(n_head, n_kv_head, head_dim)


def numbers_of_heads(config: dict) -> str:
    """As --heads takes them; "" if the config does not say. In some models there is one for each stage."""
    found = []
    for keys in N_HEAD, N_KV_HEAD:
        numbers = [config.get(key) for key in keys.format("").split()]
        found += [str(number) for number in numbers if type(number) is int][:1]
    return ",".join(found)


def of_layer(config: dict, i: int) -> dict:
    """What is of layer i alone: in Gemma 4, heads are others in layers that attend to everything."""
    of_layers = pick(config, "per_layer_config", dict, {})  # as transformers saves them
    if of_layers:
        return pick(of_layers, str(i), dict, {})
    layer_types = pick(config, "layer_types", list, [])
    layer_type = layer_types[i] if i < len(layer_types) else None
    n_heads = pick(config, "num_attention_heads_per_layer", list)  # Laguna
    own = {"num_attention_heads": n_heads[i]} if n_heads else {}
    if layer_type == "full_attention":
        own["head_dim"] = pick(config, "global_head_dim head_dim", int)
        if pick(config, "attention_k_eq_v", bool):
            own["num_key_value_heads"] = pick(config, "num_global_key_value_heads num_key_value_heads", int)
    return own
