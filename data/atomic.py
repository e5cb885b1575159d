"""Writes files that are complete or not there, and keeps two programs from writing into one folder."""

import contextlib
import errno
import json
import os
import sys
from pathlib import Path

from filelock import lock_descriptor

# What file systems without locks raise: some on clusters, NFS without a lock daemon, some on Macs.
NO_LOCKS = errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP


@contextlib.contextmanager
def replacing(path):
    """Gives a block a temporary path to write to. At its end the file takes the place of `path`."""
    path = Path(path)
    if path.exists() and not path.is_file():  # such as /dev/null, which root could replace by a file
        raise OSError(f"{path} is no file, so it is not replaced by one")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # no other process uses this name
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path):
    """Removes what killed programs have left of `path`. Nobody else may be writing it now: see locked."""
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        left.unlink()


def write_json(path, value):
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")


def is_locked(folder):
    """Returns whether another program writes into a folder at this moment, if that can be known."""
    with contextlib.suppress(OSError), open(Path(folder, ".lock"), "rb") as lock:
        return not lock_descriptor(lock.fileno(), blocking=False)  # a lock that we get here ends with the file
    return False


@contextlib.contextmanager
def locked(folder, wait=False):
    """Lets one program at a time write into a folder. A second one waits (wait=True) or gets an OSError."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder, ".lock"), "ab") as lock:  # if this program is killed, the system frees it
        try:
            is_mine = lock_descriptor(lock.fileno(), blocking=wait)
        except OSError as e:
            if e.errno not in NO_LOCKS:
                raise
            print(f"{folder}: no lock can be had here: start one program at a time", file=sys.stderr)
            is_mine = True
        if not is_mine:
            raise OSError(f"{folder}: another program is writing there: wait for it, or set --out_dir")
        yield
