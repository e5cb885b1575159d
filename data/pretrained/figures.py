"""Draws the scores of pretrained models: by size, by layer, over training, and as published; and W_qk itself."""

import tempfile

import numpy as np
from PIL import Image

from data import chance
from data.atomic import replacing
from data.chance import SCORES
from data.figures import (CHANCE, COLOURS, HEIGHT, KINDS, draw_layers, draw_quartiles, figure, put_chance, put_legend,
                          put_steps, put_titles, put_zero, short, styles)
from data.pretrained.scores_table import Quartiles, StackName, is_causal, quartiles, whole_layers

MATRIX = 3.3  # height of a row of matrices [inches]
LARGEST = 24  # dimensions of a W_qk that are drawn as a matrix: of more, single entries cannot be seen


# ---- panels ------------------------------------------------------------------------------------------------------


def plot_rows(path, heading, rows, height=HEIGHT, **legend):
    """
    Draws a row of panels for each of rows, which are tuples (title, draw, shown), and a column for each score.

    draw(axis, shown, score) draws a panel. legend: options of put_legend
    """
    with figure(path, len(rows), len(SCORES), height, heading, sharey="col") as axes:
        for panels, (title, draw, shown) in zip(axes, rows):
            put_titles(panels, [title])  # of the first
            for axis, score in zip(panels, SCORES):
                draw(axis, shown, score)
                put_zero(axis)
                axis.set_ylabel(f"{score} of $W_{{qk}}$")
        put_legend(axes.flat, **legend)


def draw_bar(axis, x, found, **style):
    """Draws a dot at the median, and a bar from quartile to quartile. found: Quartiles"""
    distances = [[found.median - found.q1], [found.q3 - found.median]]  # from the dot
    axis.errorbar(x, found.median, distances, ls="", **style)


# ---- many models -------------------------------------------------------------------------------------------------


def plot_models(stacks, path):
    """Draws scores against parameters. The numbers at the dots refer to the legend. stacks: of models.by_stack"""
    height = HEIGHT + 0.1 * len(stacks)  # every model has its line in the legend
    plot_rows(path, "Scores of pretrained models by size", [("", draw_models, stacks)], height, ncols=2,
              title="dots: median over layers; bars: quartiles")


def draw_models(axis, stacks, score):
    for number, (name, layers) in enumerate(stacks.items(), 1):
        first = layers.iloc[0]
        causal = is_causal(layers)
        found = quartiles(layers[score])
        x = first.params
        limits = chance.interval(score, first.n, layers["limit"].median())
        axis.plot([x, x], limits, color="0.88", lw=5, zorder=0, solid_capstyle="butt", label=CHANCE)
        draw_bar(axis, x, found, ms=5, lw=1, alpha=0.8, mec="white", mew=0.5, marker="o", color=COLOURS[causal],
                 label=KINDS[causal])
        axis.annotate(str(number), (x, found.median), (4, 2), textcoords="offset points", fontsize=7)
        axis.plot([], [], " ", label=f"{number} {short(name.model)} {name.stack}".strip())  # in the legend alone
    axis.set(xscale="log", xlabel="parameters")


# ---- one model ---------------------------------------------------------------------------------------------------


def plot_model(table, path):
    """Draws the scores of the layers and heads of one model, a row for each stack."""
    stacks = table.groupby(["model", "stack"], sort=False)
    rows = [(short(" ".join(name).strip()), draw_stack, rows) for name, rows in stacks]
    plot_rows(path, "Scores of each layer", rows)


def draw_stack(axis, table, score):
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


# ---- over training -----------------------------------------------------------------------------------------------


def plot_training(trainings, path):
    """Draws medians and quartiles over layers, and then for each Training a line for each layer."""
    rows = [("lines: median over layers; bands: quartiles", draw_medians, trainings)]
    for training in trainings:
        rows.append((short(training.name), draw_lines, training))
    plot_rows(path, "Scores over the training of pretrained models", rows)


def draw_medians(axis, trainings, score):
    style_of = styles({training.name: training.causal for training in trainings})
    for training in trainings:
        layers = training.scores[score].dropna()  # (S, L)
        draw_quartiles(axis, layers.index, layers, label=short(training.name), **style_of[training.name])
    put_steps(axis)
    put_log_steps(axis, trainings)


def draw_lines(axis, training, score):
    put_chance(axis, score, training.n, training.limit)
    draw_layers(axis, training.scores[score])
    put_log_steps(axis, [training])


def put_log_steps(axis, trainings):
    """Makes the axis logarithmic if the last step is at least 30 times the first one above 0. 0 is to its left."""
    steps = np.concatenate([training.scores.index for training in trainings])
    first = steps[steps > 0].min(initial=np.inf)
    if steps.max() >= 30 * first:
        axis.set_xscale("symlog", linthresh=first)
        axis.minorticks_off()  # their labels would cover each other


# ---- what was published ------------------------------------------------------------------------------------------

FIGURES = {"2": "Language models (Figure 2)", "S1": "Vision and audio (Figure S1)",
           "S2": "Encoder-decoders of language (Figure S2)"}
MARKERS = {"language": "o", "vision": "s", "audio": "^"}


def plot_published(models, ours, path):
    """
    Draws Figures 2, S1 and S2: scores against parameters. Repeated models are not drawn.

    models: the rows of models.csv. ours: of models.by_stack. If a model is in ours, our score is the full dot, joined
    to the published one.
    """
    rows = []
    for name, kind in FIGURES.items():
        shown = []  # pairs of a model and our layers of it, or None
        for model in models:
            if model["figure"] == name and not model["repeats"]:
                shown.append((model, ours.get(StackName(model["name"], "", model["stack"]))))
        rows.append((kind, draw_published, shown))
    plot_rows(path, "Published scores of pretrained models by size", rows,
              title="each dot: one model, median over layers; bars: quartiles")


def draw_published(axis, shown, score):
    for model, layers in shown:
        x = int(model["params"])
        causal = model["causal"] == "1"
        style = dict(color=COLOURS[causal], marker=MARKERS[model["modality"]], ms=5)
        published = Quartiles(float(model[f"{score}_q1"]), float(model[score]), float(model[f"{score}_q3"]))
        found = published
        if layers is not None:
            found = quartiles(layers[score])
            axis.plot([x, x], [published.median, found.median], color="0.6", lw=0.5, zorder=1)
            axis.plot(x, published.median, mfc="white", mew=0.8, ls="", label="published, joined to ours", **style)
        label = f"{KINDS[causal]}, {model['modality']}"
        draw_bar(axis, x, found, lw=0.8, alpha=0.9, zorder=2, label=label, **style)
        if model["matrix"] != "wqk":
            axis.plot(x, published.median, "x", color="black", ms=6, mew=0.7, ls="", zorder=4,
                      label="crossed out: not a score of $W_{qk}$")
    axis.set(xscale="log", xlabel="parameters", xlim=(2e6, 1e12))  # the same in all rows


# ---- W_qk itself -------------------------------------------------------------------------------------------------


def plot_matrices(results, path):
    """
    Draws a row for each model: W_qk of its last layer, and its entries (i, j) against (j, i).

    Of trainings, a GIF is a movie with a frame for each checkpoint. results: {target: its ScoredModel}
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
    """Draws a row for each of results, which are pairs of a name and a ScoredModel."""
    with figure(path, len(results), 2, MATRIX, title) as axes:
        for panels, (name, result) in zip(axes, results):
            draw_pair(panels, result, short(name))


def draw_pair(axes, result, name):
    """Draws M, the W_qk of the last layer, and its entries (i, j) against (j, i): on a line if M is symmetric."""
    m = result.shown
    layers = whole_layers(result.table)
    layer = layers.iloc[-1]
    causal = is_causal(layers.iloc[[-1]])
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
