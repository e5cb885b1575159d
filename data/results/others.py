"""
Runs of the paper's authors, and our scores of public models.

    python -m data.results.others    # prints Table 1 and public.csv, and draws png/public.png
"""

from pathlib import Path

import numpy as np
import pandas

from data.drawing import DECODER, ENCODER, OTHERS, figure, put_legend, put_titles
from data.results.comparison import speed_up

HERE = Path(__file__).parent
SCORES = ["symmetry", "directionality"]
SEES = {"both": ("sees both sides", ENCODER), "cross": ("sees another text", OTHERS[0]),
        "before": ("sees what came before", DECODER)}


def print_table_1(curves, trajectories):
    """Prints Table 1, with the scores at the end, medians over layers; and the layers of the small encoders."""
    rows, layers = {}, {}
    for name, scores in trajectories.groupby("run"):
        plain, symmetric = curves[name], curves[f"{name}--symmetric-init"]
        end = scores[scores["step"] == scores["step"].max()]
        rows[name] = {"last loss": plain.iloc[-1], "symmetric start": symmetric.iloc[-1],
                      "steps saved": speed_up(symmetric, plain, window=1), **end[SCORES].median()}
        if name.startswith("bert_small--encoder"):
            layers[name] = end.set_index("layer")["symmetry"]
    print("The authors' runs, as in Table 1:")
    print(pandas.DataFrame(rows).T.to_string(float_format="{:.3f}".format))
    print("Symmetry of each layer of their small encoders at the end:")
    print(pandas.DataFrame(layers).T.rename_axis(columns="layer").to_string(float_format="{:.2f}".format))


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
                    chance = [family[f"{of}chance"], family[f"{of}chance_95"]]
                    axis.plot(chance, [ys, ys], color="0.6", lw=1.2, label="chance: mean to 95th percentile")
                    axis.plot(family[f"{of}symmetry"], ys, "o", ms=3, color=colour, label=label)
                middles[ys.mean()] = name
                y = ys[-1] + 1
        axes[0, 0].set_yticks(list(middles), middles.values())
        axes[0, 0].invert_yaxis()  # the first at the top, in both
        put_legend(axes.flat, ncols=2)


def main(path=HERE / "png/public.png"):
    # Training losses [nats/token], a column for each run.
    curves = pandas.read_csv(HERE / "csv/published/loss_curves.csv")
    curves = curves.set_index(200 * (curves.index + 1))  # one row every 200 updates
    print_table_1(curves, pandas.read_csv(HERE / "csv/published/trajectories.csv"))
    public = pandas.read_csv(HERE / "csv/public.csv", index_col="path", keep_default_na=False)
    shown = ["stack", "sees", "layers", "symmetry", "chance", "chance_95", "beyond", "head_symmetry", "head_chance"]
    print(public[shown].to_string())
    draw_public(public, path)


if __name__ == "__main__":
    main()
