"""
The pictures of the authors' training runs, beside ours.
"""

import numpy as np

from data.results import compare
from data.results.figures import DECODER, ENCODER, colour_of, figure, layer_colour, put_zero, share_limits
from data.results.figures_runs import stack_scores, styles
from data.results.published import Trajectory
from data.results.tables import SCORES

N_LAYERS = [12, 4]  # the paper draws the runs with 12
CORPORA = {"jigsaw": "Jigsaw", "wikipedia": "Wikipedia", "red_pajama": "RedPajama"}


def put_title(axis, row, column, text):
    """(a1) text: a letter for the row of panels, a number for the column."""
    axis.set_title(f"({'abcd'[row]}{column + 1}) {text}", fontsize=8, loc="left")


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
