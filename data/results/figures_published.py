"""
The pictures of what the authors published: the scores of pretrained models, corrected, and their training runs.
"""

import numpy as np

from data.pretrained import audit
from data.results import compare
from data.results.figures import DECODER, ENCODER, MARKERS, colour_of, figure, layer_colour, put_zero, share_limits
from data.results.figures_runs import stack_scores, styles
from data.results.published import Trajectory
from data.results.tables import SCORES

FIGURES = {"2": "language", "S1": "vision and audio", "S2": "language, encoder-decoders"}
N_LAYERS = [12, 4]  # the paper draws the runs with 12
CORPORA = {"jigsaw": "Jigsaw", "wikipedia": "Wikipedia", "red_pajama": "RedPajama"}


def put_title(axis, row, column, text):
    """(a1) text: a letter for the row of panels, a number for the column."""
    axis.set_title(f"({'abcd'[row]}{column + 1}) {text}", fontsize=8, loc="left")


# ---- pretrained models -------------------------------------------------------------------------------------------


def plot_pretrained(models, ours, path):
    """
    Figures 2, S1 and S2: scores against parameters, blue for encoders and purple for decoders.

    Dot: median over layers; bar: quartiles. A dot that is crossed out is not a score of W_qk. A number refers to a
    remark in the list beside the figure. Repeated models are not drawn.

    models: from audit.read_models. ours: {(name, stack): tables.Summary}. If a model is in ours, our score is the full
    dot, and the published one is a hollow dot that is joined to it.
    """
    with figure(path, [1, 1, 0.55], rows=len(FIGURES)) as axes:
        for row, name in enumerate(FIGURES):
            drawn = [model for model in models if model.figure == name and not model.repeats]
            drawn.sort(key=lambda model: (model.params, model.name))
            numbered = [model for model in drawn if audit.remark(model)]
            for column, score in enumerate(SCORES):
                axis = axes[row, column]
                for model in drawn:
                    draw_model(axis, model, ours.get((model.name, model.stack)), score)
                put_zero(axis)
                axis.set(xscale="log", xlabel="parameters of the model", ylabel=score)
                put_title(axis, row, column, f"Figure {name}, {FIGURES[name]}: {score}")
                write_numbers(axis, drawn, numbered, score)
            list_numbered(axes[row, 2], numbered)
        write_key(axes[-1, 2], ours)


def draw_model(axis, model, summary, score):
    """One stack in the panel of a score. summary: of our scores; None if we have none."""
    published = getattr(model, score)
    _, median, _ = published
    style = dict(color=colour_of(model.causal), marker=MARKERS[model.modality])
    if summary is None:
        draw_quartiles(axis, model.params, published, style)
    else:
        ours = getattr(summary, score)
        _, our_median, _ = ours
        draw_quartiles(axis, model.params, ours, style)
        axis.plot([model.params, model.params], [median, our_median], color="0.6", lw=0.5, zorder=1)
        axis.plot(model.params, median, ms=5, mfc="white", mew=0.8, ls="", **style)
    if audit.is_miscoloured(model):
        axis.plot(model.params, median, "o", ms=9, mfc="none", mec=colour_of(not model.causal))
    if not audit.is_of_wqk(model):
        axis.plot(model.params, median, "x", color="black", ms=7, mew=0.8, zorder=4)


def draw_quartiles(axis, x, quartiles, style):
    """quartiles: (q1, median, q3)"""
    q1, median, q3 = quartiles
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ms=5, lw=0.8, ls="", alpha=0.9, zorder=2, **style)


def write_numbers(axis, drawn, numbered, score):
    """
    Write the numbers 1, 2, ... above the dots of the models in numbered, as low as possible without covering a dot of
    drawn or another number.
    """
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
        axis.plot([], [], "o", color=colour_of(causal), label=text)
    for modality, marker in MARKERS.items():
        axis.plot([], [], marker, color="0.6", label=modality)
    if ours:
        axis.plot([], [], "o", color="0.4", mfc="white", label="published, joined to ours")
    axis.plot([], [], "x", color="black", label="published, but not of $W_{qk}$")
    axis.plot([], [], "o", ms=9, mfc="none", mec=DECODER, label="encoder that the paper draws in purple")
    axis.legend(frameon=False, fontsize=7, loc="center left", borderaxespad=0)


# ---- training runs -----------------------------------------------------------------------------------------------


def plot_trajectories(trajectories, arms, path):
    """
    Figures 3 a and b, S3: both scores over the steps of training, median and quartiles over layers.

    arms: {name: its records, one per seed}. Their means over seeds are drawn in a last column. It may be empty.
    """
    columns = columns_of(trajectories, list(arms.values()))
    our_styles = styles(arms)
    with figure(path, [1] * len(columns), rows=len(SCORES)) as axes:
        for row, score in enumerate(SCORES):
            for column, (title, shown) in enumerate(columns):
                axis = axes[row, column]
                for run in shown:
                    style = our_styles.get(run.name, dict(color=colour_of(run.causal)))
                    draw_median(axis, run.steps, getattr(run, score), style)
                put_title(axis, row, column, title)
            share_axes(axes[row], score)
        legend = {"encoder": dict(color=ENCODER), "decoder": dict(color=DECODER)}
        for name, style in our_styles.items():
            legend[f"ours: {name}"] = style
        write_legend(axes, legend)


def plot_trajectory_layers(trajectories, arms, path):
    """
    Figures 3 c and d, S4: both scores of every layer, with a row for encoders and a row for decoders.

    arms: as above. The last column shows their baselines.
    """
    our_baselines = [arms[name] for name in compare.baselines(arms).values()]
    columns = columns_of(trajectories, our_baselines)
    rows = [("symmetry", False), ("symmetry", True), ("directionality", False), ("directionality", True)]
    with figure(path, [1] * len(columns), rows=len(rows)) as axes:
        for row, (score, causal) in enumerate(rows):
            for column, (title, shown) in enumerate(columns):
                axis = axes[row, column]
                for run in shown:
                    if run.causal == causal:
                        draw_layers(axis, run.steps, getattr(run, score))
                put_title(axis, row, column, f"{'decoder' if causal else 'encoder'}, {title}")
            share_axes(axes[row], score)
        write_legend(axes, {"first layer": dict(color=layer_colour(0, 12)),
                            "last layer": dict(color=layer_colour(11, 12))})


def columns_of(trajectories, our_arms):
    """The columns of both pictures, each a title and the Trajectories in it. our_arms: lists of records."""
    columns = []
    for n_layer in N_LAYERS:
        for corpus, corpus_title in CORPORA.items():
            shown = [run for run in trajectories if run.n_layer == n_layer and run.corpus == corpus]
            if shown:
                columns.append((f"{n_layer} layers, {corpus_title}", shown))
    if our_arms:
        columns.append(("ours", [mean_over_seeds(records) for records in our_arms]))
    return columns


def mean_over_seeds(records):
    """The mean over the runs of one arm, as a Trajectory, at the steps that all of them have."""
    steps, symmetry = stack_scores(records, [record.layers["symmetry"] for record in records])  # (S,), (seeds, S, L)
    _, directionality = stack_scores(records, [record.layers["directionality"] for record in records])
    first = records[0]
    return Trajectory(
        name=first.arm,
        n_layer=first.config["n_layer"],
        causal=first.config["causal"],
        corpus="ours",
        steps=steps,
        symmetry=symmetry.mean(0),
        directionality=directionality.mean(0),
    )


def draw_median(axis, steps, values, style):
    """values (S, L): a line for the median over layers, a band from quartile to quartile."""
    q1, median, q3 = np.percentile(values, [25, 50, 75], axis=1)  # (S,)
    axis.plot(steps, median, **style)
    axis.fill_between(steps, q1, q3, color=style["color"], alpha=0.15, lw=0)


def draw_layers(axis, steps, values):
    """values (S, L): a line per layer, dark at the bottom of the network, light at its top."""
    n_layer = values.shape[1]
    for layer in range(n_layer):
        axis.plot(steps, values[:, layer], color=layer_colour(layer, n_layer), lw=1)


def write_legend(axes, styles_by_label):
    """Above all panels: a line for each."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=label, **style) for label, style in styles_by_label.items()]
    axes[0, 0].figure.legend(handles=lines, loc="outside upper center", ncols=6, frameon=False, fontsize=8)


def share_axes(axes, score):
    """Give the panels of a row the same range, with numbers at the left edge only."""
    share_limits(axes)
    for axis in axes:
        put_zero(axis)
        axis.set(ylabel=score, xlabel="step")
        axis.xaxis.set_major_formatter(thousands)
        axis.label_outer()


def thousands(step, _):
    return f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"
