"""
Draws training runs. arms is {name of an arm: its records, one per seed}. The first encoder is blue and the first
decoder purple. Dark layers are at the bottom of a network, light ones at its top.
"""

import itertools
import math

import numpy as np
import pandas

from data.drawing import HEIGHT, draw_layers, figure, put_legend, put_steps, put_titles, put_zero, short, styles
from data.results.compare import by_task

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "heads": "symmetry of single heads",
          "positions": "symmetry of positions"}
# Of random matrices of 96 dimensions 95 in 100 have a directionality between -0.99 and 0.99, of 128 between -0.85 and
# 0.85, and of 256 between -0.60 and 0.60.
MIN_N_EMBD = 128
DOTTED = "dotted: mean of random matrices in the same directions (chance)"


def in_words(arm):
    """Returns the name of an arm as it is shown."""
    return short(arm.replace("_", " "))


def plot_run(record, path):
    """Draws the loss and the scores of each layer over the steps of one run."""
    scores = [score for score in ("symmetry", "directionality", "positions") if len(record.curve(score))]
    with figure(path, *grid(1 + len(scores)), title=f"Training of {in_words(record.arm)}, seed {record.seed}") as axes:
        loss, *panels = axes.flat
        loss.plot(record.curve("train_loss"), color="0.7", label="training loss")
        loss.plot(record.curve("loss"), color="black", label="validation loss")
        put_steps(loss)
        for axis, score in zip(panels, scores):
            chance = dict(symmetry="chance", positions="positions_chance").get(score)
            draw_layers(axis, record.layers(score), record.layers(chance) if chance else None)
            put_zero(axis)
        put_titles(axes.flat, ["loss [nats/token]", *(TITLES[score] for score in scores)])
        put_legend(axes.flat, title=DOTTED)


def grid(n):
    """Returns rows and columns for n panels."""
    columns = 2 if n in (2, 4) else min(n, 3)
    return math.ceil(n / columns), columns


def plot_layers(arms, path):
    """Draws the symmetry of each layer over the steps, a panel for each arm, mean over its seeds."""
    with figure(path, *grid(len(arms)), title=TITLES["symmetry"], sharey=True) as axes:
        for axis, records in zip(axes.flat, arms.values()):
            layers, chance = [sum(record.layers(score) for record in records) / len(records)
                              for score in ("symmetry", "chance")]  # (S, L) each, nan at steps that a run lacks
            draw_layers(axis, layers, chance)
            put_zero(axis)
        put_titles(axes.flat, map(in_words, arms))
        put_legend(axes.flat, title=f"mean over seeds; {DOTTED}" if chance.size else "mean over seeds")


def plot_runs(arms, path, planned=()):
    """
    Draws the means over seeds of at most four measures over the steps, those of planned tests first.

    Losses are drawn if all arms have the same task, and beside them those at the end.
    """
    runs = list(itertools.chain(*arms.values()))
    style_of = styles({name: records[0].config["causal"] for name, records in arms.items()})
    measures, words = choose_measures(arms, planned)
    named = []
    with figure(path, *grid(len(measures)), max(HEIGHT, 0.25 * len(arms))) as axes:
        for axis, measure in zip(axes.flat, measures):
            if measure == "ends":
                draw_ends(axis, arms, style_of)
                named = [in_words(name) for name in arms if style_of[name]["ls"] == "-"]  # by the colours of this panel
            else:
                draw_arms(axis, arms, measure, style_of)
            if measure == "loss":
                losses = pandas.concat([run.curve("loss") for run in runs])
                axis.set_ylim(max(0, losses.min() - 0.1), losses.quantile(0.9))  # the first losses are cut off
            elif measure != "ends":
                put_zero(axis)
        ends = "loss at the end" if all(run.is_finished() for run in runs) else "last loss"
        titles = TITLES | {"ends": f"{ends} [nats/token]"}
        put_titles(axes.flat, [titles.get(measure, measure) for measure in measures])
        put_legend(axes.flat, named=named, title="\n".join(words))


def choose_measures(arms, planned):
    """Returns at most four measures to draw, "ends" among them, and the lines of the legend."""
    words = ["lines: mean over seeds; bands: lowest to highest seed; scores: median over layers"]
    losses = ["loss", "ends"]
    if len(by_task(arms)) > 1:
        losses = []
        words.append("losses are not drawn, because these runs have different tasks")
    scores = [measure for measure in planned if measure != "loss"]
    scores += ["symmetry", "directionality", "positions", "heads"]
    n_embd = min(records[0].config["n_embd"] for records in arms.values())
    if n_embd < MIN_N_EMBD and "directionality" not in planned:
        scores.remove("directionality")
        words.append(f"directionality is not drawn: chance gives any value from -1 to 1 in {n_embd} dimensions")
    drawn = [score for score in dict.fromkeys(scores)
             if any(len(record.curve(score)) for record in itertools.chain(*arms.values()))]
    return (losses + drawn)[:4], words


def draw_arms(axis, arms, measure, style_of):
    """Draws, for each arm, the mean over seeds of a measure over the steps, and a band from lowest to highest seed."""
    alpha = 0.15 if len(arms) <= 6 else 0.08  # the bands of more arms cover each other
    for name, records in arms.items():
        curves = [record.curve(measure) for record in records]
        table = pandas.concat(curves, axis="columns", join="inner")  # (S, seeds): the steps that all of them have
        axis.plot(table.mean(axis="columns"), label=in_words(name), **style_of[name])
        axis.fill_between(table.index, table.min(axis="columns"), table.max(axis="columns"),
                          color=style_of[name]["color"], alpha=alpha, lw=0)
    put_steps(axis)


def draw_ends(axis, arms, style_of):
    """Draws a row for each arm, in its colour: a dot for the last loss of each seed, and a bar for their mean."""
    for y, (name, records) in enumerate(arms.items()):
        losses = [record.last("loss") for record in records]
        mean = np.mean(losses)
        axis.plot(losses, [y] * len(losses), ".", color=style_of[name]["color"], alpha=0.6)
        axis.plot([mean, mean], [y - 0.3, y + 0.3], lw=2, color=style_of[name]["color"])
    axis.locator_params(axis="x", nbins=4)
    axis.set(yticks=range(len(arms)), yticklabels=map(in_words, arms), ylim=(len(arms) - 0.5, -0.5))  # first at the top
    for name, text in zip(arms, axis.get_yticklabels()):
        text.set_color(style_of[name]["color"])  # these names explain the lines of all panels
