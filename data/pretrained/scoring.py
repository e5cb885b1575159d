"""
Scores every layer of a model, and with per_head every head: score_model and score_layers of analyze.py.

Shapes: C = n_embd, H query heads, Hkv key heads, D the size of a head, r = D for a head and Hkv D for a layer.
"""

import functools
import inspect
import math
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import analyze
from analyze import (GAMMA, SEED, balance, excess, heads_of, in_float64, limit_of_symmetry, measure_wqk,
                     parts_of_symmetry)

from .. import printable
from . import CheckpointError, only_checkpoint_errors, require, tables  # the first is analyze.CheckpointError, too
from .checkpoint import Checkpoint, in_memory, open_checkpoint, read_float
from .layouts import find_stacks

DIRECTIONS = 2048  # so many random directions are drawn for the norms of a matrix
MATRICES = 512  # and so many matrices are made of these norms


class ScoredModel(NamedTuple):
    """What score_model and score_layers return. Printed, it is a table of layers."""

    table: Any  # a DataFrame: a row for each layer, and with per_head for each head (tables.COLUMNS)
    note: str  # how much was read, and what was left out
    checkpoint: Checkpoint | None = None  # None: there is nothing to read
    layers: dict = {}  # {(stack, layer): where it is in the checkpoint, a Layer}

    @analyze.unrounded()
    def wqk(self, layer, stack="", head=None):
        """W_qk of a layer or a head, (C, C), in float64. It is read again, so that no model has to fit into memory."""
        require((stack, layer) in self.layers, f"no layer {layer} of stack {stack!r} to read: see the table")
        where = self.layers[stack, layer]
        [tensors] = self.checkpoint.stream([where.names])
        w_q, w_k = where.heads(tensors)  # (H, C, D), (Hkv, C, D)
        if head is not None:
            require(0 <= head < len(w_q), f"no head {head}: layer {layer} has heads 0 to {len(w_q) - 1}")
            w_q, w_k = w_q[[head]], w_k[[head * len(w_k) // len(w_q)]]  # itself and its key head, g(h) below
        w_q, w_k = layer_factors(w_q, w_k)
        return analyze.wqk(in_float64(w_q), in_float64(w_k))

    def __repr__(self):
        return tables.layer_table(self.table)


def score_layers(layers, heads=(1, 1), gamma=GAMMA, per_head=False):
    """
    Score the layers of a model of your own. layers: a list of pairs, each two nn.Linear that multiply by their weights
    alone, or W_q (C, H D) and W_k (C, Hkv D). heads: H and Hkv, needed if they differ, and for per_head. Raises
    ValueError if they do not fit.

        >>> score_layers([(block.wq, block.wk) for block in model.blocks], heads=(32, 8))
    """
    rows = []
    for i, pair in enumerate(layers):
        try:
            w_q, w_k = heads_of_pair(pair, heads)
        except CheckpointError as e:
            raise ValueError(f"layer {i}: {e}") from e
        rows += rows_of_layer(w_q, w_k, gamma, per_head, f"layer {i}", layer=i, stack="")
    return ScoredModel(tables.score_table(rows, model="layers", source="", params=0, gamma=gamma), "in memory")


@only_checkpoint_errors("this pair")
def heads_of_pair(pair, heads):
    """Returns w_q (H, C, D) and w_k (Hkv, C, D) of a pair as score_layers takes it. Raises CheckpointError."""
    matrices = [matrix_of(w) for w in pair]
    try:
        w_q, w_k = [heads_of(w, n) for w, n in zip(matrices, heads, strict=True)]
        fits = w_q.shape[1:] == w_k.shape[1:] and len(w_q) % len(w_k) == 0
    except (RuntimeError, TypeError, ValueError):
        fits = False
    shapes = ", ".join(str(tuple(w.shape)) for w in matrices)
    require(fits, "expected W_q and W_k of (C, H D) and (C, Hkv D), and heads = (H, Hkv), got "
            f"{shapes:.90} and heads = {heads}; a list of queries and one of keys become pairs by zip(queries, keys)")
    return w_q, w_k


def matrix_of(w):
    """Returns W (C, H D) of an nn.Linear or a matrix. Raises CheckpointError if it may not be what makes q or k."""
    if isinstance(w, torch.nn.Module):
        require(multiplies_by_weight(w), f"this {type(w).__name__} may not multiply by its weight alone (an adapter, a "
                "mask, a scale, a hook): give matrices, .weight.T of the merged model")
        w = w.weight.T  # nn.Linear stores (out, in), and matrices come as (in, out)
    w = read_float("a matrix", in_memory(torch.as_tensor(w)))
    require(w.ndim == 2, f"a tensor {tuple(w.shape)}, expected (C, H D): (H, C, D), as in TransformerLens, becomes it "
            "by .movedim(0, 1).flatten(1), and (C, H, D), as in Flax, by .reshape(C, -1)")
    return w


def multiplies_by_weight(module):
    """Returns whether a module is a plain nn.Linear, whose .weight is all that it multiplies by."""
    # LoRA, pruning, weight_norm and quantisation add tensors, compute .weight in each forward, or add to its output
    names = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    is_linear = type(module) is torch.nn.Linear and "weight" in module._parameters and names <= {"weight", "bias"}
    # subtle: accelerate has its own forward, which moves the data and then calls the one that was there before
    forward = inspect.unwrap(module.forward) if hasattr(module, "_hf_hook") else module.forward
    is_plain = forward == torch.nn.Linear.forward.__get__(module)
    return is_linear and is_plain and not module._forward_hooks and not module._forward_pre_hooks


def score_model(source, gamma=GAMMA, per_head=False, device="cpu"):
    """
    Score every layer of a model: a name of data/published/models.csv, a Hub id, a folder, a file, or a module in
    memory that has a config, as those of transformers. Raises CheckpointError, in one line, if it cannot be read.

        >>> score_model("gpt2").wqk(layer=3)  # (C, C)
    """
    name = printable(type(source).__name__ if isinstance(source, torch.nn.Module) else str(source))
    rows = []
    with torch.device("cpu"), analyze.unrounded():  # new tensors are on the CPU, whatever the user has set
        # 1) find out where q and k are, from the config and the names and shapes of tensors
        opened = open_checkpoint(source)
        shapes = {key: tensor.shape for key, tensor in opened.tensors.items()}
        layers, left_out = find_stacks(opened.config, shapes)

        # 2) read these alone, and only a few layers ahead: a model may be larger than the memory
        stream = opened.stream([layer.names for layer in layers])
        bar = tqdm(stream, name, len(layers), leave=False, unit="layer", disable=None)
        for layer, tensors in zip(layers, bar):
            w_q, w_k = [heads.to(device) for heads in layer.heads(tensors)]  # (H, C, D), (Hkv, C, D)
            rows += rows_of_layer(w_q, w_k, gamma, per_head, layer.names[0],
                                  layer=layer.index, stack=layer.stack, causal=layer.causal)

    source = tables.known_as(str(source)) if opened.folder else ""
    table = tables.score_table(rows, model=name, source=source, params=opened.n_params, gamma=gamma)
    note = "; left out: ".join(filter(None, [opened.note, "; ".join(opened.left_out + left_out)]))
    return ScoredModel(table, note, opened, {(layer.stack, layer.index): layer for layer in layers})


@torch.no_grad()
@analyze.unrounded()
def rows_of_layer(w_q, w_k, gamma, per_head, name, **place):
    """The row of a layer for a table, and with per_head of each head: a list. place: more cells, the same in all."""
    require(0 <= gamma < math.inf, f"gamma = {gamma}, expected a number of standard deviations")
    rows = [score_row(*layer_factors(w_q, w_k), gamma)]
    require(not math.isnan(rows[0]["symmetry"]), f"{name}: W_qk of this layer is zero or NaN")
    if per_head:
        w_k = w_k.repeat_interleave(len(w_q) // len(w_k), 0)  # (H, C, D), a key head for every query head
        rows[0] |= parts_of_symmetry(w_q, w_k)
        rows += [score_row(w_q[h], w_k[h], gamma, head=h) for h in range(len(w_q))]
    return [row | place for row in rows]


def layer_factors(w_q, w_k):
    """The heads w_q (H, C, D), w_k (Hkv, C, D) of a layer -> W_q, W_k (C, Hkv D), such that W_q W_k^T is its W_qk."""
    # W_qk = sum_h W_q,h W_k,g(h)^T, Eq. (S20). g(h) = h // (H / Hkv) is the key head of query head h.
    # Six query heads and two key heads:      q0 q1 q2  q3 q4 q5
    #                                          \  |  /   \  |  /
    #                                             k0        k1
    # q0 k0^T + q1 k0^T + q2 k0^T = (q0 + q1 + q2) k0^T, so the queries of a group are added before the product.
    groups = w_q.unflatten(0, (len(w_k), -1)).mT  # (Hkv, H / Hkv, D, C)
    if groups.shape[1] > 1:
        # In float64, so that heads that nearly cancel lose no digit, and large ones do not overflow.
        w_q, w_k = in_float64(groups).sum(1).mT, in_float64(w_k)  # (Hkv, C, D) each
    # Heads side by side, (C, Hkv D). If they are views of a Linear weight (Hkv D, C), no number is copied.
    return w_q.mT.flatten(0, 1).mT, w_k.mT.flatten(0, 1).mT


def score_row(w_q, w_k, gamma, head=None):
    """The numbers of one W_qk for a table: {name: a number}. head: its number; None: a layer."""
    measured = measure_wqk(w_q, w_k)
    row = {name: function(measured, gamma).item() for name, function in analyze.SCORES.items()}
    row["symmetry_chance"] = measured.product.mean_symmetry().item()
    if head is None:
        row["directionality_95"] = limit_of_directionality(measured.product, gamma)
        if len(w_q) <= 1024 and math.isfinite(row["symmetry"]):  # wider layers would take longer than all else
            row["symmetry_95"] = limit_of_symmetry(measured.product)
    return row | dict(head=head, n=w_q.shape[0], r=w_q.shape[1])


@functools.lru_cache(maxsize=1)  # all layers of a model have the same size
def draw_directions(C, device):
    """Returns g ~ N(0, I), (DIRECTIONS, C), and which of them are the rows of matrices, (MATRICES, C)."""
    generator = torch.Generator().manual_seed(SEED)
    g = torch.randn(DIRECTIONS, C, generator=generator)
    chosen = torch.randint(DIRECTIONS, (MATRICES, C), generator=generator)
    return g.to(device), chosen.to(device)


def limit_of_directionality(product, gamma):
    """Returns d such that 95 of 100 random matrices with the singular values of M (C, C) are between -d and d."""
    # Turn both sides of M = U S V^T at random. Then rows of U S and of V S are random directions times S. If a few
    # singular values are large, their norms differ much, and directionality is far from 0 by chance.
    # A row of U S is as long as u M for a random direction u = g / |g|, g ~ N(0, I). So draw some, and rows of them.
    g, chosen = draw_directions(len(product.w_q), product.w_q.device)
    norms = product.stretch(g)[chosen]  # (MATRICES, C)
    # Row norms and column norms are drawn alike: half of them stand for rows. d is then right to within a tenth.
    rows, columns = excess(norms, gamma).chunk(2)  # (MATRICES / 2,) each: all pairs of them are compared
    return balance(rows[:, None], columns).abs().flatten().quantile(0.95).item()
