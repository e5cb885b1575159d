"""What all pictures share. A setting has one colour in all of them: an encoder is blue and a decoder purple."""

import contextlib
import itertools

from matplotlib.figure import Figure  # without pyplot, no window is opened and no figure is kept

from .atomic import replacing
from . import printable

ENCODER, DECODER = "#2166ac", "#b05cc6"  # as in the paper; purple is lighter, for who sees both as blue
COLOURS = {"encoder": ENCODER, "decoder": DECODER, "causal unknown": "0.5"}
KINDS = {0: "encoder", 1: "decoder"}  # by causal, where it is known
SETTINGS = [  # keys of a run, and its colour: the first row that fits
    (dict(init="symmetric", qk_std="linear"), "#8c510a"),
    (dict(init="symmetric"), "#b2182b"),
    (dict(qk_std="linear"), "#c7a000"),
    (dict(tie="mirror"), "#f768a1"),
    (dict(random_share=1.0), "#4d4d4d"),
    (dict(random_share=0.5), "#56b4e9"),
    (dict(positions="rotary"), "#e08214"),
    (dict(positions="untied"), "#009e73"),
    (dict(causal=True), DECODER),
    (dict(causal=False), ENCODER),
    ({}, "0.5"),
]
OTHERS = [colour for _, colour in SETTINGS]  # when all dashes of a colour have been used
DASHES = ["-", "--", "-.", (0, (6, 1, 1, 1, 1, 1))]  # of settings of one colour; dotted is chance
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


def put_titles(axes, titles):
    for axis, title in zip(axes, titles):
        axis.set_title(title, fontsize=9, loc="left")


def put_zero(axis):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)


def put_names(axis):
    """Writes the label of each line at its end, and chance at the highest dotted line that has no label."""
    lines = [line for line in axis.lines if len(line.get_xdata())]
    lines.sort(key=lambda line: line.get_ydata()[-1])
    dotted = [line for line in lines if line.get_linestyle() == ":" and line.get_label()[0] == "_"]
    for line in dotted[-1:]:
        line.set_label("chance")
    lines = [line for line in lines if line.get_label()[0] != "_"]
    right = max(line.get_xdata()[-1] for line in lines)
    axis.set_xlim(right=right)
    ends = []
    for line in lines:
        x, y = line.get_xydata()[-1]
        style = dict(color=line.get_color(), fontsize=9)
        if x == right:
            ends.append((y, line.get_label(), style))
        else:  # other lines go on here, so the label stands above the line
            axis.annotate(line.get_label(), (x, y), (0, 2), textcoords="offset points", ha="right", **style)

    # labels that would lie on each other give way, until every two of them are a line of text apart
    low, high = axis.get_ylim()
    height = 72 * 0.65 * axis.figure.get_figheight() / axis.get_gridspec().nrows  # about that of the panel [points]
    apart = (high - low) * 11 / height
    places = [y for y, *_ in ends]
    for _ in range(100):
        for i in range(1, len(places)):
            push = max(0, places[i - 1] + apart - places[i]) / 2
            places[i - 1] -= push
            places[i] += push
    for place, (y, label, style) in zip(places, ends):
        axis.annotate(f" {label}", (right, y), (right, place), va="center", **style)


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


def styles(settings):
    """Returns {name: dict(color, ls)}, how the line of a setting is drawn. settings: {name: keys}, parents first."""
    style_of = {}
    for name, keys in settings.items():
        # the colour says what a setting is, and dashes tell apart those of one colour
        colour = next(colour for wanted, colour in SETTINGS if wanted.items() <= keys.items())
        for other, dashes in itertools.product([colour, *OTHERS], DASHES):
            style = dict(color=other, ls=dashes)
            if style not in style_of.values():
                break

        # a child goes on with the dashes of its parent
        if keys.get("parent") in style_of:
            style = dict(color=colour, ls=style_of[keys["parent"]]["ls"])
        style_of[name] = style
    return style_of
