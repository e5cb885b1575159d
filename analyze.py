"""
Symmetry and directionality of W_qk = W_q W_k^T: in pretrained models, from their query and key weights alone, and in
runs of train.py.

    python analyze.py --hf bert-base gpt2                     # names of data/models.csv, Hub ids, or local folders
    python analyze.py --hf llama3-8b --per_head --csv heads.csv --plot llama.png
    python analyze.py --paper --csv paper.csv --plot paper.png  # every model of the paper, beside what it published

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Causal training -> columns dominate -> directionality < 0.
Biases, rotary positions, scaling, and norms of queries and keys are outside of W_qk: these are the raw projections.
"""

import argparse
import contextlib
import csv
import difflib
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data import runs
from data.checkpoint import CheckpointError, open_checkpoint
from data.layouts import LayoutError, find_stacks

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations
COLUMNS = ["model", "stack", "layer", "head", "symmetry", "directionality"]  # head empty: the whole layer
ENCODER, DECODER = "#2166ac", "#8e3b9e"  # the paper's blue and purple
MARKERS = {"language": "o", "vision": "s", "audio": "^"}
CROP = 128  # rows and columns of a W_qk that are drawn
FUSED = {"blocks", "grouped", "multi_query", "codegen"}  # forms (data/layouts.py) of one (out, in) weight for q, k and v


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


def scores(w_q, w_k, gamma=GAMMA, published=False):
    """
    (symmetry, directionality) of wqk(w_q, w_k), in float32 at least, from the factors (..., C, r), (..., C, r).

    Where r is small against C, W_qk is never formed: |M|^2, tr(MM) and the norms of rows and columns all follow from
    the r x r products, in 5 C r^2 multiplications instead of C^2 r.
    """
    w_q, w_k = at_least_float32(w_q), at_least_float32(w_k)
    if 5 * w_q.shape[-1] > w_q.shape[-2]:
        m = wqk(w_q, w_k)  # (..., C, C)
        return symmetry(m), _directionality(m.norm(dim=-1), m.norm(dim=-2), gamma, published)
    kq = w_k.mT @ w_q  # (..., r, r), tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(kq kq)
    rows = ((w_q @ (w_k.mT @ w_k)) * w_q).sum(-1).clamp_min(0)  # (..., C), squared norms: |W_k w_i|^2 of row w_i of W_q
    cols = ((w_k @ (w_q.mT @ w_q)) * w_k).sum(-1).clamp_min(0)  # (..., C)
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
    if layer.layout[1] in FUSED:  # rows 0 to C and C to 2 C of the (out, in) weight, not transposed: W_q^T W_k if they were q and k
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
                crops.append(wqk(*(at_least_float32(w[:CROP]) for w in (q, k))).cpu())
                read = " of ".join(tqdm.format_sizeof(n, "B") for n in (checkpoint.bytes_read, checkpoint.size))
                bar.set_postfix_str(f"read {read}")
                bar.update()
        return dict(name=name, n_params=checkpoint.n_params, causal={s.name: s.causal for s in stacks}, rows=rows,
                    crops=crops, read=", ".join(filter(None, [f"read {read}", checkpoint.note])))


def known_models():
    with open(Path(__file__).parent / "data" / "models.csv", newline="") as f:
        return list(csv.DictReader(f))


def find_source(name):
    """A name of data/models.csv, a local path, or a Hub id -> what open_checkpoint takes."""
    ids = {row["name"]: row["hub_id"] for row in known_models()}
    if Path(name).exists() or "/" in name:
        return name
    if name not in ids:
        near = ", ".join(difflib.get_close_matches(name, ids, n=3, cutoff=0.0))
        raise CheckpointError(f"no model or folder of this name; the nearest names are {near}, and a Hub id is org/name")
    return ids[name]


# ---- tables ------------------------------------------------------------------------------------------------------


def summarise(rows, facts):
    """
    One dict per model and stack: layers, quartiles over layers (q1, median, q3) of both scores, and what is known of
    it: facts (model, stack) -> n_params, causal; and the row of data/models.csv that is about it, or {}.
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
    """Median [q1, q3] over layers; * marks a published number that is not of W_qk (column matrix of data/models.csv)."""
    widths = [max(len(s[key]) for s in [dict(model="model", stack="stack"), *summary]) for key in ("model", "stack")]
    lines = [f"{'model':{widths[0]}}  {'stack':{widths[1]}}  layers   params"
             + "".join(f"  {name + ' [quartiles]':26} {'published':>9} " for name in ("symmetry", "directionality"))]
    for s in summary:
        line = f"{s['model']:{widths[0]}}  {s['stack']:{widths[1]}}  {s['n_layer']:6}  {tqdm.format_sizeof(s['n_params']):>7}"
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


# ---- pictures ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def figure(path, *ratios):
    """Axes side by side, widths as the ratios; saved whole, in the format that the name of the file says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(ratios), figsize=(11, 3.4), layout="constrained", width_ratios=ratios)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with runs.replacing(path) as temporary:
        fig.savefig(temporary, dpi=120, format=Path(path).suffix[1:] or "png")
    plt.close(fig)


def score_axis(axis, name, xlabel):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)
    axis.set(ylim=(-1.05, 1.05), ylabel=f"{name} of $W_{{qk}}$", xlabel=xlabel)


def colour(causal):
    return {True: DECODER, False: ENCODER, None: "0.5"}[causal]


def plot_models(summary, path):
    """Figures 2, S1, S2: scores against parameters; dot = median over layers, bar = quartiles."""
    with figure(path, 1, 1) as axes:
        for axis, name in zip(axes, ("symmetry", "directionality")):
            for s in summary:
                q1, median, q3 = s[name]
                marker = MARKERS[s["published"].get("modality", "language")]
                axis.errorbar(s["n_params"], median, [[median - q1], [q3 - median]], fmt=marker, ms=5, lw=1,
                              color=colour(s["causal"]), alpha=0.8, mec="white", mew=0.5)
            score_axis(axis, name, "parameters")
            axis.set_xscale("log")
        for causal, label in (False, "encoder"), (True, "decoder"):
            axes[0].plot([], [], "o", color=colour(causal), label=label)
        for modality, marker in MARKERS.items():
            axes[0].plot([], [], marker, color="0.6", label=modality)
        axes[0].legend(frameon=False, fontsize=8, ncols=2)


def plot_model(result, path):
    """The layers of one model, its heads where they were scored, and W_qk of its layer of median symmetry."""
    rows = result["rows"]
    layers = [row for row in rows if row[3] == ""]
    with figure(path, 1, 1, 0.8) as axes:
        for axis, name, column in (axes[0], "symmetry", 4), (axes[1], "directionality", 5):
            for stack, causal in result["causal"].items():
                heads, whole = ([r for r in rows if r[1] == stack and (r[3] == "") == w] for w in (False, True))
                axis.plot([r[2] for r in heads], [r[column] for r in heads], ".", color=colour(causal), alpha=0.25, ms=4)
                axis.plot([r[2] for r in whole], [r[column] for r in whole], "o-", color=colour(causal), ms=4,
                          label=f"{stack or result['name']} ({'decoder' if causal else 'encoder'})")
            score_axis(axis, name, "layer")
        axes[0].legend(frameon=False, fontsize=8)
        i = sorted(range(len(layers)), key=lambda i: layers[i][4])[len(layers) // 2]
        crop = result["crops"][i]
        limit = crop.abs().flatten().quantile(0.995).item()
        axes[2].imshow(crop.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axes[2].set(title=f"$W_{{qk}}$, {layers[i][1]} layer {layers[i][2]}, {len(crop)} x {len(crop)} of it",
                    xlabel="key side", ylabel="query side")


# ---- runs of train.py --------------------------------------------------------------------------------------------


def read_run(out_dir):
    """log.csv and the layers of scores.csv of a run -> two dicts of columns, floats (an empty cell is nan)."""
    def columns(rows, header):
        return {name: [float(row[name] or "nan") for row in rows] for name in header}

    out_dir = Path(out_dir)
    layers = [row for row in runs.read(out_dir / "scores.csv", runs.SCORES) if row["head"] == ""]
    return columns(runs.read(out_dir / "log.csv", runs.LOG), runs.LOG), columns(layers, runs.SCORES)


def report_run(out_dir):
    """Draw out_dir/run.png and return a table: every layer's scores, at the first step and at the last."""
    log, scores = read_run(out_dir)
    plot_run(log, scores, Path(out_dir) / "run.png")
    n_layer = int(max(scores["layer"])) + 1
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(n_layer):
        s, d = ([scores[name][i] for i in (layer, layer - n_layer)] for name in ("symmetry", "directionality"))
        lines.append(f"{layer:5}         {s[0]:8.2f}{s[1]:8.2f}                 {d[0]:8.2f}{d[1]:8.2f}")
    return "\n".join(lines + [f"validation loss {log['val_loss'][-1]:.4f} nats/token; picture: {out_dir}/run.png"])


def plot_run(log, scores, path):
    """Loss, symmetry and directionality over steps, one line per layer."""
    from matplotlib import colormaps

    n_layer = int(max(scores["layer"])) + 1
    with figure(path, 1, 1, 1) as axes:
        for name, shade in ("train_loss", "0.7"), ("val_loss", "black"):
            axes[0].plot(log["step"], log[name], color=shade, label=name.replace("_", " "))
        axes[0].set(ylabel="loss [nats/token]", xlabel="step")
        for axis, name in zip(axes[1:], ("symmetry", "directionality")):
            for layer in range(n_layer):
                axis.plot(scores["step"][layer::n_layer], scores[name][layer::n_layer],
                          color=colormaps["viridis"](0.9 * layer / n_layer), label=f"layer {layer}")
            score_axis(axis, name, "step")
        for axis in axes:
            axis.legend(frameon=False, fontsize=8, ncols=1 if n_layer < 7 else 3)


# ---- the command line --------------------------------------------------------------------------------------------


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", metavar="NAME", help="names of data/models.csv, Hub ids, or local folders")
    what.add_argument("--paper", action="store_true", help="every model of data/models.csv; goes on where --csv stands")
    parser.add_argument("--per_head", action="store_true", help="a row for every head as well")
    parser.add_argument("--csv", metavar="FILE", help=f"write {','.join(COLUMNS)}, in full precision")
    parser.add_argument("--plot", metavar="FILE", help="several models: Figure 2; one: its layers, heads and a W_qk")
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


def main(argv):
    args, failed, results = parse_args(argv), 0, []
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
            plot_model(results[0], args.plot)
        elif args.plot:
            plot_models(summarise(rows, facts), args.plot)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
