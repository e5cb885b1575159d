"""
Compares training runs: tables, and their statistics. Runs with the same seed saw the same data, so arms are compared in
pairs: a difference for each seed.

    python -m data.results.comparison out/tiny out/tiny_decoder --plot runs.png
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas

from config import ROOT, ConfigError, require
from config.plan import FREE, differing_keys, read_plan, task_keys, task_of
from data.names import fixed
from data.results.records import Arm, read_comparison, read_run, write_comparison

ORIGIN = "commit", "python", "torch", "device_name"  # where steps come from; only older runs have python
MIN_PAIRS = 6  # with five, all of one sign, p is 2 / 2^5 = 0.06
EXACT_PAIRS = 20  # all 2^n choices of the signs of more differences fill the memory
DRAWS = 100_000  # so of those only these many random choices are tried, always the same ones
OF_ARMS = ["symmetry", "chance", "heads", "directionality", "positions", "positions_chance"]  # of the table of arms
OF_LAYERS = ["symmetry", "chance", "directionality", "heads", "highest_head", "highest_head_chance", "positions",
            "positions_chance"]
LEGEND = {  # what a column means, in a line of 116 characters at most; a score that is not here is its own title
    "n": "runs; numbers are means over them, at the end if nothing else is said; scores: medians over layers",
    "task": "how tasks differ. Losses of different ones are not compared (WITHIN_TASK in config/plan.py)",
    "loss": "validation loss [nats/token]",
    "difference [95 %]": "mean over pairs of runs of one seed: an arm less its baseline (from), or left less right",
    "p": "exact sign flips of pairs (above 20: 100,000 random ones), times the tests that are left (Holm)",
    "result": f"not shown: p is 0.05 or more; too few pairs: p is never below 0.05 with fewer than {MIN_PAIRS}",
    "updates saved": "share not needed to reach the baseline's last loss (means of three), median over pairs",
    "chance": "mean symmetry of random matrices in the directions of W_qk",
    "heads": "symmetry of single heads, mean over the heads of a layer",
    "positions": "symmetry of the matrix that untied positions have of their own; their chance: of random ones like it",
    "highest_head": "symmetry of the head of a layer that has the most; highest_head_chance: its chance",
}


def report_runs(args):
    """Prints what a command line asks for, and writes its --csv and --plot."""
    arms, plan = pool(args.runs), find_plan(args.plan, args.runs)
    if plan:
        require_runs_of(plan, arms)
    names = [*(args.arms or arms), *([args.baseline] if args.baseline else [])]
    for name in names:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    arms = {name: arms[name] for name in (plan.arms if plan else arms) if name in names}
    if args.csv:
        write_comparison(args.csv, arms)

    arms, time = at_one_time(arms)
    is_plain = not (args.arms or args.baseline or args.all or args.measure or args.by_layer)
    planned = plan.planned if plan and is_plain and time == "at the end" else []
    if planned:
        tables = [arms_table(arms, "loss"), tests_table(planned, arms)]
    elif args.by_layer or (is_plain and all(len(arm.seeds()) == 1 for arm in arms.values())):
        tables = [layers_table(arms, time)]
    else:
        tables = [comparison_table(arms, args.baseline, args.measure or "loss", args.all)]
    if args.plot:
        from data.results import curves  # and matplotlib with it

        curves.plot_arms(arms, args.plot, [measure for measure, *_ in planned])
    for table in tables:
        print(table.to_string(index="result" not in table))  # tests have no names
    columns = [column for table in tables for column in table]
    print(*(f"  {column}: {LEGEND[column]}" for column in columns if column in LEGEND), sep="\n", flush=True)


def pool(paths):
    """Returns {name: Arm}, of folders of runs and of files of comparisons."""
    arms = {}
    for path in paths:
        for arm in [read_run(path)] if Path(path).is_dir() else read_comparison(path):
            arms[arm.name] = add_runs(arms[arm.name], arm) if arm.name in arms else arm
    return arms


def add_runs(arm, more):
    """Returns an Arm with the runs of both. Raises ConfigError if they are not of one arm."""
    for key in differing_keys([arm.config, more.config]):
        require(key in FREE, f"two runs called {arm.name} differ in {key}")
    for seed in more.seeds():
        require(seed not in arm.seeds(), f"two runs called {arm.name} have the seed {seed}")
    origin = {key: sorted({*arm.config[key], *more.config.get(key, [])}) for key in ORIGIN if key in arm.config}
    return Arm(arm.name, arm.config | origin, pandas.concat([arm.table, more.table]))


def at_one_time(arms):
    """Returns the runs, cut at their last common step if one has not finished, and when that is, in words."""
    unfinished = []
    for name, arm in arms.items():
        for seed, losses in arm.curves("loss").items():
            if losses.last_valid_index() != arm.config["max_iters"]:
                unfinished.append(f"{name} {seed}")
    if not unfinished:
        return arms, "at the end"
    steps_of = [set(arm.curves(measure).dropna().index) for arm in arms.values() for measure in ("loss", "symmetry")]
    step = max(set.intersection(*steps_of))  # all have step 0
    print(f"All runs are shown at step {step:,}, because these have not finished: {', '.join(unfinished)}")
    cut = {name: arm._replace(table=arm.table.query(f"step <= {step}")) for name, arm in arms.items()}
    return cut, f"at step {step:,}"


def find_plan(path, runs):
    """Returns the Plan at path, or that of config/plans for a single file NAME.csv, or None."""
    by_name = ROOT / "config" / "plans" / f"{Path(runs[0]).stem}.py"
    if path is None and len(runs) == 1 and runs[0].endswith(".csv") and by_name.exists():
        path = by_name
    return read_plan(path) if path else None


def require_runs_of(plan, arms):
    """Raises ConfigError if a run is not one of this plan: of another arm, another seed, or with other keys."""
    for name, arm in arms.items():
        require(name in plan.arms, f"{plan.path} has no arm {name}: there are {', '.join(plan.arms)}")
        _, expected = plan.keys_of(name)
        free = FREE | {"tokenizer", "sha256", "n_params"}  # no plan names these three
        for key in differing_keys([expected, arm.config]):
            is_free = key in free or (key == "dtype" and expected[key] == "auto")
            require(is_free, f"{plan.path}: its {name} has {key} = {expected.get(key)!r}, not {arm.config.get(key)!r}")
        for seed in arm.seeds():
            require(seed in plan.seeds, f"{plan.path} has no seed {seed}")


# ---- tables, DataFrames of cells as they are shown ---------------------------------------------------------------


def arms_table(arms, measure, differences={}):
    """Returns a row for each arm. differences: {arm: more cells}"""
    keys = task_keys([arm.config for arm in arms.values()])
    rows = {}
    for name, arm in arms.items():
        task = task_of(arm.config)
        row = {"n": len(arm.seeds()), "task": ", ".join(f"{key}={str(task.get(key)):.9}" for key in keys)}
        row |= {measure: mean_cell(arm, measure, digits=3)} | differences.get(name, {})
        for score in OF_ARMS:
            row.setdefault(score.replace("positions_", "their "), mean_cell(arm, score, digits=2))
        rows[name] = row
    return to_table(rows, "arm")


def tests_table(planned, arms):
    """Returns a row for each planned test."""
    found = [of_differences(of_side(arms, left, measure) - of_side(arms, right, measure))
             for measure, left, _, right in planned]
    corrected = holm([test["p"] for test in found])  # one without runs counts as well: the plan is one family
    rows = []
    for (measure, left, direction, right), test, p in zip(planned, found, corrected):
        is_predicted = (test["difference"] > 0) == (direction == ">")
        result = "as predicted" if is_predicted else "the other way"
        if p >= 0.05:
            result = "not shown" if test["n_pairs"] >= MIN_PAIRS else "too few pairs"
        rows.append({"measure": measure, "left": left, "": direction, "right": right, "pairs": test["n_pairs"],
                     "difference [95 %]": difference_cell(test), "p": f"{p:.2g}", "result": result})
    return pandas.DataFrame(rows)


def of_side(arms, side, measure):
    """Returns a measure at the end of 'arm', or its differences of 'arm - arm': a Series by seed."""
    no_runs = pandas.Series(dtype=float)
    first, *others = [arms[name].at_end(measure) if name in arms else no_runs for name in side.split(" - ")]
    return first - sum(others)


def comparison_table(arms, chosen, measure, has_all):
    """Returns a row for each arm that has a measure, with its difference from its baseline."""
    ends = {name: arm.at_end(measure) for name, arm in arms.items()}
    arms = {name: arm for name, arm in arms.items() if ends[name].notna().all()}
    require(arms, f"no run has {measure}: data/results/csv/README.md says what runs have")
    cells = {}
    for name, arm in arms.items():
        may_be = list(arms)  # scores mean the same in all
        if "loss" in measure:  # and losses only within a task
            may_be = [other for other in arms if not task_keys([arms[other].config, arm.config])]
        baseline = chosen if chosen in may_be else may_be[0]
        found = of_differences(ends[name] - ends[baseline])
        cells[name] = {"difference [95 %]": difference_cell(found), "from": baseline, "pairs": found["n_pairs"]}
        if has_all and measure == "loss" and found["n_pairs"]:
            losses, of_baseline = arm.curves("loss"), arms[baseline].curves("loss")
            pairs = losses.columns.intersection(of_baseline.columns)  # seeds
            saved = np.median([speed_up(losses[seed].dropna(), of_baseline[seed].dropna()) for seed in pairs])
            cells[name]["updates saved"] = "not reached" if saved == -np.inf else f"{saved:.0%}"
        if name == baseline:
            cells[name] = dict.fromkeys(cells[name], "") | {"difference [95 %]": "baseline"}
    table = arms_table(arms, measure, cells)
    return table if has_all else table.drop(columns="pairs", errors="ignore")


def layers_table(arms, time):
    """Returns a row for each layer of each arm. time: when, in words."""
    rows = {}
    for name, arm in arms.items():
        for layer in range(arm.layers("symmetry").shape[1]):
            row = {"loss": "" if layer else mean_cell(arm, "loss", digits=3)}  # in the first row of an arm
            rows[name, layer] = row | {score: mean_cell(arm, f"{score}_{layer}", digits=2) for score in OF_LAYERS}
    return to_table(rows, time)


def to_table(rows, title):
    table = pandas.DataFrame.from_dict(rows, orient="index").fillna("").rename_axis(columns=title)
    return table.loc[:, (table != "").any()]  # columns with something in them


def mean_cell(arm, measure, digits):
    """Returns the mean over runs of the last value of a measure, "" if a run has none."""
    mean = arm.at_end(measure).mean(skipna=False)
    return "" if np.isnan(mean) else fixed(mean, digits)


def difference_cell(found):
    """Returns a difference, with its interval if there are pairs enough."""
    if found["n_pairs"] == 0:
        return "no pairs"
    digits = 5 if 1e-6 < abs(found["difference"]) < 0.0005 else 3  # a small difference is not none
    difference, low, high = [fixed(number, digits, "+") for number in (found["difference"], *found["interval"])]
    return f"{difference} [{low}, {high}]" if found["n_pairs"] >= MIN_PAIRS else difference


# ---- statistics --------------------------------------------------------------------------------------------------


def subset_sums(values):
    """Returns the sums of all 2^n subsets of n values, or of DRAWS random ones, the empty one first."""
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
    means = np.sort(sums[sizes > 0] / sizes[sizes > 0])  # an empty subset has no mean
    n_outside = int(0.05 / 2 * len(sums)) - (len(sums) - len(means))  # at each end, besides the empty ones
    if n_outside < 0:
        return np.nan, np.nan
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
    """Returns the number of differences, their mean, its interval and p: a dict. Without any p is 1."""
    found = differences.dropna()  # a run may lack the measure
    return dict(n_pairs=len(found), difference=found.mean(), interval=confidence_interval(found.to_numpy()),
                p=sign_flip(found.to_numpy()))


def speed_up(loss, baseline_loss, window=3):
    """
    Returns the share of updates that an arm saves: 1 - t / T, where T is the last step of the baseline, and t the first
    at which the loss is at or below the baseline's last one. -inf if it never is.

    With window=1 as in the paper's Table 1. Else of smoothed losses: each is the mean of an evaluation and up to two
    before it.
    """
    target = baseline_loss.rolling(window, min_periods=1).mean().iloc[-1]
    smooth = loss.rolling(window, min_periods=1).mean()  # one loss may be low by chance
    reached = smooth.index[smooth <= target]
    return 1 - reached[0] / baseline_loss.index[-1] if len(reached) else -np.inf


# ---- the command -------------------------------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m data.results.comparison", allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="DIR", help="folders of runs, or CSV files of comparisons")
    parser.add_argument("--csv", metavar="FILE", help="write the comparison to FILE")
    parser.add_argument("--plot", metavar="FILE.png", help="draw scores by step")
    parser.add_argument("--plan", metavar="FILE", help="do the tests that this file of config/plans has planned")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all of them)")
    parser.add_argument("--baseline", metavar="ARM", help="the arm to compare with (the first of its task)")
    parser.add_argument("--measure", metavar="NAME", help="compare by this: loss, symmetry, symmetry_0 (of a layer), ...")
    parser.add_argument("--all", action="store_true", help="print more columns: pairs and updates saved")
    parser.add_argument("--by_layer", action="store_true", help="print each layer")
    try:
        report_runs(parser.parse_args(argv))
    except (ConfigError, OSError) as e:
        sys.exit(f"comparison.py: {e}")


if __name__ == "__main__":
    main()
