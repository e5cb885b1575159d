"""
What the scores are where there is nothing to find: those of W_q W_k^T with random factors (n, r), from null.csv.
"""

import csv
import functools
import math
from pathlib import Path

NULL = Path(__file__).parent / "null.csv"


@functools.cache
def read(path):
    """Its rows, one per size; none where there is no such file."""
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def band(score, n, r):
    """
    (low, high), between which 95 of 100 random matrices are, of the nearest size in null.csv; None without one.

    The bands narrow with n, and hardly depend on r: nearest in n first.
    """
    rows = read(NULL)
    if not rows:
        return None

    def distance(row):
        return abs(math.log(int(row["n"]) / n)), abs(math.log(int(row["r"]) / r))

    nearest = min(rows, key=distance)
    return float(nearest[f"{score}_q025"]), float(nearest[f"{score}_q975"])
