"""
What all pictures share, and the pictures of pretrained models. Blue is an encoder and purple a decoder everywhere, as
in the paper.
"""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure  # without pyplot, no window is opened and no figure is kept
from PIL import Image

from data.atomic import replacing
from data.pretrained.files import as_text, printable
from data.results import chance
from data.results.models import is_causal, quartiles, whole_layers
from data.results.runs import SCORES

# By causal, which is None if it is not known.
KINDS = {False: "encoder", True: "decoder", None: "causal unknown"}
COLOURS = {False: "#2166ac", True: "#8e3b9e", None: "0.5"}
ENCODER, DECODER = COLOURS[False], COLOURS[True]
OTHERS = ["#e08214", "#1b7837", "#b2182b", "#c7a000", "#35978f", "#8c510a", "#f768a1", "#4d4d4d", "#7fbc41"]
WIDTH = 7.2  # of a picture [inches]. A page shows it 540 pixels wide: text of 9 points is then 9 pixels high
HEIGHT = 2.6  # of a row [inches]
MATRIX = 3.3  # height of a row of matrices [inches]
LARGEST = 24  # dimensions of a W_qk that are drawn as a matrix: of more, single entries cannot be seen
# What a grey band is: of the models, and of runs, whose files have no singular values.
CHANCE = "95 % of random matrices with the same singular values"
RANDOM = "95 % of random initializations"


# ---- panels ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def figure(path, rows, columns, height=HEIGHT, title="", **shared):
    """Gives a block the axes (rows, columns) to draw on, in rows of a height [inches]. At its end they are saved."""
    fig = Figure((WIDTH, height * rows + 0.3), layout="constrained")
    fig.suptitle(title, fontsize=11)
    axes = fig.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with replacing(path) as temporary:
        fig.savefig(temporary, dpi=150, format=Path(path).suffix[1:])


def short(name):
    """The end of a long name, so that it fits above a panel, written as it is."""
    name = as_text(name)
    name = printable(name if len(name) <= 32 else f"...{name[-29:]}").replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name  # or a legend would leave it out


def in_words(arm):
    """The name of an arm as it is shown."""
    return short(arm.replace("_", " "))


def put_titles(axes, titles):
    for axis, title in zip(axes, titles):
        axis.set_title(title, fontsize=9, loc="left")


def put_zero(axis):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)


def put_legend(axes, ncols=3, named=(), title=None):
    """A legend below the panels, where there are no data. It has every label once, except those that are named."""
    handles = {}  # label -> what it is drawn with
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            if label not in named:
                handles.setdefault(label, handle)
    axes[0].figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=ncols, title=title,
                          frameon=False, fontsize=9, title_fontsize=9)


def put_chance(axis, score, n, limit, label=CHANCE):
    """Draw a grey band: the scores of 95 % of random matrices. limit: of directionality, as chance.py computes it"""
    axis.axhspan(*chance.interval(score, n, limit), color="0.9", lw=0, zorder=-1, label=label)


def plot_rows(path, heading, rows, height=HEIGHT, **legend):
    """
    A row of panels for each (title, draw, shown), and a column for each score. draw(axis, shown, score) draws a panel.
    legend: options of put_legend
    """
    with figure(path, len(rows), len(SCORES), height, heading, sharey="col") as axes:
        for panels, (name, draw, shown) in zip(axes, rows):
            put_titles(panels, [name])  # of the first
            for axis, score in zip(panels, SCORES):
                draw(axis, shown, score)
                put_zero(axis)
                axis.set_ylabel(f"{score} of $W_{{qk}}$")
        put_legend(axes.flat, **legend)


def draw_quartiles(axis, steps, values, **style):
    """values (S, L): a line for the median over layers, a band from quartile to quartile."""
    q1, median, q3 = quartiles(values)  # (S,) each
    axis.plot(steps, median, marker=".", ms=3, **style)
    axis.fill_between(steps, q1, q3, color=style["color"], alpha=0.15, lw=0)


def draw_bar(axis, x, found, **style):
    """A dot at the median, a bar from quartile to quartile. found: (q1, median, q3)"""
    q1, median, q3 = found
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ls="", **style)  # it wants distances from the dot


# ---- many models -------------------------------------------------------------------------------------------------


def plot_models(stacks, path):
    """Scores against parameters. The numbers at the dots refer to the legend. stacks: of models.by_stack"""
    height = HEIGHT + 0.1 * len(stacks)  # every model has its line in the legend
    plot_rows(path, "Scores of pretrained models by size", [("", draw_models, stacks)], height, ncols=2,
              title="dots: median over layers; bars: quartiles")


def draw_models(axis, stacks, score):
    for number, ((model, _, stack), layers) in enumerate(stacks.items(), 1):
        first, causal = layers.iloc[0], is_causal(layers)
        x, found = first.params, quartiles(layers[score])
        limits = chance.interval(score, first.n, layers["limit"].median())
        axis.plot([x, x], limits, color="0.88", lw=5, zorder=0, solid_capstyle="butt", label=CHANCE)
        draw_bar(axis, x, found, ms=5, lw=1, alpha=0.8, mec="white", mew=0.5, marker="o", color=COLOURS[causal],
                 label=KINDS[causal])
        axis.annotate(str(number), (x, found[1]), (4, 2), textcoords="offset points", fontsize=7)
        axis.plot([], [], " ", label=f"{number} {short(model)} {stack}".strip())
    axis.set(xscale="log", xlabel="parameters")


# ---- one model ---------------------------------------------------------------------------------------------------


def plot_model(table, path):
    """The scores of the layers and heads of one model, a row for each stack."""
    stacks = table.groupby(["model", "stack"], sort=False)
    rows = [(short(" ".join(name).strip()), draw_stack, rows) for name, rows in stacks]
    plot_rows(path, "Scores of each layer", rows)


def draw_stack(axis, table, score):
    first, causal = table.iloc[0], is_causal(table)
    layers = whole_layers(table).sort_values("layer")  # a spreadsheet may have sorted its rows
    put_chance(axis, score, first.n, layers["limit"].median())
    heads = table[table["head"].notna()]
    if len(heads):
        axis.plot(heads["layer"], heads[score], ".", color=COLOURS[causal], alpha=0.3, ms=4, label="its heads")
    axis.plot(layers["layer"], layers[score], "o-", color=COLOURS[causal], ms=4, label=KINDS[causal])
    axis.set(xlabel="layer", xlim=(-0.5, layers["layer"].max() + 0.5))
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)


# ---- W_qk itself -------------------------------------------------------------------------------------------------


def plot_matrices(results, path):
    """
    A row for each model: W_qk of its last layer, and its entries (i, j) against (j, i). Of trainings, a GIF is a movie
    with a frame for each checkpoint. results: {target: its ScoredModel}
    """
    if not str(path).endswith(".gif") or any(target.step is None for target in results):
        draw_pairs([(target.source, result) for target, result in results.items()], path)
        return
    trainings = {}  # model -> its checkpoints, in their order
    for target, result in results.items():
        trainings.setdefault(target.model, []).append((target, result))
    frames = []
    with tempfile.TemporaryDirectory() as folder:
        for checkpoints in zip(*trainings.values()):
            steps = dict.fromkeys(f"{target.step:,.0f}" for target, _ in checkpoints)
            title = f"$W_{{qk}}$ in training: step {' and '.join(steps)}"
            draw_pairs([(target.model, result) for target, result in checkpoints], f"{folder}/frame.png", title)
            frames.append(Image.open(f"{folder}/frame.png").convert("RGB"))
    *others, last = frames  # a preview and a printer show the first frame: it is the end of the training
    times = [2000] + [200] * len(others)  # [ms]
    with replacing(path) as temporary:
        last.save(temporary, "GIF", save_all=True, append_images=others, duration=times, loop=0)


def draw_pairs(results, path, title=""):
    """A row for each of results, (name, its ScoredModel)."""
    with figure(path, len(results), 2, MATRIX, title) as axes:
        for panels, (name, result) in zip(axes, results):
            draw_pair(panels, result, short(name))


def draw_pair(axes, result, name):
    """
    M, the W_qk of the last layer, and a dot for each pair of its dimensions at (M_ij, M_ji): these are a line if M is
    symmetric, and a round cloud if it is random. result: a ScoredModel
    """
    m, layers = result.shown, whole_layers(result.table)
    layer, causal = layers.iloc[-1], is_causal(layers.iloc[[-1]])
    n_layer = (layers["stack"] == layer["stack"]).sum()
    where = f"{layer['stack']} layer".strip()
    put_titles(axes, [f"{KINDS[causal]} {name}: W_qk of {where} {n_layer} of {n_layer}",
                      f"symmetry {layer.symmetry:.2f}, directionality {layer.directionality:.2f}"])
    matrix, pairs = axes
    n = min(LARGEST, len(m))
    limit = np.quantile(np.abs(m[:n, :n]), 0.97)  # the scores do not depend on the size of M, nor do the colours
    matrix.imshow(m[:n, :n], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    matrix.plot([-0.5, n - 0.5], [-0.5, n - 0.5], color="black", lw=0.8, ls="--")
    matrix.spines[["top", "right"]].set_visible(True)
    matrix.set(xticks=[], yticks=[], ylabel="query side",
               xlabel=f"key side (the {n} largest of {layer.n} dimensions)\n"
                      "red: above 0, blue: below; dashed: the diagonal")
    i, j = np.triu_indices(len(m), 1)
    limit = 1.05 * np.quantile(np.abs(m), 0.999)
    pairs.axline((0, 0), slope=1, color="0.6", lw=0.8, zorder=0)  # where M_ij = M_ji
    pairs.plot(m[i, j], m[j, i], ".", ms=4, mew=0, color=COLOURS[causal], alpha=0.5)
    pairs.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xticks=[0], yticks=[0],
              xlabel="entry in row i, column j\n(a dot for each pair; line: both equal)",
              ylabel="entry in row j, column i")
