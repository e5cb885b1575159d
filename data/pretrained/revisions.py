"""
Finds what to score if a name stands for several checkpoints of a training.

    find_targets("EleutherAI/pythia-160m", "step*")        # branches and tags that match, in the order of training
    find_targets("google/multiberts-seed_0-step_*k")       # repositories that match
    find_targets("out/run", "checkpoint-*")                # folders or files that match; or "out/run/checkpoint-*"
"""

import glob
import os
import re
import sys
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from data.pretrained.files import CheckpointError, printable, require
from data.pretrained.hub import list_repos, list_revisions
from data.pretrained.sources import SUFFIXES, find_source, is_hub_id, without_address

NUMBER = r"(\d+(?:\.\d+)?)([kKMBT](?![a-zA-Z]))?"  # 20k, 900, 0.5M
UNITS = {None: 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
# The name of a checkpoint among others in a folder. Not every name with a number is one: llama-7b and llama-13b are two
# models.
CHECKPOINT = re.compile(r"(step|checkpoint|ckpt|iter|epoch)[-_=]?\d|model_\d+\.pt$")


class Target(NamedTuple):
    """One checkpoint to score. model and revision together name it in a CSV."""

    model: str  # as the user named it
    revision: str  # which of its checkpoints: a branch, tag, commit, folder or repository; "" if there is only one
    source: str  # what open_checkpoint takes
    step: float | None = None  # its step in the training, in the unit of the names; None if it is not known

    def key(self) -> tuple[str, str]:
        return self.model, self.revision

    def label(self) -> str:
        return " ".join(self.key()).strip()


# ---- along a training --------------------------------------------------------------------------------------------


def read_step(name: str) -> tuple[str, float] | None:
    """
    The phase of training and the step that a name tells: 'stage1-step900-tokens4B' -> 'stage1-step', 900.

    The step is the number after 'step', else the last number after any /. None if there is no number. An epoch is no
    phase: 'epoch=1-step=200.ckpt' -> 'step=', 200.
    """
    last = name.rfind("/") + 1
    numbers = list(re.finditer(r"step[-_=]?" + NUMBER, name[last:])) or list(re.finditer(NUMBER, name[last:]))
    if not numbers:
        return None
    number = numbers[-1]
    digits, unit = number.groups()
    phase = re.sub(r"epoch=\d+-", "", name[: last + number.start(1)])
    return phase, float(digits) * UNITS[unit]


def in_order(names: list[str]) -> list[tuple[str, float]]:
    """
    (name, step) in the order of training, of names that tell a step.

    If a later phase counts its steps from 0 again, the last step of the phase before is added to them.
    """
    ordered, phase_before, begin = [], None, 0.0
    for name in sorted(names, key=read_step):
        phase, step = read_step(name)
        if phase != phase_before:
            end = ordered[-1][1] if ordered else -1.0
            begin = end if step <= end else 0.0
            phase_before = phase
        ordered.append((name, begin + step))
    return ordered


def thin_out(training: list[Target], stride: int, limit: int | None) -> list[Target]:
    """Each stride-th checkpoint. If these are more than limit, so many, evenly spread, with the first and last."""
    kept = training[::stride]
    n = min(len(kept), limit or len(kept))
    return [kept[round(i)] for i in np.linspace(0, len(kept) - 1, n)]


# ---- what a name stands for --------------------------------------------------------------------------------------


def find_targets(name: str, revisions: str | None = None) -> list[list[Target]]:
    """
    The checkpoints that a name stands for: a list for each training, in the order of its steps; one of a single model.

    revisions: a glob for the branches and tags of a repository, or for the folders and files in a folder. The name may
    be a glob itself.
    """
    name = without_address(name)
    path = os.path.expanduser(name)
    asked = f"{name} {revisions}" if revisions else name
    if revisions and os.path.isdir(path):
        paths = find_files(f"{glob.escape(path)}/{revisions}")
        require(paths, f"no folder or file in {name} matches {revisions}")
        if "/" in revisions.rstrip("/"):  # the folders of several trainings
            return order({path: path for path in paths}, asked)
        return order({os.path.basename(path): path for path in paths}, asked, name)
    if revisions:
        return order(find_revisions(name, revisions), asked, name)
    if glob.has_magic(name) and not os.path.exists(path):  # a folder run[1] is that folder
        return order({match: match for match in find_files(path) or list_repos(name)}, asked)
    return [[Target(name, "", find_source(name))]]


def order(sources: dict[str, str], asked: str, model: str = "") -> list[list[Target]]:
    """
    The checkpoints of one training or of several, each in the order of its steps. sources: {name: what open_checkpoint
    takes}. asked: the pattern of the user. model: the model of all; "": a training is of the names that differ in the
    step alone, and called by these with a * for the step.
    """
    trainings = defaultdict(list)  # model -> the names of its checkpoints
    without_step = [name for name in sources if not read_step(name)]  # as the branch main
    for name in sorted(sources.keys() - without_step):
        phase, _ = read_step(name)
        trainings[model or f"{phase}*"].append(name)
    require(trainings, f"nothing that matches {asked} has a step in its name")
    if without_step:
        print(printable(f"{asked}: {len(without_step)} of the {len(sources)} that match have no step in their names, "
                        f"and are left out: {', '.join(without_step):.100}"), file=sys.stderr)
    return [[Target(of_model, name, sources[name], step) for name, step in in_order(names)]
            for of_model, names in trainings.items()]


def find_files(pattern: str) -> list[str]:
    """The folders and the files of weights that match a glob."""
    paths = [path.rstrip("/") for path in glob.glob(pattern)]
    return [path for path in paths if os.path.isdir(path) or path.endswith(SUFFIXES)]


def find_revisions(name: str, pattern: str) -> dict[str, str]:
    """{revision: what open_checkpoint takes} for the branches and tags of a repository that match a glob."""
    repo = find_source(name)
    require(is_hub_id(repo), f"there is no folder {name}, and a Hub id is org/name")
    known = list_revisions(repo)
    found = {revision: f"{repo}@{revision}" for revision in known if fnmatchcase(revision, pattern)}
    others = ", ".join(known[:5]) or "none"
    require(found, f"no branch or tag of {repo} matches {pattern}; the first of its {len(known)} are {others}")
    return found


# ---- all that is asked for ---------------------------------------------------------------------------------------


def find_all(names: list[str], revisions: str | None = None, stride: int = 1,
             limit: int | None = None) -> tuple[list[Target], dict[str, CheckpointError]]:
    """
    The checkpoints of all names, each once; and {name: error} for what was not found. stride and limit apply to every
    training by itself.
    """
    groups, errors = [], {}
    paths = [name.rstrip("/") for name in names]
    if is_training(paths) and not revisions:
        groups = order({path: path for path in paths}, os.path.dirname(paths[0]))
        names = []
    for name in names:
        try:
            groups += find_targets(name, revisions)
        except CheckpointError as e:
            errors[name] = e
    targets = [target for group in groups for target in thin_out(group, stride, limit)]
    return list(dict.fromkeys(targets)), errors


def is_training(paths: list[str]) -> bool:
    """Whether they are what a shell makes of out/run/checkpoint-*: the checkpoints in one folder."""
    in_one_folder = len({os.path.dirname(path) for path in paths}) == 1 < len(paths)
    return in_one_folder and all(os.path.exists(path) and CHECKPOINT.search(os.path.basename(path)) for path in paths)


def require_one_kind(targets: list[Target]):
    """CheckpointError if some are checkpoints of trainings, and others are not, because their tables differ."""
    alone = [target.label() for target in targets if target.step is None]
    require(len(alone) in (0, len(targets)),
            f"{', '.join(alone)}: no training, and others are: give them in two commands")
