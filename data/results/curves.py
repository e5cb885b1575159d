"""
Draws training runs. arms is {name: Arm}. The first encoder is blue and the first
decoder purple. Dark layers are at the bottom of a network, light ones at its top.
"""

import math

import pandas

from data.drawing import draw_layers, figure, put_legend, put_steps, put_titles, put_zero, short, styles

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "heads": "symmetry of single heads",
          "positions": "symmetry of positions"}


def plot_run(arm, path):
    """Draws the loss and the scores of each layer over the steps of one run."""
    (seed,) = arm.seeds()
    in_words = short(arm.name.replace("_", " "))
    scores = [score for score in ("symmetry", "directionality", "positions") if len(arm.curves(score))]
    with figure(path, *grid(1 + len(scores)), title=f"Training of {in_words}, seed {seed}") as axes:
        loss, *panels = axes.flat
        loss.plot(arm.curves("train_loss"), color="0.7", label="training loss")
        loss.plot(arm.curves("loss"), color="black", label="validation loss")
        put_steps(loss)
        for axis, score in zip(panels, scores):
            chance = dict(symmetry="chance", positions="positions_chance").get(score)
            of_chance = arm.layers(chance).droplevel("seed") if chance else None
            draw_layers(axis, arm.layers(score).droplevel("seed"), of_chance)
            put_zero(axis)
        put_titles(axes.flat, ["loss [nats/token]", *(TITLES[score] for score in scores)])
        put_legend(axes.flat, title="dotted: mean of random matrices in the same directions (chance)")


def grid(n):
    """Returns rows and columns for n panels."""
    columns = 2 if n in (2, 4) else min(n, 3)
    return math.ceil(n / columns), columns


def plot_runs(arms, path, measures):
    """Draws the means over seeds of at most four measures over the steps: of these, and then of scores."""
    style_of = styles({name: arm.config["causal"] for name, arm in arms.items()})
    words = "lines: mean over seeds; bands: lowest to highest seed; scores: median over layers"
    if "loss" not in measures:
        words += "\nlosses are not drawn, because these runs have different tasks"
    measures = dict.fromkeys([*measures, "symmetry", "directionality", "positions", "heads"])
    measures = [measure for measure in measures if any(len(arm.curves(measure)) for arm in arms.values())][:4]
    with figure(path, *grid(len(measures))) as axes:
        for axis, measure in zip(axes.flat, measures):
            draw_arms(axis, arms, measure, style_of)
            if measure == "loss":
                losses = pandas.concat([arm.values("loss") for arm in arms.values()])
                axis.set_ylim(max(0, losses.min() - 0.1), losses.quantile(0.9))  # the first losses are cut off
            else:
                put_zero(axis)
        put_titles(axes.flat, [TITLES.get(measure, measure) for measure in measures])
        put_legend(axes.flat, title=words)


def draw_arms(axis, arms, measure, style_of):
    """Draws, for each arm, the mean over seeds of a measure over the steps, and a band from lowest to highest seed."""
    for name, arm in arms.items():
        table = arm.curves(measure).dropna()  # (S, seeds): the steps that all of them have
        axis.plot(table.mean(axis="columns"), label=short(name.replace("_", " ")), **style_of[name])
        axis.fill_between(table.index, table.min(axis="columns"), table.max(axis="columns"),
                          color=style_of[name]["color"], alpha=0.1, lw=0)
    put_steps(axis)
