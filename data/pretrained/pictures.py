"""Draws the scores of pretrained models: by size, by layer, over training, and as published; and W_qk itself."""

import tempfile
import textwrap

import numpy as np
import pandas
from matplotlib.ticker import NullFormatter
from PIL import Image

from .. import chance
from ..atomic import replacing
from ..chance import SCORES
from ..drawing import (CHANCE, COLOURS, HEIGHT, KINDS, draw_layers, draw_quartiles, figure, put_chance, put_legend,
                       put_steps, put_titles, put_zero, short, styles)
from ..names import fixed
from .scores_table import STACK, is_causal, whole_layers

MATRIX = 3.3  # height of a row of matrices [inches]
LARGEST = 24  # dimensions of a W_qk that are drawn as a matrix: of more, single entries cannot be seen
WHOLE_NAME = ["model", "stack"]  # of a stack, or of its training
DOTS = "dots: median over layers; bars: quartiles"


def plot_rows(path, heading, rows, height=HEIGHT, **legend):
    """Draws a row of panels, by draw(axis, shown, score), for each (title, draw, shown). legend: of put_legend"""
    with figure(path, len(rows), len(SCORES), height, heading, sharey="col") as axes:
        for panels, (title, draw, shown) in zip(axes, rows):
            put_titles(panels, [title])  # of the first
            for axis, score in zip(panels, SCORES):
                draw(axis, shown, score)
                put_zero(axis)
                axis.set_ylabel(f"{score} of $W_{{qk}}$")
        put_legend(axes.flat, **legend)


def plot_models(table, path):
    """Draws scores over a training, or of one model by layer, or of several by size. table: of scores_table.choose"""
    names = [short(f"{model} {stack}".strip()) for model, stack in zip(table["model"], table["stack"])]
    table = table.assign(stack_name=names)
    stacks = table.groupby(WHOLE_NAME, sort=False)  # short names may be alike
    if table["step"].notna().any():
        table = whole_layers(table).dropna(subset="step")
        table = table.drop_duplicates([*WHOLE_NAME, "step", "layer"], keep="last")
        trainings = [layers for _, layers in table.groupby(WHOLE_NAME, sort=False)]
        rows = [("lines: median over layers; bands: quartiles", draw_medians, trainings)]
        rows += [(layers["stack_name"].iloc[0], draw_training, layers) for layers in trainings]
        plot_rows(path, "Scores over the training of pretrained models", rows)
    elif table["model"].nunique() == 1:
        plot_rows(path, "Scores of each layer", [(rows["stack_name"].iloc[0], draw_stack, rows) for _, rows in stacks])
    else:  # every stack has its line in the legend
        height = HEIGHT + 0.1 * stacks.ngroups
        plot_rows(path, "Scores of pretrained models by size", [("", draw_models, table)], height, ncols=2, title=DOTS)


# ---- panels ------------------------------------------------------------------------------------------------------


def draw_models(axis, table, score):
    """Draws a dot for each stack over its parameters. The number at a dot refers to the legend."""
    for number, (_, layers) in enumerate(whole_layers(table).groupby(STACK, sort=False), 1):
        first = layers.iloc[0]
        causal = is_causal(layers)
        q1, median, q3 = layers[score].quantile([0.25, 0.5, 0.75])
        by_chance = chance.interval(score, first.n, layers["limit"].median())
        axis.plot([first.params] * 2, by_chance, color="0.88", lw=5, zorder=0, solid_capstyle="butt", label=CHANCE)
        draw_bar(axis, first.params, q1, median, q3, ms=5, lw=1, alpha=0.8, mec="white", mew=0.5, marker="o",
                 color=COLOURS[causal], label=KINDS[causal])
        axis.annotate(str(number), (first.params, median), (4, 2), textcoords="offset points", fontsize=7)
        axis.plot([], [], " ", label=f"{number} {first.stack_name}")  # in the legend alone
    sizes = table["params"].min() / 4, table["params"].max() * 4  # a power of ten is between them, and has its label
    axis.set(xscale="log", xlabel="parameters", xlim=sizes)
    axis.xaxis.set_minor_formatter(NullFormatter())  # other labels would cover each other


def draw_bar(axis, x, q1, median, q3, **style):
    """Draws a dot at the median, and a bar from quartile to quartile."""
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ls="", **style)


def draw_stack(axis, table, score):
    """Draws a line over the layers of a stack, and a dot for each of its heads."""
    first = table.iloc[0]
    causal = is_causal(table)
    layers = whole_layers(table).sort_values("layer")  # a spreadsheet may have sorted its rows
    put_chance(axis, score, first.n, layers["limit"].median())
    heads = table[table["head"].notna()]
    if len(heads):
        axis.plot(heads["layer"], heads[score], ".", color=COLOURS[causal], alpha=0.3, ms=4, label="its heads")
    axis.plot(layers["layer"], layers[score], "o-", color=COLOURS[causal], ms=4, label=KINDS[causal])
    axis.set(xlabel="layer", xlim=(-0.5, layers["layer"].max() + 0.5))
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)


def draw_medians(axis, trainings, score):
    """Draws a line for each training, over its steps."""
    style_of = styles(dict(enumerate(map(is_causal, trainings))))
    for number, layers in enumerate(trainings):
        by_step = layers.pivot(index="step", columns="layer", values=score).dropna()  # (S, L)
        draw_quartiles(axis, by_step.index, by_step, label=layers["stack_name"].iloc[0], **style_of[number])
    put_steps(axis)
    put_log_steps(axis, pandas.concat(layers["step"] for layers in trainings))


def draw_training(axis, layers, score):
    """Draws a line for each layer of a training, over its steps."""
    put_chance(axis, score, layers["n"].iloc[0], layers["limit"].median())
    draw_layers(axis, layers.pivot(index="step", columns="layer", values=score))
    put_log_steps(axis, layers["step"])


def put_log_steps(axis, steps):
    """Makes the axis logarithmic if the last step is at least 30 times the first one above 0. 0 is to its left."""
    first = steps[steps > 0].min()  # nan if there is none
    if steps.max() >= 30 * first:
        axis.set_xscale("symlog", linthresh=first)
        axis.minorticks_off()  # their labels would cover each other


# ---- what was published ------------------------------------------------------------------------------------------

FIGURES = {"2": "Language models (Figure 2)", "S1": "Vision and audio (Figure S1)",
           "S2": "Encoder-decoders of language (Figure S2)"}
MARKERS = {"language": "o", "vision": "s", "audio": "^"}


def plot_published(models, table, path):
    """
    Draws Figures 2, S1 and S2: scores against parameters. Repeated models are not drawn.

    models: the rows of models.csv. table: our scores, of scores_table.choose. If a model is in it, our score is the
    full dot, joined to the published one.
    """
    ours = dict(list(whole_layers(table).groupby(["source", "stack"], sort=False)))
    rows = []
    for name, kind in FIGURES.items():
        shown = []  # pairs of a model and our layers of it, or None
        for model in models:
            if model["figure"] == name and not model["repeats"]:
                shown.append((model, ours.get((model["hub_id"], model["stack"]))))
        rows.append((kind, draw_published, shown))
    plot_rows(path, "Published scores of pretrained models by size", rows,
              title="each dot: one model, median over layers; bars: quartiles")


def draw_published(axis, shown, score):
    """Draws a dot for each pair of a model and our layers of it, or None, over its parameters."""
    for model, layers in shown:
        x = int(model["params"])
        causal = model["causal"] == "1"
        style = dict(color=COLOURS[causal], marker=MARKERS[model["modality"]], ms=5)
        published = float(model[score])
        quartiles = float(model[f"{score}_q1"]), published, float(model[f"{score}_q3"])
        if layers is not None:
            quartiles = layers[score].quantile([0.25, 0.5, 0.75])
            axis.plot([x, x], [published, layers[score].median()], color="0.6", lw=0.5, zorder=1)
            axis.plot(x, published, mfc="white", mew=0.8, ls="", label="published, joined to ours", **style)
        label = f"{KINDS[causal]}, {model['modality']}"
        draw_bar(axis, x, *quartiles, lw=0.8, alpha=0.9, zorder=2, label=label, **style)
        if model["matrix"] != "wqk":
            axis.plot(x, published, "x", color="black", ms=6, mew=0.7, ls="", zorder=4,
                      label="crossed out: not a score of $W_{qk}$")
    axis.set(xscale="log", xlabel="parameters", xlim=(2e6, 1e12))  # the same in all rows


# ---- W_qk itself -------------------------------------------------------------------------------------------------


def plot_matrices(results, path):
    """Draws a row for each of results, {target: its ScoredModel}; in a GIF a frame for each step of a training."""
    if not path.endswith(".gif"):
        plot_pairs(results, path)
        return
    frames = []
    with tempfile.TemporaryDirectory() as folder:
        for target, result in results.items():
            title = "" if target.step is None else f"$W_{{qk}}$ in training: step {target.step:,.0f}"
            plot_pairs({target: result}, f"{folder}/frame.png", title)
            frames.append(Image.open(f"{folder}/frame.png").convert("RGB"))
    *others, last = frames  # a preview and a printer show the first frame: it is the end of the training
    times = [2000] + [200] * len(others)  # [ms]
    with replacing(path) as temporary:
        last.save(temporary, "GIF", save_all=True, append_images=others, duration=times, loop=0)


def plot_pairs(results, path, title=""):
    """Draws a row for each of results, {target: its ScoredModel}."""
    with figure(path, len(results), 2, MATRIX, title) as axes:
        for panels, (target, result) in zip(axes, results.items()):
            draw_pair(panels, result, short(target.model if title else target.source))


def draw_pair(axes, result, name):
    """Draws M, the W_qk of the last layer, and its entries (i, j) against (j, i): on a line if M is symmetric."""
    m = result.shown
    layers = whole_layers(result.table)
    layer = layers.iloc[-1]
    causal = is_causal(layers.iloc[[-1]])
    where = f"{layer['stack']} layer {layer['layer']}".strip()  # as in the table
    put_titles(axes, [textwrap.fill(f"{KINDS[causal]} {name}: W_qk of {where}", 44),
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
