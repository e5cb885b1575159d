"""
What the scores of W_qk are where there is nothing to find, and what they find where there is something:

    python -m tests.null            # some five minutes of one core

Writes, into data/results:

    null.csv    mean and 2.5 % and 97.5 % quantiles of symmetry, directionality and directionality_eq17 of W_q W_k^T,
                W_q and W_k (n, r) standard normal; r = n is a layer, its heads side by side
    power.csv   k columns are f times as large: how often four statistics of row and column norms are below and above
                such a band of their own
    power.png   the same, drawn

Not a test, but it stands on analyze.py, as nothing in data/ may. `python -m tests.null --plot` draws only the picture.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas
import torch
from tqdm import tqdm

import analyze
from data.results import figures

RESULTS = Path(__file__).parents[1] / "data" / "results"
DRAWS = {64: 4000, 128: 4000, 256: 2000, 512: 600, 768: 300, 1024: 300, 2048: 300, 4096: 300}  # of each n
RANKS = [32, 64, 128]  # and n, as long as that is not too slow
LARGEST_FULL = 1024
SCORES = ["symmetry", "directionality", "directionality_eq17"]

PLANTED_SIZES = [64, 256, 768]
PLANTED_COLUMNS = [1, 4, 16]  # k
PLANTED_FACTORS = [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4]  # f
PLANTED_RANK = 64
PLANTED_DRAWS = 300


def main(argv):
    power = RESULTS / "csv" / "power.csv"
    if "--plot" not in argv:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        null_table().to_csv(RESULTS / "csv" / "null.csv", index=False, float_format="%.4f")
        torch.manual_seed(0)
        power_table().to_csv(power, index=False, float_format="%.3f")
    draw_power(pandas.read_csv(power), RESULTS / "png" / "power.png")


def random_factors(n, r, draws):
    """W_q and W_k, (batch, n, r) each, until there have been `draws` of them; small batches, to stay in the cache."""
    batch = max(1, 2**18 // (n * r))
    for begin in range(0, draws, batch):
        size = min(batch, draws - begin)
        yield torch.randn(size, n, r), torch.randn(size, n, r)


def band(values):
    """The 2.5 % and 97.5 % quantiles of values (draws,)."""
    return np.quantile(values, [0.025, 0.975])


# ---- the null ----------------------------------------------------------------------------------------------------


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
                low, high = band(values)
                row |= {f"{score}_mean": values.mean().item(), f"{score}_q025": low, f"{score}_q975": high}
            rows.append(row)
    return pandas.DataFrame(rows)


# ---- power -------------------------------------------------------------------------------------------------------
#
# Four statistics of the row norms and the column norms (draws, n) of a matrix, negative where columns stand out.


def directionality(rows, cols):
    return analyze.balance(analyze.excess(rows, analyze.GAMMA), analyze.excess(cols, analyze.GAMMA))


def directionality_eq17(rows, cols):
    return analyze.balance(analyze.outliers(rows, analyze.GAMMA), analyze.outliers(cols, analyze.GAMMA))


def largest(rows, cols):
    """Of the rows, log of the largest norm over the median one; less the same of the columns."""
    return (rows.amax(-1) / rows.median(-1).values).log() - (cols.amax(-1) / cols.median(-1).values).log()


def spread(rows, cols):
    """Of the rows, log of the standard deviation of their log norms; less the same of the columns."""
    return rows.log().std(-1).log() - cols.log().std(-1).log()


STATISTICS = {
    "directionality": directionality,
    "directionality_eq17": directionality_eq17,
    "largest norm over the median": largest,
    "spread of log norms": spread,
}


def power_table():
    """How often each statistic is below and above its null band, where k of n columns are f times as large."""
    rows = []
    for n in PLANTED_SIZES:
        bands = {name: band(values) for name, values in planted(n, k=0, f=1.0, draws=4 * PLANTED_DRAWS).items()}
        cases = list(itertools.product(PLANTED_COLUMNS, PLANTED_FACTORS))
        for k, f in tqdm(cases, desc=f"power, n = {n}"):
            for name, values in planted(n, k, f, PLANTED_DRAWS).items():
                low, high = bands[name]
                below, above = (values < low).double().mean().item(), (values > high).double().mean().item()
                rows.append(dict(n=n, k=k, f=f, statistic=name, below=below, above=above))
    return pandas.DataFrame(rows).sort_values(["n", "k", "statistic", "f"])


def planted(n, k, f, draws):
    """{statistic: (draws,)} of random W_q W_k^T whose first k columns are f times as large."""
    values = {name: [] for name in STATISTICS}
    for w_q, w_k in random_factors(n, PLANTED_RANK, draws):
        w_k[:, :k] *= f
        _, rows, cols = analyze.from_gram(w_q, w_k)  # (batch, n)
        for name, statistic in STATISTICS.items():
            values[name].append(statistic(rows, cols))
    return {name: torch.cat(parts) for name, parts in values.items()}


def draw_power(table, path):
    """A panel for each n and k: solid lines say columns, dotted ones rows."""
    titles = []
    with figures.figure(path, [1] * len(PLANTED_COLUMNS), rows=len(PLANTED_SIZES)) as axes:
        for axis, ((n, k), panel) in zip(axes.flat, table.groupby(["n", "k"])):
            for width, colour, name in zip([4, 1.5, 1.5, 1.5], figures.OTHERS, STATISTICS):
                mine = panel[panel.statistic == name]
                axis.plot(mine.f, mine.below, color=colour, lw=width, label=name)  # some lie on each other
                axis.plot(mine.f, mine.above, color=colour, lw=1.5, ls=":")
            axis.axhline(0.025, color="0.8", lw=0.8, zorder=0)  # what chance gives on either side
            axis.set_ylim(-0.03, 1.03)
            titles.append(f"{k} of {n} columns")
        for axis in axes[-1]:
            axis.set_xlabel("f: these columns over the others")
        for axis in axes[:, 0]:
            axis.set_ylabel("share outside of the null's 95 % band")
        last = axes.flat[-1]
        last.plot([], [], color="0.3", label="says columns")
        last.plot([], [], color="0.3", ls=":", label="says rows")
        figures.put_titles(axes.flat, titles)
        figures.put_legend(last)


if __name__ == "__main__":
    main(sys.argv[1:])
