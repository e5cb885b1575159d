"""
Our scores of public models, which come inside Python packages.

    python -m data.pretrained.public    # prints data/results/csv/public.csv, and draws data/results/png/public.png
"""

from pathlib import Path

import numpy as np
import pandas

from ..drawing import DECODER, ENCODER, OTHERS, figure, put_legend, put_titles

RESULTS = Path(__file__).parents[1] / "results"
SEES = {"both": ("sees both sides", ENCODER), "cross": ("sees another text", OTHERS[0]),
        "before": ("sees what came before", DECODER)}


def draw_public(models, path):
    """Draws the symmetry of layers and of heads, families one below the other."""
    y = 0.0
    middles = {}  # {the middle of a family: its name}
    with figure(path, 1, 2, 4.6, "Symmetry of $W_{qk}$ in public models, median over layers", sharey=True) as axes:
        put_titles(axes.flat, ["layers", "single heads, mean of a layer"])
        for sees, (label, colour) in SEES.items():
            for name, family in models[models["sees"] == sees].groupby("model", sort=False):
                ys = y + 0.4 * np.arange(len(family))
                for axis, of in zip(axes.flat, ["", "head_"]):
                    chance = [family[f"{of}symmetry_chance"], family[f"{of}symmetry_95"]]
                    axis.plot(chance, [ys, ys], color="0.6", lw=1.2, label="chance: mean to 95th percentile")
                    axis.plot(family[f"{of}symmetry"], ys, "o", ms=3, color=colour, label=label)
                middles[ys.mean()] = name
                y = ys[-1] + 1
        axes[0, 0].set_yticks(list(middles), middles.values())
        axes[0, 0].invert_yaxis()  # the first at the top, in both
        put_legend(axes.flat, ncols=2)


def main(path=RESULTS / "png/public.png"):
    models = pandas.read_csv(RESULTS / "csv/public.csv", index_col="path", keep_default_na=False)
    shown = ["stack", "sees", "layers", "symmetry", "symmetry_chance", "symmetry_95", "symmetry_beyond",
             "head_symmetry", "head_symmetry_chance", "own_heads", "shared", "mirror"]
    print(models[shown].to_string())
    draw_public(models, path)


if __name__ == "__main__":
    main()
