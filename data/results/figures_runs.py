"""
The pictures of training runs: one run, and comparisons. They are made of records, in {name of an arm: its records, one
per seed}.

The first encoder is blue and the first decoder purple. Dark layers are at the bottom of a network, light ones at its
top.
"""

import itertools

import numpy as np
import pandas
from matplotlib import colormaps

from data.results import chance
from data.results.figures import (DECODER, ENCODER, HEIGHT, OTHERS, RANDOM, draw_quartiles, figure, in_words,
                                  put_chance, put_legend, put_titles, put_zero, short)
from data.results.runs import SCORES

DASHES = ["-", "--", ":", "-."]  # when all colours have been used
MOST_BANDS = 6  # arms whose ranges of seeds are drawn: of more, bands cover each other


# ---- what they share ---------------------------------------------------------------------------------------------


def draw_seeds(axis, curves, with_band=True, **style):
    """
    The mean over seeds, and a band from the lowest seed to the highest. curves: a Series by step for each seed, which
    may be behind the others, or have been written at other intervals.
    """
    table = pandas.concat(curves, axis="columns", join="inner")  # (S, seeds): the steps that all of them have
    axis.plot(table.mean(axis="columns"), **style)
    if with_band:
        low, high = table.min(axis="columns"), table.max(axis="columns")  # (S,) each
        axis.fill_between(table.index, low, high, color=style["color"], alpha=0.1, lw=0)


def draw_layers(axis, records, score):
    """A line for each layer."""
    layers = [record.layers(score) for record in records]  # (S, L) each
    names = list(layers[0])
    for i, name in enumerate(names):
        # The last tenth of the colours is too light for a line.
        colour = colormaps["viridis"](0.9 * i / max(1, len(names) - 1))
        label = {0: "first layer", len(names) - 1: "last layer"}.get(i)
        draw_seeds(axis, [of_run[name] for of_run in layers], color=colour, label=label)
    put_steps(axis)


def draw_quartiles_of(axis, arms, score):
    """The median and the quartiles over layers of the mean over seeds, for each arm."""
    for name, style in styles(arms).items():
        layers = [record.layers(score) for record in arms[name]]  # (S, L) each
        means = (sum(layers) / len(layers)).dropna()  # at the steps that all seeds have
        draw_quartiles(axis, means.index, means, label=short(name), **style)
    put_steps(axis)


def put_steps(axis):
    """An axis of steps, which are in thousands where they are many."""
    axis.set_xlabel("step")
    axis.locator_params(axis="x", nbins=4)
    axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}")


def styles(arms):
    """{arm: dict(color, ls)}"""
    others = itertools.cycle(itertools.product(DASHES, OTHERS))
    first = {False: ("-", ENCODER), True: ("-", DECODER)}
    found = {}
    for name, records in arms.items():
        dash, colour = first.pop(records[0].config["causal"], None) or next(others)
        found[name] = dict(color=colour, ls=dash)
    return found


# ---- one run -----------------------------------------------------------------------------------------------------


def plot_run(record, path, gamma):
    """Loss, symmetry and directionality over the steps of one run, with a line for each layer."""
    kind = "decoder" if record.config["causal"] else "encoder"
    title = f"Training of {in_words(record.arm)}, seed {record.seed}: {kind} of {record.config['n_layer']} layers"
    with figure(path, 1, 3, title=title) as axes:
        loss, *panels = axes[0]
        loss.plot(record.curve("train_loss"), color="0.7", label="training loss")
        loss.plot(record.curve("val_loss"), color="black", label="validation loss")
        put_steps(loss)
        n_embd = record.config["n_embd"]
        for axis, score in zip(panels, SCORES):
            draw_layers(axis, [record], score)
            put_zero(axis)
            put_chance(axis, score, n_embd, chance.of_random(n_embd, gamma), RANDOM)
        put_titles(axes[0], ["loss [nats/token]", "symmetry of $W_{qk}$", "directionality of $W_{qk}$"])
        put_legend(axes[0])


# ---- a comparison ------------------------------------------------------------------------------------------------


def plot_runs(arms, path, gamma):
    """Figures 3 and S5: losses and scores over the steps."""
    style = styles(arms)
    height = max(HEIGHT, 0.25 * len(arms))  # [inches]: every arm is named beside its losses
    with figure(path, 2, 2, height, "Runs compared: loss and scores over training") as axes:
        loss, ends, symmetry, directionality = axes.flat
        for axis, column in (loss, "val_loss"), (symmetry, "symmetry"), (directionality, "directionality"):
            for name, records in arms.items():
                curves = [record.curve(column) for record in records]  # of scores: medians over layers
                draw_seeds(axis, curves, len(arms) <= MOST_BANDS, label=name, **style[name])
            put_steps(axis)
        losses = [record.curve("val_loss") for records in arms.values() for record in records]
        top = pandas.concat(losses).quantile(0.9)  # those of the first steps are far above, and are cut off
        loss.set_ylim(top=top)
        draw_ends(ends, arms, style)
        put_zero(symmetry)
        put_zero(directionality)
        widths = {records[0].config["n_embd"] for records in arms.values()}
        if len(widths) == 1:  # the range is of one size
            put_chance(directionality, "directionality", *widths, chance.of_random(*widths, gamma), RANDOM)
        put_titles(axes.flat, ["validation loss [nats/token]", "loss at the end [nats/token]",
                               "symmetry of $W_{qk}$", "directionality of $W_{qk}$"])
        bands = "; coloured bands: lowest to highest seed" if len(arms) <= MOST_BANDS else ""
        put_legend(axes.flat, named=arms, title=f"lines and bars: mean over seeds; dots: seeds{bands}\n"
                                                "colours: as the names; scores: median over layers")


def draw_ends(axis, arms, style):
    """A row for each arm: a dot for the last loss of each seed, and a bar for their mean."""
    for i, (name, records) in enumerate(arms.items()):
        losses = [record.last("val_loss") for record in records]
        colour = style[name]["color"]
        axis.plot(losses, [i] * len(losses), ".", color=colour, alpha=0.6)
        axis.plot([np.mean(losses)] * 2, [i - 0.3, i + 0.3], lw=2, **style[name])
    axis.locator_params(axis="x", nbins=4)
    # The first at the top.
    axis.set(yticks=range(len(arms)), yticklabels=[in_words(name) for name in arms], ylim=(len(arms) - 0.5, -0.5))
    for name, text in zip(arms, axis.get_yticklabels()):
        text.set_color(style[name]["color"])  # these names explain the lines of all panels


# ---- the record --------------------------------------------------------------------------------------------------


def plot_record(tracks, entries_of, path):
    """A bar for each entry, the fastest first. tracks: of record.py; entries_of: {track: {entry: its updates (S,)}}"""
    n_entries = max(map(len, entries_of.values()))
    title = "The record: updates to reach a loss"
    with figure(path, len(tracks), 1, 0.23 * n_entries + 0.5, title, sharex=True) as axes:
        for axis, (name_of_track, track) in zip(axes.flat, tracks.items()):
            entries = entries_of[name_of_track]
            names = sorted(entries, key=lambda name: entries[name].mean())
            for y, name in enumerate(names):
                special = {track.record: ("the record", OTHERS[0]), track.baseline: ("baseline", "0.6")}
                label, colour = special.get(name, ("other entries", ENCODER))
                axis.barh(y, entries[name].mean(), color=colour, alpha=0.7, label=label)
                axis.plot(entries[name], [y] * len(entries[name]), ".", color="black", ms=4, label="one seed")
            axis.set(yticks=range(len(names)), yticklabels=map(in_words, names), ylim=(len(names) - 0.5, -0.5))
            put_titles([axis], [f"Track {name_of_track}, to {track.loss} nats/token: {track.free}"])
        axis.set_xlabel("updates, mean over seeds (600: the loss was not reached)")
        put_legend(axes.flat, ncols=4, title="qkv: q, k and v start with standard deviation $1/\\sqrt{3C}$")
