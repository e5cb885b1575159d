"""
Draws the arms of a comparison, {name: Runs}: thin lines are seeds, and a thick one is their mean. The first encoder is
blue and the first decoder purple.
"""

import itertools

import pandas

from config.plan import task_keys
from data.drawing import DASHES, DECODER, ENCODER, short, styles
from data.runs.curves import CHANCES, TITLES, panels, plot_run


def plot_arms(arms, path, planned, only=None, title=""):
    """
    Draws one run, or the means over seeds of at most four measures: the loss, those of planned tests, and scores.
    only: the one measure to draw, with names at the lines, or None.
    """
    first, *others = arms.values()
    if not others and len(first.seeds()) == 1:
        return plot_run(first, path)
    begins, style_of = family_of(arms)
    words = []
    if any(len(arm.seeds()) > 1 for arm in arms.values()):
        words.append("thick lines: mean over seeds; thin lines: each seed")
    if only != "loss":
        words.append("scores: median over layers")
        if any(len(arm.curves(chance)) for arm in arms.values() for chance in CHANCES.values()):  # not in old files
            words[-1] += "; dotted: mean of random matrices in the same directions (chance)"
    if any(begins.values()):
        words.append("blue: bidirectional, purple: causal attention; vertical: runs begin with the weights of others")
    measures = [only] if only else list(dict.fromkeys(["loss", *planned, *TITLES]))
    if not only and task_keys([arm.config for arm in arms.values()]):
        words.append("losses are not drawn, because these runs have different tasks")
        measures.remove("loss")
    names = set().union(*(arm.table.dropna(axis="columns", how="all") for arm in arms.values())) | {"loss"}
    measures = [measure for measure in measures if measure in names][:4]
    titles = {measure: TITLES.get(measure, measure) for measure in measures}
    for axis, measure in panels(path, titles, "\n".join(words), title):
        for name, arm in arms.items():
            label = short(name.replace("_", " "))
            draw_seeds(axis, arm.curves(measure), label, bool(only), begins[name], **style_of[name])
            if measure in CHANCES:
                chance = arm.curves(CHANCES[measure]).mean(axis="columns")
                axis.plot(chance.index + begins[name], chance, ":", color=style_of[name]["color"], lw=1)
            if begins[name]:
                axis.axvline(begins[name], color="0.8", lw=0.8, zorder=0)
        if measure == "loss":
            losses = pandas.concat([arm.values("loss") for arm in arms.values()])
            axis.set_ylim(max(0, losses.min() - 0.1), losses.quantile(0.9))  # the first losses are cut off


def draw_seeds(axis, curves, name, is_named, begin=0, side="bottom", **style):
    """Draws a line for each seed of curves (S, seeds), and their mean. is_named: at its end, else in the legend."""
    curves = curves.dropna()  # the steps that all of them have
    curves.index += begin
    mean = curves.mean(axis="columns")
    axis.plot(mean, label=None if is_named else name, **style)
    if is_named:
        put_name(axis, mean, name, style["color"], side)
    axis.plot(curves, color=style["color"], lw=0.5, alpha=0.3)


def put_name(axis, curve, name, colour, side):
    """Writes a name at the end of a curve. side: what of the text is at this height, bottom, top or center."""
    axis.annotate(name, (curve.index[-1], curve.iloc[-1]), (3, 0), textcoords="offset points", color=colour, va=side,
                  fontsize=9)


def family_of(arms):
    """
    Returns for each arm the step at which it begins, and the style of its line, {name: ...} each. A child begins where
    its parent ends. Then the colour says whether attention is causal, and the dashes where the line has come from.
    """
    begins, roots = {}, {}
    for name, arm in arms.items():
        begins[name], roots[name] = 0, name
        while (parent := arms[roots[name]].config.get("parent")) in arms:
            begins[name] += arms[parent].config["max_iters"]
            roots[name] = parent
    if not any(begins.values()):
        return begins, styles({name: arm.config["causal"] for name, arm in arms.items()})
    dashes = dict(zip(dict.fromkeys(roots.values()), itertools.cycle(DASHES)))
    colours = {name: DECODER if arm.config["causal"] else ENCODER for name, arm in arms.items()}
    return begins, {name: dict(color=colours[name], ls=dashes[roots[name]]) for name in arms}
