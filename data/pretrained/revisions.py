"""
Finds what to score if a name is that of several checkpoints of one training.

    find_targets("EleutherAI/pythia-160m", "step*")   # branches and tags that match, in the order of training
    find_targets("out/run", "checkpoint-*")           # folders and files of out/run that match
"""

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..names import as_text, tell
from .files import SUFFIXES, CheckpointError, require
from .sources import find_source, known_models

NUMBER = r"(\d+(?:\.\d+)?)([kKMBT](?![a-zA-Z]))?"  # 20k, 900, 0.5M
UNITS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
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

    def known_as(self) -> str:
        """Returns by what its rows are known in the CSV: its path without links, or its Hub id and revision."""
        path = Path(self.source).expanduser()
        return as_text(str(path.resolve()) if path.exists() else self.source)


def find_all(names: list[str] | None, revisions: str | None = None, limit: int | None = None):
    """Returns {source as in the CSV: Target} of names (None: all of models.csv), and how many were not found."""
    names = names or [row["name"] for row in known_models()]
    paths = [Path(name) for name in names]
    are_checkpoints = all(path.exists() and CHECKPOINT.search(path.name) for path in paths)
    runs = {(path.parent, CHECKPOINT.split(path.name)[0]) for path in paths}  # what is before the step
    if len(runs) == 1 < len(paths) and are_checkpoints and not revisions:  # what a shell makes of out/run/checkpoint-*
        found = in_order(str(paths[0].parent), {path.name: str(path) for path in paths}, limit)
        return {target.known_as(): target for target in found}, 0
    targets = {}
    n_errors = 0
    for name in names:
        try:
            targets |= {target.known_as(): target for target in find_targets(name, revisions, limit)}
        except CheckpointError as e:  # and the others go on
            tell(f"analyze.py: {name}: {e}")
            n_errors += 1
    return targets, n_errors


def find_targets(model: str, revisions: str | None = None, limit: int | None = None) -> list[Target]:
    """
    Returns the checkpoint of a model, or those that match a glob, in the order of their steps.

    revisions: a glob for the branches and tags of a repository of the Hub, or for the folders and files in a folder.
    limit: so many of them at most, evenly spread, with the first and the last. Raises CheckpointError if none matches.
    """
    if not revisions:
        return [Target(as_text(model), "", find_source(model))]
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        paths = sorted(folder.iterdir())
        sources = {path.name: str(path) for path in paths if path.is_dir() or path.name.endswith(SUFFIXES)}
    else:
        from .hub import list_revisions  # here: a folder does not need it

        repo = find_source(model)
        sources = {revision: f"{repo}@{revision}" for revision in list_revisions(repo)}
    matching = {name: source for name, source in sources.items() if fnmatchcase(name, revisions)}
    names = ", ".join(list(sources)[:5]) or "none"
    require(matching, f"none of its {len(sources)} checkpoints matches {revisions}; the first of them are {names}")
    return in_order(model, matching, limit)


def in_order(model: str, sources: dict[str, str], limit: int | None) -> list[Target]:
    """Returns the checkpoints of a training in the order of its steps. sources: {name: what open_checkpoint takes}."""
    targets = [Target(as_text(model), as_text(name), source, read_step(name)) for name, source in sources.items()]
    training = sorted((target for target in targets if target.step is not None), key=lambda target: target.step)
    left_out = [target.revision for target in targets if target.step is None]  # as the branch main
    require(training, f"nothing of {model} that matches has a step in its name")
    if left_out:
        tell(f"{model}: {len(left_out)} of the {len(targets)} that match have no step in their names, and are left "
             f"out: {', '.join(left_out):.100}")
    n_kept = min(limit or len(training), len(training))
    return [training[round(i)] for i in np.linspace(0, len(training) - 1, n_kept)]


def read_step(name: str) -> float | None:
    """Returns the step that a name tells: the number after 'step', else the last number, or None without a number."""
    numbers = re.findall(r"step[-_=]?" + NUMBER, name) or re.findall(NUMBER, name)
    if not numbers:
        return None
    digits, unit = numbers[-1]
    return float(digits) * UNITS[unit]
