"""
Symmetry and directionality of W_qk = W_q W_k^T: in pretrained models, from their query and key weights alone, and in
runs of train.py.

    python analyze.py --hf bert-base gpt2                     # names of data/pretrained/models.csv, Hub ids, or local folders
    python analyze.py --hf llama3-8b --per_head --csv heads.csv --plot llama.png
    python analyze.py --paper --plot paper.png                # every model of the paper, beside what it published
    python analyze.py --runs out/tiny out/tiny_decoder --plot runs.png

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Causal training -> columns dominate -> directionality < 0.
Biases, rotary positions, scaling, and norms of queries and keys are outside of W_qk: these are the raw projections.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data.results import figures, runs
from data.pretrained.layouts import LayoutError, find_stacks
from data.pretrained.sources import CheckpointError, find_source, known_models, open_checkpoint

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations
COLUMNS = ["model", "stack", "layer", "head", "symmetry", "directionality"]  # head empty: the whole layer
CROP = 128  # rows and columns of a W_qk that are drawn
FUSED = {"blocks", "grouped", "multi_query", "codegen"}  # forms (data/pretrained/layouts.py): q, k, v in one (out, in) weight


# ---- the two scores ----------------------------------------------------------------------------------------------


def wqk(w_q, w_k):
    """W_qk = W_q W_k^T, Eq. (1): (..., C, r), (..., C, r) -> (..., C, C). With all heads side by side, Eq. (S20)."""
    return w_q @ w_k.mT


def symmetry(m):
    """
    s = tr(MM) / |M|_F^2 of m (..., n, n): 1 if symmetric, -1 if skew-symmetric, 1/n on average if random.

    Eq. (15) without its leading 2, which would give 2 for a symmetric matrix: (|M_s|^2 - |M_n|^2) / |M|^2, as in the
    tables of the paper and Prop. S1.17. nan for a zero matrix.
    """
    return (m * m.mT).sum((-2, -1)) / m.square().sum((-2, -1))


def directionality(m, gamma=GAMMA):
    """
    d = (r - c) / (r + c) of m (..., n, n), Eq. (17): 1 if only rows stand out, -1 if only columns, 0 if neither.

    r is the sum of the row norms above their mean plus gamma standard deviations, Eq. (19); c of the column norms,
    Eq. (18). Standard deviations over the n norms (divided by n).
    """
    return _directionality(m.norm(dim=-1), m.norm(dim=-2), gamma)


def _directionality(rows, cols, gamma, published=False):
    """From the norms (..., n). published: the excess over the threshold is summed, and deviations divide by n - 1."""
    def outliers(x):
        threshold = x.mean(-1, keepdim=True) + gamma * x.std(-1, correction=int(published), keepdim=True)
        return ((x - threshold * published) * (x > threshold)).sum(-1)

    r, c = outliers(rows), outliers(cols)
    return torch.where(r + c == 0, 0.0, (r - c) / (r + c))


def at_least_float32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def squared_norms(x, y):
    """
    The squared norm of every row of x y^T, x, y (..., C, r) -> (..., C): diag(x (y^T y) x^T). y^T y is symmetric, so
    of its r x r products only those on and above the diagonal blocks are made, and those above count twice.
    """
    total, width = 0.0, max(128, -(-x.shape[-1] // 4))
    for start in range(0, x.shape[-1], width):
        end = start + width
        gram = y[..., :end].mT @ y[..., start:end]  # (..., end, width)
        gram[..., :start, :] *= 2
        total = total + ((x[..., :end] @ gram) * x[..., start:end]).sum(-1)
    return total.clamp_min(0)


def scores(w_q, w_k, gamma=GAMMA, published=False):
    """
    (symmetry, directionality) of wqk(w_q, w_k), in float32 at least, from the factors (..., C, r), (..., C, r).

    Where r is small against C, W_qk is never formed: |M|^2, tr(MM) and the norms of rows and columns all follow from
    r x r products, in 3.5 to 5 C r^2 multiplications instead of C^2 r and several passes over C^2 numbers.
    """
    w_q, w_k = at_least_float32(w_q), at_least_float32(w_k)
    if 5 * w_q.shape[-1] > 2 * w_q.shape[-2]:  # where the two took equally long, at C = 768 and 4096
        m = wqk(w_q, w_k)  # (..., C, C)
        return symmetry(m), _directionality(m.norm(dim=-1), m.norm(dim=-2), gamma, published)
    kq = w_k.mT @ w_q  # (..., r, r), tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(kq kq)
    rows, cols = squared_norms(w_q, w_k), squared_norms(w_k, w_q)  # (..., C)
    return (kq * kq.mT).sum((-2, -1)) / rows.sum(-1), _directionality(rows.sqrt(), cols.sqrt(), gamma, published)


# ---- pretrained models -------------------------------------------------------------------------------------------


def layer_factors(w_q, w_k, tiled=False):
    """
    w_q (H, C, D), w_k (Hkv, C, D) -> factors (C, Hkv D) of the layer's W_qk = sum_h W_q,h W_k,g(h)^T, Eq. (S20).

    Query head h meets key head g(h) = h // (H / Hkv), so the queries of a group are summed before any product.
    tiled: g(h) = h % Hkv, as in the published scores of grouped-query models.
    """
    w_q, w_k, n_kv = at_least_float32(w_q), at_least_float32(w_k), len(w_k)
    w_q = w_q.unflatten(0, (-1, n_kv) if tiled else (n_kv, -1)).sum(0 if tiled else 1)  # (Hkv, C, D)
    return tuple(w.movedim(0, 1).flatten(1) for w in (w_q, w_k))  # (C, Hkv D)


def published_factors(layer, tensors, w_q, w_k):
    """The factors whose product the authors' code scored: --published, to audit the tables of the paper."""
    if layer.layout[1] in FUSED:  # rows 0 to C and C to 2 C, not transposed: W_q^T W_k where these are q and k
        weight = tensors[layer.names[0]]
        return weight.split(weight.shape[1])[:2]
    return layer_factors(w_q, w_k, tiled=True)


def score_model(name, source, args):
    """-> a Result, from one layer at a time; the layers to come are being read meanwhile."""
    rows, crops = [], []
    with open_checkpoint(source, args.revision) as checkpoint:
        stacks = find_stacks(checkpoint.config, {name: info.shape for name, info in checkpoint.tensors.items()})
        layers = [(stack.name, layer) for stack in stacks for layer in stack.layers]
        stream = checkpoint.stream([layer.names for _, layer in layers])
        with tqdm(total=len(layers), desc=name, unit="layer", leave=False) as bar:
            for (stack, layer), tensors in zip(layers, stream):
                tensors = {name: tensor.to(args.device) for name, tensor in tensors.items()}
                w_q, w_k = layer.heads(tensors)
                q, k = published_factors(layer, tensors, w_q, w_k) if args.published else layer_factors(w_q, w_k)
                rows.append([name, stack, layer.index, "", *map(float, scores(q, k, args.gamma, args.published))])
                if not np.isfinite(rows[-1][4]):
                    raise LayoutError(f"{layer.names[0]}: W_qk of this layer is zero, or too large for float32")
                if args.per_head:
                    heads = scores(w_q, w_k.repeat_interleave(len(w_q) // len(w_k), 0), args.gamma, args.published)
                    rows += [[name, stack, layer.index, h, *map(float, pair)] for h, pair in enumerate(zip(*heads))]
                crops.append(wqk(*(at_least_float32(w[:CROP]) for w in (q, k))).cpu().numpy())
                read = " of ".join(tqdm.format_sizeof(n, "B") for n in (checkpoint.bytes_read, checkpoint.size))
                bar.set_postfix_str(f"read {read}")
                bar.update()
        return dict(name=name, n_params=checkpoint.n_params, causal={s.name: s.causal for s in stacks}, rows=rows,
                    crops=crops, read=", ".join(filter(None, [f"read {read}", checkpoint.note])))


# ---- tables ------------------------------------------------------------------------------------------------------


def summarise(rows, facts):
    """
    One dict per model and stack: layers, quartiles over layers (q1, median, q3) of both scores, and what is known of
    it: facts (model, stack) -> n_params, causal; and the row of data/pretrained/models.csv that is about it, or {}.
    """
    published = {(row[key], row["stack"]): row for row in known_models() for key in ("hub_id", "name")}
    summary = []
    for model, stack in dict.fromkeys((row[0], row[1]) for row in rows):
        layers = np.array([row[4:] for row in rows if row[:2] == [model, stack] and row[3] == ""])  # (L, 2)
        n_params, causal = facts[model, stack]
        summary.append(dict(model=model, stack=stack, n_layer=len(layers), n_params=n_params, causal=causal,
                            published=published.get((model, stack), {}),
                            **dict(zip(("symmetry", "directionality"), np.percentile(layers, [25, 50, 75], axis=0).T))))
    return summary


def table(summary):
    """Median [q1, q3] over layers; * marks a published number that is not of W_qk (`matrix` in data/pretrained/models.csv)."""
    widths = [max(len(s[key]) for s in [dict(model="model", stack="stack"), *summary]) for key in ("model", "stack")]
    lines = [f"{'model':{widths[0]}}  {'stack':{widths[1]}}  layers   params"
             + "".join(f"  {name + ' [quartiles]':26} {'published':>9} " for name in ("symmetry", "directionality"))]
    for s in summary:
        params = tqdm.format_sizeof(s["n_params"])
        line = f"{s['model']:{widths[0]}}  {s['stack']:{widths[1]}}  {s['n_layer']:6}  {params:>7}"
        star = "*" if s["published"].get("matrix", "wqk") != "wqk" else " "
        for name in "symmetry", "directionality":
            q1, median, q3 = s[name]
            there = f"{float(s['published'][name]):.2f}" if s["published"] else "-"
            line += f"  {f'{median:5.2f} [{q1:.2f}, {q3:.2f}]':26} {there:>9}{star}"
        lines.append(line.rstrip())
    for kind in sorted({s["published"].get("matrix", "wqk") for s in summary} - {"wqk"}):
        lines.append(f"* published: {kind}, not W_qk")
    return "\n".join(lines)


def layer_table(rows):
    return "\n".join(["stack    layer  head  symmetry  directionality",
                      *(f"{stack:8} {layer:5} {head:>5} {s:9.3f} {d:15.3f}" for _, stack, layer, head, s, d in rows)])


def write_csv(path, rows):
    with runs.replacing(path) as temporary, open(temporary, "w", newline="") as f:
        csv.writer(f).writerows([COLUMNS, *rows])


def read_csv(path):
    with open(path, newline="") as f:
        return [[model, stack, int(layer), head and int(head), float(s), float(d)]
                for model, stack, layer, head, s, d in list(csv.reader(f))[1:]]


# ---- runs of train.py --------------------------------------------------------------------------------------------


def score_rows(step, n_head, new, old):
    """
    Rows of scores.csv from W_q and W_k, each (L, C, C), now, `new`, and at the rows before, `old` (None at the start).

    update_symmetry is the symmetry of what was added to W_qk meanwhile, the subject of Theorem 2.4:
    W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T, factors again and nothing that cancels.
    """
    def heads(w):  # (L, C, C) -> (L, H, C, D)
        return w.unflatten(-1, (n_head, -1)).movedim(-2, 1)

    rows = []
    for split in torch.clone, heads:
        s, d = scores(*map(split, new))  # (L,), then (L, H)
        u = torch.full_like(s, torch.nan)
        if old is not None:
            a, b = (new[0] - old[0], old[0]), (new[1], new[1] - old[1])
            u, _ = scores(*(torch.cat([*map(split, x)], -1) for x in (a, b)))
        for place in np.ndindex(*s.shape):
            layer, head = (*place, "")[:2]
            rows.append([step, layer, head, *(f"{x[place].item():.6f}" for x in (s, d, u))])
    return sorted(rows, key=lambda row: (row[1], row[2] != "", row[2]))


def report_run(folder):
    """Draw run.png into the folder of a run and return a table: the scores of every layer, first and last."""
    run = runs.read_run(folder)
    figures.plot_run(run, Path(folder) / "run.png")
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        s, d = (run.layers[name][[0, -1], layer] for name in ("symmetry", "directionality"))
        lines.append(f"{layer:5}         {s[0]:8.2f}{s[1]:8.2f}                 {d[0]:8.2f}{d[1]:8.2f}")
    return "\n".join(lines + [f"validation loss {run.log['val_loss'][-1]:.4f} nats/token; picture: {folder}/run.png"])


def with_interval(values, form):
    mean, half = runs.interval(values)
    return format(mean, form) + ("" if np.isnan(half) else f" +- {half:{form.lstrip('+')}}")


def runs_table(arms, rows, level):
    """Table 1: mean over seeds +- half of its 95 % interval; what some seeds do not reach is not averaged."""
    lines = [f"{'arm':20} seeds  loss [nats/token]  less baseline's    {'speed-up':21}  {f'step below {level:g}':21}"
             " symmetry  direct."]
    for name, seeds in arms.items():
        mine = [row for row in rows if row["arm"] == name]
        base = runs.baseline(arms, seeds[0].config["causal"]) == name
        cells = [with_interval([row["val_loss"] for row in mine], ".3f")]
        for key, form in ("difference", "+.3f"), ("speed_up", ".0%"), ("first_step", ".0f"):
            values = np.array([row[key] for row in mine])
            missed = f"not reached by {np.isnan(values).sum()} of {len(values)}"
            cells.append("baseline" if base and key != "first_step" else
                         missed if np.isnan(values).any() else with_interval(values, form))
        scores = (np.mean([row[key] for row in mine]) for key in ("symmetry", "directionality"))
        lines.append(f"{name:20} {len(seeds):5}  {cells[0]:17}  {cells[1]:17}  {cells[2]:21}  {cells[3]:21}"
                     "{:9.2f}{:9.2f}".format(*scores))
        behind = [run for run in seeds if run.log["step"][-1] < run.config["max_iters"]]
        if behind:
            at = behind[0].log["step"][-1]
            lines.append(f"  {len(behind)} of its runs have not finished, the first of them is at {at:.0f}")
    if all(len(seeds) == 1 for seeds in arms.values()):
        lines.append("one seed each: there is no interval, and a difference may be chance")
    return "\n".join(lines)


def read_curves(path):
    """Published training losses, one column per run and one row every 200 updates -> {name: (steps, loss)}."""
    with open(path, newline="") as f:
        names, *rows = csv.reader(f)
    columns = {name: np.array([float(x or "nan") for x in column]) for name, column in zip(names, zip(*rows))}
    return {name: (200 * np.arange(len(loss)), loss) for name, loss in columns.items()}


def curves_table(curves):
    """Table 1 of the paper from its training losses, by its rule (first loss below the last, not smoothed) and ours."""
    lines = [f"{'published run':30} last loss  with symmetric start  speed-up: by the paper's rule  by ours"]
    for name, (steps, loss) in curves.items():
        if name + "--symmetric-init" in curves:
            other = curves[name + "--symmetric-init"][1]
            rules = [1 - runs.first_step(steps, other, loss[-1]) / steps[-1], runs.speed_up(steps, other, loss)]
            rules = ["not reached" if np.isnan(x) else f"{x:.0%}" for x in rules]
            lines.append(f"{name:30} {loss[-1]:9.3f} {other[-1]:21.3f} {rules[0]:>30} {rules[1]:>8}")
    return "\n".join(lines)


def analyze_runs(args):
    curves = {k: v for path in args.runs if path.endswith(".csv") for k, v in read_curves(path).items()}
    arms = runs.pool(path for path in args.runs if not path.endswith(".csv"))
    rows = runs.compare(arms, args.level)
    if curves:
        print(curves_table(curves))
    if arms:
        print(runs_table(arms, rows, args.level))
    if args.csv:
        with runs.replacing(args.csv) as temporary:
            runs.append(temporary, list(rows[0]), [row.values() for row in rows])
    if args.plot and arms:
        figures.plot_runs(arms, rows, curves, args.plot)
        figures.plot_arms(arms, Path(args.plot).with_stem(Path(args.plot).stem + "_layers"))


# ---- the command line --------------------------------------------------------------------------------------------


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", metavar="NAME", help="names of data/pretrained/models.csv, Hub ids, or local folders")
    what.add_argument("--paper", action="store_true", help="every model of data/pretrained/models.csv; goes on where --csv stands")
    what.add_argument("--runs", nargs="+", metavar="DIR", help="runs of train.py, and data/results/published/loss_curves.csv")
    parser.add_argument("--level", type=float, default=2.5, help="loss that tells when a run has left the plateau "
                        "[nats/token] (%(default)s)")
    parser.add_argument("--per_head", action="store_true", help="a row for every head as well")
    parser.add_argument("--csv", metavar="FILE", help=f"write {','.join(COLUMNS)}, in full precision")
    parser.add_argument("--plot", metavar="FILE", help="several models: Figure 2; one: its layers, heads and a W_qk; "
                        "runs: Figures 3 and S5, and, with _layers in its name, every layer")
    parser.add_argument("--published", action="store_true", help="score what the authors' code scored, to audit tables")
    parser.add_argument("--gamma", type=float, default=GAMMA, help="of directionality, in deviations (%(default)s)")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu",
                        help="of the arithmetic (%(default)s)")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    args = parser.parse_args(argv)
    if args.paper:
        args.hf = list(dict.fromkeys(row["name"] for row in known_models()))
        args.csv = args.csv or "data/results/paper.csv"
    return args


def analyze_models(args):
    failed, results = 0, []
    facts = {(row["name"], row["stack"]): (float(row["params"]), bool(int(row["causal"]))) for row in known_models()}
    rows = read_csv(args.csv) if args.paper and Path(args.csv).exists() else []
    done = {row[0] for row in rows}
    for name in [name for name in args.hf if name not in done]:
        try:
            result = score_model(name, find_source(name), args)
        except (CheckpointError, LayoutError) as e:
            print(f"analyze.py: {name}: {e}", file=sys.stderr)
            failed += 1
            continue
        results.append(result)
        rows += result["rows"]
        facts |= {(name, stack): (result["n_params"], causal) for stack, causal in result["causal"].items()}
        print(f"{name}: {result['read']}", file=sys.stderr)
        if args.csv:
            write_csv(args.csv, rows)
    if rows:
        if len(args.hf) == 1 or args.per_head and not args.csv:
            print(layer_table(rows))
        print(table(summarise(rows, facts)))
        if args.plot and len(results) == len(args.hf) == 1:
            figures.plot_model(name, rows, results[0]["causal"], results[0]["crops"], args.plot)
        elif args.plot:
            figures.plot_models(summarise(rows, facts), args.plot)
    sys.exit(1 if failed else 0)


def main(argv):
    args = parse_args(argv)
    try:
        analyze_runs(args) if args.runs else analyze_models(args)
    except (runs.RunError, OSError) as e:
        sys.exit(f"analyze.py: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
