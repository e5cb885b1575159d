"""
The statistics of a comparison: exact sign flips of pairs, their interval, Holm's correction, and the steps saved. Two
runs of one seed are a pair. What both share, such as an easy first batch, is not in their difference.
"""

import numpy as np
import pandas

MIN_PAIRS = 6  # with five, all of one sign, p is 2 / 2^5 = 0.06


def subset_sums(values):
    """Returns the sums of all 2^n subsets of n values, the empty one first. Example: [1, 2] -> [0, 1, 2, 3]"""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])  # without the value, and with it
    return sums


def sign_flip(differences):
    """Returns the exact two-sided p: could seeds alone have made these n differences?"""
    # If two arms were the same, each pair could as well have come out the other way round, and its difference would
    # have the other sign. So all 2^n choices of the signs are equally likely, and p is the share of them whose sum is
    # at least as far from 0 as the one we saw. If all have one sign, no other sum is as far: p is at least 2 / 2^n.
    observed = np.sum(differences)
    sums = observed - 2 * subset_sums(differences)  # a subset has its signs turned
    rounding = 1e-9 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(observed) - rounding))


def confidence_interval(differences):
    """Returns the ends of the 95 % confidence interval, (nan, nan) for fewer than six pairs."""
    # They are the lowest and the highest d that sign_flip does not reject at 0.05, if d is subtracted from every
    # difference. Turn the signs of m of these numbers. Their sum changes by -2 (sum of the m differences - m d), so it
    # does not fall if the mean of the m differences is at most d. The share of subsets with such a mean is the
    # one-sided p of d (Hartigan 1969, "Using Subsample Values as Typical Values", JASA 64).
    # Eight differences have 256 subsets. 2.5 % of these are 6: the interval begins at the 6th mean of the other 255
    sums, sizes = subset_sums(differences), subset_sums(np.ones(len(differences)))
    means = np.sort(sums[1:] / sizes[1:])  # the empty subset has none
    n_outside = int(0.05 / 2 * len(sums)) - 1  # leave out 2.5 of 100 at each end; the empty one counts at both
    if n_outside < 0:
        return np.nan, np.nan
    return means[n_outside], means[-1 - n_outside]


def holm(ps):
    """Returns the p of m tests after Holm's correction, a Series: [0.01, 0.04, 0.03] -> [0.03, 0.06, 0.06]"""
    # Of 20 tests without any effect one is expected below 0.05. So the smallest p is multiplied by m. If it is still
    # significant, m - 1 tests are left, so the next p is multiplied by m - 1, and so on.
    ordered = pandas.Series(ps, dtype=float).sort_values()
    n_left = np.arange(len(ordered), 0, -1)  # m, m - 1, ..., 1
    corrected = (n_left * ordered).cummax()  # a larger p stays at least as large after the correction
    return corrected.clip(upper=1).sort_index()


def of_differences(differences):
    """Returns a dict: how many differences, how many with the sign of the mean, the mean, its interval, and p."""
    values = differences.dropna()  # a run may lack the measure
    mean = values.mean()
    n_agree = (np.sign(values) == np.sign(mean)).sum()
    return dict(n_pairs=len(values), n_agree=n_agree, difference=mean, interval=confidence_interval(values),
                p=sign_flip(values))


def speed_up(loss, baseline_loss, window=3):
    """Returns the share of updates that an arm saves. -inf: it never gets there; nan: the baseline made no step."""
    # It is 1 - t / T. T is the last step of the baseline, and t the first at which the loss is at or below the last one
    # of the baseline, each a mean of some evaluations, because one may be low by chance. The paper's Table 1 has one.
    loss, baseline_loss = loss.loc[1:], baseline_loss.loc[1:]  # step 0, where the loss is far higher, is in no mean
    if baseline_loss.empty:
        return np.nan
    window = min(window, max(1, len(baseline_loss) // 3))  # at most a third of the evaluations
    target = baseline_loss.rolling(window).mean().iloc[-1]
    smooth = loss.rolling(window).mean()
    return 1 - first_step(smooth, target) / baseline_loss.index[-1]


def first_step(loss, target):
    """Returns the first step at which a loss, a Series by step, is at or below a target, or inf if it never is."""
    reached = loss.index[loss <= target]
    return reached[0] if len(reached) else np.inf


def crossing(loss, target):
    """Returns the step at which the line from the last loss above a target to the next one reaches it, or inf."""
    loss = loss.dropna()
    step = first_step(loss, target)
    if step == np.inf:
        return step
    next_and_last = loss.loc[:step].iloc[:-3:-1]  # at the target or below, and above; at step 0 there is one alone
    return np.interp(target, next_and_last, next_and_last.index)
