"""
The files of a run, as train.py writes them and analyze.py reads them.

    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before
    scores.csv   one row per layer, and one per head (head empty: the whole layer)

Rows are appended whole and flushed before the checkpoint of their step is written. A run that was killed may hold rows
past its last checkpoint: `cut` drops them on resuming, so that none is lost and none stands twice.
"""

import contextlib
import csv
import os
from pathlib import Path

LOG = ["step", "tokens", "train_loss", "val_loss", "learning_rate", "tokens_per_s"]
SCORES = ["step", "layer", "head", "symmetry", "directionality", "update_symmetry"]


@contextlib.contextmanager
def replacing(path):
    """A temporary path beside `path`, which takes its place once the block is through: whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append(path, header, rows):
    new = not Path(path).exists()
    with open(path, "a", newline="") as f:
        csv.writer(f).writerows([header, *rows] if new else rows)


def read(path, header):
    """The rows of a CSV as dicts of strings; a last row that was cut short is left out."""
    with open(path, newline="") as f:
        rows = list(csv.reader(f))
    if rows[:1] != [header]:
        raise ValueError(f"{path}: not a {Path(path).name} of train.py (its first line is not {','.join(header)})")
    return [dict(zip(header, row)) for row in rows[1:] if len(row) == len(header)]


def cut(path, header, step):
    """Drop the rows of steps after `step`."""
    rows = [row for row in read(path, header) if int(row["step"]) <= step] if Path(path).exists() else []
    with replacing(path) as temporary:
        append(temporary, header, [row.values() for row in rows])
