"""Prints comparisons of runs of train.py (analyze.py --runs), and draws the pictures that go with them."""

from pathlib import Path

import numpy as np
import pandas

from config import HOW, ROOT, require
from config.plan import differing_keys, read_plan, task_of
from data.names import fixed
from data.results.compare import MIN_PAIRS, holm, of_differences, speed_up
from data.results.records import read_comparison, read_run, write_comparison

FREE = HOW | {"seed", "data_dir"}  # runs of one arm may differ in these keys
OF_RUNS = FREE | {"tokenizer", "sha256", "n_params"}  # a run has these keys of its own, beside those of its plan
SCORES = ["symmetry", "chance", "heads", "directionality", "positions", "positions_chance"]  # of the table of arms
BY_LAYER = ["symmetry", "chance", "directionality", "heads", "highest_head", "highest_head_chance", "positions",
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
    """Prints what `analyze.py --runs` asks for, and writes its --csv and --plot."""
    arms, plan = pool(args.runs), find_plan(args.plan, args.runs)
    if plan:
        require_runs_of(plan, arms)
        arms = {name: arms[name] for name in plan.arms if name in arms}
    names = [*(args.arms or arms), *([args.baseline] if args.baseline else [])]
    for name in names:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    arms = {name: arms[name] for name in arms if name in names}
    if args.csv:
        write_comparison(args.csv, arms)

    is_plain = not (args.arms or args.baseline or args.all or args.measure or args.by_layer)
    planned = plan.planned if plan and is_plain else []
    arms, time = at_one_time(arms, planned)
    tested = [measure for measure, *_ in planned]
    measures = ["loss", *sorted(set().union(*[arm.table for arm in arms.values()]) - {"train_loss", "val_loss"})]
    for measure in tested or [args.measure or "loss"]:
        require(measure in measures, f"no run has {measure}: there are {', '.join(measures)}")
    if planned:
        tables = [arms_table(arms, "loss"), tests_table(planned, arms)]
    elif args.by_layer or (is_plain and all(len(arm.seeds()) == 1 for arm in arms.values())):
        tables = [layers_table(arms, time)]
    else:
        tables = [comparison_table(arms, args.baseline, args.measure or "loss", args.all)]
    if args.plot:
        from data.results import curves  # and matplotlib with it

        first, *others = arms.values()
        if others or len(first.seeds()) > 1:
            hidden = {"loss"} if task_keys(arms) else {}  # losses of different tasks are not compared
            curves.plot_runs(arms, args.plot, [name for name in ("loss", *tested) if name not in hidden])
        else:
            curves.plot_run(first, args.plot)
    for table in tables:
        print(table.to_string(index="result" not in table))  # tests have no names
    columns = [column for table in tables for column in table]
    print(*(f"  {column}: {LEGEND[column]}" for column in columns if column in LEGEND), sep="\n", flush=True)


def pool(paths):
    """Returns {name: Arm}, of folders of runs and of CSV files. Raises ConfigError if a name is of several arms."""
    arms = {}
    for path in paths:
        for arm in [read_run(path)] if Path(path).is_dir() else read_comparison(path):
            arms[arm.name] = add_runs(arms[arm.name], arm) if arm.name in arms else arm
    return arms


def add_runs(arm, more):
    """Returns an Arm with the runs of both. Raises ConfigError if they are not of one arm."""
    for key in differing_keys([arm.config, more.config]):
        both = f"{more.config.get(key)}, {arm.config.get(key)}"
        require(key in FREE, f"two runs called {arm.name} differ in {key}: {both}")
    for seed in more.seeds():
        require(seed not in arm.seeds(), f"two runs called {arm.name} have the seed {seed}")
    origin = {key: sorted({*texts, *more.origin.get(key, ["unknown"])}) for key, texts in arm.origin.items()}
    return arm._replace(origin=origin, table=pandas.concat([arm.table, more.table]))


def at_one_time(arms, planned):
    """
    Returns the runs that are compared, and when, in words: at the end if all have finished, or else at the last step
    that all of them have. For planned tests those that have not finished are left out. Both are said.
    """
    unfinished = ", ".join(f"{name} {seed}" for name, arm in arms.items() for seed in arm.unfinished())
    if not unfinished:
        return arms, "at the end"
    if planned:
        print(f"These have not finished, and are left out: {unfinished}")
        finished = {name: arm.table.drop(index=arm.unfinished(), level="seed") for name, arm in arms.items()}
        return {name: arms[name]._replace(table=table) for name, table in finished.items()}, "at the end"
    curves = [arm.curves(measure).dropna() for arm in arms.values() for measure in ("loss", "symmetry")]
    step = pandas.concat(curves, axis="columns", join="inner").index.max()  # all have step 0
    print(f"All runs are shown at step {step:,}, because these have not finished: {unfinished}")
    cut = {name: arm._replace(table=arm.table.query(f"step <= {step}")) for name, arm in arms.items()}
    return cut, f"at step {step:,}"


def find_plan(path, runs):
    """Returns the Plan at path, or that of config/plans for a file NAME.csv, the only one in runs; or else None."""
    by_name = ROOT / "config" / "plans" / f"{Path(runs[0]).stem}.py"
    if path is None and len(runs) == 1 and runs[0].endswith(".csv") and by_name.exists():
        path = by_name
    return read_plan(path) if path else None


def require_runs_of(plan, arms):
    """Raises ConfigError if a run is not one of this plan: of another arm, another seed, or with other keys."""
    for name, arm in arms.items():
        require(name in plan.arms, f"{plan.path} has no arm {name}: there are {', '.join(plan.arms)}")
        _, expected = plan.keys_of(name)
        for key in differing_keys([expected, arm.config]):
            is_free = key in OF_RUNS or (key == "dtype" and expected[key] == "auto")
            require(is_free, f"{plan.path} is another plan: its {name} has {key} = {expected.get(key)!r}, and that of "
                    f"these runs {arm.config.get(key)!r}")
        for seed in arm.seeds():
            require(seed in plan.seeds, f"{plan.path} is another plan: it has no seed {seed}")


# ---- tables, DataFrames of cells as they are shown ---------------------------------------------------------------


def task_keys(arms):
    """Returns the keys in which the tasks of arms differ."""
    return differing_keys([task_of(arm.config) for arm in arms.values()])


def arms_table(arms, measure, differences={}):
    """Returns a row for each arm. differences: {arm: more cells}"""
    keys = task_keys(arms)
    rows = {}
    for name, arm in arms.items():
        task = task_of(arm.config)
        row = {"n": len(arm.seeds()), "task": ", ".join(f"{key}={str(task.get(key)):.9}" for key in keys)}
        row |= {measure: mean_cell(arm, measure, digits=3)} | differences.get(name, {})
        for score in SCORES:
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
        is_predicted = test["difference"] > 0 if direction == ">" else test["difference"] < 0
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
    """Returns a row for each arm that has a measure, with its difference from its baseline. has_all: more columns."""
    ends = {name: arm.at_end(measure) for name, arm in arms.items()}
    arms = {name: arm for name, arm in arms.items() if ends[name].notna().all()}
    require(chosen in (None, *arms), f"the runs of {chosen} have no {measure}")
    tasks = {name: task_of(arm.config) for name, arm in arms.items()}
    cells = {}
    for name in arms:
        may_be = [other for other in arms if measure != "loss" or tasks[other] == tasks[name]]  # scores mean the same
        baseline = chosen if chosen in may_be else may_be[0]
        found = of_differences(ends[name] - ends[baseline])
        cells[name] = {"difference [95 %]": difference_cell(found), "from": baseline}
        if has_all:
            cells[name]["pairs"] = found["n_pairs"]
        if has_all and measure == "loss" and found["n_pairs"]:  # other measures compare different tasks, too
            losses, of_baseline = arms[name].curves("loss"), arms[baseline].curves("loss")
            pairs = losses.columns.intersection(of_baseline.columns)  # seeds
            saved = np.median([speed_up(losses[seed].dropna(), of_baseline[seed].dropna()) for seed in pairs])
            cells[name]["updates saved"] = "not reached" if saved == -np.inf else f"{saved:.0%}"
        if name == baseline:
            cells[name] = dict.fromkeys(cells[name], "") | {"difference [95 %]": "baseline"}
    return arms_table(arms, measure, cells)


def layers_table(arms, time):
    """Returns a row for each layer of each arm. time: when, in words."""
    rows = {}
    for name, arm in arms.items():
        for layer in range(arm.layers("symmetry").shape[1]):
            row = {"loss": "" if layer else mean_cell(arm, "loss", digits=3)}  # in the first row of an arm
            rows[name, layer] = row | {score: mean_cell(arm, f"{score}_{layer}", digits=2) for score in BY_LAYER}
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
