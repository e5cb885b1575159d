"""
Statistics of training runs. An arm is one configuration; it has several runs, which differ only in their seed.

Is an arm better than its baseline? Runs with the same seed saw the same data, so we compare them in pairs: a difference
for each seed, which exact.py tests.
"""

from math import inf, nan
from pathlib import Path

import numpy as np
import pandas

from config import HOW
from config.planned import arms_of, column_of, differing_keys, task_of
from data.results.exact import confidence_interval, holm, sign_flip
from data.results.records import read_comparison, read_run
from data.results.runs import require
from model import BERT_STD

FREE = HOW | {"seed", "data_dir"}  # runs of one arm may differ in these keys
MIN_PAIRS = 6  # with five, all of one sign, p is 2 / 2^5 = 0.06


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Returns {arm: its records} and {file: its planned tests}. Raises RunError if a name stands for several arms."""
    arms, plans = {}, {}
    for path in paths:
        if Path(path).is_dir():
            records = [read_run(path)]
        else:
            records, plans[path] = read_comparison(path)
        for record in records:
            for other in arms.setdefault(record.arm, []):
                require_same_arm(record, other)
            arms[record.arm].append(record)
    return arms, plans


def by_task(arms):
    """Returns arms in a list, those of each task together: losses of different tasks cannot be compared."""
    tasks = {}
    for name, records in arms.items():
        tasks.setdefault(str(task_of(records[0].config)), {})[name] = records
    return list(tasks.values())


def require_same_arm(record, other):
    """Raises RunError unless the configurations of two runs differ in their seeds, and else in keys of FREE at most."""
    for key in differing_keys([record.config, other.config]):
        require(key in FREE, f"two runs called {record.arm} differ in {key}: {record.config.get(key)}, "
                f"{other.config.get(key)}")
    require(record.seed != other.seed, f"two runs called {record.arm} have the seed {record.seed}")


def has_berts_start(config):
    """Returns whether a run starts as BERT does: an arm of such runs is a baseline."""
    stds = {config["qk_std"], config["v_std"]}  # older files have numbers here
    return config["init"] == "random" and config["init_std"] == BERT_STD and stds <= {BERT_STD, "init_std"}


def find_baselines(arms, chosen=None, measure="loss"):
    """
    Returns {arm: its baseline}. Arms of the same task are neighbours, and the first of them is their baseline.

    This is the chosen arm, else the first with BERT's random start, else the first. A score means the same in all
    tasks, so there all arms are neighbours.
    """
    baseline_of = {}
    for neighbours in by_task(arms) if measure == "loss" else [arms]:
        plain = [name for name, records in neighbours.items() if has_berts_start(records[0].config)]
        candidates = [chosen] if chosen in neighbours else [*plain, *neighbours]
        baseline = candidates[0]
        baseline_of[baseline] = baseline  # in front of the others
        baseline_of |= dict.fromkeys(neighbours, baseline)
    return baseline_of


def finished(records):
    return [record for record in records if record.is_finished()]


def counted(records):
    """Returns the finished runs of an arm, or all of its runs if none has finished."""
    return finished(records) or records


def at_end(records, column):
    """Returns the last value of a column in each run: a Series by seed, nan where a run has none."""
    return pandas.Series({record.seed: record.last(column) for record in records}, dtype=float)


# ---- an arm and its baseline -------------------------------------------------------------------------------------


def speed_up(loss, baseline_loss, window=3):
    """
    Returns 1 - t / T, where T is the last step, and t is the first at which the loss is at or below the last one of the
    baseline. -inf, less than any number, if it never is.

    Losses are Series by step. They are smoothed first: each is the mean of an evaluation and up to two before it. The
    paper's rule does not smooth: window = 1.
    """
    smooth = loss.rolling(window, min_periods=1).mean()
    smooth_baseline = baseline_loss.rolling(window, min_periods=1).mean()
    reached = loss.index[smooth <= smooth_baseline.iloc[-1]]
    return 1 - reached[0] / loss.index[-1] if len(reached) else -inf


def compare_arms(records, others, column="val_loss"):
    """
    Returns how much a column of an arm ends above that of others, its baseline: a dict of numbers, nan without a pair.

    A pair is a run of each with the same seed: they saw the same data. Both have finished, or the column has its last
    value at the same step.
    """
    of_seed = {other.seed: other for other in counted(others)}
    pairs = [(mine, of_seed[mine.seed]) for mine in counted(records) if mine.seed in of_seed]
    pairs = [(mine, other) for mine, other in pairs
             if mine.last_step(column) == other.last_step(column) or (mine.is_finished() and other.is_finished())]
    gains = [speed_up(mine.curve("val_loss"), other.curve("val_loss")) for mine, other in pairs
             if task_of(mine.config) == task_of(other.config)]  # or one loss says nothing about the other
    found = of_differences([mine.last(column) - other.last(column) for mine, other in pairs])
    return found | dict(speed_up=np.median(gains) if gains else nan)


def of_differences(differences):
    """Returns the number of differences, their mean, its interval and p: a dict of numbers, nan without any."""
    differences = pandas.Series(differences, dtype=float).dropna().to_numpy()  # a run may lack the measure
    if len(differences) == 0:
        return dict(n_pairs=0, difference=nan, interval=(nan, nan), p=nan)
    return dict(n_pairs=len(differences), difference=differences.mean(),
                interval=confidence_interval(differences), p=sign_flip(differences))


# ---- planned tests -----------------------------------------------------------------------------------------------


def do_planned(planned, arms):
    """
    Does the planned tests (config/planned.py) with the finished runs. Returns a dict for each: of of_differences, with
    p after Holm's correction over all of them, and the result.
    """
    found = []
    for measure, left, direction, right in planned:
        test = of_differences(of_side(arms, left, measure) - of_side(arms, right, measure))
        is_predicted = test["difference"] > 0 if direction == ">" else test["difference"] < 0
        found.append(test | dict(result="as predicted" if is_predicted else "the other way"))
    # A test without runs counts as well: the plan is one family, whichever of its runs are there.
    corrected = holm([1 if np.isnan(test["p"]) else test["p"] for test in found])
    for test, p in zip(found, corrected):
        test["p"] = p
        if p >= 0.05:
            test["result"] = "not shown"
    return found


def of_side(arms, side, measure):
    """Returns a measure at the end of 'arm', or its differences of 'arm - arm': a Series by seed, of finished runs."""
    first, *others = [at_end(finished(arms.get(arm, [])), column_of(measure)) for arm in arms_of(side)]
    return first - sum(others)
