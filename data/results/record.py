"""
The record: an encoder of at most 125,000 parameters to a loss on the benchmark's corpus, in the fewest updates.

    python -m data.results.record                    # the tables of both tracks
    python -m data.results.record --plot record.png  # and a picture of them

An entry is a file csv/record/TRACK/NAME.csv of analyze.py --runs --csv, and NAME.patch beside it if the code was
changed. csv/record/README.md has the rules. Here we only require what makes its numbers comparable with the others.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import load
from config.planned import task_of
from data import options
from data.results.exact import sign_flip
from data.results.records import read_comparison
from data.results.runs import RunError, require

FOLDER = Path(__file__).parent / "csv" / "record"
SEEDS = range(11, 19)  # no run that chose a rule or a learning rate has one of these
# The corpus of the entries so far: the source of torch 2.13.0, data/pytorch at commit 3ad4c6c. SHA-256 of train, val.
CORPUS = ("e272b81628293160db7c9789939632de1233ca0f75b7a811cb02722bc3c3e7fc "
          "fd18d03591b84571c4e46442a9be33891c54aa450a326284c84a2c030225f6b2")
LIMIT = 600  # updates; a run that does not arrive counts as so many


class Track(NamedTuple):
    loss: float  # [nats/token] on the validation batches: a run has arrived at its first evaluation that is not above
    baseline: str  # the entry that the table compares with
    record: str  # the fastest entry
    free: str  # what an entry may change, in words


TRACKS = {"start": Track(2.25, "random", "ltg_bert", "only the initialization is free"),
          "open": Track(1.75, "rotary", "muon_ltg_bert", "all is free")}


def read_entry(path):
    """Returns the eight runs of an entry, by seed. Raises RunError if they cannot be compared with other entries."""
    records = sorted(read_comparison(path), key=lambda record: record.seed)
    seeds = [record.seed for record in records]
    require(seeds == list(SEEDS), f"{path} has the seeds {seeds}, expected {SEEDS.start} to {SEEDS.stop - 1}")
    config = load([str(Path(__file__).parents[2] / "config" / "record.py")])
    rules = task_of(vars(config) | dict(tokenizer="bytes", sha256=CORPUS))
    for record in records:
        there = task_of(record.config)
        for key in rules.keys() - {"max_iters"}:  # an entry may stop before
            require(there.get(key) == rules[key], f"{path} has {key} = {there.get(key)!r}, expected {rules[key]!r}")
    return records


def steps_of(records, loss):
    """Returns the updates that each run took to the loss: (S,). One that did not arrive counts with the limit."""
    steps = []
    for record in records:
        curve = record.curve("val_loss")
        steps.append(min(curve.index[curve <= loss], default=LIMIT))
    return np.array(steps)


def read_track(name):
    """Returns the entries of a track, the fastest first: {name: the updates of its runs (S,)}."""
    paths = sorted((FOLDER / name).glob("*.csv"))
    entries = {path.stem: steps_of(read_entry(path), TRACKS[name].loss) for path in paths}
    fastest_first = sorted(entries, key=lambda entry: entries[entry].mean())
    return {entry: entries[entry] for entry in fastest_first}


def table(name, entries):
    """Returns the entries of a track as lines of Markdown."""
    track = TRACKS[name]
    head = f"| {name}: {track.loss} nats | updates | arrived | against {track.baseline} | p |"
    lines = [head, "|---|---|---|---|---|"]
    for entry, steps in entries.items():
        shown = f"**{entry}**" if entry == track.record else entry
        updates = f"{steps.mean():.0f} ± {steps.std(ddof=1):.0f}"
        arrived = f"{(steps < LIMIT).sum()} of {len(steps)}"
        against = "| "  # two empty cells
        if entry != track.baseline:
            differences = steps - entries[track.baseline]
            against = f"{differences.mean():+.0f} | {sign_flip(differences):.3f}"
        lines.append(f"| {shown} | {updates} | {arrived} | {against} |")
    return "\n".join(lines)


def plot(entries_of, path):
    """Draws a bar for each entry. entries_of: {track: {entry: its updates (S,)}}, the fastest first."""
    from data.figures import ENCODER, OTHERS, figure, put_legend, put_titles  # here, because matplotlib takes a second
    from data.results.figures_runs import put_names

    height = 0.23 * max(len(entries) for entries in entries_of.values()) + 0.5  # [inches]
    with figure(path, len(TRACKS), 1, height, "The record: updates to reach a loss", sharex=True) as axes:
        for axis, (name_of_track, track) in zip(axes.flat, TRACKS.items()):
            entries = entries_of[name_of_track]
            for y, (name, steps) in enumerate(entries.items()):
                special = {track.record: ("the record", OTHERS[0]), track.baseline: ("baseline", "0.6")}
                label, colour = special.get(name, ("other entries", ENCODER))
                axis.barh(y, steps.mean(), color=colour, alpha=0.7, label=label)
                axis.plot(steps, [y] * len(steps), ".", color="black", ms=4, label="one seed")
            put_names(axis, entries)
            put_titles([axis], [f"Track {name_of_track}, to {track.loss} nats/token: {track.free}"])
        axis.set_xlabel("updates, mean over seeds (600: the loss was not reached)")
        put_legend(axes.flat, ncols=4, title="qkv: q, k and v start with standard deviation $1/\\sqrt{3C}$")


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.results.record", description="Print the tables of the record.")
    cli.add_argument("--plot", metavar="FILE", type=options.picture, help="draw the entries of both tracks as bars")
    args = cli.parse_args(argv)
    try:
        entries_of = {name: read_track(name) for name in TRACKS}
        print("\n\n".join(table(name, entries) for name, entries in entries_of.items()))
        if args.plot:
            plot(entries_of, args.plot)
    except (RunError, OSError) as e:
        sys.exit(f"record: {e}")


if __name__ == "__main__":
    main()
