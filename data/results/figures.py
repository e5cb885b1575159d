"""
What all pictures share, and the pictures of pretrained models. Blue is an encoder and purple a decoder everywhere, as
in the paper.
"""

import contextlib
import math
import os
from pathlib import Path

import numpy as np

from data.disk import replacing
from data.results.runs import SCORES
from data.results.tables import GAMMA, band, is_causal, quartiles, whole_layers

# By causal, which is None if it is not known.
KINDS = {False: "encoder", True: "decoder", None: "causal unknown"}
COLOURS = {False: "#2166ac", True: "#8e3b9e", None: "0.5"}
ENCODER, DECODER = COLOURS[False], COLOURS[True]
SHADES = {False: "Blues", True: "Purples", None: "Greys"}
OTHERS = ["#e08214", "#1b7837", "#b2182b", "#c7a000", "#35978f", "#8c510a", "#f768a1", "#4d4d4d", "#7fbc41"]
MAX_COLUMNS = 7  # panels in a row
HEIGHT = 3.4  # of a row [inches]
FORMATS = (".png", ".pdf", ".svg", ".jpg", ".gif")  # of pictures, by the end of their names


# ---- colours and panels ------------------------------------------------------------------------------------------


def shades(causal):
    """A colour for each item of a list of True (decoder), False (encoder) and None; each kind from light to dark."""
    from matplotlib import colormaps

    colours = []
    for i, is_causal in enumerate(causal):
        n = causal.count(is_causal)
        nth = causal[:i].count(is_causal)  # how many of its kind come before it
        shade = colormaps[SHADES[is_causal]]
        # Lighter shades than 0.45 are hard to see on white.
        colours.append(shade(0.45 + 0.5 * nth / (n - 1)) if n > 1 else COLOURS[is_causal])
    return colours


def make_axes(widths, rows, size):
    """A figure and its axes (rows, len(widths))."""
    from matplotlib.figure import Figure  # without pyplot, no window is opened and no figure is kept

    fig = Figure(size, layout="constrained")
    return fig, fig.subplots(rows, len(widths), width_ratios=widths, squeeze=False)


@contextlib.contextmanager
def figure(path, widths, rows=1, inches=2.4, height=HEIGHT):
    """
    Axes (rows, len(widths)) to draw on, inches wide and height high. At the end they are saved, in the format that the
    name of the file says.
    """
    fig, axes = make_axes(widths, rows, (max(11, inches * len(widths)), height * rows))
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    with replacing(path) as temporary:
        fig.savefig(temporary, dpi=120, format=Path(path).suffix[1:])


def plain(name):
    """The name of a model or an arm in a picture, where a $ would begin a formula, and a _ what no legend shows."""
    text = str(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def short(name):
    """The end of a long name, so that it fits above a panel."""
    return plain(name if len(name) <= 24 else f"...{name[-21:]}")


def tell_apart(names):
    """{name: the part of its path that is not the same in all names}"""
    parts = {name: name.rstrip("/").split("/") for name in names}
    n_first = len(os.path.commonprefix([*parts.values()]))
    n_last = len(os.path.commonprefix([part[::-1] for part in parts.values()]))
    return {name: short("/".join(part[n_first : len(part) - n_last]) or name) for name, part in parts.items()}


def put_titles(axes, titles):
    for axis, title in zip(axes, titles):
        axis.set_title(title, fontsize=9, loc="left")


def put_zero(axis):
    axis.axhline(0, color="0.8", lw=0.8, zorder=0)


def put_legend(axes, loc="outside right upper", **options):
    """A legend for some panels, outside of them, where there are no data. It has every label once."""
    handles = {}  # label -> what it is drawn with
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    options = dict(frameon=False, fontsize=8, title_fontsize=8) | options
    axes[0].figure.legend(handles=list(handles.values()), loc=loc, **options)


def put_null(axis, score, n, r, gamma=GAMMA):
    """Draw a grey band, if it is known: the range of 95 of 100 random matrices."""
    limits = band(score, n, r, gamma)
    if limits:
        axis.axhspan(*limits, color="0.93", lw=0, zorder=-1, label="95 of 100\nrandom matrices")


def plot_columns(path, columns, n_shared=None, **legend):
    """
    A column for each of columns, (title, what draws it, what it takes), and a row for each score. What draws it takes
    an axis, what it takes, and the score. n_shared: so many of the first columns have the same range; None: all.
    legend: options of put_legend.
    """
    n = min(len(columns), MAX_COLUMNS)
    n_rows = math.ceil(len(columns) / n)  # more columns than fit begin a new row, of each score
    with figure(path, [1] * n, rows=n_rows * len(SCORES)) as axes:
        for i, score in enumerate(SCORES):
            panels = axes[i :: len(SCORES)].flat  # of this score, in all of its rows
            for axis in panels[1:n_shared]:
                axis.sharey(panels[0])
                axis.tick_params(labelleft=axis.get_subplotspec().is_first_col())
            for axis, (title, draw, shown) in zip(panels, columns):
                draw(axis, shown, score)
                put_zero(axis)
                put_titles([axis], [title])
            for row in axes[i :: len(SCORES)]:
                row[0].set_ylabel(f"{score} of $W_{{qk}}$")
            for empty in panels[len(columns) :]:
                empty.axis("off")
        put_legend(axes[:: len(SCORES)].flat, **legend)


def draw_quartiles(axis, steps, values, **style):
    """values (S, L): a line for the median over layers, a band from quartile to quartile."""
    q1, median, q3 = quartiles(values)  # (S,) each
    axis.plot(steps, median, **style)
    axis.fill_between(steps, q1, q3, color=style["color"], alpha=0.15, lw=0)


def draw_bar(axis, x, found, **style):
    """A dot at the median, a bar from quartile to quartile. found: (q1, median, q3)"""
    q1, median, q3 = found
    axis.errorbar(x, median, [[median - q1], [q3 - median]], ls="", **style)  # it wants distances from the dot


# ---- many models -------------------------------------------------------------------------------------------------


def plot_models(stacks, path):
    """
    Figures 2, S1, S2: scores against parameters. Dot: median over layers; bar: quartiles; grey: 95 of 100 random
    matrices. The numbers at the dots refer to the legend. stacks: as of tables.by_stack
    """
    columns = [("median and quartiles over layers", draw_models, stacks)]
    plot_columns(path, columns, ncols=1 + len(stacks) // 28)  # so many are as high as the figure


def draw_models(axis, stacks, score):
    names = tell_apart(model for model, _ in stacks)
    for number, ((model, stack), layers) in enumerate(stacks.items(), 1):
        first, causal = layers.iloc[0], is_causal(layers)
        x, found = first.params, quartiles(layers[score])
        limits = band(score, first.n, first.r, first.gamma)
        if limits:
            axis.plot([x, x], limits, color="0.88", lw=5, zorder=0, solid_capstyle="butt",
                      label="95 of 100\nrandom matrices")
        draw_bar(axis, x, found, ms=5, lw=1, alpha=0.8, mec="white", mew=0.5, marker="o", color=COLOURS[causal],
                 label=KINDS[causal])
        axis.annotate(str(number), (x, found[1]), (4, 2), textcoords="offset points", fontsize=7)
        axis.plot([], [], " ", label=f"{number} {names[model]} {stack}".strip())
    put_parameters(axis)


def put_parameters(axis):
    """A logarithmic axis of parameters, with ticks such as 100M and 2B."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set(xscale="log", xlabel="parameters")
    low, high = axis.get_xlim()
    if high < 4 * low:  # one model, or models of one size, where no tick could be
        axis.set_xlim(low / 2, 2 * high)
    axis.xaxis.set_major_locator(LogLocator(subs=[1, 2, 5] if high < 100 * low else [1]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda n, _: f"{n / 1e9:g}B" if n >= 1e9 else f"{n / 1e6:g}M")


# ---- one model ---------------------------------------------------------------------------------------------------


def plot_model(table, path):
    """The scores of the layers and heads of one model, a column for each stack."""
    columns = []
    for (model, stack), rows in table.groupby(["model", "stack"], sort=False):
        columns.append((short(f"{model} {stack}".strip()), draw_stack, rows))
    plot_columns(path, columns)


def draw_stack(axis, table, score):
    from matplotlib.ticker import MaxNLocator

    first, causal = table.iloc[0], is_causal(table)
    put_null(axis, score, first.n, first.r, first.gamma)
    layers = whole_layers(table).sort_values("layer")  # a spreadsheet may have sorted its rows
    heads = table[table["head"].notna()]
    if len(heads):
        axis.plot(heads["layer"], heads[score], ".", color=COLOURS[causal], alpha=0.3, ms=4, label="its heads")
    axis.plot(layers["layer"], layers[score], "o-", color=COLOURS[causal], ms=4, label=KINDS[causal])
    axis.set(xlabel="layer", xlim=(-0.5, layers["layer"].max() + 0.5))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


# ---- W_qk itself -------------------------------------------------------------------------------------------------


def plot_matrices(results, path):
    """
    For each model a row: W_qk of its last layer, and its parts, in one colour scale. Trainings, in a GIF: a movie.
    results: {target: its ScoredModel}
    """
    if str(path).endswith(".gif") and all(target.step is not None for target in results):
        plot_movie(results, path)
        return
    names = tell_apart(target.source for target in results)
    limit = find_limit(results.values())
    with figure(path, [1, 1, 1], rows=len(results), inches=3.4) as axes:
        for row_of_axes, (target, result) in zip(axes, results.items()):
            draw_parts(row_of_axes, result, limit, names[target.source])


def draw_parts(axes, result, limit, name):
    """Draw M, the W_qk of the last layer, and its parts (M + M^T) / 2 and (M - M^T) / 2. result: a ScoredModel"""
    m, layer = result.corner, last_layer(result)
    for axis, part in zip(axes, [m, (m + m.T) / 2, (m - m.T) / 2]):
        image = draw_matrix(axis, part, limit)
        axis.set(xticks=[0, len(m) - 1], yticks=[0, len(m) - 1])
    where = f"{layer.stack} layer {layer.layer}".strip()
    put_titles(axes, [f"{name}: $W_{{qk}}$ of {where}, symmetry {layer.symmetry:.2f}", "its symmetric part",
                      "its skew part"])
    axes[0].set(xlabel=f"key side, {len(m)} of {layer.n} columns", ylabel="query side")
    share = (1 + layer.symmetry) / 2  # |M_s|^2 / |M|^2, as s = (|M_s|^2 - |M_n|^2) / |M|^2
    axes[1].set_xlabel(f"{share:.0%} of $|W_{{qk}}|^2$")
    axes[2].set_xlabel(f"{1 - share:.0%} of $|W_{{qk}}|^2$")
    axes[-1].figure.colorbar(image, ax=axes, shrink=0.6, pad=0.01)


def draw_matrix(axis, m, limit):
    axis.spines[["top", "right"]].set_visible(True)
    return axis.imshow(m, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")  # red: above 0


def last_layer(result):
    *_, last = whole_layers(result.table).itertuples()
    return last


def find_limit(results):
    """Where the colours end: beyond are few entries of the matrices."""
    return max(np.quantile(np.abs(result.corner), 0.995) for result in results)


def plot_movie(results, path):
    """
    W_qk of the last layer of each training, side by side, as a moving picture (GIF) over its checkpoints, in one colour
    scale.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    trainings = {}  # model -> step -> its ScoredModel
    for target, result in results.items():
        trainings.setdefault(target.model, {})[target.step] = result
    limit = find_limit(results.values())
    names = tell_apart(trainings)
    fig, (axes,) = make_axes([1] * len(trainings), 1, (2.7 * len(trainings), 3.2))
    canvas = FigureCanvasAgg(fig)
    frames = []
    for step in sorted({target.step for target in results}):
        for axis, (name, checkpoints) in zip(axes, trainings.items()):
            latest = max((at for at in checkpoints if at <= step), default=min(checkpoints))
            layer = last_layer(checkpoints[latest])
            axis.clear()  # or every frame would keep the images of those before
            draw_matrix(axis, checkpoints[latest].corner, limit)
            axis.set(xticks=[], yticks=[], xlabel="key side", ylabel="query side")
            of_layer = f"symmetry {layer.symmetry:.2f}, directionality {layer.directionality:.2f}"
            axis.set_title(f"{names[name]}, layer {layer.layer}\n{of_layer}", fontsize=9)
        fig.suptitle(f"step {step:,.0f}", fontsize=10)
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    times = [200] * (len(frames) - 1) + [2000]  # [ms]
    with replacing(path) as temporary:
        frames[0].save(temporary, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)
