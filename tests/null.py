"""
What the scores of W_qk are where there is nothing to find:

    python -m tests.null            # some minutes of one core

Writes data/results/csv/null.csv: mean and 2.5 % and 97.5 % quantiles of symmetry, directionality and
directionality_eq17 of W_q W_k^T, W_q and W_k (n, r) standard normal; r = n is a layer, its heads side by side.

Not a test, but it stands on analyze.py, as nothing in data/ may.
"""

from pathlib import Path

import numpy as np
import pandas
import torch
from tqdm import tqdm

import analyze

NULL = Path(__file__).parents[1] / "data" / "results" / "csv" / "null.csv"
DRAWS = {64: 4000, 128: 4000, 256: 2000, 512: 600, 768: 300, 1024: 300, 2048: 300, 4096: 300}  # of each n
RANKS = [32, 64, 128]  # and n, as long as that is not too slow
LARGEST_FULL = 1024


def null_row(n, r):
    batch = max(1, 2**18 // (n * r))  # small, to stay in the cache
    parts = []
    for begin in range(0, DRAWS[n], batch):
        size = min(batch, DRAWS[n] - begin)
        parts.append(analyze.scores(torch.randn(size, n, r), torch.randn(size, n, r)))
    row = dict(n=n, r=r, draws=DRAWS[n])
    for score in analyze.Scores._fields:
        values = torch.cat([getattr(part, score) for part in parts])  # (draws,)
        low, high = np.quantile(values, [0.025, 0.975])
        row |= {f"{score}_mean": values.mean().item(), f"{score}_q025": low, f"{score}_q975": high}
    return row


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [(n, r) for n in DRAWS for r in sorted({*RANKS, n}) if r < n or r == n <= LARGEST_FULL]
    rows = [null_row(n, r) for n, r in tqdm(sizes, desc="null")]
    pandas.DataFrame(rows).to_csv(NULL, index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
