"""data/results/claims.py: its numbers once more from the CSV files, by hand. pytest tests/test_claims.py"""

import itertools
from pathlib import Path

import numpy as np
import pandas
import pytest

from data.results import claims

CSV = Path(claims.__file__).parent / "csv"


@pytest.fixture(scope="module")
def found():
    return claims.find_claims()


def differences(claim):
    """Of the last values of a claim's measure, seed by seed, read without the code that is tested."""
    table = pandas.concat(pandas.read_csv(CSV / f"{name}.csv", comment="#") for name in claim.files.split())
    last = table.groupby(["arm", "seed"])[claim.measure].last()  # that is not empty
    return (last[claim.arm] - last[claim.baseline]).dropna().to_numpy()


def share_as_far(values):
    """Of all ways to choose the signs of values, the share with a sum as far from 0."""
    signs = np.array(list(itertools.product([1, -1], repeat=len(values))))  # (2^n, n)
    return np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9)


def test_every_claim_has_the_mean_of_its_pairs_and_their_p_corrected_for_all_of_its_family(found):
    """Also for the rows that are not shown. Holm: a test counts as many tests as have a p of at least its own."""
    planned = pandas.read_csv(CSV / "claims.csv", keep_default_na=False)
    pairs = [differences(claim) for claim in planned.itertuples()]
    planned["p"] = [share_as_far(values) for values in pairs]
    for claim in found.itertuples():
        values = pairs[claim.Index]
        assert claim.n_pairs == len(values) and claim.difference == pytest.approx(values.mean())
        ps = planned["p"][planned["family"] == claim.family]
        own = planned["p"][claim.Index]
        assert claim.p_alone == pytest.approx(own)
        assert claim.p == pytest.approx(min(1, max((ps >= p).sum() * p for p in ps[ps <= own])))
    assert len(found) < len(planned)


def test_false_discoveries_are_those_of_the_example_of_benjamini_and_hochberg():
    """1995, section 3.2: of these 15 tests the first four are significant, and three after Holm's correction."""
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324,
          0.4262, 0.5719, 0.6528, 0.759, 1]
    assert claims.false_discoveries(ps).tolist() == [True] * 4 + [False] * 11
    assert (claims.holm(ps) < 0.05).tolist() == [True] * 3 + [False] * 12
    assert not claims.false_discoveries([0.2, 0.9, 0.06]).any()


def test_the_readme_has_the_table_and_a_dot_of_the_figure_is_full_where_it_is_significant(found, tmp_path, drawn):
    assert claims.readme(found) == claims.README.read_text()
    claims.draw(found, tmp_path / "f.png")
    dots = [line for axis in drawn[0].axes for line in axis.lines if line.get_marker() == "o"]
    significant = list(found.p[found.measure == "val_loss"] < 0.05)
    assert [dot.get_markerfacecolor() != "white" for dot in dots] == significant and len(set(significant)) == 2
