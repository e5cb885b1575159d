"""
Draws the pictures of training runs. arms is {name of an arm: its records, one per seed}. The first encoder is blue and
the first decoder purple. Dark layers are at the bottom of a network, light ones at its top.
"""

import itertools
import math

import numpy as np
import pandas

from data import chance
from data.chance import SCORES
from data.figures import (HEIGHT, RANDOM, draw_layers, figure, put_chance, put_legend, put_steps, put_titles, put_zero,
                          short, styles)

TITLES = {"symmetry": "symmetry of $W_{qk}$", "directionality": "directionality of $W_{qk}$",
          "heads": "symmetry of single heads", "positions": "symmetry of positions' own matrix"}


# ---- what they share ---------------------------------------------------------------------------------------------


def in_words(arm):
    """Returns the name of an arm as it is shown."""
    return short(arm.replace("_", " "))


def put_names(axis, names):
    """Makes the y axis one of names, the first at the top."""
    axis.set(yticks=range(len(names)), yticklabels=map(in_words, names), ylim=(len(names) - 0.5, -0.5))


# ---- runs --------------------------------------------------------------------------------------------------------


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
                put_chance(axis, score, n_embd, chance.of_random(n_embd, gamma), RANDOM)
            elif score == "positions":
                axis.plot(record.curve("positions_chance"), "k:", label="mean of random matrices like positions'")
        put_titles(axes.flat, ["loss [nats/token]", *(TITLES[score] for score in scores)])
        put_legend(axes.flat)


def plot_runs(arms, path, gamma):
    """Draws Figures 3 and S5: losses and scores over the steps."""
    style_of = styles({name: records[0].config["causal"] for name, records in arms.items()})
    has_bands = len(arms) <= 6  # the bands of more arms cover each other
    height = max(HEIGHT, 0.25 * len(arms))  # [inches]: every arm is named beside its losses
    runs = list(itertools.chain(*arms.values()))
    scores = [score for score in TITLES if any(len(record.curve(score)) for record in runs)]
    rows = 1 + math.ceil(len(scores) / 2)
    with figure(path, rows, 2, height, "Runs compared: loss and scores over training") as axes:
        loss, ends, *panels = axes.flat
        for axis, column in (loss, "val_loss"), *zip(panels, scores):
            for name, records in arms.items():
                draw_seeds(axis, records, column, has_bands, label=name, **style_of[name])
            put_steps(axis)
        losses = [record.curve("val_loss") for record in runs]
        loss.set_ylim(top=pandas.concat(losses).quantile(0.9))  # the first losses are far above, and are cut off
        draw_ends(ends, arms, style_of)
        for axis in panels[:len(scores)]:
            put_zero(axis)
        widths = [records[0].config["n_embd"] for records in arms.values()]
        if len(set(widths)) == 1:  # the range is of one size
            n_embd = widths[0]
            directionality = panels[scores.index("directionality")]
            put_chance(directionality, "directionality", n_embd, chance.of_random(n_embd, gamma), RANDOM)
        put_titles(axes.flat, ["validation loss [nats/token]", "loss at the end [nats/token]",
                               *(TITLES[score] for score in scores)])
        bands = "; coloured bands: lowest to highest seed" if has_bands else ""
        put_legend(axes.flat, named=arms, title=f"lines and bars: mean over seeds; dots: seeds{bands}\n"
                                                "colours: as the names; scores: median over layers")


def draw_seeds(axis, records, column, has_band, **style):
    """Draws the mean over seeds of a column (of a score: its median over layers), and a band from lowest to highest."""
    curves = [record.curve(column) for record in records]
    table = pandas.concat(curves, axis="columns", join="inner")  # (S, seeds): the steps that all of them have
    axis.plot(table.mean(axis="columns"), **style)
    if has_band:
        low = table.min(axis="columns")  # (S,)
        high = table.max(axis="columns")  # (S,)
        axis.fill_between(table.index, low, high, color=style["color"], alpha=0.1, lw=0)


def draw_ends(axis, arms, style_of):
    """Draws a row for each arm, in its colour: a dot for the last loss of each seed, and a bar for their mean."""
    for y, (name, records) in enumerate(arms.items()):
        losses = [record.last("val_loss") for record in records]
        mean = np.mean(losses)
        axis.plot(losses, [y] * len(losses), ".", color=style_of[name]["color"], alpha=0.6)
        axis.plot([mean, mean], [y - 0.3, y + 0.3], lw=2, **style_of[name])
    axis.locator_params(axis="x", nbins=4)
    put_names(axis, arms)
    for name, text in zip(arms, axis.get_yticklabels()):
        text.set_color(style_of[name]["color"])  # these names explain the lines of all panels
