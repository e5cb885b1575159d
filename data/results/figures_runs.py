"""
The pictures of training runs: one run, and comparisons. Blue is an encoder and purple a decoder.
"""

import functools
import itertools
import math

import numpy as np

from data.results import compare
from data.results.figures import (OTHERS, colour_of, figure, layer_colour, plain, put_legend, put_null, put_titles,
                                  put_zero, share_limits)
from data.results.records import FREE

DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)), (0, (3, 1)), (0, (8, 2, 1, 2))]
MAX_STARTS = 4  # with more, the dash tells the scale, and the colour the start: colours are more easily told apart
SPLIT = 0.1  # nats/token; if the final losses of two seeds differ by more, every seed is drawn


# ---- one run -----------------------------------------------------------------------------------------------------


def plot_run(record, path):
    """Loss, symmetry and directionality over the steps of one run, with a line for each layer."""
    with figure(path, [1, 1, 1]) as axes:
        loss, symmetry, directionality = axes[0]
        loss.plot(record.eval_steps, record.train_loss, color="0.7", label="training loss")
        loss.plot(record.eval_steps, record.val_loss, color="black", label="validation loss")
        loss.set(ylabel="loss [nats/token]", xlabel="step")
        for axis, score in (symmetry, "symmetry"), (directionality, "directionality"):
            draw_layers(axis, [record], score)
            put_null(axis, score, record.config["n_embd"], record.config["n_embd"])
        put_titles(axes[0], ["loss", "symmetry, by layer", "directionality, by layer"])
        loss.figure.suptitle(f"{plain(record.arm)}, seed {record.seed}")
        of_losses, _ = loss.get_legend_handles_labels()
        of_layers, _ = symmetry.get_legend_handles_labels()
        put_legend(loss, of_losses + of_layers)


def draw_layers(axis, records, score):
    """A line for each layer over the steps: the mean over the runs of one arm."""
    steps, values = stack_scores(records, [record.layers[score] for record in records])  # (S,), (seeds, S, L)
    n_layer = values.shape[2]
    for layer in range(n_layer):
        axis.plot(steps, values[:, :, layer].mean(0), color=layer_colour(layer, n_layer),
                  label=f"layer {layer}")
    put_zero(axis)
    axis.set(xlabel="step", ylabel=f"{score} of $W_{{qk}}$")


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
    """
    The line style of every arm: {arm: dict(color, ls)}.

    The colour tells the scale of q, k and v, and the dash the start and whatever else an arm has changed. If there are
    more than MAX_STARTS of the latter, it is the other way round. The first encoder is blue, the first decoder purple.
    """
    colours, dashes = {}, {}  # (causal, scale) -> colour, start -> dash; or the other way round
    more_colours = itertools.cycle(OTHERS)
    more_dashes = itertools.cycle(DASHES)
    by_scale = colour_is_scale(arms)
    found = {}
    for name, records in arms.items():
        config = records[0].config
        causal = config["causal"]
        scale = config["qk_std"], config["v_std"]
        start = start_of(config, arms)
        if by_scale:
            coloured, dashed = (causal, scale), start
        else:
            coloured, dashed = (causal, start), scale
        if coloured not in colours:
            is_first = causal not in [other_causal for other_causal, _ in colours]
            colours[coloured] = colour_of(causal) if is_first else next(more_colours)
        if dashed not in dashes:
            dashes[dashed] = next(more_dashes)
        found[name] = dict(color=colours[coloured], ls=dashes[dashed])
    return found


def colour_is_scale(arms):
    """Whether there are so few starts that the colour can tell the scale."""
    starts = {start_of(records[0].config, arms) for records in arms.values()}
    return len(starts) <= MAX_STARTS


def start_of(config, arms):
    """A text with the values of all keys in which arms differ, except for the scale and the mask."""
    differing = []
    for key in sorted(config.keys() - FREE - {"causal", "qk_std", "v_std"}):
        values = {str(records[0].config[key]) for records in arms.values()}
        if len(values) > 1:
            differing.append(f"{key}={config[key]}")
    return " ".join(differing)


def plot_runs(arms, outcomes, level, curves, path):
    """
    Figures 3, S3, S5, and more: when each run leaves the plateau, its final loss, the symmetry of the change of W_qk,
    and how much heads differ.

    arms: {name: its records, one per seed}. outcomes: from compare.find_outcomes. curves: {name: (steps, loss)},
    drawn in grey under the losses. level: None if no run comes to it, and then its panel is empty.
    """
    arms = {name: compare.counted(records) for name, records in arms.items()}
    style = styles(arms)
    with figure(path, [1, 1, 1, 1], rows=2, inches=3.8) as axes:
        (loss, leaving, ends, symmetry), (directionality, updates, spread, empty) = axes
        for steps, values in curves.values():
            loss.plot(steps, values, color="0.75", lw=0.8, zorder=0)
        for name, records in arms.items():
            draw_losses(loss, records, name, style[name])
            for axis, score in (symmetry, "symmetry"), (directionality, "directionality"), (updates, "update_symmetry"):
                draw_medians(axis, records, score, style[name], band=len(arms) <= 6)
            steps, values = stack_scores(records, [record.symmetry_std for record in records])  # (S,), (seeds, S)
            spread.plot(steps, values.mean(0), **style[name])
        loss.set(ylabel="nats/token", ylim=loss_limits(arms, level))
        draw_dots(ends, outcomes, style, [outcome.losses for outcome in outcomes], np.mean)
        if level is None:
            leaving.axis("off")
        else:
            loss.axhline(level, color="0.6", lw=0.8, ls=":", zorder=0)
            draw_dots(leaving, outcomes, style, [outcome.first_steps for outcome in outcomes], np.median)
            mark_not_left(leaving, arms, outcomes, style)
        config = next(iter(arms.values()))[0].config
        put_null(directionality, "directionality", config["n_embd"], config["n_embd"])
        for axis in symmetry, directionality, updates:
            put_zero(axis)
        for axis in loss, leaving, symmetry, directionality, updates, spread:
            axis.set(xlabel="step")
        ends.set(xlabel="nats/token", yticklabels=[])
        empty.axis("off")
        titles = {
            loss: "validation loss",
            leaving: f"first step at {level} nats/token; bar: median",
            ends: "loss at the end; bar: mean",
            symmetry: "symmetry of $W_{qk}$",
            directionality: "directionality of $W_{qk}$; grey: random matrices",
            updates: "symmetry of the change of $W_{qk}$",
            spread: "standard deviation of symmetry over heads",
        }
        if level is None:
            del titles[leaving]
        put_titles(titles.keys(), titles.values())
        put_legend_of_arms(empty, loss, arms)


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


def draw_dots(axis, outcomes, style, values, middle):
    """A row for each arm: a dot for each seed, and a bar for their middle. Values that are not finite are left out."""
    for i, (outcome, points) in enumerate(zip(outcomes, values)):
        colour = style[outcome.name]["color"]
        seen = points[np.isfinite(points)]
        axis.plot(seen, [i] * len(seen), ".", color=colour, alpha=0.6)
        if np.isfinite(middle(points)):
            axis.plot([middle(points)] * 2, [i - 0.3, i + 0.3], color=colour, lw=2)
    axis.locator_params(axis="x", nbins=5)
    names = [plain(outcome.name) for outcome in outcomes]
    axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))  # the first at the top


def mark_not_left(axis, arms, outcomes, style):
    """Write to the right of the last step how many seeds never came to the level."""
    end = max(record.eval_steps[-1] for records in arms.values() for record in records)
    axis.axvline(end, color="0.8", lw=0.8)
    axis.set_xlim(None, 1.02 * end)
    for i, outcome in enumerate(outcomes):
        missing = np.isinf(outcome.first_steps).sum()
        if missing:
            axis.annotate(f"{missing} not left", (1, i), xycoords=("axes fraction", "data"), fontsize=7, va="center",
                          color=style[outcome.name]["color"], xytext=(2, 0), textcoords="offset points")


def put_legend_of_arms(empty, loss, arms):
    """Put the legend in the panel without data."""
    counts = [len(records) for records in arms.values()]
    seeds = f"{min(counts)}"
    if max(counts) > min(counts):
        seeds += f" to {max(counts)}"
    meaning = "colour: scale, dash: start" if colour_is_scale(arms) else "colour: start, dash: scale"
    handles, _ = loss.get_legend_handles_labels()
    empty.legend(handles=handles, loc="center", frameon=False, fontsize=8, ncols=1 + len(arms) // 13, handlelength=4,
                 title=f"seeds: {seeds}; {meaning}", title_fontsize=8)


def plot_arms(arms, path):
    """Figures 3 c and d, S4: the scores of every layer over steps, a column for each arm, means over seeds."""
    arms = {name: compare.counted(records) for name, records in arms.items()}
    n_columns = min(len(arms), 7)
    n_rows = math.ceil(len(arms) / n_columns)
    with figure(path, [1] * n_columns, rows=2 * n_rows) as axes:
        of_symmetry, of_directionality = list(axes[0::2].flat), list(axes[1::2].flat)  # every other row
        for records, symmetry, directionality in zip(arms.values(), of_symmetry, of_directionality):
            draw_layers(symmetry, records, "symmetry")
            draw_layers(directionality, records, "directionality")
        put_titles(of_symmetry, [f"{plain(name)}, seeds: {len(records)}" for name, records in arms.items()])
        for panels in of_symmetry, of_directionality:
            share_scale(panels[: len(arms)])
            for empty in panels[len(arms) :]:
                empty.axis("off")
        deepest = max(axes.flat, key=lambda axis: len(axis.lines))
        put_legend(deepest)


def share_scale(axes):
    """Give all panels of a score the same range, with numbers in the first column only."""
    share_limits(axes)
    for axis in axes:
        if not axis.get_subplotspec().is_first_col():
            axis.set(ylabel="", yticklabels=[])
