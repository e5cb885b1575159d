"""Draws the scores of pretrained models, by size or by layer, and W_qk itself."""

import textwrap

import numpy as np
import pandas
from matplotlib.ticker import NullFormatter

from ..drawing import COLOURS, HEIGHT, KINDS, figure, put_legend, put_titles, put_zero, short
from ..names import fixed
from .tables import STACK, whole_layers

DRAWN = "symmetry", "directionality"
DOTS, LARGEST = 128, 24  # dimensions of a W_qk that are drawn as dots, and as a matrix, where single entries are seen
# What chance gives, in grey: to the symmetry a mean, and to the directionality a range.
MEAN = "symmetry of random matrices in the same directions"
RANGE = "95 % of directionalities by chance"


def draw(tables, scored, args):
    """Draws what analyze.py --plot and --matrices ask for. tables: of models. scored: a ScoredModel for each matrix"""
    if args.plot:
        table = pandas.concat(tables)
        names = [short(f"{model} {stack}".strip()) for model, stack in zip(table["model"], table["stack"])]
        plot_models(table.assign(stack_name=names), args.plot)
    if args.matrices and scored:
        plot_matrices(scored, args.matrices)


def plot_models(table, path):
    """Draws several models by size, or a single one by layer. table: with a column stack_name"""
    stacks = [layers for _, layers in table.groupby(STACK, sort=False)]
    is_one = table["source"].nunique() == 1
    n_rows = len(stacks) if is_one else 1
    height = HEIGHT if is_one else HEIGHT + 0.1 * len(stacks)  # every stack has its line in the legend
    title = "Scores of each layer" if is_one else "Scores of pretrained models by size"
    with figure(path, n_rows, 2, height, title, sharey="col") as axes:
        for column, score in enumerate(DRAWN):
            for row in range(n_rows):
                axis = axes[row, column]
                put_zero(axis)
                axis.set_ylabel(f"{score} of $W_{{qk}}$")
                if is_one:
                    put_titles([axis], [stacks[row]["stack_name"].iloc[0]])
                    draw_layers_of(axis, stacks[row], score)
                else:
                    draw_sizes(axis, stacks, score)
        put_legend(axes.flat, ncols=2, title=None if is_one else "dots: median over layers; bars: quartiles")


def draw_sizes(axis, stacks, score):
    """Draws a dot for each stack over its parameters. The number at a dot refers to the legend."""
    for number, rows in enumerate(stacks, 1):
        layers = whole_layers(rows)
        params, causal = layers["params"].iloc[0], is_causal(layers)
        if score == "symmetry":
            axis.plot(params, layers["chance"].median(), "_", ms=12, color="0.6", mew=2, ls="", label=MEAN)
        else:
            limit = layers["limit"].median()
            axis.plot([params] * 2, [-limit, limit], color="0.85", lw=5, solid_capstyle="butt", zorder=0, label=RANGE)
        q1, median, q3 = layers[score].quantile([0.25, 0.5, 0.75])
        draw_bar(axis, params, q1, median, q3, ms=5, lw=1, alpha=0.8, mec="white", mew=0.5, marker="o",
                 color=COLOURS[causal], label=KINDS[causal])
        axis.annotate(str(number), (params, median), (4, 2), textcoords="offset points", fontsize=7)
        axis.plot([], [], " ", label=f"{number} {rows['stack_name'].iloc[0]}")  # in the legend alone
    sizes = [rows["params"].iloc[0] for rows in stacks]
    axis.set(xscale="log", xlabel="parameters", xlim=(min(sizes) / 4, max(sizes) * 4))  # a power of ten is in it
    axis.xaxis.set_minor_formatter(NullFormatter())  # other labels would cover each other


def draw_bar(axis, x, q1, median, q3, **style):
    """Draws a dot at the median, and a bar from quartile to quartile."""
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ls="", **style)


def draw_layers_of(axis, table, score):
    """Draws a line over the layers of a stack, and a dot for each of its heads."""
    causal = is_causal(table)
    layers = whole_layers(table).sort_values("layer")  # a spreadsheet may have sorted its rows
    if score == "symmetry":
        axis.plot(layers["layer"], layers["chance"], color="0.6", ls="--", label=MEAN)
    else:
        axis.fill_between(layers["layer"], -layers["limit"], layers["limit"], color="0.85", lw=0, zorder=0, label=RANGE)
    heads = table[table["head"].notna()]
    if len(heads):
        axis.plot(heads["layer"], heads[score], ".", color=COLOURS[causal], alpha=0.3, ms=4, label="its heads")
    axis.plot(layers["layer"], layers[score], "o-", color=COLOURS[causal], ms=4, label=KINDS[causal])
    axis.set(xlabel="layer", xlim=(-0.5, layers["layer"].max() + 0.5))
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)


def is_causal(rows):
    """Returns whether no token sees a later one, from rows of a stack. None: it is not known."""
    return {0: False, 1: True}.get(rows["causal"].iloc[0])


# ---- W_qk itself -------------------------------------------------------------------------------------------------


def plot_matrices(scored, path):
    """Draws a row for each ScoredModel."""
    with figure(path, len(scored), 2, height=3.3) as axes:
        for panels, model in zip(axes, scored):
            draw_pair(panels, model)


def largest_dimensions(w_q, w_k):
    """W_q and W_k (C, r) -> W_qk of its DOTS largest dimensions, an array (DOTS, DOTS)."""
    m = w_q.double() @ w_k.double().T  # (C, C)
    lengths = m.square().sum(0) + m.square().sum(1)  # (C,), of both sides: a mirror image stays one
    longest = lengths.argsort(descending=True)[:DOTS]
    return m[longest][:, longest].cpu().numpy()


def draw_pair(axes, model):
    """Draws M, the W_qk of the last layer, and its entries (i, j) against (j, i): on a line if M is symmetric."""
    m = largest_dimensions(*model.factors)
    layers = whole_layers(model.table)
    layer = layers.iloc[-1]
    causal = is_causal(layers.iloc[[-1]])
    where = f"{layer['stack']} layer {layer['layer']}".strip()  # as in the table
    put_titles(axes, [textwrap.fill(f"{KINDS[causal]} {short(layer['model'])}: W_qk of {where}", 44),
                      f"symmetry {fixed(layer.symmetry, 2)}, directionality {fixed(layer.directionality, 2)}"])
    matrix, pairs = axes
    n = min(LARGEST, len(m))
    strong = np.quantile(np.abs(m[:n, :n]), 0.97)  # the scores do not depend on the size of M, nor do the colours
    matrix.imshow(m[:n, :n], cmap="RdBu_r", vmin=-strong, vmax=strong, interpolation="nearest")
    matrix.plot([-0.5, n - 0.5], [-0.5, n - 0.5], color="black", lw=0.8, ls="--")
    matrix.spines[["top", "right"]].set_visible(True)
    matrix.set(xticks=[], yticks=[], ylabel="query side",
               xlabel=f"key side (the {n} largest of {layer.n} dimensions)\n"
                      "red: above 0, blue: below; dashed: the diagonal")
    i, j = np.triu_indices(len(m), 1)
    edge = 1.05 * np.quantile(np.abs(m), 0.999)
    pairs.axline((0, 0), slope=1, color="0.6", lw=0.8, zorder=0)  # where M_ij = M_ji
    pairs.plot(m[i, j], m[j, i], ".", ms=4, mew=0, color=COLOURS[causal], alpha=0.5)
    pairs.set(xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal", xticks=[0], yticks=[0],
              xlabel="entry in row i, column j\n(a dot for each pair; line: both equal)",
              ylabel="entry in row j, column i")
