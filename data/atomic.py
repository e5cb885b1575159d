"""
Writes files that are complete or not there, whatever stops the program. Everything here that writes a file uses this.
"""

import contextlib
import json
import os
from pathlib import Path

PROCESSES = Path("/proc")  # Linux has a folder here for each process that is running


@contextlib.contextmanager
def writing(path):
    """Lets an error of the system, such as a full disk, name the file. By itself it names none."""
    try:
        yield
    except (OSError, RuntimeError) as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch.save hides an OSError behind a RuntimeError
        if getattr(cause, "strerror", None) is None:  # not of the system, such as one of those below
            raise
        raise OSError(f"{path} cannot be written ({cause.strerror}): put that right and run it again") from e


@contextlib.contextmanager
def replacing(path):
    """Gives a block a temporary path to write to. At its end this becomes `path`: complete or not at all."""
    path = Path(os.path.realpath(path))  # where a link leads, or the link would be replaced
    if path.exists() and not path.is_file():  # such as /dev/null, in whose place root could put a file
        raise OSError(f"{path} is no file, so it is not replaced by one: give another path")
    temporary = path.with_name(f"{path.name}.unfinished-{os.getpid()}.tmp")  # of this process alone
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with open(temporary, "rb+") as f:
                os.fsync(f.fileno())  # or after a power cut the new name could be there without the bytes
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path, value):
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def locked(folder, wait=False):
    """Lets one process at a time write into a folder. Another one waits for its end, or ends in an OSError."""
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock = open(Path(folder) / ".lock", "a")  # "w" would empty a file of that name
    with lock:
        try:
            import fcntl  # which Windows does not have

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise OSError(f"{folder}: another process is writing there: wait for it, or set --out_dir") from None
            print(f"{folder}: another process is writing there; this one waits for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except (OSError, ImportError):
            pass  # there are no locks here
        for left in Path(folder).glob("*.unfinished-*.tmp"):
            pid = left.stem.rpartition(".unfinished-")[2]
            if pid.isdigit() and PROCESSES.exists() and not (PROCESSES / pid).exists():  # it was killed in `replacing`
                left.unlink(missing_ok=True)
        yield
