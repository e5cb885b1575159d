"""
Draws training runs. arms is {name: Runs}. The first encoder is blue and the first decoder purple. Dark layers are at
the bottom of a network, light ones at its top.
"""

import itertools

import pandas

from data.drawing import (DASHES, DECODER, ENCODER, HEIGHT, draw_layers, figure, put_legend, put_steps, put_titles,
                          put_zero, short, styles)

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "positions": "symmetry of positions",
          "heads": "symmetry of single heads"}
CHANCES = {"symmetry": "chance", "positions": "positions_chance", "heads": "heads_chance"}  # what is drawn dotted


def plot_arms(arms, path, planned, only=None, title=""):
    """
    Draws one run, or the means over seeds of at most four measures: the loss, those of planned tests, and scores.
    only: the one measure to draw, with names at the lines, or None.
    """
    from config.plan import task_keys  # a run of train.py needs no plan

    first, *others = arms.values()
    if not others and len(first.seeds()) == 1:
        return plot_run(first, path)
    begins, style_of = family_of(arms)
    words = "scores: median over layers; dotted: mean of random matrices in the same directions (chance)"
    if any(len(arm.seeds()) > 1 for arm in arms.values()):
        words = f"thick lines: mean over seeds; thin lines: each seed\n{words}"
    if any(begins.values()):
        words += "\nblue: attention to both sides; purple: causal attention; line: the mask is switched, or not"
    titles = {measure: TITLES.get(measure, measure) for measure in ["loss", *planned, *TITLES]}
    if only:
        titles = {only: TITLES.get(only, only)}
    elif task_keys([arm.config for arm in arms.values()]):
        words += "\nlosses are not drawn, because these runs have different tasks"
        del titles["loss"]
    measures = [measure for measure in titles if any(len(arm.curves(measure)) for arm in arms.values())]
    for axis, measure in panels(path, {measure: titles[measure] for measure in measures[:4]}, words, title):
        for name, arm in arms.items():
            table = arm.curves(measure).dropna()  # (S, seeds): the steps that all of them have
            steps, colour = table.index + begins[name], style_of[name]["color"]
            mean, label = table.mean(axis="columns"), short(name.replace("_", " "))
            axis.plot(steps, mean, label=None if only else label, **style_of[name])
            if only:
                axis.annotate(label, (steps[-1], mean.iloc[-1]), (3, 3), textcoords="offset points", color=colour,
                              fontsize=8)
            axis.plot(steps, table, color=colour, lw=0.5, alpha=0.3)
            if measure in CHANCES:
                chance = arm.curves(CHANCES[measure]).mean(axis="columns")
                axis.plot(chance.index + begins[name], chance, ":", color=colour, lw=1)
            if begins[name]:
                axis.axvline(begins[name], color="0.8", lw=0.8, zorder=0)
        if measure == "loss":
            losses = pandas.concat([arm.values("loss") for arm in arms.values()])
            axis.set_ylim(max(0, losses.min() - 0.1), losses.quantile(0.9))  # the first losses are cut off


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


def plot_run(arm, path):
    """Draws the loss and the scores of each layer over the steps of one run."""
    (seed,) = arm.seeds()
    titles = {"loss": "loss [nats/token]"}
    titles |= {score: TITLES[score] for score in ("symmetry", "directionality", "positions") if len(arm.curves(score))}
    words = "dotted: mean of random matrices in the same directions (chance)"
    title = f"Training of {short(arm.name.replace('_', ' '))}, seed {seed}"
    for axis, measure in panels(path, titles, words, title):
        if measure == "loss":
            axis.plot(arm.curves("train_loss"), color="0.7", label="training loss")
            axis.plot(arm.curves("loss"), color="black", label="validation loss")
        else:
            chance = arm.layers(CHANCES[measure]).droplevel("seed") if measure in CHANCES else None
            draw_layers(axis, arm.layers(measure).droplevel("seed"), chance)


def panels(path, titles, words, title=""):
    """Gives an axis for each of at most four measures, {measure: its title}, and then saves the picture."""
    n_rows = 2 if len(titles) == 4 else 1
    height = 1.5 * HEIGHT if len(titles) == 1 else HEIGHT
    with figure(path, n_rows, len(titles) // n_rows, height, title) as axes:
        for axis, measure in zip(axes.flat, titles):
            yield axis, measure
            put_steps(axis)
            if measure != "loss":
                put_zero(axis)
        put_titles(axes.flat, titles.values())
        put_legend(axes.flat, title=words)
