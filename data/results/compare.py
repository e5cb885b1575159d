"""
Statistics of training runs. An arm is one configuration; it has several runs, which differ only in their seed.

Is an arm better than its baseline? Runs with the same seed saw the same data, so we compare them in pairs: a difference
for each seed, which exact.py tests.
"""

from math import inf, nan
from pathlib import Path

import numpy as np

from config import HOW, ORIGIN
from data.results.exact import interval, sign_flip
from data.results.records import read_comparison, read_run
from data.results.runs import require
from model import BERT_STD

# Losses mean the same, and runs are tested against each other, if they have the same values of these keys: the same
# task, the same data, and the same number of steps.
SAME = ["causal", "objective", "max_iters", "batch_size", "block_size", "eval_interval", "eval_iters",
        "mlm_probability", "sha256", "tokenizer"]
FREE = HOW | {"seed", "data_dir", *ORIGIN}  # runs of one arm may differ in these keys
BERT_STDS = BERT_STD, "init_std"  # of q, k and v in BERT's start; older files have the number
MIN_PAIRS = 6  # with five, all of one sign, p is 2 / 2^5 = 0.06


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Returns {arm: its records}. Raises RunError if two runs of one name are not of one arm."""
    arms = {}
    for path in paths:
        records = [read_run(path)] if Path(path).is_dir() else read_comparison(path)
        for record in records:
            for other in arms.setdefault(record.arm, []):
                require_same_arm(record, other)
            arms[record.arm].append(record)
    return arms


def require_same_arm(record, other):
    """Raises RunError unless the configurations of two runs differ in their seeds, and else in keys of FREE at most."""
    for key in (record.config.keys() | other.config.keys()) - FREE:
        mine, theirs = record.config.get(key), other.config.get(key)
        require(mine == theirs, f"two runs called {record.arm} differ in {key}: {mine}, {theirs}")
    require(record.seed != other.seed, f"two runs called {record.arm} have the seed {record.seed}")


def conditions(config):
    """Returns the keys of SAME with their values in the configuration of a run. Equal ones mean comparable losses."""
    known = dict(sha256=config.get("checksum")) | config  # older files have a checksum
    if known["objective"] == "auto":  # as TrainConfig.predicts_next
        known["objective"] = "next" if known["causal"] else "masked"
    return {key: known[key] for key in SAME}


def find_baselines(arms, chosen=None):
    """
    Returns {arm: its baseline}. Arms with the same conditions are neighbours, and the first of them is their baseline.

    This is the chosen arm, else the first with BERT's random start, else the first.
    """
    config_of = {name: records[0].config for name, records in arms.items()}
    names_of = {}  # values of conditions -> the names of the arms that have them
    for name, config in config_of.items():
        names_of.setdefault(tuple(conditions(config).values()), []).append(name)
    baseline_of = {}
    for names in names_of.values():
        plain = [name for name in names if has_berts_start(config_of[name])]
        candidates = [chosen] if chosen in names else [*plain, *names]
        baseline = candidates[0]
        baseline_of[baseline] = baseline  # in front of the others
        baseline_of |= dict.fromkeys(names, baseline)
    return baseline_of


def has_berts_start(config):
    """Returns whether a run starts as BERT does: an arm of such runs is a baseline."""
    return config["init"] == "random" and config["qk_std"] in BERT_STDS and config["v_std"] in BERT_STDS


def counted(records):
    """Returns the finished runs of an arm, or all of its runs if none has finished."""
    return [record for record in records if record.is_finished()] or records


# ---- an arm and its baseline -------------------------------------------------------------------------------------


def pairs_of(records, others):
    """Returns the pairs (run of an arm, run of its baseline) with the same seed: they saw the same data."""
    of_seed = {other.seed: other for other in counted(others)}
    return [(mine, of_seed[mine.seed]) for mine in counted(records) if mine.seed in of_seed]


def speed_up(loss, baseline_loss):
    """
    Returns 1 - t / T, where T is the last step, and t is the first at which the loss is at or below the last one of the
    baseline. -inf, less than any number, if it never is.

    Losses are Series by step. They are smoothed first: each is the mean of an evaluation and up to two before it.
    """
    smooth = loss.rolling(3, min_periods=1).mean()
    smooth_baseline = baseline_loss.rolling(3, min_periods=1).mean()
    reached = loss.index[smooth <= smooth_baseline.iloc[-1]]
    return 1 - reached[0] / loss.index[-1] if len(reached) else -inf


def compare_pairs(pairs, measure="val_loss"):
    """Returns how much a measure of an arm ends above its baseline: a dict of numbers, nan if there is no pair."""
    if not pairs:
        return dict(n_pairs=0, difference=nan, interval=(nan, nan), p=nan, speed_up=nan)
    differences = np.array([mine.last(measure) - other.last(measure) for mine, other in pairs])
    gains = [speed_up(mine.curve("val_loss"), other.curve("val_loss")) for mine, other in pairs]
    return dict(n_pairs=len(pairs), difference=differences.mean(), interval=interval(differences),
                p=sign_flip(differences), speed_up=np.median(gains))
