"""
The record: an encoder of at most N_PARAMS parameters to a loss on the benchmark's corpus, in the fewest updates.

    python -m data.results.record                                         # the tables of both tracks
    python -m data.results.record data/results/csv/record/start/NAME.csv  # is this an entry, and what does it beat?

Two tracks. In `start` only init.py and its scales may change, so that a line shows what an initialisation is worth. In
`open` everything may but the corpus, the masks, the tokens in an update, the validation batches, the number of
parameters, and one forward and one backward pass an update. csv/record/README.md has the rules in words.

An entry is a file csv/record/TRACK/NAME.csv of analyze.py --runs --csv, with a run for each of SEEDS; and NAME.patch
beside it, if the code was changed.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import KEYS, ConfigError, load
from data.pytorch.prepare import DIGESTS
from data.results.exact import sign_flip
from data.results.compare import SAME, read_comparison
from data.results.runs import HOW, RunError, require

FOLDER = Path(__file__).parent / "csv" / "record"
CONFIG = Path(__file__).parents[2] / "config" / "record.py"
SEEDS = range(11, 19)  # no run that chose a rule or a learning rate has one of these
N_PARAMS = 125_000
SIGNIFICANT = 0.05


class Track(NamedTuple):
    loss: float  # [nats/token] on the validation batches: a run has arrived at its first evaluation that is not above
    limit: int  # updates; a run that does not arrive counts as so many
    free: set[str]  # keys of the configuration that an entry may change
    patched: str  # which files a patch may change, as a regular expression
    baseline: str  # the entry that the table compares with
    record: str  # the entry that stands


# What may differ in any entry: where and how a run runs, its seed, and how often it is scored.
ANY = HOW - {"init_from"} | {"seed", "data_dir", "score_interval"}
TASK = {"init_from", *SAME} - {"max_iters"}  # which has a limit of its own
TRACKS = {
    "start": Track(2.25, 600, {"init", "qk_std", "v_std"}, r"init\.py", "random", "ltg_bert"),
    "open": Track(1.75, 600, KEYS.keys() - TASK, r".*", "rotary", "muon_ltg_bert"),
}


# ---- is it an entry? ---------------------------------------------------------------------------------------------


def read_entry(path):
    """The runs of a valid entry, by seed. RunError says in one line what is against a rule."""
    path = Path(path)
    require(path.parent.name in TRACKS, f"{path}: expected {' or '.join(f'{name}/NAME.csv' for name in TRACKS)}")
    track = TRACKS[path.parent.name]
    records = read_comparison(path)
    arms = sorted({record.arm for record in records})
    require(len(arms) == 1, f"{path} holds {len(arms)} arms, expected one: {', '.join(arms)}")
    of_seed = {record.seed: record for record in records}
    missing = sorted(SEEDS - of_seed.keys())
    require(not missing, f"{path} lacks the seeds {missing} of {SEEDS.start} to {SEEDS.stop - 1}")
    for seed in SEEDS:
        require_rules(path, track, of_seed[seed].config)
        require_whole(path, of_seed[seed])
    require_patch(path, track, of_seed[SEEDS.start].config)
    return [of_seed[seed] for seed in SEEDS]


def require_rules(path, track, config):
    """RunError if a run is of another task than the track's, or has other sizes."""
    digests = " ".join(DIGESTS["bytes"].values())  # as runs.py writes them
    require(config.get("sha256") == digests, f"{path} is of another corpus than the benchmark's: its SHA-256 is not "
                                             "that of data/pytorch/prepare.py")
    rules = vars(load([str(CONFIG)]))
    for key, value in rules.items():
        fixed = key not in ANY | track.free
        require(not fixed or config[key] == value, f"{path} has {key} = {config[key]!r}, expected {value!r}")
    require(config["max_iters"] <= track.limit, f"{path} has max_iters = {config['max_iters']}, expected {track.limit} "
                                                "at most")
    n_params = config.get("n_params")
    require(n_params is not None and n_params <= N_PARAMS, f"{path} is of a model of {n_params} parameters, expected "
                                                           f"{N_PARAMS:,} at most")


def require_whole(path, record):
    """RunError if a loss is missing: rows were cut, or the run did not go to its end."""
    every, last = record.config["eval_interval"], record.config["max_iters"]
    expected = sorted({*range(0, last, every), last})
    found = list(record.curve("val_loss").index)
    require(found == expected, f"{path}: the run of seed {record.seed} has losses at {len(found)} steps, expected one "
                               f"every {every} updates from 0 to {last}")


def require_patch(path, track, config):
    """RunError if the code that ran is not known, or changed what this track does not let change."""
    commit = config.get("commit", "")
    require(re.match("[0-9a-f]{40}", commit), f"{path} does not say of which commit it is: run it in a git checkout")
    patch = path.with_suffix(".patch")
    if not patch.exists():
        require("dirty" not in commit, f"{path}: the code was changed since commit {commit[:7]}, expected {patch.name} "
                                       f"beside it (git diff > {patch.name})")
        return
    for name in re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE):
        require(re.fullmatch(track.patched, name), f"{patch} changes {name}, which this track does not let change")


# ---- what is it worth? -------------------------------------------------------------------------------------------


def steps_of(records, track):
    """The updates that each run took to the loss of the track: (S,). One that did not arrive counts with the limit."""
    steps = []
    for record in records:
        loss = record.curve("val_loss")
        arrived = loss.index[loss <= track.loss]
        steps.append(arrived[0] if len(arrived) else track.limit)
    return np.array(steps)


def find_entries(name):
    """{name: its steps (S,)} of all entries of a track, the fastest first."""
    entries = {}
    for path in (FOLDER / name).glob("*.csv"):
        entries[path.stem] = steps_of(read_entry(path), TRACKS[name])
    return dict(sorted(entries.items(), key=lambda entry: entry[1].mean()))


def table(name):
    """Lines of Markdown: an entry a line."""
    track, entries = TRACKS[name], find_entries(name)
    head = f"| {name}: {track.loss} nats | updates | arrived | against {track.baseline} | p |"
    lines = [head, "|---|---|---|---|---|"]
    for entry, steps in entries.items():
        differences = steps - entries[track.baseline]
        against = f"{differences.mean():+.0f} | {sign_flip(differences):.3f}" if entry != track.baseline else "| "
        shown = f"**{entry}**" if entry == track.record else entry
        arrived = (steps < track.limit).sum()
        lines.append(f"| {shown} | {steps.mean():.0f} ± {steps.std(ddof=1):.0f} | {arrived} of {len(steps)} | "
                     f"{against} |")
    return "\n".join(lines)


def verdict(path):
    """What a valid entry is worth against the record, in two lines."""
    path = Path(path)
    name = path.parent.name
    track = TRACKS[name]
    steps = steps_of(read_entry(path), track)
    standing = steps_of(read_entry(FOLDER / name / f"{track.record}.csv"), track)
    p = sign_flip(steps - standing)
    is_record = steps.mean() < standing.mean() and p < SIGNIFICANT
    return (f"{path.stem}: a valid entry of {name}, {steps.mean():.1f} updates to {track.loss} nats/token (by seed: "
            f"{', '.join(map(str, steps))})\n"
            f"against the record, {track.record}: {(steps - standing).mean():+.1f} updates, p = {p:.3f}: "
            f"{'a new record' if is_record else 'no new record'}")


def main(argv):
    try:
        texts = [verdict(path) for path in argv] if argv else [table(name) for name in TRACKS]
    except (RunError, ConfigError, OSError) as e:
        sys.exit(f"record: {e}")
    print("\n\n".join(texts))


if __name__ == "__main__":
    main(sys.argv[1:])
