"""
The scores that chance alone gives: those of W_q W_k^T with random factors (n, r), from null.csv.
"""

import csv
import functools
import math
from pathlib import Path

NULL = Path(__file__).parent / "null.csv"
GAMMA = 2.0  # of the directionalities in this file


@functools.cache
def read(path):
    """The rows of the file, one for each size; none if there is no file."""
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def band(score, n, r, gamma=GAMMA):
    """
    (low, high): 95 of 100 random matrices have a score in this range, at the nearest size in null.csv. None without it,
    and for directionality with another gamma.

    The range narrows with n, and hardly depends on r. So we look for the nearest n first, then for the nearest r.
    """
    rows = read(NULL)
    has_gamma = score != "symmetry"
    if not rows or (has_gamma and gamma != GAMMA):
        return None

    def distance(row):
        return abs(math.log(int(row["n"]) / n)), abs(math.log(int(row["r"]) / r))

    nearest = min(rows, key=distance)
    return float(nearest[f"{score}_q025"]), float(nearest[f"{score}_q975"])
