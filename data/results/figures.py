"""
What all pictures share, and the pictures of pretrained models. Blue is an encoder and purple a decoder everywhere, as
in the paper.
"""

import contextlib
import warnings
from pathlib import Path
from string import ascii_lowercase

import numpy as np

from data.results import null
from data.results.runs import replacing

ENCODER, DECODER, UNKNOWN = "#2166ac", "#8e3b9e", "0.5"
OTHERS = ["#e08214", "#1b7837", "#b2182b", "#c7a000", "#35978f", "#8c510a", "#f768a1", "#4d4d4d", "#7fbc41"]
MARKERS = {"language": "o", "vision": "s", "audio": "^"}
LETTERS = [*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase)]  # a, ..., aa


def kind_of(causal):
    """What a network is. causal: None if it is not known."""
    if causal is None:
        return "causal unknown"
    return "decoder" if causal else "encoder"


def colour_of(causal):
    if causal is None:
        return UNKNOWN
    return DECODER if causal else ENCODER


def formats():
    """The formats that a picture can have: png, pdf, svg, ..."""
    from matplotlib.backend_bases import FigureCanvasBase

    return sorted(FigureCanvasBase.get_supported_filetypes())


@contextlib.contextmanager
def figure(path, widths, rows=1, inches=2.4):
    """Axes (rows, len(widths)) to draw on. At the end they are saved, in the format that the name of the file says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(rows, len(widths), figsize=(max(11, inches * len(widths)), 3.4 * rows),
                             layout="constrained", width_ratios=widths, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a letter that the font does not have: a box stands for it
        fig.savefig(temporary, dpi=120, format=Path(path).suffix[1:] or "png")
    plt.close(fig)


def plain(name):
    """The name of a model or an arm as a text of a picture, where a $ would begin a formula."""
    return str(name).replace("$", r"\$")


def put_titles(axes, titles):
    """Above each panel a letter, a, b, c, ..., and what it shows."""
    for axis, letter, title in zip(axes, LETTERS, titles):
        axis.set_title(f"{letter}   {title}", fontsize=9, loc="left")


def put_zero(axis):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)


def share_limits(axes):
    """Give all panels the same range."""
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(low, high)


def put_legend(axis, handles=None, ncols=1):
    """Put the legend to the right of the panels, where there are no data."""
    if handles is None:
        handles = axis.get_legend_handles_labels()[0]
    axis.figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8, ncols=ncols)


def put_null(axis, score, n, r, gamma=null.GAMMA):
    """Draw a grey band, if it is known: the range of 95 of 100 random matrices."""
    band = null.band(score, n, r, gamma)
    if band:
        axis.axhspan(*band, color="0.93", lw=0, zorder=-1)


def layer_colour(layer, n_layer):
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * layer / n_layer)


# ---- pretrained models -------------------------------------------------------------------------------------------


def plot_models(summaries, path):
    """
    Figures 2, S1, S2: scores against parameters. Dot: median over layers; bar: quartiles; grey: 95 of 100 random
    matrices. The numbers at the dots refer to the legend.
    """
    with figure(path, [1, 1]) as ((symmetry, directionality),):
        for axis, score in (symmetry, "symmetry"), (directionality, "directionality"):
            for number, summary in enumerate(summaries, 1):
                draw_summary(axis, number, summary, score)
            put_zero(axis)
            axis.set(xscale="log", xlabel="parameters", ylabel=f"{score} of $W_{{qk}}$")
            put_parameter_ticks(axis)
        put_titles((symmetry, directionality), ["median and quartiles over layers", "the same of directionality"])
        put_legend_of_models(symmetry, summaries)


def draw_summary(axis, number, summary, score):
    """One stack in the panel of a score."""
    x = summary.n_params
    q1, median, q3 = getattr(summary, score)
    band = null.band(score, summary.n, summary.r, summary.gamma)
    if band:
        axis.plot([x, x], band, color="0.88", lw=5, zorder=0, solid_capstyle="butt")
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ms=5, lw=1, alpha=0.8, mec="white", mew=0.5,
                  fmt=MARKERS[summary.modality], color=colour_of(summary.causal))
    axis.annotate(str(number), (x, median), (4, 2), textcoords="offset points", fontsize=7)


def put_legend_of_models(axis, summaries):
    """What colours, marks and numbers stand for."""
    for causal in dict.fromkeys(summary.causal for summary in summaries):  # each once, in their order
        axis.plot([], [], "o", color=colour_of(causal), label=kind_of(causal))
    for modality in dict.fromkeys(summary.modality for summary in summaries):
        axis.plot([], [], MARKERS[modality], color="0.6", label=modality)
    axis.plot([], [], color="0.88", lw=5, label="95 of 100\nrandom matrices")
    for number, summary in enumerate(summaries, 1):
        axis.plot([], [], " ", label=f"{number} {plain(Path(summary.model).name)} {summary.stack}".strip())
    handles, _ = axis.get_legend_handles_labels()
    put_legend(axis, handles, ncols=1 + len(handles) // 17)  # so many are as high as the figure


def put_parameter_ticks(axis):
    """At most five ticks: 100M, 200M, 500M, 1B, ... Powers of ten alone may be none if all models have one size."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axis.get_xlim()
    if high < 4 * low:  # one model, or models of one size
        low, high = low / 2, 2 * high
    axis.set_xlim(low, high)  # fix the limits, because the new ticks would change them
    candidates = [digit * 10.0**power for power in range(3, 13) for digit in (1, 2, 5)]
    ticks = [tick for tick in candidates if low <= tick <= high]
    ticks = ticks[:: 1 + (len(ticks) - 1) // 5]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([parameter_text(tick) for tick in ticks])


def parameter_text(n):
    """200e6 -> 200M"""
    for size, unit in (1e9, "B"), (1e6, "M"), (1e3, "k"):
        if n >= size:
            return f"{n / size:g}{unit}"
    return f"{n:g}"


def plot_model(name, rows, causal, corner, path):
    """The scores of the layers of one model (and of its heads), and the W_qk of its last layer."""
    from matplotlib.ticker import MaxNLocator

    layers = [row for row in rows if row.head is None]
    colours = stack_colours(causal)
    with figure(path, [1, 1, 1, 1, 1], inches=2.8) as ((left, right, *pictures),):
        for axis, score in (left, "symmetry"), (right, "directionality"):
            put_null(axis, score, layers[0].n, layers[0].r, layers[0].gamma)
            for stack in causal:
                label = f"{stack or plain(Path(name).name)} ({kind_of(causal[stack])})"
                mine = [row for row in rows if row.stack == stack]
                draw_stack(axis, mine, score, colours[stack], label)
            put_zero(axis)
            axis.set(ylabel=f"{score} of $W_{{qk}}$", xlabel="layer", xlim=(-0.5, max(row.layer for row in rows) + 0.5))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        draw_parts(pictures, corner, layers[-1], limit_of([corner]))
        put_titles((left, right, *pictures), ["symmetry", "directionality", *titles_of_parts(layers[-1])])
        handles = left.get_legend_handles_labels()[0]
        left.figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=8, ncols=4)


def plot_matrices(models, path):
    """For each model a row: W_qk of its last layer, and its parts, in one colour scale. models: [(name, rows, corner)]"""
    limit = limit_of([corner for _, _, corner in models])
    with figure(path, [1, 1, 1], rows=len(models), inches=3.4) as axes:
        titles = []
        for row_of_axes, (name, rows, corner) in zip(axes, models):
            last = [row for row in rows if row.head is None][-1]
            draw_parts(row_of_axes, corner, last, limit)
            first, *others = titles_of_parts(last)
            titles += [f"{plain(Path(name).name)}: {first}", *others]
        put_titles(axes.flat, titles)


def limit_of(matrices):
    """Where the colours of matrices end: few entries are beyond."""
    return max(np.quantile(np.abs(m), 0.995) for m in matrices)


def titles_of_parts(row):
    where = f"{row.stack} layer {row.layer}".strip()
    return [f"$W_{{qk}}$ of {where}, symmetry {row.symmetry:.2f}", "its symmetric part", "its skew part"]


def draw_stack(axis, rows, score, colour, label):
    heads = [row for row in rows if row.head is not None]
    layers = [row for row in rows if row.head is None]
    if heads:
        axis.plot([row.layer for row in heads], [getattr(row, score) for row in heads], ".", color=colour, alpha=0.3,
                  ms=4, label=f"{label}, its heads")
    axis.plot([row.layer for row in layers], [getattr(row, score) for row in layers], "o-", color=colour, ms=4,
              label=label)


def stack_colours(causal):
    """{stack: colour}. The colour tells encoder or decoder; further stacks of the same kind are lighter."""
    from matplotlib.colors import to_rgb

    colours, seen = {}, []
    for stack, value in causal.items():
        white = 0.45 * min(2, seen.count(value))
        colours[stack] = (1 - white) * np.array(to_rgb(colour_of(value))) + white
        seen.append(value)
    return colours


def draw_parts(axes, m, row, limit):
    """Draw m, the corner of a W_qk, and its parts (M + M^T) / 2 and (M - M^T) / 2, in colours from -limit to limit."""
    for axis, part in zip(axes, [m, (m + m.T) / 2, (m - m.T) / 2]):
        image = axis.imshow(part, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set(xticks=[0, len(m) - 1], yticks=[0, len(m) - 1])
        axis.spines[["top", "right"]].set_visible(True)
    axes[0].set(xlabel=f"key side, {len(m)} of {row.n} columns", ylabel="query side")
    share = (1 + row.symmetry) / 2  # |M_s|^2 / |M|^2, as s = (|M_s|^2 - |M_n|^2) / |M|^2
    axes[1].set_xlabel(f"{share:.0%} of $|W_{{qk}}|^2$")
    axes[2].set_xlabel(f"{1 - share:.0%} of $|W_{{qk}}|^2$")
    axes[-1].figure.colorbar(image, ax=axes, shrink=0.6, pad=0.01)
