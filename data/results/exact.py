"""
Exact tests of n differences, one for each pair of runs with the same seed. Three questions, and each has its function:

    sign_flip              could seeds alone have made these differences?
    confidence_interval    which differences do these seeds not exclude?
    holm                   many arms were tried: which differences are still significant?
"""

from math import nan

import numpy as np
import pandas

EXACT_PAIRS = 20  # all 2^n choices of the signs of more differences fill the memory
DRAWS = 2**20  # so of those only these many random choices are tried, always the same ones


def subset_sums(values):
    """Returns the sums of all 2^n subsets of n values, or of DRAWS random ones. The first subset is empty."""
    if len(values) > EXACT_PAIRS:
        generator = np.random.default_rng(0)  # so that the subsets are the same ones for all values
        sums = np.zeros(DRAWS)
        for value in values:
            sums += value * generator.integers(2, size=DRAWS)  # without the value, and with it
        sums[0] = 0
        return sums
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])  # without the value, and with it
    return sums


def sign_flip(differences):
    """
    Returns the exact two-sided p: could seeds alone have made these n differences?

    If the arm and its baseline were the same, each pair could as well have come out the other way round: its difference
    would have the other sign. So all 2^n choices of the signs are equally likely, and p is the share of them whose sum
    is at least as far from 0 as the one we saw. All of one sign is the farthest: p cannot be below 2 / 2^n.
    """
    observed = np.sum(differences)
    sums = observed - 2 * subset_sums(differences)  # a subset has its signs turned
    rounding = 1e-9 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(observed) - rounding))


def confidence_interval(differences):
    """
    Returns the lowest and the highest difference that cannot be excluded. (nan, nan) for fewer than six pairs.

    These are all d such that sign_flip does not reject, at 0.05, the n differences less d.

    Is d excluded? Take d from every difference. If the signs of a subset of m of them are turned, the sum changes by
    -2 (sum of the subset - m d): it does not fall if the mean of the subset is at most d. So the share of subsets with
    such a mean is the one-sided p of d, and d stays if this is at least 0.025 on each side. Therefore sort the means of
    all subsets, and leave out 2.5 of 100 at each end (Hartigan 1969). The empty subset is left out at both ends.
    """
    sums, sizes = subset_sums(differences), subset_sums(np.ones(len(differences)))
    is_empty = sizes == 0  # one of all subsets, but maybe several of random ones
    means = np.sort(sums[~is_empty] / sizes[~is_empty])  # an empty subset has no mean
    n_outside = int(0.05 / 2 * len(sums))  # subsets to leave out at each end, the empty ones among them
    if n_outside == 0:
        return nan, nan
    n_outside -= is_empty.sum()
    return means[n_outside], means[-1 - n_outside]


def holm(ps):
    """
    Returns the p of m tests after Holm's correction, a Series. An arm without pairs has no test, and its nan stays.

    Of 20 arms that are no better than the baseline, one is expected below 0.05. So the smallest p is multiplied by m.
    If it is still significant, m - 1 tests are left, so the next p is multiplied by m - 1, and so on.
    """
    ps = pandas.Series(ps, dtype=float)
    ordered = ps.dropna().sort_values()
    n_left = np.arange(len(ordered), 0, -1)  # m, m - 1, ..., 1
    corrected = (n_left * ordered).cummax()  # a larger p stays at least as large after the correction
    return corrected.clip(upper=1).reindex(ps.index)
