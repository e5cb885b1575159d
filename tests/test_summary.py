"""data/results/summary.py: its numbers once more from the CSV files, by hand. pytest tests/test_summary.py"""

import csv
import itertools
import statistics
from pathlib import Path

import pytest

from data.results import emergence, summary

ROOT = Path(__file__).parents[1]


def last_losses(name, arm):
    """{seed: the last validation loss} of an arm, read without the code that is tested."""
    with open(ROOT / "data" / "results" / "csv" / f"{name}.csv", newline="") as f:
        lines = [line for line in f if not line.startswith("#")]
    losses = {}
    for row in csv.DictReader(lines):
        if row["arm"] == arm and row["val_loss"]:
            losses[row["seed"]] = float(row["val_loss"])  # rows are in the order of steps
    return losses


def last_scores(name, arm, score):
    """{seed: the last median of a score over layers} of an arm, in the same way."""
    with open(ROOT / "data" / "results" / "csv" / f"{name}.csv", newline="") as f:
        lines = [line for line in f if not line.startswith("#")]
    return {row["seed"]: float(row[score]) for row in csv.DictReader(lines) if row["arm"] == arm and row[score]}


def differences(name, arm, baseline):
    ours, theirs = last_losses(name, arm), last_losses(name, baseline)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def share_as_far(values):
    """Of all ways to choose the signs of values, the share with a sum as far from 0."""
    observed = abs(sum(values)) - 1e-9
    sums = [abs(sum(sign * value for sign, value in zip(signs, values)))
            for signs in itertools.product([1, -1], repeat=len(values))]
    return statistics.mean(total >= observed for total in sums)


def line_of(setting, question):
    lines = {line.setting: line for line in summary.QUESTIONS[question]}
    return summary.find(lines[setting])


def test_a_line_of_one_test_has_the_mean_and_the_p_of_its_pairs():
    found = line_of("C = 128, tuned", "W_k = W_q against random, larger scale")
    pairs = differences("confirm", "symmetric_128", "random_128_sharp")
    assert found.outcome.n_pairs == len(pairs) == 16 and not found.causal
    assert found.outcome.difference == pytest.approx(statistics.mean(pairs))
    assert found.outcome.p_loss == pytest.approx(share_as_far(pairs))


def test_lines_that_were_tested_together_are_corrected_together_also_with_two_baselines():
    one = differences("heads", "symmetric_1_head", "random_1_head")
    eight = differences("heads", "symmetric_8_heads", "random_8_heads")
    smaller, larger = sorted([share_as_far(one), share_as_far(eight)])
    expected = [2 * smaller, max(2 * smaller, larger)]
    question = "W_k = W_q against random, both at 0.02"
    found = [line_of(f"C = 128, {heads}", question).outcome.p_loss for heads in ("one head", "eight heads")]
    assert sorted(found) == pytest.approx(expected)


def test_the_readme_has_the_table_as_it_is_printed(capsys):
    found = {question: [summary.find(line) for line in lines] for question, lines in summary.QUESTIONS.items()}
    summary.print_table(found)
    printed = capsys.readouterr().out
    assert printed in (ROOT / "data" / "results" / "README.md").read_text()


def test_the_figure_has_a_dot_for_every_line_and_it_is_full_where_a_difference_can_be_told(tmp_path, monkeypatch):
    drawn = {}

    def keep(axes, titles):
        for axis, title in zip(axes, titles):
            drawn[title] = [line for line in axis.lines if line.get_marker() == "o"]

    monkeypatch.setattr(summary, "put_titles", keep)
    question = "W_k = W_q against random, larger scale"
    lines = [line_of("C = 128, tuned", question), line_of("C = 256, tuned", question)]
    summary.draw({question: lines}, tmp_path / "summary.png")
    full, hollow = drawn[question]
    assert full.get_fillstyle() == "full" and hollow.get_fillstyle() == "none"
    assert full.get_xdata()[0] == pytest.approx(lines[0].outcome.difference)
    assert (tmp_path / "summary.png").stat().st_size > 1000


# ---- data/results/emergence.py -----------------------------------------------------------------------------------


def test_the_readme_has_the_table_of_emergence_and_this_the_means_and_tests_of_its_pairs(capsys):
    emergence.main()
    printed = capsys.readouterr().out
    assert printed in (ROOT / "data" / "results" / "README.md").read_text()
    shares = []
    for score in "symmetry", "directionality":
        encoder = last_scores("emergence_again", "encoder", score)
        for arm in "decoder", "decoder_masked":
            other = last_scores("emergence_again", arm, score)
            pairs = [other[seed] - encoder[seed] for seed in encoder]
            assert len(pairs) == 8
            shares.append(share_as_far(pairs))
            (line,) = [line.split() for line in printed.splitlines() if line.split()[:2] == [score, arm]]
            assert float(line[2]) == pytest.approx(statistics.mean(other.values()), abs=6e-4)
            assert float(line[3]) == pytest.approx(statistics.mean(pairs), abs=6e-4)
            assert line[-1] == "0.031"
    assert max(4 * min(shares), max(shares)) == 0.03125  # Holm, where three of four are at the smallest share, 2 / 2^8
