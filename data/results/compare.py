"""
Runs beside each other: the arms of a comparison, a run per seed, and what tells an arm from its baseline.

All that tables and figures show of a comparison is one small CSV file: a row per evaluation of a run, and above them,
in comments, the configuration: what all arms share, and what is an arm's own.

How an arm is told from its baseline: run by run, in pairs of one seed, which saw the same data. Were there no
difference, each pair could as well have come out the other way round; so all 2^n ways are counted (sign_flip), and as
one arm of many will stand out by chance, all p of a column are corrected together (holm).
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
DIGITS = 4  # of what is kept; rounded before any use, so that a run and its rows in a CSV say the same


class Record(NamedTuple):
    """What is kept of one run."""

    arm: str
    seed: int
    config: dict
    eval_steps: np.ndarray  # (E,)
    train_loss: np.ndarray  # (E,), nats/token, as the next
    val_loss: np.ndarray
    steps: np.ndarray  # of scores, (S,)
    medians: dict  # of MEDIANS -> (S,)
    symmetry_std: np.ndarray  # over the heads of a layer, mean over layers, (S,)
    layers: dict  # of BY_LAYER -> (S, L)


def condense(run):
    """runs.Run -> Record"""
    medians = {name: np.round(np.median(run.layers[name], axis=1), DIGITS) for name in MEDIANS}
    layers = {name: np.round(run.layers[name], DIGITS) for name in BY_LAYER}
    spread = np.round(run.heads["symmetry"].std(axis=2).mean(axis=1), DIGITS)
    train_loss, val_loss = np.round(run.log["train_loss"], DIGITS), np.round(run.log["val_loss"], DIGITS)
    eval_steps = run.log["step"].astype(int)
    return Record(run.name, run.config["seed"], run.config, eval_steps, train_loss, val_loss, run.steps, medians,
                  spread, layers)


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
    """'# config {...}' with what all arms share, and '# config of NAME {...}' with what they do not, as JSON."""
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
    """A dict for every step at which there is a loss, or scores, or both; what there is not is left out."""
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
    """-> its records. A key that is newer than the file has its default."""
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
    evaluations = [row for row in rows if row["val_loss"]]
    scored = [row for row in rows if row["symmetry"]]
    layers = {}
    for name in BY_LAYER:
        layers[name] = np.array([numbers(scored, f"{name}_{layer}") for layer in range(config["n_layer"])]).T
    return Record(arm, seed, config, numbers(evaluations, "step").astype(int), numbers(evaluations, "train_loss"),
                  numbers(evaluations, "val_loss"), numbers(scored, "step").astype(int),
                  {name: numbers(scored, name) for name in MEDIANS}, numbers(scored, "symmetry_std"), layers)


def numbers(rows, column):
    return np.array([float(row[column] or "nan") for row in rows])


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Folders of runs, and files of comparisons -> {arm: its records}; RunError names what makes them incomparable."""
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
    """Those of the arms that are named, in that order; all if none is."""
    for name in names or []:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    return {name: arms[name] for name in names or arms}


def task(config):
    """What a model is asked, in words: losses of two tasks are not compared."""
    objective = config["objective"]
    if objective == "auto":
        objective = "next" if config["causal"] else "masked"
    return f"{'decoder' if config['causal'] else 'encoder'}, {objective}"


def baselines(arms, chosen=None):
    """
    {task: the arm that others with this task are measured against}: the one that is chosen, else the plain random
    start, else the first.
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
    """The same arms, those of one task together, and its baseline before them."""
    arranged = {}
    for same_task, baseline in baselines(arms, chosen).items():
        arranged[baseline] = arms[baseline]
        for name, records in arms.items():
            if task(records[0].config) == same_task:
                arranged[name] = records
    return arranged


# ---- a loss curve in one number ----------------------------------------------------------------------------------


def smooth(loss):
    """The mean of each evaluation and up to two before it; nan rows do not count."""
    means = []
    for i in range(len(loss)):
        window = loss[max(0, i - 2) : i + 1]
        window = window[np.isfinite(window)]
        means.append(window.mean() if len(window) else math.nan)
    return np.array(means)


def first_step(steps, loss, target):
    """The first step at which the loss is at or below the target; inf where it never is: later than any step."""
    reached = np.flatnonzero(loss <= target)
    return float(steps[reached[0]]) if len(reached) else math.inf


def speed_up(steps, loss, baseline_loss):
    """
    (T - t) / T: t the first evaluation at which the smoothed loss is at the baseline's last one, T the last step; -inf
    where it never is, less than any.
    """
    return (steps[-1] - first_step(steps, smooth(loss), smooth(baseline_loss)[-1])) / steps[-1]


# ---- chance ------------------------------------------------------------------------------------------------------


def sign_flip(differences):
    """
    Exact two-sided p of paired differences: of all 2^n ways to turn their signs, the share whose sum is as far from 0
    as theirs. It cannot be below 2 / 2^n.
    """
    if not len(differences):
        return math.nan
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    observed = abs(sum(differences))
    rounding = 1e-9 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= observed - rounding))


def sign_flip_of_ranks(ours, theirs):
    """
    The same for pairs of steps, of which some are inf, "not reached": by their ranks among all of both, so that inf is
    later than any step and it does not matter by how much. Equal ones share their mean rank.
    """
    both = np.concatenate([ours, theirs])
    ranks = np.array([(both < x).sum() + ((both == x).sum() + 1) / 2 for x in both])
    return sign_flip(ranks[: len(ours)] - ranks[len(ours) :])


def holm(ps):
    """p of several tests -> p after Holm's correction: the smallest times their number, the next times one less, ..."""
    corrected = np.full(len(ps), math.nan)
    order = [i for i in np.argsort(ps) if not math.isnan(ps[i])]
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(order) - rank) * ps[i])  # never below that of a smaller p
        corrected[i] = min(1.0, largest)
    return corrected


# ---- the table of a comparison -----------------------------------------------------------------------------------


class Arm(NamedTuple):
    """A line of the table. Pairs are runs of one seed, of this arm and of its baseline."""

    name: str
    baseline: str  # its own name if it is one
    losses: np.ndarray  # at the end of each run, (seeds,), nats/token
    first_steps: np.ndarray  # at or below the level, smoothed; inf: never. (seeds,)
    n_pairs: int
    difference: float  # of losses, mean over pairs; nan for a baseline, as the next
    p_loss: float
    p_step: float
    speed_up: float  # median over pairs; -inf: not reached
    symmetry: float  # at the end, median over layers, mean over seeds
    directionality: float
    update_symmetry: float  # median over layers, then over the run, mean over seeds
    unfinished: int  # runs; they do not count, unless there is no other


def compare(arms, level, chosen=None):
    """{arm: its records} -> an Arm each, with p corrected over all arms that have a baseline, those of either kind."""
    reference = baselines(arms, chosen)
    lines = []
    for name, records in arms.items():
        baseline = reference[task(records[0].config)]
        lines.append(compare_arm(name, records, baseline, arms[baseline], level))
    p_loss = holm([line.p_loss for line in lines])
    p_step = holm([line.p_step for line in lines])
    return [line._replace(p_loss=p, p_step=q) for line, p, q in zip(lines, p_loss, p_step)]


def compare_arm(name, records, baseline, others, level):
    unfinished = len(records) - len(finished(records))
    records, others = counted(records), counted(others)
    losses = np.array([record.val_loss[-1] for record in records])
    first_steps = np.array([left_at(record, level) for record in records])
    pairs = []
    if name != baseline:
        pairs = [(mine, other) for mine in records for other in others if mine.seed == other.seed]
    differences = np.array([mine.val_loss[-1] - other.val_loss[-1] for mine, other in pairs])
    p_step = math.nan
    if pairs:
        ours = [left_at(mine, level) for mine, _ in pairs]
        theirs = [left_at(other, level) for _, other in pairs]
        p_step = sign_flip_of_ranks(ours, theirs)
    gains = [speed_up(mine.eval_steps, mine.val_loss, other.val_loss) for mine, other in pairs]
    return Arm(
        name, baseline, losses, first_steps, len(pairs),
        difference=differences.mean() if pairs else math.nan,
        p_loss=sign_flip(differences),
        p_step=p_step,
        speed_up=np.median(gains) if pairs else math.nan,
        symmetry=np.mean([record.medians["symmetry"][-1] for record in records]),
        directionality=np.mean([record.medians["directionality"][-1] for record in records]),
        update_symmetry=np.mean([median_change(record) for record in records]),
        unfinished=unfinished)


def finished(records):
    return [record for record in records if record.eval_steps[-1] == record.config["max_iters"]]


def counted(records):
    """Those of an arm that are finished; if none is, all of them."""
    return finished(records) or records


def left_at(record, level):
    return first_step(record.eval_steps, smooth(record.val_loss), level)


def median_change(record):
    """The symmetry of what was added to W_qk between two looks, median over the run; nan after a single look."""
    changes = record.medians["update_symmetry"]
    changes = changes[np.isfinite(changes)]
    return np.median(changes) if len(changes) else math.nan


def chance_speed_ups(records):
    """The speed-up of each run of one arm over each other: what a speed-up is where there is nothing to gain."""
    gains = []
    for mine, other in itertools.permutations(records, 2):
        gains.append(speed_up(mine.eval_steps, mine.val_loss, other.val_loss))
    return gains
