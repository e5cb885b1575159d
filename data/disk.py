"""
Files that are complete or not there, and folders that one process writes at a time.
"""

import contextlib
import json
import os
from pathlib import Path


class FileError(OSError):
    """A file cannot be written. The message is one line that says what to do."""


@contextlib.contextmanager
def writing(path):
    """Let an error of the system, such as a full disk, name the file. By itself it names none."""
    try:
        yield
    except FileError:
        raise
    except (OSError, RuntimeError) as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch.save hides an OSError behind a RuntimeError
        if not isinstance(cause, OSError):
            raise
        raise FileError(f"{path} cannot be written ({cause.strerror}): mend that and go on; nothing is lost") from e


@contextlib.contextmanager
def replacing(path):
    """A temporary path for the block to write. At its end the file is renamed to `path`: complete or not at all."""
    path = Path(os.path.realpath(path))  # where a link leads, or the link would be replaced
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # of this process alone
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # a killed run may have left one, and nothing may be appended to it
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
    """
    Let one process at a time write into a folder. Another one waits, or a FileError ends it. The system unlocks the
    folder when the process ends, however it ends.
    """
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock = open(Path(folder) / ".lock", "w")
    with lock:
        try:
            import fcntl  # which Windows does not have

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise FileError(f"{folder}: another process is writing there: wait for it, or set --out_dir") from None
            print(f"{folder}: another process is writing there; this one waits for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except (OSError, ImportError):
            pass  # there are no locks here
        for left in Path(folder).glob("*.[0-9]*.tmp"):  # by a process that was killed in `replacing`
            left.unlink(missing_ok=True)
        yield
