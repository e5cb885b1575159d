"""
What the authors of the paper published, and what of it is not a score of W_qk.

    python -m data.pretrained.published    # draws published_scores.png, published_runs.png in data/results/png

models.csv has the points of Figures 2, S1 and S2, printed_tables.csv has Tables S2 and S3, and data/results has losses
and scores of the authors' own runs, in csv/published. README.md explains the matrices that were scored.
"""

from math import inf
from pathlib import Path

import pandas

from ..drawing import COLOURS, KINDS, draw_quartiles, figure, put_legend, put_steps, put_titles, put_zero

HERE = Path(__file__).parent
RUNS = HERE.parent / "results" / "csv" / "published"
PICTURES = HERE.parent / "results" / "png"
SCORES = ["symmetry", "directionality"]
FIGURES = {"2": "Language models (Figure 2)", "S1": "Vision and audio (Figure S1)",
           "S2": "Encoder-decoders of language (Figure S2)"}
MARKERS = {"language": "o", "vision": "s", "audio": "^"}
DEPTHS = dict(bert=12, bert_small=4)  # layers
CORPORA = dict(jigsaw="Jigsaw", red_pajama="RedPajama", wikipedia="Wikipedia")


# ---- scores of models --------------------------------------------------------------------------------------------


def audit(rows):
    """Returns the rows of Tables S2 and S3, left halves and then right ones, and how many are of W_qk."""
    n_wqk = (rows["matrix"] == "wqk").sum()
    columns = ["row", "printed_as", *SCORES, "matrix", "repeats", "remark"]
    return (f"Tables S2 and S3 of the paper, medians over layers:\n{rows[columns].to_string(index=False)}\n"
            f"Of {len(rows)} rows {n_wqk} are of W_qk, and {len(rows) - n_wqk} are of another matrix.")


def separation(models):
    """Returns how well each score tells the encoders of Figure 2 from its decoders, with and without other matrices."""
    models = models[models["figure"] == "2"]
    lines = ["Pairs of an encoder and a decoder of Figure 2 in which the encoder has the higher score:"]
    for words, chosen in ("of W_qk alone", models[models["matrix"] == "wqk"]), ("all rows", models):
        encoders, decoders = chosen[chosen["causal"] == "0"], chosen[chosen["causal"] == "1"]
        pairs = encoders.merge(decoders, "cross", suffixes=("", "_of_decoder"))
        shares = [f"{score} {(pairs[score] > pairs[f'{score}_of_decoder']).mean():.1%}" for score in SCORES]
        lines.append(f"  {words} ({len(encoders)} x {len(decoders)}): {', '.join(shares)}")
    return "\n".join(lines)


def draw_models(models, path):
    """Draws Figures 2, S1 and S2: scores against parameters. Repeated models are not drawn."""
    with figure(path, len(FIGURES), 2, title="Published scores of pretrained models by size", sharey="col") as axes:
        for panels, (name, title) in zip(axes, FIGURES.items()):
            put_titles(panels, [title])
            shown = models[(models["figure"] == name) & (models["repeats"] == "")]
            for axis, score in zip(panels, SCORES):
                for _, model in shown.iterrows():
                    draw_model(axis, model, score)
                put_zero(axis)
                axis.set(xscale="log", xlabel="parameters", xlim=(2e6, 1e12), ylabel=f"published {score}")
        put_legend(axes.flat, title="each dot: one model, median over layers; bars: quartiles")


def draw_model(axis, model, score):
    """Draws a dot over the parameters of a model, a row of models.csv, and crosses it out if it is not of W_qk."""
    x, median = int(model["params"]), model[score]
    causal = model["causal"] == "1"
    bar = [[median - model[f"{score}_q1"]], [model[f"{score}_q3"] - median]]
    axis.errorbar(x, median, bar, ls="", lw=0.8, ms=5, alpha=0.9, color=COLOURS[causal],
                  marker=MARKERS[model["modality"]], label=f"{KINDS[causal]}, {model['modality']}")
    if model["matrix"] != "wqk":
        axis.plot(x, median, "x", color="black", ms=6, mew=0.7, ls="", zorder=4,
                  label="crossed out: not a score of $W_{qk}$")


# ---- the authors' own training runs ------------------------------------------------------------------------------


def steps_saved(loss, baseline):
    """
    Returns 1 - t / T, the speed-up of Table 1, from losses by step: T is the last step, and t the first at which the
    loss is at or below the last one of the baseline; -inf if it never is. It compares one noisy batch with another.
    """
    reached = loss.index[loss <= baseline.iloc[-1]]
    return 1 - reached[0] / loss.index[-1] if len(reached) else -inf


def table_1(curves, trajectories):
    """Returns Table 1, with the scores at the end, medians over layers; and the layers of the small encoders."""
    rows, layers = {}, {}
    for name, scores in trajectories.groupby("run"):
        plain, symmetric = curves[name], curves[f"{name}--symmetric-init"]
        end = scores[scores["step"] == scores["step"].max()]
        rows[name] = {"last loss": plain.iloc[-1], "symmetric start": symmetric.iloc[-1],
                      "steps saved": steps_saved(symmetric, plain), **end[SCORES].median()}
        if name.startswith("bert_small--encoder"):
            layers[name] = end.set_index("layer")["symmetry"]
    return ("The authors' runs, as in Table 1:\n"
            f"{pandas.DataFrame(rows).T.to_string(float_format='{:.3f}'.format)}\n"
            "Symmetry of each layer of their small encoders at the end:\n"
            f"{pandas.DataFrame(layers).T.rename_axis(columns='layer').to_string(float_format='{:.2f}'.format)}")


def draw_runs(curves, trajectories, path):
    """Draws Figures 3a, 3b and S3: a row for each depth and corpus, in which an encoder and a decoder are."""
    row_of = {}  # title -> number of the row of panels
    heading = "Training runs of the paper's authors"
    with figure(path, 6, 3, 1.7, heading, sharex=True, sharey="col") as axes:
        for name, scores in trajectories.groupby("run"):
            model, kind, corpus = name.split("--")
            title = f"{DEPTHS[model]} layers, {CORPORA[corpus]}"
            loss, *panels = row = axes[row_of.setdefault(title, len(row_of))]
            colour = COLOURS[kind == "decoder"]
            put_titles(row, [f"{title}: loss [nats]", *SCORES])
            loss.plot(curves[name], color=colour, lw=1, label=kind)
            loss.plot(curves[f"{name}--symmetric-init"], color=colour, lw=1, ls=":",
                      label=f"{kind}, symmetric initialization")
            for axis, score in zip(panels, SCORES):
                by_step = scores.pivot(index="step", columns="layer", values=score)  # (S, L)
                draw_quartiles(axis, by_step.index, by_step, color=colour)
        for axis, limits in zip(axes[-1], [(0, 5), (-0.8, 0.8), (-1, 0.6)]):  # of their columns
            axis.set_ylim(limits)
            put_steps(axis)
        put_legend(axes[0], ncols=2, title="losses: of training; scores: median over layers, bands: quartiles")


def main(folder=PICTURES):
    models = pandas.read_csv(HERE / "models.csv", dtype=str, keep_default_na=False)
    for score in SCORES:
        for column in score, f"{score}_q1", f"{score}_q3":
            models[column] = models[column].astype(float)
    print(audit(pandas.read_csv(HERE / "printed_tables.csv", dtype=str, keep_default_na=False)))
    print(separation(models))
    curves = pandas.read_csv(RUNS / "loss_curves.csv")  # training losses [nats/token], a column for each run
    curves = curves.set_index(200 * (curves.index + 1))  # one row every 200 updates
    trajectories = pandas.read_csv(RUNS / "trajectories.csv")
    print(table_1(curves, trajectories))
    draw_models(models, folder / "published_scores.png")
    draw_runs(curves, trajectories, folder / "published_runs.png")


if __name__ == "__main__":
    main()
