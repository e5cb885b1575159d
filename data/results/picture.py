"""Draws the curves of one run of train.py."""

import math

from data import chance
from data.chance import SCORES
from data.drawing import RANDOM, draw_layers, figure, put_chance, put_legend, put_steps, put_titles, put_zero, short

TITLES = {"symmetry": "symmetry of $W_{qk}$", "directionality": "directionality of $W_{qk}$",
          "heads": "symmetry of single heads", "positions": "symmetry of positions"}


def in_words(arm):
    """Returns the name of an arm as it is shown."""
    return short(arm.replace("_", " "))


def plot_run(record, path, gamma):
    """Draws loss and scores over the steps of one run, with a line for each layer."""
    scores = [score for score in TITLES if len(record.curve(score))]
    rows = math.ceil((1 + len(scores)) / 3)
    with figure(path, rows, 3, title=f"Training of {in_words(record.arm)}, seed {record.seed}") as axes:
        loss, *panels = axes.flat
        loss.plot(record.curve("train_loss"), color="0.7", label="training loss")
        loss.plot(record.curve("val_loss"), color="black", label="validation loss")
        put_steps(loss)
        n_embd = record.config["n_embd"]
        for axis, score in zip(panels, scores):
            draw_layers(axis, record.layers(score))
            put_zero(axis)
            if score in SCORES:
                put_chance(axis, score, n_embd, chance.limit_of_random(n_embd, gamma), RANDOM)
            elif score == "positions":
                axis.plot(record.curve("positions_chance"), "k:", label="mean of random matrices like positions'")
        put_titles(axes.flat, ["loss [nats/token]", *(TITLES[score] for score in scores)])
        put_legend(axes.flat)
