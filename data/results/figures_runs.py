"""
The pictures of training runs: one run, comparisons, and the authors' runs beside ours. All are made of records, in
{name of an arm: its records, one per seed}.

The first encoder is blue and the first decoder purple. Dark layers are at the bottom of a network, light ones at its
top.
"""

import functools
import itertools
import textwrap

import numpy as np
import pandas

from data.results.figures import (COLOURS, DECODER, ENCODER, HEIGHT, OTHERS, draw_quartiles, figure, plain,
                                  plot_columns, put_legend, put_null, put_titles, put_zero, short)
from data.results.runs import SCORES

DASHES = ["-", "--", ":", "-."]  # when all colours have been used
SPLIT = 0.1  # nats/token; if the final losses of two seeds differ by more, every seed is drawn
MAX_BANDS = 6  # arms; with more, the bands of their seeds would cover each other
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
    from matplotlib import colormaps

    layers = [record.layers(score) for record in records]  # (S, L) each
    names = list(layers[0])
    for i, name in enumerate(names):
        # The last tenth of the colours is too light for a line.
        colour = colormaps["viridis"](0.9 * i / max(1, len(names) - 1))
        label = {0: "first layer", len(names) - 1: "last layer"}.get(i)
        draw_seeds(axis, [of_run[name] for of_run in layers], 0.15, color=colour, label=label)
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


def plot_run(record, path):
    """Loss, symmetry and directionality over the steps of one run, with a line for each layer."""
    with figure(path, [1, 1, 1]) as axes:
        loss, *panels = axes[0]
        loss.plot(record.curve("train_loss"), color="0.7", label="training loss")
        loss.plot(record.curve("val_loss"), color="black", label="validation loss")
        loss.set_ylabel("loss [nats/token]")
        put_steps(loss)
        for axis, score in zip(panels, SCORES):
            draw_layers(axis, [record], score)
            put_zero(axis)
            axis.set_ylabel(f"{score} of $W_{{qk}}$")
            put_null(axis, score, record.config["n_embd"], record.config["n_embd"])
        put_titles(axes[0], ["loss", "symmetry, by layer", "directionality, by layer"])
        loss.figure.suptitle(f"{plain(record.arm)}, seed {record.seed}")
        put_legend(axes[0])


# ---- a comparison ------------------------------------------------------------------------------------------------


def plot_runs(arms, outcomes, level, path):
    """
    Figures 3 and S5: losses and scores over the steps. outcomes: from compare.find_outcomes. level: the loss that is
    marked, or None.
    """
    style = styles(arms)
    has_one_task = outcomes["baseline"].nunique() == 1
    height = max(HEIGHT, 0.3 * len(arms))  # [inches]: every arm is named beside its losses, and in the legend
    with figure(path, [1.2, 1, 1.2, 1.2] if has_one_task else [1, 1, 1], height=height) as axes:
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
            put_steps(axis)
        widths = {records[0].config["n_embd"] for records in arms.values()}
        if len(widths) == 1:  # the range is of one size
            put_null(directionality, "directionality", *widths, *widths)
        put_titles(axes[0], [*titles, "symmetry of $W_{qk}$", "directionality"])
        counts = sorted({len(records) for records in arms.values()})
        seeds = " to ".join(str(n) for n in dict.fromkeys([counts[0], counts[-1]]))
        put_legend(axes[0], "outside lower center", ncols=5, title=f"seeds: {seeds}. Scores: median over layers, "
                   "mean of seeds; bands: lowest to highest seed")


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
    put_steps(axis)
    axis.set(ylabel="nats/token", ylim=(low - 0.05 * margin, high + 0.1 * margin))
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
    columns = []
    for name, records in arms.items():
        seeds = f"seeds: {len(records)}" if len(records) > 1 else "one run"
        title = textwrap.fill(plain(f"{name}, {seeds}".replace("--", " ")), 26)
        columns.append((title, draw_layers, records))
    plot_columns(path, columns)


def plot_trajectories(theirs, ours, path):
    """
    Figures 3 a and b, S3: the authors' runs, a column for each depth and corpus: median and quartiles over layers. The
    means over seeds of our arms, if there are any, are drawn in a last column.
    """
    columns = []
    for n_layer, (corpus, title) in itertools.product([12, 4], CORPORA.items()):
        shown = {name: records for name, records in theirs.items()
                 if records[0].config["n_layer"] == n_layer and name.endswith(corpus)}
        if shown:
            columns.append((f"{n_layer} layers, {title}", draw_theirs, shown))
    if ours:
        columns.append(("ours", draw_ours, ours))
    plot_columns(path, columns, loc="outside lower center", ncols=6,
                 title="lines: median over layers (ours: of means over seeds); bands: quartiles")


def draw_theirs(axis, theirs, score):
    for records in theirs.values():
        causal = records[0].config["causal"]
        label = "their decoders" if causal else "their encoders"
        draw_quartiles_of(axis, records, score, color=COLOURS[causal], label=label)


def draw_ours(axis, arms, score):
    for name, style in styles(arms).items():
        draw_quartiles_of(axis, arms[name], score, label=plain(name), **style)


def draw_quartiles_of(axis, records, score, **style):
    """The median and the quartiles over layers of the mean over seeds."""
    steps, values = together([record.layers(score) for record in records])  # (S,), (seeds, S, L)
    draw_quartiles(axis, steps, values.mean(0), **style)
    put_steps(axis)
