"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks = find_stacks(config, shapes)            # from config.json, and from the names and shapes of all tensors
    w_q, w_k = stacks[0].layers[0].heads(tensors)  # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.
layouts.csv says where each model has these weights, architectures.py which of its rows a model needs, by_hand.py makes a
row of what the user says, beside.py says what may lie beside them, and FORMS how tensors hold the heads. These are the
raw weights: biases, RoPE, scaling and norms are left out. Query head h meets key head h // (n_head // n_kv_head).
"""

from typing import NamedTuple

import torch

from .beside import is_cross_attention, is_of, looks_like_query, refuse_changed
from .by_hand import advice, numbered
from ..names import CheckpointError, only_checkpoint_errors, require
from .forms import FORMS
from .architectures import (KINDS_OF_LAYERS, TABLE, Sizes, find_parts, mask_is_causal, pick, read_size, read_sizes,
                           softmax_layers)


class Layer(NamedTuple):
    index: int  # its number in the model
    names: tuple  # of the tensors that hold q and k
    form: str  # key of FORMS
    sizes: Sizes
    config: dict  # what some of FORMS need beside the sizes

    def heads(self, tensors):
        """Returns w_q (n_head, C, D), w_k (n_kv_head, C, D) as stored. Raises CheckpointError if shapes do not fit."""
        weights = [tensors[name] for name in self.names]
        found = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in self.names)
        try:
            q, k = FORMS[self.form](weights, self.sizes, self.config)
            fits = q.ndim == k.ndim == 3 and q.shape[1:] == k.shape[1:]
            fits = fits and len(q) == self.sizes.n_head and len(q) % len(k) == 0
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            fits = False
        require(fits, f"{found} do not fit n_head, n_kv_head, head_dim = {tuple(self.sizes)}")
        return q.mT, k.mT


class Stack(NamedTuple):
    name: str  # "" if the model has one stack
    causal: bool | None  # None: the mask is not known
    layers: list


@only_checkpoint_errors("config.json, or a shape,")
def find_stacks(config, shapes, hand=None):
    """
    Returns the stacks of self-attention layers in a checkpoint. Raises CheckpointError if q and k are not certain.
    config: its config.json. shapes: {name: shape} of all tensors. hand: a row in place of the table.
    """
    if hand:
        missing = {*hand.weights} - {weight for weight, _ in hand.match(shapes)}
        there = ", ".join(sorted({*map(numbered, shapes)}))
        require(not missing, f"nothing matches {' or '.join(missing)}: there are {there:.300}")
        layers, _ = find_layers(hand, shapes, {}, shapes)
        refuse_changed(layers, shapes, ())
        return [Stack("", None, layers)]
    try:
        return stacks_of_parts(config, shapes)
    except CheckpointError as e:
        method = pick(config, dict, "quantization_config", default={}).get("quant_method")
        require(not method, f"quantised weights ({method}): score the model it was made from, or write it out as "
                f"floats, multiplied by their scales ({e})")
        raise


def stacks_of_parts(config, shapes):
    """Returns the same by the table. Checks that no other tensor looks like a query."""
    model_type = pick(config, str, "model_type")
    others = {module for row in TABLE.get(model_type, []) for module in row.unscored}
    others |= {"mtp", "mtp_block", "mtp_layers"}  # which predict further tokens, in any model
    names = {name for name in shapes if not is_of(name, others)}
    queries = {name for name in names if looks_like_query(name, shapes[name])}
    accounted_for = set()
    stacks = []
    for part in find_parts(config, names):
        if not part.rows and (not part.name or any(not is_cross_attention(name) for name in part.names & queries)):
            told = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
            raise CheckpointError(f"{told}: {advice(part.config, part.names & queries, part.names)}")
        rows = [row for row in part.rows if row.match(part.names)]
        for row in rows:
            layers, beside = find_layers(row, part.names, part.config, shapes)
            # For example "vision"; "vision.global" if a part has several stacks; "encoder" if there are no parts.
            inner = row.stack if len(rows) > 1 or not part.name else ""
            stacks.append(Stack(".".join(filter(None, [part.name, inner])), mask_is_causal(row, part.config), layers))
            accounted_for |= beside | refuse_changed(layers, part.names, row.unscored)
            queries |= {name for name in part.names if not {*row.weights}.isdisjoint(name.split("."))}
    left = sorted(name for name in queries - accounted_for if not is_cross_attention(name))
    told = f"no known place for {left[0]}" if left else "no q and k weights where this type has them"
    require(stacks and not left, f"{model_type}: {told}: {advice(config, queries, names)}")
    return stacks


# ---- the layers of a stack ---------------------------------------------------------------------------------------


def find_layers(row, names, config, shapes):
    """Returns the layers of a stack, exactly those of the config, and the names of the tensors in others."""
    matches = row.match(names)
    prefixes = sorted({match.groupdict().get("prefix", "") for _, match in matches})
    require(len(prefixes) == 1, f"{row.model_type}: attention layers under each of {' and '.join(prefixes)!r}")
    found = by_layer(matches)
    own, end = own_layers(row, config, found)
    told = f"{len(own)} layers have attention"
    for weight in row.weights:
        missing = [str(i) for i in own if weight not in found.get(i, {})]
        require(not missing, f"{told}, {weight} of layer {', '.join(missing):.60} missing: get all files, and merge "
                             "adapters; if these layers have no attention, say so by layer_types in config.json")
    more = [i for i in found if i >= end]
    require(not more, f"{told}, and there are weights of layer {str(more)[1:-1]:.60} as well")

    layers = []
    for i in own:
        tensors = tuple(name for weight in row.weights for name in found[i][weight])
        sizes = row.sizes or read_sizes(row, config, i)
        require(sizes.n_head, f"{row.model_type}: config.json has no number of heads")
        layer = Layer(i, tensors, row.form, sizes, config)
        layer.heads({name: torch.empty(shapes[name], device="meta") for name in tensors})  # do they fit?
        layers.append(layer)
    starts = {match.string[: match.start("i")] for _, match in matches}  # of the names of layers
    beside = tuple(f"{start}{i}." for start in starts for i in {*range(end)} - {*own})
    return layers, {name for name in names if name.startswith(beside)}


def by_layer(matches):
    """Returns {layer: {weight: its tensors, head by head}}."""
    names_of = {}
    for weight, match in matches:
        number = int(match["i"]), weight, int(match.groupdict().get("h", 0))
        other = names_of.setdefault(number, match[0])
        require(other == match[0], f"{other} and {match[0]} have the same number: remove one of them")
    found = {}
    for (i, weight, _), name in sorted(names_of.items()):
        found.setdefault(i, {}).setdefault(weight, []).append(name)
    return found


def own_layers(row, config, found):
    """
    Returns the numbers of the layers with queries and keys of their own, and the number after the last layer.
    found: {layer: {weight: its tensors}}. Raises CheckpointError if the config does not say how many layers there are.
    """
    if row.sizes:  # by hand
        return sorted(found), max(found) + 1
    n_layer = read_size("n_layer", row, config) or len(pick(config, list, *KINDS_OF_LAYERS, default=[]))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    own = softmax_layers(config, n_layer, [i for i in found if len(found[i]) == len(row.weights)])
    own = own[: len(own) - (read_size("n_shared", row, config) or 0)]  # Gemma 3n: the last ones have the keys of others
    require(own, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    return own, n_layer + pick(config, int, "num_nextn_predict_layers", default=0)  # those predict further tokens
