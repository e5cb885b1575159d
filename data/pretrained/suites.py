"""
What there is to score where a name stands for several checkpoints: those along a training, and the members of a suite.

    find_targets("EleutherAI/pythia-160m", "step*")        # the branches and tags that match, in the order of training
    find_targets("google/multiberts-seed_0-step_*k")       # repositories that match
    find_targets("out/run", "checkpoint-*")                # folders that match; or find_targets("out/run/checkpoint-*")
    suite_targets(find_suite("ettin"))                     # models that differ in the objective and in little else

suites.csv says of each member where it is, what it was trained for, and how it is known to exist.
"""

import csv
import difflib
import glob
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from data.pretrained.files import CheckpointError, require
from data.pretrained.layouts import LayoutError, find_stacks
from data.pretrained.sources import find_source, is_hub_id, open_checkpoint

SUITES = Path(__file__).parent / "suites.csv"
NUMBER = r"(\d+(?:\.\d+)?)([kKMBT](?![a-zA-Z]))?"  # 20k, 900, 0.5M
UNITS = {None: 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LATER_PHASES = ["ext", "decay"]  # of Ettin, in the order of its training; both count their steps anew


class Target(NamedTuple):
    """One checkpoint to score. model and revision together name it in a CSV."""

    model: str  # as the user or suites.csv named it
    revision: str  # which of its checkpoints: a branch, a tag, a commit, a folder or a repository; "" if it is the one
    source: str  # what open_checkpoint takes
    step: float | None = None  # where in its training it stands, in the unit of its names; None if nothing says so

    def label(self) -> str:
        return f"{self.model} {self.revision}".strip()


# ---- along a training --------------------------------------------------------------------------------------------


def read_step(name: str) -> tuple[str, float] | None:
    """
    The phase of a training that a name is of, and the step in it: 'stage1-step900-tokens4B' -> 'stage1-step', 900.

    The step is the number after 'step', else the last number; what stands before a / does not count. None without one.
    """
    last = name.rfind("/") + 1
    numbers = list(re.finditer(r"step[-_]?" + NUMBER, name[last:])) or list(re.finditer(NUMBER, name[last:]))
    if not numbers:
        return None
    number = numbers[-1]
    digits, unit = number.groups()
    return name[: last + number.start(1)], float(digits) * UNITS[unit]


def in_order(names: list[str]) -> list[tuple[str, float]]:
    """
    (name, step) in the order of training; names without a number are left out.

    A later phase that counts its steps anew goes on where the one before it ended.
    """
    phases = {}  # phase -> (step, name)
    for name in names:
        found = read_step(name)
        if found:
            phase, step = found
            phases.setdefault(phase, []).append((step, name))
    ordered, end = [], 0.0
    for phase in sorted(phases, key=phase_order):
        checkpoints = sorted(phases[phase])
        counts_anew = bool(ordered) and checkpoints[0][0] <= end
        begin = end if counts_anew else 0.0
        ordered += [(name, begin + step) for step, name in checkpoints]
        end = ordered[-1][1]
    return ordered


def phase_order(phase: str):
    """Sorts 'stage2-step' before 'stage10-step', and Ettin's phases as they were trained."""
    later = LATER_PHASES.index(phase) + 1 if phase in LATER_PHASES else 0
    parts = re.split(r"(\d+)", phase)
    parts[1::2] = map(int, parts[1::2])  # text, number, text, ...
    return later, parts


def thin_out(targets: list[Target], stride: int, limit: int | None) -> list[Target]:
    """Every stride-th, and of these at most limit, evenly spread, with the first and the last."""
    targets = targets[::stride]
    if limit is None or len(targets) <= limit:
        return targets
    gap = (len(targets) - 1) / max(1, limit - 1)
    return [targets[round(i * gap)] for i in range(limit)]


# ---- what a name stands for --------------------------------------------------------------------------------------


def find_targets(name: str, revisions: str | None = None, stride: int = 1, limit: int | None = None) -> list[Target]:
    """
    What NAME stands for. revisions: a glob for the branches and tags of a repository, or for the folders in a folder.
    A NAME that is a glob itself stands for folders or repositories: those of each training are thinned out alone.
    """
    if is_glob(name):
        matches = find_matches(name)
        trainings = {}  # what stands before the steps, and a * for them -> names
        for match in matches:
            found = read_step(match)
            if found:
                phase, _ = found
                trainings.setdefault(f"{phase}*", []).append(match)
        sources = {match: match for match in matches}
    elif revisions:
        sources = find_revisions(name, revisions)
        trainings = {name: list(sources)}
    else:
        return [Target(name, "", find_source(name))]
    targets = []
    for model, names in trainings.items():
        training = [Target(model, found, sources[found], step) for found, step in in_order(names)]
        targets += thin_out(training, stride, limit)
    asked = f"{name} {revisions}" if revisions else name
    require(targets, f"nothing that matches {asked} has a step in its name")
    return targets


def is_glob(name: str) -> bool:
    return bool(re.search(r"[*?[]", name))


def find_matches(pattern: str) -> list[str]:
    """Folders, or else repositories of the Hub, that match a glob."""
    folders = [path for path in glob.glob(os.path.expanduser(pattern)) if os.path.isdir(path)]
    if folders:
        return folders
    require(re.fullmatch(r"[^/.~]+/[^/]+", pattern), f"no folder matches {pattern}")
    from data.pretrained.hub import list_repos  # here, so that local files need no Hub client

    return list_repos(pattern)


def find_revisions(name: str, pattern: str) -> dict[str, str]:
    """{revision: what open_checkpoint takes} of the branches and tags of a repository, or the folders in a folder."""
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        found = {path.name: str(path) for path in folder.glob(pattern) if path.is_dir()}
        require(found, f"no folder in {name} matches {pattern}")
        return found
    from data.pretrained.hub import list_revisions

    repo = find_source(name)
    require(is_hub_id(repo), f"there is no folder {name}, and a Hub id is org/name")
    known = list_revisions(repo)
    found = {revision: f"{repo}@{revision}" for revision in known if fnmatchcase(revision, pattern)}
    others = ", ".join(known[:5]) or "none"
    require(found, f"no branch or tag of {repo} matches {pattern}; the first of its {len(known)} are {others}")
    return found


def at_revision(target: Target, revision: str) -> Target:
    """The same model at one branch, tag or commit."""
    require(not os.path.exists(os.path.expanduser(target.source)),
            f"{target.source} is local, where there is no revision {revision}")
    return target._replace(revision=revision, source=f"{target.source}@{revision}")


# ---- suites ------------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A row of suites.csv. Where hub_id or revision is a glob, the member is a training."""

    suite: str
    name: str
    hub_id: str  # or a local folder
    revision: str
    stack: str  # encoder, decoder, ...: which stack of the model is meant; "" where it has one
    kind: str  # pair: an encoder or decoder of a size; dose; switch: began as its partner; trajectory: a training
    causal: bool | None  # None: trained both ways
    objective: str  # what it was trained for; of a dose, what is counted, with its unit
    size: str
    dose: float | None
    partner: str  # of a switch: the member that its training began from; "" of one from which others began
    source: str  # where it was seen to exist


def read_suites(path=SUITES) -> list[Member]:
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    members = []
    for row in rows:
        require(row.keys() == set(Member._fields), f"{path} is no list of a suite: its columns are not "
                                                   f"{','.join(Member._fields)}")
        causal = {"0": False, "1": True, "": None}[row["causal"]]
        dose = float(row["dose"]) if row["dose"] else None
        members.append(Member(**(row | dict(causal=causal, dose=dose))))
    return members


def find_suite(name: str) -> list[Member]:
    """The members of a suite of suites.csv, or of a file of its form."""
    if name.endswith(".csv"):
        require(os.path.exists(name), f"there is no file {name}")
        return read_suites(name)
    members = read_suites()
    names = list(dict.fromkeys(member.suite for member in members))
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    require(name in names,
            f"no suite {name}{hint}: there are {', '.join(names)}, or a CSV of the form of {SUITES.name}")
    return [member for member in members if member.suite == name]


def suite_targets(member: Member, stride: int = 1, limit: int | None = None) -> list[Target]:
    """The checkpoints of one member, under its name."""
    if is_glob(member.revision) or is_glob(member.hub_id):
        found = find_targets(member.hub_id, member.revision or None, stride, limit)
        return [target._replace(model=member.name) for target in found]
    target = Target(member.name, "", member.hub_id)
    if member.revision:
        target = at_revision(target, member.revision)
    return [target]


# ---- all that is asked for ---------------------------------------------------------------------------------------


def find_all(entries, revision: str | None = None, revisions: str | None = None, stride: int = 1,
             limit: int | None = None) -> tuple[list[Target], dict[str, CheckpointError]]:
    """What names, or members of a suite, stand for, each once; and of those that stand for nothing: {name: why}."""
    targets, errors = [], {}
    for entry in entries:
        is_member = isinstance(entry, Member)
        try:
            if is_member:
                found = suite_targets(entry, stride, limit)
            else:
                found = find_targets(entry, revisions, stride, limit)
            if revision:
                found = [at_revision(target, revision) for target in found]
            targets += found
        except CheckpointError as e:
            errors[entry.name if is_member else entry] = e
    return list(dict.fromkeys(targets)), errors


class Survey(NamedTuple):
    """What the first checkpoint of a training tells of all of them."""

    model: str
    n_checkpoints: int
    n_left: int
    n_bytes: int | None  # of the queries and keys of one checkpoint
    causal: dict[str, bool | None]  # stack -> causal

    def line(self) -> str:
        found = f"{self.model}: {self.n_checkpoints} checkpoints"
        if self.n_left == 0:
            return f"{found}, all of which were read before"
        if self.n_bytes is None:
            return f"{found}, {self.n_left} to read"
        size = tqdm.format_sizeof(self.n_bytes * self.n_left, "B")
        return f"{found}, {self.n_left} to read: {size} of queries and keys"


def survey(targets: list[Target], left: list[Target]) -> list[Survey]:
    """
    One Survey for each training in targets, from headers alone; left: those of the targets that are to be read.
    Where the first checkpoint cannot be opened it knows nothing: why, is said when it is its turn.
    """
    surveys = []
    for model in dict.fromkeys(target.model for target in targets if target.step is not None):
        checkpoints = [target for target in targets if target.model == model]
        mine = [target for target in left if target.model == model]
        first = mine[0] if mine else checkpoints[0]
        try:
            n_bytes, causal = read_headers(first.source)
        except (CheckpointError, LayoutError):
            n_bytes, causal = None, {}
        surveys.append(Survey(model, len(checkpoints), len(mine), n_bytes, causal))
    return surveys


def read_headers(source: str) -> tuple[int, dict[str, bool | None]]:
    """Bytes of the queries and keys of one checkpoint, and which of its stacks are causal."""
    with open_checkpoint(source) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        stacks = find_stacks(checkpoint.config, shapes)
        names = {name for stack in stacks for layer in stack.layers for name in layer.names}
        n_bytes = sum(checkpoint.tensors[name].end - checkpoint.tensors[name].start for name in names)
        return n_bytes, {stack.name: stack.causal for stack in stacks}
