"""
Compares training runs, from their folders or from the CSV file of a comparison, and tests what a plan has planned.
Runs of one setting are in folders SETTING-SEED, such as bi-1 and bi-2. The setting of another folder is its name.

    python -m data.runs out/tiny out/tiny_decoder --plot runs.png
    python -m data.runs out/plans/positions/* --plan config/plans/positions.py --csv positions.csv
    python -m data.runs data/results/csv/starts.csv --all
"""

import argparse
import re
import sys
from pathlib import Path

import pandas

from config import ROOT, ConfigError, differing_keys, end_with_pipe, may_differ, require, run_file
from config.plan import STEPS_TO, match_measure, read_plan
from data import expand
from data.runs.compare import LEGEND, OF_KERNEL, arms_table, layers_table, steps_table, tests_table
from data.runs.kept import is_kept, pool, write_comparison
from data.runs.read import what_differs


def report_runs(args):
    """Prints what a command line asks for, and writes its --csv and --plot."""
    # 1) read the runs, and find their plan
    paths = expand(args.runs)
    arms, plan = pool(paths), find_plan(args.plan, paths)

    # 2) check that they are the runs of this plan, and put them into its order
    if plan:
        require_runs_of(plan, arms)
        arms = {name: arms[name] for name in plan.arms if name in arms}
    are_single = all(len(arm.seeds()) == 1 for arm in arms.values())
    if are_single and len(arms) > 1 and all(name[-1].isdigit() for name in arms):
        print("Each is a setting of its own: runs of one setting are in folders SETTING-SEED, such as bi-1 and bi-2")

    say_commits(arms)

    # 3) do the planned tests. They compare all arms, at the end, whatever is chosen below
    planned = plan.planned if plan else []
    if planned and unfinished(arms):
        print("No planned test is done, because some runs have not finished")
        planned = []
    tests = [tests_table(planned, arms)] if planned else []

    # 4) choose what else to show: what the flags say, or else what the planned tests measure
    chosen = args.arms or arms
    for name in chosen:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    arms = {name: arm for name, arm in arms.items() if name in chosen}
    is_wrong = args.measure.startswith(STEPS_TO) and not match_measure(args.measure)
    require(not is_wrong, f"no run has {args.measure}, such as steps_to_1.8")
    is_plain = not (args.arms or args.all or args.measure or args.by_layer)
    tested = [measure for measure, *_ in planned] if is_plain else []

    # 5) write all steps, and draw and print those that all runs have
    if args.csv:
        write_comparison(args.csv, arms)
    arms, time = at_one_time(arms)
    if args.plot:
        from data.runs import plots  # and matplotlib with it

        picture = run_file(plan.path).get("picture", {}) if plan and is_plain and not args.title else {}
        plots.plot_arms(arms, args.plot, tested, args.measure, args.title, picture)
    by_layer = args.by_layer or (is_plain and are_single)  # single runs can be looked at, and not compared in pairs
    tables = [table_of(args, arms, time, tested, by_layer)]
    if args.by_layer and any(len(arm.curves("from_positions")) for arm in arms.values()):
        tables.append(layers_table(arms, time, OF_KERNEL))
    print_tables([*tables, *tests])


def say_commits(arms):
    """Prints which runs are of differing code, or of code that is in no commit."""
    arms_of = {}  # {commit: the names of its arms}
    for name, arm in arms.items():
        for commit in arm.config["commit"]:
            arms_of.setdefault(commit, []).append(name)
    if len(arms_of) > 1 or any(commit.endswith(("-dirty", "no repository")) for commit in arms_of):
        words = []
        for commit, names in arms_of.items():
            words.append(f"{re.sub('(?<=^.{7})[0-9a-f]*', '', commit)} ({', '.join(names)})")
        print("The code of these runs (-dirty: in no commit):", "; ".join(words))


def table_of(args, arms, time, tested, by_layer):
    """Returns the table that a command line asks for. time: in words. tested: the measures of planned tests."""
    measure = tested[0] if tested else args.measure or "loss"
    if measure.startswith(STEPS_TO):
        return steps_table(arms, measure)
    if tested:
        return arms_table(arms, "loss", has_pairs=False)  # the tests have the differences
    if by_layer:
        return layers_table(arms, time)
    return arms_table(arms, measure, has_all=args.all)


def print_tables(tables):
    """Prints tables, and below them what their columns mean, each column once."""
    columns = {}
    for table in tables:
        print(table.to_string(index="result" not in table))  # the rows of tests have no names
        columns |= dict.fromkeys(table)
    for column in columns:
        if column in LEGEND:
            print(f"  {column}: {LEGEND[column]}")


def unfinished(arms):
    """Returns the names and seeds of the runs that have no loss at their last step."""
    names = []
    for name, arm in arms.items():
        for seed, losses in arm.curves("loss").items():
            if losses.last_valid_index() != arm.config["max_iters"]:
                names.append(f"{name} {seed}")
    return names


def at_one_time(arms):
    """Returns the runs, cut at their last common step if one has not finished, and in words when that is."""
    running = unfinished(arms)
    if not running:
        return arms, "at the end"
    curves = [arm.table[["val_loss", "symmetry"]].unstack("seed") for arm in arms.values()]
    step = pandas.concat(curves, axis="columns").dropna().index.max()  # the last at which no run lacks a number
    print(f"All runs are shown at step {step:,}, because these have not finished: {', '.join(running)}")
    cut = {name: arm._replace(table=arm.table.query(f"step <= {step}")) for name, arm in arms.items()}
    return cut, f"at step {step:,}"


def find_plan(path, runs):
    """Returns the Plan at path. Without a path: that of the same name for a file of data/results/csv alone, or None."""
    first = Path(runs[0])
    if path is None and len(runs) == 1 and first.resolve().parent == ROOT / "data/results/csv":
        [path] = [*ROOT.glob(f"config/*/{first.stem}.py")] or [None]  # in plans or records
    return read_plan(path) if path else None


def require_runs_of(plan, arms):
    """Raises ConfigError if a run is not one of this plan. Prints which free keys, such as data_dir, differ."""
    for name, arm in arms.items():
        require(name in plan.arms, f"{plan.path} has no arm {name}: there are {', '.join(plan.arms)}")

        # the same keys, but for free ones
        _, expected = plan.keys_of(name)
        for key in differing_keys([expected, arm.config]):
            there, here = expected.get(key), arm.config.get(key)
            # no plan names these facts, and the device decides on a dtype
            if key in ("tokenizer", "sha256", "n_params", "parent_config") or (key == "dtype" and there == "auto"):
                continue
            require(may_differ(key, "setting"), f"{plan.path}: its {name} has {key} = {there!r}, not {here!r}")
            if key in expected and is_kept(key):
                print(f"{name} has {key} = {here!r}, and {there!r} in {plan.path}")

        # the parent as well, as far as a plan names what it is
        if "parent_config" in arm.config:
            _, parent = plan.keys_of(plan.arms[name]["parent"])
            keys = differing_keys([what_differs(parent, expected), arm.config["parent_config"]])
            wrong = [key for key in keys if key not in ("dtype", "sha256", "parent_config")]
            require(not wrong, f"{plan.path}: the parent of its {name} had another {', '.join(wrong)}")

        # no other seeds
        for seed in arm.seeds():
            require(seed in plan.seeds, f"{plan.path} has no seed {seed}")
    if plan.most_params:
        from config import race  # which other plans do not need

        race.require_fair(plan, arms)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m data.runs", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="DIR", help="folders of runs, or CSV files of comparisons")
    parser.add_argument("--csv", metavar="FILE", help="write the comparison to FILE")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the plan's picture, or loss and scores by step")
    parser.add_argument("--title", default="", help="of the picture")
    parser.add_argument("--plan", metavar="FILE", help="test what this plan predicts, such as config/plans/size.py")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all of them)")
    parser.add_argument("--measure", default="", metavar="NAME",
                        help="compare by loss, symmetry, symmetry_0 (of a layer), ...")
    parser.add_argument("--all", action="store_true", help="print more columns: pairs and updates saved")
    parser.add_argument("--by_layer", action="store_true", help="print each layer")

    # a mistake of a user ends in one line
    try:
        report_runs(parser.parse_args(argv))
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m data.runs: {e}")


if __name__ == "__main__":
    end_with_pipe()
    main()
