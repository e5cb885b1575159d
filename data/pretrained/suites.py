"""
Finds what to score if a name stands for several checkpoints: the checkpoints of a training, or the members of a suite.

    find_targets("EleutherAI/pythia-160m", "step*")        # branches and tags that match, in the order of training
    find_targets("google/multiberts-seed_0-step_*k")       # repositories that match
    find_targets("out/run", "checkpoint-*")                # folders or files that match; or "out/run/checkpoint-*"
    find_all(find_suite("ettin"))                          # models that differ in the objective and in little else

For each member, suites.csv says where it is, what it was trained for, and how we know that it exists.
"""

import csv
import glob
import itertools
import os
import re
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.pretrained.files import CheckpointError, printable, require
from data.pretrained.layouts import find_stacks
from data.pretrained.sources import SUFFIXES, find_source, is_hub_id, open_checkpoint, without_address

SUITES = Path(__file__).parent / "suites.csv"
NUMBER = r"(\d+(?:\.\d+)?)([kKMBT](?![a-zA-Z]))?"  # 20k, 900, 0.5M
UNITS = {None: 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LATER_PHASES = ["ext", "decay"]  # of Ettin, in the order of its training; both count their steps anew
# The name of a checkpoint among others of its training, which a shell may have found. Not every name with a number is
# one: llama-7b and llama-13b are two models.
CHECKPOINT = re.compile(r"(step|checkpoint|ckpt|iter|epoch)[-_=]?\d|model_\d+\.pt$")


class Target(NamedTuple):
    """One checkpoint to score. model and revision together name it in a CSV."""

    model: str  # as the user or suites.csv named it
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
    phases = {}  # phase -> (step, name)
    for name in names:
        phase, step = read_step(name)
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
    """A key that sorts 'stage2-step' before 'stage10-step', and Ettin's phases in the order of training."""
    later = LATER_PHASES.index(phase) + 1 if phase in LATER_PHASES else 0
    parts = re.split(r"(\d+)", phase)
    parts[1::2] = map(int, parts[1::2])  # text, number, text, ...
    return later, parts


def thin_out(targets: list[Target], stride: int, limit: int | None) -> list[Target]:
    """
    Of every training, each stride-th checkpoint. If these are more than limit, keep so many, evenly spread, with the
    first and last.
    """
    kept = []
    for _, group in itertools.groupby(targets, lambda target: target if target.step is None else target.model):
        group = list(group)[::stride]  # a training, or a single checkpoint
        n = min(len(group), limit or len(group))
        kept += [group[round(i)] for i in np.linspace(0, len(group) - 1, n)]
    return kept


# ---- what a name stands for --------------------------------------------------------------------------------------


def find_targets(name: str, revisions: str | None = None) -> list[Target]:
    """
    The checkpoints that a name stands for.

    revisions: a glob for the branches and tags of a repository, or for the folders and files in a folder. The name may
    be a glob itself.
    """
    name = without_address(name)
    if revisions and "/" in revisions.rstrip("/") and os.path.isdir(os.path.expanduser(name)):  # several trainings
        name, revisions = f"{glob.escape(name)}/{revisions}", None
    if revisions:
        return order(find_revisions(name, revisions), f"{name} {revisions}", model=name)
    if is_pattern(name):
        return order({match: match for match in find_matches(name)}, name)
    return [Target(name, "", find_source(name))]


def order(sources: dict[str, str], asked: str, model: str = "") -> list[Target]:
    """
    The checkpoints of one training or of several, each in the order of its steps. sources: {name: what open_checkpoint
    takes}. asked: what the user wrote. model: the model of all; "": a training is of the names that differ in the step
    alone, and called by these with a * for the step.
    """
    trainings = {}  # model -> the names of its checkpoints
    without_step = []  # as the branch main
    for name in sorted(sources):
        found = read_step(name)
        if found:
            phase, _ = found
            trainings.setdefault(model or f"{phase}*", []).append(name)
        else:
            without_step.append(name)
    require(trainings, f"nothing that matches {asked} has a step in its name")
    if without_step:
        shown = ", ".join(without_step[:3]) + (", ..." if len(without_step) > 3 else "")
        print(printable(f"{asked}: {len(without_step)} of the {len(sources)} that match have no step in their names, "
                        f"and are left out: {shown}"), file=sys.stderr)
    targets = []
    for of_model, names in trainings.items():
        targets += [Target(of_model, name, sources[name], step) for name, step in in_order(names)]
    return targets


def is_glob(name: str) -> bool:
    return bool(re.search(r"[*?[]", name))


def is_pattern(name: str) -> bool:
    """Whether a name stands for all that match it. A folder run[1], which looks like a glob, is that folder."""
    return is_glob(name) and not os.path.exists(os.path.expanduser(name))


def find_files(pattern: str) -> list[str]:
    """The folders and the files of weights that match a glob."""
    paths = [path.rstrip("/") for path in glob.glob(os.path.expanduser(pattern))]
    return [path for path in paths if os.path.isdir(path) or path.endswith(SUFFIXES)]


def find_matches(pattern: str) -> list[str]:
    """The folders and files that match a glob; if there are none, the repositories of the Hub that match it."""
    paths = find_files(pattern)
    if paths:
        return paths
    require(re.fullmatch(r"[^/.~]+/[^/]+", pattern), f"no folder or file matches {pattern}")
    from data.pretrained.hub import list_repos  # here, so that local files need no Hub client

    return list_repos(pattern)


def find_revisions(name: str, pattern: str) -> dict[str, str]:
    """{revision: what open_checkpoint takes}: branches and tags of a repository, or what matches in a folder."""
    if os.path.isdir(os.path.expanduser(name)):
        paths = find_files(f"{glob.escape(name)}/{pattern}")
        require(paths, f"no folder or file in {name} matches {pattern}")
        return {os.path.basename(path): path for path in paths}
    from data.pretrained.hub import list_revisions

    repo = find_source(name)
    require(is_hub_id(repo), f"there is no folder {name}, and a Hub id is org/name")
    known = list_revisions(repo)
    found = {revision: f"{repo}@{revision}" for revision in known if fnmatchcase(revision, pattern)}
    others = ", ".join(known[:5]) or "none"
    require(found, f"no branch or tag of {repo} matches {pattern}; the first of its {len(known)} are {others}")
    return found


# ---- suites ------------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A row of suites.csv. Where hub_id or revision is a glob, the member is a training."""

    suite: str
    name: str
    hub_id: str  # or a local folder
    revision: str
    stack: str  # encoder, decoder, ...: which stack of the model is meant; "" where it has one
    # pair: the encoder or the decoder of a size. switch: its training began from its partner, with another objective.
    # dose: one of several models that differ in how much of something they got. training: the checkpoints of one.
    kind: str
    causal: bool | None  # None: trained both ways
    objective: str  # what it was trained for; for a dose, what is counted, with its unit
    size: str
    dose: float | None
    partner: str  # for a switch: the member from which its training began; "" for a member from which others began
    source: str  # where it was seen to exist


KINDS = ["pair", "dose", "switch", "training"]
CAUSAL = {"0": False, "1": True, "": None}


def read_suites(path=SUITES) -> list[Member]:
    with open(path, newline="", encoding="utf-8-sig") as f:  # -sig: a spreadsheet puts a mark before the text
        reader = csv.DictReader(f)
        try:
            members = [read_member(row) for row in reader]
        except (KeyError, ValueError, TypeError) as e:  # no such column or text; no number; too many cells, or too few
            raise CheckpointError(f"{path}, line {reader.line_num} is no row of {','.join(Member._fields)}, where "
                                  "causal is 0, 1 or nothing, and dose a number or nothing") from e
    require(members, f"{path} lists no model")
    seen = set()  # a CSV of scores tells members apart by name and revision
    for member in members:
        key = member.suite, member.name, member.revision
        require(key not in seen, f"{path}: suite {member.suite} has two members {member.name} of the same revision: "
                                 "give one of them another name")
        seen.add(key)
        where = f"{path}: {member.name}"
        require(member.kind in KINDS, f"{where}: kind is {member.kind!r}, expected one of {', '.join(KINDS)}")
        require((member.dose is None) == (member.kind != "dose"),
                f"{where}: a dose goes with kind 'dose', and only with that")
        require(is_training(member) == (member.kind == "training"),
                f"{where}: hub_id or revision is a pattern where kind is 'training', and only there")
    return members


def read_member(row: dict) -> Member:
    dose = float(row["dose"]) if row["dose"] else None
    return Member(**(row | dict(causal=CAUSAL[row["causal"]], dose=dose)))


def find_suite(name: str) -> list[Member]:
    """The members of a suite of suites.csv, or of a file of its form."""
    if name.endswith(".csv"):
        require(os.path.exists(name), f"there is no file {name}")
        return read_suites(name)
    members = read_suites()
    names = list(dict.fromkeys(member.suite for member in members))
    require(name in names, f"no suite {name}: there are {', '.join(names)}, or a CSV of the form of {SUITES.name}")
    return [member for member in members if member.suite == name]


def suite_targets(member: Member) -> list[Target]:
    """The checkpoints of one member, under its name."""
    if is_training(member):
        found = find_targets(member.hub_id, member.revision)
        return [target._replace(model=member.name) for target in found]
    source = f"{member.hub_id}@{member.revision}" if member.revision else member.hub_id
    return [Target(member.name, member.revision, source)]


def is_training(member: Member) -> bool:
    return is_glob(member.revision) or is_pattern(member.hub_id)


# ---- all that is asked for ---------------------------------------------------------------------------------------


def find_all(entries, revisions: str | None = None, stride: int = 1,
             limit: int | None = None) -> tuple[list[Target], dict[str, CheckpointError]]:
    """
    The checkpoints of all names (or members of a suite), each once; and {name: error} for what was not found. stride
    and limit apply to every training by itself.
    """
    targets, errors = [], {}
    paths = paths_of_a_shell(entries)
    if paths and not revisions:
        targets = order({path: path for path in paths}, os.path.dirname(paths[0]))
        entries = []
    for entry in entries:
        is_member = isinstance(entry, Member)
        try:
            targets += suite_targets(entry) if is_member else find_targets(entry, revisions)
        except CheckpointError as e:
            errors[entry.name if is_member else entry] = e
    return thin_out(list(dict.fromkeys(targets)), stride, limit), errors


def paths_of_a_shell(entries) -> list[str]:
    """What a shell has made of out/run/checkpoint-*: paths in folders with several checkpoints each. Else []."""
    if len(entries) < 2 or not all(isinstance(entry, str) and os.path.exists(entry) for entry in entries):
        return []
    paths = [entry.rstrip("/") for entry in entries]
    n_checkpoints = Counter(os.path.dirname(path) for path in paths if CHECKPOINT.search(os.path.basename(path)))
    return paths if all(n_checkpoints[os.path.dirname(path)] > 1 for path in paths) else []


def are_trainings(targets: list[Target]) -> bool:
    """Whether targets are checkpoints of trainings. CheckpointError if only some are, because their tables differ."""
    alone = [target.label() for target in targets if target.step is None]
    if 0 < len(alone) < len(targets):
        raise CheckpointError(f"{alone[0]} is no training, and others are: give them in two commands")
    return len(alone) < len(targets)


def is_newer(source: str, path: str) -> bool:
    """
    Whether a local checkpoint has a file that changed after the file at path, or a link on the way to it has. Of the
    Hub it cannot be told.
    """
    checkpoint = Path(os.path.expanduser(source))
    # Not st_mtime: a copy may keep the time of its original (cp -p, rsync -a). When it came here, st_ctime tells.
    times = [file.stat().st_ctime for file in (checkpoint, *checkpoint.rglob("*")) if file.is_file()]
    times += [place.lstat().st_ctime for place in (checkpoint, *checkpoint.parents) if place.is_symlink()]
    return max(times, default=0.0) > os.path.getmtime(path)


def announce(targets: list[Target], left: list[Target]):
    """On stderr, for each training in targets: how many bytes there are to read. left: what is still to be read."""
    for model in dict.fromkeys(target.model for target in targets if target.step is not None):
        n_checkpoints = sum(target.model == model for target in targets)
        to_read = [target for target in left if target.model == model]
        line = f"{model}: {n_checkpoints} checkpoints, {len(to_read)} to read"
        n_bytes = len(to_read) * bytes_of_layers(to_read[0].source) if to_read else 0
        if n_bytes:
            line += f": {tqdm.format_sizeof(n_bytes, 'B')} of queries and keys"
        print(printable(line), file=sys.stderr)


def bytes_of_layers(source: str) -> int:
    """The size of queries and keys in a checkpoint, by its header. 0 if it cannot be read: scoring will say why."""
    try:
        with open_checkpoint(source) as checkpoint:
            shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
            layers = [layer for stack in find_stacks(checkpoint.config, shapes) for layer in stack.layers]
            infos = [checkpoint.tensors[name] for layer in layers for name in layer.names]
            return sum(info.end - info.start for info in infos)
    except (CheckpointError, OSError):
        return 0
