"""
The picture of a tuning: what each start ends at, and when it leaves the plateau, over the scale of q and k.
"""

import math

from data.results.figures import OTHERS, figure, kind, put_legend, put_titles

LIGHT = 0.3  # opacity of the learning rates that are not the best


def plot_tuning(cells, level, path):
    """
    A column for each width. Above: the loss at the end, a dot for every learning rate and a line through the best;
    below: the step at which the best comes to the level. Starts with another scale of v are crosses.
    """
    widths = sorted({cell.n_embd for cell in cells})
    starts = list(dict.fromkeys(cell.start for cell in cells))
    colours = dict(zip(starts, [kind(False)[1], *OTHERS]))
    with figure(path, [1] * len(widths), rows=2, inches=3.8) as axes:
        for column, width in enumerate(widths):
            here = [cell for cell in cells if cell.n_embd == width]
            for line in lines_of(here):
                colour = colours[line[0].start]
                draw_losses(axes[0, column], line, colour)
                draw_steps(axes[1, column], line, colour)
            for axis in axes[:, column]:
                axis.set(xscale="log", xlabel=r"$C \sigma^2$ of q and k")
        axes[0, 0].set_ylabel("loss at the end [nats/token]")
        axes[1, 0].set_ylabel("step")
        put_titles(axes[0], [f"C = {width}; pale: other learning rates" for width in widths])
        for axis in axes[1]:
            axis.set_title(f"first step at {level:g} nats/token; arrow: never", fontsize=9, loc="left")
        put_legend(axes[0, 0])


def lines_of(cells):
    """Cells of one width -> lists of those with the same start and scale of v, by the scale of q and k."""
    lines = {}
    for cell in cells:
        lines.setdefault((cell.start, round(cell.v_scale, 3)), []).append(cell)
    return [sorted(line, key=lambda cell: cell.scale) for line in lines.values()]


def draw_losses(axis, line, colour):
    scales = [cell.scale for cell in line]
    marker = "o-" if len(line) > 1 else "X"
    label = line[0].start if len(line) > 1 else f"{line[0].start}, v at {line[0].v_scale:.2g}"
    axis.plot(scales, [cell.best().loss for cell in line], marker, color=colour, label=label)
    for cell in line:
        for rate in cell.rates:
            axis.plot(cell.scale, rate.loss, ".", color=colour, alpha=LIGHT)


def draw_steps(axis, line, colour):
    scales = [cell.scale for cell in line]
    steps = [cell.best().first_step for cell in line]
    reached = [math.nan if math.isinf(step) else step for step in steps]
    axis.plot(scales, reached, "o-" if len(line) > 1 else "X", color=colour)
    for scale, step in zip(scales, steps):
        if math.isinf(step):  # at the upper edge, whatever the range of the axis
            axis.plot(scale, 0.98, "^", color=colour, transform=axis.get_xaxis_transform(), clip_on=False)
