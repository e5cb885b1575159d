"""The scores of public models that come inside Python packages, and their picture. pytest tests/test_public.py"""

import pandas as pd

from data.pretrained import public


def test_numbers_of_a_row_fit_together_and_only_what_predicts_the_next_token_sees_what_came_before():
    table = pd.read_csv(public.RESULTS / "csv" / "public.csv", keep_default_na=False)
    assert not table[["path", "stack"]].duplicated().any()
    assert table["symmetry"].between(table["symmetry_q1"], table["symmetry_q3"]).all()
    assert table["beyond"].between(0, table["layers"]).all()
    assert (table["chance"] < table["chance_95"]).all() and (table["head_chance"] < table["head_chance_95"]).all()
    assert ((table["sees"] == "before") == table["objective"].str.startswith("next")).all()
    assert ((table["sees"] == "cross") == (table["stack"] == "cross-attention")).all()


def test_a_picture_has_a_blue_dot_for_an_encoder_and_a_purple_one_for_a_decoder(tmp_path, drawn):
    table = pd.read_csv(public.RESULTS / "csv" / "public.csv")
    public.draw(table, tmp_path / "public.png")
    for sees, colour in dict(both="#2166ac", before="#8e3b9e").items():
        for axis, column in zip(drawn[0].axes, ["symmetry", "head_symmetry"]):
            dots = [line.get_xdata().item() for line in axis.lines if line.get_color() == colour]
            assert sorted(dots) == sorted(table.loc[table["sees"] == sees, column])
