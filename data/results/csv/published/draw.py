"""
Makes Table 1 of the authors' own runs, their curves, and their layers beside those of config/plans/depth.py.

    python -m data.results.csv.published.draw    # prints the table; draws published_runs.png, depth.png in ../../png
"""

from pathlib import Path

import pandas

from data.chance import SCORES
from data.drawing import COLOURS, draw_layers, draw_quartiles, figure, put_legend, put_steps, put_titles, put_zero
from data.results import compare

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "png"
DEPTHS = dict(bert=12, bert_small=4)  # layers
CORPORA = dict(jigsaw="Jigsaw", red_pajama="RedPajama", wikipedia="Wikipedia")


def describe(plain, symmetric, scores):
    """Returns a row of Table 1, with the steps saved by two rules: -inf if the plain run's last loss is not reached."""
    by_the_paper = compare.speed_up(symmetric, plain, window=1)  # compares one noisy batch with another
    medians = scores.iloc[-1].groupby(level=0, sort=False).median()  # over layers, at the last step
    return {"last loss": plain.iloc[-1], "symmetric": symmetric.iloc[-1], "saved, by the paper's rule": by_the_paper,
            "by ours": compare.speed_up(symmetric, plain), **medians}


def draw_depth(arms, path):
    """Draws the symmetry of each of four layers over training: of the authors' encoders, and of arms (compare.pool)."""
    scores = pandas.read_csv(HERE / "trajectories.csv")
    panels = {}  # title -> DataFrame (S, L)
    for corpus, title in CORPORA.items():
        of_run = scores[scores["run"] == f"bert_small--encoder--{corpus}"]
        panels[f"authors: {title}"] = of_run.pivot(index="step", columns="layer", values="symmetry")
    for name, records in arms.items():
        panels[f"ours: {name}"] = sum(record.layers("symmetry") for record in records) / len(records)
    with figure(path, 2, 3, title="Symmetry of W_qk in encoders of four layers", sharey=True) as axes:
        for axis, layers in zip(axes.flat, panels.values()):
            draw_layers(axis, layers)
            put_zero(axis)
        put_titles(axes.flat, panels)
        put_legend(axes.flat, title="dark lines: lower layers; ours: mean over seeds")


def main(folder=PICTURES):
    arms, _ = compare.pool([HERE.parent / "depth.csv"])
    draw_depth(arms, folder / "depth.png")
    curves = pandas.read_csv(HERE / "loss_curves.csv")  # training losses [nats/token], a column for each run
    curves = curves.set_index(200 * (curves.index + 1))  # one row every 200 updates
    scores_of = pandas.read_csv(HERE / "trajectories.csv").groupby("run")
    rows = {}
    row_of = {}  # title -> number of the row of panels
    heading = "Training runs of the paper's authors"
    with figure(folder / "published_runs.png", 6, 3, 1.7, heading, sharex=True, sharey="col") as axes:
        for name, scores in scores_of:
            scores = scores.pivot(index="step", columns="layer", values=SCORES)  # (S, 2 L)
            model, kind, corpus = name.split("--")
            title = f"{DEPTHS[model]} layers, {CORPORA[corpus]}"
            i = row_of.setdefault(title, len(row_of))  # an encoder and a decoder share a row
            loss, *panels = axes[i]
            plain = curves[name]
            symmetric = curves[f"{name}--symmetric-init"]
            colour = COLOURS[kind == "decoder"]
            rows[name] = describe(plain, symmetric, scores)
            put_titles(axes[i], [f"{title}: loss [nats]", *SCORES])
            loss.plot(plain, color=colour, lw=1, label=kind)
            loss.plot(symmetric, color=colour, lw=1, ls=":", label=f"{kind}, symmetric initialization")
            for axis, score in zip(panels, SCORES):
                draw_quartiles(axis, scores.index, scores[score], color=colour)
        for axis, limits in zip(axes[-1], [(0, 5), (-0.8, 0.8), (-1, 0.6)]):  # of their columns
            axis.set_ylim(limits)
            put_steps(axis)
        put_legend(axes[0], ncols=2, title="losses: of training; scores: median over layers, bands: quartiles")
    print(pandas.DataFrame.from_dict(rows, orient="index").to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
