"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks, notes = find_stacks(config, shapes)     # from config.json, and from the names and shapes of all tensors
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

from .by_hand import Hand, advice, compare_numbers, find_flags, looks_like_query, match_names, other_chunks
from .files import CheckpointError, only_checkpoint_errors, pick, require
from .forms import FORMS
from .layout_table import NUMBER, Block, Part, Row, find_parts


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
def find_stacks(config: dict, shapes: Mapping[str, tuple[int, ...]],
                hand: Hand | None = None) -> tuple[list[Stack], list[str]]:
    """
    Returns the stacks of self-attention layers in a checkpoint, from its config.json and its tensors' shapes by name,
    and in words what of the model is not among them.

    hand: which tensors they are in the words of the user, instead of the table.
    Raises CheckpointError if the model_type is unknown, layers are missing, tensors look like q or k but have no known
    place, shapes do not fit the config, weights are quantised or have adapters, or the config makes no sense.
    """
    hollow = [name for name, shape in shapes.items() if is_hollow(name, shape)]
    require(not hollow, f"{', '.join(hollow):.80} of shape (0,), (1,) or flat stands for pieces in several processes: "
            "gather them around score_model (deepspeed.zero.GatheredParameters, FSDP.summon_full_params), or merge the "
            "files that they wrote (zero_to_fp32.py, torch.distributed.checkpoint.format_utils)")
    stacks, notes = stack_by_hand(config, shapes, hand) if hand else stacks_of_table(config, shapes)
    for stack in stacks:
        for layer in stack.layers:
            layer.heads(without_values(layer, shapes))  # it is refused before anything is read
    return stacks, notes


def is_hollow(name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether a tensor only stands for one that is spread over processes, as in DeepSpeed's ZeRO-3 and FSDP."""
    is_placeholder = name.endswith("weight") and (shape == (0,) or (shape == (1,) and looks_like_query(name)))
    return is_placeholder or name.endswith("_flat_param")


def without_values(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: torch.empty(shapes[name], device="meta") for name in layer.names}


def stack_by_hand(config: dict, shapes: Mapping[str, tuple[int, ...]], hand: Hand) -> tuple[list[Stack], list[str]]:
    """Returns the layers that the user has named, as one stack, and notes."""
    config = config | pick(config, dict, "text_config", default={})
    found = match_names(hand, shapes)
    n_layer = pick(config, int, *layer_keys(""), default=max(found) + 1)
    told = softmax_layers(config, n_layer)
    first = 0 if 0 in found else 1  # some models count from 1
    own, shared = with_own_keys(config, told or range(first, max(found) + 1), n_layer)
    if hand.n_layer:
        own = sorted(i for i in found if len(found[i]) == len(hand.patterns))
        require(len(own) == hand.n_layer, f"{len(own)} layers match, and {hand.n_layer} have attention by your words")
    words = f"{len(own)} layers {'in config.json' if told else 'by your words'}"
    names_of = tensors_of_layers(found, own, hand.patterns, words, "say how many have it, --layers N")
    for block in hand.blocks():
        refuse_changed(block, own, shapes)
    sizes = Sizes(*hand.heads, head_dim=None)
    layers = tuple(Layer(i, names, "given", sizes, hand._asdict()) for i, names in names_of.items())
    w_q, _ = layers[0].heads(without_values(layers[0], shapes))
    compare_numbers(config, None if told or hand.n_layer else len(own) + len(shared), len(w_q), w_q.shape[-1])
    left_out = found.keys() - {*own, *shared}
    notes = [f"{len(left_out)} layers without softmax are left out"] if left_out else []
    return [Stack("", None, layers)], notes + note_of_shared(shared) + other_chunks(hand, shapes)


def stacks_of_table(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[Stack], list[str]]:
    """Returns the stacks that layouts.csv lists, and notes. Checks that no other tensor looks like a query or key."""
    model_type = pick(config, str, "model_type")
    names = {name for name in shapes if not UNSCORED.search(name)}
    matrices = {name for name in names if len(shapes[name]) > 1}
    accounted_for = set()
    stacks, notes = [], []
    for part in find_parts(model_type, config, names):
        if not part.rows and part.names & matrices:
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
            raise CheckpointError(f"{told}: {advice(part.model_type, part.names & matrices, shapes)}")
        rows = [row for row in part.rows if row.match(part.names)]
        for row in rows or part.rows if part.names else []:
            own, shared, further = count_layers(row, part.config)
            if rows:
                layers = find_layers(row, part, own, shared + further)
                stacks.append(Stack(part.name_of(row, rows), mask_is_causal(row, part.config), layers))
                notes += note_of_shared({int(match["i"]) for match in row.match(part.names)}.intersection(shared))
            accounted_for |= refuse_changed(row.block(), own, part.names)
            accounted_for |= names_in_layers(part.names, {*range(max(own)), *shared, *further} - {*own})
        notes += [f"its {name} has no queries and keys here" for name in part.absent(rows)]
    left = find_flags(matrices - accounted_for, shapes)
    if left or not stacks:
        told = f"no known place for {next(iter(left))}" if left else "no q and k weights where this type has them"
        raise CheckpointError(f"{model_type}: {told}: {advice(model_type, matrices, shapes)}")
    return stacks, notes


# ---- refusals -------------------------------------------------------------------------------------------------------

# Tensors with such names are of no layer of self-attention. (Position projections have other names.)
UNSCORED = re.compile("|".join((
    r"cross|encoder_attn|EncDecAttention|second_sub_layer",  # cross-attention
    r"resampler|multi_modal_projector|head\.attention|\bhead\.[qk]_proj|vit_merger",  # pooling
    r"vqmodel",  # codes of images
    r"linear_attn|\bmamba",  # layers without softmax
    r"\bmit\.|prompts_generator",  # X-CLIP: among frames, and from frames to text
    r"\bmtp[._]",  # prediction of further tokens
    r"mask_decoder",  # SAM
    r"pixel_level|timm_model",  # the backbones of Mask2Former and Gemma 3n
)))
# What in a block of attention changes no query or key: how its name goes on after that of the block.
HARMLESS = "|".join((
    r"(.*[._])?bias(_[a-z])?$|.*([nN]orm|\bln)",  # of anything
    r"(to_|c_|linear_|in_proj_|attn_|W|w)?(v|vg|value|o|out|output)(_proj\w*|_lin|_net|)\b",  # values and outputs
    r"((c|out|linear|attn)_)?(proj|projection|dense)(_layer)?\b",  # outputs
    r"\w*(pos|rot|rope|rel|dist|freq|alibi|slope)",  # positions
    r".*(in|out)put_(scale|min|max)$|.*(activation|k)_scale$",  # activations in eight bits
    r"(gate\w*|g_proj|dt_proj|A|conv|indexer|layout_\w+|\w+_global|[ew]2[ew]_query|lambda_\w+|sinks?|scaling)\b",
    r"(softmax_offset|temperature|logit_scale|tril|\w*mask|\w*cache)\b",
))
# Beside whole layers other things lie too. Of these, the ones whose names begin like this may change a query or key.
QK_WORD = r"([a-z]+_)?[wW]?([qkQK]|qkv?|query|key)(_|\b)"
QUANTISED = re.compile(r"(.*[._])?(weight_?(global_)?(scale|packed|shape|g_idx|qdata|zero_point)|qweight|qzeros|g_idx|"
                       r"weight\.(absmax|quant|nested)|scales|biases|SCB|codes|codebooks)")
WRITTEN_OUT = "score the model it was made from, or write it out as floats (model.dequantize() and save_pretrained())"


def refuse_changed(block: Block, layers: Iterable[int], names: Iterable[str]) -> set[str]:
    """
    Returns the names of the tensors in a block of attention, in these layers.

    Raises CheckpointError if queries or keys are stored in fewer bits, or if a tensor is there that may change them.
    The scales of FP8 are no more among the names here: checkpoint.py has multiplied the weights by them.
    """
    own = re.compile(rf"({block.weights})(\.linear)?(\.weight)?")
    harmless = re.compile(rf"({block.weights}|{block.others})\.(weight|bias)" if block.others else HARMLESS)
    may_change = re.compile(rf"({block.weights})[._]|{QK_WORD}" if block.is_layer else "")
    inside = set()
    for name in names:
        found = block.path.fullmatch(name)
        if not found or int(found.groupdict().get("i", layers[0])) not in layers or not may_change.match(found["rest"]):
            continue
        rest = found["rest"]
        inside.add(name)
        if not own.fullmatch(rest) and not harmless.match(rest):
            require(not QUANTISED.match(rest), f"quantised weights ({name}): {WRITTEN_OUT}")
            raise CheckpointError(f"{name} lies beside a query or key and may change it: merge the two and save again "
                                  "(PEFT: merge_and_unload(); torch.nn.utils: prune.remove, remove_parametrizations)")
    return inside


# ---- the layers of a stack ------------------------------------------------------------------------------------------

# The kinds of layers without a softmax: words, the letters of Nemotron-H, and the 0 of MiniMax.
NO_SOFTMAX = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "M", "-", "E", 0}


def softmax_layers(config: dict, n_layer: int) -> list[int]:
    """Returns which of n_layer layers have a softmax; [] if the config does not tell them apart from others."""
    every = range(n_layer)
    kinds = pick(config, list, "layer_types", "layers_block_type", "attn_type_list", default=[])
    kinds = kinds or list(pick(config, str, "hybrid_override_pattern", default=""))
    if kinds:  # it may go on with layers that predict further tokens
        return [i for i, kind in zip(every, kinds) if kind not in NO_SOFTMAX]
    period = pick(config, int, "full_attention_interval", "attn_layer_period")  # Qwen3-Next, Jamba
    if period:
        offset = pick(config, int, "attn_layer_offset", default=period - 1)
        return [i for i in every if i % period == offset]
    crossing = pick(config, list, "cross_attention_layers", default=[])  # mllama
    if crossing:
        return [i for i in every if i not in crossing]
    of_kimi = pick(config, dict, "linear_attn_config", default={})
    from_1 = pick(of_kimi, list, "full_attn_layers", default=[])
    return pick(config, list, "full_attn_idxs", "attn_layer_indices", default=[i - 1 for i in from_1])


def with_own_keys(config: dict, layers: Sequence[int], n_layer: int, n_shared: int = 0) -> tuple[list[int], list[int]]:
    """Returns those of the layers that have keys of their own, and those that take the keys of an earlier one."""
    n_shared = pick(config, int, "num_kv_shared_layers", default=n_shared)  # the last ones: Gemma 3n and 4
    period = 1
    if pick(config, bool, "use_cla", default=False):  # Hunyuan
        period = pick(config, int, "cla_share_factor", default=1)
    own = [i for i in layers if i < n_layer - n_shared and i % period == 0]
    return own, [i for i in layers if i not in own]


def note_of_shared(layers):
    return [f"{len(layers)} layers with the keys of an earlier one are left out"] if layers else []


def layer_keys(stack: str) -> list[str]:
    """Returns the keys of config.json that can tell the number of layers, in the order in which they are tried."""
    of_stack = [f"{stack}_layers", f"num_{stack}_layers", f"{stack}_num_hidden_layers"]
    return of_stack + ["num_hidden_groups", "num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth",
                       "encoder_layers", "conf_num_hidden_layers"]


def head_keys(stack: str) -> list[str]:
    """Returns the same for the number of heads."""
    of_stack = [f"{stack}_attention_heads", f"{stack}_num_attention_heads"]
    return of_stack + ["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
                       "encoder_attention_heads", "conf_num_attention_heads"]


def count_layers(row: Row, config: dict) -> tuple[list[int], list[int], list[int]]:
    """Returns the layers with keys of their own, those with the keys of another, and those of further tokens."""
    kinds = pick(config, list, "layer_types", "layers_block_type", default=[])
    n_layer = pick(config, int, *layer_keys(row.stack), default=row.n_layer or len(kinds))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    layers = softmax_layers(config, n_layer) or range(n_layer)
    own, shared = with_own_keys(config, layers, n_layer, row.n_shared or 0)
    require(own, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    n_further = pick(config, int, "num_nextn_predict_layers", default=0)  # DeepSeek-V3
    return own, shared, [*range(n_layer, n_layer + n_further)]


def find_layers(row: Row, part: Part, own: list[int], skipped: list[int]) -> tuple[Layer, ...]:
    """Returns the layers of a stack, exactly those of the config: own. skipped: layers that may be there as well"""
    found = defaultdict(dict)  # layer -> weight -> its tensor
    prefixes = set()
    for match in row.match(part.names):
        if int(match["i"]) not in skipped:
            found[int(match["i"])][match["weight"]] = (match[0],)
            prefixes.add(match["prefix"])
    told = f"{row.model_type}: {len(own)} attention layers in config.json"
    require(len(prefixes) == 1, f"{told}, and as many under each of {' and '.join(sorted(prefixes))!r}")
    names_of = tensors_of_layers(found, own, row.weights, told, "say so in config.json, as layer_types")
    others = [str(i) for i in found if i not in own and len(found[i]) == len(row.weights)]
    require(not others, f"{told}, and all weights of layer {', '.join(others):.60} as well")
    return tuple(Layer(i, names, row.form, read_sizes(row, part.config, i), part.config)
                 for i, names in names_of.items())


def tensors_of_layers(found: dict[int, dict[str, tuple[str, ...]]], expected: Iterable[int], weights: Sequence[str],
                      told: str, way_on: str) -> dict[int, tuple[str, ...]]:
    """
    Returns the tensors of each expected layer, {its number: their names}. found: {layer: {weight: its tensors}}.

    Raises CheckpointError if one of the weights is missing. told: how many layers there are, and who says so; way_on:
    what to do if others have no attention.
    """
    for weight in weights:
        missing = [str(i) for i in expected if weight not in found.get(i, {})]
        require(not missing, f"{told}, {weight} of layer {', '.join(missing):.60} missing: get all files and merge "
                             f"adapters; if these layers have no attention, {way_on}")
    return {i: sum((found[i][weight] for weight in weights), ()) for i in expected}


def names_in_layers(names: Iterable[str], layers: set[int]) -> set[str]:
    """Returns the names of the tensors in these layers."""
    numbered = ((name, re.search(rf"(?:^|\.)layers\.({NUMBER})\.", name)) for name in names)
    return {name for name, number in numbered if number and int(number[1]) in layers}


def mask_is_causal(row: Row, config: dict) -> bool | None:
    """Returns whether no token sees a later one, or None if it is not known."""
    if row.mask == "both" and not row.stack:  # BERT as a decoder, XLM
        return pick(config, bool, "is_decoder", default=False) or pick(config, bool, "causal", default=False)
    # In Gemma 4 "all", or "vision", which is of images only.
    both_sides = config.get("use_bidirectional_attention") in (True, "all")
    both_sides |= "Bidirectional" in str(config.get("architectures"))  # of LFM2, LLaMA
    if row.mask == "causal" and (both_sides or not pick(config, bool, "is_causal", default=True)):
        return None  # it was first trained as a causal model, and then not
    return None if row.mask == "unknown" else row.mask == "causal"


def read_sizes(row: Row, config: dict, i: int) -> Sizes:
    """Returns the sizes of the heads of layer i, from the config or the defaults of the class."""
    config = config | config_of_layer(config, i)
    n_head = pick(config, int, *head_keys(row.stack), default=row.n_head)
    n_kv_head = pick(config, int, "num_key_value_heads", "n_kv_heads")
    head_dim = pick(config, int, "head_dim", "d_kv", "attention_head_size", default=row.head_dim)
    require(n_head, f"{row.model_type}: config.json has no number of heads")
    pruned = pick(pick(config, dict, "pruned_heads", default={}), list, str(i))  # BERT, GPT-2
    if pruned:
        width = pick(config, int, "hidden_size", "n_embd", "dim", default=0)
        n_head, head_dim = n_head - len(pruned), width // n_head
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
