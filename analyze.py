"""
The two scores of W_qk = W_q W_k^T: symmetry and directionality.

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Causal training -> columns dominate -> directionality < 0.
"""

from pathlib import Path

import torch

from data import runs

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations


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


def _directionality(rows, cols, gamma):  # (..., n) norms
    r, c = ((x * (x > x.mean(-1, keepdim=True) + gamma * x.std(-1, correction=0, keepdim=True))).sum(-1)
            for x in (rows, cols))
    return torch.where(r + c == 0, 0.0, (r - c) / (r + c))


def scores(w_q, w_k, gamma=GAMMA):
    """
    (symmetry, directionality) of wqk(w_q, w_k), in float32 at least, from the factors (..., C, r), (..., C, r).

    Where r is small against C, W_qk is never formed: |M|^2, tr(MM) and the norms of rows and columns all follow from
    the r x r products, in 5 C r^2 multiplications instead of C^2 r.
    """
    w_q, w_k = (w.to(torch.promote_types(w.dtype, torch.float32)) for w in (w_q, w_k))
    if 5 * w_q.shape[-1] > w_q.shape[-2]:
        m = wqk(w_q, w_k)  # (..., C, C)
        return symmetry(m), directionality(m, gamma)
    kq = w_k.mT @ w_q  # (..., r, r), tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(kq kq)
    rows = ((w_q @ (w_k.mT @ w_k)) * w_q).sum(-1).clamp_min(0)  # (..., C), squared norms: |W_k w_i|^2 of row w_i of W_q
    cols = ((w_k @ (w_q.mT @ w_q)) * w_k).sum(-1).clamp_min(0)  # (..., C)
    return (kq * kq.mT).sum((-2, -1)) / rows.sum(-1), _directionality(rows.sqrt(), cols.sqrt(), gamma)


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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for name, colour in ("train_loss", "0.7"), ("val_loss", "black"):
        axes[0].plot(log["step"], log[name], color=colour, label=name.replace("_loss", ""))
    n_layer = int(max(scores["layer"])) + 1
    for axis, name in zip(axes[1:], ("symmetry", "directionality")):
        for layer in range(n_layer):
            axis.plot(scores["step"][layer::n_layer], scores[name][layer::n_layer],
                      color=plt.cm.viridis(0.9 * layer / n_layer), label=f"layer {layer}")
        axis.axhline(0, color="0.8", lw=0.8, zorder=0)
        axis.set(ylim=(-1.05, 1.05), ylabel=f"{name} of $W_{{qk}}$")
    axes[0].set(ylabel="loss [nats/token]")
    for axis in axes:
        axis.set(xlabel="step")
        axis.legend(frameon=False, fontsize=8, ncols=1 if n_layer < 7 else 3)
        axis.spines[["top", "right"]].set_visible(False)
    with runs.replacing(path) as temporary:
        fig.savefig(temporary, dpi=120, format="png")
    plt.close(fig)
