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
SCORES = ["symmetry", "directionality", "directionality_eq17"]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    null_table().to_csv(NULL, index=False, float_format="%.4f")


def random_factors(n, r, draws):
    """W_q and W_k, (batch, n, r) each, until there have been `draws` of them; small batches, to stay in the cache."""
    batch = max(1, 2**18 // (n * r))
    for begin in range(0, draws, batch):
        size = min(batch, draws - begin)
        yield torch.randn(size, n, r), torch.randn(size, n, r)


def null_table():
    rows = []
    for n, draws in tqdm(DRAWS.items(), desc="null"):
        ranks = [r for r in RANKS if r < n]
        if n <= LARGEST_FULL:
            ranks.append(n)
        for r in ranks:
            parts = [analyze.scores(w_q, w_k) for w_q, w_k in random_factors(n, r, draws)]
            row = dict(n=n, r=r, draws=draws)
            for score in SCORES:
                values = torch.cat([getattr(part, score) for part in parts])  # (draws,)
                low, high = np.quantile(values, [0.025, 0.975])
                row |= {f"{score}_mean": values.mean().item(), f"{score}_q025": low, f"{score}_q975": high}
            rows.append(row)
    return pandas.DataFrame(rows)


if __name__ == "__main__":
    main()
