"""
The record: an encoder of at most 125,000 parameters to a loss on the benchmark's corpus, in the fewest updates.

    python -m data.results.record                    # the tables of both tracks, and what the rule says of their best
    python -m data.results.record --plot record.png  # and a picture of them

csv/record/entries.csv lists the entries, and csv/record/TRACK/NAME.csv holds the eight runs of each, as written by
analyze.py --runs --csv. csv/record/README.md has the rules. Here we require what makes entries comparable.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from config import HOW, load
from config.planned import WITHIN_TASK
from data import options
from data.results.records import read_comparison
from data.results.runs import RunError, require
from data.sympy.prepare import DIGESTS

FOLDER = Path(__file__).parent / "csv" / "record"
CONFIG = Path(__file__).parents[2] / "config"
SEEDS = range(11, 19)  # no run that chose a rule or a learning rate has one of these
LIMIT = 600  # updates; a run that does not arrive counts as so many
N_PARAMS = 125_000  # at most
OF_EVERY_RUN = {"seed", "data_dir", "tokenizer", "sha256", "n_params"}  # these are looked at by themselves


class Track(NamedTuple):
    loss: float  # [nats/token] on the validation batches: a run has arrived at its first evaluation that is not above
    leader: str  # the file of config/ with the keys of the record, which is the entry without any other key
    free: set  # the keys that an entry may change
    words: str  # which those are


TRACKS = {
    "start": Track(2.25, "record_start.py", {"init", "init_std", "qk_std", "v_std"}, "only the initialization is free"),
    "open": Track(1.75, "record.py", WITHIN_TASK | {"max_iters"}, "all but the task is free"),
}


class Entry(NamedTuple):
    steps: np.ndarray  # (S,) updates of each run to the loss of the track, by seed
    flags: str  # what makes its configuration of the leader's
    about: dict  # its row of entries.csv, and its commit


# ---- entries -----------------------------------------------------------------------------------------------------


def read_entry(path):
    """Returns the eight runs of an entry, by seed. Raises RunError if they cannot be compared with other entries."""
    runs, _ = read_comparison(path)
    runs.sort(key=lambda run: run.seed)
    seeds = [run.seed for run in runs]
    require(seeds == list(SEEDS), f"{path} has the seeds {seeds}, expected {SEEDS.start} to {SEEDS.stop - 1}")
    config = runs[0].config  # one for all seeds, because an arm of such a file has one
    require(len({run.arm for run in runs}) == 1, f"{path} has several arms, expected one")
    corpus = f"{DIGESTS['bytes']['train']} {DIGESTS['bytes']['val']}"
    require(config["sha256"] == corpus, f"{path} is of another corpus: train on data/sympy/bytes")
    n_params = config.get("n_params") or 0
    require(0 < n_params <= N_PARAMS, f"{path} has {n_params:,} parameters, expected 1 to {N_PARAMS:,}")
    require(config["max_iters"] <= LIMIT, f"{path} has max_iters = {config['max_iters']}, expected {LIMIT} at most")
    require(all(run.is_finished() for run in runs), f"{path} has runs that have not finished")
    commits = runs[0].origin.get("commit", ["unknown"])
    require(all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits), f"{path} is of no clean commit: {commits}")
    track = TRACKS[path.parent.name]
    for key, (value, expected) in changes(config, track).items():
        require(key in track.free, f"{path} has {key} = {value!r}, expected {expected!r}: {track.words}")
    return runs


def changes(config, track):
    """Returns the keys in which an entry differs from the leader: {key: its value and the leader's}."""
    leader = vars(load([str(CONFIG / track.leader)]))
    keys = [key for key in leader | config if key not in HOW | OF_EVERY_RUN]  # also those that a fork has
    return {key: (config.get(key), leader.get(key)) for key in keys if config.get(key) != leader.get(key)}


def steps_of(runs, loss):
    """Returns the updates that each run took to the loss: (S,). One that did not arrive counts with the limit."""
    curves = [run.curve("val_loss") for run in runs]
    return np.array([min(curve.index[curve <= loss], default=LIMIT) for curve in curves])


def read_track(name):
    """Returns the entries of a track, the fastest first: {name: its Entry}."""
    track, listed = TRACKS[name], pandas.read_csv(FOLDER / "entries.csv", dtype=str, keep_default_na=False)
    entries = {}
    for row in listed[listed["track"] == name].to_dict("records"):
        require("|" not in "".join(row.values()), f"{FOLDER}/entries.csv: a name has a |, which ends a table's cell")
        runs = read_entry(FOLDER / name / f"{row['entry']}.csv")
        flags = [f"--{key}={value}" for key, (value, _) in changes(runs[0].config, track).items()]
        about = row | dict(commit=runs[0].origin["commit"][0][:7])
        entries[row["entry"]] = Entry(steps_of(runs, track.loss), " ".join(flags), about)
    require("" in [entry.flags for entry in entries.values()],
            f"no entry of {FOLDER}/{name} has the keys of config/{track.leader}, the record: write one's into it")
    fastest_first = sorted(entries, key=lambda entry: entries[entry].steps.mean())
    return {entry: entries[entry] for entry in fastest_first}


# ---- tables ------------------------------------------------------------------------------------------------------


def table(name, entries):
    """Returns the entries of a track as lines of Markdown. The record is bold."""
    track = TRACKS[name]
    lines = [f"| {name}: {track.loss} nats | updates | arrived | commit | date | who | flags |", "|---" * 7 + "|"]
    for entry, (steps, flags, about) in entries.items():
        cells = [entry if flags else f"**{entry}**", f"{steps.mean():.1f} ± {steps.std(ddof=1):.1f}",
                 f"{(steps < LIMIT).sum()} of {len(steps)}", about["commit"], about["date"], about["who"],
                 f"`{flags}`" if flags else f"config/{track.leader}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(entries):
    """Returns what the rule says of the record and its best rival, in a line."""
    record = next(entry for entry in entries if not entries[entry].flags)
    rival = next(entry for entry in entries if entry != record)
    earlier = entries[record].steps - entries[rival].steps  # (S,), above 0 where the rival is faster
    error = earlier.std(ddof=1) / len(earlier) ** 0.5
    says = "a new record" if earlier.mean() > 2 * error else "no new record"
    less = "less" if earlier.mean() > 0 else "more"
    return (f"{rival} needs {abs(earlier.mean()):.1f} updates {less} than {record}. A new record needs more than "
            f"{2 * error:.1f} less, twice the standard error of the difference by seed: {says}.")


def plot(entries_of, path):
    """Draws a bar for each entry. entries_of: {track: {name: its Entry}}, the fastest first."""
    from data.figures import ENCODER, OTHERS, figure, put_legend, put_titles  # here, because matplotlib takes a second
    from data.results.figures_runs import put_names

    height = 0.23 * max(len(entries) for entries in entries_of.values()) + 0.5  # [inches]
    with figure(path, len(TRACKS), 1, height, "The record: updates to reach a loss", sharex=True) as axes:
        for axis, (name_of_track, track) in zip(axes.flat, TRACKS.items()):
            entries = entries_of[name_of_track]
            for y, (steps, flags, _) in enumerate(entries.values()):
                label, colour = ("other entries", ENCODER) if flags else ("the record", OTHERS[0])
                axis.barh(y, steps.mean(), color=colour, alpha=0.7, label=label)
                axis.plot(steps, [y] * len(steps), ".", color="black", ms=4, label="one seed")
            put_names(axis, entries)
            put_titles([axis], [f"Track {name_of_track}, to {track.loss} nats/token: {track.words}"])
        axis.set_xlabel(f"updates, mean over seeds ({LIMIT}: the loss was not reached)")
        put_legend(axes.flat, ncols=3)


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.results.record", description="Print the tables of the record.")
    cli.add_argument("--plot", metavar="FILE", type=options.picture, help="draw the entries of both tracks as bars")
    args = cli.parse_args(argv)
    try:
        entries_of = {name: read_track(name) for name in TRACKS}
        print("\n\n".join(f"{table(name, entries)}\n\n{verdict(entries)}" for name, entries in entries_of.items()))
        if args.plot:
            plot(entries_of, args.plot)
    except (RunError, OSError, ValueError) as e:  # ValueError: of a leader's file, or of pandas for entries.csv
        sys.exit(f"record: {str(e).strip()}")


if __name__ == "__main__":
    main()
