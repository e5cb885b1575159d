"""
Symmetry and directionality of W_qk = W_q W_k^T, and the scores of pretrained models.

    python analyze.py --hf bert-base gpt2 --csv scores.csv    # names of data/published/models.csv, Hub ids, folders

In Python: score_model("gpt2"), score_layers of a model of your own, or scores(q.weight.T, k.weight.T) of two nn.Linear.

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. If columns dominate, directionality is below 0.
W_qk is made of the raw weights, without biases, rotary positions, scaling, and norms of queries and keys.
"""

import argparse
import math
import sys
from collections import namedtuple
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

# So that analyze.data is the folder beside this file, in any project. analyze.data.x and data.x are then two modules.
sys.modules.setdefault("analyze", sys.modules[__name__])  # if this file is run as a script
__path__ = [str(Path(__file__).resolve().parent)]
from analyze.data import keep_memory
from analyze.data.names import CheckpointError, printable, require
from analyze.data.wqk import (draw_norms, energy_of_terms, head_products, in_float64, limit_of_symmetry,
                              multiply, parts_of_symmetry)

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations


def symmetry(m):
    """
    s = tr(MM) / |M|_F^2 of m (..., n, n): 1 if M = M^T, -1 if M = -M^T, 1/n on average if all entries are random.

    Eq. (15) without its leading 2, as in the paper's tables. nan for a zero matrix. float16 overflows: use m.float().
    """
    # Every matrix is the sum of a symmetric and a skew part, M = M_s + M_n:
    #     M_s = (M + M^T) / 2    i attends to j as j attends to i
    #     M_n = (M - M^T) / 2    what i adds to its attention to j, j takes from its attention to i
    # The parts are orthogonal, so |M|^2 = |M_s|^2 + |M_n|^2. The score compares the two:
    #     s = (|M_s|^2 - |M_n|^2) / |M|^2,    because |M_s|^2 - |M_n|^2 = sum_ij M_ij M_ji = tr(MM)
    trace = (m * m.mT).sum((-2, -1))
    return trace / m.square().sum((-2, -1))


def directionality(m, gamma=GAMMA):
    """
    d = (rows - columns) / (rows + columns) of m (..., n, n): 1 if only rows stand out, -1 if only columns, 0 if none.

    rows is the excess of the row norms: a norm counts by how much it exceeds mean + gamma * standard deviation of all
    row norms, or not at all. columns is the same of the columns. The published tables hold this variant. nan if n = 1.
    """
    # A row of W_qk belongs to one dimension of the query token, a column to one dimension of the key token. The paper
    # argues: under a causal mask a token is the key of all later tokens, so a few columns grow long, and d < 0.
    rows = excess(m.norm(dim=-1), gamma)  # (...)
    columns = excess(m.norm(dim=-2), gamma)  # (...)
    return balance(rows, columns)


def directionality_eq17(m, gamma=GAMMA):
    """The same as printed in the paper, Eq. (17)-(19): a norm above the threshold counts as a whole."""
    # Its sign can be wrong. A very long column raises the threshold of columns, so it is the only one above. Of the
    # rows about 2 in 100 are above theirs by chance, and together they are more, though each is far shorter.
    return balance(outliers(m.norm(dim=-1), gamma), outliers(m.norm(dim=-2), gamma))


def excess(norms, gamma):
    """(..., n) -> (...): by how much norms exceed the threshold, summed. As in the tables, std divides by n - 1."""
    # A norm that is barely above adds next to nothing, so one very long column outweighs many of those.
    threshold = find_threshold(norms, gamma, correction=1)
    return (norms - threshold).clamp_min(0).sum(-1)


def outliers(norms, gamma):
    """(..., n) -> (...): the sum of the norms above the threshold, Eq. (18), (19)."""
    threshold = find_threshold(norms, gamma, correction=0)
    return (norms * (norms > threshold)).sum(-1)


def find_threshold(norms, gamma, correction):
    """(..., n) -> (..., 1): mean + gamma std; std divides by n - correction. inf if all norms are equal."""
    mean = norms.mean(-1, keepdim=True)
    std = norms.std(-1, correction=correction, keepdim=True)
    is_rounding = std < 1e-5 * mean  # as of an orthogonal W_qk, whose norms are all 1
    return (mean + gamma * std).masked_fill(is_rounding, math.inf)


def balance(rows, columns):
    """(rows - columns) / (rows + columns), or 0 if nothing stands out on either side."""
    return torch.where(rows + columns == 0, 0.0, (rows - columns) / (rows + columns))


# ---- the same from the factors W_q and W_k -----------------------------------------------------------------------

# The symmetry (...), the norms of rows and of columns (..., C), and a Whole or a Factored of data/wqk.py.
Measured = namedtuple("Measured", "symmetry rows columns product")
# {name: a function of a Measured and of gamma, whatever the size of M}. A new score is a line with a name of its own.
SCORES = {
    "symmetry": lambda m, gamma: m.symmetry,
    "directionality": lambda m, gamma: balance(excess(m.rows, gamma), excess(m.columns, gamma)),
    "directionality_eq17": lambda m, gamma: balance(outliers(m.rows, gamma), outliers(m.columns, gamma)),
}
Scores = namedtuple("Scores", SCORES)


@torch.no_grad()
def scores(w_q, w_k, gamma=GAMMA):
    """
    The Scores (...) of W_qk = W_q W_k^T from W_q and W_k (..., C, r), tensors or arrays, as float64. nan for a zero
    matrix, and directionality if C = 1. Raises ValueError if they differ in C or r, as with grouped keys: score_layers.
    """
    w_q, w_k = torch.as_tensor(w_q), torch.as_tensor(w_k)
    if w_q.shape[-2:] != w_k.shape[-2:]:
        raise ValueError(f"expected W_q and W_k of the same (C, r), got {tuple(w_q.shape)} and {tuple(w_k.shape)}: "
                         "for grouped keys use score_layers")
    measured = measure(w_q, w_k)
    return Scores(**{name: function(measured, gamma) for name, function in SCORES.items()})


def wqk(w_q, w_k):
    """W_qk = W_q W_k^T, Eq. (1): (..., C, r), (..., C, r) -> (..., C, C). Of a layer: Eq. (S20)."""
    return w_q @ w_k.mT


def measure(w_q, w_k):
    """Returns the Measured of W_q and W_k (..., C, r)."""
    product = multiply(w_q, w_k)  # W_q and W_k scaled, so that nothing overflows; scores do not depend on it
    rows, columns = product.row_norms(), product.column_norms()
    energy = rows.square().sum(-1)  # |W_qk|^2
    is_zero = energy <= 1e-26 * energy_of_terms(product.w_q, product.w_k)  # all that is left is rounding
    # Of a zero matrix nothing stands out, and d would be 0. But it has no scores at all.
    rows, columns = [norms.masked_fill(is_zero[..., None], math.nan) for norms in (rows, columns)]
    return Measured((product.trace() / energy).masked_fill(is_zero, math.nan), rows, columns, product)


# ---- a layer and its heads ---------------------------------------------------------------------------------------
#
# Shapes: C = n_embd, H query heads, Hkv key heads, D the size of a head, r = D for a head and Hkv D for a layer.


@torch.no_grad()
def layer_factors(w_q, w_k):
    """
    The heads w_q (H, C, D) and w_k (Hkv, C, D) of a layer -> W_q and W_k (C, Hkv D), such that W_q W_k^T is the layer's
    W_qk = sum_h W_q,h W_k,g(h)^T, Eq. (S20). g(h) = h // (H / Hkv) is the key head of query head h.
    """
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


def split_heads(w, n_head):
    """(C, H D) -> (H, C, D): head h is columns h D to (h + 1) D of W_q or W_k."""
    return w.unflatten(-1, (n_head, -1)).movedim(-2, 0)


def score_row(w_q, w_k, gamma, head=None):
    """The numbers of one W_qk for a table: {name: a number}. head: its number; None: a layer."""
    measured = measure(w_q, w_k)
    row = {name: function(measured, gamma).item() for name, function in SCORES.items()}
    row["symmetry_chance"] = measured.product.mean_symmetry().item()
    if head is None:
        if len(w_q) <= 1024 and math.isfinite(row["symmetry"]):  # of wider layers it would take longer than all else
            row["symmetry_95"] = limit_of_symmetry(measured.product)
        # Of 100 random matrices 95 have a directionality between minus this and this. It is drawn, so it is within a
        # tenth of the true one. Row norms and column norms are drawn alike, and each is compared with every other.
        rows, columns = excess(draw_norms(measured.product), gamma).chunk(2)  # (MATRICES / 2,)
        row["directionality_95"] = balance(rows[:, None], columns).abs().flatten().quantile(0.95).item()
    return row | dict(head=head, n=w_q.shape[0], r=w_q.shape[1])


# ---- a model -----------------------------------------------------------------------------------------------------


class ScoredModel(NamedTuple):
    """What score_model and score_layers return. Printed, it is a table of layers."""

    table: Any  # a DataFrame: a row for each layer, and with per_head for each head (tables.COLUMNS)
    note: str  # how much was read, and what was left out
    readers: dict  # {(stack, layer): a function that reads its heads w_q (H, C, D) and w_k (Hkv, C, D)}

    def wqk(self, layer, stack=""):
        """W_qk of a layer, (C, C), in float64. It is read again, so that no model has to fit into the memory."""
        require((stack, layer) in self.readers, f"no layer {layer} of stack {stack!r} to read: see the table")
        w_q, w_k = layer_factors(*self.readers[stack, layer]())
        return wqk(in_float64(w_q), in_float64(w_k))

    def __repr__(self):
        from analyze.data.pretrained import tables

        return tables.layer_table(self.table)


def score_layers(layers, heads=(1, 1), gamma=GAMMA, per_head=False):
    """
    Score the layers of a model of your own. layers: a list of pairs, each two nn.Linear (no subclass, which may have an
    adapter), or W_q (C, H D) and W_k (C, Hkv D). heads: H and Hkv, needed if they differ, and for per_head. Raises
    ValueError if they do not fit.

        >>> score_layers([(block.wq, block.wk) for block in model.blocks], heads=(32, 8))
    """
    from analyze.data.pretrained import tables

    rows = []
    for i, (q, k) in enumerate(layers):
        matrices = [w.weight.T if type(w) is torch.nn.Linear else torch.as_tensor(w) for w in (q, k)]
        w_q, w_k = [split_heads(w, n) for w, n in zip(matrices, heads)]  # (H, C, D), (Hkv, C, D)
        if w_q.shape[1:] != w_k.shape[1:]:
            raise ValueError(f"layer {i}: expected W_q and W_k of (C, H D) and (C, Hkv D), and heads = (H, Hkv)")
        rows += [dict(layer=i, stack="") | row for row in rows_of_layer(w_q, w_k, gamma, per_head, f"layer {i}")]
    common = dict(model="layers", source="", params=0, gamma=gamma)
    return ScoredModel(tables.score_table(rows, common, SCORES), "in memory", {})


@torch.no_grad()
def score_model(source, gamma=GAMMA, per_head=False, device="cpu"):
    """
    Score every layer of a model: a name of data/published/models.csv, a Hub id, a folder, a file, or a module in
    memory that has a config, as those of transformers. Raises CheckpointError, in one line, if it cannot be read.

        >>> score_model("gpt2").wqk(layer=3)  # (C, C)
    """
    from analyze.data.pretrained import tables  # here: a training needs the scores alone
    from analyze.data.pretrained.checkpoint import open_checkpoint
    from analyze.data.pretrained.layouts import find_stacks

    name = type(source).__name__ if isinstance(source, torch.nn.Module) else str(source)
    rows, readers = [], {}
    # Whatever the user has set, new tensors are on the CPU, and nothing is rounded to fewer bits.
    with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        opened = open_checkpoint(source)
        shapes = {key: tuple(tensor.shape) for key, tensor in opened.tensors.items()}
        stacks, left_out = find_stacks(opened.config, shapes)  # where q and k are
        layers = [(stack, layer) for stack in stacks for layer in stack.layers]
        # A model may be larger than the memory. So only q and k are read, and only a few layers ahead.
        stream = opened.stream([layer.names for _, layer in layers])
        bar = tqdm(stream, printable(name), len(layers), leave=False, unit="layer", disable=None)
        for (stack, layer), tensors in zip(layers, bar):
            pair = [heads.to(device) for heads in layer.heads(tensors)]  # (H, C, D), (Hkv, C, D)
            common = dict(layer=layer.index, stack=stack.name, causal=stack.causal)
            rows += [common | row for row in rows_of_layer(*pair, gamma, per_head, layer.names[0])]
            readers[stack.name, layer.index] = partial(layer.read, opened)
    common = dict(model=printable(name), source=tables.known_as(source), params=opened.n_params, gamma=gamma)
    note = "; left out: ".join(filter(None, [opened.note, "; ".join(left_out)]))
    return ScoredModel(tables.score_table(rows, common, SCORES), note, readers)


@torch.no_grad()
def rows_of_layer(w_q, w_k, gamma, per_head, name):
    """The numbers of a layer for a table, and with per_head of each head: a list. w_q (H, C, D), w_k (Hkv, C, D)."""
    require(0 <= gamma < math.inf, f"gamma = {gamma}, expected a number of standard deviations")
    rows = [score_row(*layer_factors(w_q, w_k), gamma)]
    require(not math.isnan(rows[0]["symmetry"]), f"{name}: W_qk of this layer is zero or NaN")
    if per_head:
        w_k = w_k.repeat_interleave(len(w_q) // len(w_k), 0)  # (H, C, D), a key head for every query head
        rows[0] |= parts_of_symmetry(*head_products(w_q, w_k))
        rows += [score_row(w_q[h], w_k[h], gamma, head=h) for h in range(len(w_q))]
    return rows


# ---- the command -------------------------------------------------------------------------------------------------


def read_command(argv):
    """What the words of a command line ask for."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hf", nargs="+", action="extend", required=True, metavar="NAME", help="names, ids or paths")
    parser.add_argument("--csv", metavar="FILE", help="add the scores to FILE. A model that it has is not scored "
                        "again, even if it has changed")
    parser.add_argument("--plot", metavar="FILE.png", help="draw scores by layer; of more than 4 models, by size")
    parser.add_argument("--per_head", action="store_true", help="score every head, and not only every layer")
    parser.add_argument("--matrices", metavar="FILE.png", help="draw W_qk of the last layer of each model")
    parser.add_argument("--gamma", type=float, default=GAMMA, help="standard deviations from which a norm counts (2)")
    args = parser.parse_args(argv)
    for path in filter(None, (args.plot, args.matrices)):
        if not path.endswith((".png", ".pdf", ".svg", ".jpg")):  # or it would be known only after the work
            parser.error(f"{path} does not end in .png, .pdf, .svg or .jpg")
    return args


def report_models(args):
    """Scores the models that --csv does not have yet, prints and draws all. Returns whether a model was not scored."""
    from analyze.data.pretrained import tables

    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = tables.read_scores(args.csv, SCORES)
    shown, scored, has_failed = {}, [], False  # the table of each source; what has matrices to draw
    for name in args.hf:
        try:
            source = tables.known_as(name)
            if source in shown:  # it was named twice
                continue
            table = tables.rows_of(known, name, args).assign(model=printable(name))
            note = f"is already in {args.csv}: delete its rows to score it again"
            if table.empty or args.matrices:  # W_qk itself is not in the CSV
                model = score_model(name, args.gamma, args.per_head, device)
                if args.csv and table.empty:  # at once, so that nothing is lost if this is stopped
                    tables.add_scores(args.csv, model.table)
                scored.append(model)
                table, note = model.table, model.note
            shown[source] = table
            print(printable(f"{name}: {note}"), file=sys.stderr)
        except CheckpointError as e:  # it is named, and the others go on
            print(printable(f"analyze.py: {name}: {e}"), file=sys.stderr)
            has_failed = True
    shown = [*shown.values()]
    if shown:
        tables.show_scores(shown, args)
    if shown and (args.plot or args.matrices):
        from analyze.data.pretrained import pictures  # and matplotlib with it

        pictures.draw(shown, scored, args)
    return has_failed


def main(argv):
    args = read_command(argv)
    try:
        sys.exit(report_models(args))
    except (CheckpointError, OSError) as e:  # OSError: a file cannot be read or written
        sys.exit(f"analyze.py: {e}")


if __name__ == "__main__":
    keep_memory()
    main(sys.argv[1:])
