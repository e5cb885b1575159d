"""The picture and the table of one training run. Dark layers are at the bottom of a network, light ones at its top."""

import numpy as np
import pandas

from data import fixed
from data.drawing import draw_layers, panels, short
from data.runs.read import read_run

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "positions": "symmetry of positions",
          "heads": "symmetry of single heads"}
CHANCES = {"symmetry": "chance", "positions": "positions_chance", "heads": "heads_chance"}  # drawn dotted


def finish(folder):
    """Draws run.png for the run in a folder, and returns what to print at its end: scores, loss, and the picture."""
    return f"{table_of_ends(draw_run(folder))}; picture: {folder}/run.png"


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
        else:
            chance = arm.layers(CHANCES[measure]) if measure in CHANCES else None
            draw_layers(axis, arm.layers(measure), chance)


def table_of_ends(arm):
    """Returns the first and last scores of every layer, and the last loss, as a text. arm: Runs of one seed."""
    columns = {}
    for score in "symmetry", "heads", "directionality", "positions":
        layers = arm.layers(score).to_numpy()  # (S, L), or empty
        if len(layers):
            columns[f"{score}: start"], columns[f"{score}: end"] = layers[0], layers[-1]

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
    return f"{scores}\nvalidation loss {arm.at_end('loss').item():.4f} nats/token"
