"""Table 1 and png/published.png from the authors' own training runs: python -m data.results.csv.published.draw"""

import math
from pathlib import Path

import pandas

from data.results import compare
from data.results.figures import COLOURS, draw_quartiles, figure, put_legend, put_titles
from data.results.figures_runs import put_steps
from data.results.runs import SCORES

HERE = Path(__file__).parent


def read_loss_curves():
    """Training losses [nats/token]: a DataFrame with a column for each run, and a row for every 200 updates."""
    table = pandas.read_csv(HERE / "loss_curves.csv")
    return table.set_index(200 * (table.index + 1))


def read_trajectories():
    """{run: its scores, a DataFrame (S, 2 L) with the columns (score, layer)}"""
    rows = pandas.read_csv(HERE / "trajectories.csv")
    return {name: of_run.pivot(index="step", columns="layer", values=SCORES) for name, of_run in rows.groupby("run")}


def describe(plain, symmetric, scores):
    """A row of Table 1, with the steps saved by two rules: -inf if the plain run's last loss is not reached."""
    reached = symmetric.index[symmetric <= plain.iloc[-1]]  # of one noisy batch, and another
    by_the_paper = 1 - reached[0] / plain.index[-1] if len(reached) else -math.inf
    row = {"last loss": plain.iloc[-1], "symmetric": symmetric.iloc[-1], "saved, by the paper's rule": by_the_paper}
    medians = scores.iloc[-1].groupby(level=0, sort=False).median()  # over layers, at the last step
    return row | {"by ours": compare.speed_up(symmetric, plain), **medians}


def main(path=HERE.parents[1] / "png" / "published.png"):
    curves, trajectories, rows, columns = read_loss_curves(), read_trajectories(), {}, {}
    with figure(path, [1] * 6, rows=3, inches=2.2, height=2.6) as axes:
        for name, scores in trajectories.items():
            model, kind, corpus = name.split("--")  # an encoder and a decoder share a column
            loss, *panels = axes[:, columns.setdefault(f"{model}, {corpus}", len(columns))]
            plain, symmetric, colour = curves[name], curves[f"{name}--symmetric-init"], COLOURS[kind == "decoder"]
            rows[name] = describe(plain, symmetric, scores)
            loss.plot(plain, color=colour, lw=1, label=kind)
            loss.plot(symmetric, color=colour, lw=1, ls=":", label=f"{kind}, symmetric initialisation")
            for axis, score in zip(panels, SCORES):
                draw_quartiles(axis, scores.index, scores[score], color=colour)
        for row, label, limits in zip(axes, ["training loss", *SCORES], [(0, 5), (-0.8, 0.8), (-1, 0.6)]):
            row[0].set_ylabel(label)
            for axis in row:
                axis.set_ylim(limits)
                put_steps(axis)
        put_titles(axes[0], columns)
        put_legend(axes[0], "outside lower center", ncols=4, title="scores: median and quartiles over layers")
    print(pandas.DataFrame.from_dict(rows, orient="index").to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
