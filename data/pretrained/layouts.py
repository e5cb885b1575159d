"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks = find_stacks(config, shapes)            # from config.json, and from the names and shapes of all tensors
    w_q, w_k = stacks[0].layers[0].heads(tensors)  # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.
layouts.csv says where each model has these weights, architectures.py which of its rows a model needs, by_hand.py makes
a row of what the user says, beside.py says what may lie beside them, and FORMS how tensors hold the heads. These are
the raw weights: biases, RoPE, scaling and norms are left out. Query head h meets key head h // (n_head // n_kv_head).
"""

import re
from typing import NamedTuple

import torch

from .beside import PREDICTING, is_cross_attention, is_of, looks_like_query, refuse_changed
from .by_hand import advice, compare_heads, numbered
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
        shapes = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in self.names)
        try:
            q, k = FORMS[self.form](weights, self.sizes, self.config)
            fits = q.ndim == k.ndim == 3 and q.shape[1:] == k.shape[1:]
            fits = fits and len(q) == self.sizes.n_head and len(q) % len(k) == 0
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            fits = False
        require(fits, f"{shapes} do not fit n_head, n_kv_head, head_dim = {tuple(self.sizes)}")
        return q.mT, k.mT


class Stack(NamedTuple):
    name: str  # "" if the model has one stack
    causal: bool | None  # None: the mask is not known
    layers: list


def find_stacks(config, shapes, hand=None):
    """Returns the stacks of read_stacks alone."""
    return read_stacks(config, shapes, hand)[0]


@only_checkpoint_errors("config.json, or a shape,")
def read_stacks(config, shapes, hand=None):
    """
    Returns the stacks of self-attention layers in a checkpoint, and what is left out, in words. Raises CheckpointError
    if q and k are not certain. config: its config.json. shapes: {name: shape} of all tensors. hand: a row in place of
    the table.
    """
    if hand:
        return stack_by_hand(config, shapes, hand)
    try:
        return stacks_of_parts(config, shapes)
    except CheckpointError as e:
        method = pick(config, dict, "quantization_config", default={}).get("quant_method")
        require(not method, f"quantised weights ({method}): score the model it was made from, or write it out as "
                f"floats, multiplied by their scales ({e})")
        raise


def stack_by_hand(config, shapes, hand):
    """Returns the one stack that the user has named, and what is left out. config: a witness, if there is one."""
    missing = {*hand.weights} - {weight for weight, _ in hand.match(shapes)}
    there = ", ".join(sorted({*map(numbered, shapes)}))
    require(not missing, f"nothing matches {' or '.join(missing)}: there are {there:.300}")
    compare_heads(hand, config)
    layers, *_ = find_layers(hand, shapes, {}, shapes)
    inside = refuse_changed(layers, shapes, hand.unscored, by_hand=True)

    # Named as what is scored but for a number, as blocks.1.0.wq beside blocks.0.0.wq: of another stack, or forgotten.
    scored = set().union(*[layer.names for layer in layers])
    patterns = {re.sub(r"\d+", "0", name) for name in scored}
    unnamed = sorted(name for name in shapes.keys() - scored - inside if not is_of(name, hand.unscored))
    forgotten = [name for name in unnamed if re.sub(r"\d+", "0", name) in patterns]
    require(not forgotten, f"{forgotten[:1]} is named as what is scored, and is not: if it is of another stack, name "
            "it as one of --unscored")
    queries = {numbered(name) for name in unnamed if looks_like_query(name, shapes[name])}
    return [Stack("", None, layers)], sorted(queries)


def stacks_of_parts(config, shapes):
    """
    Returns the same by the table. Every tensor that looks like a query is accounted for: it is scored, beside what is
    scored, in a layer that is not, of cross-attention, or in a module that the table leaves out.

    Of a T5 decoder.block.0.layer.0.SelfAttention.q is scored, decoder.block.0.layer.1.EncDecAttention.q is of
    cross-attention, and teacher.block.0.layer.0.SelfAttention.q is refused by its name.
    """
    model_type = pick(config, str, "model_type")
    unscored = set().union(*[row.unscored for row in TABLE.get(model_type, [])])
    queries = {name for name in shapes if looks_like_query(name, shapes[name])}
    modules = {*".".join(queries).split(".")}  # with queries in them
    left_out = sorted(unscored & modules)
    if not modules.isdisjoint(PREDICTING):
        left_out.append("layers that predict tokens")
    names = {name for name in shapes if not is_of(name, [*unscored, *PREDICTING])}
    queries &= names
    accounted_for = set()
    stacks = []
    for part in find_parts(config, names):
        if not part.rows and (not part.name or any(not is_cross_attention(name) for name in part.names & queries)):
            kind = part.model_type
            reason = f"model_type {kind!r} is not known" if kind else "no config.json says its type"
            raise CheckpointError(f"{reason}: {advice(part.config, part.names & queries, part.names)}")
        rows = [row for row in part.rows if row.match(part.names)]
        left_out += missing_stacks(part, rows)
        part_shapes = {name: shapes[name] for name in part.names}
        for row in rows:
            layers, elsewhere, left_layers = find_layers(row, part.names, part.config, shapes)
            # For example "vision"; "vision.global" if a part has several stacks; "encoder" if there are no parts.
            inner = row.stack if len(rows) > 1 or not part.name else ""
            stacks.append(Stack(".".join(filter(None, [part.name, inner])), mask_is_causal(row, part.config), layers))
            left_out += left_layers
            accounted_for |= elsewhere | refuse_changed(layers, part_shapes, row.unscored)
            queries |= {name for name in part.names if not {*row.weights}.isdisjoint(name.split("."))}
    left = sorted(name for name in queries - accounted_for if not is_cross_attention(name))
    reason = f"no known place for {left[0]}" if left else "no q and k weights where this type has them"
    require(stacks and not left, f"{model_type}: {reason}: {advice(config, queries, names)}")
    return stacks, left_out


def missing_stacks(part, rows):
    """Returns in words which stacks of a part are not in these files. rows: those of its rows that match something."""
    stacks = [row.stack for row in rows]
    double = {stack for stack in stacks if stacks.count(stack) > 1}
    require(not double, f"{part.model_type}: layers under two kinds of names: {' and '.join(row.path for row in rows)}")
    if part.name:  # of two stacks a part may use one
        return [] if rows or not part.rows else [f"no attention of the {part.name} is in these files"]
    sides = {row.stack for row in part.rows} & {"encoder", "decoder"}
    return [f"the {side} is not in these files" for side in sorted(sides - {*stacks})]


# ---- the layers of a stack ---------------------------------------------------------------------------------------


def find_layers(row, names, config, shapes):
    """
    Returns the layers of a stack, exactly those of the config; the names of the tensors in its other layers; and in
    words which layers are left out.

    By the row layers.{i}.self_attn with q_proj and k_proj, model.layers.0.self_attn.q_proj.weight is of layer 0, and
    model.layers.0.mlp.up_proj.weight of none. If layer 1 has no attention, all model.layers.1. are in other layers.
    """
    matches = row.match(names)
    prefixes = sorted({match.groupdict().get("prefix", "") for _, match in matches})
    require(len(prefixes) == 1, f"{row.model_type}: attention layers under each of {' and '.join(prefixes)!r}")
    weights_of = by_layer(matches)
    numbers = count_layers(row, config, weights_of)
    has_attention = f"{len(numbers.scored)} layers have attention"
    for weight in row.weights:
        missing = [str(i) for i in numbers.scored if weight not in weights_of.get(i, {})]
        require(not missing, f"{has_attention}, {weight} of layer {', '.join(missing):.60} missing: get all files, and "
                "merge adapters; if these layers have no attention, say so by layer_types in config.json")
    beyond = [i for i in weights_of if i >= numbers.end]
    require(not beyond, f"{has_attention}, and there are weights of layer {str(beyond)[1:-1]:.60} as well")

    layers = []
    for i in numbers.scored:
        tensors = tuple(name for weight in row.weights for name in weights_of[i][weight])
        sizes = row.sizes or read_sizes(row, config, i)
        require(sizes.n_head, f"{row.model_type}: config.json has no number of heads")
        layer = Layer(i, tensors, row.form, sizes, config)
        layer.heads({name: torch.empty(shapes[name], device="meta") for name in tensors})  # do they fit?
        layers.append(layer)
    starts = {match.string[: match.start("i")] for _, match in matches}  # of the names of layers: model.layers.
    unscored = {*range(numbers.end)} - {*numbers.scored}
    elsewhere = tuple(f"{start}{i}." for start in starts for i in unscored)
    return layers, {name for name in names if name.startswith(elsewhere)}, numbers.left_out


def by_layer(matches):
    """
    Returns {layer: {weight: its tensors, head by head}}, as {0: {"q": ["h.0.q.weight"], "k": ["h.0.k.weight"]}} of the
    matches of two names.
    """
    name_of = {}  # {(layer, weight, head): name}
    for weight, match in matches:
        number = int(match["i"]), weight, int(match.groupdict().get("h", 0))
        same = name_of.setdefault(number, match[0])
        require(same == match[0], f"{same} and {match[0]} have the same number: remove one of them")
    weights_of = {}
    for (i, weight, _), name in sorted(name_of.items()):
        weights_of.setdefault(i, {}).setdefault(weight, []).append(name)
    return weights_of


class Numbers(NamedTuple):  # of the layers of a stack
    scored: list  # those with queries and keys of their own
    end: int  # the number after the last layer
    left_out: list  # in words


def count_layers(row, config, weights_of):
    """
    Returns the Numbers of a stack. weights_of: {layer: {weight: its tensors}}. Raises CheckpointError if the config
    does not say how many layers there are, or if a layer that has no attention by the config has all weights of one.
    """
    whole = [i for i in sorted(weights_of) if len(weights_of[i]) == len(row.weights)]
    if row.sizes:  # by hand
        steps = {after - before for before, after in zip(whole, whole[1:])}  # x-transformers: every second one
        require(len(steps) < 2, f"of layers {str(whole)[1:-1]:.60} some are missing: get all files")
        return Numbers(sorted(weights_of), max(weights_of) + 1, [])
    n_layer = read_size("n_layer", row, config) or len(pick(config, list, *KINDS_OF_LAYERS, default=[]))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")
    left_out = []
    softmax = softmax_layers(config, n_layer)
    if softmax is None:
        softmax = [i for i in whole if i < n_layer]
        left_out.append(f"{n_layer - len(softmax)} of {n_layer} layers, which have no queries and keys")
    unexpected = [i for i in whole if i < n_layer and i not in softmax]
    require(not unexpected, f"layer {str(unexpected)[1:-1]:.60} has weights of q and k, and no attention by its kind: "
            "correct the kinds in config.json")
    n_shared = read_size("n_shared", row, config) or 0  # Gemma 3n: the last layers take the keys of earlier ones
    if n_shared:
        left_out.append(f"{n_shared} of {n_layer} layers, which take the keys of earlier ones")
    scored = softmax[: len(softmax) - n_shared]
    require(scored, f"{row.model_type}: by its config.json no layer has queries and keys of its own")
    n_predicting = pick(config, int, "num_nextn_predict_layers", default=0)  # layers that predict further tokens
    if max(weights_of) >= n_layer:
        left_out.append("layers that predict tokens")
    return Numbers(scored, n_layer + n_predicting, left_out)
