"""How names, numbers and errors of checkpoints are printed. A name may be of somebody else, and hold any characters."""

import contextlib
import os
import sys


def printable(text):
    """Returns the text with ? for control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def fixed(number, digits, sign=""):
    """Returns a number as a text with so many digits, and without a minus if they are all 0."""
    return f"{round(float(number), digits) + 0.0:{sign}.{digits}f}"  # float: numpy rounds 2.675 up


class CheckpointError(Exception):
    """A checkpoint cannot be read, or it is not certain what is q and k. str(e) is one line that says what to do."""

    def __init__(self, message):
        super().__init__(printable(message))


# analyze.py loads this file as analyze.data.names, and train.py as data.names. Both have the class of the one that was
# loaded first, so whoever catches the errors of one catches those of the other.
twin = sys.modules.get("data.names" if __name__ == "analyze.data.names" else "analyze.data.names")
if hasattr(twin, "CheckpointError") and os.path.samefile(twin.__file__, __file__):
    CheckpointError = twin.CheckpointError


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
