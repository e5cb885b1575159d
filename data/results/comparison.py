"""Prints comparisons of runs of train.py (analyze.py --runs), and draws the pictures that go with them."""

import itertools

import numpy as np
import pandas

from config import KEYS, ConfigError, run_file
from config.planned import (MEASURES, arms_of_test, column_of, differing_keys, require_names, require_planned,
                            split_measure, task_of)
from data.chance import SCORES
from data.names import fixed
from data.results.compare import (FREE, MIN_PAIRS, at_end, compare_arms, counted, do_planned, find_baselines, finished,
                                  pool)
from data.results.ends import table_of_ends
from data.results.exact import DRAWS, EXACT_PAIRS, holm
from data.results.records import origins, read_comparison, write_comparison
from data.results.runs import require


def report_runs(args):
    """Compares runs, from their folders or from the CSV file of a comparison, or shows the ends of a single run."""
    pooled, plans = pool(args.runs)
    measure = args.measure or "loss"
    split_measure(measure)  # an error if there is no such measure
    planned = find_plan(args.plan, plans, {name: records[0].config for name, records in pooled.items()})
    arms = choose_arms(pooled, args.arms, args.baseline, measure)
    runs = list(itertools.chain(*arms.values()))
    if args.csv:
        require_names(arms)
        write_comparison(args.csv, arms, planned)
    if args.plot:
        from data.results import figures_runs, picture  # and matplotlib with them

        if len(runs) == 1:
            picture.plot_run(runs[0], args.plot, args.gamma)
        else:
            figures_runs.plot_runs({name: counted(arms[name]) for name in arms}, args.plot, args.gamma)
    if planned and not (args.arms or args.baseline or args.all or args.measure):
        texts = report_plan(planned, arms)
    elif len(runs) == 1 and not args.measure:
        texts = [table_of_ends(runs[0]), *notes_on_runs(arms)]
    else:
        texts = report_comparison(arms, args.baseline, measure, args.all)
    print(*texts, sep="\n", flush=True)


def choose_arms(arms, chosen, baseline, measure):
    """Returns those of the arms that are chosen (None: all) and the baseline, in the order of the table."""
    names = [*(chosen or arms), *([baseline] if baseline else [])]
    for name in names:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    baseline_of = find_baselines({name: arms[name] for name in arms if name in names}, baseline, measure)
    return {name: arms[name] for name in baseline_of}


def report_plan(planned, arms):
    """Returns the tables of planned tests, in texts."""
    tables = [arms_table(planned, arms).to_string(), planned_table(planned, arms).to_string(index=False)]
    return [*tables, LEGEND_OF_PLAN.format(n=len(planned)), *notes_on_runs(arms, only_finished=True)]


def report_comparison(arms, baseline, measure, has_all):
    """Returns the table of arms beside their baselines, in texts. has_all: with all columns."""
    measured = {name: arms[name] for name in arms if at_end(counted(arms[name]), column_of(measure)).notna().all()}
    require(measured, f"no run has {measure}: there are {what_is_measured(arms)}")
    require(baseline in (None, *measured), f"the runs of {baseline} have no {measure}")
    baseline_of = find_baselines(measured, baseline, measure)
    table = comparison_table(measured, baseline_of, measure)
    if not has_all:
        table = table.drop(columns=["pairs", "speed-up"])
    texts = [table.to_string(), legend(measure, (table["p"] != "").any())]
    if has_all:
        texts.append(LEGEND_OF_ALL)
    texts += [f"{name}: its runs have no {measure}." for name in arms if name not in measured]
    first = next(iter(baseline_of))
    for name in baseline_of:
        if name != first and baseline_of[name] == name:  # of another task
            keys = differing_keys([task_of(measured[arm][0].config) for arm in (first, name)])
            texts.append(f"{name} is not compared with {first}, because they differ in {', '.join(keys)}.")
    return texts + notes_on_runs(measured)


def what_is_measured(arms):
    """Returns which measures some runs have, and which layers, in words."""
    runs = list(itertools.chain(*arms.values()))
    names = [name for name in MEASURES if any(len(run.curve(column_of(name))) for run in runs)]
    last_layer = max(record.config["n_layer"] for record in runs) - 1
    return f"{', '.join(names)}, and layers 0 to {last_layer}"


def find_plan(path, plans, configs):
    """
    Returns the planned tests in the file of --plan, a plan or a comparison, or else those in plans; [] if none has any.

    plans: {path: planned tests} of the comparisons that are read; configs: {arm: its keys} of the runs that there are.
    Raises ConfigError if a test is wrong, or two files have some.
    """
    arms = None  # a comparison may name some that have no runs
    if path and path.endswith(".py"):
        plan = run_file(path)
        keys_of = plan.get("arms", {})  # {arm: the keys that it sets}
        plans, arms = {path: plan.get("planned", [])}, dict.fromkeys(map(str, keys_of)) | configs
    elif path:
        records, planned = read_comparison(path)
        keys_of, plans = {record.arm: record.config for record in records}, {path: planned}
    if path:
        require(plans[path], f"{path} has no planned tests")
        require_arms_of(path, keys_of, configs)
    for path, planned in plans.items():
        require_planned(path, planned, configs, arms)
    found = [planned for planned in plans.values() if planned]
    if len(found) > 1:
        raise ConfigError("several of these files have planned tests: choose one with --plan=FILE")
    return found[0] if found else []


def require_arms_of(path, keys_of, configs):
    """Raises RunError if an arm has other values in the file at path, which then is of another comparison."""
    are_dicts = isinstance(keys_of, dict) and all(isinstance(keys, dict) for keys in keys_of.values())
    require(are_dicts, f"{path}: arms is {keys_of!r:.60}, expected a dict of dicts")
    for arm, keys in keys_of.items():
        here = configs.get(arm, keys)  # an arm without runs has no other values
        for key in sorted(keys.keys() & KEYS.keys() - FREE):
            require(keys[key] == here[key], f"{path} is of another comparison: its {arm} has {key} = {keys[key]!r}, "
                    f"and that of these runs {here[key]!r}")


def legend(measure, has_p):
    """Returns what the columns of comparison_table mean. has_p: whether any row has a p."""
    name, layer = split_measure(measure)
    of_layer = "" if layer is None else f", in layer {layer}"
    return LEGEND.format(measure=measure, what=MEASURES[name] + of_layer) + (LEGEND_OF_P if has_p else LEGEND_OF_NO_P)


LEGEND = """\
  {measure}: {what}, at the end, mean over seeds
  symmetry, directionality: of W_qk at the end of training, median over layers
  difference: how much higher (+) or lower (-) the {measure} is than that of the baseline with the same seed, mean
      over these pairs of runs, and in brackets its 95 % confidence interval"""
LEGEND_OF_P = f"""
  p: how often chance alone makes the difference as large (exact sign-flip test, of more than {EXACT_PAIRS} pairs with
      {DRAWS:,} draws of the signs; Holm's correction over arms). Fewer than {MIN_PAIRS} pairs have none, because they
      cannot reach p < 0.05"""
LEGEND_OF_NO_P = f"""
  p: no row has one. Fewer than {MIN_PAIRS} pairs have none, because they cannot reach p < 0.05"""
LEGEND_OF_ALL = """\
  pairs: how many runs have the same seed as a run of the baseline
  speed-up: share of the steps that an arm did not need to reach the last loss of the baseline, median over pairs. This
      is the rule of the paper's Table 1, but each loss is a mean of three evaluations: one may be low by chance"""
LEGEND_OF_PLAN = f"""\
  n: finished runs. All numbers are at the end of training, means over seeds; scores are medians over layers
  chance: mean symmetry of random matrices in the directions of W_qk; their chance: in those of positions' own matrix
  heads: symmetry of single heads, mean over the heads of a layer
  difference: left less right, mean over seeds, and in brackets its 95 % confidence interval ({MIN_PAIRS} pairs or more)
  p: p after Holm's correction over the {{n}} tests of the plan (exact sign-flip test, of more than {EXACT_PAIRS} pairs
      with {DRAWS:,} draws of the signs). Not shown: p is 0.05 or more"""


def arms_table(planned, arms):
    """Returns a DataFrame of cells, a row for each arm, also for those of the plan without runs."""
    keys = differing_keys([task_of(records[0].config) for records in arms.values()])
    rows = {}
    for name in [*arms, *itertools.chain(*map(arms_of_test, planned))]:
        runs = finished(arms.get(name, []))
        row = dict(n=len(runs), task="")
        if name in arms:
            task = task_of(arms[name][0].config)
            row["task"] = ", ".join(f"{key}={str(task.get(key)):.9}" for key in keys)
        row["loss"] = mean_cell(runs, "val_loss", digits=3)
        for column in "symmetry", "chance", "heads", "directionality", "positions", "positions_chance":
            row[column.replace("positions_", "their ")] = mean_cell(runs, column, digits=2)
        rows[name] = row if runs else row | dict(loss="no finished run")
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis(columns="arm")
    return table.loc[:, (table != "").any()]  # columns with something in them


def planned_table(planned, arms):
    """Returns a DataFrame of cells, a row for each planned test."""
    rows = []
    for (measure, left, direction, right), test in zip(planned, do_planned(planned, arms)):
        rows.append({"measure": measure, "left": left, "": direction, "right": right, "pairs": test["n_pairs"],
                     "difference [95 %]": difference_cell(test), "p": f"{test['p']:.2g}", "result": test["result"]})
    return pandas.DataFrame(rows)


def comparison_table(arms, baseline_of, measure="loss"):
    """Returns a DataFrame of cells as they are shown, a row for each arm. p is corrected for the number of arms."""
    column = column_of(measure)
    gains = {name: compare_arms(arms[name], arms[baseline], column)
             for name, baseline in baseline_of.items() if name != baseline}
    corrected = holm({name: gain["p"] for name, gain in gains.items()})
    rows = {}
    for name in baseline_of:
        runs = counted(arms[name])
        gain = gains.get(name)  # None: of a baseline
        row = {
            measure: mean_cell(runs, column, digits=3),
            "difference [95 %]": difference_cell(gain) if gain else "baseline",
            "p": f"{corrected[name]:.2g}" if gain and gain["n_pairs"] >= MIN_PAIRS else "",
        }
        for score in SCORES:
            row.setdefault(score, mean_cell(runs, score, digits=2))
        row["pairs"] = gain["n_pairs"] if gain else ""
        row["speed-up"] = speed_up_cell(gain["speed_up"]) if gain else ""
        rows[name] = row
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(columns="arm")


def mean_cell(records, column, digits):
    """Returns the mean over runs of the last value of a column as it is shown, "" if a run has none."""
    mean = at_end(records, column).mean(skipna=False)
    return "" if np.isnan(mean) else fixed(mean, digits)


def speed_up_cell(speed_up):
    """Returns a speed-up as it is shown. nan: there are no pairs."""
    if np.isnan(speed_up):
        return ""
    return "not reached" if speed_up == -np.inf else f"{speed_up:.0%}"


def difference_cell(gain):
    """Returns a difference as it is shown, with its interval if there are pairs enough."""
    if gain["n_pairs"] == 0:
        return "no pairs"
    low, high = gain["interval"]
    return f"{gain['difference']:+.3f}" + (f" [{low:+.3f}, {high:+.3f}]" if gain["n_pairs"] >= MIN_PAIRS else "")


def notes_on_runs(arms, only_finished=False):
    """Returns what a reader must know about these runs, in lines. only_finished: of an arm without any, none counts."""
    notes = []
    for name, records in arms.items():
        n_finished = len(finished(records))
        if n_finished < len(records):
            shown = "Only these count."
            if not n_finished and not only_finished:
                shown = "So all count, as far as they are, and none is compared with a run that is at another step."
            notes.append(f"{name}: {n_finished} of {len(records)} runs have finished. {shown}")
    for key, texts in origins(list(itertools.chain(*arms.values()))).items():
        if len(texts) > 1:
            notes.append(f"The {key} of these runs differs: {', '.join(texts)}.")
    return notes
