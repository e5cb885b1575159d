"""Draws the scores of pretrained models, by size or by layer, and W_qk itself."""

import re
import textwrap

import numpy as np
import pandas

from .. import fixed
from ..drawing import COLOURS, HEIGHT, KINDS, draw_bar, figure, put_legend, put_titles, put_zero, short, styles
from .tables import STACK, whole_layers

LINES = 4  # models of which each is drawn by layer
DOTS, LARGEST = 128, 24  # dimensions of a W_qk that are drawn as dots, and as a matrix


def draw(scored, args):
    """Draws what analyze.py --plot and --matrices ask for. scored: a list of ScoredModels."""
    # a few models by layer, more of them by size, and checkpoints of one training by their number
    if args.plot:
        table = pandas.concat([model.table for model in scored])
        plot, title = plot_layers, "Scores of each layer"
        legend = "dotted: mean symmetry, and 95 % range of directionality, by chance"
        common, number_of = find_numbers(table["model"].unique())
        if number_of and table["params"].nunique() == 1:
            table = table.assign(checkpoint=table["model"].map(number_of), model=common, source=common)
            title = "Scores of checkpoints"
            legend = f"line: median over layers; dots: layers; {legend}"
        elif len(scored) > LINES:
            plot, title = plot_sizes, "Scores of pretrained models by size"
            legend = "dots: median over layers; bars: quartiles"

        stacks = table.groupby(STACK, sort=False)
        named = [(short(f"{model} {stack}".strip()), rows) for (model, _, stack), rows in stacks]
        height = HEIGHT + 0.1 * len(named)  # every stack has its line in the legend
        with figure(args.plot, 1, 2, height, title) as axes:
            for axis, score in zip(axes.flat, ("symmetry", "directionality")):
                plot(axis, score, named)
                put_zero(axis)
                axis.set_ylabel(f"{score} of $W_{{qk}}$")
            put_legend(axes.flat, ncols=2, title=legend)

    # and the matrices themselves
    if args.matrices:
        with figure(args.matrices, len(scored), 2, height=3.3) as axes:
            for panels, model in zip(axes, scored):
                draw_pair(panels, model)


def kind_of(rows):
    return KINDS.get(rows["causal"].iloc[0], "causal unknown")


def find_numbers(names):
    """
    Returns what names have in common but for one number, and {name: its number}, which is empty if they differ in more.
    Example: ft/checkpoint-200 and ft/checkpoint-1000 -> "ft/checkpoint-*", {"ft/checkpoint-200": 200, ...}
    """
    for number in re.finditer(r"\d+", names[0]):
        before, after = names[0][: number.start()], names[0][number.end() :]
        matches = [re.fullmatch(rf"{re.escape(before)}(\d+){re.escape(after)}", name) for name in names]
        if len(names) > 1 and all(matches):
            return f"{before}*{after}", {match[0]: int(match[1]) for match in matches}
    return "", {}


def plot_layers(axis, score, stacks):
    """
    Draws a few stacks, pairs of a name and rows, by layer: a line each, heads as dots, dotted what chance gives. Or, if
    the rows have a checkpoint, over its number: a line of medians over layers, and layers as dots.
    """
    x = "checkpoint" if "checkpoint" in stacks[0][1] else "layer"
    style_of = styles({name: dict(causal=rows["causal"].iloc[0]) for name, rows in stacks})
    for name, rows in stacks:
        layers, style = whole_layers(rows), style_of[name]
        dots = layers if x == "checkpoint" else rows[rows["head"].notna()]
        lines = layers.groupby(x, as_index=False).median(numeric_only=True)  # if x is layer, of a single one
        axis.plot(dots[x], dots[score], ".", color=style["color"], alpha=0.3)
        axis.plot(lines[x], lines[score], "o", ms=4, label=f"{name} ({kind_of(rows)})", **style)
        end = lines["directionality_95"]
        for line in [lines["symmetry_chance"]] if score == "symmetry" else [-end, end]:
            axis.plot(lines[x], line, color=style["color"], ls=":", lw=1, marker="_")
    axis.set_xlabel(x)
    axis.locator_params(axis="x", integer=True)


def plot_sizes(axis, score, stacks):
    """Draws the same by the size of their models. The number at a dot refers to the legend."""
    sizes = [rows["params"].iloc[0] for _, rows in stacks]
    for number, (size, (name, rows)) in enumerate(zip(sizes, stacks), 1):
        # what chance gives, in grey
        kind, layers = kind_of(rows), whole_layers(rows)
        if score == "symmetry":
            mean = layers["symmetry_chance"].median()
            axis.plot(size, mean, "_", ms=12, mew=2, color="0.6", label="random matrices in the same directions")
        else:
            end = layers["directionality_95"].median()
            axis.vlines(size, -end, end, color="0.85", lw=5, zorder=0, label="95 % of random matrices")

        # the model itself, with a number that the legend explains
        q1, median, q3 = layers[score].quantile([0.25, 0.5, 0.75])
        draw_bar(axis, size, q1, median, q3, marker="o", color=COLOURS[kind], label=kind)
        axis.annotate(str(number), (size, median), (4, 2), textcoords="offset points", fontsize=7)
        axis.plot([], [], " ", label=f"{number} {name}")  # in the legend alone
    axis.set(xscale="log", xlabel="parameters", xlim=(min(sizes) / 4, max(sizes) * 4))  # a power of ten is in it
    axis.xaxis.set_minor_formatter("")  # between powers of ten, labels would lie on each other


def draw_pair(axes, model):
    """Draws M, the W_qk of the last layer, and its entries (i, j) against (j, i): on a line if M is symmetric."""
    # read the matrix, and keep its dimensions with the longest rows and columns
    last = whole_layers(model.table).iloc[[-1]]
    kind, layer = kind_of(last), last.iloc[0]
    m = model.wqk(layer["layer"], layer["stack"])  # (C, C)
    lengths = m.square().sum(0) + m.square().sum(1)  # (C,), of both sides: a mirror image stays one
    longest = lengths.argsort(descending=True)[:DOTS]
    m = m[longest][:, longest].cpu().numpy()  # (DOTS, DOTS)
    where = f"{layer['stack']} layer {layer['layer']}".strip()  # as in the table
    put_titles(axes, [textwrap.fill(f"{kind} {short(layer['model'])}: W_qk of {where}", 44),
                      f"symmetry {fixed(layer.symmetry, 2)}, directionality {fixed(layer.directionality, 2)}"])

    # on the left, the first of these as a matrix
    matrix, pairs = axes
    largest = m[:LARGEST, :LARGEST]
    strong = np.quantile(np.abs(largest), 0.97)  # the scores do not depend on the size of M, nor do the colours
    matrix.imshow(largest, cmap="RdBu_r", vmin=-strong, vmax=strong, interpolation="nearest")
    matrix.axline((0, 0), slope=1, color="black", lw=0.8, ls="--")
    matrix.spines[["top", "right"]].set_visible(True)
    matrix.set(xticks=[], yticks=[], ylabel="query side",
               xlabel=f"key side (the {len(largest)} largest of {layer.n} dimensions)\n"
                      "red: above 0, blue: below; dashed: the diagonal")

    # on the right, a dot for every pair of entries (i, j) and (j, i)
    i, j = np.triu_indices(len(m), 1)
    edge = 1.05 * np.quantile(np.abs(m), 0.999)
    pairs.axline((0, 0), slope=1, color="0.6", lw=0.8, zorder=0)  # where M_ij = M_ji
    pairs.plot(m[i, j], m[j, i], ".", ms=4, mew=0, color=COLOURS[kind], alpha=0.5)
    pairs.set(xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal", xticks=[0], yticks=[0],
              xlabel="entry in row i, column j\n(a dot for each pair; line: both equal)",
              ylabel="entry in row j, column i")
