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
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .by_hand import Hand, advice, beside, compare_numbers, match_names
from .files import CheckpointError, only_checkpoint_errors, pick, require
from .forms import FORMS
from .layout_table import NUMBER, Part, Row, find_parts


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
    refuse_changed(shapes, beside(hand) if hand else BESIDE)
    stacks = [stack_by_hand(config, shapes, hand)] if hand else stacks_of_table(config, shapes)
    for stack in stacks:
        for layer in stack.layers:  # refused before anything is read
            layer.heads({name: torch.empty(shapes[name], device="meta") for name in layer.names})
    return stacks


def stack_by_hand(config: dict, shapes: Mapping[str, tuple[int, ...]], hand: Hand) -> Stack:
    """Returns the layers that the user has named, as one stack."""
    softmax = softmax_layers(config)
    found = match_names(hand, shapes)
    first = 0 if 0 in found else 1  # some models count from 1
    expected = sorted({*(softmax or range(first, max(found) + 1)), *found})
    told = f"{len(expected)} layers by your words (if some have no softmax, tell the layer_types in a config.json)"
    names_of = tensors_of_layers(found, expected, hand.patterns, told)
    compare_numbers(hand, None if softmax else len(names_of), config)
    n_head, n_kv_head = hand.heads
    sizes = Sizes(n_head, n_kv_head, head_dim=None)
    return Stack("", None, tuple(Layer(i, names, "given", sizes, hand._asdict()) for i, names in names_of.items()))


def stacks_of_table(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> list[Stack]:
    """Returns the stacks that layouts.csv lists, and checks that no other tensor looks like a query or key."""
    model_type = pick(config, str, "model_type")
    candidates = {name for name, shape in shapes.items() if len(shape) > 1 and not UNSCORED.search(name)}
    stacks = []
    accounted_for = set()
    for part in find_parts(model_type, config, candidates):
        if part.names and not part.rows:
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
            raise CheckpointError(f"{told}: {advice(part.model_type, part.names, shapes)}")
        rows = [row for row in part.rows if row.match(part.names)]
        for row in rows:
            layers = find_layers(row, part)
            accounted_for.update(name for layer in layers for name in layer.names)
            _, n_all = count_layers(row, part.config)
            accounted_for |= names_in_layers(part.names, {*range(n_all)} - {layer.index for layer in layers})
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
# Names of queries and keys. (In DeBERTa in_proj is one, in Mamba it is another thing.)
QK = "|".join((
    r"q|query|Wq|c_q|q_lin|linear_q|q_proj|query_proj|query_net",
    r"k|key|Wk|c_k|k_lin|linear_k|k_proj|key_proj|key_net",
    r"q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj",  # latents
    r"qkv|Wqkv|wqkv|qkv_proj|qkv_linear|query_key_value|W_pack|c_attn|att_proj",  # all in one
))
LOOKS_LIKE_QK = re.compile(rf"(^|\.)({QK}|to_k|to_qkv|linear_qkv)(\.weight)?$|attn\.in_proj\.weight$")
# A tensor that lies beside the weight of a query or key and belongs to it; rest: the end of its name.
BESIDE = re.compile(rf"(^|\.)({QK}|in_proj)(\.linear)?(\.|_lora)(?P<rest>.+)")
HARMLESS = {"weight", "bias", "input_scale", "output_scale", "activation_scale", "k_scale", "input_min", "input_max",
            "output_min", "output_max"}  # all but the first two are of activations
QUANTISED = re.compile(r"_?q?weight_?(scale|packed|shape|g_idx|qdata|zero_point|\.)|qweight|qzeros|g_idx|scales|biases|"
                       "SCB|codes|codebooks")
WRITTEN_OUT = "score the model it was made from, or write it out as floats (model.dequantize() and save_pretrained())"


def refuse_changed(names: Iterable[str], beside: re.Pattern):
    """
    Raises CheckpointError if queries or keys are stored in fewer bits, or something beside them changes them.

    The scales of FP8 are no more among the names here: checkpoint.py has multiplied the weights by them.
    """
    for name in names:
        found = beside.search(name)
        if found and found["rest"] not in HARMLESS and not UNSCORED.search(name):
            require(not QUANTISED.match(found["rest"]), f"quantised weights ({name}): {WRITTEN_OUT}")
            raise CheckpointError(f"{name} lies beside a query or key and may change it: merge the two and save again "
                                  "(PEFT: merge_and_unload(); torch.nn.utils: prune.remove, remove_parametrizations)")


# ---- the layers of a stack ------------------------------------------------------------------------------------------

# The layer_types with a softmax. Others, such as "linear_attention", "conv" and "mamba", have none.
SOFTMAX = {"attention", "full_attention", "sliding_attention", "chunked_attention"}


def softmax_layers(config: dict) -> list[int]:
    """Returns the layers with a softmax; [] if the config does not tell them apart from others."""
    layer_types = pick(config, list, "layer_types", "layers_block_type", default=[])
    return [i for i, layer_type in enumerate(layer_types) if layer_type in SOFTMAX]


def layer_keys(stack: str) -> list[str]:
    """Returns the keys of config.json that can tell the number of layers, in the order in which they are tried."""
    of_stack = [f"{stack}_layers", f"num_{stack}_layers", f"{stack}_num_hidden_layers"]
    return of_stack + ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers",
                       "conf_num_hidden_layers"]


def head_keys(stack: str) -> list[str]:
    """Returns the same for the number of heads."""
    of_stack = [f"{stack}_attention_heads", f"{stack}_num_attention_heads"]
    return of_stack + ["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
                       "encoder_attention_heads", "conf_num_attention_heads"]


def count_layers(row: Row, config: dict) -> tuple[int, int]:
    """Returns how many layers have queries and keys of their own, which are the first ones, and how many there are."""
    layer_types = pick(config, list, "layer_types", "layers_block_type", default=[])
    n_layer = pick(config, int, *layer_keys(row.stack), default=row.n_layer or len(layer_types))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    # The last layers take the keys of an earlier one (Gemma 3n and 4), or predict further tokens (DeepSeek-V3).
    n_own = max(0, n_layer - pick(config, int, "num_kv_shared_layers", default=row.n_shared or 0))
    return n_own, n_layer + pick(config, int, "num_nextn_predict_layers", default=0)


def find_layers(row: Row, part: Part) -> tuple[Layer, ...]:
    """Returns the layers of a stack, exactly those of the config."""
    config = part.config
    n_own, n_all = count_layers(row, config)
    found = defaultdict(dict)  # layer -> weight -> name of the tensor
    prefixes = set()
    for match in row.match(part.names):
        if int(match["i"]) not in range(n_own, n_all):
            found[int(match["i"])][match["weight"]] = match[0]
            prefixes.add(match["prefix"])
    expected = [i for i in softmax_layers(config) if i < n_own]
    if not expected and row.layers == "some":
        expected = sorted(i for i in found if len(found[i]) == len(row.weights))
    expected = expected or range(n_own)
    require(expected, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    told = f"{row.model_type}: {len(expected)} attention layers in config.json"
    require(len(prefixes) == 1, f"{told}, and as many under each of {' and '.join(sorted(prefixes))!r}")
    names_of = tensors_of_layers(found, expected, row.weights, told)
    return tuple(Layer(i, names, row.form, read_sizes(row, config, i), config) for i, names in names_of.items())


def tensors_of_layers(found: dict[int, dict[str, str]], expected: Iterable[int], weights: Sequence[str], told: str):
    """
    Returns the tensors of each layer, {its number: a tuple of names}. found: {layer: {weight: name}}.

    Raises CheckpointError, which begins with `told`, if an expected layer lacks one of the weights. Other layers may
    have some of them, as where these have no softmax, but not all.
    """
    for weight in weights:
        missing = [str(i) for i in expected if weight not in found.get(i, {})]
        require(not missing, f"{told}, {weight} of layer {', '.join(missing):.60} missing: get all files")
    others = [str(i) for i in found if i not in expected and len(found[i]) == len(weights)]
    require(not others, f"{told}, and all weights of layer {', '.join(others):.60} as well")
    return {i: tuple(found[i][weight] for weight in weights) for i in expected}


def names_in_layers(names: Iterable[str], layers: set[int]) -> set[str]:
    """Returns the names of the tensors in these layers."""
    numbered = ((name, re.search(rf"(?:^|\.)layers\.({NUMBER})\.", name)) for name in names)
    return {name for name, number in numbered if number and int(number[1]) in layers}


def mask_is_causal(row: Row, config: dict) -> bool | None:
    """Returns whether no token sees a later one, or None if it is not known."""
    if row.mask == "both" and not row.stack:  # BERT as a decoder, XLM
        return pick(config, bool, "is_decoder", default=False) or pick(config, bool, "causal", default=False)
    # In Gemma 4 "all", or "vision", which is of images only.
    both_sides = config.get("use_bidirectional_attention")
    if row.mask == "causal" and (both_sides in (True, "all") or not pick(config, bool, "is_causal", default=True)):
        return None  # it was first trained as a causal model, and then not
    return None if row.mask == "unknown" else row.mask == "causal"


def read_sizes(row: Row, config: dict, i: int) -> Sizes:
    """Returns the sizes of the heads of layer i, from the config or the defaults of the class."""
    config = config | config_of_layer(config, i)
    n_head = pick(config, int, *head_keys(row.stack), default=row.n_head)
    n_kv_head = pick(config, int, "num_key_value_heads", "n_kv_heads")
    head_dim = pick(config, int, "head_dim", "d_kv", "attention_head_size", default=row.head_dim)
    require(n_head, f"{row.model_type}: config.json has no number of heads")
    return Sizes(n_head, n_kv_head, head_dim)


def config_of_layer(config: dict, i: int) -> dict:
    """Returns what the config says of layer i alone."""
    layer_types = pick(config, list, "layer_types", default=[])
    n_heads = pick(config, list, "num_attention_heads_per_layer")  # Laguna
    own = {"num_attention_heads": n_heads[i]} if n_heads else {}
    if i < len(layer_types) and layer_types[i] == "full_attention":  # Gemma 4
        own["head_dim"] = pick(config, int, "global_head_dim", "head_dim")
        if pick(config, bool, "attention_k_eq_v"):
            own["num_key_value_heads"] = pick(config, int, "num_global_key_value_heads", "num_key_value_heads")
    per_layer = pick(config, dict, "per_layer_config", default={})  # as transformers saves Gemma 4
    return own | pick(per_layer, dict, str(i), default={})
