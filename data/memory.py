"""What a program asks of the C library before it begins."""

import ctypes
import sys


def keep_memory():
    """Lets the C library keep memory that this program frees, for later, where it can."""
    # Otherwise large tensors go back to the system, which empties every page before it gives it again: a fifth of a
    # step of train.py, and a tenth of the time to score, on two cores. It takes up to a third more memory.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no large tensor has memory of its own, which would go back with it
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: free memory at the end of all does not go back either
