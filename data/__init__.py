"""What all programs share. Each imports this first, so that an old Python ends in one line."""

import argparse
import ctypes
import glob
import os
import sys

if sys.version_info < (3, 11):
    sys.exit(f"This needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}")


def take_no_arguments(doc):
    """Ends a program whose command line has arguments: --help prints its description, and all others are refused."""
    argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()


def expand(words):
    """Returns words with the paths that * and ? stand for, as a shell does it: PowerShell and notebooks do not."""
    paths = []
    for word in words:
        found = [] if os.path.exists(word) else sorted(glob.glob(word.replace("[", "[[]")))
        paths += found or [word]
    return paths


def keep_memory():
    """Lets the C library keep memory that this program frees, for later, where it can."""
    # Otherwise large tensors go back to the system, which empties every page before it gives it again: a fifth of a
    # step of train.py, and a tenth of the time to score, on two cores. It takes up to a third more memory.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no large tensor has memory of its own, which would go back with it
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: free memory at the end of all does not go back either


def printable(text):
    """Returns the text with ? for control characters. A name may be somebody else's, and hold any characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def fixed(number, digits, sign=""):
    """Returns a number as a text with so many digits, and without a minus if they are all 0."""
    return f"{round(float(number), digits) + 0.0:{sign}.{digits}f}"  # float: numpy rounds 2.675 up
