"""
Pictures of scores over training and of suites. Blue is an encoder and purple a decoder, the darker the larger or later.
"""

import numpy as np

from data.results.figures import figure, kind, layer_colour, score_axis
from data.results.training import GRID, SCORES, difference, find_pairs, quartiles

SHADES = {True: "Purples", False: "Blues", None: "Greys"}
MAX_COLUMNS = 6  # trainings whose layers are drawn, each in a column


def shades(causal):
    """A colour for each of a list of True, False and None: the shades of a kind go from light to dark."""
    from matplotlib import colormaps

    colours = []
    for i, kind_of_this in enumerate(causal):
        n = causal.count(kind_of_this)
        nth = causal[:i].count(kind_of_this)
        if n == 1:
            colours.append(kind(kind_of_this)[1])
        else:
            colours.append(colormaps[SHADES[kind_of_this]](0.45 + 0.5 * nth / (n - 1)))
    return colours


def step_axis(axis, trainings):
    """Logarithmic where the last step is 30 times the first; a step 0 then stands left of it."""
    steps = np.concatenate([training.steps for training in trainings])
    positive = steps[steps > 0]
    if len(positive) and positive.max() >= 30 * positive.min():
        if len(positive) < len(steps):
            axis.set_xscale("symlog", linthresh=positive.min(), linscale=0.4)
        else:
            axis.set_xscale("log")


def short(name):
    """The end of a long name, which fits above a panel."""
    return name if len(name) <= 28 else f"...{name[-25:]}"


# ---- over training -----------------------------------------------------------------------------------------------


def plot_training(trainings, path):
    """Left, medians over layers and their quartiles for all trainings; beside it a line per layer of each."""
    shown = trainings[:MAX_COLUMNS]
    with figure(path, [1.5] + [1] * len(shown), rows=2) as axes:
        for row, score in zip(axes, SCORES):
            draw_medians(row[0], trainings, score)
            for axis, training in zip(row[1:], shown):
                draw_layers(axis, training, score)
        axes[0, 0].legend(frameon=False, fontsize=7)
        for axis in axes[0]:
            axis.set_xlabel("")


def draw_medians(axis, trainings, score):
    colours = shades([training.causal for training in trainings])
    for training, colour in zip(trainings, colours):
        q1, median, q3 = quartiles(getattr(training, score))  # (P,) each
        axis.plot(training.steps, median, ".-", color=colour, label=short(training.name))
        axis.fill_between(training.steps, q1, q3, color=colour, alpha=0.15, lw=0)
    score_axis(axis, score, "step")
    step_axis(axis, trainings)


def draw_layers(axis, training, score):
    values = getattr(training, score)  # (P, L)
    n_layer = values.shape[1]
    for layer in range(n_layer):
        axis.plot(training.steps, values[:, layer], color=layer_colour(layer, n_layer), lw=1)
    score_axis(axis, score, "step")
    axis.set_ylabel("")
    if score == SCORES[0]:
        axis.set_title(f"{short(training.name)}\nlayers 0 (dark) to {n_layer - 1} (light)", fontsize=8)
    step_axis(axis, [training])


# ---- suites ------------------------------------------------------------------------------------------------------


def plot_suite(scored, trainings, path):
    """
    A column for each size, encoder beside decoder layer by layer; one for their difference; and, where the suite has
    them, one for what was switched, one for each kind of dose, and one for trainings.
    """
    pairs = find_pairs(scored)
    switched = find_switched(scored)
    doses = {}  # what is counted -> size -> members
    for one in scored:
        if one.member.kind == "dose":
            doses.setdefault(one.member.objective, {}).setdefault(one.member.size, []).append(one)
    n_columns = len(pairs) + bool(pairs) + bool(switched) + len(doses) + bool(trainings)
    with figure(path, [1] * max(1, n_columns), rows=2) as axes:
        for row, score in zip(axes, SCORES):
            columns = iter(row)
            for pair in pairs:
                draw_pair(next(columns), pair, score)
            if pairs:
                draw_difference(next(columns), pairs, score)
            if switched:
                draw_switched(next(columns), switched, score)
            for counted, sizes in doses.items():
                draw_dose(next(columns), counted, sizes, score)
            if trainings:
                axis = next(columns)
                draw_medians(axis, trainings, score)
                axis.set_title("over training", fontsize=8)
        for axis in axes[:, 1:].flat:
            axis.set_ylabel("")
        for above, below in axes.T:
            above.set_xlabel("")
            below.set_title("")
            if above.get_legend_handles_labels()[1]:
                above.legend(frameon=False, fontsize=7)
        for axis in axes[:, 1 : len(pairs)].flat:
            axis.tick_params(labelleft=False)
            if axis.get_legend():
                axis.get_legend().remove()


def draw_pair(axis, pair, score):
    for one in pair.encoder, pair.decoder:
        label, colour = kind(one.member.causal)
        axis.plot(one.depth(), getattr(one, score), ".-", color=colour, label=label)
    score_axis(axis, score, "relative depth")
    axis.set_title(pair.size, fontsize=8)


def draw_difference(axis, pairs, score):
    """A thin line for each size; their mean, and a band of one standard deviation over sizes."""
    differences = np.stack([difference(pair, score) for pair in pairs])  # (sizes, depths)
    for values in differences:
        axis.plot(GRID, values, color="0.75", lw=0.8)
    mean = differences.mean(0)
    axis.plot(GRID, mean, color="black")
    score_axis(axis, score, "relative depth")
    if len(pairs) > 1:
        spread = differences.std(0, ddof=1)
        axis.fill_between(GRID, mean - spread, mean + spread, color="black", alpha=0.12, lw=0)
        highest = np.abs([mean - spread, mean + spread]).max()
        if highest > 1:  # scores end at 1, their difference at 2
            axis.set_ylim(-1.05 * highest, 1.05 * highest)
    axis.set_title(f"encoder less decoder, sizes: {len(pairs)}", fontsize=8)


def find_switched(scored):
    """(where it came from, what it is now) of every switched member whose partner was scored."""
    by_name = {one.member.name: one for one in scored}
    found = []
    for one in scored:
        if one.member.kind == "switch" and one.member.partner in by_name:
            found.append((by_name[one.member.partner], one))
    return found


def draw_switched(axis, switched, score):
    """An arrow for each, from the median over layers of the model it was to that of the model it has become."""
    sizes = list(dict.fromkeys(now.member.size for _, now in switched))
    for origin, now in switched:
        x = sizes.index(now.member.size)
        x += 0.15 if now.member.causal else -0.15  # two that cross must not hide each other
        begin = np.median(getattr(origin, score))
        end = np.median(getattr(now, score))
        colour = kind(now.member.causal)[1]
        axis.plot(x, begin, "o", ms=5, color=kind(origin.member.causal)[1])
        axis.plot(x, end, "o", ms=5, mfc="white", color=colour)
        axis.annotate("", (x, end), (x, begin), arrowprops=dict(arrowstyle="-|>", color=colour, shrinkA=3, shrinkB=3))
    score_axis(axis, score, "size")
    axis.set(xticks=range(len(sizes)), xticklabels=sizes, xlim=(-0.6, len(sizes) - 0.4))
    axis.set_title("objective switched", fontsize=8)


def draw_dose(axis, counted, sizes, score):
    """A line for each size: medians over layers against the dose, and their quartiles."""
    colours = shades([None] * len(sizes))
    for (size, members), line_colour in zip(sizes.items(), colours):
        members = sorted(members, key=lambda one: one.member.dose)
        doses = [one.member.dose for one in members]
        bars = [quartiles(getattr(one, score)) for one in members]
        axis.plot(doses, [median for _, median, _ in bars], "-", color=line_colour, label=size, zorder=1)
        for one, dose, (q1, median, q3) in zip(members, doses, bars):
            axis.errorbar(dose, median, [[median - q1], [q3 - median]], fmt="o", ms=4, lw=1,
                          color=kind(one.member.causal)[1])
    score_axis(axis, score, counted)
    axis.set_title("dose", fontsize=8)
