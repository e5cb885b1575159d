"""Prints comparisons of runs of train.py (analyze.py --runs), and draws the pictures that go with them."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pandas

from config.plan import ROOT, arms_of, differing_keys, read_plan, task_of
from data.names import fixed
from data.results.compare import (DRAWS, EXACT_PAIRS, FREE, MIN_PAIRS, at_end, common_step, compare_arms,
                                  find_baselines, holm, of_differences, pool)
from data.results.records import MEASURES, origins, write_comparison
from data.results.runs import require

OF_CORPUS = {"tokenizer", "sha256", "n_params"}  # what a run has beside the keys of its plan
SCORES = ["symmetry", "chance", "heads", "directionality", "positions", "positions_chance"]  # of the table of arms
BY_LAYER = ["symmetry", "chance", "directionality", "heads", "highest_head", "highest_head_chance", "positions",
            "positions_chance"]
LEGEND = MEASURES | {
    "task": "in which keys tasks differ. Losses of different tasks are not compared. A key that does not change what a "
            "loss means belongs to WITHIN_TASK in config/plan.py",
    "their chance": MEASURES["positions_chance"],
    "difference [95 %]": "an arm less its baseline (from), or left less right: mean over pairs of runs with the same "
                         f"seed, and of {MIN_PAIRS} pairs or more its 95 % confidence interval. If planned, it has a p",
    "p": f"exact sign-flip test (of more than {EXACT_PAIRS} pairs with {DRAWS:,} draws of the signs) with Holm's "
         "correction over all tests of the plan, also over those with too few pairs",
    "result": f"not shown: p is 0.05 or more; too few pairs: p is never below 0.05 with fewer than {MIN_PAIRS}",
    "updates saved": "share of the updates that an arm did not need to reach the last loss of its baseline, median "
                     "over pairs. Each loss is a mean of three evaluations, because one may be low by chance",
    "by Table 1": "the same by the rule of the paper's Table 1, which takes single evaluations",
}


def report_runs(args):
    """
    Prints what `analyze.py --runs` asks for, and writes its --csv and --plot.

    Raises RunError or ConfigError, in one line, if a run, a plan or an option is wrong.
    """
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
    if args.step is not None:
        arms = {name: [record.cut(args.step) for record in records] for name, records in arms.items()}

    is_plain = not (args.arms or args.baseline or args.all or args.measure or args.by_layer or args.step is not None)
    planned = plan.planned if plan and is_plain else []
    notes = notes_on_runs(arms)
    finished = {name: [record for record in records if record.is_finished()] for name, records in arms.items()}
    if planned:
        arms = {name: finished[name] for name in arms if finished[name]}
    else:  # of an arm without a finished run all count, as far as they are
        arms = {name: finished[name] or arms[name] for name in arms}
    has_one_seed = all(len(records) == 1 for records in arms.values())
    if planned:
        tables = [arms_table(arms, "loss"), tests_table(planned, arms)]
    elif args.by_layer or (is_plain and has_one_seed):
        tables = [layers_table(arms)]
    else:
        tables = [comparison_table(arms, args.baseline, args.measure or "loss", args.all)]
    if args.plot:
        from data.results import curves  # and matplotlib with it

        runs = [record for records in arms.values() for record in records]
        if len(runs) == 1:
            curves.plot_run(runs[0], args.plot)
        elif args.by_layer:
            curves.plot_layers(arms, args.plot)
        else:
            curves.plot_runs(arms, args.plot, [measure for measure, *_ in planned])
    print(*(table.to_string(index="result" not in table) for table in tables), sep="\n")  # tests have no names
    print(*legend([column for table in tables for column in table]), *notes, sep="\n", flush=True)


def find_plan(path, runs):
    """Returns the Plan at path, or that of config/plans for a file NAME.csv, the only one in runs; or else None."""
    by_name = ROOT / "config" / "plans" / f"{Path(runs[0]).stem}.py"
    if path is None and len(runs) == 1 and runs[0].endswith(".csv") and by_name.exists():
        path = by_name
    return read_plan(path) if path else None


def require_runs_of(plan, arms):
    """Raises RunError if a run is not one of this plan: of another arm, another seed, or with other keys."""
    for name, records in arms.items():
        require(name in plan.arms, f"{plan.path} has no arm {name}: there are {', '.join(plan.arms)}")
        _, expected = plan.keys_of(name)
        config = records[0].config
        for key in differing_keys([expected, config]):
            is_free = key in FREE | OF_CORPUS or (key == "dtype" and expected[key] == "auto")
            require(is_free, f"{plan.path} is another plan: its {name} has {key} = {expected.get(key)!r}, and that of "
                    f"these runs {config.get(key)!r}")
        for record in records:
            require(record.seed in plan.seeds, f"{plan.path} is another plan: it has no seed {record.seed}")


# ---- tables, DataFrames of cells as they are shown ---------------------------------------------------------------


def arms_table(arms, measure, differences={}):
    """Returns a row for each arm. differences: {arm: more cells}"""
    keys = differing_keys([task_of(records[0].config) for records in arms.values()])
    rows = {}
    for name, records in arms.items():
        task = task_of(records[0].config)
        row = {"n": len(records), "task": ", ".join(f"{key}={str(task.get(key)):.9}" for key in keys)}
        row |= {measure: mean_cell(records, measure, digits=3)} | differences.get(name, {})
        for score in SCORES:
            row.setdefault(score.replace("positions_", "their "), mean_cell(records, score, digits=2))
        rows[name] = row
    return to_table(rows, "arm")


def tests_table(planned, arms):
    """Returns a row for each planned test."""
    require_measures([measure for measure, *_ in planned], arms)
    found = [of_differences(of_side(arms, left, measure) - of_side(arms, right, measure))
             for measure, left, _, right in planned]
    # A test without runs counts as well: the plan is one family, whichever of its runs are there.
    corrected = holm([1 if np.isnan(test["p"]) else test["p"] for test in found])
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
    first, *others = [at_end(arms.get(arm, []), measure) for arm in arms_of(side)]
    return first - sum(others)


def comparison_table(arms, chosen, measure, has_all):
    """Returns a row for each arm that has a measure, with its difference from its baseline. has_all: more columns."""
    require_measures([measure], arms)
    arms = {name: arms[name] for name in arms if at_end(arms[name], measure).notna().all()}
    require(chosen in (None, *arms), f"the runs of {chosen} have no {measure}")
    cells = {}
    for name, baseline in find_baselines(arms, chosen, measure).items():
        found = compare_arms(arms[name], arms[baseline], measure)
        cells[name] = {"difference [95 %]": difference_cell(found), "from": baseline}
        if has_all:
            cells[name] |= {"pairs": found["n_pairs"], "updates saved": saved_cell(found["saved"]),
                            "by Table 1": saved_cell(found["saved_by_paper"])}
        if name == baseline:
            cells[name] = dict.fromkeys(cells[name], "") | {"difference [95 %]": "baseline"}
    return arms_table(arms, measure, cells)


def layers_table(arms):
    """Returns a row for each layer of each arm, at the last step that all runs have."""
    step = common_step(arms)
    rows = {}
    for name, records in arms.items():
        runs = [record.cut(step) for record in records]
        for layer in range(runs[0].layers("symmetry").shape[1]):
            row = {"loss": "" if layer else mean_cell(runs, "loss", digits=3)}  # in the first row of an arm
            row |= {score: mean_cell(runs, f"{score}_{layer}", digits=2) for score in BY_LAYER}
            rows[name, layer] = row
    return to_table(rows, f"at step {step:,}")


def to_table(rows, title):
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis(columns=title)
    return table.loc[:, (table != "").any()]  # columns with something in them


def require_measures(measures, arms):
    """Raises RunError if no run has one of these measures."""
    columns = {name for records in arms.values() for record in records for name in record.table}
    names = ["loss", *sorted(columns - {"train_loss", "val_loss"})]
    for measure in measures:
        require(measure in names, f"no run has {measure}: there are {', '.join(names)}")


# ---- cells and words ---------------------------------------------------------------------------------------------


def mean_cell(records, measure, digits):
    """Returns the mean over runs of the last value of a measure, "" if a run has none."""
    mean = at_end(records, measure).mean(skipna=False)
    return "" if np.isnan(mean) else fixed(mean, digits)


def saved_cell(saved):
    """Returns a share of updates. nan: it is not known."""
    if np.isnan(saved):
        return ""
    return "not reached" if saved == -np.inf else f"{saved:.0%}"


def difference_cell(found):
    """Returns a difference, with its interval if there are pairs enough."""
    if found["n_pairs"] == 0:
        return "no pairs"
    low, high = found["interval"]
    return signed(found["difference"]) + (f" [{signed(low)}, {signed(high)}]" if found["n_pairs"] >= MIN_PAIRS else "")


def signed(number):
    """Returns a number as +0.123, and with more digits if it would be shown as 0 and is not 0, such as +0.0001."""
    number = round(number, 7)  # beyond them there is rounding alone
    digits = 3
    while number and not round(number, digits):
        digits += 1
    return fixed(number, digits, "+")


def legend(columns):
    """Returns what the columns of tables mean, in lines."""
    lines = ["numbers: means over seeds at the end of training or at the step that is named; scores: medians over "
             "layers, or of the layer that is named"]
    for column in columns:
        name = re.sub(r"_\d+$", "", column)  # symmetry_0 is that of layer 0
        if name in LEGEND:  # other words, and scores of a fork, are their own titles
            lines.append(f"{column}: {LEGEND[name]}")
    return [textwrap.fill(line, 116, initial_indent="  ", subsequent_indent="      ") for line in lines]


def notes_on_runs(arms):
    """Returns what a reader must know about these runs, in lines."""
    notes = []
    for name, records in arms.items():
        n_finished = sum(record.is_finished() for record in records)
        if n_finished < len(records):
            notes.append(f"{name}: {n_finished} of {len(records)} runs have finished. Others count only where an arm "
                         "has none and no test was planned, and are compared at the same step alone.")
        if "lengths" in records[0].config:
            notes.append(f"{name}: its runs were made longer on the way (max_iters {records[0].config['lengths']}), so "
                         "they are not runs that had this length from the start.")
    for key, texts in origins([record for records in arms.values() for record in records]).items():
        if len(texts) > 1:
            notes.append(f"The {key} of these runs differs: {', '.join(texts)}.")
    return notes
