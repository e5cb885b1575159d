"""
Comparisons of training runs. An arm is one configuration; it has several runs, which differ only in their seed.

Is an arm better than its baseline? Runs with the same seed saw the same data, so we compare them in pairs: a difference
for each seed. Three questions follow, and each has its function:

    sign_flip    could seeds alone have made these differences?
    interval     which differences do these seeds not exclude?
    holm         many arms were tried: which differences are still significant?

The loss of a small encoder falls at first, then hardly changes for hundreds of steps (the plateau), then falls again. A
run has left the plateau when its loss comes to a given level.
"""

import itertools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from config import TrainConfig
from data.results.records import FREE, read_comparison, read_run
from data.results.runs import require

# Losses mean the same, and runs are tested against each other, if they have the same values of these keys: the same
# task, the same data, and the same number of steps.
SAME = ["causal", "objective", "max_iters", "batch_size", "block_size", "eval_interval", "eval_iters",
        "mlm_probability", "checksum", "tokenizer"]
# BERT's start is the default of all of these keys.
PLAIN = {key: getattr(TrainConfig(), key) for key in ("init", "qk_std", "v_std", "qk_norm", "diagonal", "constraint")}
MAX_PAIRS = 20  # the exact test makes an array of 2^20 numbers


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Folders of runs, and files of comparisons -> {arm: its records}. RunError if two of one name are not one arm."""
    records = []
    for path in paths:
        if Path(path).is_file():
            records += read_comparison(path)
        else:
            records.append(read_run(path))
    arms = {}
    for record in records:
        for other in arms.setdefault(record.arm, []):
            require_same_arm(record, other)
        arms[record.arm].append(record)
    return arms


def require_same_arm(record, other):
    """The configurations of two runs of one arm differ in their seeds, and else in keys of FREE at most."""
    for key in record.config.keys() - FREE:
        mine, theirs = record.config[key], other.config[key]
        require(mine == theirs, f"two runs called {record.arm} differ in {key}: {mine}, {theirs}")
    require(record.seed != other.seed, f"two runs called {record.arm} have the seed {record.seed}")


def choose(arms, names):
    """The arms with these names, in this order; all arms if there are no names."""
    for name in names or []:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    return {name: arms[name] for name in names or arms}


def conditions(config):
    """The values of SAME in the configuration of a run (a dict), as a tuple. If they are equal, losses are compared."""
    objective = config["objective"]
    if objective == "auto":  # as TrainConfig.predicts_next
        objective = "next" if config["causal"] else "masked"
    known = config | dict(objective=objective)
    return tuple(known[key] for key in SAME)


def arrange(arms, chosen=None):
    """
    The same arms, sorted: those with the same conditions stand together, and the first of them is their baseline. This
    is the chosen arm, else the first with BERT's plain random start, else the first.
    """
    require(chosen is None or chosen in arms, f"no arm is called {chosen}: there are {', '.join(arms)}")
    names_of = {}  # conditions -> the names of the arms that have them
    for name, records in arms.items():
        names_of.setdefault(conditions(records[0].config), []).append(name)
    arranged = {}
    for names in names_of.values():
        plain = [name for name in names if is_plain(arms[name][0].config)]
        baseline = names[0]
        if chosen in names:
            baseline = chosen
        elif plain:
            baseline = plain[0]
        arranged[baseline] = arms[baseline]
        for name in names:
            arranged[name] = arms[name]  # the baseline stays where it is
    return arranged


def is_plain(config):
    is_scratch = config["init_from"] in ("scratch", "resume")
    return is_scratch and all(config[key] == value for key, value in PLAIN.items())


# ---- a loss curve in one number ----------------------------------------------------------------------------------


def smooth(loss):
    """The mean of each evaluation and up to two before it."""
    return np.array([loss[max(0, i - 2) : i + 1].mean() for i in range(len(loss))])


def first_step(steps, loss, target):
    """The first step at which the loss is at or below the target. inf, later than any step, if it never is."""
    reached = np.flatnonzero(loss <= target)
    return float(steps[reached[0]]) if len(reached) else math.inf


def leaving_step(record, level):
    """The first step at which the smoothed loss is at or below the level: the run has left the plateau. inf: never."""
    return first_step(record.eval_steps, smooth(record.val_loss), level)


def speed_up(steps, loss, baseline_loss):
    """
    (T - t) / T, where T is the last step, and t is the first evaluation at which the smoothed loss is at or below the
    last smoothed loss of the baseline. -inf, less than any number, if it never is. nan if there is no step after 0.
    """
    T = steps[-1]
    if T == 0:
        return math.nan
    t = first_step(steps, smooth(loss), target=smooth(baseline_loss)[-1])
    return (T - t) / T


# ---- chance ------------------------------------------------------------------------------------------------------


def sign_flip(differences):
    """
    Could seeds alone have made these n differences? -> exact two-sided p.

    If the arm and its baseline were the same, each pair could as well have come out the other way round: its difference
    would have the other sign. So all 2^n choices of the signs are equally likely, and p is the share of them whose sum
    is at least as far from 0 as the one we saw. All of one sign is the farthest: p cannot be below 2 / 2^n.
    """
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])  # of all choices so far, twice as many
    observed = abs(sum(differences))
    rounding = 1e-9 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= observed - rounding))


def sign_flip_of_ranks(ours, theirs):
    """
    sign_flip for pairs of steps. A step may be inf, "not passed", so each step is replaced by its rank among those of
    both sides: inf is later than any step, and it does not matter by how much. Equal steps share their mean rank.
    """
    ranks = pandas.Series([*ours, *theirs]).rank().to_numpy()
    return sign_flip(ranks[: len(ours)] - ranks[len(ours) :])


def interval(differences):
    """
    The differences that cannot be excluded: all d such that sign_flip does not reject, at 0.05, the n differences less
    d -> (lowest, highest). (nan, nan) for fewer than six pairs, which reject nothing.

    Is d excluded? Take d from every difference. If the signs of a subset of m of them are turned, the sum changes by
    -2 (sum of the subset - m d): it does not fall if the mean of the subset is at most d. So the share of subsets with
    such a mean is the one-sided p of d, and d stays if this is at least 0.025 on each side. Therefore sort the means of
    all subsets, and leave out 2.5 of 100 at each end (Hartigan 1969). The empty subset is left out at both ends.
    """
    sums = np.zeros(1)  # of all 2^n subsets; the first is empty
    sizes = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums, sums + difference])
        sizes = np.concatenate([sizes, sizes + 1])
    means = np.sort(sums[1:] / sizes[1:])  # the empty subset has no mean
    n_outside = int(0.05 / 2 * len(sums))  # subsets to leave out at each end, the empty one among them
    if n_outside == 0:
        return math.nan, math.nan
    return means[n_outside - 1], means[-n_outside]  # so n_outside - 1 means are outside of each


def holm(ps):
    """
    p of m tests -> p after Holm's correction. A baseline has no test, and its nan stays.

    Of 20 arms that are no better than the baseline, one is expected below 0.05. So the smallest p is multiplied by m:
    then the chance that it is below 0.05 is 0.05 at most. If it is significant, m - 1 tests are left that may be of
    nothing, so the next p is multiplied by m - 1, and so on.
    """
    corrected = np.full(len(ps), math.nan)
    order = [i for i in np.argsort(ps) if not math.isnan(ps[i])]
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(order) - rank) * ps[i])  # a larger p stays at least as large after the correction
        corrected[i] = min(1.0, largest)
    return corrected


# ---- the table of a comparison -----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What came of one arm: a line of the table. A pair is a run of it and a run of its baseline with the same seed."""

    name: str  # of the arm
    baseline: str  # the name of its baseline; its own name if it is one
    losses: np.ndarray  # at the end of each run, (seeds,) [nats/token]
    first_steps: np.ndarray  # the first step at which the smoothed loss is at or below the level; inf: never. (seeds,)
    symmetry: float  # at the end, median over layers, mean over seeds
    directionality: float
    update_symmetry: float  # median over layers, then over the run, mean over seeds
    n_unfinished: int  # the number of runs that have not finished; they count only if no run has finished
    # Against the baseline; nan if this is a baseline itself, or shares no seed with it:
    n_pairs: int = 0
    difference: float = math.nan  # of the losses at the end, mean over pairs [nats/token]
    interval: tuple = (math.nan, math.nan)  # the differences that this arm's pairs, by themselves, do not exclude
    p_loss: float = math.nan
    p_step: float = math.nan
    speed_up: float = math.nan  # median over pairs; -inf: not reached


def find_outcomes(arms, level):
    """
    {arm: its records}, as `arrange` returns them -> a list of Outcome. level: a loss [nats/token]. Each column of p is
    corrected for the number of arms.
    """
    baseline_of = {}  # conditions -> the first arm that has them
    outcomes = []
    for name, records in arms.items():
        baseline = baseline_of.setdefault(conditions(records[0].config), name)
        outcome = outcome_of(name, baseline, records, level)
        if name != baseline:
            outcome = compare_with(outcome, records, arms[baseline], level)
        outcomes.append(outcome)
    ps_loss = holm([outcome.p_loss for outcome in outcomes])
    ps_step = holm([outcome.p_step for outcome in outcomes])
    corrected = []
    for outcome, p_loss, p_step in zip(outcomes, ps_loss, ps_step):
        corrected.append(outcome._replace(p_loss=p_loss, p_step=p_step))
    return corrected


def outcome_of(name, baseline, records, level):
    """What can be said of an arm by itself."""
    n_unfinished = len(records) - len(finished(records))
    records = counted(records)
    return Outcome(
        name=name,
        baseline=baseline,
        losses=np.array([record.val_loss[-1] for record in records]),
        first_steps=np.array([leaving_step(record, level) for record in records]),
        symmetry=np.mean([record.medians["symmetry"][-1] for record in records]),
        directionality=np.mean([record.medians["directionality"][-1] for record in records]),
        update_symmetry=np.mean([median_change(record) for record in records]),
        n_unfinished=n_unfinished,
    )


def compare_with(outcome, records, others, level):
    """The same outcome, with what can be said against the baseline. others: the records of the baseline."""
    of_seed = {other.seed: other for other in counted(others)}
    pairs = [(mine, of_seed[mine.seed]) for mine in counted(records) if mine.seed in of_seed]
    if not pairs:
        return outcome
    require(len(pairs) <= MAX_PAIRS, f"{outcome.name} and {outcome.baseline} share {len(pairs)} seeds; the exact test "
                                     f"takes {MAX_PAIRS} at the most")
    differences = np.array([mine.val_loss[-1] - other.val_loss[-1] for mine, other in pairs])
    our_steps = [leaving_step(mine, level) for mine, _ in pairs]
    their_steps = [leaving_step(other, level) for _, other in pairs]
    gains = [speed_up(mine.eval_steps, mine.val_loss, other.val_loss) for mine, other in pairs]
    return outcome._replace(
        n_pairs=len(pairs),
        difference=differences.mean(),
        interval=interval(differences),
        p_loss=sign_flip(differences),
        p_step=sign_flip_of_ranks(our_steps, their_steps),
        speed_up=np.median(gains),
    )


def finished(records):
    return [record for record in records if record.eval_steps[-1] == record.config["max_iters"]]


def counted(records):
    """The finished runs of an arm; all of its runs if none has finished."""
    return finished(records) or records


def median_change(record):
    """The symmetry of the change of W_qk between two rows of scores, median over the run; nan if there is one row."""
    changes = record.medians["update_symmetry"]
    changes = changes[np.isfinite(changes)]
    return np.median(changes) if len(changes) else math.nan


def chance_speed_ups(records):
    """The speed-up of each run of an arm over each other run of it: what chance alone gives."""
    gains = []
    for mine, other in itertools.permutations(records, 2):
        gains.append(speed_up(mine.eval_steps, mine.val_loss, other.val_loss))
    return gains
