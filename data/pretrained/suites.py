"""
Finds what to score if a name stands for several checkpoints: the checkpoints of a training, or the members of a suite.

    find_targets("EleutherAI/pythia-160m", "step*")        # branches and tags that match, in the order of training
    find_targets("google/multiberts-seed_0-step_*k")       # repositories that match
    find_targets("out/run", "checkpoint-*")                # folders that match; or find_targets("out/run/checkpoint-*")
    find_all(find_suite("ettin"))                          # models that differ in the objective and in little else

For each member, suites.csv says where it is, what it was trained for, and how we know that it exists.
"""

import csv
import difflib
import glob
import os
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from data.pretrained.files import CheckpointError, printable, require
from data.pretrained.layouts import LayoutError, find_stacks
from data.pretrained.sources import find_source, is_hub_id, open_checkpoint, without_address

SUITES = Path(__file__).parent / "suites.csv"
NUMBER = r"(\d+(?:\.\d+)?)([kKMBT](?![a-zA-Z]))?"  # 20k, 900, 0.5M
UNITS = {None: 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LATER_PHASES = ["ext", "decay"]  # of Ettin, in the order of its training; both count their steps anew


class Target(NamedTuple):
    """One checkpoint to score. model and revision together name it in a CSV."""

    model: str  # as the user or suites.csv named it
    revision: str  # which of its checkpoints: a branch, tag, commit, folder or repository; "" if there is only one
    source: str  # what open_checkpoint takes
    step: float | None = None  # its step in the training, in the unit of the names; None if it is not known

    def label(self) -> str:
        return f"{self.model} {self.revision}".strip()


# ---- along a training --------------------------------------------------------------------------------------------


def read_step(name: str) -> tuple[str, float] | None:
    """
    The phase of training and the step that a name tells: 'stage1-step900-tokens4B' -> 'stage1-step', 900.

    The step is the number after 'step', else the last number after any /. None if there is no number.
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
    (name, step) in the order of training. Names without a number are left out.

    If a later phase counts its steps from 0 again, the last step of the phase before is added to them.
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
    """A key that sorts 'stage2-step' before 'stage10-step', and Ettin's phases in the order of training."""
    later = LATER_PHASES.index(phase) + 1 if phase in LATER_PHASES else 0
    parts = re.split(r"(\d+)", phase)
    parts[1::2] = map(int, parts[1::2])  # text, number, text, ...
    return later, parts


def thin_out(targets: list[Target], stride: int, limit: int | None) -> list[Target]:
    """Every stride-th target. If these are more than limit, keep so many, evenly spread, with the first and last."""
    targets = targets[::stride]
    if limit is None or len(targets) <= limit:
        return targets
    gap = (len(targets) - 1) / max(1, limit - 1)
    return [targets[round(i * gap)] for i in range(limit)]


# ---- what a name stands for --------------------------------------------------------------------------------------


def find_targets(name: str, revisions: str | None = None, stride: int = 1, limit: int | None = None) -> list[Target]:
    """
    The checkpoints that a name stands for.

    revisions: a glob for the branches and tags of a repository, or for the folders in a folder. The name may be a glob
    itself, for folders or repositories. stride and limit apply to every training by itself.
    """
    name = without_address(name)
    if is_pattern(name):
        require(not revisions, f"{name} is a pattern itself: give it or --revisions")
        matches = find_matches(name)
        trainings = {}  # the name of a training, with a * for the step -> its names
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
    say_what_is_left_out(asked, list(sources))
    return targets


def say_what_is_left_out(asked: str, matches: list[str]):
    """A line on stderr, if some of the names have no step, such as the branch main."""
    without_step = sorted(match for match in matches if not read_step(match))
    if without_step:
        shown = ", ".join(without_step[:3]) + (", ..." if len(without_step) > 3 else "")
        print(printable(f"{asked}: {len(without_step)} of the {len(matches)} that match have no step in their names, "
                        f"and are left out: {shown}"), file=sys.stderr)


def is_glob(name: str) -> bool:
    return bool(re.search(r"[*?[]", name))


def is_pattern(name: str) -> bool:
    """Whether a name stands for all that match it. A folder run[1], which looks like a glob, is that folder."""
    return is_glob(name) and not os.path.exists(os.path.expanduser(name))


def find_matches(pattern: str) -> list[str]:
    """The folders that match a glob; if there are none, the repositories of the Hub that match it."""
    folders = [path for path in glob.glob(os.path.expanduser(pattern)) if os.path.isdir(path)]
    if folders:
        return folders
    require(re.fullmatch(r"[^/.~]+/[^/]+", pattern), f"no folder matches {pattern}")
    from data.pretrained.hub import list_repos  # here, so that local files need no Hub client

    return list_repos(pattern)


def find_revisions(name: str, pattern: str) -> dict[str, str]:
    """{revision: what open_checkpoint takes}: branches and tags of a repository, or folders in a folder."""
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
    require("@" not in target.source, f"{target.source} names a revision itself: give it or --revision={revision}")
    return target._replace(revision=revision, source=f"{target.source}@{revision}")


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
    members = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as f:  # -sig: a spreadsheet puts a mark before the text
            reader = csv.DictReader(f)
            require(reader.fieldnames == list(Member._fields), f"{path} is no list of a suite: its columns are not "
                                                               f"{','.join(Member._fields)}")
            named = set()  # (suite, name, revision); a CSV of scores tells members apart by name and revision
            for row in reader:
                line = f"{path}, line {reader.line_num}"
                member = read_member(row, line)
                key = member.suite, member.name, member.revision
                require(key not in named, f"{line}: suite {member.suite} has a member {member.name} above, of the same "
                                          "revision: give it another name")
                named.add(key)
                members.append(member)
    except (UnicodeDecodeError, csv.Error) as e:
        raise CheckpointError(f"{path} is no list of a suite ({e})") from e
    require(members, f"{path} lists no model")
    return members


def read_member(row: dict, line: str) -> Member:
    """A Member from the text of its cells. line: where it stands, for the message of an error."""
    whole = None not in row and None not in row.values()  # as csv marks cells that are too many, or missing
    require(whole, f"{line} has not {len(Member._fields)} cells")
    require(row["kind"] in KINDS, f"{line}: kind is {row['kind']!r}, expected one of {', '.join(KINDS)}")
    require(row["causal"] in CAUSAL, f"{line}: causal is {row['causal']!r}, expected 0, 1 or nothing")
    is_dose = re.fullmatch(r"(\d+(\.\d+)?)?", row["dose"])
    require(is_dose, f"{line}: dose is {row['dose']!r}, expected a number or nothing")
    require(row["dose"] or row["kind"] != "dose", f"{line}: kind is dose, and its dose is empty")
    dose = float(row["dose"]) if row["dose"] else None
    member = Member(**(row | dict(causal=CAUSAL[row["causal"]], dose=dose)))
    if member.kind == "training":
        require(is_training(member), f"{line}: kind is 'training', and neither hub_id nor revision is a pattern")
    else:
        require(not is_training(member), f"{line}: kind is {member.kind!r}, and its hub_id or revision is a pattern: "
                                         "only a training has several checkpoints")
    return member


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
    if is_training(member):
        found = find_targets(member.hub_id, member.revision or None, stride, limit)
        return [target._replace(model=member.name) for target in found]
    target = Target(member.name, "", member.hub_id)
    if member.revision:
        target = at_revision(target, member.revision)
    return [target]


def is_training(entry) -> bool:
    """Whether a member of a suite, or a name, stands for the checkpoints of a training."""
    if isinstance(entry, Member):
        return is_glob(entry.revision) or is_pattern(entry.hub_id)
    return is_pattern(without_address(entry))


# ---- all that is asked for ---------------------------------------------------------------------------------------


def find_all(entries, revision: str | None = None, revisions: str | None = None, stride: int = 1,
             limit: int | None = None) -> tuple[list[Target], dict[str, CheckpointError]]:
    """The checkpoints of all names (or members of a suite), each once; and {name: error} for what was not found."""
    if stride > 1 or limit is not None:
        require(revisions or any(is_training(entry) for entry in entries),
                "--stride and --limit take some of the checkpoints of a training, which is not asked for: give none")
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


def are_trainings(targets: list[Target]) -> bool:
    """Whether targets are checkpoints of trainings. CheckpointError if only some are, because their tables differ."""
    alone = [target.label() for target in targets if target.step is None]
    if 0 < len(alone) < len(targets):
        raise CheckpointError(f"{alone[0]} is no training, and others are: give them in two commands")
    return len(alone) < len(targets)


def scored_before(targets: list[Target], rows: list, path: str) -> set[Target]:
    """The targets that have rows in the CSV file at path, and of which no local file is newer than this CSV."""
    named = {(row.model, row.revision) for row in rows}
    return {target for target in targets
            if (target.model, target.revision) in named and not is_newer(target.source, path)}


def is_newer(source: str, path: str) -> bool:
    """Whether a local checkpoint has a file that was changed after the file at path. Of the Hub it cannot be told."""
    folder = Path(os.path.expanduser(source))
    files = [folder, *folder.rglob("*")]  # source may also be a file; inside of a file there is nothing
    changed = [file.stat().st_mtime for file in files if file.is_file()]
    return max(changed, default=0.0) > os.path.getmtime(path)


class Survey(NamedTuple):
    """What the first checkpoint of a training tells about all of them."""

    model: str
    n_checkpoints: int
    n_left: int
    n_bytes: int | None  # size of the queries and keys of one checkpoint
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
    One Survey for each training in targets, from the header of its first checkpoint. left: the targets that are still
    to be read. If the first checkpoint cannot be opened, n_bytes is None, and the error comes when it is scored.
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
    """-> the size of the queries and keys of a checkpoint in bytes, and {stack: causal}."""
    with open_checkpoint(source) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        stacks = find_stacks(checkpoint.config, shapes)
        names = {name for stack in stacks for layer in stack.layers for name in layer.names}
        n_bytes = sum(checkpoint.tensors[name].end - checkpoint.tensors[name].start for name in names)
        return n_bytes, {stack.name: stack.causal for stack in stacks}
