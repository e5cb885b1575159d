"""
The table and the figure of README.md: what scale gains, and what W_k = W_q gains, in every setting that was tried.

    python data/results/summary.py                # prints the table, draws data/results/summary.png

starts.md has the whole tables, of which these are lines, and what was predicted of each.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data.results import compare
from data.results.figures import DECODER, ENCODER, figure, put_titles
from data.results.tables import p_text, share, signed

HERE = Path(__file__).parent
LEVEL = 2.8  # [nats/token] the step of leaving the plateau depends on it, which is not shown here


class Comparison(NamedTuple):
    """One line: an arm against its baseline."""

    setting: str
    files: list[str]
    baseline: str
    arm: str
    together: list[str] = []  # the other arms that were tested against this baseline: Holm corrects for them


BY_SCALE = [  # BERT's start, q, k and v at 0.02, against a random start of larger scale: C sigma^2 of q and k is 1 or 1/3
    Comparison("C = 64, 2 layers", ["tuned"], "random_64", "bert_64", ["symmetric_64", "tilted_64"]),
    Comparison("C = 128", ["tuned", "starts"], "random_128_sharp", "random", ["symmetric_128", "tilted_128"]),
    Comparison("C = 256", ["tuned_wide"], "random_256", "bert_256", ["random_256_sharp", "symmetric_256"]),
]
BY_SYMMETRY = [  # W_k = W_q against random, each at the scale that suits it
    Comparison("C = 64, 2 layers", ["tuned"], "random_64", "symmetric_64", ["bert_64", "tilted_64"]),
    Comparison("C = 128", ["confirm"], "random_128_sharp", "symmetric_128"),
    Comparison("C = 256", ["tuned_wide"], "random_256", "symmetric_256", ["bert_256", "random_256_sharp"]),
    Comparison("C = 128, QK-norm", ["parts"], "random_norm", "symmetric_norm", ["tilted_norm"]),
]
BY_SYMMETRY_AT_SMALL_SCALE = [  # W_k = W_q against random, both at 0.02
    Comparison("C = 128, 2 layers", ["starts"], "random", "symmetric",
               ["random_up", "random_qkv", "symmetric_up", "symmetric_qkv", "tilted", "indefinite", "negative",
                "random_self"]),
    Comparison("one head", ["heads"], "random_1_head", "symmetric_1_head"),
    Comparison("eight heads", ["heads"], "random_8_heads", "symmetric_8_heads"),
]
QUESTIONS = {
    "what BERT's 0.02 costs": BY_SCALE,
    "W_k = W_q, each at its best scale": BY_SYMMETRY,
    "W_k = W_q, both at 0.02": BY_SYMMETRY_AT_SMALL_SCALE,
}


def find_outcome(comparison):
    """-> the compare.Outcome of the arm, and whether it is a decoder"""
    arms = compare.pool([HERE / f"{name}.csv" for name in comparison.files])
    arms = compare.choose(arms, [comparison.baseline, comparison.arm, *comparison.together])
    outcomes = compare.find_outcomes(arms, LEVEL, comparison.baseline)
    outcome = next(outcome for outcome in outcomes if outcome.name == comparison.arm)
    return outcome, arms[comparison.arm][0].config["causal"]


def print_table(found):
    """found: {question: [(Comparison, Outcome, causal), ...]}"""
    for question, lines in found.items():
        print(f"{question:36} pairs        less [95 of 100]      p    speed-up")
        for comparison, outcome, _ in lines:
            low, high = outcome.interval
            less = f"{signed(outcome.difference)} [{signed(low)}, {signed(high)}]"
            print(f"    {comparison.setting:32} {outcome.n_pairs:5} {less:>23} {p_text(outcome.p_loss):>6}"
                  f" {share(outcome.speed_up):>11}")


def draw(found, path):
    with figure(path, [1] * len(found), inches=4.2) as axes:
        for axis, lines in zip(axes[0], found.values()):
            for row, (_, outcome, causal) in enumerate(lines):
                colour = DECODER if causal else ENCODER
                told = outcome.p_loss < 0.05  # a full dot: can be told from no difference
                axis.plot(outcome.difference, row, "o", color=colour, fillstyle="full" if told else "none")
                axis.plot(outcome.interval, [row, row], color=colour, lw=1.5)
            axis.axvline(0, color="0.8", lw=0.8, zorder=0)
            settings = [comparison.setting for comparison, _, _ in lines]
            axis.set(yticks=np.arange(len(lines)), yticklabels=settings, ylim=(len(lines) - 0.5, -0.5))
            axis.set(xlabel="loss at the end, less the baseline's\n[nats/token]")
        put_titles(axes[0], found)


def main():
    found = {}
    for question, comparisons in QUESTIONS.items():
        found[question] = [(comparison, *find_outcome(comparison)) for comparison in comparisons]
    print_table(found)
    draw(found, HERE / "summary.png")


if __name__ == "__main__":
    main()
