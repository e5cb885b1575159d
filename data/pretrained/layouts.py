"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    layers, left_out = find_stacks(config, shapes)  # from config.json, and from the names and shapes of all tensors
    w_q, w_k = layers[0].heads(tensors)             # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.
layouts.csv says where each model has these weights, architectures.py which of its rows a model needs, beside.py what
may lie beside them, and forms.py how tensors hold the heads. Query head h meets key head h // (n_head // n_kv_head).
"""

import re
from collections import defaultdict
from typing import NamedTuple

import torch

from .beside import CROSS, IN_LAYER, LIKE_QUERY, PREDICTING, is_of, refuse_changed
from . import CheckpointError, forms, only_checkpoint_errors, require
from .architectures import (KINDS_OF_LAYERS, TABLE, Sizes, find_parts, mask_is_causal, pick, read_size, read_sizes,
                           softmax_layers)


class Layer(NamedTuple):
    stack: str  # encoder, vision, ...; "" if the model has one stack
    causal: bool | None  # None: the mask is not known
    index: int  # its number in the stack
    names: tuple  # which tensors hold q and k
    form: str  # a function of forms.py
    sizes: Sizes

    def heads(self, tensors):
        """Returns w_q (n_head, C, D), w_k (n_kv_head, C, D) as stored. Raises CheckpointError if shapes do not fit."""
        weights = [tensors[name] for name in self.names]
        try:
            q, k = getattr(forms, self.form)(weights, self.sizes)
            fits = q.ndim == 3 and q.shape[1:] == k.shape[1:] and len(q) == self.sizes.n_head and len(q) % len(k) == 0
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            fits = False
        shapes = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in self.names)
        require(fits, f"{shapes} do not fit n_head, n_kv_head, head_dim = {self.sizes[:3]}")
        return q.mT, k.mT


@only_checkpoint_errors("config.json, or a shape,")
def find_stacks(config, shapes):
    """Returns the Layers of all stacks, a list, and what is left out, in words. Raises CheckpointError if in doubt."""
    try:
        return layers_of_model(config, shapes)
    except CheckpointError as e:
        method = pick(config, dict, "quantization_config", default={}).get("quant_method")
        require(not method, f"quantised weights ({method}): score the model it was made from, or write it out as "
                f"floats, multiplied by their scales ({e})")
        raise


def layers_of_model(config, shapes):
    """
    Finds the layers by the table, and refuses the model if a query is left over. So of a T5:
        decoder.block.0.layer.0.SelfAttention.q      is scored
        decoder.block.0.layer.1.EncDecAttention.q    belongs to cross-attention, so it may be left
        teacher.block.0.layer.0.SelfAttention.q      has no place: refused
    """
    model_type = pick(config, str, "model_type")
    # h.0.attn.c_attn.weight (3 C, C) is like a query, and its bias, which has one dimension, is not
    like_queries = {name for name, shape in shapes.items() if len(shape) > 1 and LIKE_QUERY.fullmatch(name)}
    queries = {name for name in like_queries if IN_LAYER.search(name)}
    pooling = like_queries - queries  # as head.attention.in_proj_weight of SigLIP

    # 1) set aside what nobody wants scored: modules that the table names, and those that predict further tokens
    unscored = set().union(*[row.unscored for row in TABLE.get(model_type, [])])
    modules = {*".".join(queries).split(".")}  # all words in the paths of queries: mtp, layers, 0, self_attn, ...
    left_out = sorted(unscored & modules)
    if not modules.isdisjoint(PREDICTING):
        left_out.append("layers that predict tokens")
    names = {name for name in shapes if not is_of(name, [*unscored, *PREDICTING])}
    queries &= names

    # 2) find the layers: part by part (a CLIP has vision and text), and stack by stack (a T5 has encoder and decoder)
    layers, accounted_for = [], set()
    for part in find_parts(config, names):
        rows, missing_stacks = find_rows(part, queries)
        left_out += missing_stacks
        for row in rows:
            stack = part.name or row.stack  # vision, encoder, or ""
            if part.name and row.stack and len(rows) > 1:
                stack = f"{part.name}.{row.stack}"  # vision.global
            found, elsewhere, left_layers = layers_of_stack(stack, row, part.names, part.config, shapes)
            layers += found
            left_out += left_layers

            accounted_for |= elsewhere | refuse_changed(found, part.names, row.unscored)
            # subtle: any tensor called like a weight of this row, even k_proj, needs a place as a query does
            queries |= {name for name in part.names if is_of(name, row.weights)}

    # 3) by now every query has its place. If one is left over, we do not know this model after all
    cross = {name for name in queries if CROSS.search(name)}
    if cross:
        left_out.append("cross-attention")
    if pooling:
        left_out.append("attention that pools tokens")
    left = sorted(queries - accounted_for - cross)
    reason = f"no known place for {left[0]}" if left else "no q and k weights where this type has them"
    require(layers and not left, f"{model_type}: {reason}: {advice(queries)}")
    return layers, [*dict.fromkeys(left_out)]  # each once


def find_rows(part, queries):
    """Returns the rows of the table that match tensors of a part, and in words which stacks are not in these files."""
    # the table has to know what a part is, unless it has no queries: then it may be anything
    is_known = part.rows or (part.name and queries.isdisjoint(part.names))
    reason = f"model_type {part.model_type!r} is not known" if part.model_type else "no config.json says its type"
    require(is_known, f"{reason}: {advice(part.names & queries)}")

    rows = [row for row in part.rows if row.match(part.names)]
    stacks = {row.stack for row in rows}
    paths = " and ".join(row.path for row in rows)
    require(len(stacks) == len(rows), f"{part.model_type}: layers under two kinds of names: {paths}")

    if part.name:  # a part may use one of its two stacks
        return rows, [] if rows or not part.rows else [f"no attention of the {part.name} is in these files"]
    # a T5 may be saved without its decoder. Other stacks need not be there, as the adapter of a Wav2Vec2-BERT
    sides = {row.stack for row in part.rows} & {"encoder", "decoder"}
    return rows, [f"the {side} is not in these files" for side in sorted(sides - stacks)]


def layers_of_stack(stack, row, names, config, shapes):
    """
    Returns the layers of a stack, exactly those of the config; the names of the tensors in its other layers; and in
    words which layers are left out. Example: the row layers.{i}.self_attn with q_proj and k_proj
        model.layers.0.self_attn.q_proj.weight    is a weight of layer 0
        model.layers.0.mlp.up_proj.weight         is not
        model.layers.1.mamba.q_proj.weight        lies in another layer, if layer 1 has no attention
    """
    # one stack has one prefix. Under another one lies another model, as a teacher beside its student
    matches = row.match(names)
    prefixes = sorted({match["prefix"] for match in matches})
    require(len(prefixes) == 1, f"{row.model_type}: attention layers under each of {' and '.join(prefixes)!r}")

    # sort the weights by layer: {0: {"q_proj": "model.layers.0.self_attn.q_proj.weight", "k_proj": ...}, 1: ...}
    weights_of = defaultdict(dict)
    for match in matches:
        name = weights_of[int(match["i"])].setdefault(match["weight"], match[0])
        require(name == match[0], f"{name} and {match[0]} have the same number: remove one of them")

    # config and files must agree: each layer to be scored is whole, and no layer comes after the last one
    numbers, end, left_out = count_layers(row, config, weights_of)
    for weight in row.weights:
        missing = [str(i) for i in numbers if weight not in weights_of[i]]
        require(not missing, f"{weight} of layer {', '.join(missing):.60} missing: get all files, and merge adapters; "
                "if these layers have no attention, say so by layer_types in config.json")
    beyond = [i for i in weights_of if i >= end]
    require(not beyond, f"{end} layers by config.json, and there are weights of layer {str(beyond)[1:-1]:.60} as well")

    # make the layers, and try on tensors without data whether heads of these sizes can be cut from these shapes
    layers = []
    for i in numbers:
        tensors = tuple(weights_of[i][weight] for weight in row.weights)
        sizes = read_sizes(row, config, i)
        require(sizes.n_head, f"{row.model_type}: config.json has no number of heads")
        layer = Layer(stack, mask_is_causal(row, config), i, tensors, row.form, sizes)
        layer.heads({name: torch.empty(shapes[name], device="meta") for name in tensors})
        layers.append(layer)

    # what lies in the other layers is not scored, whatever it is called
    start = matches[0].string[: matches[0].start("i")]  # all layers are called so, before their number: model.layers.
    others = tuple(f"{start}{i}." for i in range(end) if i not in numbers)
    return layers, {name for name in names if name.startswith(others)}, left_out


def count_layers(row, config, weights_of):
    """
    Returns which layers of a stack we score, the number after the last one, and in words what is left out.
    weights_of: {layer: its weights}. Example: layer_types = ["linear_attention", "full_attention"] * 2
        -> [1, 3], 4, ["2 of 4 layers, which have no self-attention with a softmax"]
    """
    n_layer = read_size("n_layer", row, config) or len(pick(config, list, *KINDS_OF_LAYERS, default=[]))
    require(n_layer, f"{row.model_type}: config.json has no number of layers")

    # which have softmax attention? the config says so, or else we believe the tensors
    whole = [i for i in sorted(weights_of) if i < n_layer and len(weights_of[i]) == len(row.weights)]
    softmax, lacking = softmax_layers(config, n_layer), "self-attention with a softmax"
    if softmax is None:
        softmax, lacking = whole, "queries and keys"
    left_out = []
    if len(softmax) < n_layer:
        left_out.append(f"{n_layer - len(softmax)} of {n_layer} layers, which have no {lacking}")
    # a layer has q and k, and by the config it has no attention: one of the two is wrong, and we cannot know which
    unexpected = [i for i in whole if i not in softmax]
    require(not unexpected, f"layer {str(unexpected)[1:-1]:.60} has weights of q and k, and no attention by its kind: "
            "correct the kinds in config.json")

    # Gemma 3n: the last layers take the keys of earlier ones, so they have no W_qk of their own
    n_shared = read_size("n_shared", row, config) or 0
    if n_shared:
        left_out.append(f"{n_shared} of {n_layer} layers, which take the keys of earlier ones")
    scored = softmax[: len(softmax) - n_shared]
    require(scored, f"{row.model_type}: by its config.json no layer has queries and keys of its own")

    # DeepSeek-V3: layers after the last one predict further tokens
    if max(weights_of) >= n_layer:
        left_out.append("layers that predict tokens")
    n_predicting = pick(config, int, "num_nextn_predict_layers", default=0)
    return scored, n_layer + n_predicting, left_out


def advice(queries):
    """Returns what to do with a model whose layers are not known. queries: the names that look like queries."""
    # the first word that is a number becomes {i}: h.0.conv1.q and h.1.conv1.q -> h.{i}.conv1.q
    patterns = {re.sub(r"(^|\.)\d+(?=\.)", r"\1{i}", name, count=1) for name in queries if not CROSS.search(name)}
    return (f"its queries may be {', '.join(sorted(patterns)[:6]) or 'anywhere'}: score its layers in Python with "
            "score_layers, or add a line to layouts.csv (data/pretrained/README.md)")
