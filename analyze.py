"""
Symmetry and directionality of W_qk = W_q W_k^T: in pretrained models, from their query and key weights alone, and in
runs of train.py.

    python analyze.py --hf bert-base gpt2                     # names of data/pretrained/models.csv, Hub ids, or folders
    python analyze.py --hf llama3-8b --per_head --csv heads.csv --plot llama.png
    python analyze.py --paper --plot paper.png                # every model of the paper, beside what it published
    python analyze.py --hf EleutherAI/pythia-160m --revisions 'step*' --limit 20 --csv pythia.csv --plot pythia.png
    python analyze.py --suite ettin --csv ettin.csv --plot ettin.png    # models that differ in the objective alone
    python analyze.py --paper --offline --plot paper.png      # what it published alone, put right, and no network
    python analyze.py --runs out/tiny out/tiny_decoder --plot runs.png
    python analyze.py --runs data/results/published/*.csv out/tiny --plot trajectories.png  # beside the authors' runs

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Causal training -> columns dominate -> directionality < 0.
Biases, rotary positions, scaling, and norms of queries and keys are outside of W_qk: these are the raw projections.

Letters of shapes: C n_embd, H query heads, Hkv key heads, D their size, L layers; r columns of a pair of factors
W_q, W_k (C, r), which is D for one head and H D for a layer.
"""

import math
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from data.pretrained import suites
from data.pretrained.files import CheckpointError, printable
from data.pretrained.layout_config import find_modality
from data.pretrained.layouts import LayoutError, find_stacks, missing_stacks
from data.pretrained.sources import known_models, open_checkpoint
from data.results import arguments, figures, report, runs, tables

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations
CROP = 128  # rows and columns of a W_qk that are drawn
FUSED = {"blocks", "grouped", "multi_query", "codegen"}  # forms of layouts.py: q, k and v in one (out, in) weight


# ---- the two scores ----------------------------------------------------------------------------------------------
#
# Attention compares token x_i, as a query, with token x_j, as a key, by x_i^T W_qk x_j.


def wqk(w_q, w_k):
    """W_qk = W_q W_k^T, Eq. (1): (..., C, r), (..., C, r) -> (..., C, C). With all heads side by side, Eq. (S20)."""
    return w_q @ w_k.mT


def symmetry(m):
    """
    s = tr(MM) / |M|_F^2 of m (..., n, n): 1 if symmetric, -1 if skew-symmetric, 1/n on average if random.

    Eq. (15) without its leading 2, which would give 2 for a symmetric matrix: as in the tables of the paper and Prop.
    S1.17. nan for a zero matrix.
    """
    # Every matrix is a symmetric part, in which i attends to j as j to i, and a skew part, in which they do opposite
    # things: M = M_s + M_n with M_s = (M + M^T) / 2 and M_n = (M - M^T) / 2. The parts are orthogonal, so
    #     |M|^2 = |M_s|^2 + |M_n|^2    and    s = (|M_s|^2 - |M_n|^2) / |M|^2
    # weighs them against each other. The difference above the line is what is left of sum_ij M_ij M_ji = tr(MM).
    trace = (m * m.mT).sum((-2, -1))
    return trace / m.square().sum((-2, -1))


def directionality(m, gamma=GAMMA):
    """
    d = (r - c) / (r + c) of m (..., n, n): 1 if only rows stand out, -1 if only columns, 0 if neither.

    r is what row norms have above their mean plus gamma standard deviations (over the n norms, divided by n - 1),
    summed over the rows that are above; c the same of columns. So it was computed for the published tables.
    """
    # A row of W_qk belongs to a dimension of the token that asks, a column to one of the token that is asked. The
    # paper's argument: under a causal mask a token is asked by all that follow it, so some columns grow long: d < 0.
    r = excess(m.norm(dim=-1), gamma)
    c = excess(m.norm(dim=-2), gamma)
    return balance(r, c)


def directionality_eq17(m, gamma=GAMMA):
    """
    As printed, Eq. (17)-(19): the norms that stand out are summed whole, and deviations divide by n.

    Its sign can be wrong. One heavy column raises the threshold of the columns, so that hardly any other passes it, and
    counts once; of the rows as many pass theirs as chance lets through, 2 in 100, and each of them counts as well.
    """
    r = outliers(m.norm(dim=-1), gamma)
    c = outliers(m.norm(dim=-2), gamma)
    return balance(r, c)


def excess(norms, gamma):
    """(..., n) -> (...): what stands above the threshold, summed."""
    # With gamma = 2 few pass, and a norm barely above weighs next to nothing: one long column outweighs many of these.
    threshold = norms.mean(-1, keepdim=True) + gamma * norms.std(-1, keepdim=True)
    return (norms - threshold).clamp_min(0).sum(-1)


def outliers(norms, gamma):
    """(..., n) -> (...): the sum of the norms above the threshold, Eq. (18), (19)."""
    threshold = norms.mean(-1, keepdim=True) + gamma * norms.std(-1, correction=0, keepdim=True)
    return torch.where(norms > threshold, norms, 0 * norms).sum(-1)  # 0 * nan is nan: it must not read as 0


def balance(r, c):
    # 0 / 0 where nothing stands out, and then no side has the upper hand
    return torch.where(r + c == 0, 0.0, (r - c) / (r + c))


# ---- the same from the factors W_q and W_k -----------------------------------------------------------------------


class Scores(NamedTuple):
    """Each of the shape that stands before the matrices (C, r)."""

    symmetry: Tensor
    directionality: Tensor
    directionality_eq17: Tensor


def scores(w_q, w_k, gamma=GAMMA):
    """
    The scores of wqk(w_q, w_k) from its factors (..., C, r), (..., C, r), in float32 at least; nan for a zero matrix.

    Where r is small against C, the (C, C) matrix is never made: its trace and its norms follow from r x r products,
    in 3.5 to 5 C r^2 multiplications instead of C^2 r, and without several passes over C^2 numbers.
    """
    w_q, w_k = at_least_float32(w_q), at_least_float32(w_k)
    C, r = w_q.shape[-2:]
    if 3 * r > C:  # from here on the plain way is the faster one, at C = 768 and at 4096
        s, row_norms, column_norms = from_product(w_q, w_k)  # (...), (..., C), (..., C)
        enough = 1e-8
    else:
        s, row_norms, column_norms = from_gram(w_q, w_k)
        enough = 1e-4  # here squares are what is rounded, to 7 digits; of random factors 1 / r is left
    # W_qk is a sum of r products of a column of W_q and a column of W_k. Heads may all but cancel in it, and queries
    # avoid the main direction of the keys. If next to nothing is left of the sum of their norms, what is left is the
    # difference of numbers that agree in most of their digits: then once more, in float64.
    left = row_norms.square().sum(-1)  # |M|^2
    total = (w_q.norm(dim=-2) * w_k.norm(dim=-2)).sum(-1)
    keeps_digits = left > enough * total.square()
    in_range = (left > 1e-20) & (left < 1e20)  # float32 ends at 1e-38 and 1e38: products of four weights soon pass that
    if not (keeps_digits & in_range).all():
        if w_q.ndim > 2:  # many matrices: one by one, as most of them are well
            each = [scores(q, k, gamma) for q, k in zip(w_q, w_k.expand_as(w_q))]
            return Scores(*(torch.stack(values) for values in zip(*each)))
        s, row_norms, column_norms = from_product(w_q.cpu().double(), w_k.cpu().double())  # not every GPU has float64
    d = balance(excess(row_norms, gamma), excess(column_norms, gamma))
    eq17 = balance(outliers(row_norms, gamma), outliers(column_norms, gamma))
    nothing = s.isnan()  # a zero matrix, of which balance says that neither rows nor columns stand out
    found = s, d.masked_fill(nothing, math.nan), eq17.masked_fill(nothing, math.nan)
    return Scores(*(x.to(w_q) for x in found))  # back from float64, if it was that


def at_least_float32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def from_product(w_q, w_k):
    """Symmetry, row norms and column norms (..., C) of W_q W_k^T."""
    m = wqk(w_q, w_k)  # (..., C, C)
    return symmetry(m), m.norm(dim=-1), m.norm(dim=-2)


def from_gram(w_q, w_k):
    """The same, without the product."""
    # tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(KQ KQ) with KQ = W_k^T W_q, as a trace may be turned around in a circle
    kq = w_k.mT @ w_q  # (..., r, r)
    trace = (kq * kq.mT).sum((-2, -1))
    rows = squared_norms(w_q, w_k).clamp_min(0)  # (..., C); rounding may leave a norm of 0 just below it
    columns = squared_norms(w_k, w_q).clamp_min(0)  # the columns of M are the rows of M^T = W_k W_q^T
    return trace / rows.sum(-1), rows.sqrt(), columns.sqrt()


BLOCK = 256  # columns of a factor at a time


def squared_norms(x, y):
    """The squared norm of every row of x y^T: x, y (..., C, r) -> (..., C)."""
    # Row i of x y^T is x_i y^T, its squared norm x_i (y^T y) x_i^T: in two lines, and as tests/test_analyze.py has it,
    #     gram = y.mT @ y  # (..., r, r)
    #     return ((x @ gram) * x).sum(-1)
    # gram is symmetric, so half of it is enough: a block of its columns at a time, from the diagonal down, and what is
    # below the diagonal counts twice. At r = 1024 that takes 5/8 of the multiplications.
    total = 0.0
    for i in range(0, x.shape[-1], BLOCK):
        gram = y[..., i:].mT @ y[..., i : i + BLOCK]  # (..., r - i, BLOCK)
        gram[..., BLOCK:, :] *= 2
        # x and y are transposed weights: it is x.mT whose rows lie in one piece in memory
        product = gram.mT @ x[..., i:].mT  # (..., BLOCK, C)
        total = total + (product * x[..., i : i + BLOCK].mT).sum(-2)
    return total


# ---- pretrained models -------------------------------------------------------------------------------------------


def layer_factors(w_q, w_k, tiled=False):
    """
    w_q (H, C, D), w_k (Hkv, C, D) -> factors (C, Hkv D) of the layer's W_qk = sum_h W_q,h W_k,g(h)^T, Eq. (S20).

    Query head h meets key head g(h) = h // (H / Hkv). tiled: g(h) = h % Hkv, as in the published scores of
    grouped-query models, which are of another matrix therefore.
    """
    # Six query heads and two key heads:      q0 q1 q2  q3 q4 q5            tiled:   q0 q1 q2 q3 q4 q5
    #                                          \  |  /   \  |  /                      |  |  |  |  |  |
    #                                             k0        k1                       k0 k1 k0 k1 k0 k1
    # q0 k0^T + q1 k0^T + q2 k0^T = (q0 + q1 + q2) k0^T: the queries of a group are added up before any product, and
    # the factors have Hkv D columns instead of H D.
    n_kv = len(w_k)
    if tiled:
        w_q = w_q.unflatten(0, (-1, n_kv))  # (H / Hkv, Hkv, C, D)
    else:
        w_q = w_q.unflatten(0, (n_kv, -1)).transpose(0, 1)  # (H / Hkv, Hkv, C, D)
    summed = at_least_float32(w_q[0])  # (Hkv, C, D)
    for queries in w_q[1:]:
        summed = summed + queries  # in float32; no copy in float32 of all queries is made
    return side_by_side(summed), side_by_side(at_least_float32(w_k))


def side_by_side(heads):
    """(H, C, D) -> (C, H D)"""
    # heads come from the weight of a Linear, (H D, C), and this is its transpose: a view, no number moves
    return heads.mT.flatten(0, 1).mT


def published_factors(layer, tensors, w_q, w_k):
    """The factors whose product the authors' code scored: --published, to audit the tables of the paper."""
    if layer.layout.form in FUSED:
        # Rows 0 to C and C to 2 C, and not transposed: W_q^T W_k where these are q and k. In Pythia each head has its
        # q, k and v together, so that the first C rows are a third of the heads, with their keys and values.
        weight = tensors[layer.names[0]]
        C = weight.shape[1]
        return weight[:C], weight[C : 2 * C]
    return layer_factors(w_q, w_k, tiled=True)


class ScoredModel(NamedTuple):
    """What score_model found."""

    n_params: int
    causal: dict  # stack -> True, False, or None where it cannot be told
    modality: dict  # stack -> language, vision or audio
    rows: list  # of tables.ModelScore
    crops: list  # the corner (CROP, CROP) of every layer's W_qk, for the picture of one model
    note: str  # what was read


def score_model(target, args):
    """One layer after the other; those to come are being read meanwhile."""
    rows, crops = [], []
    with open_checkpoint(target.source) as checkpoint:
        shapes = {tensor: info.shape for tensor, info in checkpoint.tensors.items()}
        stacks = find_stacks(checkpoint.config, shapes)
        layers = [(stack, layer) for stack in stacks for layer in stack.layers]
        # A model may be larger than the memory: only queries and keys are read, a layer at a time, a few ahead.
        stream = checkpoint.stream([layer.names for _, layer in layers])
        name = target.label()
        with tqdm(total=len(layers), desc=name, unit="layer", leave=False, disable=None) as bar:  # None: no terminal
            for (stack, layer), tensors in zip(layers, stream):
                tensors = {key: tensor.to(args.device) for key, tensor in tensors.items()}
                new_rows, crop = score_layer(target, stack.name, layer, tensors, args)
                rows += new_rows
                crops.append(crop)
                bar.set_postfix_str(bytes_read(checkpoint), refresh=False)
                bar.update()
        causal = {stack.name: stack.causal for stack in stacks}
        modality = {stack.name: find_modality(checkpoint.config, stack.name) for stack in stacks}
        notes = [bytes_read(checkpoint), checkpoint.note]
        notes += [f"no weights of its {missing}" for missing in missing_stacks(checkpoint.config, stacks)]
        note = ", ".join(part for part in notes if part)
        return ScoredModel(checkpoint.n_params, causal, modality, rows, crops, note)


def score_layer(target, stack, layer, tensors, args):
    """-> the row of one layer, those of its heads if asked for, and the corner of its W_qk that is drawn."""
    w_q, w_k = layer.heads(tensors)  # (H, C, D), (Hkv, C, D)
    if args.published:
        q, k = published_factors(layer, tensors, w_q, w_k)
    else:
        q, k = layer_factors(w_q, w_k)  # (C, Hkv D)
    whole = scores(q, k, args.gamma)
    if not math.isfinite(whole.symmetry):  # W_q W_k^T can be zero where neither of them is
        raise LayoutError(f"{layer.names[0]}: W_qk of this layer is zero")
    values = [float(x) for x in whole]
    rows = [tables.ModelScore(target.model, target.revision, stack, layer.index, None, *q.shape, *values)]
    if args.per_head:
        for head, values in enumerate(head_scores(w_q, w_k, args.gamma)):
            rows.append(tables.ModelScore(target.model, target.revision, stack, layer.index, head, *w_q.shape[1:],
                                          *values))
    # The first rows of both factors are what the first rows and columns of W_qk are made of: no need for all of it.
    corner = wqk(at_least_float32(q[:CROP]), at_least_float32(k[:CROP]))
    return rows, corner.cpu().numpy()


def head_scores(w_q, w_k, gamma=GAMMA):
    """w_q (H, C, D), w_k (Hkv, C, D) -> for each query head its three scores, as numbers."""
    found = []
    group = len(w_q) // len(w_k)
    for i, keys in enumerate(w_k):
        queries = w_q[i * group : (i + 1) * group]  # (H / Hkv, C, D): those that meet key head i
        each = scores(queries, keys, gamma)  # (H / Hkv,) each
        found += [Scores(*values) for values in torch.stack(each, -1).tolist()]
    return found


def bytes_read(checkpoint):
    size = tqdm.format_sizeof(checkpoint.size, "B")
    if checkpoint.bytes_read >= checkpoint.size:
        return f"read all of {size}"
    return f"read {tqdm.format_sizeof(checkpoint.bytes_read, 'B')} of {size}"


# ---- runs of train.py --------------------------------------------------------------------------------------------


def score_rows(step, n_head, new, old):
    """
    Rows of scores.csv from W_q and W_k, each (L, C, C), now, `new`, and at the rows before, `old` (None at the start).

    update_symmetry is the symmetry of what was added to W_qk meanwhile, the subject of Theorem 2.4.
    """
    rows = []
    for layer in range(len(new[0])):  # one at a time: what is computed of a layer stays in the caches
        now = [w[layer] for w in new]  # W_q and W_k, (C, C) each
        before = None if old is None else [w[layer] for w in old]
        values = score_step(now, before)  # (4,)
        rows.append(runs.RunScore(step, layer, "", *as_texts(values)))
        # The layer's W_qk is the product of W_q and W_k as they are, that of head h of their columns h D to (h + 1) D.
        heads_now = [split_heads(w, n_head) for w in now]  # (H, C, D) each
        heads_before = None if old is None else [split_heads(w, n_head) for w in before]
        for head, values in enumerate(score_step(heads_now, heads_before)):  # (H, 4)
            rows.append(runs.RunScore(step, layer, head, *as_texts(values)))
    return rows


def as_texts(values):
    return [f"{value:.6f}" for value in values.tolist()]


def split_heads(w, n_head):
    """(C, C) -> (H, C, D)"""
    return w.unflatten(-1, (n_head, -1)).movedim(-2, 0)


def score_step(new, old):
    """The three scores of W_qk and the symmetry of its change: (..., 4), on the CPU."""
    w_q, w_k = new
    now = scores(w_q, w_k)
    change = torch.full_like(now.symmetry, math.nan)  # at the start there is none
    if old is not None:
        # W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T = [W_q - P_q, P_q] [W_k, W_k - P_k]^T:
        # a product of two factors again, and nothing that cancels when the change is small
        p_q, p_k = old
        left = torch.cat([(w_q - p_q).mT, p_q.mT], -2).mT  # (..., C, 2 r), and in memory a transposed weight too
        right = torch.cat([w_k.mT, (w_k - p_k).mT], -2).mT
        change = scores(left, right).symmetry
    return torch.stack([*now, change], -1).cpu()


# ---- the command line --------------------------------------------------------------------------------------------


def complain(name, error):
    print(printable(f"analyze.py: {name}: {error}"), file=sys.stderr)


def score_all(targets, rows, path, args):
    """
    Score one after the other, and name those that cannot be. rows: what was scored before, in the CSV at path, if any.

    -> the rows of all, {target: what score_model found}
    """
    results = {}
    for target in targets:
        try:
            result = score_model(target, args)
        except (CheckpointError, LayoutError) as e:
            complain(target.label(), e)
            continue
        print(printable(f"{target.label()}: {result.note}"), file=sys.stderr)
        rows = rows + result.rows
        if path:
            tables.write_scores(path, rows)  # after each: what takes hours goes on from here
        drawn = args.matrices or len(targets) == 1
        results[target] = result if drawn else result._replace(crops=[])  # those of hundreds would fill the memory
    return rows, results


def analyze_models(args):
    """Score every checkpoint that is asked for -> exit status, 1 if one of them could not be scored."""
    names = args.hf or [row["name"] for row in known_models()]
    members = suites.find_suite(args.suite) if args.suite else []
    targets, errors = suites.find_all(members or names, args.revision, args.revisions, args.stride, args.limit)
    for name, error in errors.items():  # one that cannot be found does not stop the others
        complain(name, error)

    # What takes hours goes on where its CSV stands.
    path, rows = args.csv, []
    if args.paper:
        path = path or "data/results/paper.csv"
    takes_long = args.paper or args.suite or any(target.step is not None for target in targets)
    if takes_long and path and Path(path).exists():
        rows = tables.read_scores(path)
    done = {(row.model, row.revision) for row in rows}
    left = []
    if not args.offline:
        left = [target for target in targets if (target.model, target.revision) not in done]

    # Of a training, how many bytes will be read is said first.
    surveys = suites.survey(targets, left)
    for seen in surveys:
        print(printable(seen.line()), file=sys.stderr)

    rows, results = score_all(left, rows, path, args)
    if args.matrices and results:
        matrices = [(target.label(), result.rows, result.crops) for target, result in results.items()]
        figures.plot_matrices(matrices, args.matrices)
    if args.paper:
        report.report_paper(rows, results, args.plot)
    elif args.suite and rows:
        report.report_suite(members, rows, targets, surveys, args.plot)
    elif surveys and rows:
        report.report_trainings(rows, targets, surveys, args.plot)
    elif rows:
        with_layers = len(targets) == 1 or args.per_head and not args.csv
        report.report_models(rows, results, with_layers, args.plot)
    return 1 if errors or len(results) < len(left) else 0


def main(argv):
    args = arguments.parse(argv, __doc__, GAMMA)
    try:
        arguments.check(args)
        if args.runs:
            report.report_runs(args)
        else:
            sys.exit(analyze_models(args))
    except (CheckpointError, runs.RunError, OSError) as e:
        sys.exit(f"analyze.py: {e}")
    except KeyboardInterrupt:
        print("analyze.py: stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1:])
