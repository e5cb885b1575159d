"""Scores that are kept as files: tables, training runs, public models, pictures. pytest tests/test_published.py"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analyze
from data.published import __main__ as published

ROOT = Path(analyze.__file__).parent
SCORES = published.SCORES
SHARED = ROOT.parent / "shared"
needs_shared = pytest.mark.skipif(not (SHARED / "published").exists(), reason=(
    "needs the layers' scores of https://github.com/matteosaponati/attention-geometry (_results), or the BERT-tiny of "
    "https://github.com/narger-ef/FHE-BERT-Tiny"))

MODELS = list(pd.read_csv(ROOT / "data/published/models.csv", keep_default_na=False).itertuples())
PRINTED = list(pd.read_csv(ROOT / "data/published/printed_tables.csv", keep_default_na=False).itertuples())


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


def test_the_command_says_what_is_of_wqk_draws_every_point_once(tmp_path, capsys, drawn):
    published.main(tmp_path / "scores.png")
    lines, [picture] = capsys.readouterr().out.splitlines(), drawn
    assert "Of 70 rows 52 are of W_qk, and 18 are of another matrix." in lines
    assert lines[58].split() == ["57", "LLaMA3-8B", "0.00", "0.01", "random_init"]
    of_figure_2 = [model for model in MODELS if model.figure == "2"]
    of_wqk = [model for model in of_figure_2 if model.matrix == "wqk"]
    shares = [f"{pair_share(models, score):.1%}" for models in (of_wqk, of_figure_2) for score in SCORES]
    assert re.findall(r"(?:symmetry|directionality) (\d+\.\d%)", "\n".join(lines)) == shares
    models = [model for figure in ("2", "S1", "S2") for model in MODELS if model.figure == figure and not model.repeats]
    assert len(models) == 180 - 7
    for column, score in enumerate(SCORES):
        axes = picture.axes[column:6:2]
        dots = [bar.lines[0] for axis in axes for bar in axis.containers]
        for dot, model in zip(dots, models, strict=True):
            assert dot.get_xydata().tolist() == [[model.params, getattr(model, score)]]


# ---- the authors' training runs ----------------------------------------------------------------------------------


TABLE_1 = {  # Table 1: last loss, with symmetric start, speed-up; there 0 % where the loss was not reached
    "bert_small--encoder--jigsaw": (2.782, 2.758, 0.26), "bert_small--encoder--wikipedia": (0.984, 0.812, 0.73),
    "bert_small--encoder--red_pajama": (1.106, 0.907, 0.69), "bert--encoder--jigsaw": (1.419, 1.430, -np.inf),
    "bert--encoder--wikipedia": (0.256, 0.247, 0.20), "bert--encoder--red_pajama": (0.297, 0.274, 0.35),
}


def test_table_1_and_the_scores_at_the_end_come_out_of_the_authors_files(tmp_path, capsys):
    published.main(tmp_path / "scores.png")
    lines = capsys.readouterr().out.partition("The authors' runs")[2].splitlines()
    rows = [line.split() for line in lines if line.startswith("bert")]
    found = {name: list(map(float, cells)) for name, *cells in rows[:12]}
    for name, (plain, symmetric, saved) in TABLE_1.items():
        assert found[name][:2] == pytest.approx([plain, symmetric], abs=0.0011)
        assert found[name][2] == pytest.approx(saved, abs=0.0051)
    table = pd.read_csv(published.HERE / "trajectories.csv")
    scores = table.groupby(["run", "step"])[SCORES].median()
    for name, cells in found.items():
        assert cells[-2:] == pytest.approx(list(scores.loc[name, 200_000]), abs=0.00051)
    for name, *cells in rows[12:]:  # the layers of three encoders
        layers = table.query("run == @name and step == 200_000")["symmetry"]
        assert list(map(float, cells)) == pytest.approx(list(layers), abs=0.0051)
    assert len(rows) == 15


# ---- public models -----------------------------------------------------------------------------------------------


def test_numbers_of_public_models_fit_together():
    table = pd.read_csv(ROOT / "data/results/csv/public.csv", keep_default_na=False)
    assert not table[["path", "stack"]].duplicated().any()
    assert table["symmetry"].between(table["symmetry_q1"], table["symmetry_q3"]).all()
    assert table["symmetry_beyond"].between(0, table["layers"]).all()
    assert (table["symmetry_chance"] < table["symmetry_95"]).all()
