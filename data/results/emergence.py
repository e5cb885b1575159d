"""
Does a causal mask change the symmetry and the directionality that training ends with? The table of README.md.

    python data/results/emergence.py              # from data/results/csv/emergence_again.csv

The score of a run is the median over its layers at the end. Runs of one seed are compared, with exact tests.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data.results import compare
from data.results.report_runs import p_text, signed

FILE = Path(__file__).parent / "csv" / "emergence_again.csv"
SCORES = ["symmetry", "directionality"]
BASELINE = "encoder"
OTHERS = ["decoder", "decoder_masked"]


def last_scores(arms, score):
    """{arm: the score at the end of each of its runs, in the order of seeds}"""
    found = {}
    for name, records in arms.items():
        in_order = sorted(records, key=lambda record: record.seed)
        found[name] = np.array([record.medians[score][-1] for record in in_order])
    return found


def main():
    arms = compare.pool([FILE])
    values = {score: last_scores(arms, score) for score in SCORES}
    differences = {}  # (score, arm) -> its differences from the encoder, by seed
    for score in SCORES:
        for arm in OTHERS:
            differences[score, arm] = values[score][arm] - values[score][BASELINE]
    # All of these comparisons were planned together, so p is corrected for their number.
    corrected = compare.holm([compare.sign_flip(pairs) for pairs in differences.values()])
    p_of = dict(zip(differences, corrected))

    print(f"{'score':16} {'arm':16} {'mean':>6}   less the encoder's [95 of 100]      p")
    for score in SCORES:
        print(f"{score:16} {BASELINE:16} {signed(values[score][BASELINE].mean())}")
        for arm in OTHERS:
            pairs = differences[score, arm]
            low, high = compare.interval(pairs)
            less = f"{signed(pairs.mean())} [{signed(low)}, {signed(high)}]"
            print(f"{score:16} {arm:16} {signed(values[score][arm].mean())} {less:>32} {p_text(p_of[score, arm]):>6}")


if __name__ == "__main__":
    main()
