"""The picture and the table of one training run. Dark layers are at the bottom of a network, light ones at its top."""

import pandas

from data.drawing import HEIGHT, draw_layers, figure, put_legend, put_steps, put_titles, put_zero, short
from data import fixed

TITLES = {"loss": "validation loss [nats/token]", "symmetry": "symmetry of $W_{qk}$",
          "directionality": "directionality of $W_{qk}$", "positions": "symmetry of positions",
          "heads": "symmetry of single heads"}
CHANCES = {"symmetry": "chance", "positions": "positions_chance", "heads": "heads_chance"}  # what is drawn dotted


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


def table_of_ends(arm):
    """Returns the first and last scores of every layer, and the last loss, as a text. arm: Runs of one seed."""
    ends = []
    limits = arm.layers("symmetry_95")  # (1, L), or empty in a wide model
    for score in "symmetry", "heads", "directionality", "positions":
        layers = arm.layers(score)  # (S, L)
        if len(layers):
            ends.append(layers.iloc[[0, -1]].set_axis([f"{score}: start", "end"]).T.reset_index(drop=True))  # (L, 2)
        if score == "symmetry":
            chance = pandas.DataFrame({"by chance": arm.layers("chance").iloc[-1].to_numpy()})
            if len(limits):
                chance["95 % below"] = limits.iloc[-1].to_numpy()
                is_beyond = ends[0]["end"] > chance["95 % below"]
                chance["beyond"] = is_beyond.map({True: "yes", False: "no"})
            ends.append(chance)
    table = pandas.concat(ends, axis="columns").rename_axis(columns="layer")
    scores = table.to_string(float_format=lambda score: fixed(score, 2))
    return f"{scores}\nvalidation loss {arm.at_end('loss').item():.4f} nats/token"
