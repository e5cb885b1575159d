"""The picture and the table of one training run."""

import numpy as np
import pandas
from matplotlib import colormaps

from data import fixed
from data.drawing import panels, short
from data.runs.read import read_run

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "positions": "symmetry of positions",
          "heads": "symmetry of single heads"}
CHANCES = {"symmetry": "chance", "positions": "positions_chance", "heads": "heads_chance"}  # drawn dotted


def finish(folder):
    """Draws run.png for the run in a folder. Returns what to print at its end: scores, loss, and the picture."""
    arm = draw_run(folder)
    columns = {}
    for score in "symmetry", "heads", "directionality", "positions":
        layers = arm.layers(score).to_numpy()  # (S, L), or empty
        if len(layers):
            columns[f"{score}: start"] = layers[0]
            columns[f"{score}: end"] = layers[-1]

        # chance stands beside symmetry, and so does its limit (1, L), which wide models do not have
        if score == "symmetry":
            columns["by chance"] = arm.layers("chance").to_numpy()[-1]
            limits = arm.layers("symmetry_95").to_numpy()
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
    plot_run(arm, f"{folder}/run.png")
    return arm


def plot_run(arm, path):
    """Draws the loss and the scores of each layer over the steps of one run."""
    [seed] = arm.seeds()
    titles = {"loss": "loss [nats/token]"}
    for score in "symmetry", "directionality", "positions":
        if len(arm.curves(score)):
            titles[score] = TITLES[score]
    words = "dotted: mean of random matrices in the same directions (chance)"
    title = f"Training of {short(arm.name.replace('_', ' '))}, seed {seed}"
    for axis, measure in panels(path, titles, words, title):
        if measure == "loss":
            axis.plot(arm.curves("train_loss"), color="0.7", label="training loss")
            axis.plot(arm.curves("loss"), color="black", label="validation loss")
            continue

        # dark layers are at the bottom of the network, light ones at its top
        layers = arm.layers(measure)  # (S, L)
        chances = arm.layers(CHANCES.get(measure))  # the same, or no column where there is no chance
        last = layers.shape[1] - 1
        for i, name in enumerate(layers):
            colour = colormaps["viridis"](0.9 * i / max(1, last))  # the last tenth is too light for a line
            axis.plot(layers[name], color=colour, label=f"layer {i}" if i in (0, last) else None)
            if i < chances.shape[1]:
                axis.plot(chances.iloc[:, i], ":", color=colour, lw=1)
