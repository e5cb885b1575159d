"""Draws the arms of a comparison, {name: Runs}: thin lines are seeds, and a thick one is their mean."""

import pandas

from config import require
from config.plan import task_keys
from data.drawing import DASHES, DECODER, ENCODER, panels, put_name, short, styles
from data.runs.curves import CHANCES, TITLES, plot_run


def plot_arms(arms, path, planned, only, title):
    """Draws one run, or the arms. planned: measures of tests. only: one measure, with names at its lines, or None."""
    first, *others = arms.values()
    if not others and len(first.seeds()) == 1:
        return plot_run(first, path)

    measures = choose_measures(arms, planned, only)
    titles = {measure: TITLES.get(measure, measure) for measure in measures}
    begins, style_of = family_of(arms)
    words = explain(arms, measures, only, begins)
    for axis, measure in panels(path, titles, words, title):
        for name, arm in arms.items():
            begin, style = begins[name], style_of[name]
            label = short(name.replace("_", " "))
            draw_seeds(axis, arm.curves(measure), label, only is not None, begin, **style)

            # chance is dotted, and a vertical line stands where an arm goes on with the weights of another
            if measure in CHANCES:
                chance = arm.curves(CHANCES[measure]).mean(axis="columns")
                axis.plot(chance.index + begin, chance, ":", color=style["color"], lw=1)
            if begin:
                axis.axvline(begin, color="0.8", lw=0.8, zorder=0)

        # the first losses are far above the others: cut them off
        if measure == "loss":
            losses = rows_of(arms)["val_loss"]
            axis.set_ylim(max(0, losses.min() - 0.1), losses.quantile(0.9))


def rows_of(arms):
    """Returns the rows of all arms, with those columns in which some arm has a number."""
    return pandas.concat([arm.table for arm in arms.values()]).dropna(axis="columns", how="all")


def choose_measures(arms, planned, only):
    """Returns at most four measures that arms have. Losses of different tasks only if one asks for them."""
    wanted = dict.fromkeys([only] if only else ["loss", *planned, *TITLES])  # each once
    if not only and task_keys([arm.config for arm in arms.values()]):
        del wanted["loss"]
    has = {"loss", *rows_of(arms)}
    require(not only or only in has, f"no run has {only} at its steps, so it is not drawn")
    return [measure for measure in wanted if measure in has][:4]


def explain(arms, measures, only, begins):
    """Returns what a reader has to know about the lines of the panels, a text."""
    words = []
    if any(len(arm.seeds()) > 1 for arm in arms.values()):
        words.append("thick lines: mean over seeds; thin lines: each seed")
    if only != "loss":
        words.append("scores: median over layers")
        if not rows_of(arms).columns.intersection(CHANCES.values()).empty:  # older files have none
            words[-1] += "; dotted: mean of random matrices in the same directions (chance)"
    if any(begins.values()):
        words.append("blue: bidirectional, purple: causal attention; vertical: runs begin with the weights of others")
    if not only and "loss" not in measures:
        words.append("losses are not drawn, because these runs have different tasks")
    return "\n".join(words)


def draw_seeds(axis, curves, name, is_named, begin=0, side="bottom", **style):
    """Draws a line for each seed of curves (S, seeds), and their mean. is_named: at its end, else in the legend."""
    curves = curves.dropna()  # the steps that all of them have
    curves.index += begin
    mean = curves.mean(axis="columns")
    axis.plot(mean, label=None if is_named else name, **style)
    if is_named:
        put_name(axis, mean, name, style["color"], side)
    axis.plot(curves, color=style["color"], lw=0.5, alpha=0.3)


def family_of(arms):
    """Returns two dicts by arm: the step at which it begins, where its parent ends, and the style of its line."""
    begins, roots = {}, {}
    for name in arms:
        # go back to the arm that began with no other's weights, and count the steps
        root, begin = name, 0
        while (parent := arms[root].config["parent"]) in arms:
            begin += arms[parent].config["max_iters"]
            root = parent
        begins[name], roots[name] = begin, root
    causal_of = {name: arm.config["causal"] for name, arm in arms.items()}
    if not any(begins.values()):
        return begins, styles(causal_of)

    # the colour says whether attention is causal, and the dashes from which arm the line has come
    style_of = {}
    families = list(dict.fromkeys(roots.values()))  # each once, in the order of the arms
    for name, causal in causal_of.items():
        number = families.index(roots[name])
        style_of[name] = dict(color=DECODER if causal else ENCODER, ls=DASHES[number % len(DASHES)])
    return begins, style_of
