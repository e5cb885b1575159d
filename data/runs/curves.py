"""The picture and the table of one training run. Dark layers are at the bottom of a network, light ones at its top."""

from pathlib import Path

import numpy as np
import pandas

from data.drawing import HEIGHT, draw_layers, figure, put_legend, put_steps, put_titles, put_zero, short
from data import fixed
from data.runs.read import read_run

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "positions": "symmetry of positions",
          "heads": "symmetry of single heads"}
CHANCES = {"symmetry": "chance", "positions": "positions_chance", "heads": "heads_chance"}  # drawn dotted


def finish(folder):
    """Draws run.png for the run in a folder, and returns what is printed at its end: scores, loss, and the picture."""
    return f"{table_of_ends(draw_run(folder))}; picture: {folder}/run.png"


def draw_run(folder):
    """Draws run.png from the rows of the run in a folder, and returns them, as Runs. The run may still go on."""
    arm = read_run(folder)
    plot_run(arm, Path(folder, "run.png"))
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
            chance = arm.layers(CHANCES[measure]).droplevel("seed") if measure in CHANCES else None
            draw_layers(axis, arm.layers(measure).droplevel("seed"), chance)


def panels(path, titles, words, title=""):
    """Gives an axis for each of at most four measures, {measure: its title}, and then saves the picture."""
    n_rows = 2 if len(titles) == 4 else 1
    height = 1.5 * HEIGHT if len(titles) == 1 else HEIGHT  # one panel is as wide as the page, so make it higher
    with figure(path, n_rows, len(titles) // n_rows, height, title) as axes:
        for axis, measure in zip(axes.flat, titles):
            yield axis, measure
            put_steps(axis)
            if measure != "loss":
                put_zero(axis)
        put_titles(axes.flat, titles.values())
        put_legend(axes.flat, title=words)


def table_of_ends(arm):
    """Returns the first and last scores of every layer, and the last loss, as a text. arm: Runs of one seed."""
    ends = []
    for score in "symmetry", "heads", "directionality", "positions":
        # the first and the last row of its scores by layer (S, L) become two columns
        layers = arm.layers(score)
        if len(layers):
            rows = layers.iloc[[0, -1]].set_axis([f"{score}: start", "end"])  # (2, L)
            ends.append(rows.T.reset_index(drop=True))  # (L, 2)

        # chance stands beside symmetry, and so does the limit (1, L), which wide models do not have
        if score == "symmetry":
            chance = {"by chance": arm.layers("chance").iloc[-1].to_numpy()}
            limits = arm.layers("symmetry_95")
            if len(limits):
                limit = limits.iloc[-1].to_numpy()
                beyond = np.where(layers.iloc[-1] > limit, "yes", "no")
                chance |= {"95 % below": limit, "beyond": beyond}
            ends.append(pandas.DataFrame(chance))
    table = pandas.concat(ends, axis="columns").rename_axis(columns="layer")
    scores = table.to_string(float_format=lambda score: fixed(score, 2))
    return f"{scores}\nvalidation loss {arm.at_end('loss').item():.4f} nats/token"
