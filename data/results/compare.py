"""
Statistics of training runs. An arm is one configuration; its runs differ only in their seed. Runs with the same seed
saw the same data, so arms are compared in pairs: a difference for each seed.
"""

import functools
from math import inf, nan
from pathlib import Path

import numpy as np
import pandas

from config import HOW
from config.plan import differing_keys, task_of
from data.results.records import read_comparison, read_run
from data.results.runs import require
from model import BERT_STD

FREE = HOW | {"seed", "data_dir"}  # runs of one arm may differ in these keys
MIN_PAIRS = 6  # with five, all of one sign, p is 2 / 2^5 = 0.06
EXACT_PAIRS = 20  # all 2^n choices of the signs of more differences fill the memory
DRAWS = 100_000  # so of those only these many random choices are tried, always the same ones


def subset_sums(values):
    """Returns the sums of all 2^n subsets of n values, or of DRAWS random ones. The first subset is empty."""
    if len(values) > EXACT_PAIRS:
        is_in = np.random.default_rng(0).integers(2, size=(DRAWS, len(values)))
        is_in[0] = 0
        return is_in @ values
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])  # without the value, and with it
    return sums


def sign_flip(differences):
    """
    Returns the exact two-sided p: could seeds alone have made these n differences?

    If two arms were the same, each pair could as well have come out the other way round: its difference would have the
    other sign. So all 2^n choices of the signs are equally likely, and p is the share of them whose sum is at least as
    far from 0 as the one we saw. All of one sign is the farthest: p cannot be below 2 / 2^n.
    """
    observed = np.sum(differences)
    sums = observed - 2 * subset_sums(differences)  # a subset has its signs turned
    rounding = 1e-9 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(observed) - rounding))


def confidence_interval(differences):
    """
    Returns the lowest and the highest difference d that sign_flip does not reject, at 0.05, if d is taken from every
    difference. (nan, nan) for fewer than six pairs.

    If then the signs of a subset of m are turned, the sum changes by -2 (sum of the subset - m d): it does not fall if
    the mean of the subset is at most d. So the share of subsets with such a mean is the one-sided p of d. Therefore
    sort the means of all subsets, and leave out 2.5 of 100 at each end, the empty subset at both (Hartigan 1969).
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
    Returns the p of m tests after Holm's correction, a Series.

    Of 20 tests without any effect one is expected below 0.05. So the smallest p is multiplied by m. If it is still
    significant, m - 1 tests are left, so the next p is multiplied by m - 1, and so on.
    """
    ordered = pandas.Series(ps, dtype=float).sort_values()
    n_left = np.arange(len(ordered), 0, -1)  # m, m - 1, ..., 1
    corrected = (n_left * ordered).cummax()  # a larger p stays at least as large after the correction
    return corrected.clip(upper=1).sort_index()


def of_differences(differences):
    """Returns the number of differences, their mean, its interval and p: a dict of numbers, nan without any."""
    differences = pandas.Series(differences, dtype=float).dropna().to_numpy()  # a run may lack the measure
    if len(differences) == 0:
        return dict(n_pairs=0, difference=nan, interval=(nan, nan), p=nan)
    return dict(n_pairs=len(differences), difference=differences.mean(),
                interval=confidence_interval(differences), p=sign_flip(differences))


def speed_up(loss, baseline_loss, window=3):
    """
    Returns the share of updates that an arm saves: 1 - t / T, where T is the last step of the baseline, and t the first
    at which the loss is at or below the baseline's last one. -inf if it never is, nan if the arm has not come to T.

    Losses are Series by step. They are smoothed first: each is the mean of an evaluation and up to two before it. The
    paper's rule does not smooth: window = 1.
    """
    last_step = baseline_loss.index[-1]
    target = baseline_loss.rolling(window, min_periods=1).mean().iloc[-1]
    smooth = loss.rolling(window, min_periods=1).mean().loc[:last_step]
    reached = smooth.index[smooth <= target]
    if len(reached):
        return 1 - reached[0] / last_step
    return -inf if loss.index[-1] >= last_step else nan


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Returns {arm: its records}, of folders of runs and of CSV files. Raises RunError if a name is of several arms."""
    arms = {}
    for path in paths:
        for record in [read_run(path)] if Path(path).is_dir() else read_comparison(path):
            for other in arms.setdefault(record.arm, []):
                for key in differing_keys([record.config, other.config]):
                    require(key in FREE, f"two runs called {record.arm} differ in {key}: {record.config.get(key)}, "
                            f"{other.config.get(key)}")
                require(record.seed != other.seed, f"two runs called {record.arm} have the seed {record.seed}")
            arms[record.arm].append(record)
    return arms


def by_task(arms):
    """Returns arms in a list, those of each task together: losses of different tasks cannot be compared."""
    tasks = {}
    for name, records in arms.items():
        tasks.setdefault(str(task_of(records[0].config)), {})[name] = records
    return list(tasks.values())


def find_baselines(arms, chosen, measure):
    """
    Returns {arm: its baseline}: of the arms of its task the chosen one, else the first with BERT's random start, else
    the first. A score means the same in all tasks, so there it is one baseline for all arms.
    """
    baseline_of = {}
    for neighbours in by_task(arms) if measure == "loss" else [arms]:
        plain = [name for name, records in neighbours.items() if has_berts_start(records[0].config)]
        candidates = [chosen] if chosen in neighbours else [*plain, *neighbours]
        baseline_of |= dict.fromkeys(neighbours, candidates[0])
    return baseline_of


def has_berts_start(config):
    stds = {config["qk_std"], config["v_std"]}  # older files have numbers here
    return config["init"] == "random" and config["init_std"] == BERT_STD and stds <= {BERT_STD, "init_std"}


def at_end(records, measure):
    """Returns the last value of a measure in each run: a Series by seed, nan where a run has none."""
    return pandas.Series({record.seed: record.last(measure) for record in records}, dtype=float)


def common_step(arms):
    """Returns the last step at which all runs have a loss and scores. Raises RunError if there is none."""
    runs = [record for records in arms.values() for record in records]
    steps = [run.curve("loss").index.intersection(run.curve("symmetry").index) for run in runs]
    common = functools.reduce(lambda some, others: some.intersection(others), steps)
    require(len(common), "these runs have no step in common")
    return int(common.max())


def compare_arms(records, others, measure):
    """
    Returns how much a measure of an arm ends above that of others, its baseline: a dict of numbers, nan without a pair.

    A pair is a run of each with the same seed: they saw the same data. Both have finished, or the measure has its last
    value at the same step. For updates saved the arm may be at another step, if both have the same task.
    """
    of_seed = {other.seed: other for other in others}
    pairs = [(mine, of_seed[mine.seed]) for mine in records if mine.seed in of_seed]
    differences = [mine.last(measure) - other.last(measure) for mine, other in pairs
                   if mine.last_step(measure) == other.last_step(measure)
                   or (mine.is_finished() and other.is_finished())]
    losses = [(mine.curve("loss"), other.curve("loss")) for mine, other in pairs
              if task_of(mine.config) == task_of(other.config)]
    found = of_differences(differences)
    for name, window in dict(saved=3, saved_by_paper=1).items():
        found[name] = np.median([speed_up(*pair, window) for pair in losses]) if losses else nan
    return found
