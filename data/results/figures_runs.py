"""
Draws the pictures of several training runs; picture.py draws one. arms is {name of an arm: its records, one per seed}.
The first encoder is blue and the first decoder purple. Dark layers are at the bottom of a network, light ones at its
top.
"""

import itertools
import math
import textwrap

import numpy as np
import pandas

from config import HOW
from config.planned import differing_keys, task_of
from data import chance
from data.drawing import DASHES, HEIGHT, RANDOM, figure, put_chance, put_legend, put_steps, put_titles, put_zero, styles
from data.results.compare import by_task
from data.results.picture import TITLES, in_words


def put_names(axis, names):
    """Makes the y axis one of names, the first at the top."""
    axis.set(yticks=range(len(names)), yticklabels=map(in_words, names), ylim=(len(names) - 0.5, -0.5))


def plot_runs(arms, path, gamma):
    """Draws Figures 3a, 3b, S5a and S5b: losses, a panel for each task, and scores over the steps."""
    style_of = styles({name: records[0].config["causal"] for name, records in arms.items()})
    has_bands = len(arms) <= 6  # the bands of more arms cover each other
    bands = "; coloured bands: lowest to highest seed" if has_bands else ""
    runs = list(itertools.chain(*arms.values()))
    scores = [score for score in TITLES if any(len(record.curve(score)) for record in runs)]
    tasks = by_task(arms)
    if len(tasks) == 1:  # beside the only losses are those at the end, and the names there explain the colours
        ends = "loss at the end" if all(run.is_finished() for run in runs) else "last loss so far"
        titles = ["validation loss", f"{ends} [nats/token]"]
        columns, height = 2, max(HEIGHT, 0.25 * len(arms))  # [inches]: every arm is named there
        legend = (f"lines and bars: mean over seeds; dots: seeds{bands}\n"
                  "colours: as the names; scores: median over layers")
    else:
        titles = [textwrap.shorten(f"loss: {', '.join(map(in_words, task))}", 28, placeholder=" ...") for task in tasks]
        columns, height = 3, HEIGHT
        legend = f"lines: mean over seeds{bands}\nscores: median over layers; losses: each task has a panel"
    n_losses = len(titles)
    rows = math.ceil((n_losses + len(scores)) / columns)
    with figure(path, rows, columns, height, what_differs(arms)) as axes:
        losses, panels = axes.flat[:n_losses], axes.flat[n_losses:]
        for axis, task in zip(losses, tasks):
            draw_arms(axis, task, "val_loss", style_of, has_bands)
            curves = [record.curve("val_loss") for record in itertools.chain(*task.values())]
            top = pandas.concat(curves).quantile(0.9)  # the first losses are far above, and are cut off
            axis.set_ylim(max(0, axis.get_ylim()[0]), top)
            axis.set_ylabel("nats/token")
        for axis, score in zip(panels, scores):
            draw_arms(axis, arms, score, style_of, has_bands)
            put_zero(axis)
        if len(tasks) == 1:
            draw_ends(losses[1], arms, style_of)
        widths = [records[0].config["n_embd"] for records in arms.values()]
        if len(set(widths)) == 1:  # the range is of one size
            n_embd = widths[0]
            directionality = panels[scores.index("directionality")]
            put_chance(directionality, "directionality", n_embd, chance.limit_of_random(n_embd, gamma), RANDOM)
        put_titles(axes.flat, titles + [TITLES[score] for score in scores])
        named = [in_words(name) for name in arms if style_of[name]["ls"] == DASHES[0] and len(tasks) == 1]
        put_legend(axes.flat, named=named, title=legend)


def what_differs(arms):
    """Returns the title of a comparison: the keys of train.py in which its arms differ."""
    configs = [records[0].config for records in arms.values()]
    keys = differing_keys([config | task_of(config) for config in configs])
    shown = [key for key in keys if key not in HOW | {"seed", "n_params"}]
    return textwrap.shorten(f"Runs that differ in {', '.join(shown) or 'seeds alone'}", 90, placeholder=" ...")


def draw_arms(axis, arms, column, style_of, has_bands):
    """Draws, for each arm, the mean over seeds of a column over the steps, and a band from lowest to highest seed."""
    for name, records in arms.items():
        curves = [record.curve(column) for record in records]
        table = pandas.concat(curves, axis="columns", join="inner")  # (S, seeds): the steps that all of them have
        axis.plot(table.mean(axis="columns"), label=in_words(name), **style_of[name])
        if has_bands:
            low = table.min(axis="columns")  # (S,)
            high = table.max(axis="columns")  # (S,)
            axis.fill_between(table.index, low, high, color=style_of[name]["color"], alpha=0.1, lw=0)
    put_steps(axis)


def draw_ends(axis, arms, style_of):
    """Draws a row for each arm, in its colour: a dot for the last loss of each seed, and a bar for their mean."""
    for y, (name, records) in enumerate(arms.items()):
        losses = [record.last("val_loss") for record in records]
        mean = np.mean(losses)
        axis.plot(losses, [y] * len(losses), ".", color=style_of[name]["color"], alpha=0.6)
        axis.plot([mean, mean], [y - 0.3, y + 0.3], lw=2, color=style_of[name]["color"])
    axis.locator_params(axis="x", nbins=4)
    put_names(axis, arms)
    for name, text in zip(arms, axis.get_yticklabels()):
        text.set_color(style_of[name]["color"])  # these names explain the lines of all panels
