"""
What the authors of the paper printed and published, their scores of pretrained models and their training runs; and our
scores of public models, which come inside Python packages.

    python -m data.published    # prints tables, and draws published_scores.png and public.png of data/results/png

README.md says where the files of this folder come from.
"""

from pathlib import Path

import numpy as np
import pandas

from config import end_with_pipe
from data import take_no_arguments
from data.drawing import COLOURS, DECODER, ENCODER, HEIGHT, KINDS, draw_bar, figure, put_legend, put_titles, put_zero
from data.runs.statistics import speed_up

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SCORES = ["symmetry", "directionality"]
SEES = {"both": ("sees both sides", ENCODER), "cross": ("sees another text", "#56b4e9"),
        "before": ("sees what came before", DECODER)}


def print_tables(models, rows):
    """Prints how many rows of Tables S2 and S3 are of W_qk, and how well the scores tell the models apart."""
    n_wqk = (rows["matrix"] == "wqk").sum()
    print(f"Tables S2 and S3: {n_wqk} of {len(rows)} rows are of W_qk, and {len(rows) - n_wqk} are of another matrix.")

    # in Figure 2, compare each encoder with each decoder
    of_wqk = models[models["matrix"] == "wqk"]
    print(f"Figure 2: {len(of_wqk)} of {len(models)} models are scored on W_qk, and {len(models) - len(of_wqk)} on "
          "another matrix.")
    print("Pairs of an encoder and a decoder of Figure 2 in which the encoder has the higher score:")
    for words, chosen in ("of W_qk alone", of_wqk), ("all rows", models):
        encoders, decoders = chosen[chosen["causal"] == 0], chosen[chosen["causal"] == 1]
        pairs = encoders.merge(decoders, "cross", suffixes=("", "_of_decoder"))
        shares = [f"{score} {(pairs[score] > pairs[f'{score}_of_decoder']).mean():.1%}" for score in SCORES]
        print(f"  {words} ({len(encoders)} x {len(decoders)}): {', '.join(shares)}")


def draw_models(models, path):
    """Draws the symmetry of the models of Figure 2 by their size, and the scores of other matrices hollow."""
    title = ("Encoders are more symmetric than decoders.\n"
             "Most decoders near 0 were scored on another matrix than $W_{qk}$.")
    with figure(path, 1, 1, 1.4 * HEIGHT, title) as [[axis]]:
        for model in models.to_dict("records"):
            kind = KINDS[model["causal"]]
            style = dict(color=COLOURS[kind], label=f"{kind}, $W_{{qk}}$")
            if model["matrix"] != "wqk":
                style |= dict(mfc="white", alpha=0.6, label=f"{kind}, another matrix")
            quartiles = [model[f"symmetry{end}"] for end in ("_q1", "", "_q3")]
            draw_bar(axis, model["params"], *quartiles, marker="o", ms=5, lw=0.8, **style)
        put_zero(axis)
        axis.set(xscale="log", xlabel="parameters", ylabel="published symmetry")
        put_legend([axis], ncols=4, title="each dot: a model of Figure 2, median over layers; bars: quartiles")


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
    y, middles = 0.0, {}  # {the middle of a family: its name}
    title = ("In public models that see both sides, layers are more symmetric than chance.\n"
             "Most of their single heads are, too.")
    with figure(path, 1, 2, 4, title, sharey=True) as axes:
        put_titles(axes.flat, ["symmetry of $W_{qk}$, median over layers", "of single heads, mean of a layer"])
        for sees, (label, colour) in SEES.items():
            for name, family in models[models["sees"] == sees].groupby("model", sort=False):
                # families are 1 apart, and the models of a large one share a place of 2
                ys = y + np.arange(len(family)) * min(0.4, 2 / len(family))
                more = f" ({len(family)} variants)" if len(family) > 2 else ""
                middles[ys.mean()] = f"{name}, cross" if sees == "cross" else f"{name}{more}"
                y = ys[-1] + 1

                # a dot for each model, on a line for its chance
                for axis, prefix in zip(axes.flat, ["", "head_"]):
                    chance = [family[f"{prefix}symmetry_chance"], family[f"{prefix}symmetry_95"]]
                    axis.plot(chance, [ys, ys], color="0.6", lw=1.2, label="chance: mean to 95th percentile")
                    axis.plot(family[f"{prefix}symmetry"], ys, "o", ms=3, color=colour, label=label)
        axes[0, 0].set_yticks(list(middles), middles.values())
        axes[0, 0].invert_yaxis()  # the first at the top, in both
        put_legend(axes.flat, ncols=2)


def main(pictures=RESULTS / "png"):
    # what Figure 2 of the paper draws; the authors scored six more models, whose drawn_as is empty
    models = pandas.read_csv(HERE / "models.csv").query("figure == '2'").dropna(subset="drawn_as")
    print_tables(models, pandas.read_csv(HERE / "printed_tables.csv"))
    draw_models(models, pictures / "published_scores.png")
    curves = pandas.read_csv(HERE / "loss_curves.csv")  # training losses [nats/token], a column for each run
    curves = curves.set_index(200 * (curves.index + 1))  # one row every 200 updates
    print_table_1(curves, pandas.read_csv(HERE / "trajectories.csv"))
    draw_public(pandas.read_csv(RESULTS / "csv/public.csv"), pictures / "public.png")


if __name__ == "__main__":
    take_no_arguments(__doc__)
    end_with_pipe()
    main()
