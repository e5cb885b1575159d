"""
Finds what to score if a name is that of several checkpoints of one training.

    find_targets("EleutherAI/pythia-160m", "step*")   # branches and tags that match, in the order of training
    find_targets("out/run", "checkpoint-*")           # folders and files of out/run that match
"""

import glob
import os
import re
import sys
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from data.pretrained.files import CheckpointError, as_text, printable, require
from data.pretrained.hub import list_revisions
from data.pretrained.sources import SUFFIXES, find_source, is_hub_id

NUMBER = r"(\d+(?:\.\d+)?)([kKMBT](?![a-zA-Z]))?"  # 20k, 900, 0.5M
UNITS = {None: 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
# The name of a checkpoint among others in a folder. Not every name with a number is one: llama-7b and llama-13b are two
# models.
CHECKPOINT = re.compile(r"(step|checkpoint|ckpt|iter|epoch)[-_=]?\d|model_\d+\.pt$")


class Target(NamedTuple):
    """One checkpoint to score."""

    model: str  # as the user named it
    revision: str  # which of its checkpoints: a branch, tag, folder or file; "" if there is only one
    source: str  # what open_checkpoint takes
    step: float | None = None  # its step in the training, in the unit of the names; None if it is not known

    def label(self) -> str:
        return f"{self.model} {self.revision}".strip()


def read_step(name: str) -> float | None:
    """The step that a name tells: the number after 'step', else the last number. None if there is no number."""
    numbers = list(re.finditer(r"step[-_=]?" + NUMBER, name)) or list(re.finditer(NUMBER, name))
    if not numbers:
        return None
    digits, unit = numbers[-1].groups()
    return float(digits) * UNITS[unit]


def find_targets(model: str, revisions: str | None = None) -> list[Target]:
    """
    The checkpoint of a model; or those that match a glob, in the order of their steps.

    revisions: a glob for the branches and tags of a repository of the Hub, or for the folders and files in a folder.
    """
    if not revisions:
        return [Target(as_text(model), "", find_source(model))]
    folder = os.path.expanduser(model)
    found = find_files(folder, revisions) if os.path.isdir(folder) else find_revisions(model, revisions)
    return in_order(model, found)


def find_files(folder: str, pattern: str) -> dict[str, str]:
    """{name: path} of the folders and files of weights in a folder that match a glob."""
    names = [name for name in os.listdir(folder) if fnmatchcase(name, pattern.rstrip("/"))]
    paths = {name: os.path.join(folder, name) for name in names}
    found = {name: path for name, path in paths.items() if os.path.isdir(path) or name.endswith(SUFFIXES)}
    require(found, f"no folder or file in {folder} matches {pattern}")
    return found


def find_revisions(model: str, pattern: str) -> dict[str, str]:
    """{revision: what open_checkpoint takes} of the branches and tags of a repository that match a glob."""
    repo = find_source(model)
    require(is_hub_id(repo), f"there is no folder {model}, and a Hub id is org/name")
    known = list_revisions(repo)
    found = {revision: f"{repo}@{revision}" for revision in known if fnmatchcase(revision, pattern)}
    others = ", ".join(known[:5]) or "none"
    require(found, f"no branch or tag of {repo} matches {pattern}; the first of its {len(known)} are {others}")
    return found


def in_order(model: str, sources: dict[str, str]) -> list[Target]:
    """The checkpoints of one training, in the order of its steps. sources: {name: what open_checkpoint takes}."""
    targets = [Target(as_text(model), as_text(name), source, read_step(name))
               for name, source in sorted(sources.items())]
    training = [target for target in targets if target.step is not None]
    left_out = [target.revision for target in targets if target.step is None]  # as the branch main
    require(training, f"nothing of {model} that matches has a step in its name")
    if left_out:
        print(printable(f"{model}: {len(left_out)} of the {len(targets)} that match have no step in their names, and "
                        f"are left out: {', '.join(left_out):.100}"), file=sys.stderr)
    return sorted(training, key=lambda target: target.step)


def thin_out(training: list[Target], stride: int, limit: int | None) -> list[Target]:
    """Each stride-th checkpoint. If these are more than limit, so many, evenly spread, with the first and last."""
    kept = training[::stride]
    n = min(len(kept), limit or len(kept))
    return [kept[round(i)] for i in np.linspace(0, len(kept) - 1, n)]


def find_all(names: list[str], revisions: str | None = None, stride: int = 1,
             limit: int | None = None) -> tuple[list[Target], dict[str, CheckpointError]]:
    """
    The checkpoints of all names, each once; and {name: error} for what was not found. stride and limit apply to every
    training by itself.
    """
    names = [path for name in names for path in expanded(name)]
    if is_training(names) and not revisions:
        folder = os.path.dirname(names[0]) or "."
        return thin_out(in_order(folder, {os.path.basename(name): name for name in names}), stride, limit), {}
    targets, errors = [], {}
    for name in names:
        try:
            targets += thin_out(find_targets(name, revisions), stride, limit)
        except CheckpointError as e:
            errors[name] = e
    return list(dict.fromkeys(targets)), errors


def expanded(name: str) -> list[str]:
    """The paths that a pattern in quotes stands for, as a shell would give them. Any other name by itself."""
    path = os.path.expanduser(name)
    found = glob.glob(path) if glob.has_magic(name) and not os.path.exists(path) else []  # run[1] may be a folder
    return [path.rstrip("/") for path in sorted(found) or [name]]


def is_training(paths: list[str]) -> bool:
    """Whether they are what a shell makes of out/run/checkpoint-*: the checkpoints in one folder."""
    in_one_folder = len({os.path.dirname(path) for path in paths}) == 1 < len(paths)
    return in_one_folder and all(os.path.exists(path) and CHECKPOINT.search(os.path.basename(path)) for path in paths)
