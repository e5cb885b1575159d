"""
Comparisons of training runs. An arm is one configuration; it has several runs, which differ only in their seed.

A comparison is kept in one small CSV file, which has all that tables and figures show. It has a row for every
evaluation of every run. Comments at its top hold the configuration: first what all arms share, then what is special to
each arm.

Is an arm better than its baseline? Runs with the same seed saw the same data, so we compare them in pairs. If there
were no difference, each pair could as well have come out the other way round. So we count, among all 2^n ways to turn
the n pairs, those with a result at least as large (sign_flip). With many arms, one will stand out by chance. So all p
of a column are corrected together (holm).
"""

import csv
import io
import itertools
import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import TrainConfig
from data.results.runs import read_run, replacing, require

SAME = "max_iters batch_size block_size eval_interval eval_iters mlm_probability checksum tokenizer".split()
FREE = {"seed", "out_dir", "init_from", "device", "threads", "compile", "profile", "keep", "micro_batch_size",
        "data_dir"}
PLAIN = dict(init="random", qk_std=0.02, v_std=0.02, qk_norm=False, diagonal=0.0, constraint="none")  # BERT's start
MEDIANS = ["symmetry", "directionality", "directionality_eq17", "update_symmetry"]  # over layers
BY_LAYER = ["symmetry", "directionality"]
COLUMNS = ["arm", "seed", "step", "train_loss", "val_loss", *MEDIANS, "symmetry_std"]  # and BY_LAYER: symmetry_0, ...
DIGITS = 4  # values are rounded when they are read, so that a run and its rows in a CSV file give the same results


class Record(NamedTuple):
    """One run, as a comparison keeps it."""

    arm: str
    seed: int
    config: dict
    eval_steps: np.ndarray  # the steps of evaluations, (E,)
    train_loss: np.ndarray  # (E,) [nats/token]
    val_loss: np.ndarray  # (E,) [nats/token]
    steps: np.ndarray  # the steps at which scores were written, (S,)
    medians: dict  # name of MEDIANS -> median over layers, (S,)
    symmetry_std: np.ndarray  # standard deviation over the heads of a layer, mean over layers, (S,)
    layers: dict  # name of BY_LAYER -> (S, L)


def condense(run):
    """runs.Run -> Record"""
    medians = {name: np.round(np.median(run.layers[name], axis=1), DIGITS) for name in MEDIANS}
    layers = {name: np.round(run.layers[name], DIGITS) for name in BY_LAYER}
    spread = np.round(run.heads["symmetry"].std(axis=2).mean(axis=1), DIGITS)
    return Record(
        arm=run.name,
        seed=run.config["seed"],
        config=run.config,
        eval_steps=run.log["step"].astype(int),
        train_loss=np.round(run.log["train_loss"], DIGITS),
        val_loss=np.round(run.log["val_loss"], DIGITS),
        steps=run.steps,
        medians=medians,
        symmetry_std=spread,
        layers=layers,
    )


# ---- the file of a comparison ------------------------------------------------------------------------------------


def write_comparison(path, arms):
    """arms: {name: its records}"""
    records = [record for records in arms.values() for record in records]
    n_layer = max(record.config["n_layer"] for record in records)
    layer_columns = [f"{name}_{layer}" for layer in range(n_layer) for name in BY_LAYER]
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        f.write("\n".join(config_lines(arms)) + "\n")
        out = csv.DictWriter(f, COLUMNS + layer_columns)
        out.writeheader()
        for record in records:
            out.writerows(record_rows(record))


def config_lines(arms):
    """'# config {...}' with the keys that all arms share, and '# config of NAME {...}' with the others, as JSON."""
    configs = {}
    for name, records in arms.items():
        configs[name] = {key: value for key, value in records[0].config.items() if key not in FREE}
    first = next(iter(configs.values()))
    shared = {}
    for key, value in first.items():
        if all(config.get(key) == value for config in configs.values()):
            shared[key] = value
    lines = [f"# config {json.dumps(shared)}"]
    for name, config in configs.items():
        own = {key: value for key, value in config.items() if key not in shared}
        lines.append(f"# config of {name} {json.dumps(own)}")
    return lines


def record_rows(record):
    """A dict for every step that has a loss, or scores, or both. Cells without a value are left out."""
    rows = {}
    for step in sorted({*record.eval_steps.tolist(), *record.steps.tolist()}):
        rows[step] = dict(arm=record.arm, seed=record.seed, step=step)
    for i, step in enumerate(record.eval_steps.tolist()):
        rows[step] |= dict(train_loss=text(record.train_loss[i]), val_loss=text(record.val_loss[i]))
    for i, step in enumerate(record.steps.tolist()):
        rows[step] |= {name: text(record.medians[name][i]) for name in MEDIANS}
        rows[step]["symmetry_std"] = text(record.symmetry_std[i])
        for name in BY_LAYER:
            for layer, value in enumerate(record.layers[name][i]):
                rows[step][f"{name}_{layer}"] = text(value)
    return list(rows.values())


def text(x):
    return "" if math.isnan(x) else f"{x:.{DIGITS}f}"


def is_comparison(path):
    with open(path) as f:
        return f.readline().startswith("# config ")


def read_comparison(path):
    """The records in a CSV file. Keys that are newer than the file have their defaults."""
    shared, own, lines = {}, {}, []
    for line in Path(path).read_text().splitlines(keepends=True):
        comment = re.match(r"# config (?:of (\S+) )?(\{.*\})$", line)
        if comment is None:
            lines.append(line)
        elif comment[1] is None:
            shared = json.loads(comment[2])
        else:
            own[comment[1]] = json.loads(comment[2])
    by_run = {}
    table = csv.DictReader(io.StringIO("".join(lines)))
    missing = {*COLUMNS} - {*(table.fieldnames or [])}
    require(not missing, f"{path} lacks the columns {', '.join(sorted(missing))}: write it again with --csv")
    for row in table:
        by_run.setdefault((row["arm"], int(row["seed"])), []).append(row)
    records = []
    for (arm, seed), rows in by_run.items():
        config = asdict(TrainConfig()) | shared | own[arm] | dict(seed=seed)
        records.append(to_record(arm, seed, config, rows))
    return records


def to_record(arm, seed, config, rows):
    """A Record from the rows of one run in a CSV file."""
    evaluations = [row for row in rows if row["val_loss"]]
    scored = [row for row in rows if row["symmetry"]]
    layers = {}
    for name in BY_LAYER:
        layers[name] = np.array([numbers(scored, f"{name}_{layer}") for layer in range(config["n_layer"])]).T
    return Record(
        arm=arm,
        seed=seed,
        config=config,
        eval_steps=numbers(evaluations, "step").astype(int),
        train_loss=numbers(evaluations, "train_loss"),
        val_loss=numbers(evaluations, "val_loss"),
        steps=numbers(scored, "step").astype(int),
        medians={name: numbers(scored, name) for name in MEDIANS},
        symmetry_std=numbers(scored, "symmetry_std"),
        layers=layers,
    )


def numbers(rows, column):
    return np.array([float(row[column] or "nan") for row in rows])


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Folders of runs, and files of comparisons -> {arm: its records}. RunError if they cannot be compared."""
    records = []
    for path in paths:
        if Path(path).is_file():
            records += read_comparison(path)
        else:
            records.append(condense(read_run(path)))
    arms = {}
    for record in records:
        for key in SAME:
            mine, first = record.config[key], records[0].config[key]
            require(mine == first, f"{record.arm} has {key} = {mine}, {records[0].arm} has {first}: these are not runs "
                                   "of one comparison")
        for other in arms.setdefault(record.arm, []):
            require_same_arm(record, other)
        arms[record.arm].append(record)
    return arms


def require_same_arm(record, other):
    for key in record.config.keys() - FREE:
        mine, theirs = record.config[key], other.config[key]
        require(mine == theirs, f"two runs called {record.arm} differ in {key}: {mine}, {theirs}")
    require(record.seed != other.seed, f"two runs called {record.arm} have the seed {record.seed}")


def choose(arms, names):
    """The arms with these names, in this order; all arms if there are no names."""
    for name in names or []:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    return {name: arms[name] for name in names or arms}


def task(config):
    """What a model has to do, in words. Losses of different tasks are not compared."""
    objective = config["objective"]
    if objective == "auto":
        objective = "next" if config["causal"] else "masked"
    return f"{'decoder' if config['causal'] else 'encoder'}, {objective}"


def baselines(arms, chosen=None):
    """
    The baseline of every task -> {task: name of an arm}. It is the chosen arm, else the arm with BERT's plain random
    start, else the first arm.
    """
    require(chosen is None or chosen in arms, f"no arm is called {chosen}: there are {', '.join(arms)}")
    found = {}
    for name, records in arms.items():
        found.setdefault(task(records[0].config), name)
    for name, records in reversed(arms.items()):
        config = records[0].config
        if all(config[key] == value for key, value in PLAIN.items()):
            found[task(config)] = name
    if chosen:
        found[task(arms[chosen][0].config)] = chosen
    return found


def arrange(arms, chosen=None):
    """The same arms, sorted: the arms of one task stand together, its baseline first."""
    arranged = {}
    for same_task, baseline in baselines(arms, chosen).items():
        arranged[baseline] = arms[baseline]
        for name, records in arms.items():
            if task(records[0].config) == same_task:
                arranged[name] = records
    return arranged


# ---- a loss curve in one number ----------------------------------------------------------------------------------


def smooth(loss):
    """The mean of each evaluation and up to two before it. nan does not count."""
    means = []
    for i in range(len(loss)):
        window = loss[max(0, i - 2) : i + 1]
        window = window[np.isfinite(window)]
        means.append(window.mean() if len(window) else math.nan)
    return np.array(means)


def first_step(steps, loss, target):
    """The first step at which the loss is at or below the target. inf, later than any step, if it never is."""
    reached = np.flatnonzero(loss <= target)
    return float(steps[reached[0]]) if len(reached) else math.inf


def speed_up(steps, loss, baseline_loss):
    """
    (T - t) / T, where T is the last step, and t is the first evaluation at which the smoothed loss is at or below the
    last smoothed loss of the baseline. -inf, less than any number, if it never is.
    """
    return (steps[-1] - first_step(steps, smooth(loss), smooth(baseline_loss)[-1])) / steps[-1]


# ---- chance ------------------------------------------------------------------------------------------------------


def sign_flip(differences):
    """
    Exact two-sided p of n paired differences: there are 2^n ways to choose their signs, and p is the share of them with
    a sum at least as far from 0. It cannot be below 2 / 2^n.
    """
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    observed = abs(sum(differences))
    rounding = 1e-9 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= observed - rounding))


def interval(differences):
    """
    All d that sign_flip does not reject at 0.05 once d is taken off the n differences -> (lowest, highest).

    Turning some of them makes the sum larger, or leaves it, where the mean of those that are turned is at most d. So the
    one-sided p of d is the share of subsets with a mean of at most d, and the ends are themselves means of subsets
    (Hartigan 1969). Fewer than six pairs reject nothing: (nan, nan).
    """
    sums = np.zeros(1)  # of all 2^n subsets; the first is empty
    sizes = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums, sums + difference])
        sizes = np.concatenate([sizes, sizes + 1])
    means = np.sort(sums[1:] / sizes[1:])
    n_outside = int(0.05 / 2 * len(sums))  # on each side
    if n_outside == 0:
        return math.nan, math.nan
    return means[n_outside - 1], means[-n_outside]


def sign_flip_of_ranks(ours, theirs):
    """
    The same for pairs of steps. A step may be inf, "not reached", so each step is replaced by its rank among those of
    both sides: inf is later than any step, and it does not matter by how much. Equal steps share their mean rank.
    """
    both = np.concatenate([ours, theirs])
    ranks = np.array([(both < x).sum() + ((both == x).sum() + 1) / 2 for x in both])
    return sign_flip(ranks[: len(ours)] - ranks[len(ours) :])


def holm(ps):
    """p of m tests -> p after Holm's correction: the smallest is multiplied by m, the next by m - 1, and so on."""
    corrected = np.full(len(ps), math.nan)
    order = [i for i in np.argsort(ps) if not math.isnan(ps[i])]
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(order) - rank) * ps[i])  # a larger p stays at least as large after the correction
        corrected[i] = min(1.0, largest)
    return corrected


# ---- the table of a comparison -----------------------------------------------------------------------------------


class Arm(NamedTuple):
    """A line of the table. A pair is a run of this arm and a run of its baseline with the same seed."""

    name: str
    baseline: str  # the name of its baseline; its own name if it is one
    losses: np.ndarray  # at the end of each run, (seeds,) [nats/token]
    first_steps: np.ndarray  # the first step at which the smoothed loss is at or below the level; inf: never. (seeds,)
    symmetry: float  # at the end, median over layers, mean over seeds
    directionality: float
    update_symmetry: float  # median over layers, then over the run, mean over seeds
    unfinished: int  # the number of runs that have not finished; they count only if no run has finished
    # Against the baseline; nan if this is a baseline itself, or shares no seed with it:
    n_pairs: int = 0
    difference: float = math.nan  # of the losses at the end, mean over pairs [nats/token]
    interval: tuple = (math.nan, math.nan)  # the differences that this arm's pairs, by themselves, do not exclude
    p_loss: float = math.nan
    p_step: float = math.nan
    speed_up: float = math.nan  # median over pairs; -inf: not reached


def compare(arms, level, chosen=None):
    """{arm: its records} -> a list of Arm. Each column of p is corrected for the number of arms."""
    reference = baselines(arms, chosen)
    lines = []
    for name, records in arms.items():
        baseline = reference[task(records[0].config)]
        lines.append(compare_arm(name, records, baseline, arms[baseline], level))
    p_loss = holm([line.p_loss for line in lines])
    p_step = holm([line.p_step for line in lines])
    return [line._replace(p_loss=p, p_step=q) for line, p, q in zip(lines, p_loss, p_step)]


def compare_arm(name, records, baseline, others, level):
    """One line of the table. others: the records of the baseline."""
    n_unfinished = len(records) - len(finished(records))
    records = counted(records)
    line = Arm(
        name=name,
        baseline=baseline,
        losses=np.array([record.val_loss[-1] for record in records]),
        first_steps=np.array([left_at(record, level) for record in records]),
        symmetry=np.mean([record.medians["symmetry"][-1] for record in records]),
        directionality=np.mean([record.medians["directionality"][-1] for record in records]),
        update_symmetry=np.mean([median_change(record) for record in records]),
        unfinished=n_unfinished,
    )
    pairs = []
    for mine in records:
        for other in counted(others):
            if mine.seed == other.seed:
                pairs.append((mine, other))
    if name == baseline or not pairs:
        return line
    require(len(pairs) <= 20, f"{name} and {baseline} share {len(pairs)} seeds; the exact test takes 20 at the most")
    differences = np.array([mine.val_loss[-1] - other.val_loss[-1] for mine, other in pairs])
    our_steps = [left_at(mine, level) for mine, _ in pairs]
    their_steps = [left_at(other, level) for _, other in pairs]
    gains = [speed_up(mine.eval_steps, mine.val_loss, other.val_loss) for mine, other in pairs]
    return line._replace(
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


def left_at(record, level):
    return first_step(record.eval_steps, smooth(record.val_loss), level)


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
