"""
A plan: the runs of a comparison, and the tests that are planned before the first of them. config/plans/positions.py
is one to copy. Without --run its runs are printed, one a line, as arguments of train.py:

    python -m config.plan positions --run               # does the runs of config/plans/positions.py
    python -m config.plan positions --run --jobs=4      # four at a time, and not two; what was stopped goes on
    python -m config.plan mine.py --max_iters=40        # of your own file, as a trial, in out/plans/mine_max_iters=40

A run that has ended is not done again, even if the code has changed: delete its folder. An arm may begin with the last
weights of another one, run by run, and names it as its parent: config/plans/kernel.py. Its skip_iters are the steps of
the parent, or it sees the batches of the parent again.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from config import (ROOT, ConfigError, differing_keys, end_with_pipe, launch, load, may_differ, read_flags, require,
                    run_file)

RACE = ROOT / "config/plans/benchmark.py"


class Plan(NamedTuple):
    """What a file of config/plans sets."""

    path: str
    base: str  # a file that train.py takes
    arms: dict  # {name: {key: value}}, the keys that differ from base
    seeds: list
    most_params: int  # of a run in a race (config/race.py); 0: no race
    # Tests (measure, left, ">" or "<", right). Left and right are an arm, or a difference 'arm - arm'. If the measure
    # is itself a difference of two measures of a run, the right side may be "0".
    planned: list

    def keys_of(self, arm, **more):
        """Returns the keys of an arm as arguments of train.py, with more keys, and its whole configuration, a dict."""
        flags = [f"--{key}={value}" for key, value in (self.arms[arm] | more).items()]
        return flags, vars(load([str(ROOT / self.base), *flags]))

    def is_entry(self):
        """Returns whether this is an entry of the race, wherever it is, and not the race itself."""
        path = Path(self.path).resolve()
        return path != RACE and (self.most_params > 0 or path.parent == ROOT / "config/records")


def read_plan(path):
    """Returns the Plan in a file. Raises ConfigError if a test cannot be done, or KeyError if a variable is missing."""
    values = run_file(path)
    plan = Plan(path, values["base"], values["arms"], list(values["seeds"]), values.get("most_params", 0),
                values.get("planned", []))

    # If all n differences have one sign, the exact p is 2 / 2^n, and Holm's correction multiplies it by the m tests.
    lowest_p = len(plan.planned) * 2 / 2 ** len(set(plan.seeds))
    require(lowest_p < 0.05, f"{path}: no p can be below {lowest_p:.2g}: plan fewer tests, or more seeds")

    for arm in plan.arms:
        # an arm is a folder, a cell of a CSV file, and a part of a difference
        require(not re.search(r"[,#/\\\n]| - |^0$", arm),
                f"{path}: {arm!r} is no name for an arm: it may not be 0, nor have , # / \\ or ' - '")
        n_ancestors(plan, arm)  # refuses a parent that is no arm
        taken = {"seed", "out_dir", "init_from"} & plan.arms[arm].keys()
        require(not taken, f"{path}: {arm} has {', '.join(taken)}, which the plan itself sets for each run")

    # A test needs a measure that runs have, arms that the plan has, and losses that mean the same.
    for measure, left, direction, right in plan.planned:
        measures = [match_measure(name) for name in measure.split(" - ")]
        require(all(measures) and len(measures) <= 2,
                f"{path}: planned test of {measure}, which no run has: MEASURES in config/plan.py are what they have")
        test = f"{path}: planned test of {measure}, {left} {direction} {right}"
        lefts, rights = left.split(" - "), right.split(" - ")
        if right == "0" and len(measures) == 2 and len(lefts) == 1:
            rights = lefts
        are_sides = len(lefts) == len(rights) <= 2 and plan.arms.keys() >= {*lefts, *rights}
        require(direction in (">", "<") and are_sides,
                f"{test}: expected '>' or '<' between two arms, or two differences 'arm - arm'")
        configs = [plan.keys_of(arm)[1] for arm in lefts + rights]
        keys = task_keys(configs) if is_of_losses(measure) else []
        require(not keys, f"{test}: expected losses of one task, and these differ in {', '.join(keys)}")
        n_layer = min(config["n_layer"] for config in configs)
        layers = [int(match["layer"] or 0) for match in measures]
        require(max(layers) < n_layer, f"{test}: its arms have layers 0 to {n_layer - 1}")

    if plan.is_entry():
        from config import race  # which other plans do not need

        race.require_entry(plan)
    return plan


# Scores that runs have (data/results/csv/README.md), also after `positions_`. A fork adds one that its plans test.
MEASURES = """symmetry directionality directionality_eq17 update_symmetry chance own_heads shared mirror
    heads heads_chance heads_directionality positions from_positions from_contents from_rest kernel_symmetry
    kernel_norm kernel_logits loss_kernel loss_rest loss_nothing""".split()
STEPS_TO = "steps_to_"  # followed by a loss [nats/token], such as steps_to_1.8


def is_of_losses(measure):
    """Returns whether a measure means the same only in runs of one task. Scores mean the same in all."""
    return "loss" in measure or measure.startswith(STEPS_TO)


def match_measure(name):
    """Returns a match if runs have this measure, a loss, steps_to_X or a score, whose `layer` is a number or None."""
    score = rf"(positions_)?({'|'.join(MEASURES)})(_(?P<layer>\d+))?"
    return re.fullmatch(rf"{score}|loss|train_loss|{STEPS_TO}\d+(\.\d+)?", name)


def n_ancestors(plan, arm):
    """Returns how many ancestors an arm has: its parent, the parent's parent, and so on."""
    family = [arm]
    while parent := plan.arms[family[-1]].get("parent"):
        require(parent in plan.arms and parent not in family,
                f"{plan.path}: parent of {family[-1]} is {parent!r}, expected another one of {', '.join(plan.arms)}")
        family.append(parent)
    return len(family) - 1


def task_of(config):
    """Returns the keys of a run that make its task, with their values. Losses of equal ones may be compared."""
    task = {key: config[key] for key in config if not may_differ(key, "task")}
    if task["objective"] == "auto":  # as TrainConfig.predicts_next
        task["objective"] = "next" if config["causal"] else "masked"
    return task


def task_keys(configs):
    """Returns the keys in which the tasks of some configurations differ."""
    return differing_keys([task_of(config) for config in configs])


def commands(plan, for_all):
    """
    Returns the runs of a plan, pairs of a folder and the arguments of train.py: a list for each generation, parents
    first. for_all: keys of all runs. Raises ConfigError if one of them is wrong.
    """
    wrong = for_all.keys() & {"seed", "out_dir", "init_from", "parent", *differing_keys(list(plan.arms.values()))}
    require(not wrong, f"{plan.path}: its runs differ in {', '.join(sorted(wrong))}, so leave it out")

    # A trial has a folder of its own: its name holds the keys that change the runs, as Windows, too, allows it.
    folder = f"out/plans/{Path(plan.path).stem}"
    for key, value in for_all.items():
        if not may_differ(key, "how"):
            folder += re.sub(r"[/\\:]", "-", f"_{key}={value}")

    # Parents are in generation 0, their children in 1, and so on.
    number_of = {arm: n_ancestors(plan, arm) for arm in plan.arms}
    generations = [[] for _ in range(max(number_of.values()) + 1)]

    # All arms of one seed come first: if the runs are stopped, they are a comparison with fewer seeds.
    for seed in plan.seeds:
        for arm, number in number_of.items():
            keys = for_all | dict(seed=seed, out_dir=f"{folder}/{arm}-{seed}", init_from="resume")
            if number > 0:
                keys["parent"] = f"{folder}/{plan.arms[arm]['parent']}-{seed}"
            words, _ = plan.keys_of(arm, **keys)
            generations[number].append((keys["out_dir"], [plan.base, *words]))
    return generations


USAGE = "python -m config.plan NAME [--run] [--jobs=2] [--key=value ...]"


def list_plans():
    """Returns a line for each plan: its name, its minutes, and its question."""
    lines = ["Plans, and about how many minutes they take on two cores (size: on one H200):"]
    for path in sorted(ROOT.glob("config/plans/*.py")):
        values = run_file(path)
        question = re.match(r".*?[.?](?=\s)", values["__doc__"].strip(), re.DOTALL)[0]
        lines.append(f"  {path.stem:10} {values.get('minutes', '?'):4}  {' '.join(question.split())}")
    return "\n".join(lines)


def main(argv):
    if argv in (["-h"], ["--help"]):
        print(f"{USAGE}\n\n{list_plans()}")
        sys.exit()
    if not argv or argv[0].startswith("-"):
        sys.exit(f"{USAGE}; --help lists the plans")

    # find the plan: a file, or the name of one of ours
    path, *flags = argv
    if not path.endswith(".py"):
        path = ROOT / f"config/plans/{argv[0]}.py"
        if not path.exists():
            sys.exit(f"there is no plan {argv[0]}\n{list_plans()}")

    # all runs are checked here, before the first of them begins. --jobs belongs to --run, and is no key of train.py
    is_run = "--run" in flags
    try:
        for_all = read_flags([flag for flag in flags if flag != "--run"])
        n_jobs = for_all.pop("jobs", "2") if is_run else "1"
        require(re.fullmatch(r"0*[1-9]\d*", n_jobs), f"jobs = {n_jobs}, expected 1 or more")
        plan = read_plan(path)
        generations = commands(plan, for_all)
        if plan.is_entry():
            from config import race

            lacks = race.what_lacks(plan, run_file(path)["__doc__"] or "", generations)
            if is_run:
                race.make_ready(plan.keys_of("learned", **for_all)[1]["data_dir"])
    except ConfigError as e:
        sys.exit(f"python -m config.plan: {e}")

    # do them, or print them, one a line
    if is_run:
        sys.exit(launch.do_all(generations, int(n_jobs)) or None)
    for runs in generations:
        for _, words in runs:
            print(shlex.join(words))
    if plan.is_entry():
        print(lacks, file=sys.stderr)  # last, below all of these lines


if __name__ == "__main__":
    if "--run" not in sys.argv:  # or a broken pipe would end it, and leave its runs
        end_with_pipe()
    main(sys.argv[1:])
