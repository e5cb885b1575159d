"""
Symmetry and directionality of W_qk = W_q W_k^T, in pretrained models and in runs of train.py.

    python analyze.py --hf bert-base gpt2                     # names of data/pretrained/models.csv, Hub ids, or folders
    python analyze.py --hf llama3-8b --per_head --csv heads.csv --plot llama.png
    python analyze.py --hf EleutherAI/pythia-160m --revisions 'step*' --limit 20 --csv pythia.csv --plot pythia.png
    python analyze.py --hf out/tiny out/tiny_decoder --revisions 'ckpt-*' --matrices wqk.gif    # of train.py --keep=99
    python analyze.py --suite ettin --csv ettin.csv --plot ettin.png    # models that differ in the objective alone
    python analyze.py --paper --offline --plot paper.png      # the published scores, corrected; needs no network
    python analyze.py --runs out/tiny out/tiny_decoder --plot runs.png

In a notebook: score_model("gpt2"), or scores(q.weight.T, k.weight.T) of two Linear layers in memory.

The file begins with the two scores, as formulas of the matrix W_qk. Then come the same scores computed from W_q and W_k
alone, which is faster; then pretrained models, runs of train.py, and the command line.

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Causal training -> columns dominate -> directionality < 0.
Biases, rotary positions, scaling, and norms of queries and keys are not part of W_qk: only the raw weights are.

Letters of shapes: C = n_embd, H query heads, Hkv key heads, D the size of a head, L layers. W_q and W_k are (C, r):
r is D for one head, and Hkv D for a layer, because queries that share a key head can be added (layout_forms.py).
"""

import math
import os
import signal
import sys
from typing import NamedTuple

import numpy as np
import torch
from pandas import DataFrame
from torch import Tensor
from tqdm import tqdm

from data.pretrained import suites
from data.pretrained.files import CheckpointError, printable
from data.pretrained.layout_forms import layer_factors, published_factors, side_by_side
from data.pretrained.layouts import find_stacks, missing_stacks
from data.pretrained.sources import find_source, known_models, open_checkpoint
from data.results import compare, figures, report, runs, tables

WHOLE_GRAM = 128  # Gram matrices of at most so many columns are made whole
GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations
CORNER = 128  # pictures show this many rows and columns of a W_qk


# ---- the two scores ----------------------------------------------------------------------------------------------
#
# Attention compares a token x_i (the query) with a token x_j (the key) by x_i^T W_qk x_j.


def wqk(w_q, w_k):
    """W_qk = W_q W_k^T, Eq. (1): (..., C, r), (..., C, r) -> (..., C, C). With all heads side by side, Eq. (S20)."""
    return w_q @ w_k.mT


def symmetry(m):
    """
    s = tr(MM) / |M|_F^2 of m (..., n, n): 1 if M = M^T, -1 if M = -M^T, 1/n on average if M is random.

    This is Eq. (15) without its leading 2, as in the tables of the paper and in Prop. S1.17: with the 2 a symmetric
    matrix would have s = 2. nan for a zero matrix.
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
    row norms, or not at all. columns is the same of the columns. The published tables hold this variant.
    """
    # A row of W_qk belongs to one dimension of the query token, a column to one dimension of the key token. The paper
    # argues: under a causal mask a token is the key of all later tokens, so a few columns grow long, and d < 0.
    rows = excess(m.norm(dim=-1), gamma)  # (...), from the norms of the rows (..., n)
    columns = excess(m.norm(dim=-2), gamma)  # (...), from the norms of the columns
    return balance(rows, columns)


def directionality_eq17(m, gamma=GAMMA):
    """
    The same as printed in the paper, Eq. (17)-(19): a norm above the threshold counts as a whole.

    Its sign can be wrong. Let one column be very long. It raises the threshold of the columns, so it is the only one
    above. Of the rows about 2 in 100 are above their threshold by chance. Each is much shorter than that column, but
    counts as a whole too, and together they are more.
    """
    rows = outliers(m.norm(dim=-1), gamma)
    columns = outliers(m.norm(dim=-2), gamma)
    return balance(rows, columns)


def excess(norms, gamma):
    """(..., n) -> (...): by how much norms exceed the threshold, summed. (As in the tables, std divides by n - 1.)"""
    # A norm that is barely above adds next to nothing, so one very long column outweighs many of those.
    threshold = find_threshold(norms, gamma, correction=1)
    return (norms - threshold).clamp_min(0).sum(-1)


def outliers(norms, gamma):
    """(..., n) -> (...): the sum of the norms above the threshold, Eq. (18), (19)."""
    threshold = find_threshold(norms, gamma, correction=0)
    return torch.where(norms > threshold, norms, 0 * norms).sum(-1)  # 0 * norms and not 0, so that nan stays nan


def find_threshold(norms, gamma, correction):
    """(..., n) -> (..., 1): mean + gamma std, where std divides by n - correction. inf if all norms are the same."""
    mean, std = norms.mean(-1, keepdim=True), norms.std(-1, correction=correction, keepdim=True)
    is_rounding = std < 1e-5 * mean  # as of an orthogonal W_qk, whose norms are all 1
    return (mean + gamma * std).masked_fill(is_rounding, math.inf)


def balance(rows, columns):
    """(rows - columns) / (rows + columns), or 0 if nothing stands out on either side."""
    return torch.where(rows + columns == 0, 0.0, (rows - columns) / (rows + columns))


# ---- the same from the factors W_q and W_k -----------------------------------------------------------------------


class Scores(NamedTuple):
    """The scores of one W_qk, or tensors with the scores of many."""

    symmetry: Tensor
    directionality: Tensor
    directionality_eq17: Tensor


def scores(w_q, w_k, gamma=GAMMA, device=None):
    """
    The scores of W_qk = W_q W_k^T from W_q and W_k (..., C, r). nan for a zero matrix. Several W_q (H, C, r) may share
    one W_k (C, r). For two Linear layers that are not split into heads: scores(q.weight.T, k.weight.T).

    If r is small against C, the (C, C) matrix is never made: its trace and its norms follow from (r, r) products. This
    takes 3 to 5 C r^2 multiplications instead of C^2 r.

    device: where to compute, in float64. None: where W_q is.
    """
    if device is None and w_q.device.type == "mps":
        device = "cpu"  # the GPU of a Mac has no float64
    q, k = w_q.to(device).double(), w_k.to(device).double()
    C, r = q.shape[-2:]
    # If 3 r > C the plain way is faster, as measured at C = 768 and 4096.
    s, row_norms, column_norms = from_product(q, k) if 3 * r > C else from_gram(q, k)  # (...), (..., C), (..., C)
    # W_qk is a sum of r matrices, each a column of W_q times a column of W_k. If these are not related, their squared
    # norms add up. Of heads that cancel less is left, and a Gram matrix, which holds squares, has lost their digits.
    unrelated = (q.norm(dim=-2) * k.norm(dim=-2)).square().sum(-1)  # (...)
    left = row_norms.square().sum(-1) / unrelated
    if (left < 1e-10).any():
        s, row_norms, column_norms = from_product(q, k)
        left = row_norms.square().sum(-1) / unrelated
    is_zero = s.isnan() | (left < 1e-26)  # what is left is rounding: float64 has 16 digits, and these are squares
    d = balance(excess(row_norms, gamma), excess(column_norms, gamma))
    eq17 = balance(outliers(row_norms, gamma), outliers(column_norms, gamma))
    return Scores(*(score.masked_fill(is_zero, math.nan) for score in (s, d, eq17)))


def from_product(w_q, w_k):
    """-> the symmetry (...), row norms (..., C) and column norms (..., C) of W_q W_k^T, the plain way."""
    m = wqk(w_q, w_k)  # (..., C, C)
    return symmetry(m), m.norm(dim=-1), m.norm(dim=-2)


def from_gram(w_q, w_k):
    """The same without the (C, C) product."""
    rows = squared_norms(w_q, w_k).clamp_min(0)  # (..., C); rounding can make a square slightly negative
    columns = squared_norms(w_k, w_q).clamp_min(0)  # (..., C); the columns of M are the rows of M^T = W_k W_q^T
    return gram_trace(w_q, w_k) / rows.sum(-1), rows.sqrt(), columns.sqrt()


def gram_trace(w_q, w_k):
    """tr(MM) (...) of M = W_q W_k^T."""
    # A trace does not change when its factors move round in a circle. With the small matrix KQ = W_k^T W_q:
    #     tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(W_k^T W_q W_k^T W_q) = tr(KQ KQ)
    kq = w_k.mT @ w_q  # (..., r, r)
    return (kq * kq.mT).sum((-2, -1))


def squared_norms(x, y):
    """The squared norm of every row of x y^T: x, y (..., C, r) -> (..., C)."""
    # Row i of x y^T is x_i y^T, and its squared norm is x_i (y^T y) x_i^T. x is a transposed weight, so x.mT is
    # contiguous, and these lines read memory in its order.
    if x.shape[-1] <= WHOLE_GRAM:
        gram = y.mT @ y  # (..., r, r)
        return ((gram @ x.mT) * x.mT).sum(-2)
    # gram is symmetric, so half of it is enough. With half of the columns each, x y^T = x_1 y_1^T + x_2 y_2^T, and
    # |a + b|^2 = |a|^2 + |b|^2 + 2 a b.
    x_1, x_2 = x.tensor_split(2, -1)  # (..., C, r / 2)
    y_1, y_2 = y.tensor_split(2, -1)
    gram = y_2.mT @ y_1  # (..., r / 2, r / 2)
    cross = ((gram @ x_1.mT) * x_2.mT).sum(-2)  # (..., C)
    return squared_norms(x_1, y_1) + squared_norms(x_2, y_2) + 2 * cross


# ---- pretrained models -------------------------------------------------------------------------------------------


class ScoredModel(NamedTuple):
    """What score_model returns. Printed, it is a table of its layers."""

    table: DataFrame  # a row for each layer, and with per_head for each head; its columns are in tables.COLUMNS
    corner: np.ndarray  # the corner (CORNER, CORNER) of the W_qk of the last layer, for pictures
    note: str  # how much was read

    def __repr__(self):
        return tables.layer_table(self.table)


def score_model(source, gamma=GAMMA, per_head=False, device="cpu", published=False):
    """
    Score every layer of a pretrained model: a name of data/pretrained/models.csv, a Hub id, a folder or a file.

        >>> from analyze import score_model
        >>> model = score_model("out/tiny", per_head=True)
        >>> model                                           # a table of layers and heads
        >>> model.table.symmetry                            # of all of them

    published: the matrix that the authors' code scored. CheckpointError: it cannot be read, in one line.
    """
    source = str(source)
    rows = []
    with open_checkpoint(find_source(source)) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        stacks = find_stacks(checkpoint.config, shapes)  # which tensors are q and k, from names and shapes alone
        layers = [(stack, layer) for stack in stacks for layer in stack.layers]
        # A model may be larger than the memory. So only q and k are read, and only a few layers ahead.
        stream = checkpoint.stream([layer.names for _, layer in layers])
        stream = tqdm(stream, printable(source), len(layers), leave=False, unit="layer", disable=None)
        for (stack, layer), tensors in zip(layers, stream):
            w_q, w_k = layer.heads(tensors)  # (H, C, D), (Hkv, C, D), in the dtype of the checkpoint
            if published:
                found = [scores(*published_factors(layer, tensors, w_q, w_k), gamma, device)]
            else:
                found = score_layer(w_q, w_k, gamma, per_head, device)
            if not math.isfinite(found[0].symmetry):  # W_q W_k^T can be zero even if W_q and W_k are not
                raise CheckpointError(f"{layer.names[0]}: W_qk of this layer is zero")
            n_kv, n, D = w_k.shape
            for i, values in enumerate(found):
                head, r = (None, n_kv * D) if i == 0 else (i - 1, D)
                matrix = "published" if published else "wqk"
                rows.append([source, "", stack.name, stack.causal, checkpoint.n_params, layer.index, head, n, r, matrix,
                             gamma, *map(float, values)])
        # The corner of W_qk is the product of the first rows of both factors.
        corner = wqk(*layer_factors(w_q[:, :CORNER], w_k[:, :CORNER]))
        # The note goes to stderr: what was read, and what this checkpoint does not hold.
        notes = [bytes_read(checkpoint), checkpoint.note]
        notes += [f"no weights of its {missing}" for missing in missing_stacks(checkpoint.config, stacks)]
        return ScoredModel(tables.score_table(rows), corner.numpy(), ", ".join(filter(None, notes)))


def score_layer(w_q, w_k, gamma=GAMMA, per_head=False, device="cpu"):
    """
    The heads of a layer, w_q (H, C, D) and w_k (Hkv, C, D) -> a list of Scores: those of the layer, and with per_head
    those of every query head with its key head. Of a Linear layer the heads are split_heads(q.weight.T, n_head).
    """
    found = [scores(*layer_factors(w_q, w_k), gamma, device)]
    if per_head:
        found += head_scores(w_q, w_k, gamma, device)
    return found


def head_scores(w_q, w_k, gamma=GAMMA, device="cpu"):
    """w_q (H, C, D), w_k (Hkv, C, D) -> the Scores of each query head with its key head."""
    found = []
    group = len(w_q) // len(w_k)  # query heads that share a key head
    for queries, keys in zip(w_q.split(group), w_k):  # (H / Hkv, C, D), (C, D)
        of_heads = scores(queries, keys, gamma, device)  # (H / Hkv,) each; the Gram matrix of the keys is made once
        found += [Scores(*values) for values in zip(*of_heads)]
    return found


def bytes_read(checkpoint):
    size = tqdm.format_sizeof(checkpoint.size, "B")
    if checkpoint.bytes_read >= checkpoint.size:
        return f"read all of {size}"
    return f"read {tqdm.format_sizeof(checkpoint.bytes_read, 'B')} of {size}"


# ---- runs of train.py --------------------------------------------------------------------------------------------


def score_rows(step, n_head, new, previous):
    """
    The rows of scores.csv for one step of a run.

    new: the pair (W_q, W_k) of all layers, (L, C, C) each. previous: the same when scores were last written, or None.
    update_symmetry is the symmetry of the change of W_qk since then, which is the subject of Theorem 2.4.
    """
    if previous is None:
        previous = new  # no change yet, and the symmetry of a zero matrix is nan
    new_q, new_k = new
    previous_q, previous_k = previous
    rows = []
    for layer in range(len(new_q)):  # one layer at a time fits in the caches of a CPU
        w_q = split_heads(new_q[layer], n_head)  # (H, C, D)
        w_k = split_heads(new_k[layer], n_head)
        p_q = split_heads(previous_q[layer], n_head)
        p_k = split_heads(previous_k[layer], n_head)
        left, right = change_factors(w_q, w_k, p_q, p_k)  # (H, C, 2 D) each
        heads = [*scores(w_q, w_k), scores(left, right).symmetry]  # (H,) each
        left, right = side_by_side(left), side_by_side(right)  # (C, 2 C)
        whole = [*scores(new_q[layer], new_k[layer]), scores(left, right).symmetry]  # () each
        for head, values in [("", whole), *enumerate(zip(*heads))]:  # an empty cell for the head: the whole layer
            texts = [f"{value:.6f}" for value in values]
            rows.append(runs.RunScore(step, layer, head, *texts))
    return rows


def split_heads(w, n_head):
    """(C, C) -> (H, C, D). The W_qk of head h is the product of columns h D to (h + 1) D of W_q and of W_k."""
    return w.unflatten(-1, (n_head, -1)).movedim(-2, 0)


def change_factors(w_q, w_k, p_q, p_k):
    """From the new factors W_q, W_k and the previous P_q, P_k, (H, C, D), to two factors of the change, (H, C, 2 D)."""
    #     W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T = [W_q - P_q, P_q] [W_k, W_k - P_k]^T
    # The right side subtracts before it multiplies, so a small change keeps its digits. Its factors are made as (r, C)
    # and transposed, as weights are.
    left = torch.cat([(w_q - p_q).mT, p_q.mT], -2).mT
    right = torch.cat([w_k.mT, (w_k - p_k).mT], -2).mT
    return left, right


# ---- the command line --------------------------------------------------------------------------------------------


def score_all(targets, so_far, path, args):
    """
    Score one checkpoint after the other. One that cannot be scored is named on stderr, and the others go on.

    so_far: {(model, revision): its table} in the CSV at path, to which the new ones come. -> {target: its ScoredModel}
    """
    results = {}
    for target in tqdm(targets, "checkpoints", leave=False, disable=None):
        try:
            result = score_model(target.source, args.gamma, args.per_head, args.device, args.published)
        except (CheckpointError, OSError) as e:
            report.tell(f"analyze.py: {target.label()}: {e}")
            continue
        report.tell(f"{target.label()}: {result.note}")
        named = result.table.assign(model=target.model, revision=target.revision)
        results[target] = result._replace(table=named)
        so_far[target.key()] = named  # in the place of the one it had
        if path:  # after every checkpoint, so that nothing is lost if this is stopped
            tables.write_scores(path, tables.together(so_far.values()))
    return results


def analyze_models(args):
    """Score all checkpoints that were asked for. -> the exit status: 1 if one of them could not be scored"""
    members = suites.find_suite(args.suite) if args.suite else []
    of_paper = [row["name"] for row in known_models()] if args.paper else []
    wanted = members or of_paper or args.hf
    targets, errors = suites.find_all(wanted, args.revisions, args.stride, args.limit)
    for name, error in errors.items():  # a name that cannot be found does not stop the others
        report.tell(f"analyze.py: {name}: {error}")
    if args.hf:
        suites.require_one_kind(targets)

    path = args.csv
    if args.paper:
        path = path or "data/results/csv/paper.csv"
    so_far = tables.scores_so_far(path, targets, args)
    # What is in the file is not scored again, unless its W_qk is to be drawn.
    to_score = [target for target in targets if args.matrices or target.key() not in so_far]
    if args.offline:
        to_score = []
    elif len(to_score) < len(targets):
        n_known = len(targets) - len(to_score)
        report.tell(f"{n_known} of {len(targets)} are in {path}, and are not scored again: that takes another --csv")
    results = score_all(to_score, so_far, path, args)
    report.report_scores(args, tables.of_targets(targets, so_far), members)
    if args.matrices and results:
        figures.plot_matrices(results, args.matrices)
    return 1 if errors or len(results) < len(to_score) else 0


def main(argv):
    args = report.parse(argv, __doc__, GAMMA)
    try:
        if args.runs:
            compare.report_runs(args)
        else:
            sys.exit(analyze_models(args))
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CheckpointError, runs.RunError, OSError) as e:
        sys.exit(f"analyze.py: {e}")
    except KeyboardInterrupt:
        print("analyze.py: stopped", file=sys.stderr)  # what was scored so far is in the CSV file
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1:])
