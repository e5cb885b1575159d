"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks, notes = find_stacks(config, shapes)     # from config.json, and from the names and shapes of all tensors
    w_q, w_k = stacks[0].layers[0].heads(tensors)  # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.
layouts.csv says where each model has these weights, layout_table.py which of its lines a model needs, beside.py what
may lie beside them, and FORMS how tensors hold the heads. tests/test_layouts.py compares them with transformers, where
it has the model. These are the raw weights: biases, RoPE, scaling and norms are left out. Query head h meets key head
h // (n_head // n_kv_head).
"""

import re
from collections import defaultdict
from typing import NamedTuple

import torch

from .beside import NOT_SELF, is_cross_attention, is_of, looks_like_query, refuse_changed
from .by_hand import match_names, other_chunks, pair_queries
from .checkpoint import FP8, MERGE, CheckpointError, only_checkpoint_errors, require
from .forms import FORMS
from .layout_table import (TABLE, WIDTH, Row, Sizes, config_of_name, count_layers, find_parts, find_row, mask_is_causal,
                           pick, read_sizes, softmax_layers, with_own_keys)


class Layer(NamedTuple):
    """One self-attention layer: its number in the model, the tensors to read, and how they hold q and k."""

    index: int
    names: tuple
    form: str  # key of FORMS
    sizes: Sizes
    config: dict

    def heads(self, tensors):
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

    def fit(self, shapes):
        """Returns n_head, n_kv_head and head_dim by the shapes of the tensors. Raises as `heads` does."""
        w_q, w_k = self.heads({name: torch.empty(shapes[name], device="meta") for name in self.names})
        return Sizes(len(w_q), len(w_k), w_q.shape[-1])


class Stack(NamedTuple):
    """Layers on top of each other."""

    name: str  # "" if the model has one stack
    causal: bool | None  # None: the mask is not known
    layers: list


@only_checkpoint_errors("config.json, or a shape,")
def find_stacks(config, shapes, hand=None):
    """
    Returns the stacks of self-attention layers in a checkpoint, and notes: in words, what of it is not among them.

    config: its config.json. shapes: {name: shape} of all tensors. hand: a Hand, in place of the table. Raises
    CheckpointError if q and k are not certain: if the type is unknown, layers are missing, shapes do not fit, ...
    """
    flat = [name for name in shapes if name.endswith("_flat_param")]
    require(not flat, f"{flat[:1]} is a piece of the weights: {MERGE}")
    try:
        stacks, notes = stack_by_hand(config, shapes, hand) if hand else stacks_of_table(config, shapes)
        for stack in stacks:
            for layer in stack.layers:
                layer.fit(shapes)
    except CheckpointError as e:
        method = pick(config, dict, "quantization_config", default={}).get("quant_method")
        require(not method, f"quantised weights ({method}): score the model it was made from, or write it out as "
                f"floats. {FP8 if 'fp8' in str(method) else ''} ({e})")
        raise
    return stacks, notes


def stack_by_hand(config, shapes, hand):
    """Returns the layers that the user has named, as one stack, and notes."""
    config = config_of_name(config, hand.patterns[0])
    row = find_row(config, hand.patterns[0])
    found = by_layer(match_names(hand, shapes))
    n_layer = count_layers(row, config) or max(found) + (0 in found)
    with_softmax = softmax_layers(config, n_layer)
    first = 0 if with_softmax or 0 in found else 1  # some models count from 1
    end = first + n_layer
    own, shared = with_own_keys(config, with_softmax or range(first, end), end, row.n_shared or 0)
    if hand.n_layer:
        own = sorted(i for i in found if len(found[i]) == len(hand.patterns))
        require(len(own) == hand.n_layer, f"{len(own)} layers match, and {hand.n_layer} have attention by your words")
    else:
        end += pick(config, int, "num_nextn_predict_layers", default=0)  # layers that predict further tokens
        require(max(found) < end, f"layer {max(found)} by your words, and {n_layer} layers in config.json")
    names_of = tensors_of_layers(found, own, hand.patterns, f"{len(own)} layers have attention")
    layers = [Layer(i, names, "given", sizes, hand._asdict())
              for (i, names), sizes in zip(names_of.items(), sizes_by_hand(row, config, own, hand))]
    compare_dims(layers, shapes, config)
    refuse_changed(layers, shapes, row.others)
    notes = note_layers(found.keys() - {*own, *shared}, "without softmax") + note_layers(shared, SHARED)
    return [Stack("", None, layers)], notes + other_chunks(hand, shapes)


def sizes_by_hand(row, config, layers, hand):
    """Returns the Sizes of each layer: as the user says, or as config.json lists them. Raises if they do not agree."""
    told = [read_sizes(row, config, i) for i in layers]
    n_heads = {sizes.n_head for sizes in told} - {None}
    require(not n_heads or hand.heads[0] in n_heads, f"{hand.heads[0]} heads by your words, and {n_heads} in "
            "config.json: --heads is the number of heads of q, without a gate")
    if len({sizes[:2] for sizes in told}) > 1:  # they differ from layer to layer
        require(all(sizes.n_kv_head for sizes in told), "config.json does not say how many key heads each layer has")
        return told
    return [Sizes(*hand.heads, sizes.head_dim) for sizes in told]


def compare_dims(layers, shapes, config):
    """Raises CheckpointError if a layer has heads of another size than config.json says, or than another layer."""
    found = {layer.fit(shapes): layer for layer in layers}
    widths = [value for key, value in config.items() if WIDTH.search(key) and type(value) is int]
    for (n_head, _, head_dim), layer in found.items():
        told = {layer.sizes.head_dim} - {None} or {width // n_head for width in widths}
        require(not told or head_dim in told, f"{head_dim} dimensions of a head by your words, and {told} in "
                "config.json: a tensor that holds more than q is named with --qkv and its --order")
    differ = len(found) > len({layer.sizes for layer in layers})
    require(not differ, f"{' and '.join(layer.names[0] for layer in found.values()):.150} have different shapes, and "
            "config.json does not say how many heads each layer has, as num_attention_heads_per_layer")


def stacks_of_table(config, shapes):
    """Returns the stacks that layouts.csv lists, and notes. Checks that no other tensor looks like a query."""
    model_type = pick(config, str, "model_type")
    others = {*NOT_SELF, *(module for row in TABLE.get(model_type, []) for module in row.others)}
    names = {name for name in shapes if not is_of(name, others)}
    unscored = [name for name in shapes if name not in names and looks_like_query(name, shapes[name])]
    left_out = [module for module in sorted(others) if any(is_of(name, [module]) for name in unscored)]
    notes = [f"its {module} is left out" for module in left_out]
    queries = {name for name in names if looks_like_query(name, shapes[name])}
    accounted_for = set()
    stacks = []
    for part in find_parts(model_type, config, names):
        if not part.rows and (not part.name or any(not is_cross_attention(name) for name in part.names & queries)):
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
            raise CheckpointError(f"{told}: {advice(part.config, part.names, shapes)}")
        rows = [row for row in part.rows if row.match(part.names)]
        for row in rows:
            layers, beside, its_notes = find_layers(row, part)
            # For example "vision"; "vision.global" if a part has several stacks; "encoder" if there are no parts.
            inner = row.stack if len(rows) > 1 or not part.name else ""
            stacks.append(Stack(".".join(filter(None, [part.name, inner])), mask_is_causal(row, part.config), layers))
            notes += its_notes
            accounted_for |= beside | refuse_changed(layers, part.names, row.others)
            queries |= {name for name in part.names if not {*row.weights}.isdisjoint(name.split("."))}
        its_stacks = {row.stack for row in part.rows} if rows else {""}  # "": nothing of the part is here
        for stack in sorted(its_stacks - {row.stack for row in rows}):
            is_other_side = {part.name, stack} == {"encoder", "decoder"}  # such as the encoder of an mBART that decodes
            if not is_other_side and part.config.get(f"add_{stack}") is not False:  # add_adapter
                notes.append(f"its {f'{part.name} {stack}'.strip()} has no queries and keys here")
    left = sorted(name for name in queries - accounted_for if not is_cross_attention(name))
    told = f"no known place for {left[0]}" if left else "no q and k weights where this type has them"
    require(stacks and not left, f"{model_type}: {told}: {advice(config, names, shapes)}")
    return stacks, notes


# ---- the layers of a stack ---------------------------------------------------------------------------------------

SHARED = "with the keys of an earlier one"


def note_layers(layers, why):
    """Returns a note of these layers, in a list; [] if there are none."""
    return [f"{len(layers)} layers {why} are left out"] if layers else []


def find_layers(row, part):
    """Returns the layers of a stack, exactly those of the config, the names of the tensors in others, and notes."""
    config = part.config
    n_layer = count_layers(row, config)
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    n_all = n_layer + pick(config, int, "num_nextn_predict_layers", default=0)  # DeepSeek-V3 predicts further tokens
    with_softmax = softmax_layers(config, n_layer) or range(n_layer)
    own, shared = with_own_keys(config, with_softmax, n_layer, row.n_shared or 0)
    require(own, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    matches = row.match(part.names)
    told = f"{row.model_type}: {len(own)} attention layers in config.json"
    prefixes = sorted({match["prefix"] for match in matches})
    require(len(prefixes) == 1, f"{told}, and as many under each of {' and '.join(prefixes)!r}")
    skipped = {*shared, *range(n_layer, n_all)}.intersection(int(match["i"]) for match in matches)
    starts = {match.string[: match.start("i")] for match in matches}  # of the names of layers
    beside = [f"{start}{i}." for start in starts for i in {*range(n_all)} - {*own}]
    matches = [match for match in matches if int(match["i"]) not in skipped]
    found = by_layer((int(match["i"]), match["weight"], 0, match[0]) for match in matches)
    names_of = tensors_of_layers(found, own, row.weights, told)
    more = [str(i) for i in found if i not in own and len(found[i]) == len(row.weights)]
    require(not more, f"{told}, and all weights of layer {', '.join(more):.60} as well")
    layers = [Layer(i, names, row.form, read_sizes(row, config, i), config) for i, names in names_of.items()]
    require(layers[0].sizes.n_head, f"{row.model_type}: config.json has no number of heads")
    names_beside = {name for name in part.names if name.startswith(tuple(beside))}
    return layers, names_beside, note_layers(skipped.intersection(shared), SHARED)


def by_layer(found):
    """Returns {layer: {weight: its tensors, head by head}}. found: of each tensor the layer, weight, head, and name"""
    names_of = {}
    for i, weight, head, name in found:
        other = names_of.setdefault((i, weight, head), name)
        require(other == name, f"{other} and {name} have the same number: remove one of them")
    layers = defaultdict(lambda: defaultdict(tuple))
    for (i, weight, _), name in sorted(names_of.items()):
        layers[i][weight] += (name,)
    return layers


def tensors_of_layers(found, expected, weights, told):
    """Returns {layer: its tensors}. found: {layer: {weight: its tensors}}. Raises CheckpointError if one is missing."""
    for weight in weights:
        missing = [str(i) for i in expected if weight not in found.get(i, {})]
        require(not missing, f"{told}, {weight} of layer {', '.join(missing):.60} missing: get all files, and merge "
                             "adapters and parametrizations; if these layers have no attention, say so in config.json, "
                             "as layer_types, or say --layers N")
    return {i: sum((found[i][weight] for weight in weights), ()) for i in expected}


# ---- what to try -------------------------------------------------------------------------------------------------


def advice(config, names, shapes):
    """Returns what to do with a model that layouts.csv does not list: flags to try, if config.json says the heads."""
    ways = []
    for q, k in pair_queries(name for name in names if len(shapes[name]) > 1 and not is_cross_attention(name)):
        its_config = config_of_name(config, q)
        sizes = read_sizes(Row(""), its_config, 0)
        if k is None:
            ways.append(f"{q} holds more than queries, in an order that its code says (--qkv with --order)")
        elif sizes.n_head:
            ways.append(f"if its code says so, score it with --q '{q}' --k '{k}' "
                        f"--heads {sizes.n_head},{sizes.n_kv_head or sizes.n_head}")
    return "; ".join(ways[:3]) or ("name its weights with --q, --k and --heads H,HKV, or score a layer in Python: "
                                   "scores(q.weight.T, k.weight.T)")
