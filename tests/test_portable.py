"""What Windows, a Mac, a cluster's file system and an old Python lack. pytest tests/test_portable.py"""

import ast
import ctypes
import errno
import os
import re
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from config import ROOT, launch
from data import atomic
from data.memory import keep_memory
from data.names import CheckpointError
from data.pretrained.folders import find_source
from data.runs import write

CODE = [path for path in ROOT.rglob("*.py") if not {"tests", ".venv"} & {*path.relative_to(ROOT).parts}]
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
TEXT = dict(open=1, read_text=0, write_text=1, fdopen=1)  # {function: which argument is the mode or the encoding}


def nodes(path, kind):
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 10))  # or an old one would not come to its line
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_text_has_its_encoding_and_nothing_that_posix_alone_has_is_imported(path):
    for node in nodes(path, ast.Import):
        assert not POSIX & {alias.name for alias in node.names}
    for call in nodes(path, ast.Call):
        name = ast.unparse(call.func).rpartition(".")[2]
        keys = {keyword.arg for keyword in call.keywords}
        if name in TEXT and ast.unparse(call.func) not in ("gzip.open", "Image.open"):
            given = [ast.unparse(x) for x in call.args[TEXT[name]:]]
            is_text = not (name == "open" and given and "b" in given[0])
            has_encoding = "encoding" in keys or name == "read_text" and given
            assert not is_text or has_encoding, ast.unparse(call)
            assert name != "write_text" or "newline" in keys, ast.unparse(call)


def test_requirements_are_the_packages_that_the_code_imports():
    found = set()
    for path in CODE:
        found |= {alias.name for node in nodes(path, ast.Import) for alias in node.names}
        found |= {node.module for node in nodes(path, ast.ImportFrom) if not node.level}
    found = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    own = {path.stem for path in ROOT.iterdir()}
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    listed = {re.match(r"\w+", line)[0] for line in lines if not line.startswith("#")}
    # Only an export loads transformers, to compare. Of sympy files are read, and it is not imported.
    assert found - own - {"transformers"} == listed - {"sympy"}


@pytest.mark.parametrize("script", ["train.py", "analyze.py", "data/sympy/prepare.py"])
def test_an_old_python_ends_in_one_line(script):
    old = ("import runpy, sys; from unittest.mock import MagicMock; "  # torch and others could be of any Python
           "sys.modules |= dict.fromkeys(['torch', 'torch.nn.parallel', 'tqdm', 'pandas', 'numpy'], MagicMock()); "
           "sys.version_info = (3, 10, 14, 'final', 0); runpy.run_path(sys.argv[1], run_name='__main__')")
    ended = subprocess.run([sys.executable, "-c", old, ROOT / script], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith("This needs Python 3.11 or newer") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("platform, libc", [("win32", None), ("darwin", None), ("linux", SimpleNamespace())])
def test_a_c_library_without_mallopt_is_left_alone(platform, libc, monkeypatch):
    def load(name):
        if libc is None:
            raise TypeError("on Windows a library has a name")
        return libc

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", load)
    keep_memory()


def test_train_and_analyze_run_without_fcntl_and_mallopt(data_dir, tmp_path):
    from tests.lives import SMALL

    keys = SMALL | dict(max_iters=1, data_dir=data_dir, out_dir="run")
    flags = [f"--{key}={value}" for key, value in keys.items()]
    script = ("import ctypes, runpy, sys; sys.modules['fcntl'] = None; whole = ctypes.CDLL; "
              "ctypes.CDLL = lambda name, *args, **keys: whole(name, *args, **keys) if name else object(); "
              f"sys.argv[1:] = {flags}; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__'); "
              f"sys.argv[1:] = ['--hf', 'run']; runpy.run_path({str(ROOT / 'analyze.py')!r}, run_name='__main__')")
    argv, env = [sys.executable, "-c", script], os.environ | dict(PYTHONPATH=str(ROOT))
    ended = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "run: no lock can be had here" in ended.stderr and "Whole models" in ended.stdout


# ---- locks -------------------------------------------------------------------------------------------------------


HOLD = """
from data.atomic import locked
print("asks", flush=True)
with locked({!r}, wait={}):
    print("mine", flush=True)
    input()
"""


def holder(folder, wait=False):
    """A process that says when it asks for the lock of a folder and when it has it, and keeps it until it is killed."""
    argv = [sys.executable, "-c", HOLD.format(str(folder), wait)]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "asks\n"
    return process


def test_a_second_program_is_refused_or_waits_until_the_first_one_is_killed(tmp_path):
    first = holder(tmp_path)
    assert first.stdout.readline() == "mine\n"
    with pytest.raises(OSError, match="another program is writing there: wait for it, or set --out_dir") as e:
        with atomic.locked(tmp_path):
            pass
    assert "\n" not in str(e.value)
    second = holder(tmp_path, wait=True)
    time.sleep(0.5)  # one that does not wait has ended by now
    first.kill()
    assert second.stdout.readline() == "mine\n"
    second.kill()
    assert first.wait() and second.wait()
    with atomic.locked(tmp_path):
        assert (tmp_path / ".lock").read_bytes() == b""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_ends_no_run_and_a_broken_one_does(number, tmp_path, monkeypatch, capsys):
    import fcntl

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"), atomic.locked(tmp_path):
            pass
    else:
        with atomic.locked(tmp_path, wait=True):
            assert "start one program at a time" in capsys.readouterr().err


# ---- lines and paths of Windows ----------------------------------------------------------------------------------


def test_rows_have_the_same_bytes_where_lines_end_in_two(tmp_path, monkeypatch):
    expected = b"step,loss\n1,0.5\n2,0.25\n"
    monkeypatch.setattr(os, "linesep", "\r\n")  # pandas writes it
    text = write.add_rows(write.add_rows("", [dict(step=1, loss=0.5)], "%g"), [dict(step=2, loss=0.25)], "%g")
    write.write_rows(tmp_path, {"log.csv": text})
    assert (tmp_path / "log.csv").read_bytes() == expected


def test_paths_of_windows_are_kept(capsys, tmp_path):
    from config.plan import main

    (run,) = launch.read_runs([shlex.join(["config/tiny.py", "--out_dir=C:\\my runs\\a-1"])])
    assert run.folder == "C:\\my runs\\a-1"
    (tmp_path / "mine.py").write_text("base = 'config/tiny.py'\nseeds = [1]\narms = dict(a={})")
    main([str(tmp_path / "mine.py"), "--data_dir=D:\\my data"])
    words = shlex.split(capsys.readouterr().out)
    assert {"--data_dir=D:\\my data", "--out_dir=out/plans/mine_D--my data/a-1"} <= {*words}
    with pytest.raises(CheckpointError, match="no model or folder of this name"):
        find_source("C:\\models\\mine")
