"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks = find_stacks(config, shapes)     # from config.json, and from the names and shapes of all tensors
    w_q, w_k = stacks[0].layers[0].heads(tensors)  # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.
layouts.csv says where each model has these weights, layout_table.py which of its lines a model needs, and FORMS how
tensors hold the heads. tests/test_layouts.py compares them with transformers, where it has the model. These are the raw
weights: biases, RoPE, scaling and norms are left out. Query head h meets key head h // (n_head // n_kv_head).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .by_hand import Hand, advice, beside, find_names
from .files import CheckpointError, only_checkpoint_errors, pick, require
from .forms import FORMS
from .layout_table import NUMBER, TABLE, Part, Row, find_parts


class Sizes(NamedTuple):
    n_head: int  # H
    n_kv_head: int | None  # Hkv; None: take it from the shape of k, or H in a fused tensor
    head_dim: int | None  # D; None: C / H


class Layer(NamedTuple):
    """One self-attention layer: its number in the model, the tensors to read, and how they hold q and k."""

    index: int
    names: tuple[str, ...]
    form: str  # key of FORMS
    sizes: Sizes
    config: dict

    def heads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns w_q (n_head, C, D), w_k (n_kv_head, C, D) as stored. Raises CheckpointError if shapes do not fit."""
        weights = [tensors[name] for name in self.names]
        try:
            q, k = FORMS[self.form](weights, self.sizes, self.config)
            fits = q.ndim == k.ndim == 3 and q.shape[1:] == k.shape[1:]
            fits = fits and len(q) == self.sizes.n_head and len(q) % len(k) == 0
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            fits = False
        if not fits:
            found = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in self.names)
            raise CheckpointError(f"{found} do not fit n_head, n_kv_head, head_dim = {tuple(self.sizes)}")
        return q.mT, k.mT


class Stack(NamedTuple):
    """Layers on top of each other."""

    name: str  # "" if the model has one stack
    causal: bool | None  # None: the mask is not known
    layers: tuple[Layer, ...]


@only_checkpoint_errors("config.json, or a shape,")
def find_stacks(config: dict, shapes: Mapping[str, tuple[int, ...]], hand: Hand | None = None) -> list[Stack]:
    """
    Returns the stacks of self-attention layers in a checkpoint, from its config.json and its tensors' shapes by name.

    hand: which tensors they are in the words of the user, instead of the table.
    Raises CheckpointError if the model_type is unknown, layers are missing, tensors look like q or k but have no known
    place, shapes do not fit the config, weights are quantised or have adapters, or the config makes no sense.
    """
    refuse_changed(config, shapes, beside(hand) if hand else BESIDE)
    stacks = [stack_by_hand(config, shapes, hand)] if hand else stacks_of_table(config, shapes)
    for stack in stacks:
        for layer in stack.layers:  # refused before anything is read
            layer.heads({name: torch.empty(shapes[name], device="meta") for name in layer.names})
    return stacks


def stack_by_hand(config: dict, shapes: Mapping[str, tuple[int, ...]], hand: Hand) -> Stack:
    """Returns the layers that the user has named, as one stack."""
    names_of = find_names(hand, shapes, config, softmax_layers(config))
    n_head, n_kv_head = hand.heads
    sizes = Sizes(n_head, n_kv_head, head_dim=None)
    layers = [Layer(i, names, "given", sizes, hand._asdict()) for i, names in names_of.items()]
    return Stack("", None, tuple(layers))


def stacks_of_table(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> list[Stack]:
    """Returns the stacks that layouts.csv lists, and checks that no other tensor looks like a query or key."""
    model_type = pick(config, "model_type", str)
    candidates = {name for name, shape in shapes.items() if len(shape) > 1 and not UNSCORED.search(name)}
    stacks = []
    accounted_for = set()
    for part in find_parts(model_type, config, candidates):
        if part.names and not part.rows:
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
            raise CheckpointError(f"{told}: {advice(part.model_type, part.names, shapes)}")
        rows = [row for row in part.rows if row.match(part.names)]
        for row in rows:
            layers, unscored = find_layers(row, part)
            accounted_for |= unscored
            accounted_for.update(name for layer in layers for name in layer.names)
            # For example "vision"; "vision.global" if a part has several stacks; "encoder" if there are no parts.
            inner = row.stack if len(rows) > 1 or not part.name else ""
            name = ".".join(filter(None, [part.name, inner]))
            stacks.append(Stack(name, mask_is_causal(row, part.config), layers))
    left = [name for name in sorted(candidates - accounted_for) if LOOKS_LIKE_QK.search(name)]
    if left or not stacks:
        told = f"no known place for {left[0]}" if left else "no q and k weights where this type has them"
        raise CheckpointError(f"{model_type}: {told}: {advice(model_type, candidates, shapes)}")
    return stacks


# ---- refusals -------------------------------------------------------------------------------------------------------

# Tensors with such names are of no layer of self-attention. (Position projections have other names.)
UNSCORED = re.compile("|".join((
    r"cross|encoder_attn|EncDecAttention|second_sub_layer",  # cross-attention
    r"resampler|multi_modal_projector|head\.attention|\bhead\.[qk]_proj|vit_merger",  # pooling
    r"vqmodel",  # codes of images
    r"\bmit\.|prompts_generator",  # X-CLIP: among frames, and from frames to text
    r"\bmtp\.",  # prediction of further tokens
    r"mask_decoder",  # SAM
    r"pixel_level|timm_model",  # the backbones of Mask2Former and Gemma 3n
)))
# The names of queries and keys in the table. (In DeBERTa in_proj is one, in Mamba it is another thing.)
QK = "|".join({weight for rows in TABLE.values() for row in rows for weight in row.weights} - {"in_proj"})
LOOKS_LIKE_QK = re.compile(rf"(^|\.)({QK}|to_k|to_qkv|linear_qkv)(\.weight)?$|attn\.in_proj\.weight$")
# A tensor that lies beside the weight of a query or key and belongs to it; rest: the end of its name.
BESIDE = re.compile(rf"(^|\.)({QK}|in_proj)(\.linear)?(\.|_lora)(?P<rest>.+)")
HARMLESS = {"weight", "bias", "input_scale", "output_scale", "activation_scale", "k_scale", "input_min", "input_max",
            "output_min", "output_max"}  # all but the first two are of activations
QUANTISED = re.compile(r"_?q?weight_?(scale|packed|shape|g_idx|qdata|zero_point|\.)|qweight|qzeros|g_idx|scales|biases|"
                       "SCB|codes|codebooks")
WRITTEN_OUT = "score the model it was made from, or write it out as floats (model.dequantize() and save_pretrained())"


def refuse_changed(config: dict, names: Iterable[str], beside: re.Pattern):
    """Raises CheckpointError if queries or keys are stored in fewer bits, or something beside them changes them."""
    for name in names:
        found = beside.search(name)
        if found and found["rest"] not in HARMLESS and not UNSCORED.search(name):
            require(not QUANTISED.match(found["rest"]), f"quantised weights ({name}): {WRITTEN_OUT}")
            raise CheckpointError(f"{name} lies beside a query or key and may change it: merge the two and save again "
                                  "(PEFT: merge_and_unload(); torch.nn.utils: prune.remove, remove_parametrizations)")
    how = pick(config, "quantization_config compression_config quantization", dict, {})
    spared = pick(how, "modules_to_not_convert ignore", list, [])
    attention_is_spared = any("attn" in pattern for pattern in spared)  # as in gpt-oss
    # checkpoint.py multiplies FP8 weights by their scales, so they are ordinary weights here.
    scaled_fp8 = how.get("quant_method") == "fp8" or how.get("format") == "float-quantized"
    require(not how or attention_is_spared or scaled_fp8,
            f"quantised weights ({how.get('quant_method', how)!s:.60}): {WRITTEN_OUT}")


# ---- the layers of a stack ------------------------------------------------------------------------------------------

# The layer_types with a softmax. Others, such as "linear_attention", "conv" and "mamba", have none.
SOFTMAX = {"attention", "full_attention", "sliding_attention", "chunked_attention"}


def softmax_layers(config: dict) -> list[int]:
    """Returns the layers with a softmax; [] if the config does not tell them apart from others."""
    layer_types = pick(config, "layer_types layers_block_type", list, [])
    return [i for i, layer_type in enumerate(layer_types) if layer_type in SOFTMAX]


# Keys of config.json, which are tried in this order. {0} is the name of the stack.
N_LAYER = """{0}_layers num_{0}_layers {0}_num_hidden_layers num_hidden_layers n_layer n_layers num_layers depth
    encoder_layers conf_num_hidden_layers"""
N_HEAD = """{0}_attention_heads {0}_num_attention_heads num_attention_heads n_head n_heads num_heads attention_heads
    encoder_attention_heads conf_num_attention_heads"""


def find_layers(row: Row, part: Part) -> tuple[tuple[Layer, ...], set[str]]:
    """Returns the layers of a stack, exactly those of the config, and the names of tensors in its other layers."""
    config = part.config
    matches = row.match(part.names)
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
    scored = [i for i in softmax_layers(config) if i < n_own]
    if not scored:
        scored = sorted(whole) if row.layers == "some" else range(n_own)
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
        layers.append(Layer(i, names_of_layer, row.form, read_sizes(row, config, i), config))
    not_scored = {*range(n_layer), *last} - {*scored}
    unscored = set()  # names of tensors
    for name in part.names:
        number = re.search(rf"(?:^|\.)layers\.({NUMBER})\.", name)
        if number and int(number[1]) in not_scored:
            unscored.add(name)
    return tuple(layers), unscored


def mask_is_causal(row: Row, config: dict) -> bool | None:
    """Returns whether no token sees a later one, or None if it is not known."""
    if row.mask == "both" and not row.stack:  # BERT as a decoder, XLM
        return pick(config, "is_decoder", bool, False) or pick(config, "causal", bool, False)
    # In Gemma 4 "all", or "vision", which is of images only.
    both_sides = config.get("use_bidirectional_attention")
    if row.mask == "causal" and (both_sides in (True, "all") or not pick(config, "is_causal", bool, True)):
        return None  # it was first trained as a causal model, and then not
    return None if row.mask == "unknown" else row.mask == "causal"


def read_sizes(row: Row, config: dict, i: int) -> Sizes:
    """Returns the sizes of the heads of layer i, from the config or the defaults of the class."""
    config = config | config_of_layer(config, i)
    n_head = pick(config, N_HEAD.format(row.stack), int, row.n_head)
    n_kv_head = pick(config, "num_key_value_heads n_kv_heads", int)
    head_dim = pick(config, "head_dim d_kv attention_head_size", int, row.head_dim)
    require(n_head, f"{row.model_type}: config.json has no number of heads")
    return Sizes(n_head, n_kv_head, head_dim)


def config_of_layer(config: dict, i: int) -> dict:
    """Returns what the config says of layer i alone."""
    layer_types = pick(config, "layer_types", list, [])
    n_heads = pick(config, "num_attention_heads_per_layer", list)  # Laguna
    own = {"num_attention_heads": n_heads[i]} if n_heads else {}
    if i < len(layer_types) and layer_types[i] == "full_attention":  # Gemma 4
        own["head_dim"] = pick(config, "global_head_dim head_dim", int)
        if pick(config, "attention_k_eq_v", bool):
            own["num_key_value_heads"] = pick(config, "num_global_key_value_heads num_key_value_heads", int)
    return own | pick(pick(config, "per_layer_config", dict, {}), str(i), dict, {})  # as transformers saves Gemma 4
