"""What a program does before all else. It imports this package before what needs Python 3.11."""

import argparse
import ctypes
import sys

if sys.version_info < (3, 11):
    sys.exit(f"This needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}")


def take_no_arguments(doc):
    """Ends a program whose command line has arguments: --help prints its description, and all others are refused."""
    argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()


def keep_memory():
    """Lets the C library keep memory that this program frees, for later, where it can."""
    # Otherwise large tensors go back to the system, which empties every page before it gives it again: a fifth of a
    # step of train.py, and a tenth of the time to score, on two cores. It takes up to a third more memory.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no large tensor has memory of its own, which would go back with it
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: free memory at the end of all does not go back either
