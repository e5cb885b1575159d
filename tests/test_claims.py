"""data/results/claims.py: its numbers once more from the CSV files, by hand. pytest tests/test_claims.py"""

import itertools
import statistics
from pathlib import Path

import pandas
import pytest

from data.results import claims

CSV = Path(claims.__file__).parent / "csv"


@pytest.fixture(scope="module")
def found():
    return claims.find_claims()


def differences(name, arm, baseline, column="val_loss"):
    """Of the last values of a column, seed by seed, read without the code that is tested."""
    table = pandas.read_csv(CSV / f"{name}.csv", comment="#")
    last = table.groupby(["arm", "seed"])[column].last()  # that is not empty
    return (last[arm] - last[baseline]).dropna().tolist()


def share_as_far(values):
    """Of all ways to choose the signs of values, the share with a sum as far from 0."""
    observed = abs(sum(values)) - 1e-9
    sums = [abs(sum(sign * value for sign, value in zip(signs, values)))
            for signs in itertools.product([1, -1], repeat=len(values))]
    return statistics.mean(total >= observed for total in sums)


def the(found, setting, question):
    (claim,) = found[(found.setting == setting) & found.question.str.contains(question)].itertuples()
    return claim


def test_a_claim_of_a_family_of_one_has_the_mean_and_the_p_of_its_pairs(found):
    claim = the(found, "C = 128, tuned", "at a larger scale than 0.02")
    pairs = differences("confirm", "symmetric_128", "random_128_sharp")
    assert claim.n_pairs == len(pairs) == 16 and not claim.causal
    assert claim.difference == pytest.approx(statistics.mean(pairs))
    assert claim.p == claim.p_alone == pytest.approx(share_as_far(pairs))


def test_claims_of_a_family_are_corrected_together_also_with_two_baselines(found):
    one = differences("heads", "symmetric_1_head", "random_1_head")
    eight = differences("heads", "symmetric_8_heads", "random_8_heads")
    smaller, larger = sorted([share_as_far(one), share_as_far(eight)])
    of_heads = [the(found, f"C = 128, {heads}", "both at 0.02").p for heads in ("one head", "eight heads")]
    assert sorted(of_heads) == pytest.approx([2 * smaller, max(2 * smaller, larger)])


def test_what_is_not_shown_counts_in_its_family(found):
    """Of 64 dimensions against 0.02, random is shown, and W_k = W_q and tilted are not."""
    claim = the(found, "C = 64, scale 1", "Random")
    ps = [share_as_far(differences("tuned", arm, "bert_64")) for arm in ("random_64", "symmetric_64", "tilted_64")]
    assert claim.p == pytest.approx(min(1, max(p * (3 - rank) for rank, p in enumerate(sorted(ps)) if p <= ps[0])))


def test_scores_at_the_end_are_compared_in_the_same_way(found):
    ps = []
    for score in "Symmetry", "Directionality":
        for arm, setting in ("decoder", "predicts the next token"), ("decoder_masked", "fills in masks"):
            claim = the(found, setting, score)
            pairs = differences("emergence_again", arm, "encoder", score.lower())
            assert claim.n_pairs == len(pairs) == 8
            assert claim.difference == pytest.approx(statistics.mean(pairs))
            ps.append((claim.p, share_as_far(pairs)))
    smallest = 2 / 2**8
    assert {p for p, _ in ps} == {4 * smallest} and [p for _, p in ps].count(smallest) >= 3


def test_false_discoveries_are_those_of_the_example_of_benjamini_and_hochberg():
    """1995, section 3.2: of these 15 tests the first four are significant, and three after Holm's correction."""
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324,
          0.4262, 0.5719, 0.6528, 0.759, 1]
    assert claims.false_discoveries(ps).tolist() == [True] * 4 + [False] * 11
    assert (claims.compare.holm(ps) < 0.05).tolist() == [True] * 3 + [False] * 12
    assert not claims.false_discoveries([0.2, 0.9, 0.06]).any()


def test_the_table_of_the_readme_is_that_of_the_files(found):
    assert claims.readme(found) == claims.README.read_text()


def test_a_dot_of_the_figure_is_full_where_the_difference_is_significant(found, tmp_path, drawn):
    claims.draw(found, tmp_path / "f.png")
    dots = [line for axis in drawn[0].axes for line in axis.lines if line.get_marker() == "o"]
    significant = list(found.p[found.measure == "val_loss"] < 0.05)
    assert [dot.get_markerfacecolor() != "white" for dot in dots] == significant and len(set(significant)) == 2
