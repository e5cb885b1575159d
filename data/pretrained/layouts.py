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
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .by_hand import Hand, advice, compare_numbers, find_flags, match_names, other_chunks
from .files import MERGE, CheckpointError, only_checkpoint_errors, pick, require
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
        found = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in self.names)
        require(all(weight.ndim > 1 for weight in weights), f"{found:.100} is no matrix, but a piece of one: {MERGE}")
        try:
            q, k = FORMS[self.form](weights, self.sizes, self.config)
            fits = q.ndim == k.ndim == 3 and q.shape[1:] == k.shape[1:]
            fits = fits and len(q) == self.sizes.n_head and len(q) % len(k) == 0
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            fits = False
        require(fits, f"{found} do not fit n_head, n_kv_head, head_dim = {tuple(self.sizes)}")
        return q.mT, k.mT

    def fit(self, shapes: Mapping[str, tuple]) -> torch.Size:
        """Returns the shape of w_q from those of the tensors, before anything is read. Raises as `heads` does."""
        w_q, _ = self.heads({name: torch.empty(shapes[name], device="meta") for name in self.names})
        return w_q.shape


class Stack(NamedTuple):
    """Layers on top of each other."""

    name: str  # "" if the model has one stack
    causal: bool | None  # None: the mask is not known
    layers: list[Layer]


@only_checkpoint_errors("config.json, or a shape,")
def find_stacks(config: dict, shapes: Mapping[str, tuple], hand: Hand | None = None) -> tuple[list[Stack], list[str]]:
    """
    Returns the stacks of self-attention layers in a checkpoint, and notes: in words, what of it is not among them.

    config: its config.json. shapes: of all tensors. hand: what the user says, in place of the table. Raises
    CheckpointError if q and k are not certain: if the type is unknown, layers are missing, shapes do not fit, ...
    """
    flat = [name for name in shapes if name.endswith("_flat_param")]
    require(not flat, f"{flat[:1]} is a piece of the weights: {MERGE}")
    stacks, notes = stack_by_hand(config, shapes, hand) if hand else stacks_of_table(config, shapes)
    for stack in stacks:
        for layer in stack.layers:
            layer.fit(shapes)
    return stacks, notes


def stack_by_hand(config: dict, shapes: Mapping[str, tuple], hand: Hand) -> tuple[list[Stack], list[str]]:
    """Returns the layers that the user has named, as one stack, and notes."""
    config = config | pick(config, dict, "text_config", default={})
    found = by_layer(match_names(hand, shapes))
    n_layer = pick(config, int, *LAYER_KEYS, default=max(found) + 1)
    told = softmax_layers(config, n_layer)
    first = 0 if 0 in found else 1  # some models count from 1
    own, shared = with_own_keys(config, told or range(first, max(found) + 1), n_layer)
    if hand.n_layer:
        own = sorted(i for i in found if len(found[i]) == len(hand.patterns))
        require(len(own) == hand.n_layer, f"{len(own)} layers match, and {hand.n_layer} have attention by your words")
    words = f"{len(own)} layers {'in config.json' if told else 'by your words'}"
    names_of = tensors_of_layers(found, own, hand.patterns, words, "say how many have it, --layers N")
    layers = [Layer(i, names, "given", Sizes(*hand.heads, None), hand._asdict()) for i, names in names_of.items()]
    n_head, _, head_dim = layers[0].fit(shapes)
    compare_numbers(config, None if told or hand.n_layer else len(own) + len(shared), n_head, head_dim)
    refuse_changed(layers, shapes, HARMLESS)
    notes = left_out(found.keys() - {*own, *shared}, "without softmax") + left_out(shared, SHARED)
    return [Stack("", None, layers)], notes + other_chunks(hand, shapes)


def stacks_of_table(config: dict, shapes: Mapping[str, tuple]) -> tuple[list[Stack], list[str]]:
    """Returns the stacks that layouts.csv lists, and notes. Checks that no other tensor looks like a query or key."""
    model_type = pick(config, str, "model_type")
    names = {name for name in shapes if not UNSCORED.search(name)}
    matrices = {name for name in names if len(shapes[name]) > 1}
    accounted_for = set()
    stacks, notes = [], []
    for part in find_parts(model_type, config, names):
        if not part.rows and (part.names & matrices or not part.name):
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
            raise CheckpointError(f"{told}: {advice(part.model_type, part.names & matrices, shapes)}")
        rows = [row for row in part.rows if row.match(part.names)]
        for row in rows:
            layers, others, its_notes = find_layers(row, part)
            # For example "vision"; "vision.global" if a part has several stacks; "encoder" if there are no parts.
            inner = row.stack if len(rows) > 1 or not part.name else ""
            stacks.append(Stack(".".join(filter(None, [part.name, inner])), mask_is_causal(row, part.config), layers))
            notes += its_notes
            accounted_for |= names_in_layers(part.names, others)
            harmless = OURS if model_type == "train.py-checkpoint" else HARMLESS
            accounted_for |= refuse_changed(layers, part.names, harmless)
        its_stacks = {row.stack for row in part.rows} if rows else {""}  # "": nothing of the part is here
        for stack in sorted(its_stacks - {row.stack for row in rows}):
            is_other_side = {part.name, stack} == {"encoder", "decoder"}  # such as the encoder of an mBART that decodes
            if not is_other_side and part.config.get(f"add_{stack}") is not False:  # add_adapter
                notes.append(f"its {f'{part.name} {stack}'.strip()} has no queries and keys here")
    left = find_flags(matrices - accounted_for, shapes)
    if not stacks:
        for name in sorted(names):
            if WRAPPED.search(name) or QUANTISED.search(name):
                refuse(name)
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
HARMLESS = re.compile("|".join((
    r"(.*[._])?bias(_[a-z])?$|.*([nN]orm|(\b|_)ln(_|\b))",  # of anything
    r"(to_|c_|linear_|in_proj_|attn_|W|w)?(v|vg|value|o|out|output)(_proj\w*|_lin|_net|)\b",  # values and outputs
    r"((c|out|linear|attn)_)?(proj|projection|dense)(_layer)?\b",  # outputs
    r"\w*(pos|rot|rope|rel|dist|freq|alibi|slope)",  # positions
    r".*(in|out)put_(scale|min|max)$|.*(activation|k)_scale$",  # activations in eight bits
    r"((ve_|v_|o_)?gate\w*|g_proj|dt_proj|A|conv|indexer|layout_\w+|\w+_global|[ew]2[ew]_query|lambda_\w+)\b",
    r"(sinks?|scaling|softmax_offset|temperature|logit_scale|tril|\w*mask|\w*cache)\b",
)))
OURS = re.compile(r"(q|k|v|proj|pos_q|pos_k)\.(weight|bias)")  # the same for model.py
# Beside whole layers other things lie too. Of these, the ones whose names begin like this may change a query or key.
QK_WORD = re.compile(r"([a-z]+_)?[wW]?([qkQK]|qkv?|query|key)(_|\b)")
# The end of the name of a weight, also if LoRA, pruning or parametrizations have wrapped it; and what is before it: the
# name of its block, and its own name, with a number behind it in a Sequential.
END = re.compile(r"(\.linear|\.base_layer)?(\.weight(_orig)?)?$|\.parametrizations\..*$")
STEM = re.compile(r"(?:(.*)\.)?([^.]*[^.\d][^.]*(?:\.\d+)*)")
WRAPPED = re.compile(r"base_layer|lora_|parametrizations|weight_orig")
QUANTISED = re.compile(r"(^|[._])(weight_?(global_)?(scale|packed|shape|g_idx|qdata|zero_point)|qweight|qzeros|g_idx|"
                       r"weight\.(absmax|quant|nested)|scales|biases|SCB|codes|codebooks)")


def refuse_changed(layers: Iterable[Layer], names: Iterable[str], harmless: re.Pattern) -> set[str]:
    """Returns the names in the blocks of attention of these layers. Raises CheckpointError if one changes q or k."""
    # The scales of FP8 are no more among the names: checkpoint.py has multiplied the weights by them.
    own = {name for layer in layers for name in layer.names}
    weights_of = defaultdict(list)  # a block -> what the weights in it are called
    for name in own:
        block, weight = STEM.fullmatch(END.sub("", name, count=1)).groups(default="")
        weights_of[block].append(weight)
    inside = set()
    for name in names:
        parts = name.split(".")
        for n in range(len(parts)):
            block, rest = ".".join(parts[:n]), ".".join(parts[n:])
            if block not in weights_of:
                continue
            is_beside = any(rest.startswith((f"{weight}.", f"{weight}_")) for weight in weights_of[block])
            is_layer = not block or parts[n - 1].isdigit()
            if is_beside or not is_layer or QK_WORD.match(rest):
                inside.add(name)
                if name not in own and not harmless.match(rest):
                    refuse(name)
    return inside


def refuse(name: str):
    """Raises CheckpointError, because of a tensor beside a query or key."""
    require(not QUANTISED.search(name), f"quantised weights ({name}): score the model it was made from, or write it "
            "out as floats (model.dequantize() and save_pretrained())")
    raise CheckpointError(f"{name} lies beside a query or key and may change it: merge the two and save again "
                          "(PEFT: merge_and_unload(); torch.nn.utils: prune.remove, remove_parametrizations)")


# ---- the layers of a stack ------------------------------------------------------------------------------------------

# The keys of config.json that can tell how many layers and heads there are, in the order in which they are tried. {} is
# the name of the stack.
LAYER_KEYS = ("{}_layers", "num_{}_layers", "{}_num_hidden_layers", "num_hidden_groups", "num_hidden_layers", "n_layer",
              "n_layers", "num_layers", "depth", "encoder_layers", "conf_num_hidden_layers")
HEAD_KEYS = ("{}_attention_heads", "{}_num_attention_heads", "num_attention_heads", "n_head", "n_heads", "num_heads",
             "attention_heads", "encoder_attention_heads", "conf_num_attention_heads")
SHARED = "with the keys of an earlier one"
# The kinds of layers without a softmax: words, the letters of Nemotron-H, and the 0 of MiniMax.
NO_SOFTMAX = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "M", "-", "E", 0}


def softmax_layers(config: dict, n_layer: int) -> list[int]:
    """Returns which of n_layer layers have a softmax; [] if the config does not tell them apart from others."""
    kinds = pick(config, list, "layer_types", "layers_block_type", "attn_type_list", default=[])
    kinds = kinds or list(pick(config, str, "hybrid_override_pattern", default=""))
    if kinds:  # it may go on with layers that predict further tokens
        return [i for i, kind in zip(range(n_layer), kinds) if kind not in NO_SOFTMAX]
    period = pick(config, int, "full_attention_interval", "attn_layer_period")  # Qwen3-Next, Jamba
    if period:
        offset = pick(config, int, "attn_layer_offset", default=period - 1)
        return [i for i in range(n_layer) if i % period == offset]
    crossing = pick(config, list, "cross_attention_layers", default=[])  # mllama
    if crossing:
        return [i for i in range(n_layer) if i not in crossing]
    from_1 = pick(pick(config, dict, "linear_attn_config", default={}), list, "full_attn_layers", default=[])  # Kimi
    return pick(config, list, "full_attn_idxs", "attn_layer_indices", default=[i - 1 for i in from_1])


def with_own_keys(config: dict, layers: Iterable[int], n_layer: int, n_shared: int = 0) -> tuple[list[int], list[int]]:
    """Returns those of the layers that have keys of their own, and those that take the keys of an earlier one."""
    n_shared = pick(config, int, "num_kv_shared_layers", default=n_shared)  # the last ones: Gemma 3n and 4
    period = pick(config, int, "cla_share_factor", default=1) if config.get("use_cla") else 1  # Hunyuan
    own = [i for i in layers if i < n_layer - n_shared and i % period == 0]
    return own, [i for i in layers if i not in own]


def left_out(layers: Iterable[int], why: str) -> list[str]:
    """Returns a note of these layers, in a list; [] if there are none."""
    return [f"{len(layers)} layers {why} are left out"] if layers else []


def find_layers(row: Row, part: Part) -> tuple[list[Layer], set[int], list[str]]:
    """Returns the layers of a stack, exactly those of the config, the numbers of the other ones, and notes."""
    config = part.config
    kinds = pick(config, list, "layer_types", "layers_block_type", default=[])
    keys = [key.format(row.stack) for key in LAYER_KEYS]
    n_layer = pick(config, int, *keys, default=row.n_layer or len(kinds))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    n_all = n_layer + pick(config, int, "num_nextn_predict_layers", default=0)  # DeepSeek-V3 predicts further tokens
    with_softmax = softmax_layers(config, n_layer) or range(n_layer)
    own, shared = with_own_keys(config, with_softmax, n_layer, row.n_shared or 0)
    require(own, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    matches = row.match(part.names)
    skipped = {*shared, *range(n_layer, n_all)}.intersection(int(match["i"]) for match in matches)
    matches = [match for match in matches if int(match["i"]) not in skipped]
    told = f"{row.model_type}: {len(own)} attention layers in config.json"
    prefixes = sorted({match["prefix"] for match in matches})
    require(len(prefixes) == 1, f"{told}, and as many under each of {' and '.join(prefixes)!r}")
    found = by_layer((int(match["i"]), match["weight"], 0, match[0]) for match in matches)
    if any(len(found[i]) < len(row.weights) for i in own):
        for name in sorted(part.names):
            if WRAPPED.search(name) and not set(row.weights).isdisjoint(name.split(".")):
                refuse(name)  # as LoRA on the queries, beside which the keys are as they were
    names_of = tensors_of_layers(found, own, row.weights, told, "say so in config.json, as layer_types")
    others = [str(i) for i in found if i not in own and len(found[i]) == len(row.weights)]
    require(not others, f"{told}, and all weights of layer {', '.join(others):.60} as well")
    layers = [Layer(i, names, row.form, read_sizes(row, config, i), config) for i, names in names_of.items()]
    return layers, {*range(n_all)} - {*own}, left_out(skipped.intersection(shared), SHARED)


def by_layer(found: Iterable[tuple[int, str, int, str]]) -> dict[int, dict[str, tuple[str, ...]]]:
    """Returns {layer: {weight: its tensors, head by head}}. found: of each tensor the layer, weight, head, and name"""
    names_of = {}
    for i, weight, head, name in found:
        other = names_of.setdefault((i, weight, head), name)
        require(other == name, f"{other} and {name} have the same number: remove one of them")
    layers = defaultdict(lambda: defaultdict(tuple))
    for (i, weight, _), name in sorted(names_of.items()):
        layers[i][weight] += (name,)
    return layers


def tensors_of_layers(found: dict[int, dict[str, tuple[str, ...]]], expected: Iterable[int], weights: Iterable[str],
                      told: str, way_on: str) -> dict[int, tuple[str, ...]]:
    """Returns {layer: its tensors}. found: {layer: {weight: its tensors}}. Raises CheckpointError if one is missing."""
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
    # In Gemma 4 "all", or "vision", which is of images only. LFM2 and LLaMA say it in the name of their architecture.
    both_sides = config.get("use_bidirectional_attention") in (True, "all")
    both_sides = both_sides or "Bidirectional" in str(config.get("architectures"))
    if row.mask == "causal" and (both_sides or not pick(config, bool, "is_causal", default=True)):
        return None  # it was first trained as a causal model, and then not
    return None if row.mask == "unknown" else row.mask == "causal"


def read_sizes(row: Row, config: dict, i: int) -> Sizes:
    """Returns the sizes of the heads of layer i, from the config or the defaults of the class."""
    n_heads = pick(config, list, "num_attention_heads_per_layer")  # Laguna
    of_layer = {"num_attention_heads": n_heads[i]} if n_heads else {}
    if pick(config, list, "layer_types", default=[])[i : i + 1] == ["full_attention"]:  # Gemma 4
        of_layer["head_dim"] = pick(config, int, "global_head_dim", "head_dim")
        if pick(config, bool, "attention_k_eq_v"):
            of_layer["num_key_value_heads"] = pick(config, int, "num_global_key_value_heads", "num_key_value_heads")
    of_layer |= pick(pick(config, dict, "per_layer_config", default={}), dict, str(i), default={})  # as it is saved
    config = config | of_layer
    n_head = pick(config, int, *(key.format(row.stack) for key in HEAD_KEYS), default=row.n_head)
    n_kv_head = pick(config, int, "num_key_value_heads", "n_kv_heads")
    head_dim = pick(config, int, "head_dim", "d_kv", "attention_head_size", default=row.head_dim)
    require(n_head, f"{row.model_type}: config.json has no number of heads")
    pruned = pick(pick(config, dict, "pruned_heads", default={}), list, str(i))  # BERT, GPT-2
    if pruned:
        head_dim = pick(config, int, "hidden_size", "n_embd", "dim", default=0) // n_head
        n_head -= len(pruned)
    return Sizes(n_head, n_kv_head, head_dim)
