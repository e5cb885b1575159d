"""
The judge of the race to 1.80 nats: what an entry's plan may set, and what all of its runs have in common. The limits
are those of config/plans/benchmark.py, and not the entry's own. data/results/README.md, question 8, has the rules in
words, and what no program can refuse. config/records/template.py is an entry to copy.
"""

import itertools
import re
from pathlib import Path

import torch

from config import KEYS, ROOT, ConfigError, TrainConfig, differing_keys, launch, require
from config.plan import RACE, read_plan
from model import Transformer

# {arm: its plan}, the newest last: a new record is added here
RECORDS = {
    "rotary_tuned": "config/plans/benchmark.py",
    "muon": "config/records/muon.py",
}
COMMIT = "[0-9a-f]{40}"
ONE_FOR_ALL = "commit", "torch", "device_name", "made_with"  # or a run with bad luck could be rolled again


def require_entry(plan):
    """Raises ConfigError unless a plan is that of the race, in all but its docstring and the keys of its last arm."""
    from data.tokens import TOKENIZERS  # inside of functions, because config is below data

    # 1) what is not the entrant's: seeds, baseline, record and test. A record is held against the one before it
    here = Path(plan.path).resolve()
    *_, record = itertools.takewhile(lambda arm: ROOT / RECORDS[arm] != here, RECORDS)
    race, entry = read_plan(RACE), [*plan.arms][-1]
    keys_of_record = read_plan(ROOT / RECORDS[record]).arms[record]
    arms = {"learned": race.arms["learned"], record: keys_of_record, entry: plan.arms[entry]}
    require([*plan.arms] == [*arms], f"{plan.path}: its arms are {', '.join(plan.arms)}, expected {', '.join(arms)}")
    for name, keys in arms.items():
        require(plan.arms[name] == keys, f"{plan.path}: its {name} is {plan.arms[name]}, and in the race {keys}")
    expected = race._replace(path=plan.path, arms=plan.arms, planned=[("steps_to_1.8", entry, "<", record)])
    for name, found, value in zip(plan._fields, plan, expected):
        require(found == value, f"{plan.path}: {name} is {found!r}, and in the race it is {value!r}")

    # 2) what its arm may set: keys of the model and of its training, and none of the text, the steps or the machine
    configs = [plan.keys_of(name)[1] for name in ("learned", entry)]
    for key in differing_keys(configs):
        value, found = [config[key] for config in configs]
        is_free = KEYS[key].metadata["varies"] == "task" and key != "skip_iters"
        require(is_free, f"{plan.path}: {entry} has {key} = {found!r}, and in the race it is {value!r}")

    # 3) how large its model is, without memory for its weights
    with torch.device("meta"):
        model = Transformer(TrainConfig(**configs[1]).of_model(TOKENIZERS["bytes"]["vocab_size"]))
    require_size(plan, entry, sum(p.numel() for p in model.parameters()))


def require_size(plan, name, n_params):
    """Raises ConfigError for a model that is too large."""
    require(n_params <= plan.most_params, f"{plan.path}: {name} has {n_params:,} parameters, and at most "
            f"{plan.most_params:,} are allowed")


def require_text(sha256, where):
    """Raises ConfigError unless these are the digests of the race's train.bin and val.bin, in one line."""
    from data.sympy.prepare import DIGESTS

    require(sha256 == " ".join(DIGESTS["bytes"].values()), f"{where}: this is not the text of the race: "
            "delete data/sympy/bytes, and install the sympy of requirements.txt")


def is_committed():
    """Returns whether the code is that of a commit: -dirty is of none, and neither is a copy without a repository."""
    from data.runs.write import find_commit

    return re.fullmatch(COMMIT, find_commit()) is not None


def make_ready(folder):
    """Makes the text before the first run. Raises ConfigError if another one is there, or if code is in no commit."""
    from data import tokens
    from data.sympy import prepare

    require(is_committed(), "commit all Python files first: runs of code that is in no commit are no entry")
    try:
        if not Path(folder, "meta.json").exists():
            prepare.make(Path(folder))
        meta = tokens.load(folder).meta
    except tokens.DataError as e:
        raise ConfigError(str(e)) from e
    require_text(" ".join(meta["sha256"].values()), folder)


def require_fair(plan, arms):
    """Raises ConfigError unless all runs of a race are there, small enough, of its text, and made alike."""
    for name, seed in itertools.product(plan.arms, plan.seeds):
        is_there = name in arms and seed in arms[name].seeds()
        require(is_there, f"{plan.path}: {name} has no run of seed {seed}, and a race needs all")
    for name, arm in arms.items():
        require_size(plan, name, arm.config["n_params"])
        require_text(arm.config["sha256"], f"{plan.path}: {name}")
        are_copies = arm.curves("loss").T.duplicated().any()
        require(not are_copies, f"{plan.path}: two seeds of {name} have the same losses, so one is a copy")
    for fact in ONE_FOR_ALL:
        found = sorted(set().union(*[arm.config.get(fact, []) for arm in arms.values()]))
        if not found and not plan.is_entry():
            continue  # runs of benchmark.csv did not keep made_with
        require(len(found) == 1, f"{plan.path}: a race has one {fact} for all runs, and these have {'; '.join(found)}")
        require(fact != "commit" or re.fullmatch(COMMIT, *found), f"{plan.path}: its runs are of {found[0]}, no commit")


def what_lacks(plan, docstring, generations):
    """Returns in words what an entry lacks before it can be judged. generations: its runs, as config.plan.commands."""
    n_runs = sum(map(len, generations))
    n_left = n_runs - len(launch.find_finished(generations))
    lacks = {
        "the number of trials in its docstring, such as '12 trials'": not re.search(r"\d trial", docstring),
        "a commit of all Python files": not is_committed(),
        f"{n_left} of its {n_runs} runs": n_left > 0,
    }
    words = [what for what, is_missing in lacks.items() if is_missing] or ["nothing but what data.runs says"]
    return f"{plan.path}, an entry of the race, still lacks: {'; '.join(words)}"
