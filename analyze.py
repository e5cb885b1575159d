"""
Symmetry and directionality of W_qk = W_q W_k^T: in pretrained models, from their query and key weights alone, and in
runs of train.py.

    python analyze.py --hf bert-base gpt2                     # names of data/pretrained/models.csv, Hub ids, or folders
    python analyze.py --hf llama3-8b --per_head --csv heads.csv --plot llama.png
    python analyze.py --paper --plot paper.png                # every model of the paper, beside what it published
    python analyze.py --paper --offline --plot paper.png      # what it published alone, put right, and no network
    python analyze.py --runs out/tiny out/tiny_decoder --plot runs.png
    python analyze.py --runs data/results/published/*.csv out/tiny --plot trajectories.png  # beside the authors' runs

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Causal training -> columns dominate -> directionality < 0.
Biases, rotary positions, scaling, and norms of queries and keys are outside of W_qk: these are the raw projections.

Letters of shapes: C n_embd, H query heads, Hkv key heads, D their size, L layers; r columns of a pair of factors
W_q, W_k (C, r), which is D for one head and H D for a layer.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from data.pretrained import audit
from data.pretrained.files import CheckpointError
from data.pretrained.layouts import LayoutError, find_stacks, missing_stacks
from data.pretrained.sources import find_source, known_models, open_checkpoint
from data.results import compare, figures, figures_published, published, runs, tables

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
    # A row of W_qk belongs to a dimension of the token that asks, a column to one of the token that is asked. Under a
    # causal mask a token is asked by all that follow it, and a few columns grow long: c > r, d < 0.
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
    threshold = norms.mean(-1, keepdim=True) + gamma * norms.std(-1, keepdim=True)
    return (norms - threshold).clamp_min(0).sum(-1)


def outliers(norms, gamma):
    """(..., n) -> (...): the sum of the norms above the threshold, Eq. (18), (19)."""
    threshold = norms.mean(-1, keepdim=True) + gamma * norms.std(-1, correction=0, keepdim=True)
    return torch.where(norms > threshold, norms, 0 * norms).sum(-1)  # 0 * nan is nan: it must not read as 0


def balance(r, c):
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
    w_q, w_k = near_one(w_q), near_one(w_k)
    C, r = w_q.shape[-2:]
    if 5 * r > 2 * C:  # from here on the plain way is the faster one, at C = 768 and at 4096
        s, row_norms, column_norms = from_product(w_q, w_k)
        precise = 1e-8  # of |W_q|^2 |W_k|^2: with less, W_qk is a difference of numbers that agree to many digits
    else:
        s, row_norms, column_norms = from_gram(w_q, w_k)
        precise = 1e-4  # the squares cancel, and not the entries; if factors are random, |W_qk|^2 is 1 / r of that
    size = row_norms.square().sum(-1)
    if (size < precise * squared_size(w_q) * squared_size(w_k)).any():
        if w_q.ndim > 2:  # of many matrices, one by one
            each = [scores(q, k, gamma) for q, k in zip(w_q, w_k)]
            return Scores(*(torch.stack(values) for values in zip(*each)))
        s, row_norms, column_norms = from_product(w_q.cpu().double(), w_k.cpu().double())  # not every device has double
    d = balance(excess(row_norms, gamma), excess(column_norms, gamma))
    eq17 = balance(outliers(row_norms, gamma), outliers(column_norms, gamma))
    found = (s, d + 0 * s, eq17 + 0 * s)  # where there is no matrix there is nothing in balance: nan, not 0
    return Scores(*(x.to(w_q.device, w_q.dtype) for x in found))


def at_least_float32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def near_one(w):
    """w (..., C, r) in float32 at least and over a power of two, so that no square underflows and no digit changes."""
    w = at_least_float32(w)
    largest = w.detach().abs().amax((-2, -1), keepdim=True)
    exponent = torch.frexp(largest).exponent.clamp(-126, 126)
    return torch.ldexp(w, -exponent)


def squared_size(w):
    return w.square().sum((-2, -1))


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


def squared_norms(x, y):
    """The squared norm of every row of x y^T: x, y (..., C, r) -> (..., C)."""
    # Row i of x y^T is x_i y^T, its squared norm x_i (y^T y) x_i^T: in two lines, and as tests/test_analyze.py has it,
    #     gram = y.mT @ y  # (..., r, r)
    #     return ((x @ gram) * x).sum(-1)
    # gram is symmetric, so half of it is enough. With x = [a b] and y = [c d] cut in two, x y^T = a c^T + b d^T, and
    #     |a c^T + b d^T|^2 = |a c^T|^2 + 2 <a c^T, b d^T> + |b d^T|^2
    # for every row: the two squares are this function again. At r = 1024 that takes 5/8 of the multiplications.
    r = x.shape[-1]
    if r <= 256:
        gram = y.mT @ y
        return ((x @ gram) * x).sum(-1)
    a, b = x[..., : r // 2], x[..., r // 2 :]
    c, d = y[..., : r // 2], y[..., r // 2 :]
    cross = ((a @ (c.mT @ d)) * b).sum(-1)
    return squared_norms(a, c) + 2 * cross + squared_norms(b, d)


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
    w_q, w_k = at_least_float32(w_q), at_least_float32(w_k)
    n_kv = len(w_k)
    if tiled:
        w_q = w_q.unflatten(0, (-1, n_kv)).sum(0)  # (H / Hkv, Hkv, C, D) -> (Hkv, C, D)
    else:
        w_q = w_q.unflatten(0, (n_kv, -1)).sum(1)  # (Hkv, H / Hkv, C, D) -> (Hkv, C, D)
    return side_by_side(w_q), side_by_side(w_k)


def side_by_side(heads):
    """(H, C, D) -> (C, H D)"""
    return heads.movedim(0, 1).flatten(1)


def published_factors(layer, tensors, w_q, w_k):
    """The factors whose product the authors' code scored: --published, to audit the tables of the paper."""
    if layer.layout.form in FUSED:  # rows 0 to C and C to 2 C, not transposed: W_q^T W_k where these are q and k
        weight = tensors[layer.names[0]]
        C = weight.shape[1]
        return weight[:C], weight[C : 2 * C]
    return layer_factors(w_q, w_k, tiled=True)


class ScoredModel(NamedTuple):
    """What score_model found."""

    n_params: int
    causal: dict  # stack -> True, False, or None where it cannot be told
    rows: list  # of tables.ModelScore
    crops: list  # the corner (CROP, CROP) of every layer's W_qk, for the picture of one model
    note: str  # what was read


def score_model(name, source, args):
    """One layer after the other; those to come are being read meanwhile."""
    rows, crops = [], []
    with open_checkpoint(source, args.revision) as checkpoint:
        shapes = {tensor: info.shape for tensor, info in checkpoint.tensors.items()}
        stacks = find_stacks(checkpoint.config, shapes)
        layers = [(stack, layer) for stack in stacks for layer in stack.layers]
        stream = checkpoint.stream([layer.names for _, layer in layers])
        with tqdm(total=len(layers), desc=name, unit="layer", leave=False, disable=None) as bar:  # None: no terminal
            for (stack, layer), tensors in zip(layers, stream):
                tensors = {key: tensor.to(args.device) for key, tensor in tensors.items()}
                new_rows, crop = score_layer(name, stack.name, layer, tensors, args)
                rows += new_rows
                crops.append(crop)
                bar.set_postfix_str(bytes_read(checkpoint), refresh=False)
                bar.update()
        causal = {stack.name: stack.causal for stack in stacks}
        notes = [bytes_read(checkpoint), checkpoint.note]
        notes += [f"no weights of its {missing}" for missing in missing_stacks(checkpoint.config, stacks)]
        note = ", ".join(part for part in notes if part)
        return ScoredModel(checkpoint.n_params, causal, rows, crops, note)


def score_layer(name, stack, layer, tensors, args):
    """-> the row of one layer, those of its heads if asked for, and the corner of its W_qk that is drawn."""
    w_q, w_k = layer.heads(tensors)  # (H, C, D), (Hkv, C, D)
    if args.published:
        q, k = published_factors(layer, tensors, w_q, w_k)
    else:
        q, k = layer_factors(w_q, w_k)  # (C, Hkv D)
    whole = scores(q, k, args.gamma)
    if not math.isfinite(whole.symmetry):
        raise LayoutError(f"{layer.names[0]}: W_qk of this layer is zero")
    rows = [tables.ModelScore(name, stack, layer.index, None, *q.shape, *map(float, whole))]
    if args.per_head:
        keys = w_k.repeat_interleave(len(w_q) // len(w_k), 0)  # (H, C, D): to each query head its key head
        heads = scores(w_q, keys, args.gamma)  # (H,) each
        for head, values in enumerate(zip(*(x.tolist() for x in heads))):
            rows.append(tables.ModelScore(name, stack, layer.index, head, *w_q.shape[1:], *values))
    corner = wqk(at_least_float32(q[:CROP]), at_least_float32(k[:CROP]))
    return rows, corner.cpu().numpy()


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
    layers = score_step(new, old)  # (L,) each
    heads_now = [split_heads(w, n_head) for w in new]
    heads_before = None if old is None else [split_heads(w, n_head) for w in old]
    heads = score_step(heads_now, heads_before)  # (L, H) each
    rows = []
    for layer in range(len(new[0])):
        rows.append(runs.RunScore(step, layer, "", *(f"{values[layer]:.6f}" for values in layers)))
        for head in range(n_head):
            rows.append(runs.RunScore(step, layer, head, *(f"{values[layer, head]:.6f}" for values in heads)))
    return rows


def split_heads(w, n_head):
    """(L, C, C) -> (L, H, C, D)"""
    return w.unflatten(-1, (n_head, -1)).movedim(-2, 1)


def score_step(new, old):
    """The scores of W_qk (a Scores) and the symmetry of its change, nan where old is None: four tensors on the CPU."""
    w_q, w_k = new
    now = scores(w_q, w_k)
    change = torch.full_like(now.symmetry, math.nan)
    if old is not None:
        # W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T = [W_q - P_q, P_q] [W_k, W_k - P_k]^T:
        # a product of two factors again, and nothing that cancels when the change is small
        p_q, p_k = old
        left = torch.cat([w_q - p_q, p_q], -1)  # (..., C, 2 r)
        right = torch.cat([w_k, w_k - p_k], -1)
        change = scores(left, right).symmetry
    return [x.cpu() for x in (*now, change)]


def report_run(folder):
    """Draw run.png into the folder of a run and return a table: the scores of every layer, first and last."""
    run = runs.read_run(folder)
    figures.plot_run(run, Path(folder) / "run.png")
    loss = run.log["val_loss"][-1]
    return tables.run_table(run) + f"\nvalidation loss {loss:.4f} nats/token; picture: {folder}/run.png"


# ---- the command line --------------------------------------------------------------------------------------------


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", metavar="NAME",
                      help="names of data/pretrained/models.csv, Hub ids, or local folders")
    what.add_argument("--paper", action="store_true",
                      help="every model of data/pretrained/models.csv; goes on where --csv stands")
    what.add_argument("--runs", nargs="+", metavar="DIR",
                      help="runs of train.py, and the CSV files of data/results and data/results/published")
    parser.add_argument("--level", type=float, default=2.5,
                        help="loss that tells when a run has left the plateau [nats/token] (%(default)s)")
    parser.add_argument("--per_head", action="store_true", help="a row for every head as well")
    parser.add_argument("--csv", metavar="FILE",
                        help=f"write {','.join(tables.ModelScore._fields)}, in full precision")
    parser.add_argument("--plot", metavar="FILE",
                        help="several models: Figure 2; one: its layers, heads and a W_qk; runs: Figures 3 and S5, and, "
                        "with _layers in its name, every layer; with trajectories.csv: Figures 3, S3, S4 of both")
    parser.add_argument("--offline", action="store_true", help="with --paper: score nothing that is not in --csv yet")
    parser.add_argument("--published", action="store_true", help="score what the authors' code scored, to audit tables")
    parser.add_argument("--gamma", type=float, default=GAMMA, help="of directionality, in deviations (%(default)s)")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu",
                        help="of the arithmetic (%(default)s)")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    args = parser.parse_args(argv)
    if args.offline and not args.paper:
        parser.error("--offline goes with --paper; for models of the local cache set HF_HUB_OFFLINE=1")
    if args.paper:
        args.hf = list(dict.fromkeys(row["name"] for row in known_models()))
        args.csv = args.csv or "data/results/paper.csv"
    return args


def analyze_models(args):
    """Score every model that is asked for -> exit status, 1 if one of them could not be scored."""
    known = known_models()
    facts = {}  # (model, stack) -> n_params, causal
    for row in known:
        facts[row["name"], row["stack"]] = float(row["params"]), row["causal"] == "1"
    rows = []
    if args.paper and Path(args.csv).exists():
        rows = tables.read_scores(args.csv)
    done = {row.model for row in rows}
    status, result = 0, None
    for name in args.hf:
        if name in done or args.offline:
            continue
        try:
            result = score_model(name, find_source(name), args)
        except (CheckpointError, LayoutError) as e:
            print(f"analyze.py: {name}: {e}", file=sys.stderr)
            status = 1
            continue
        print(f"{name}: {result.note}", file=sys.stderr)
        rows += result.rows
        for stack, causal in result.causal.items():
            facts[name, stack] = result.n_params, causal
        if args.csv:
            tables.write_scores(args.csv, rows)  # after each model: --paper takes hours and goes on from here
    if args.paper:
        report_paper(tables.summarise(rows, facts, known), args)
        return status
    if not rows:
        return status
    if len(args.hf) == 1 or args.per_head and not args.csv:
        print(tables.layer_table(rows))
    summary = tables.summarise(rows, facts, known)
    print(tables.summary_table(summary))
    if args.plot and len(args.hf) == 1:
        figures.plot_model(args.hf[0], rows, result.causal, result.crops, args.plot)
    elif args.plot:
        figures.plot_models(summary, args.plot)
    return status


def report_paper(summary, args):
    """Tables S2 and S3, Figures 2, S1 and S2: what was published, put right, and ours as far as there is any."""
    ours = {}
    for s in summary:
        ours[s.model, s.stack] = s.symmetry, s.directionality
    if summary:
        print(tables.summary_table(summary))
    rows = audit.read_printed_tables()
    print(audit.printed_table(rows, ours))
    print(audit.tally(rows))
    if args.plot:
        figures_published.plot_pretrained(audit.read_models(), ours, args.plot)


def analyze_runs(args):
    csv_files = [path for path in args.runs if path.endswith(".csv")]
    folders = [path for path in args.runs if not path.endswith(".csv")]
    curves, trajectories, ends = published.read_csv_files(csv_files)
    arms = compare.pool(folders)
    rows = compare.compare(arms, args.level)
    if curves:
        print(published.curves_table(curves))
    if arms:
        print(tables.runs_table(arms, rows, args.level))
    if trajectories or ends:
        print(published.ends_table(trajectories, arms, ends))
    if args.csv and arms:
        tables.write_comparison(args.csv, rows)
    if not args.plot:
        return
    path = Path(args.plot)
    path_of_layers = path.with_stem(path.stem + "_layers")
    if trajectories:
        figures_published.plot_trajectories(trajectories, arms, path)
        figures_published.plot_trajectory_layers(trajectories, arms, path_of_layers)
    elif arms:
        figures.plot_runs(arms, rows, curves, path)
        figures.plot_arms(arms, path_of_layers)
    else:
        raise runs.RunError(f"nothing to draw in {path}: it takes runs, or data/results/published/trajectories.csv")


def main(argv):
    args = parse_args(argv)
    try:
        if args.runs:
            analyze_runs(args)
        else:
            sys.exit(analyze_models(args))
    except (runs.RunError, OSError) as e:
        sys.exit(f"analyze.py: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
