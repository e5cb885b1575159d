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
from data.drawing import COLOURS, DECODER, ENCODER, KINDS, OTHERS, draw_bar, figure, put_legend, put_titles, put_zero
from data.runs.statistics import speed_up

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SCORES = ["symmetry", "directionality"]
FIGURES = {"2": "Language models (Figure 2)", "S1": "Vision and audio (Figure S1)",
           "S2": "Encoder-decoders of language (Figure S2)"}
MARKERS = {"language": "o", "vision": "s", "audio": "^"}
SEES = {"both": ("sees both sides", ENCODER), "cross": ("sees another text", OTHERS[0]),
        "before": ("sees what came before", DECODER)}


def print_tables(models, rows):
    """Prints how many rows of Tables S2 and S3 are of W_qk, and how well the scores tell the models apart."""
    n_wqk = (rows["matrix"] == "wqk").sum()
    print(f"Tables S2 and S3: {n_wqk} of {len(rows)} rows are of W_qk, and {len(rows) - n_wqk} are of another matrix.")

    # in Figure 2, compare each encoder with each decoder
    models = drawn_in(models, "2")
    of_wqk = models[models["matrix"] == "wqk"]
    print(f"Figure 2: {len(of_wqk)} of {len(models)} models are scored on W_qk, and {len(models) - len(of_wqk)} on "
          "another matrix.")
    print("Pairs of an encoder and a decoder of Figure 2 in which the encoder has the higher score:")
    for words, chosen in ("of W_qk alone", of_wqk), ("all rows", models):
        encoders, decoders = chosen[chosen["causal"] == 0], chosen[chosen["causal"] == 1]
        pairs = encoders.merge(decoders, "cross", suffixes=("", "_of_decoder"))
        shares = [f"{score} {(pairs[score] > pairs[f'{score}_of_decoder']).mean():.1%}" for score in SCORES]
        print(f"  {words} ({len(encoders)} x {len(decoders)}): {', '.join(shares)}")


def drawn_in(models, figure):
    """Returns the models that a figure of the paper draws. The authors scored 16 more, whose drawn_as is empty."""
    return models[(models["figure"] == figure) & (models["drawn_as"] != "")]


def draw_models(models, path):
    """Draws Figures 2, S1 and S2: scores against parameters. Repeated models are not drawn."""
    with figure(path, len(FIGURES), 2, title="Published scores of pretrained models by size", sharey="col") as axes:
        for panels, (name, title) in zip(axes, FIGURES.items()):
            put_titles(panels, [title])
            shown = drawn_in(models, name).query("repeats == ''")
            for axis, score in zip(panels, SCORES):
                for model in shown.to_dict("records"):
                    draw_model(axis, model, score)
                put_zero(axis)
                axis.set(xscale="log", xlabel="parameters", xlim=(2e6, 1e12), ylabel=f"published {score}")
        put_legend(axes.flat, title="each dot: one model, median over layers; bars: quartiles")


def draw_model(axis, model, score):
    """Draws a score of a model, a dict: its median over layers, and a bar from quartile to quartile."""
    size, median = model["params"], model[score]
    kind, modality = KINDS[model["causal"]], model["modality"]
    draw_bar(axis, size, model[f"{score}_q1"], median, model[f"{score}_q3"], lw=0.8, ms=5, alpha=0.9,
             color=COLOURS[kind], marker=MARKERS[modality], label=f"{kind}, {modality}")
    if model["matrix"] != "wqk":
        axis.plot(size, median, "x", color="black", ms=6, mew=0.7, ls="", zorder=4,
                  label="crossed out: not a score of $W_{qk}$")


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
    with figure(path, 1, 2, 4.6, "Symmetry of $W_{qk}$ in public models, median over layers", sharey=True) as axes:
        put_titles(axes.flat, ["layers", "single heads, mean of a layer"])
        for sees, (label, colour) in SEES.items():
            for name, family in models[models["sees"] == sees].groupby("model", sort=False):
                # the models of a family are 0.4 apart, and families 1
                ys = y + 0.4 * np.arange(len(family))
                middles[ys.mean()] = name
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
    models = pandas.read_csv(HERE / "models.csv", keep_default_na=False)
    rows = pandas.read_csv(HERE / "printed_tables.csv", dtype=str, keep_default_na=False)
    print_tables(models, rows)
    draw_models(models, pictures / "published_scores.png")
    curves = pandas.read_csv(HERE / "loss_curves.csv")  # training losses [nats/token], a column for each run
    curves = curves.set_index(200 * (curves.index + 1))  # one row every 200 updates
    print_table_1(curves, pandas.read_csv(HERE / "trajectories.csv"))
    draw_public(pandas.read_csv(RESULTS / "csv/public.csv", keep_default_na=False), pictures / "public.png")


if __name__ == "__main__":
    take_no_arguments(__doc__)
    end_with_pipe()
    main()
