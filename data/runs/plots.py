"""Draws the arms of a comparison, {name: Runs}: thin lines are seeds, and a thick one is their mean."""

import itertools

import pandas

from config import require
from config.plan import STEPS_TO, task_keys
from data.drawing import short, styles
from data.runs.curves import CHANCES, TITLES, draw_mean, panels, plot_layers

MOST_THIN = 48  # runs: if there are more, none of them has a line of its own


def plot_arms(arms, path, planned, only, title, picture):
    """
    Draws one arm by layer, or several arms. planned: measures of tests. only: one measure, or "". picture: what the
    plan has to draw, {argument: its value} of plot_panels or, with an arm, of plot_layers; {} for nothing special.
    """
    if picture.get("arm") in arms:
        return plot_layers(**picture | dict(arm=arms[picture["arm"]], path=path))
    labels = picture.get("labels", {})
    if labels and arms.keys() >= set().union(*labels.values()):
        return plot_panels(arms, path, **picture)
    if len(arms) == 1 and not only:
        return plot_layers(*arms.values(), path, title)
    goals = [measure.removeprefix(STEPS_TO) for measure in [*planned, only] if measure.startswith(STEPS_TO)]
    measures = ["loss"] if goals else choose_measures(arms, planned, only)
    labels = dict.fromkeys(measures, {name: short(name.replace("_", " ")) for name in arms})
    plot_panels(arms, path, title, labels, arms, {f"goal: {goal}": float(goal) for goal in goals})


def plot_panels(arms, path, title, labels, with_chance=(), levels={}):
    """
    Draws a panel for each measure. labels: {measure: {arm: its name at the line}}. with_chance: arms whose chance is
    drawn, too, as a dotted line. levels: {name: a loss}, as horizontal lines.
    """
    # the colour and the dashes of each arm, and what a reader has to know about the lines
    arms = {name: arms[name] for name in itertools.chain(*labels.values())}
    begins = {name: begin_of(name, arms) for name in arms}
    style_of = styles({name: arms[name].config for name in sorted(arms, key=begins.get)})  # parents first
    n_runs = sum(len(arm.seeds()) for arm in arms.values())
    words = []
    if n_runs > len(arms):
        words.append("thick lines: means; thin: single runs" if n_runs <= MOST_THIN else "lines: means of runs")
    if TITLES.keys() & labels.keys() - {"loss"}:
        words.append("scores: median over layers")
    for axis, measure in panels(path, labels, "; ".join(words), title):
        for name, label in labels[measure].items():
            arm, begin, style = arms[name], begins[name], style_of[name]
            draw_mean(axis, arm, measure, label, begin, n_runs <= MOST_THIN, **style)

            # what chance gives, and a vertical line where an arm goes on with the weights of another
            if name in with_chance:
                draw_mean(axis, arm, CHANCES.get(measure), None, begin, **style | dict(ls=":", lw=1))
            if begin:
                axis.axvline(begin, color="0.8", lw=0.8, zorder=0)

        # the first losses are far above the others: cut them off
        if measure == "loss":
            losses = pandas.concat([arm.values("loss") for arm in arms.values()])
            axis.set_ylim(max(0, losses.min() - 0.1), losses.quantile(0.9))
            for name, loss in levels.items():
                axis.axhline(loss, color="0.3", lw=0.8, ls="--")
                end = dict(transform=axis.get_yaxis_transform(), ha="right", va="bottom")  # x = 1 is its right end
                axis.text(1, loss, name, color="0.3", fontsize=9, **end)


def choose_measures(arms, planned, only):
    """Returns at most six measures that arms have. Losses of different tasks only if one asks for them."""
    rows = pandas.concat([arm.table for arm in arms.values()])
    has = {"loss", *rows.dropna(axis="columns", how="all")}
    if only:
        require(only in has, f"no run has {only} at its steps, so it is not drawn")
        return [only]
    wanted = dict.fromkeys(["loss", *planned, *TITLES])  # each once
    if task_keys([arm.config for arm in arms.values()]):
        del wanted["loss"]
        print("Losses are not drawn, because these runs have different tasks")
    return [measure for measure in wanted if measure in has][:6]


def begin_of(name, arms):
    """Returns the step at which an arm begins: where its parent ends, if this is drawn, too."""
    parent = arms[name].config["parent"]
    return begin_of(parent, arms) + arms[parent].config["max_iters"] if parent in arms else 0
