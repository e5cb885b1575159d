"""Writes files that are complete or not there, and keeps two programs from writing into one folder."""

import contextlib
import fcntl
import json
import os
from pathlib import Path


@contextlib.contextmanager
def replacing(path):
    """Gives a block a temporary path to write to. At its end this becomes `path`: complete or not at all."""
    path = Path(os.path.realpath(path))  # where a link leads, or the link would be replaced
    if path.exists() and not path.is_file():  # such as /dev/null, in whose place root could put a file
        raise OSError(f"{path} is no file, so it is not replaced by one")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # of this process alone
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path, value):
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def locked(folder, wait=False):
    """Lets one program at a time write into a folder. Another one waits for its end, or ends in an OSError."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder, ".lock"), "a") as lock:  # if this program is killed, the system frees it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{folder}: another program is writing there: wait for it, or set --out_dir") from None
        yield
