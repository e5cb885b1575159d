"""
Pictures of scores over the training of pretrained models, and of suites. Blue is an encoder and purple a decoder; if
there are several, they go from light to dark.
"""

import numpy as np

from data.results.figures import (colour_of, figure, kind_of, layer_colour, plain, put_legend, put_null, put_titles,
                                  put_zero, share_limits)
from data.results.runs import require
from data.results.tables import SCORES
from data.results.tables_suites import GRID, difference, find_pairs, quartiles

SHADES = {"decoder": "Purples", "encoder": "Blues", "causal unknown": "Greys"}
MAX_COLUMNS = 6  # trainings whose layers are drawn, each in a column


def shades(causal):
    """A colour for each item of a list of True (decoder), False (encoder) and None; each kind from light to dark."""
    from matplotlib import colormaps

    colours = []
    for i, is_causal in enumerate(causal):
        colour = colour_of(is_causal)
        n = causal.count(is_causal)
        nth = causal[:i].count(is_causal)  # how many of its kind come before it
        if n > 1:
            colour = colormaps[SHADES[kind_of(is_causal)]](0.45 + 0.5 * nth / (n - 1))
        colours.append(colour)
    return colours


def step_axis(axis, trainings):
    """Make the axis logarithmic if the last step is at least 30 times the first. A step 0 then stands to its left."""
    axis.set_xlabel("step")
    steps = np.concatenate([training.steps for training in trainings])
    positive = steps[steps > 0]
    if not len(positive) or positive.max() < 30 * positive.min():
        return
    first, last = np.log10([positive.min(), positive.max()])
    decades = np.arange(np.ceil(first), np.floor(last) + 1)
    ticks = 10.0 ** decades[:: 1 + len(decades) // 4]  # at most four, so that their labels do not overlap
    if len(positive) == len(steps):
        axis.set_xscale("log")
    else:
        axis.set_xscale("symlog", linthresh=positive.min(), linscale=0.6)
        axis.set_xlim(left=-0.2 * positive.min())
        ticks = [0, *ticks]
    axis.set_xticks(ticks)
    axis.minorticks_off()


def share_scale(axes):
    """Give all panels the same range, with numbers at the first only."""
    share_limits(axes)
    for axis in axes[1:]:
        axis.tick_params(labelleft=False)


def name_null(axis):
    """Explain the grey band in the legend."""
    axis.plot([], [], color="0.9", lw=5, label="95 of 100\nrandom matrices")


def short(name):
    """The end of a long name, so that it fits above a panel."""
    return plain(name if len(name) <= 24 else f"...{name[-21:]}")


# ---- over training -----------------------------------------------------------------------------------------------


def plot_training(trainings, path):
    """Left: medians and quartiles over layers of all trainings. Beside it, for each training, a line for each layer."""
    shown = trainings[:MAX_COLUMNS]
    with figure(path, [1.5] + [1] * len(shown), rows=2) as axes:
        for row, score in zip(axes, SCORES):
            draw_medians(row[0], trainings, score)
            for axis, training in zip(row[1:], shown):
                draw_layers(axis, training, score)
            row[0].set_ylabel(f"{score} of $W_{{qk}}$")
            share_scale(row)
        titles = ["median and quartiles over layers"]
        for training in shown:
            titles.append(f"{short(training.name)}\nlayers 0 (dark) to {training.symmetry.shape[1] - 1} (light)")
        put_titles(axes[0], titles)
        name_null(axes[0, 0])
        put_legend(axes[0, 0])


def draw_medians(axis, trainings, score):
    colours = shades([training.causal for training in trainings])
    for training, colour in zip(trainings, colours):
        q1, median, q3 = quartiles(getattr(training, score))  # (P,) each
        axis.plot(training.steps, median, ".-", color=colour, label=short(training.name))
        axis.fill_between(training.steps, q1, q3, color=colour, alpha=0.15, lw=0)
    put_zero(axis)
    step_axis(axis, trainings)


def draw_layers(axis, training, score):
    put_null(axis, score, training.n, training.r, training.gamma)
    values = getattr(training, score)  # (P, L)
    n_layer = values.shape[1]
    for layer in range(n_layer):
        axis.plot(training.steps, values[:, layer], color=layer_colour(layer, n_layer), lw=1)
    put_zero(axis)
    step_axis(axis, [training])


# ---- suites ------------------------------------------------------------------------------------------------------


def find_doses(scored):
    """{what is counted: {size: the members that got different doses of it}}"""
    doses = {}
    for one in scored:
        if one.member.kind == "dose":
            by_size = doses.setdefault(one.member.objective, {})
            by_size.setdefault(one.member.size, []).append(one)
    return doses


def find_switched(scored):
    """A pair (before, now) for every member whose objective was switched and whose partner was scored."""
    by_name = {one.member.name: one for one in scored}
    found = []
    for one in scored:
        if one.member.kind == "switch" and one.member.partner in by_name:
            found.append((by_name[one.member.partner], one))
    return found


def plot_suite(scored, trainings, path):
    """
    A column for each size, with encoder and decoder over depth, and a column for their difference. If the suite has
    them: a column for models whose objective was switched, one for each kind of dose, and one for trainings.
    """
    pairs = find_pairs(scored)
    switched = find_switched(scored)
    doses = find_doses(scored)
    titles = [f"size {pair.size}" for pair in pairs]
    if pairs:
        titles.append("encoder less decoder")
    if switched:
        titles.append("objective switched")
    titles += ["dose"] * len(doses)
    if trainings:
        titles.append("over training")
    require(titles, f"{path}: there is nothing to draw, no pair of an encoder and a decoder that was scored, no "
                    "switched model with its partner, no dose and no training")
    with figure(path, [1] * len(titles), rows=2) as axes:
        for row, score in zip(axes, SCORES):
            row[0].set_ylabel(f"{score} of $W_{{qk}}$")
            columns = iter(row)  # what follows takes one panel after the other, in the order of the titles
            for pair in pairs:
                draw_pair(next(columns), pair, score)
            if pairs:
                share_scale(row[: len(pairs)])
                draw_difference(next(columns), pairs, score)
            if switched:
                draw_switched(next(columns), switched, score)
            for counted, sizes in doses.items():
                draw_dose(next(columns), counted, sizes, score)
            if trainings:
                draw_medians(next(columns), trainings, score)
        put_titles(axes[0], titles)
        if pairs:
            name_null(axes[0, 0])
        put_legend(axes[0, 0], handles_of(axes[0]))


def handles_of(axes):
    """The handles for the legend, each label once."""
    by_label = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            by_label.setdefault(label, handle)
    return list(by_label.values())


def draw_pair(axis, pair, score):
    put_null(axis, score, pair.encoder.n, pair.encoder.r, pair.encoder.gamma)
    for one in pair.encoder, pair.decoder:
        causal = one.member.causal
        axis.plot(one.depth(), getattr(one, score), ".-", color=colour_of(causal), label=kind_of(causal))
    put_zero(axis)
    axis.set_xlabel("relative depth")


def draw_difference(axis, pairs, score):
    """A thin line for each size, their mean, and a band of one standard deviation over sizes."""
    differences = np.stack([difference(pair, score) for pair in pairs])  # (sizes, depths)
    for values in differences:
        axis.plot(GRID, values, color="0.75", lw=0.8)
    mean = differences.mean(0)
    label = "encoder less decoder"
    if len(pairs) > 1:
        label += f":\nmean of {len(pairs)} sizes,\nand standard deviation"
    axis.plot(GRID, mean, color="black", label=label)
    if len(pairs) > 1:
        spread = differences.std(0, ddof=1)
        axis.fill_between(GRID, mean - spread, mean + spread, color="black", alpha=0.12, lw=0)
    put_zero(axis)
    axis.set_xlabel("relative depth")


def draw_switched(axis, switched, score):
    """An arrow for each model, from its median over layers before the switch to its median now."""
    sizes = list(dict.fromkeys(now.member.size for _, now in switched))
    for origin, now in switched:
        x = sizes.index(now.member.size)
        x += 0.15 if now.member.causal else -0.15  # so that arrows up and down do not hide each other
        begin = np.median(getattr(origin, score))
        end = np.median(getattr(now, score))
        colour = colour_of(now.member.causal)
        axis.plot(x, begin, "o", ms=5, color=colour_of(origin.member.causal))
        axis.plot(x, end, "o", ms=5, mfc="white", color=colour)
        axis.annotate("", (x, end), (x, begin), arrowprops=dict(arrowstyle="-|>", color=colour, shrinkA=3, shrinkB=3))
    put_zero(axis)
    axis.set(xticks=range(len(sizes)), xticklabels=sizes, xlim=(-0.6, len(sizes) - 0.4), xlabel="size")
    axis.tick_params(axis="x", rotation=45 if len(sizes) > 3 else 0)


def draw_dose(axis, counted, sizes, score):
    """A line for each size: medians and quartiles over layers against the dose."""
    colours = shades([None] * len(sizes))
    for (size, members), line_colour in zip(sizes.items(), colours):
        members = sorted(members, key=lambda one: one.member.dose)
        doses = [one.member.dose for one in members]
        bars = [quartiles(getattr(one, score)) for one in members]
        medians = [median for _, median, _ in bars]
        axis.plot(doses, medians, "-", color=line_colour, label=f"dose, size {size}", zorder=1)
        for one, dose, (q1, median, q3) in zip(members, doses, bars):
            axis.errorbar(dose, median, [[median - q1], [q3 - median]], fmt="o", ms=4, lw=1,
                          color=colour_of(one.member.causal))
    put_zero(axis)
    axis.set_xlabel(counted)
