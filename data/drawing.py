"""What all pictures share. Blue is an encoder and purple a decoder everywhere, as in the paper."""

import contextlib
import itertools

from matplotlib.figure import Figure  # without pyplot, no window is opened and no figure is kept

from .atomic import replacing
from . import printable

ENCODER, DECODER = "#2166ac", "#8e3b9e"
COLOURS = {"encoder": ENCODER, "decoder": DECODER, "causal unknown": "0.5"}
KINDS = {0: "encoder", 1: "decoder"}  # by causal, where it is known
OTHERS = ["#e08214", "#1b7837", "#b2182b", "#c7a000", "#35978f", "#8c510a", "#f768a1", "#4d4d4d", "#7fbc41"]
DASHES = ["-", "--", ":", "-."]  # when all colours have been used
WIDTH = 7.2  # of a picture [inches]. A page shows it 540 pixels wide: text of 9 points is then 9 pixels high
HEIGHT = 2.6  # of a row [inches]


@contextlib.contextmanager
def figure(path, rows, columns, height=HEIGHT, title="", **shared):
    """Gives a block the axes (rows, columns) to draw on, each of a height [inches]. At its end they are saved."""
    fig = Figure((WIDTH, height * rows + 0.3), layout="constrained")
    fig.suptitle(title, fontsize=11)
    axes = fig.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with replacing(path) as temporary:
        fig.savefig(temporary, dpi=150, format=str(path).rpartition(".")[2])


def short(name):
    """Returns the end of a long name, so that it fits above a panel."""
    if len(name) > 32:
        name = f"...{name[-29:]}"
    return printable(name).replace("$", r"\$")  # or it would be a formula


def panels(path, titles, words, title):
    """Gives an axis for each of at most four measures, {measure: its title}, and then saves the picture."""
    n_rows = 2 if len(titles) == 4 else 1
    height = 1.5 * HEIGHT if len(titles) == 1 else HEIGHT  # one panel is as wide as the page, so make it higher
    with figure(path, n_rows, len(titles) // n_rows, height, title) as axes:
        for axis, measure in zip(axes.flat, titles):
            yield axis, measure
            put_steps(axis)
            if measure != "loss":
                put_zero(axis)
        put_titles(axes.flat, titles.values())
        put_legend(axes.flat, title=words)


def put_titles(axes, titles):
    for axis, title in zip(axes, titles):
        axis.set_title(title, fontsize=9, loc="left")


def put_zero(axis):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)


def put_name(axis, curve, name, colour, side):
    """Writes a name at the end of a curve. side: what of the text is at this height, bottom, top or center."""
    end = curve.index[-1], curve.iloc[-1]
    axis.annotate(name, end, (3, 0), textcoords="offset points", color=colour, va=side, fontsize=9)


def put_legend(axes, ncols=3, title=None):
    """Puts a legend below the panels, where there are no data. It has every label once."""
    handles = {}  # label -> what it is drawn with
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    axes[0].figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=ncols, title=title,
                          frameon=False, fontsize=9, title_fontsize=9)


def draw_bar(axis, x, q1, median, q3, **style):
    """Draws a dot at the median, and a bar from quartile to quartile."""
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ls="", **style)


def put_steps(axis):
    """Makes the x axis one of steps, in thousands where they are many."""
    axis.set_xlabel("step")
    axis.locator_params(axis="x", nbins=4)
    axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}")


def styles(causal_of):
    """Returns {name: dict(color, ls)}, how its line is drawn. causal_of: {name: causal}, None where it is unknown."""
    first_colours = {False: ENCODER, True: DECODER}  # of the first model with this causal
    others = itertools.cycle(itertools.product(DASHES, OTHERS))
    style_of = {}
    for name, causal in causal_of.items():
        if causal in first_colours:
            dashes, colour = "-", first_colours.pop(causal)
        else:
            dashes, colour = next(others)
        style_of[name] = dict(color=colour, ls=dashes)
    return style_of
