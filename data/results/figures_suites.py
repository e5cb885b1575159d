"""
Pictures of scores over the training of pretrained models, of suites, and of what was published. Blue is an encoder and
purple a decoder.
"""

import numpy as np

from data.results.figures import (COLOURS, KINDS, draw_bar, figure, plot_columns, put_legend, put_null, put_titles,
                                  put_zero, short)
from data.results.figures_runs import draw_layers, draw_quartiles_of
from data.results.runs import SCORES, require
from data.results.tables import GRID, depth, difference, find_pairs, quartiles


def put_log_steps(axis, trainings):
    """Make the axis logarithmic if the last step is at least 30 times the first one above 0. 0 stands to its left."""
    steps = np.concatenate([training.table.index for training in trainings])
    positive = steps[steps > 0]
    if len(positive) and positive.max() >= 30 * positive.min():
        axis.set_xscale("symlog", linthresh=positive.min())
        axis.minorticks_off()  # their labels would cover each other


# ---- over training -----------------------------------------------------------------------------------------------


def plot_training(trainings, path):
    """Medians and quartiles over layers of all trainings; and for each training, a line for each layer."""
    columns = [("median and quartiles over layers", draw_medians, trainings)]
    columns += [(short(training.arm), draw_lines, training) for training in trainings]
    plot_columns(path, columns)


def draw_medians(axis, trainings, score):
    draw_quartiles_of(axis, {training.arm: [training] for training in trainings}, score)
    put_log_steps(axis, trainings)


def draw_lines(axis, training, score):
    config = training.config
    put_null(axis, score, config["n"], config["r"], config["gamma"])
    draw_layers(axis, [training], score)
    put_log_steps(axis, [training])


# ---- suites ------------------------------------------------------------------------------------------------------


def find_doses(scored):
    """{what is counted: {size: {member: its layers}}} of the members that got different doses of it."""
    doses = {}
    for member, layers in scored.items():
        if member.kind == "dose":
            by_size = doses.setdefault(member.objective, {})
            by_size.setdefault(member.size, {})[member] = layers
    return doses


def find_switched(scored):
    """{member: the one before} of those whose objective was switched and whose partner was scored."""
    by_name = {member.name: member for member in scored}
    return {member: by_name[member.partner] for member in scored
            if member.kind == "switch" and member.partner in by_name}


def plot_suite(scored, trainings, path):
    """
    A column for each size, with encoder and decoder over depth, and a column for their difference. If the suite has
    them: a column for models whose objective was switched, one for each kind of dose, and one for trainings.
    scored: as of tables.find_scored
    """
    pairs = find_pairs(scored)
    switched = find_switched(scored)
    # (title, what draws it, what it takes)
    columns = [(f"size {size}", draw_pair, pair) for size, pair in pairs.items()]
    if pairs:
        columns.append(("encoder less decoder", draw_difference, list(pairs.values())))
    if switched:
        columns.append(("objective switched", draw_switched, (scored, switched)))
    columns += [("dose", draw_dose, dose) for dose in find_doses(scored).items()]
    if trainings:
        columns.append(("over training", draw_medians, trainings))
    require(columns, f"{path}: no pair, switched model, dose or training was scored")
    plot_columns(path, columns)


def draw_pair(axis, pair, score):
    first = pair[0].iloc[0]
    put_null(axis, score, first.n, first.r, first.gamma)
    for causal, layers in zip((False, True), pair):
        axis.plot(depth(layers), layers[score], ".-", color=COLOURS[causal], label=KINDS[causal])
    axis.set_xlabel("relative depth")


def draw_difference(axis, pairs, score):
    """A thin line for each size, and their mean."""
    differences = np.stack([difference(*pair, score) for pair in pairs])  # (sizes, depths)
    for values in differences:
        axis.plot(GRID, values, color="0.75", lw=0.8)
    axis.plot(GRID, differences.mean(0), color="black", label="encoder less decoder,\nmean over sizes")
    axis.set_xlabel("relative depth")


def draw_switched(axis, shown, score):
    """An arrow for each model, from its median over layers before the switch to its median now."""
    scored, switched = shown
    sizes = list(dict.fromkeys(member.size for member in switched))
    for member, origin in switched.items():
        x = sizes.index(member.size)
        x += 0.15 if member.causal else -0.15  # so that arrows up and down do not hide each other
        begin = scored[origin][score].median()
        end = scored[member][score].median()
        colour = COLOURS[member.causal]
        axis.plot(x, begin, "o", ms=5, color=COLOURS[origin.causal])
        axis.plot(x, end, "o", ms=5, mfc="white", color=colour)
        axis.annotate("", (x, end), (x, begin), arrowprops=dict(arrowstyle="-|>", color=colour, shrinkA=3, shrinkB=3))
    axis.set(xticks=range(len(sizes)), xticklabels=sizes, xlim=(-0.6, len(sizes) - 0.4), xlabel="size")


def draw_dose(axis, dose, score):
    """A line for each size: medians and quartiles over layers against the dose. dose: an item of find_doses"""
    counted, sizes = dose
    for size, members in sizes.items():
        medians = {}  # dose -> median
        for member, layers in members.items():
            found = quartiles(layers[score])
            medians[member.dose] = found[1]
            draw_bar(axis, member.dose, found, marker="o", ms=4, lw=1, color=COLOURS[member.causal])
        axis.plot(*zip(*sorted(medians.items())), label=f"dose, size {size}", zorder=1)
    axis.set_xlabel(counted)


# ---- what was published ------------------------------------------------------------------------------------------

FIGURES = {"2": "language", "S1": "vision and audio", "S2": "language, encoder-decoders"}
MARKERS = {"language": "o", "vision": "s", "audio": "^"}


def plot_pretrained(models, ours, path):
    """
    Figures 2, S1 and S2: scores against parameters, blue for encoders and purple for decoders. Dot: median over layers;
    bar: quartiles. A dot that is crossed out is not a score of W_qk. Repeated models are not drawn.

    models: the rows of models.csv. ours: as of tables.by_stack. If a model is in ours, our score is the full dot, and
    the published one is a hollow dot that is joined to it.
    """
    with figure(path, [1, 1], rows=len(FIGURES)) as axes:
        for row, (name, kind) in zip(axes, FIGURES.items()):
            for axis, score in zip(row, SCORES):
                for model in models:
                    if model["figure"] == name and not model["repeats"]:
                        draw_model(axis, model, ours.get((model["name"], model["stack"])), score)
                put_zero(axis)
                axis.set(xscale="log", xlabel="parameters", ylabel=score)
        put_titles(axes.flat, [f"Figure {name}, {kind}: {score}" for name, kind in FIGURES.items() for score in SCORES])
        put_legend(axes.flat)


def draw_model(axis, model, layers, score):
    """One stack in the panel of a score. layers: of ours; None if we have none."""
    x, median, causal = int(model["params"]), float(model[score]), model["causal"] == "1"
    style = dict(color=COLOURS[causal], marker=MARKERS[model["modality"]], ms=5)
    if layers is None:
        found = [float(model[name]) for name in (f"{score}_q1", score, f"{score}_q3")]
    else:
        found = quartiles(layers[score])
        axis.plot([x, x], [median, found[1]], color="0.6", lw=0.5, zorder=1)
        axis.plot(x, median, mfc="white", mew=0.8, ls="", label="published, joined to ours", **style)
    label = f"{KINDS[causal]}, {model['modality']}"
    draw_bar(axis, x, found, lw=0.8, alpha=0.9, zorder=2, label=label, **style)
    if model["matrix"] != "wqk":
        axis.plot(x, median, "x", color="black", ms=8, mew=0.9, ls="", zorder=4, label="not of $W_{qk}$")
