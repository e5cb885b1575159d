"""
The tables of a comparison, DataFrames of cells as they are shown.

Runs with the same seed saw the same data, so settings are compared in pairs: a difference for each seed. arms is always
{name: Runs}, the settings of a comparison. Scores are medians over layers, and cells are means over runs.
"""

import numpy as np
import pandas

from config import require
from config.plan import STEPS_TO, is_of_losses, task_keys, task_of
from data import fixed
from data.runs.write import KERNEL
from data.runs.statistics import MIN_PAIRS, crossing, holm, of_differences, speed_up

OF_ARMS = ["symmetry", "chance", "beyond", "heads", "directionality", "positions", "positions_chance"]
PARTS = ["own_heads", "shared", "mirror"]  # of the symmetry of a layer
OF_LAYERS = ["symmetry", "chance", "beyond", *PARTS, "directionality", "heads", "positions", "positions_chance"]
OF_KERNEL = ["symmetry", *KERNEL]
LEGEND = {  # what a column means, in a line of 116 characters at most; a score that is not here is its own title
    "n": "runs; numbers are means over them, at the end if nothing else is said; scores: medians over layers",
    "task": "how tasks differ. Losses of different ones are not compared (see varies in config/__init__.py)",
    "loss": "validation loss [nats/token]",
    "difference [95 %]": "mean over pairs of runs of one seed: an arm less its baseline (from), or left less right",
    "p, not planned": "exact sign flips of the pairs of these two arms alone, not corrected for other comparisons",
    "agree": "pairs whose difference has the sign of the mean",
    "p": "exact sign flips of pairs, times the tests that are left (Holm)",
    "result": "shown: p is below 0.05; the other way: the same, in the other direction; too few pairs: p cannot be",
    "of baseline": "mean of steps, as a share of that of the first arm with the same task",
    "seconds": "the same of the seconds that these steps take; a step: of the seconds of one step",
    "never": "runs that never get there; each counts as all of its steps",
    "updates saved": "share not needed to reach the baseline's last loss (means of three), median over pairs",
    "chance": "mean symmetry of random matrices in the directions of W_qk",
    "beyond": "runs in which a layer (0, 1, ...) is more symmetric than 95 % of random matrices in its directions",
    "heads": "symmetry of single heads, mean over the heads of a layer",
    "own_heads": "what single heads have of the symmetry of their layer; own_heads + shared + mirror = symmetry",
    "shared": "what it has because heads have a symmetric part in common",
    "mirror": "what it has because one head is like the transpose of another",
    "from_positions": "what W_qk has of its symmetry in the first 8 directions of positions (data/runs/kernel.py)",
    "from_contents": "the same in those of contents",
    "kernel_symmetry": "symmetry of W_qk between positions, P W_qk P; kernel_norm: its share of |W_qk|^2",
    "kernel_logits": "R^2 of positions alone in the logits",
    "loss_kernel": "validation loss if this layer compares positions alone; loss_rest: all else; loss_nothing: nothing",
    "positions": "symmetry of the matrix that untied positions have of their own; their chance: of random ones like it",
}


def arms_table(arms, measure, has_pairs=True, has_all=False):
    """Returns a row for each arm that has a measure. has_pairs: with its difference. has_all: with more columns."""
    # an arm with a run that lacks the measure has no mean
    has = {name: arm for name, arm in arms.items() if end_of(arm, measure).notna().all()}
    require(has, f"no run has {measure}: data/results/csv/README.md says what runs have")
    left_out = [name for name in arms if name not in has]
    if left_out:
        print(f"Left out, because not all of their runs have {measure}: {', '.join(left_out)}")

    # a row for each of the others: its measure, its difference, its scores
    tasks, rows = tasks_of(has), {}
    for name, arm in has.items():
        row = {"n": len(arm.seeds()), "task": tasks[name], measure: mean_cell(arm, measure, digits=3)}
        if has_pairs:
            row |= pair_cells(arm, find_baseline(has, arm, measure), measure, has_all)
        for score in OF_ARMS + PARTS if has_all else OF_ARMS:
            title = "their chance" if score == "positions_chance" else score  # it stands beside the positions
            row.setdefault(title, mean_cell(arm, score))  # the measure is there already, with more digits
        row["beyond"] = beyond_cell(arm, range(arm.config["n_layer"]))
        rows[name] = row
    return to_table(rows, "arm")


def pair_cells(arm, baseline, measure, has_all):
    """Returns the cells of an arm less its baseline, {column: text}: each run less the baseline's run of its seed."""
    pairs = in_pairs(end_of(arm, measure) - end_of(baseline, measure), [arm, baseline])
    is_tested = pairs["n_pairs"] >= MIN_PAIRS and pairs["interval"]
    cells = {"difference [95 %]": difference_cell(pairs, measure),
             "p, not planned": f"{pairs['p']:.2g}" if is_tested else "",
             "agree": f"{pairs['n_agree']} of {pairs['n_pairs']}" if is_tested else "", "from": baseline.name}
    if has_all:
        cells |= {"pairs": pairs["n_pairs"], "updates saved": saved_cell(arm, baseline) if measure == "loss" else ""}
    if arm is baseline:
        cells = dict.fromkeys(cells, "") | {"difference [95 %]": "baseline"}
    return cells


def tasks_of(arms):
    """Returns in words how the tasks of the arms differ, {name: text}, "" for each if they do not."""
    keys = task_keys([arm.config for arm in arms.values()])
    words = {}
    for name, arm in arms.items():
        task = task_of(arm.config)
        words[name] = ", ".join(f"{key}={str(task.get(key)):.9}" for key in keys)
    return words


def tests_table(planned, arms):
    """Returns a row for each planned test. Raises ConfigError if the runs of one cannot be compared."""
    # test each one by itself: the differences of left and right, seed by seed
    pairs_of = []
    for measure, left, _, right in planned:
        # losses mean the same within a task, and scores on one text
        sides = [arms[name] for name in [*left.split(" - "), *right.split(" - ")] if name in arms]
        keys = task_keys([arm.config for arm in sides])
        if not is_of_losses(measure):
            keys = [key for key in keys if key == "sha256"]
        require(not keys, f"planned test of {measure}, {left} and {right}: its runs differ in {', '.join(keys)}")
        pairs_of.append(in_pairs(of_side(arms, left, measure) - of_side(arms, right, measure), sides))

    # then correct the p for how many tests there are. One without runs has p = 1, and counts: the plan is one family
    corrected = holm([pairs["p"] for pairs in pairs_of])

    # then judge each: was it as predicted?
    rows = []
    for (measure, left, direction, right), pairs, p in zip(planned, pairs_of, corrected):
        rows.append({"measure": measure, "left": left, "": direction, "right": right, "pairs": pairs["n_pairs"],
                     "difference [95 %]": difference_cell(pairs, measure), "p": f"{p:.2g}",
                     "result": verdict(pairs, direction, p)})
    return pandas.DataFrame(rows)


def in_pairs(differences, arms):
    """Returns of_differences, without p and interval if parents make these no pairs: one of several runs, or others."""
    pairs, words = of_differences(differences), ""
    parents = pandas.DataFrame([arm.at_end("parent_seed") for arm in arms])  # (arms, seeds), nan where there is none
    for n, n_runs in zip(parents.nunique(axis="columns"), parents.count(axis="columns")):
        if n < n_runs:
            words = f"{n_runs} runs of {'one parent' if n == 1 else f'{n} parents'}"
    if (parents.nunique() > 1).any():
        words = "parents of other seeds"
    return pairs | dict(interval=None, p=1.0, parents=words) if words else pairs


def verdict(pairs, direction, p):
    """Returns what a test has shown. direction: ">" or "<", as predicted. p: corrected."""
    if not pairs["interval"]:
        return "not tested"
    if p >= 0.05:
        return "not shown" if pairs["n_pairs"] >= MIN_PAIRS else "too few pairs"
    is_above = pairs["difference"] > 0
    return "shown" if is_above == (direction == ">") else "the other way"


def of_side(arms, side, measure):
    """Returns a measure at the end of 'arm', or its differences of 'arm - arm': a Series by seed. Or 0 for "0"."""
    if " - " in side:
        first, second = side.split(" - ")
        return of_side(arms, first, measure) - of_side(arms, second, measure)
    if side == "0":
        return 0
    return end_of(arms[side], measure) if side in arms else pandas.Series(dtype=float)  # it has no runs yet


def end_of(arm, measure):
    """
    Returns a measure at the end of each run: a Series by seed, nan where a run has none. It may also be steps_to_X, or
    a difference 'measure - measure' of one run.
    """
    if " - " in measure:
        first, second = measure.split(" - ")
        return end_of(arm, first) - end_of(arm, second)
    if measure.startswith(STEPS_TO):
        return steps_to(arm, measure).clip(upper=arm.config["max_iters"])  # a run that never gets there has taken all
    return arm.at_end(measure)


def steps_to(arm, measure):
    """Returns the steps to a loss of X, if a measure is steps_to_X, between two evaluations: by seed, inf for never."""
    target = float(measure.removeprefix(STEPS_TO))
    return arm.curves("loss").apply(crossing, target=target)


def steps_table(arms, measure):
    """Returns a row for each arm: in how many steps it gets to a loss, in a measure such as steps_to_1.8."""
    rows = {}
    for name, arm in arms.items():
        baseline = find_baseline(arms, arm, measure)
        steps = end_of(arm, measure)
        never = (steps_to(arm, measure) == np.inf).sum()
        difference = pair_cells(arm, baseline, measure, has_all=False)["difference [95 %]"]
        shares = costs_of(arm, measure) / costs_of(baseline, measure)
        rows[name] = {"n": len(steps), measure: fixed(steps.mean(), 0), "never": str(never),
                      **shares.map("{:.0%}".format).replace("nan%", ""),
                      "difference [95 %]": difference, "parameters": f"{arm.config['n_params']:,}"}
    return to_table(rows, "arm")


def costs_of(arm, measure):
    """Returns what runs of an arm take to get to a loss: means over them by column, nan if a run has no speed."""
    steps = end_of(arm, measure)
    # seconds a token: losses of one task have batches of one size, so shares of these are those of seconds a step. Of
    # the evaluations of a run it is the median, because a pause of the machine is in one of them
    per_step = 1 / arm.values("tokens_per_s").groupby("seed").median()
    costs = pandas.DataFrame({"of baseline": steps, "seconds": steps * per_step, "a step": per_step})
    return costs.mean(skipna=False)


def find_baseline(arms, arm, measure):
    """Returns the first arm, Runs, that may be compared with an arm by a measure."""
    for other in arms.values():
        # A score means the same in all tasks, and a loss only within one.
        if not is_of_losses(measure) or not task_keys([other.config, arm.config]):
            return other


def saved_cell(arm, baseline):
    """Returns the share of updates that an arm saves, the median over pairs of runs with the same seed."""
    saved, of_baseline = [], baseline.curves("loss")  # (S, seeds)
    for seed, losses in arm.curves("loss").items():
        if seed in of_baseline:
            saved.append(speed_up(losses.dropna(), of_baseline[seed].dropna()))
    median = pandas.Series(saved, dtype=float).median()
    if np.isnan(median):  # no pairs, or no steps
        return ""
    return "not reached" if median == -np.inf else f"{median:.0%}"


def layers_table(arms, time, scores=OF_LAYERS):
    """Returns a row for each layer of each arm. time: when, in words."""
    tasks, rows = tasks_of(arms), {}
    for name, arm in arms.items():
        for layer in range(arm.config["n_layer"]):
            # its first row says what the whole arm has
            row = {"task": tasks[name], "loss": mean_cell(arm, "loss", digits=3)} if layer == 0 else {}
            for score in scores:
                row[score] = mean_cell(arm, f"{score}_{layer}")
            if "beyond" in scores:
                row["beyond"] = beyond_cell(arm, [layer])
            rows[name, layer] = row
    return to_table(rows, time)


def to_table(rows, title):
    table = pandas.DataFrame.from_dict(rows, orient="index").fillna("").rename_axis(columns=title)
    return table.loc[:, (table != "").any()]  # columns with something in them


def mean_cell(arm, measure, digits=2):
    """Returns the mean over runs of the last value of a measure, "" if a run has none."""
    mean = end_of(arm, measure).mean(skipna=False)
    return "" if np.isnan(mean) else fixed(mean, digits)


def beyond_cell(arm, layers):
    """Returns in how many runs each layer is above 95 % of random matrices, "" if one has no such limit at its end."""
    counts = []
    for layer in layers:
        symmetry, limit = arm.at_end(f"symmetry_{layer}"), arm.at_end(f"symmetry_95_{layer}")
        if limit.isna().any():
            return ""
        counts.append(str((symmetry > limit).sum()))
    return f"{', '.join(counts)} of {len(arm.seeds())}"


def difference_cell(pairs, measure):
    """Returns a difference, with its interval if there are pairs enough."""
    if pairs["n_pairs"] == 0:
        return "no pairs"
    digits = 5 if 1e-6 < abs(pairs["difference"]) < 0.0005 else 3  # a small difference is not none
    if measure.startswith(STEPS_TO):
        digits = 0
    difference = fixed(pairs["difference"], digits, "+")
    if not pairs["interval"]:
        return f"{difference} ({pairs['parents']})"
    if pairs["n_pairs"] < MIN_PAIRS:
        return difference
    low, high = pairs["interval"]
    return f"{difference} [{fixed(low, digits, '+')}, {fixed(high, digits, '+')}]"
