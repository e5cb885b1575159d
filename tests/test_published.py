"""What the authors published, read again: tables, training runs, pictures. pytest tests/test_published.py"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color

import analyze
from data import drawing, options
from data.chance import SCORES
from data.pretrained import scores_table
from data.results import compare
from data.results.csv.published import draw

ROOT = Path(analyze.__file__).parent
HERE = ROOT / "data" / "results" / "csv" / "published"
SHARED = ROOT.parent / "shared"
needs_shared = pytest.mark.skipif(not (SHARED / "published").exists(), reason=(
    "needs the layers' scores of https://github.com/matteosaponati/attention-geometry (_results), or the BERT-tiny of "
    "https://github.com/narger-ef/FHE-BERT-Tiny"))

MODELS = list(pd.read_csv(ROOT / "data/pretrained/models.csv", keep_default_na=False).itertuples())
PRINTED = list(pd.read_csv(ROOT / "data/pretrained/printed_tables.csv", keep_default_na=False).itertuples())


@needs_shared
def test_a_real_fine_tuned_bert_tiny_scores_as_the_published_base_model():
    table = analyze.score_model(SHARED / "weights" / "bert-tiny-sst2-qk").table
    assert list(table.symmetry) == pytest.approx([0.620, 0.917], abs=0.01)


# ---- Tables S2 and S3, row by row --------------------------------------------------------------------------------


@needs_shared
def test_every_printed_number_is_the_median_of_the_published_scores_that_its_row_names():
    table = pd.read_csv(SHARED / "published" / "scores.csv").query("modality == 'language'")
    table = table[(table["family"] != "GPT") | ~table["model"].str.startswith("gpt-")]  # see README.md
    layers = {of_model: rows[SCORES] for of_model, rows in table.groupby(["model", "matrix"])}
    first = {}  # the symmetries of all layers, and the first row that has them
    for row in PRINTED:
        scores = layers[row.published_as, row.matrix]
        symmetry, directionality = scores.median()
        assert symmetry == pytest.approx(row.symmetry, abs=0.00501), row
        if row.directionality:  # Table S3 lacks two rows
            assert directionality == pytest.approx(float(row.directionality), abs=0.00501), row
        repeats = first.setdefault(tuple(scores["symmetry"].round(3)), row.row)
        assert row.repeats == ("" if repeats == row.row else str(repeats))


# ---- the points of the figures, and what was scored --------------------------------------------------------------


@needs_shared
def test_models_csv_holds_the_medians_and_quartiles_of_the_published_layers():
    layers = pd.read_csv(SHARED / "published" / "scores.csv").groupby(["family", "model", "matrix"])[SCORES]
    found = {(matrix, *np.percentile(rows, [50, 25, 75], axis=0).round(4).T.flat) for (_, _, matrix), rows in layers}
    for model in MODELS:
        quartiles = [getattr(model, score + which) for score in SCORES for which in ("", "_q1", "_q3")]
        assert (model.matrix, *quartiles) in found, model.name


def pair_share(models, score):
    """Of all pairs of an encoder and a decoder, the share in which the encoder has the higher score."""
    encoders, decoders = [[getattr(model, score) for model in models if model.causal == causal] for causal in (0, 1)]
    return np.greater.outer(encoders, decoders).mean()


def test_paper_offline_draws_every_point_once_and_crosses_out_what_is_not_of_wqk(analysed, drawn, monkeypatch):
    monkeypatch.setattr(analyze, "score_model", None)  # nothing may be scored
    out = analysed("--paper", "--offline", "--plot=f.png").out
    assert "Of 70 rows 52 are of W_qk, and 18 are not" in out
    assert out.splitlines()[58].split() == ["57", "LLaMA3-8B", "0.00", "0.01", "an", "untrained", "model"]
    assert options.parse(["--paper"], "", 2.0).csv == options.PAPER  # if no --csv is given
    of_figure_2 = [model for model in MODELS if model.figure == "2"]
    of_wqk = [model for model in of_figure_2 if model.matrix == "wqk"]
    shares = [pair_share(models, score) for models in (of_wqk, of_figure_2) for score in SCORES]
    assert re.findall(r"(?:symmetry|directionality) (\d+\.\d%)", out) == [f"{share:.1%}" for share in shares]
    models = [model for figure in ("2", "S1", "S2") for model in MODELS if model.figure == figure and not model.repeats]
    assert len(models) == 180 - 7
    for column, score in enumerate(SCORES):
        axes = drawn[0].axes[column:6:2]
        dots = [bar.lines[0] for axis in axes for bar in axis.containers]
        for dot, model in zip(dots, models, strict=True):
            assert dot.get_xydata().tolist() == [[model.params, getattr(model, score)]]
            assert same_color(dot.get_color(), drawing.DECODER if model.causal else drawing.ENCODER)
        points = [line for axis in axes for line in axis.lines if len(line.get_xdata()) == 1]
        assert sum(line.get_marker() == "x" for line in points) == 33


def test_our_scores_stand_beside_the_published_ones_whatever_else_is_in_the_file(tmp_path, analysed, drawn):
    for model, source, symmetry in [("gpt2", "openai-community/gpt2", 0.1), ("mine", "/tmp/mine", 0.1),
                                    ("gpt2", "openai-community/gpt2@step1", 0.9)]:  # a step of its training
        rows = [dict(layer=layer, symmetry=symmetry * layer) for layer in range(3)]
        zeros = dict.fromkeys(analyze.Scores._fields, 0.0)  # a fork may have a score more
        common = zeros | dict(model=model, source=source, stack="", causal=1, params=9, head=None, n=768, r=64,
                              layout="", gamma=2.0, limit=0.1, directionality=-0.5)
        scores_table.add_scores(tmp_path / "s.csv", scores_table.score_table(rows, common))
    lines = [line.split() for line in analysed("--paper", "--offline", "--plot=f.png").out.splitlines()]
    (line,) = [words for words in lines if words[:2] == ["gpt2", "3"]]
    assert [line[i] for i in (2, 6, 7, 10)] == ["0.10", "0.15", "-0.50", "-0.58"]  # ours and the published ones
    assert ["mine", "3"] not in [words[:2] for words in lines]
    ends = [line.get_ydata() for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 2]
    assert any(list(y) == pytest.approx([0.1496, 0.1]) for y in ends)  # published, joined to ours


# ---- the authors' training runs ----------------------------------------------------------------------------------


TABLE_1 = {  # Table 1: last loss, with symmetric start, speed-up; there 0 % where the loss was not reached
    "bert_small--encoder--jigsaw": (2.782, 2.758, 0.26), "bert_small--encoder--wikipedia": (0.984, 0.812, 0.73),
    "bert_small--encoder--red_pajama": (1.106, 0.907, 0.69), "bert--encoder--jigsaw": (1.419, 1.430, -np.inf),
    "bert--encoder--wikipedia": (0.256, 0.247, 0.20), "bert--encoder--red_pajama": (0.297, 0.274, 0.35),
}


def test_table_1_and_the_scores_at_the_end_come_out_of_the_authors_files(tmp_path, capsys, drawn):
    draw.main(tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    found = {name: list(map(float, numbers)) for name, *numbers in lines}
    for name, (plain, symmetric, speed_up) in TABLE_1.items():
        assert found[name][:2] == pytest.approx([plain, symmetric], abs=0.0011)
        assert found[name][2] == pytest.approx(speed_up, abs=0.0051)
    scores = pd.read_csv(HERE / "trajectories.csv").groupby(["run", "step"])[SCORES].median()
    assert len(found) == 12
    for name, numbers in found.items():
        assert numbers[-2:] == pytest.approx(list(scores.loc[name, 200_000]), abs=0.00051)
    expected = scores.loc["bert--encoder--jigsaw", "symmetry"]
    (line,) = [line for line in drawn[1].axes[1].lines if same_color(line.get_color(), drawing.ENCODER)]
    assert list(line.get_xdata()) == list(expected.index) and line.get_ydata() == pytest.approx(expected.to_numpy())


@needs_shared
def test_models_of_24_layers_are_trained_on_the_corpus_of_the_authors_project_page():
    (text,) = [path.read_text() for path in SHARED.glob("paper/000_*.txt")]
    rows = text.rpartition("24-layer model")[2].partition("</table>")[0]
    (plain_on, plain), (symmetric_on, symmetric) = re.findall(r">([\w ]+\w)(?: \(.*?)?</td>.*?>([\d.]+)</td>", rows)
    page = (ROOT / "data/results/paper.md").read_text()
    corpus = re.search(r"bert_large_symm; do run \$model (\w+) ", page)[1]
    assert plain_on == symmetric_on and plain_on.replace(" ", "").lower() == corpus
    assert f"{plain} and {symmetric} on {plain_on.replace(' ', '')}" in page


def test_the_layers_of_the_authors_and_of_our_runs_are_drawn_one_by_one(tmp_path, drawn):
    """Of a comparison with two layers, whose last scores are in its file."""
    masks = HERE.parent / "masks.csv"
    arms, _ = compare.pool([masks])
    draw.draw_depth(dict(half=arms["half"]), tmp_path / "f.png")
    theirs, ours = [[line.get_ydata()[-1] for line in drawn[0].axes[i].lines[:-1]] for i in (2, 3)]
    scores = pd.read_csv(HERE / "trajectories.csv").query("run == 'bert_small--encoder--wikipedia' and step == 200_000")
    assert theirs == pytest.approx(list(scores["symmetry"]))
    ends = pd.read_csv(masks, comment="#").query("arm == 'half' and step == 1600")
    assert ours == pytest.approx([ends["symmetry_0"].mean(), ends["symmetry_1"].mean()])
