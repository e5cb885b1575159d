"""What we say of the tables that the authors printed. pytest tests/test_published.py"""

import csv
import itertools

import numpy as np
import pytest

from data.published import __main__ as published

TABLE_1 = {  # Table 1: last loss, with symmetric start, speed-up; there 0 % where the loss was not reached
    "bert_small--encoder--jigsaw": (2.782, 2.758, 0.26), "bert_small--encoder--wikipedia": (0.984, 0.812, 0.73),
    "bert_small--encoder--red_pajama": (1.106, 0.907, 0.69), "bert--encoder--jigsaw": (1.419, 1.430, -np.inf),
    "bert--encoder--wikipedia": (0.256, 0.247, 0.20), "bert--encoder--red_pajama": (0.297, 0.274, 0.35),
}


def test_table_1_comes_out_of_the_authors_files_and_18_rows_of_the_others_are_of_no_wqk(tmp_path, capsys, drawn):
    published.main(tmp_path)
    said, _, of_runs = capsys.readouterr().out.partition("The authors' runs")
    assert "Tables S2 and S3: 52 of 70 rows are of W_qk, and 18 are of another matrix." in said
    rows = [line.split() for line in of_runs.splitlines() if line.startswith("bert")]
    found = {name: list(map(float, cells)) for name, *cells in rows[:12]}
    for name, (plain, symmetric, saved) in TABLE_1.items():
        assert found[name][:2] == pytest.approx([plain, symmetric], abs=0.0011)
        assert found[name][2] == pytest.approx(saved, abs=0.0051)


def test_figure_2_is_of_the_63_models_that_the_paper_draws_and_pairs_are_of_these(tmp_path, capsys, drawn):
    """models.csv has six Pythias more with figure 2, which the authors scored, and which no figure draws."""
    published.main(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    with open(published.HERE / "models.csv", newline="") as file:
        models = [row for row in csv.DictReader(file) if row["figure"] == "2" and row["drawn_as"]]
    assert len(models) == 63 and not any("pythia" in row["name"] for row in models)
    [axis] = drawn[0].axes
    hollow = [bar for bar in axis.containers if bar.lines[0].get_markerfacecolor() == "white"]
    assert (len(axis.containers), len(hollow)) == (63, 21)  # a bar for each model
    for words, chosen in ("of W_qk alone", [row for row in models if row["matrix"] == "wqk"]), ("all rows", models):
        sides = [[row for row in chosen if row["causal"] == causal] for causal in "01"]
        shares = []
        for score in "symmetry", "directionality":
            pairs = [float(one[score]) > float(other[score]) for one, other in itertools.product(*sides)]
            shares.append(f"{score} {np.mean(pairs):.1%}")
        assert f"{words} ({len(sides[0])} x {len(sides[1])}): {', '.join(shares)}" in said
    assert f"Figure 2: {sum(row['matrix'] == 'wqk' for row in models)} of 63 models are scored on W_qk" in said
