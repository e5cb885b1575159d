"""
The picture of a tuning: what each start ends at, and when it leaves the plateau, over the scale of q and k.
"""

import itertools
import math

from data.results.figures import ENCODER, OTHERS, figure, put_legend, put_titles

LIGHT = 0.3  # opacity of the learning rates that are not the best


def plot_tuning(cells, level, path):
    """
    A column for each width. Above: the loss at the end, a dot for every learning rate and a line through the best;
    below: the step at which the best comes to the level. A start that was run at one scale only is a cross.
    """
    widths = sorted({cell.n_embd for cell in cells})
    starts = list(dict.fromkeys(cell.start for cell in cells))
    colours = dict(zip(starts, itertools.cycle([ENCODER, *OTHERS])))
    with figure(path, [1] * len(widths), rows=2, inches=3.8) as axes:
        for column, width in enumerate(widths):
            here = [cell for cell in cells if cell.n_embd == width]
            for line in lines_of(here):
                start = line[0].start
                draw_losses(axes[0, column], line, colours[start])
                draw_steps(axes[1, column], line, colours[start], arrow_height=0.98 - 0.04 * starts.index(start))
            for axis in axes[:, column]:
                axis.set(xscale="log", xlabel=r"$C \sigma^2$ of q and k")
                axis.xaxis.set_major_formatter("{x:g}")
        for row in axes:
            for axis in row[1:]:
                axis.sharey(row[0])  # so that what a scale gains can be compared between widths
                axis.sharex(row[0])
            row[0].autoscale()
        axes[0, 0].set_ylabel("loss at the end [nats/token]\npale: at other learning rates")
        axes[1, 0].set_ylabel(f"first step at {level:g} nats/token\narrow: never")
        put_titles(axes.flat, [f"C = {width}" for width in widths] * 2)
        put_legend(axes[0, 0])


def lines_of(cells):
    """Cells of one width -> lists of those that a line joins, by the scale of q and k."""
    lines = {}
    for cell in cells:
        lines.setdefault(cell.series(), []).append(cell)
    return [sorted(line, key=lambda cell: cell.scale) for line in lines.values()]


def marker_of(line):
    return "o-" if len(line) > 1 else "X"


def draw_losses(axis, line, colour):
    """line: a list of cells, as in lines_of."""
    label = line[0].start
    if len(line) == 1 and math.isclose(line[0].scale, line[0].v_scale):
        label += "; q, k and v at one scale"  # BERT's start, for example
    scales = [cell.scale for cell in line]
    axis.plot(scales, [cell.best().loss for cell in line], marker_of(line), color=colour, label=label)
    for cell in line:
        for rate in cell.rates:
            axis.plot(cell.scale, rate.loss, ".", color=colour, alpha=LIGHT)


def draw_steps(axis, line, colour, arrow_height):
    """arrow_height: of the mark for "never", as a share of the axis, so that starts do not hide each other."""
    scales = [cell.scale for cell in line]
    steps = [cell.best().first_step for cell in line]
    reached = [math.nan if math.isinf(step) else step for step in steps]
    axis.plot(scales, reached, marker_of(line), color=colour)
    for scale, step in zip(scales, steps):
        if math.isinf(step):
            axis.plot(scale, arrow_height, "^", color=colour, transform=axis.get_xaxis_transform(), clip_on=False)
