"""
The pictures of what the authors published: of pretrained models, put right, and of their training runs.
"""

import numpy as np

from data.pretrained import audit
from data.results import compare
from data.results.figures import DECODER, ENCODER, MARKERS, figure, layer_colour, styles, together

SCORES = ["symmetry", "directionality"]
FIGURES = {"2": "language", "S1": "vision and audio", "S2": "language, encoder-decoders"}
N_LAYERS = [12, 4]  # the paper draws the runs with 12
CORPORA = {"jigsaw": "Jigsaw", "wikipedia": "Wikipedia", "red_pajama": "RedPajama"}


def colour(causal):
    return DECODER if causal else ENCODER


def kind(causal):
    return "decoder" if causal else "encoder"


def put_title(axis, row, column, text):
    """(a1) text: a letter for the row of panels, a number for the column."""
    axis.set_title(f"({'abcd'[row]}{column + 1}) {text}", fontsize=8, loc="left")


# ---- pretrained models -------------------------------------------------------------------------------------------


def plot_pretrained(models, ours, path):
    """
    Figures 2, S1 and S2 from models (of audit.read_models): dot = median over layers, bar = quartiles, against
    parameters, in the colour of what the stack is. Crossed out: not of W_qk. Numbered: listed beside the figure, with
    what is to be known. Repeats are not drawn. ours: {(name, stack): (symmetry, directionality)}, each (q1, median,
    q3): where a model has one it is the full dot, and the published one a hollow dot joined to it.
    """
    with figure(path, [1, 1, 0.55], rows=len(FIGURES)) as axes:
        for row, name in enumerate(FIGURES):
            drawn = [model for model in models if model.figure == name and not model.repeats]
            drawn.sort(key=lambda model: (model.params, model.name))
            numbered = [model for model in drawn if audit.remark(model)]
            for column, score in enumerate(SCORES):
                axis = axes[row, column]
                for model in drawn:
                    draw_model(axis, model, column, ours.get((model.name, model.stack)))
                axis.axhline(0, color="0.8", lw=0.8, zorder=0)
                axis.set(xscale="log", xlabel="parameters of the model", ylabel=score)
                put_title(axis, row, column, f"Figure {name}, {FIGURES[name]}: {score}")
                write_numbers(axis, drawn, numbered, score)
            list_numbered(axes[row, 2], numbered)
        write_key(axes[-1, 2], ours)


def draw_model(axis, model, column, our_scores):
    """One stack in the panel of symmetry (column 0) or directionality (column 1)."""
    published = (model.symmetry, model.directionality)[column]
    _, median, _ = published
    style = dict(color=colour(model.causal), marker=MARKERS[model.modality])
    if our_scores is None:
        draw_quartiles(axis, model.params, published, style)
    else:
        _, our_median, _ = our_scores[column]
        draw_quartiles(axis, model.params, our_scores[column], style)
        axis.plot([model.params, model.params], [median, our_median], color="0.6", lw=0.5, zorder=1)
        axis.plot(model.params, median, ms=5, mfc="white", mew=0.8, ls="", **style)
    if audit.is_miscoloured(model):
        axis.plot(model.params, median, "o", ms=9, mfc="none", mec=colour(not model.causal))
    if not audit.is_of_wqk(model):
        axis.plot(model.params, median, "x", color="black", ms=7, mew=0.8, zorder=4)


def draw_quartiles(axis, x, quartiles, style):
    q1, median, q3 = quartiles
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ms=5, lw=0.8, ls="", alpha=0.9, zorder=2, **style)


def write_numbers(axis, drawn, numbered, score):
    """The numbers 1, 2, ... above their dots, each as low as it can stand without covering a dot or another number."""
    to_axes = axis.transScale + axis.transLimits  # data -> fractions of the panel
    places = {}
    for model in drawn:
        _, median, _ = getattr(model, score)
        places[model] = to_axes.transform((model.params, median))
    taken = list(places.values())
    for i, model in enumerate(numbered):
        x, y = places[model]
        y += 0.03
        while any(abs(x - other_x) < 0.025 and abs(y - other_y) < 0.027 for other_x, other_y in taken):
            y += 0.005
        taken.append((x, y))
        axis.text(x, y, i + 1, fontsize=6, ha="center", va="center", transform=axis.transAxes, zorder=5)


def list_numbered(axis, numbered):
    axis.axis("off")
    for i, model in enumerate(numbered):
        line = f"{i + 1} {model.name} {model.stack}".rstrip() + f": {audit.remark(model)}"
        axis.text(0, 1 - 0.038 * i, line, fontsize=6, va="top", transform=axis.transAxes)


def write_key(axis, ours):
    for causal, text in (False, "encoder: every token sees all"), (True, "decoder: a token sees those before it"):
        axis.plot([], [], "o", color=colour(causal), label=text)
    for modality, marker in MARKERS.items():
        axis.plot([], [], marker, color="0.6", label=modality)
    if ours:
        axis.plot([], [], "o", color="0.4", mfc="white", label="published, joined to ours")
    axis.plot([], [], "x", color="black", label="published, but not of $W_{qk}$")
    axis.plot([], [], "o", ms=9, mfc="none", mec=DECODER, label="encoder that the paper draws in purple")
    axis.legend(frameon=False, fontsize=7, loc="center left", borderaxespad=0)


# ---- training runs -----------------------------------------------------------------------------------------------


def columns_of(trajectories):
    """The columns of both pictures, as (depth, corpus), in the order of the paper's figures."""
    found = {(run.n_layer, run.corpus) for run in trajectories}
    return [(n_layer, corpus) for n_layer in N_LAYERS for corpus in CORPORA if (n_layer, corpus) in found]


def plot_trajectories(trajectories, arms, path):
    """
    Figures 3 a and b, S3: both scores over the steps of training, median and quartiles over layers. arms: {name: its
    runs, one per seed}, in a last column with quartiles over layers and seeds; may be empty.
    """
    columns = columns_of(trajectories)
    n_columns = len(columns) + bool(arms)
    with figure(path, [1] * n_columns, rows=len(SCORES)) as axes:
        for row, score in enumerate(SCORES):
            for column, (n_layer, corpus) in enumerate(columns):
                axis = axes[row, column]
                for run in trajectories:
                    if (run.n_layer, run.corpus) == (n_layer, corpus):
                        draw_median(axis, run.steps, getattr(run, score), dict(color=colour(run.causal)))
                put_title(axis, row, column, f"{n_layer} layers, {CORPORA[corpus]}")
            if arms:
                draw_arms(axes[row, -1], arms, score)
                put_title(axes[row, -1], row, len(columns), "ours")
            share_axes(axes[row], score)
        handles = [axes[0, 0].plot([], [], color=colour(causal), label=f"{kind(causal)} of the authors")[0]
                   for causal in (False, True)]
        handles += axes[0, -1].get_legend_handles_labels()[0] if arms else []
        axes[0, 0].figure.legend(handles=handles, loc="outside upper center", ncols=6, frameon=False, fontsize=8)


def draw_arms(axis, arms, score):
    for (name, seeds), style in zip(arms.items(), styles(arms).values()):
        values = together(seeds, lambda run: run.layers[score])  # (seeds, S, L)
        values = np.concatenate(values, axis=1)  # (S, seeds * L)
        draw_median(axis, seeds[0].steps[: len(values)], values, dict(label=f"ours: {name}", **style))


def draw_median(axis, steps, values, style):
    """values (S, layers): a line for the median, a band from quartile to quartile."""
    q1, median, q3 = np.percentile(values, [25, 50, 75], axis=1)  # (S,)
    axis.plot(steps, median, **style)
    axis.fill_between(steps, q1, q3, color=style["color"], alpha=0.15, lw=0)


def plot_trajectory_layers(trajectories, arms, path):
    """
    Figures 3 c and d, S4: both scores of every layer; a row for encoders and one for decoders. arms as above: the plain
    one of each kind in a last column, mean over seeds.
    """
    columns = columns_of(trajectories)
    n_columns = len(columns) + bool(arms)
    rows = [(score, causal) for score in SCORES for causal in (False, True)]
    with figure(path, [1] * n_columns, rows=len(rows)) as axes:
        for row, (score, causal) in enumerate(rows):
            for column, (n_layer, corpus) in enumerate(columns):
                axis = axes[row, column]
                for run in trajectories:
                    if (run.n_layer, run.corpus, run.causal) == (n_layer, corpus, causal):
                        draw_layers(axis, run.steps, getattr(run, score))
                put_title(axis, row, column, f"{kind(causal)}, {n_layer} layers, {CORPORA[corpus]}")
            if arms:
                name = plain_arm(arms, causal)
                if name:
                    values = together(arms[name], lambda run: run.layers[score]).mean(0)  # (S, L)
                    draw_layers(axes[row, -1], arms[name][0].steps[: len(values)], values)
                put_title(axes[row, -1], row, len(columns), f"ours: {name or 'no ' + kind(causal)}")
            share_axes(axes[row], score)
        handles, _ = axes[0, 0].get_legend_handles_labels()  # bottom to top
        axes[0, 0].figure.legend([handles[0], handles[-1]], ["first layer", "last layer"], ncols=2, frameon=False,
                                 loc="outside upper center", fontsize=8)


def plain_arm(arms, causal):
    """The name of the plain arm of this kind; None if there is none of this kind."""
    if not any(seeds[0].config["causal"] == causal for seeds in arms.values()):
        return None
    return compare.baseline(arms, causal)


def draw_layers(axis, steps, values):
    """values (S, L): a line per layer, dark at the bottom of the network, light at its top."""
    n_layer = values.shape[1]
    for layer in range(n_layer):
        axis.plot(steps, values[:, layer], color=layer_colour(layer, n_layer), lw=1, label=f"layer {layer}")


def share_axes(axes, score):
    """The panels of a row: one range, as far as the data go, and numbers at the left edge only."""
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.axhline(0, color="0.8", lw=0.8, zorder=0)
        axis.set(ylim=(low, high), ylabel=score, xlabel="step")
        axis.xaxis.set_major_formatter(thousands)
        axis.label_outer()


def thousands(step, _):
    return f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"
