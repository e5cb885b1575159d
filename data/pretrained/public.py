"""Prints and draws the scores of public models, data/results/csv/public.csv: python -m data.pretrained.public"""

from pathlib import Path

import pandas

from ..drawing import DECODER, ENCODER, OTHERS, figure, put_legend, put_titles

RESULTS = Path(__file__).parents[1] / "results"
SEES = {"both": dict(color=ENCODER, label="sees both sides"), "cross": dict(color=OTHERS[0], label="sees another text"),
        "before": dict(color=DECODER, label="sees what came before")}
SHOWN = ["stack", "sees", "layers", "symmetry", "chance", "chance_95", "beyond", "head_symmetry", "head_chance"]


def draw(table, path):
    """Draws the symmetry of layers and of heads, families one below the other."""
    table = table.sort_values("sees", key=lambda column: column.map(list(SEES).index), kind="stable")
    y = 0.0
    middles = {}  # {y: family}
    with figure(path, 1, 2, 4.6, "Symmetry of $W_{qk}$ in public models, median over layers", sharey=True) as axes:
        put_titles(axes.flat, ["layers", "single heads, mean of a layer"])
        for (sees, family), models in table.groupby(["sees", "model"], sort=False):
            middles[y + 0.2 * (len(models) - 1)] = family
            for model in models.to_dict("records"):
                for axis, start in zip(axes.flat, ["", "head_"]):
                    by_chance = [model[f"{start}chance"], model[f"{start}chance_95"]]
                    axis.plot(by_chance, [y, y], color="0.6", lw=1.2, label="chance: mean to 95th percentile")
                    axis.plot(model[f"{start}symmetry"], y, "o", ms=3, **SEES[sees])
                y += 0.4
            y += 0.6
        axes[0, 0].set_yticks(list(middles), middles.values())
        axes[0, 0].invert_yaxis()  # the first at the top, in both
        put_legend(axes.flat, ncols=2)


if __name__ == "__main__":
    models = pandas.read_csv(RESULTS / "csv" / "public.csv", index_col="path", keep_default_na=False)
    print(models[SHOWN].to_string())
    draw(models, RESULTS / "png" / "public.png")
