"""Reads and scores the models of others. Here are the one error of this package, and the reader of its tables."""

import contextlib
import csv
from pathlib import Path

from .. import printable


class CheckpointError(Exception):
    """A checkpoint cannot be read, or it is not certain what is q and k. str(e) is one line that says what to do."""

    def __init__(self, message):
        super().__init__(printable(message))


def require(condition, message):
    """Raises CheckpointError unless the condition is true."""
    if not condition:
        raise CheckpointError(message)


@contextlib.contextmanager
def only_checkpoint_errors(what):
    """Turns every error that the bytes of a checkpoint can cause into a CheckpointError that names `what`."""
    try:
        yield
    except (CheckpointError, NameError, ImportError, AssertionError):  # the last three only a bug of ours can cause
        raise
    except Exception as e:
        said = " ".join(str(e).split())
        raise CheckpointError(f"{what} cannot be read ({type(e).__name__}: {said:.300})") from e


def read_table(path):
    """Returns the rows of a CSV file, {column: text} each. path: from this folder."""
    with open(Path(__file__).parent / path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
