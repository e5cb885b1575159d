"""
The pictures that analyze.py and train.py draw. Blue is an encoder and purple a decoder everywhere, as in the paper.
"""

import contextlib
from pathlib import Path

import numpy as np

from data.results import compare
from data.results.runs import replacing

ENCODER, DECODER, UNKNOWN = "#2166ac", "#8e3b9e", "0.5"
OTHERS = ["#e08214", "#1b7837", "#b2182b", "#4d4d4d", "#c7a000", "#35978f", "#f768a1", "#8c510a"]
DASHES = ["--", "-.", ":"]
MARKERS = {"language": "o", "vision": "s", "audio": "^"}


def kind(causal):
    return {True: ("decoder", DECODER), False: ("encoder", ENCODER), None: ("causal unknown", UNKNOWN)}[causal]


@contextlib.contextmanager
def figure(path, widths, rows=1):
    """Axes (rows, len(widths)); saved whole, in the format that the name of the file says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(rows, len(widths), figsize=(max(11, 2.4 * len(widths)), 3.4 * rows), layout="constrained",
                             width_ratios=widths, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with replacing(path) as temporary:
        fig.savefig(temporary, dpi=120, format=Path(path).suffix[1:] or "png")
    plt.close(fig)


def score_axis(axis, name, xlabel):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)
    axis.set(ylim=(-1.05, 1.05), ylabel=f"{name} of $W_{{qk}}$", xlabel=xlabel)


def layer_colour(layer, n_layer):
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * layer / n_layer)


def plot_models(summary, path):
    """Figures 2, S1, S2: scores against parameters; dot = median over layers, bar = quartiles."""
    with figure(path, [1, 1]) as ((left, right),):
        for axis, name in (left, "symmetry"), (right, "directionality"):
            for s in summary:
                q1, median, q3 = getattr(s, name)
                marker = MARKERS[s.published.get("modality", "language")]
                axis.errorbar(s.n_params, median, [[median - q1], [q3 - median]], ms=5, lw=1, alpha=0.8, mec="white",
                              mew=0.5, fmt=marker, color=kind(s.causal)[1])
            score_axis(axis, name, "parameters")
            axis.set_xscale("log")
        for label, colour in map(kind, dict.fromkeys(s.causal for s in summary)):
            left.plot([], [], "o", color=colour, label=label)
        for modality in dict.fromkeys(s.published.get("modality", "language") for s in summary):
            left.plot([], [], MARKERS[modality], color="0.6", label=modality)
        left.legend(frameon=False, fontsize=8, ncols=2)


def plot_model(name, rows, causal, crops, path):
    """The layers of one model, its heads where they were scored, and W_qk of its layer of median symmetry."""
    layers = [row for row in rows if row.head is None]
    with figure(path, [1, 1, 0.8]) as ((left, middle, right),):
        for axis, score in (left, "symmetry"), (middle, "directionality"):
            for stack in causal:
                heads = [row for row in rows if row.stack == stack and row.head is not None]
                whole = [row for row in rows if row.stack == stack and row.head is None]
                label, colour = kind(causal[stack])
                axis.plot([row.layer for row in heads], [getattr(row, score) for row in heads], ".", color=colour,
                          alpha=0.25, ms=4)
                axis.plot([row.layer for row in whole], [getattr(row, score) for row in whole], "o-", color=colour, ms=4,
                          label=f"{stack or Path(name).name} ({label})")
            score_axis(axis, score, "layer")
            axis.xaxis.get_major_locator().set_params(integer=True)
        left.legend(frameon=False, fontsize=8)
        i = sorted(range(len(layers)), key=lambda i: layers[i].symmetry)[len(layers) // 2]
        limit = np.quantile(np.abs(crops[i]), 0.995)
        right.imshow(crops[i], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        where = f"{layers[i].stack} layer {layers[i].layer}".strip()
        right.set(title=f"$W_{{qk}}$ of {where}", xlabel=f"key side, {len(crops[i])} columns", ylabel="query side")


def plot_run(run, path):
    """Loss, symmetry and directionality over the steps of one run, one line per layer."""
    with figure(path, [1, 1, 1]) as ((left, *others),):
        for name, shade in ("train_loss", "0.7"), ("val_loss", "black"):
            left.plot(run.log["step"], run.log[name], color=shade, label=name.replace("_", " "))
        left.set(ylabel="loss [nats/token]", xlabel="step")
        for axis, name in zip(others, ("symmetry", "directionality")):
            plot_layers(axis, [run], name)
        for axis in (left, *others):
            axis.legend(frameon=False, fontsize=8, ncols=1 if run.config["n_layer"] < 7 else 3)


def plot_layers(axis, seeds, score):
    """Every layer over steps, mean over the seeds of one arm."""
    n_layer = seeds[0].config["n_layer"]
    values = together(seeds, lambda run: run.layers[score]).mean(0)  # (steps, L)
    for layer in range(n_layer):
        axis.plot(seeds[0].steps[: len(values)], values[:, layer], color=layer_colour(layer, n_layer),
                  label=f"layer {layer}")
    score_axis(axis, score, "step")


def together(seeds, values):
    """values(run) of every seed, as far as all of them have come: (seeds, steps)."""
    curves = [values(run) for run in seeds]
    return np.stack([curve[: min(map(len, curves))] for curve in curves])


def styles(arms):
    """{arm: colour, dashes}: baselines in the colours of the paper; so are others, dashed, unless they are too many."""
    found = {}
    for causal in False, True:
        names = [name for name, seeds in arms.items() if seeds[0].config["causal"] == causal]
        others = [name for name in names if name != compare.baseline(arms, causal)]
        for i, name in enumerate(others):
            colour = OTHERS[i % len(OTHERS)] if len(others) > len(DASHES) else kind(causal)[1]
            found[name] = dict(color=colour, ls=DASHES[i % len(DASHES)])
        found |= {name: dict(color=kind(causal)[1], ls="-") for name in names if name not in others}
    return {name: found[name] for name in arms}


def plot_runs(arms, rows, curves, path):
    """
    Figures 3, S3, S5 and two that the paper lacks: what an arm ends at, and the symmetry of the updates of W_qk.

    arms: {name: its runs, one per seed}; rows: of compare.compare; curves: {name: (steps,
    loss)} to lay under the losses.
    """
    with figure(path, [1, 1, 1], rows=2) as ((loss, symmetry, directionality), (ends, updates, spread)):
        for name, (steps, values) in curves.items():
            loss.plot(steps, values, color="0.75", lw=0.8, zorder=0)
        tops = []
        for (name, seeds), style in zip(arms.items(), styles(arms).values()):
            curve = together(seeds, lambda run: run.log["val_loss"])
            loss.plot(seeds[0].log["step"][: curve.shape[1]], curve.mean(0), label=name, **style)
            tops.append(curve.mean(0)[:2].min())
            for axis, score in (symmetry, "symmetry"), (directionality, "directionality"):
                values = together(seeds, lambda run: run.layers[score])  # (seeds, steps, L)
                q1, median, q3 = np.percentile(values, [25, 50, 75], axis=(0, 2))  # (steps,)
                axis.plot(seeds[0].steps[: len(median)], median, **style)
                axis.fill_between(seeds[0].steps[: len(median)], q1, q3, color=style["color"], alpha=0.12, lw=0)
            update = together(seeds, lambda run: np.median(run.layers["update_symmetry"], axis=1)).mean(0)
            updates.plot(seeds[0].steps[: len(update)], update, **style)
            heads = together(seeds, lambda run: run.heads["symmetry"].std(axis=2).mean(axis=1)).mean(0)
            spread.plot(seeds[0].steps[: len(heads)], heads, **style)
        for i, (name, style) in enumerate(styles(arms).items()):
            values = [row["val_loss"] for row in rows if row["arm"] == name]
            mean, half = compare.interval(values)
            ends.plot(values, [i] * len(values), ".", color=style["color"], alpha=0.5)
            ends.errorbar(mean, i, xerr=np.nan_to_num(half), fmt="o", ms=5, color=style["color"])
        ends.set(yticks=range(len(arms)), yticklabels=arms, ylim=(len(arms) - 0.5, -0.5),
                 xlabel="validation loss at the end [nats/token]")
        loss.set(ylabel="validation loss [nats/token]", xlabel="step", ylim=(None, 1.05 * max(tops)))  # step 0 is above
        score_axis(symmetry, "symmetry", "step")
        score_axis(directionality, "directionality", "step")
        score_axis(updates, "symmetry of the change", "step")
        spread.set(ylabel="spread of symmetry over heads", xlabel="step")
        n = [len(seeds) for seeds in arms.values()]
        loss.legend(frameon=False, fontsize=7, ncols=1 + len(arms) // 10, title_fontsize=7,
                    title=f"seeds: {min(n)}{f' to {max(n)}' * (max(n) > min(n))}")


def plot_arms(arms, path):
    """Figures 3 c and d, S4: the scores of every layer over steps, one column per arm, mean over seeds."""
    with figure(path, [1] * len(arms), rows=2) as axes:
        for column, (name, seeds) in zip(axes.T, arms.items()):
            for axis, score in zip(column, ("symmetry", "directionality")):
                plot_layers(axis, seeds, score)
            column[0].set_title(f"{name}, seeds: {len(seeds)}", fontsize=9)
            for axis in column:
                axis.label_outer()
        axes[0, 0].legend(frameon=False, fontsize=8)
