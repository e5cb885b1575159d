"""Draws the scores of pretrained models over their training, and what was published."""

import numpy as np

from data.results.figures import COLOURS, KINDS, draw_bar, draw_quartiles, plot_rows, put_chance, short
from data.results.figures_runs import draw_layers, put_steps, styles
from data.results.models import Quartiles, StackName, quartiles

# ---- over training -----------------------------------------------------------------------------------------------


def plot_training(trainings, path):
    """Draws medians and quartiles over layers, and then for each training, a Record, a line for each layer."""
    rows = [("lines: median over layers; bands: quartiles", draw_medians, trainings)]
    for training in trainings:
        rows.append((short(training.arm), draw_lines, training))
    plot_rows(path, "Scores over the training of pretrained models", rows)


def draw_medians(axis, trainings, score):
    style_of = styles({training.arm: [training] for training in trainings})
    for training in trainings:
        layers = training.layers(score).dropna()  # (S, L)
        draw_quartiles(axis, layers.index, layers, label=short(training.arm), **style_of[training.arm])
    put_steps(axis)
    put_log_steps(axis, trainings)


def draw_lines(axis, training, score):
    put_chance(axis, score, training.config["n"], training.config["limit"])
    draw_layers(axis, training, score)
    put_log_steps(axis, [training])


def put_log_steps(axis, trainings):
    """Makes the axis logarithmic if the last step is at least 30 times the first one above 0. 0 is to its left."""
    steps = np.concatenate([training.table.index for training in trainings])
    first = steps[steps > 0].min(initial=np.inf)
    if steps.max() >= 30 * first:
        axis.set_xscale("symlog", linthresh=first)
        axis.minorticks_off()  # their labels would cover each other


# ---- what was published ------------------------------------------------------------------------------------------

FIGURES = {"2": "Language models (Figure 2)", "S1": "Vision and audio (Figure S1)",
           "S2": "Encoder-decoders of language (Figure S2)"}
MARKERS = {"language": "o", "vision": "s", "audio": "^"}


def plot_pretrained(models, ours, path):
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
