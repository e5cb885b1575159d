"""The picture and the table of one training run, layer by layer."""

import math
import re

import numpy as np
import pandas
from matplotlib import colormaps

from data import fixed
from data.drawing import HEIGHT, figure, put_names, put_steps, put_titles, put_zero, short
from data.runs.read import read_run

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "heads": "symmetry of single heads", "directionality": "directionality of $W_{qk}$",
          "positions": "symmetry of positions"}
CHANCES = {"symmetry": "chance", "positions": "positions_chance", "heads": "heads_chance"}  # drawn dotted


def finish(folder):
    """Draws run.png for the run in a folder. Returns what to print at its end: scores, loss, and the picture."""
    arm, columns = draw_run(folder), {}

    def layers_of(score):
        return arm.table.filter(regex=rf"^{score}_\d+$").dropna(how="all").to_numpy()  # (S, L), or empty

    for score in "symmetry", "heads", "directionality", "positions":
        layers = layers_of(score)
        if len(layers):
            columns[f"{score}: start"] = layers[0]
            columns[f"{score}: end"] = layers[-1]

        # chance stands beside symmetry, and so does its limit (1, L), which wide models do not have
        if score == "symmetry":
            columns["by chance"] = layers_of("chance")[-1]
            limits = layers_of("symmetry_95")
            if len(limits):
                columns["95 % below"] = limits[-1]
                columns["beyond"] = np.where(layers[-1] > limits[-1], "yes", "no")
    table = pandas.DataFrame(columns).rename_axis(columns="layer")
    table.columns = table.columns.str.replace(".*: end", "end", regex=True)  # it stands beside its start
    scores = table.to_string(float_format=lambda score: fixed(score, 2))
    return f"{scores}\nvalidation loss {arm.at_end('loss').item():.4f} nats/token; picture: {folder}/run.png"


def draw_run(folder):
    """Draws run.png from the rows of the run in a folder, and returns them, as Runs. The run may still go on."""
    arm = read_run(folder)
    [seed] = arm.seeds()
    plot_layers(arm, f"{folder}/run.png", f"Training of {short(arm.name.replace('_', ' '))}, seed {seed}")
    return arm


def panels(path, measures, words, title):
    """Gives an axis for each of some measures, and then saves the picture, with these words below."""
    # three stand side by side, and more of them in pairs. One panel is as wide as the page, so make it higher
    n_columns = 3 if len(measures) == 3 else min(2, len(measures))
    n_rows = math.ceil(len(measures) / n_columns)
    height = 1.4 * HEIGHT if len(measures) == 1 else HEIGHT
    with figure(path, n_rows, n_columns, height, title) as axes:
        for axis, measure in zip(axes.flat, measures):
            # its title: directionality_0 is that of layer 0
            score = re.sub(r"_\d+$", "", measure)
            above = measure.replace(score, TITLES.get(score, score), 1).replace("$_", "$, layer ")
            put_titles([axis], [above])
            yield axis, measure

            # the caller has drawn its lines: name them
            put_steps(axis)
            if measure != "loss":
                put_zero(axis)
            put_names(axis)
        for axis in axes.flat[len(measures):]:
            axis.remove()
        axes[0, 0].figure.supxlabel(words, fontsize=9)


def plot_layers(arm, path, title, measures=TITLES):
    """Draws those of these measures that an arm has, layer by layer over the steps, as means over its seeds."""
    has = [measure for measure in measures if len(arm.curves(measure))]
    words = f"means of {len(arm.seeds())} runs" if len(arm.seeds()) > 1 else ""
    for axis, measure in panels(path, has, words, title):
        if measure == "loss":
            draw_mean(axis, arm, "train_loss", "training loss", color="0.7")
            draw_mean(axis, arm, "loss", "validation", color="black")
            continue

        # dark layers are at the bottom of the network, light ones at its top
        last = arm.config["n_layer"] - 1
        for i in range(last + 1):
            colour = colormaps["viridis"](0.8 * i / max(1, last))  # the last fifth is too light for a line
            label = f"layer {i}" if last < 4 or i in (0, last) else None
            draw_mean(axis, arm, f"{measure}_{i}", label, color=colour)
            draw_mean(axis, arm, f"{CHANCES.get(measure)}_{i}", None, color=colour, ls=":", lw=1)  # if it has chance
        if measure == "heads":
            axis.sharey(axis.figure.axes[1])  # layers are beside their heads


def draw_mean(axis, arm, measure, label, begin=0, has_seeds=False, **style):
    """Draws the mean over the runs of an arm at the steps that all of them have, and maybe a thin line for each run."""
    curves = arm.curves(measure).dropna()  # (S, seeds)
    curves.index += begin
    axis.plot(curves.mean(axis="columns"), label=label, **style)
    if has_seeds:
        axis.plot(curves, color=style["color"], lw=0.5, alpha=0.3)
