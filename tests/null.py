"""
What the scores of W_qk are where there is nothing to find, and what they find where there is something:

    python -m tests.null            # some five minutes of one core

Writes, into data/results:

    null.csv    mean and 2.5 % and 97.5 % quantiles of symmetry, directionality and directionality_eq17 of W_q W_k^T,
                W_q and W_k (n, r) standard normal; r = n is a layer, its heads side by side
    power.csv   k columns are f times as large: how often four statistics of row and column norms are below and above
                such a band of their own
    power.png   the same, drawn

Not a test, but it stands on analyze.py, as nothing in data/ may.
"""

import csv
from pathlib import Path

import torch
from tqdm import tqdm

import analyze
from data.results.runs import replacing

RESULTS = Path(__file__).parents[1] / "data" / "results"
SIZES = [64, 128, 256, 512, 768, 1024, 2048, 4096]
RANKS = [32, 64, 128]  # and n, as long as that is not too slow
LARGEST_FULL = 1024
SCORES = ["symmetry", "directionality", "directionality_eq17"]

PLANTED_SIZES = [64, 256, 768]
PLANTED_COLUMNS = [1, 4, 16]  # k
PLANTED_FACTORS = [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4]  # f
PLANTED_RANK = 64
PLANTED_DRAWS = 300


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    write_null(RESULTS / "csv" / "null.csv")
    torch.manual_seed(0)
    curves = power_curves()
    write_power(curves, RESULTS / "csv" / "power.csv")
    draw_power(curves, RESULTS / "png" / "power.png")


# ---- the null ----------------------------------------------------------------------------------------------------


def write_null(path):
    columns = ["n", "r", "draws"] + [f"{score}_{what}" for score in SCORES for what in ["mean", "q025", "q975"]]
    rows = []
    cases = [(n, r) for n in SIZES for r in ranks_of(n)]
    for n, r in tqdm(cases, desc="null"):
        draws = draws_of(n)
        row = [n, r, draws]
        for values in random_scores(n, r, draws):
            low, high = band(values)
            row += [f"{x:.4f}" for x in (values.mean().item(), low, high)]
        rows.append(row)
    write_csv(path, [columns, *rows])


def write_csv(path, rows):
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        csv.writer(f).writerows(rows)


def ranks_of(n):
    ranks = [r for r in RANKS if r < n]
    return ranks + [n] if n <= LARGEST_FULL else ranks


def draws_of(n):
    if n <= 128:
        return 4000
    if n <= 256:
        return 2000
    if n <= 512:
        return 600
    return 300


def random_scores(n, r, draws):
    """The three scores of W_q W_k^T for `draws` pairs of random factors, (3, draws)."""
    batches = []
    for w_q, w_k in random_factors(n, r, draws):
        s = analyze.scores(w_q, w_k)
        batches.append(torch.stack([getattr(s, score) for score in SCORES]))
    return torch.cat(batches, 1)


def random_factors(n, r, draws):
    """W_q and W_k, (batch, n, r) each, until there have been `draws` of them; small batches, to stay in the cache."""
    batch = max(1, 2**18 // (n * r))
    for begin in range(0, draws, batch):
        size = min(batch, draws - begin)
        yield torch.randn(size, n, r), torch.randn(size, n, r)


def band(values):
    """The 2.5 % and 97.5 % quantiles of values (draws,)."""
    low, high = values.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


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


def power_curves():
    """{(n, k): {statistic: (share below its null band, share above it), each (len(PLANTED_FACTORS),)}}"""
    curves = {}
    with tqdm(total=len(PLANTED_SIZES) * (1 + len(PLANTED_COLUMNS)), desc="power") as bar:
        for n in PLANTED_SIZES:
            bands = {name: band(values) for name, values in planted(n, k=0, f=1.0, draws=4 * PLANTED_DRAWS).items()}
            bar.update()
            for k in PLANTED_COLUMNS:
                curves[n, k] = shares_outside(n, k, bands)
                bar.update()
    return curves


def shares_outside(n, k, bands):
    below = {name: [] for name in STATISTICS}
    above = {name: [] for name in STATISTICS}
    for f in PLANTED_FACTORS:
        for name, values in planted(n, k, f, PLANTED_DRAWS).items():
            low, high = bands[name]
            below[name].append((values < low).float().mean().item())
            above[name].append((values > high).float().mean().item())
    return {name: (below[name], above[name]) for name in STATISTICS}


def planted(n, k, f, draws):
    """{statistic: (draws,)} of random W_q W_k^T whose first k columns are f times as large."""
    values = {name: [] for name in STATISTICS}
    for w_q, w_k in random_factors(n, PLANTED_RANK, draws):
        w_k[:, :k] *= f
        _, rows, cols = analyze.from_gram(w_q, w_k)  # (batch, n)
        for name, statistic in STATISTICS.items():
            values[name].append(statistic(rows, cols))
    return {name: torch.cat(parts) for name, parts in values.items()}


def write_power(curves, path):
    rows = [["n", "k", "f", "statistic", "below", "above"]]
    for (n, k), shares in curves.items():
        for name, (below, above) in shares.items():
            for f, low, high in zip(PLANTED_FACTORS, below, above):
                rows.append([n, k, f, name, f"{low:.3f}", f"{high:.3f}"])
    write_csv(path, rows)


def draw_power(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = ["#2166ac", "#b2182b", "#1b7837", "#e08214"]
    fig, axes = plt.subplots(len(PLANTED_SIZES), len(PLANTED_COLUMNS), figsize=(10, 8.5), layout="constrained",
                             sharex=True, sharey=True)
    for axis, letter, ((n, k), shares) in zip(axes.flat, "abcdefghi", curves.items()):
        for colour, (name, (below, above)) in zip(colours, shares.items()):
            axis.plot(PLANTED_FACTORS, below, color=colour, lw=1.5, label=name)
            axis.plot(PLANTED_FACTORS, above, color=colour, lw=1.5, ls=":")
        axis.axhline(0.025, color="0.8", lw=0.8, zorder=0)  # what chance gives on either side
        axis.set_title(f"{letter}) {k} of {n} columns", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("f: these columns over the others")
    for axis in axes[:, 0]:
        axis.set_ylabel("share of matrices outside of\nthe null's 95 % band")
    handles, names = axes[0, 0].get_legend_handles_labels()
    handles += [plt.Line2D([], [], color="0.3"), plt.Line2D([], [], color="0.3", ls=":")]
    names += ["says columns", "says rows"]
    fig.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    with replacing(path) as temporary:
        fig.savefig(temporary, dpi=110, format="png")
    plt.close(fig)


if __name__ == "__main__":
    main()
