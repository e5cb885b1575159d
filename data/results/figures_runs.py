"""
The pictures of training runs: one run, comparisons, and the authors' runs beside ours. All are made of records, in
{name of an arm: its records, one per seed}.

The first encoder is blue and the first decoder purple. Dark layers are at the bottom of a network, light ones at its
top.
"""

import functools
import itertools
import math

import numpy as np
import pandas

from data.results.figures import (COLOURS, DECODER, ENCODER, OTHERS, draw_quartiles, figure, layer_colour, plain,
                                  put_legend, put_null, put_titles, put_zero, share_limits, short)
from data.results.tables import SCORES

DASHES = ["-", "--", ":", "-."]  # when all colours have been used
SPLIT = 0.1  # nats/token; if the final losses of two seeds differ by more, every seed is drawn
MAX_BANDS = 6  # arms; with more, the bands of their seeds would cover each other
MAX_COLUMNS = 6
# Of the authors' runs: how a name ends, and what a title says.
CORPORA = {"jigsaw": "Jigsaw", "wikipedia": "Wikipedia", "red_pajama": "RedPajama"}


# ---- what they share ---------------------------------------------------------------------------------------------


def together(curves):
    """
    The curves of several seeds, Series or DataFrames by step -> the steps that all of them have (S,), and their values
    there (seeds, S, ...). A seed may be behind the others, or have been written at other intervals.
    """
    steps = functools.reduce(pandas.Index.intersection, [curve.index for curve in curves])
    return steps, np.stack([curve.loc[steps] for curve in curves])


def draw_seeds(axis, curves, opacity, **style):
    """The mean over seeds, and unless opacity is 0 a band from the lowest seed to the highest."""
    steps, values = together(curves)  # (S,), (seeds, S)
    axis.plot(steps, values.mean(0), **style)
    if opacity:
        axis.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=opacity, lw=0)


def draw_layers(axis, records, score):
    """A line for each layer."""
    n_layer = records[0].config["n_layer"]
    for layer in range(n_layer):
        curves = [record.curve(f"{score}_{layer}") for record in records]
        colour = layer_colour(layer, n_layer)
        draw_seeds(axis, curves, 0.15, color=colour, label=f"layer {layer}")
    put_zero(axis)
    axis.set(xlabel="step")


def share_axes(axes, score):
    """Give the panels of a score the same range, with numbers at the left edge only, and steps in thousands."""
    share_limits(axes)
    for axis in axes:
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}")
        axis.set(xlabel="step", ylabel=score)
        if not axis.get_subplotspec().is_first_col():
            axis.set(ylabel="", yticklabels=[])


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


def plot_run(record, path):
    """Loss, symmetry and directionality over the steps of one run, with a line for each layer."""
    with figure(path, [1, 1, 1]) as axes:
        loss, *panels = axes[0]
        loss.plot(record.curve("train_loss"), color="0.7", label="training loss")
        loss.plot(record.curve("val_loss"), color="black", label="validation loss")
        loss.set(ylabel="loss [nats/token]", xlabel="step")
        for axis, score in zip(panels, SCORES):
            draw_layers(axis, [record], score)
            axis.set(ylabel=f"{score} of $W_{{qk}}$")
            put_null(axis, score, record.config["n_embd"], record.config["n_embd"])
        put_titles(axes[0], ["loss", "symmetry, by layer", "directionality; grey: random"])
        loss.figure.suptitle(f"{plain(record.arm)}, seed {record.seed}")
        of_losses, _ = loss.get_legend_handles_labels()
        of_layers, _ = panels[0].get_legend_handles_labels()
        put_legend(loss, of_losses + of_layers)


# ---- a comparison ------------------------------------------------------------------------------------------------


def plot_runs(arms, outcomes, level, path):
    """
    Figures 3 and S5: losses and scores over the steps. outcomes: from compare.find_outcomes. level: the loss that is
    marked, or None.
    """
    style = styles(arms)
    config = next(iter(arms.values()))[0].config
    has_one_task = outcomes["baseline"].nunique() == 1
    with figure(path, [1.2, 1, 1.2, 1.2] if has_one_task else [1, 1, 1]) as axes:
        loss, *ends, symmetry, directionality = axes[0]
        draw_losses(loss, arms, style, level)
        opacity = 0.1 if len(arms) <= MAX_BANDS else 0
        titles = ["validation loss, of several tasks"]
        if has_one_task:
            titles = ["validation loss", "loss at the end; bar: mean"]
            draw_ends(ends[0], outcomes, style)
        for axis, score in zip([symmetry, directionality], SCORES):
            for name, records in arms.items():
                medians = [record.curve(score) for record in records]  # over layers
                draw_seeds(axis, medians, opacity, **style[name])
            put_zero(axis)
            axis.set(xlabel="step")
        put_null(directionality, "directionality", config["n_embd"], config["n_embd"])
        put_titles(axes[0], [*titles, "symmetry of $W_{qk}$", "directionality; grey: random"])
        counts = sorted({len(records) for records in arms.values()})
        seeds = " to ".join(str(n) for n in dict.fromkeys([counts[0], counts[-1]]))
        handles, _ = loss.get_legend_handles_labels()
        loss.figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, ncols=5,
                           title=f"seeds: {seeds}. Scores: median over layers, mean of seeds; "
                                 "bands: lowest to highest seed", title_fontsize=8)


def draw_losses(axis, arms, style, level):
    """
    The mean over seeds. If seeds end far from each other, each seed as well. The limits show all losses from the
    plateau down; those of the first steps are far above, and are cut off.
    """
    lowest, highest = [], [] if level is None else [level]
    for name, records in arms.items():
        losses = [record.curve("val_loss") for record in records]
        draw_seeds(axis, losses, 0, label=plain(name), **style[name])
        last = [loss.iloc[-1] for loss in losses]
        if max(last) - min(last) > SPLIT:
            for loss in losses:
                axis.plot(loss, color=style[name]["color"], lw=0.5, alpha=0.4)
        lowest += [loss.min() for loss in losses]
        highest += [loss.iloc[len(loss) // 8 :].max() for loss in losses]
    low, high = min(lowest), max(highest)
    margin = high - low
    axis.set(xlabel="step", ylabel="nats/token", ylim=(low - 0.05 * margin, high + 0.1 * margin))
    if level is not None:
        axis.axhline(level, color="0.6", lw=0.8, ls=":", zorder=0)


def draw_ends(axis, outcomes, style):
    """A row for each arm: a dot for the last loss of each seed, and a bar for their mean."""
    for i, outcome in enumerate(outcomes.itertuples()):
        colour = style[outcome.name]["color"]
        axis.plot(outcome.losses, [i] * len(outcome.losses), ".", color=colour, alpha=0.6)
        axis.plot([np.mean(outcome.losses)] * 2, [i - 0.3, i + 0.3], color=colour, lw=2)
    axis.locator_params(axis="x", nbins=4)
    names = [short(name) for name in outcomes["name"]]
    # The first at the top.
    axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axis.set(xlabel="nats/token")


# ---- every layer, and the authors' runs --------------------------------------------------------------------------


def plot_layers(arms, path):
    """Figures 3 c and d, S4: the scores of every layer over steps, a column for each arm, also of the authors."""
    n_columns = min(len(arms), MAX_COLUMNS)
    n_rows = math.ceil(len(arms) / n_columns)
    with figure(path, [1] * n_columns, rows=2 * n_rows) as axes:
        for number, score in enumerate(SCORES):
            panels = list(axes[number::2].flat)  # every other row
            for axis, (name, records) in zip(panels, arms.items()):
                draw_layers(axis, records, score)
                seeds = f"seeds: {len(records)}" if len(records) > 1 else "one run"
                axis.set_title(plain(f"{name}, {seeds}".replace("--", " ")), fontsize=7, loc="left")
            share_axes(panels[: len(arms)], score)
            for empty in panels[len(arms) :]:
                empty.axis("off")
        put_legend(max(axes.flat, key=lambda axis: len(axis.lines)))


def plot_trajectories(theirs, ours, path):
    """
    Figures 3 a and b, S3: the authors' runs, a column for each depth and corpus: median and quartiles over layers. The
    means over seeds of our arms, if there are any, are drawn in a last column.
    """
    columns = {}
    for n_layer, (corpus, title) in itertools.product([12, 4], CORPORA.items()):
        shown = {name: records for name, records in theirs.items()
                 if records[0].config["n_layer"] == n_layer and name.endswith(corpus)}
        columns[f"{n_layer} layers, {title}: one run each"] = shown
    columns["ours: means of seeds"] = ours
    columns = {title: shown for title, shown in columns.items() if shown}
    of_ours = styles(ours)
    with figure(path, [1] * len(columns), rows=2) as axes:
        for row, score in zip(axes, SCORES):
            for axis, (title, shown) in zip(row, columns.items()):
                for name, records in shown.items():
                    # (S,), (seeds, S, L)
                    steps, values = together([record.layers(score) for record in records])
                    style = of_ours.get(name, dict(color=COLOURS[records[0].config["causal"]]))
                    draw_quartiles(axis, steps, values.mean(0), label=plain(name), **style)
                put_zero(axis)
                axis.set_title(title, fontsize=7, loc="left")
            share_axes(row, score)
        # One entry of the legend for all of theirs of a kind, and one for each of ours.
        for label, colour in ("their encoders", ENCODER), ("their decoders", DECODER):
            axes[0, 0].plot([], [], color=colour, label=label)
        handles = axes[0, 0].get_legend_handles_labels()[0][-2:]
        if ours:
            handles += axes[0, -1].get_legend_handles_labels()[0]
        axes[0, 0].figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8,
                                 title="lines: median over layers; bands: quartiles", title_fontsize=8)
