"""
The pictures that analyze.py and train.py draw. Blue is an encoder and purple a decoder everywhere, as in the paper.
"""

import contextlib
import itertools
import warnings
from pathlib import Path

import numpy as np

from data.results import compare, null
from data.results.records import BY_LAYER, FREE, record_of_run
from data.results.runs import replacing

ENCODER, DECODER, UNKNOWN = "#2166ac", "#8e3b9e", "0.5"
OTHERS = ["#e08214", "#1b7837", "#b2182b", "#c7a000", "#35978f", "#8c510a", "#f768a1", "#4d4d4d", "#7fbc41"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)), (0, (3, 1)), (0, (8, 2, 1, 2))]
MARKERS = {"language": "o", "vision": "s", "audio": "^"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPLIT = 0.1  # nats/token; if the final losses of two seeds differ by more, every seed is drawn


def kind(causal):
    """-> what a stack is, and its colour."""
    if causal is None:
        return "causal unknown", UNKNOWN
    if causal:
        return "decoder", DECODER
    return "encoder", ENCODER


def formats():
    """The formats that a picture can have: png, pdf, svg, ..."""
    from matplotlib.backend_bases import FigureCanvasBase

    return sorted(FigureCanvasBase.get_supported_filetypes())


@contextlib.contextmanager
def figure(path, widths, rows=1, inches=2.4):
    """Axes (rows, len(widths)) to draw on. At the end they are saved, in the format that the name of the file says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(rows, len(widths), figsize=(max(11, inches * len(widths)), 3.4 * rows),
                             layout="constrained", width_ratios=widths, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a letter that the font does not have: a box stands for it
        fig.savefig(temporary, dpi=120, format=Path(path).suffix[1:] or "png")
    plt.close(fig)


def put_titles(axes, titles):
    """Above each panel a letter, a, b, c, ..., and what it shows."""
    for axis, letter, title in zip(axes, LETTERS, titles):
        axis.set_title(f"{letter}   {title}", fontsize=9, loc="left")


def put_zero(axis):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)


def put_legend(axis, handles=None, ncols=1):
    """Put the legend to the right of the panels, where there are no data."""
    if handles is None:
        handles = axis.get_legend_handles_labels()[0]
    axis.figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8, ncols=ncols)


def put_null(axis, score, n, r):
    """Draw a grey band: the range of 95 of 100 random matrices."""
    band = null.band(score, n, r)
    if band:
        axis.axhspan(*band, color="0.93", lw=0, zorder=-1)


def layer_colour(layer, n_layer):
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * layer / n_layer)


# ---- pretrained models -------------------------------------------------------------------------------------------


def plot_models(summary, path):
    """
    Figures 2, S1, S2: scores against parameters. Dot: median over layers; bar: quartiles; grey: 95 of 100 random
    matrices. The numbers at the dots refer to the legend.
    """
    with figure(path, [1, 1]) as ((left, right),):
        for axis, name in (left, "symmetry"), (right, "directionality"):
            for number, s in enumerate(summary, 1):
                q1, median, q3 = getattr(s, name)
                band = null.band(name, s.n, s.r)
                if band:
                    axis.plot([s.n_params] * 2, band, color="0.88", lw=5, zorder=0, solid_capstyle="butt")
                axis.errorbar(s.n_params, median, [[median - q1], [q3 - median]], ms=5, lw=1, alpha=0.8, mec="white",
                              mew=0.5, fmt=MARKERS[s.modality], color=kind(s.causal)[1])
                axis.annotate(str(number), (s.n_params, median), (4, 2), textcoords="offset points", fontsize=7)
            put_zero(axis)
            axis.set(xscale="log", xlabel="parameters", ylabel=f"{name} of $W_{{qk}}$")
            put_parameter_ticks(axis)
        put_titles((left, right), ["median and quartiles over layers", "the same of directionality"])
        for causal in dict.fromkeys(s.causal for s in summary):
            label, colour = kind(causal)
            left.plot([], [], "o", color=colour, label=label)
        for modality in dict.fromkeys(s.modality for s in summary):
            left.plot([], [], MARKERS[modality], color="0.6", label=modality)
        left.plot([], [], color="0.88", lw=5, label="95 of 100\nrandom matrices")
        for number, s in enumerate(summary, 1):
            left.plot([], [], " ", label=f"{number} {Path(s.model).name} {s.stack}".strip())
        handles = left.get_legend_handles_labels()[0]
        put_legend(left, handles, ncols=1 + len(handles) // 17)  # so many are as high as the figure


def put_parameter_ticks(axis):
    """At most five ticks: 100M, 200M, 500M, 1B, ... Powers of ten alone may be none if all models have one size."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axis.get_xlim()
    if high < 4 * low:  # one model, or models of one size
        low, high = low / 2, 2 * high
    axis.set_xlim(low, high)  # fix the limits, because the new ticks would change them
    candidates = [digit * 10.0**power for power in range(3, 13) for digit in (1, 2, 5)]
    ticks = [tick for tick in candidates if low <= tick <= high]
    ticks = ticks[:: 1 + (len(ticks) - 1) // 5]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([parameter_text(tick) for tick in ticks])


def parameter_text(n):
    """200e6 -> 200M"""
    for size, unit in (1e9, "B"), (1e6, "M"), (1e3, "k"):
        if n >= size:
            return f"{n / size:g}{unit}"
    return f"{n:g}"


def plot_model(name, rows, causal, crops, path):
    """The scores of the layers of one model (and of its heads), and the W_qk of its layer of median symmetry."""
    from matplotlib.ticker import MaxNLocator

    layers = [row for row in rows if row.head is None]
    colours = stack_colours(causal)
    with figure(path, [1, 1, 1, 1, 1], inches=2.8) as ((left, right, *pictures),):
        for axis, score in (left, "symmetry"), (right, "directionality"):
            put_null(axis, score, layers[0].n, layers[0].r)
            for stack in causal:
                label = f"{stack or Path(name).name} ({kind(causal[stack])[0]})"
                mine = [row for row in rows if row.stack == stack]
                draw_stack(axis, mine, score, colours[stack], label)
            put_zero(axis)
            axis.set(ylabel=f"{score} of $W_{{qk}}$", xlabel="layer", xlim=(-0.5, max(row.layer for row in rows) + 0.5))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        i = median_layer(layers)
        draw_parts(pictures, crops[i], layers[i])
        put_titles((left, right, *pictures), ["symmetry", "directionality", *titles_of_parts(layers[i])])
        handles = left.get_legend_handles_labels()[0]
        left.figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=8, ncols=4)


def plot_matrices(models, path):
    """For each model a row: W_qk of its layer of median symmetry, and its parts. models: [(name, rows, crops)]"""
    with figure(path, [1, 1, 1], rows=len(models), inches=3.4) as axes:
        titles = []
        for row_of_axes, (name, rows, crops) in zip(axes, models):
            layers = [row for row in rows if row.head is None]
            i = median_layer(layers)
            draw_parts(row_of_axes, crops[i], layers[i])
            first, *others = titles_of_parts(layers[i])
            titles += [f"{Path(name).name}: {first}", *others]
        put_titles(axes.flat, titles)


def median_layer(layers):
    """The index of the layer with the median symmetry; the upper one of two."""
    order = sorted(range(len(layers)), key=lambda i: layers[i].symmetry)
    return order[len(layers) // 2]


def titles_of_parts(row):
    where = f"{row.stack} layer {row.layer}".strip()
    return [f"$W_{{qk}}$ of {where}, symmetry {row.symmetry:.2f}", "its symmetric part", "its skew part"]


def draw_stack(axis, rows, score, colour, label):
    heads = [row for row in rows if row.head is not None]
    layers = [row for row in rows if row.head is None]
    if heads:
        axis.plot([row.layer for row in heads], [getattr(row, score) for row in heads], ".", color=colour, alpha=0.3,
                  ms=4, label=f"{label}, its heads")
    axis.plot([row.layer for row in layers], [getattr(row, score) for row in layers], "o-", color=colour, ms=4,
              label=label)


def stack_colours(causal):
    """{stack: colour}. The colour tells encoder or decoder; further stacks of the same kind are lighter."""
    from matplotlib.colors import to_rgb

    colours, seen = {}, []
    for stack, value in causal.items():
        white = 0.45 * min(2, seen.count(value))
        colours[stack] = (1 - white) * np.array(to_rgb(kind(value)[1])) + white
        seen.append(value)
    return colours


def draw_parts(axes, m, row):
    """Draw m, the corner of a W_qk, and its parts (M + M^T) / 2 and (M - M^T) / 2, with one colour scale."""
    limit = np.quantile(np.abs(m), 0.995)
    for axis, part in zip(axes, [m, (m + m.T) / 2, (m - m.T) / 2]):
        image = axis.imshow(part, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set(xticks=[0, len(m) - 1], yticks=[0, len(m) - 1])
        axis.spines[["top", "right"]].set_visible(True)
    axes[0].set(xlabel=f"key side, {len(m)} of {row.n} columns", ylabel="query side")
    share = (1 + row.symmetry) / 2  # |M_s|^2 / |M|^2, as s = (|M_s|^2 - |M_n|^2) / |M|^2
    axes[1].set_xlabel(f"{share:.0%} of $|W_{{qk}}|^2$")
    axes[2].set_xlabel(f"{1 - share:.0%} of $|W_{{qk}}|^2$")
    axes[-1].figure.colorbar(image, ax=axes, shrink=0.6, pad=0.01)


# ---- one run -----------------------------------------------------------------------------------------------------


def plot_run(run, path):
    """Loss, symmetry and directionality over the steps of one run, with a line for each layer."""
    record = record_of_run(run)
    with figure(path, [1, 1, 1]) as ((left, *others),):
        left.plot(record.eval_steps, record.train_loss, color="0.7", label="training loss")
        left.plot(record.eval_steps, record.val_loss, color="black", label="validation loss")
        left.set(ylabel="loss [nats/token]", xlabel="step")
        for axis, score in zip(others, BY_LAYER):
            plot_layers(axis, [record], score)
            put_null(axis, score, run.config["n_embd"], run.config["n_embd"])
        put_titles((left, *others), ["loss", "symmetry, by layer", "directionality, by layer"])
        left.figure.suptitle(f"{run.name}, seed {run.config['seed']}")
        losses, layers = left.get_legend_handles_labels()[0], others[0].get_legend_handles_labels()[0]
        put_legend(left, losses + layers)


def plot_layers(axis, seeds, score):
    """A line for each layer over the steps: the mean over the seeds of one arm."""
    values = together(seeds, lambda record: record.layers[score]).mean(0)  # (steps, L)
    n_layer = values.shape[1]
    for layer in range(n_layer):
        axis.plot(seeds[0].steps[: len(values)], values[:, layer], color=layer_colour(layer, n_layer),
                  label=f"layer {layer}")
    put_zero(axis)
    axis.set(xlabel="step", ylabel=f"{score} of $W_{{qk}}$")


def together(seeds, values):
    """values(record) of every seed, cut to the length of the shortest: (seeds, steps)."""
    curves = [values(record) for record in seeds]
    return np.stack([curve[: min(map(len, curves))] for curve in curves])


# ---- a comparison ------------------------------------------------------------------------------------------------


def styles(arms):
    """
    The line style of every arm: {arm: dict(color, ls)}.

    The colour tells the scale of q, k and v, and the dash the start and whatever else an arm has changed. If there are
    more than four of the latter, it is the other way round. The first encoder is blue, the first decoder purple.
    """
    scales, starts = {}, {}
    for name, records in arms.items():
        config = records[0].config
        scales[name] = config["qk_std"], config["v_std"]
        starts[name] = start_of(config, arms)
    if colour_is_scale(arms):
        colours, dashes = scales, starts
    else:
        colours, dashes = starts, scales
    colour_of, dash_of = {}, {}
    other_colours = itertools.cycle(OTHERS)
    found = {}
    for name, records in arms.items():
        causal = records[0].config["causal"]
        key = causal, colours[name]
        if key not in colour_of:
            is_first = causal not in [other for other, _ in colour_of]  # the first encoder, or the first decoder
            colour_of[key] = kind(causal)[1] if is_first else next(other_colours)
        if dashes[name] not in dash_of:
            dash_of[dashes[name]] = DASHES[len(dash_of) % len(DASHES)]
        found[name] = dict(color=colour_of[key], ls=dash_of[dashes[name]])
    return found


def colour_is_scale(arms):
    starts = {start_of(records[0].config, arms) for records in arms.values()}
    return len(starts) <= 4


def start_of(config, arms):
    """A text with the values of all keys in which arms differ, except for the scale."""
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
    drawn in grey under the losses.
    """
    arms = {name: compare.counted(records) for name, records in arms.items()}
    style = styles(arms)
    with figure(path, [1, 1, 1, 1], rows=2, inches=3.8) as axes:
        (loss, left, ends, symmetry), (directionality, updates, spread, empty) = axes
        for steps, values in curves.values():
            loss.plot(steps, values, color="0.75", lw=0.8, zorder=0)
        for name, records in arms.items():
            draw_losses(loss, records, name, style[name])
            for axis, score in (symmetry, "symmetry"), (directionality, "directionality"), (updates, "update_symmetry"):
                draw_medians(axis, records, score, style[name], band=len(arms) <= 6)
            values = together(records, lambda record: record.symmetry_std).mean(0)
            spread.plot(records[0].steps[: len(values)], values, **style[name])
        loss.axhline(level, color="0.6", lw=0.8, ls=":", zorder=0)
        loss.set(ylabel="nats/token", ylim=loss_limits(arms, level))
        draw_dots(left, outcomes, style, [outcome.first_steps for outcome in outcomes], np.median)
        draw_dots(ends, outcomes, style, [outcome.losses for outcome in outcomes], np.mean)
        left.set(xlabel="step")
        ends.set(xlabel="nats/token", yticklabels=[])
        mark_not_left(left, arms, outcomes, style)
        config = next(iter(arms.values()))[0].config
        put_null(directionality, "directionality", config["n_embd"], config["n_embd"])
        for axis in symmetry, directionality, updates:
            put_zero(axis)
        for axis in loss, symmetry, directionality, updates, spread:
            axis.set(xlabel="step")
        empty.axis("off")
        put_titles((loss, left, ends, symmetry, directionality, updates, spread), [
            "validation loss", f"first step at {level:g} nats/token; bar: median", "loss at the end; bar: mean",
            "symmetry of $W_{qk}$", "directionality of $W_{qk}$; grey: random matrices",
            "symmetry of the change of $W_{qk}$", "standard deviation of symmetry over heads"])
        put_legend_of_arms(empty, loss, arms)


def draw_losses(axis, records, name, style):
    """The mean over seeds. If seeds end far from each other, each seed as well."""
    curve = together(records, lambda record: record.val_loss)
    steps = records[0].eval_steps[: curve.shape[1]]
    axis.plot(steps, curve.mean(0), label=name, **style)
    last = [record.val_loss[-1] for record in records]
    if max(last) - min(last) > SPLIT:
        for record in records:
            axis.plot(record.eval_steps, record.val_loss, color=style["color"], lw=0.5, alpha=0.4)


def draw_medians(axis, records, score, style, band):
    """The median over layers, as a mean over seeds; with a band from the lowest seed to the highest."""
    values = together(records, lambda record: record.medians[score])  # (seeds, steps)
    steps = records[0].steps[: values.shape[1]]
    axis.plot(steps, values.mean(0), **style)
    if band:
        axis.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.1, lw=0)


def loss_limits(arms, level):
    """Limits that show all losses from the plateau down. Those of the first steps are far above, and are cut off."""
    losses = [record.val_loss for records in arms.values() for record in records]
    low = min(loss.min() for loss in losses)
    later = max(loss[len(loss) // 8 :].max() for loss in losses)
    high = max(level, later)
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
    names = [outcome.name for outcome in outcomes]
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
    colour, dash = ("scale", "start") if colour_is_scale(arms) else ("start", "scale")
    seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    handles = loss.get_legend_handles_labels()[0]
    empty.legend(handles=handles, loc="center", frameon=False, fontsize=8, ncols=1 + len(arms) // 13, handlelength=4,
                 title=f"seeds: {seeds}; colour: {colour}, dash: {dash}", title_fontsize=8)


def plot_arms(arms, path):
    """Figures 3 c and d, S4: the scores of every layer over steps, a column for each arm, means over seeds."""
    arms = {name: compare.counted(records) for name, records in arms.items()}
    n_columns = min(len(arms), 7)
    n_rows = -(-len(arms) // n_columns)  # of arms, with a row of panels for each score
    with figure(path, [1] * n_columns, rows=2 * n_rows) as axes:
        for i, (name, records) in enumerate(arms.items()):
            row, column = 2 * (i // n_columns), i % n_columns
            for axis, score in zip(axes[row : row + 2, column], BY_LAYER):
                plot_layers(axis, records, score)
            axes[row, column].set_title(f"{LETTERS[i]}   {name}, seeds: {len(records)}", fontsize=9, loc="left")
        for start in 0, 1:
            share_range(axes[start::2].flat)
        for axis in axes.flat:
            if not axis.lines:
                axis.axis("off")
        deepest = max(axes.flat, key=lambda axis: len(axis.lines))
        put_legend(deepest)


def share_range(axes):
    """Give all panels of a score the same range."""
    drawn = [axis for axis in axes if axis.lines]
    low = min(axis.get_ylim()[0] for axis in drawn)
    high = max(axis.get_ylim()[1] for axis in drawn)
    for axis in drawn:
        axis.set_ylim(low, high)
        if not axis.get_subplotspec().is_first_col():
            axis.set(ylabel="", yticklabels=[])
