"""
The pictures of training runs: one run, comparisons, and the authors' runs beside ours.

The first encoder is blue and the first decoder purple. Dark layers are at the bottom of a network, light ones at its
top.
"""

import functools
import itertools
import math

import numpy as np

from data.results import compare
from data.results.figures import (COLOURS, DECODER, ENCODER, OTHERS, draw_quartiles, figure, layer_colour, plain,
                                  put_legend, put_null, put_titles, put_zero, share_limits, short)
from data.results.records import Trajectory
from data.results.tables import SCORES

DASHES = ["-", "--", ":", "-."]  # when all colours have been used
SPLIT = 0.1  # nats/token; if the final losses of two seeds differ by more, every seed is drawn
MAX_BANDS = 6  # arms; with more, the bands of their seeds would cover each other
MAX_COLUMNS = 6
N_LAYERS = [12, 4]  # of the authors' runs
CORPORA = {"jigsaw": "Jigsaw", "wikipedia": "Wikipedia", "red_pajama": "RedPajama"}


# ---- one run -----------------------------------------------------------------------------------------------------


def plot_run(record, path):
    """Loss, symmetry and directionality over the steps of one run, with a line for each layer."""
    with figure(path, [1, 1, 1]) as axes:
        loss, symmetry, directionality = axes[0]
        loss.plot(record.eval_steps, record.train_loss, color="0.7", label="training loss")
        loss.plot(record.eval_steps, record.val_loss, color="black", label="validation loss")
        loss.set(ylabel="loss [nats/token]", xlabel="step")
        for axis, score in (symmetry, "symmetry"), (directionality, "directionality"):
            draw_layers(axis, record.steps, record.layers[score][None])
            axis.set(ylabel=f"{score} of $W_{{qk}}$")
            put_null(axis, score, record.config["n_embd"], record.config["n_embd"])
        put_titles(axes[0], ["loss", "symmetry, by layer", "directionality, by layer; grey: random matrices"])
        loss.figure.suptitle(f"{plain(record.arm)}, seed {record.seed}")
        of_losses, _ = loss.get_legend_handles_labels()
        of_layers, _ = symmetry.get_legend_handles_labels()
        put_legend(loss, of_losses + of_layers)


def draw_layers(axis, steps, values):
    """values (seeds, S, L): for each layer the mean over seeds, and a band from the lowest seed to the highest."""
    n_layer = values.shape[2]
    for layer in range(n_layer):
        colour = layer_colour(layer, n_layer)
        of_seeds = values[:, :, layer]  # (seeds, S)
        axis.plot(steps, of_seeds.mean(0), color=colour, label=f"layer {layer}")
        axis.fill_between(steps, of_seeds.min(0), of_seeds.max(0), color=colour, alpha=0.15, lw=0)
    put_zero(axis)
    axis.set(xlabel="step")


def stack_curves(steps, curves):
    """
    The curves of several seeds where all of them have a row -> those steps (S,), and the values (seeds, S, ...).

    steps: those of each curve, (steps,). curves: (steps, ...) each. A seed may be behind the others, or have been
    written at other intervals.
    """
    shared = functools.reduce(np.intersect1d, steps)
    values = [curve[np.isin(own, shared)] for own, curve in zip(steps, curves)]
    return shared, np.stack(values)


def stack_scores(records, curves):
    """stack_curves of curves that have the steps of scores.csv, one for each record."""
    return stack_curves([record.steps for record in records], curves)


# ---- a comparison ------------------------------------------------------------------------------------------------


def styles(arms):
    """{arm: dict(color, ls)}"""
    pairs = ((colour, dash) for dash in itertools.cycle(DASHES) for colour in OTHERS)
    first = {False: ENCODER, True: DECODER}
    found = {}
    for name, records in arms.items():
        colour, dash = first.pop(records[0].config["causal"], None), "-"
        if colour is None:
            colour, dash = next(pairs)
        found[name] = dict(color=colour, ls=dash)
    return found


def plot_runs(arms, outcomes, level, curves, path):
    """
    Figures 3 and S5: losses and scores over the steps.

    arms: {name: its records, one per seed}. outcomes: from compare.find_outcomes. level: the loss that is marked, or
    None. curves: {name: (steps, loss)}, drawn in grey under the losses.
    """
    arms = {name: compare.counted(records) for name, records in arms.items()}
    style = styles(arms)
    has_one_task = len({compare.conditions(records[0].config) for records in arms.values()}) == 1
    with figure(path, [1.2, 1, 1.2, 1.2] if has_one_task else [1, 1, 1]) as axes:
        loss, *ends, symmetry, directionality = axes[0]
        for steps, values in curves.values():
            loss.plot(steps, values, color="0.75", lw=0.8, zorder=0)
        if level is not None:
            loss.axhline(level, color="0.6", lw=0.8, ls=":", zorder=0)
        for name, records in arms.items():
            draw_losses(loss, records, name, style[name])
            for axis, score in (symmetry, "symmetry"), (directionality, "directionality"):
                draw_medians(axis, records, score, style[name], band=len(arms) <= MAX_BANDS)
        loss.set(ylabel="nats/token", ylim=loss_limits(arms, level))
        if has_one_task:
            draw_ends(ends[0], outcomes, style)
        config = next(iter(arms.values()))[0].config
        put_null(directionality, "directionality", config["n_embd"], config["n_embd"])
        put_zero(symmetry)
        put_zero(directionality)
        for axis in loss, symmetry, directionality:
            axis.set(xlabel="step")
        of_losses = ["validation loss, of several tasks"]
        if has_one_task:
            of_losses = ["validation loss", "loss at the end; bar: mean"]
        put_titles(axes[0], of_losses + ["symmetry of $W_{qk}$", "directionality; grey: random"])
        handles, _ = loss.get_legend_handles_labels()
        loss.figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, ncols=5,
                           title=f"seeds: {seeds_of(arms)}. Scores: median over layers, mean of seeds; "
                                 "bands: lowest to highest seed", title_fontsize=8)


def draw_losses(axis, records, name, style):
    """The mean over seeds. If seeds end far from each other, each seed as well."""
    steps, values = stack_curves([record.eval_steps for record in records], [record.val_loss for record in records])
    axis.plot(steps, values.mean(0), label=plain(name), **style)
    last = [record.val_loss[-1] for record in records]
    if max(last) - min(last) > SPLIT:
        for record in records:
            axis.plot(record.eval_steps, record.val_loss, color=style["color"], lw=0.5, alpha=0.4)


def draw_medians(axis, records, score, style, band):
    """The median over layers, as a mean over seeds; with a band from the lowest seed to the highest."""
    steps, values = stack_scores(records, [record.medians[score] for record in records])  # (S,), (seeds, S)
    axis.plot(steps, values.mean(0), **style)
    if band:
        axis.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.1, lw=0)


def loss_limits(arms, level):
    """Limits that show all losses from the plateau down. Those of the first steps are far above, and are cut off."""
    losses = [record.val_loss for records in arms.values() for record in records]
    low = min(loss.min() for loss in losses)
    later = max(loss[len(loss) // 8 :].max() for loss in losses)
    high = later if level is None else max(level, later)
    return low - 0.05 * (high - low), high + 0.1 * (high - low)


def draw_ends(axis, outcomes, style):
    """A row for each arm: a dot for the last loss of each seed, and a bar for their mean."""
    for i, outcome in enumerate(outcomes):
        colour = style[outcome.name]["color"]
        axis.plot(outcome.losses, [i] * len(outcome.losses), ".", color=colour, alpha=0.6)
        axis.plot([outcome.losses.mean()] * 2, [i - 0.3, i + 0.3], color=colour, lw=2)
    axis.locator_params(axis="x", nbins=4)
    names = [short(outcome.name) for outcome in outcomes]
    axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))  # the first at the top
    axis.set(xlabel="nats/token")


def seeds_of(arms):
    counts = {len(records) for records in arms.values()}
    return " to ".join(str(n) for n in sorted({min(counts), max(counts)}))


# ---- every layer, and the authors' runs --------------------------------------------------------------------------


def plot_layers(trajectories, arms, path):
    """Figures 3 c and d, S4: the scores of every layer over steps, a column for each run or arm."""
    columns = [(f"{run.name}, one run", run.steps, {score: getattr(run, score)[None] for score in SCORES})
               for run in trajectories]
    for name, records in arms.items():
        records = compare.counted(records)
        values = {score: stack_scores(records, [record.layers[score] for record in records]) for score in SCORES}
        steps, _ = values["symmetry"]
        by_score = {score: found for score, (_, found) in values.items()}
        columns.append((f"{name}, seeds: {len(records)}", steps, by_score))
    n_columns = min(len(columns), MAX_COLUMNS)
    n_rows = math.ceil(len(columns) / n_columns)
    with figure(path, [1] * n_columns, rows=2 * n_rows) as axes:
        for number, score in enumerate(SCORES):
            panels = list(axes[number::2].flat)  # every other row
            for axis, (title, steps, values) in zip(panels, columns):
                draw_layers(axis, steps, values[score])
                axis.set_title(plain(title.replace("--", " ")), fontsize=7, loc="left")
            share_axes(panels[: len(columns)], score)
            for empty in panels[len(columns) :]:
                empty.axis("off")
        put_legend(max(axes.flat, key=lambda axis: len(axis.lines)))


def plot_trajectories(trajectories, arms, path):
    """
    Figures 3 a and b, S3: the authors' runs, a column for each depth and corpus: median and quartiles over layers.

    arms: {name: its records, one per seed}. Their means over seeds are drawn in a last column. It may be empty.
    """
    columns = {}
    for n_layer, (corpus, title) in itertools.product(N_LAYERS, CORPORA.items()):
        shown = [run for run in trajectories if run.n_layer == n_layer and run.corpus == corpus]
        if shown:
            columns[f"{n_layer} layers, {title}: one run each"] = shown
    if arms:
        columns["ours: means of seeds"] = [mean_over_seeds(records) for records in arms.values()]
    of_ours = styles(arms)
    with figure(path, [1] * len(columns), rows=2) as axes:
        for row, score in zip(axes, SCORES):
            for axis, (title, shown) in zip(row, columns.items()):
                for run in shown:
                    style = of_ours.get(run.name, dict(color=COLOURS[run.causal]))
                    draw_quartiles(axis, run.steps, getattr(run, score), label=plain(run.name), **style)
                put_zero(axis)
                axis.set_title(title, fontsize=7, loc="left")
            share_axes(row, score)
        for label, colour in ("their encoders", ENCODER), ("their decoders", DECODER):
            axes[0, 0].plot([], [], color=colour, label=label)
        handles = axes[0, 0].get_legend_handles_labels()[0][-2:]
        if arms:
            handles += axes[0, -1].get_legend_handles_labels()[0]
        axes[0, 0].figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8,
                                 title="lines: median over layers; bands: quartiles", title_fontsize=8)


def mean_over_seeds(records):
    """The mean over the runs of one arm, as a Trajectory, at the steps that all of them have."""
    values = {score: stack_scores(records, [record.layers[score] for record in records]) for score in SCORES}
    steps, _ = values["symmetry"]  # (S,), (seeds, S, L)
    means = {score: found.mean(0) for score, (_, found) in values.items()}  # (S, L)
    config = records[0].config
    return Trajectory(records[0].arm, config["n_layer"], config["causal"], "ours", steps, **means)


def share_axes(axes, score):
    """Give the panels of a score the same range, with numbers at the left edge only, and steps in thousands."""
    share_limits(axes)
    for axis in axes:
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}")
        axis.set(xlabel="step", ylabel=score)
        if not axis.get_subplotspec().is_first_col():
            axis.set(ylabel="", yticklabels=[])
