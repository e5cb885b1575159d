"""What Windows, a Mac, a cluster's file system and an old Python lack. pytest tests/test_portable.py"""

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from config import ROOT
from data import atomic, expand
from tests.lives import SMALL


@pytest.mark.parametrize("script", ["train.py", "analyze.py", "data/sympy/prepare.py"])
def test_an_old_python_ends_in_one_line(script):
    ast.parse((ROOT / script).read_text("utf-8"), feature_version=(3, 10))  # or it would not come to its line
    old = ("import runpy, sys; from unittest.mock import MagicMock; "  # torch and others could be of any Python
           "sys.modules |= dict.fromkeys(['torch', 'torch.nn.parallel', 'tqdm', 'pandas', 'numpy'], MagicMock()); "
           "sys.version_info = (3, 10, 14, 'final', 0); runpy.run_path(sys.argv[1], run_name='__main__')")
    ended = subprocess.run([sys.executable, "-c", old, ROOT / script], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith("This needs Python 3.11 or newer") and ended.stderr.count("\n") == 1


def test_train_and_analyze_run_without_fcntl_and_mallopt(data_dir, tmp_path):
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


def test_stars_that_no_shell_expands_are_paths_but_names_and_what_matches_nothing_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "a-1", "a-2", "b[1]*", "c[2]/d":
        (tmp_path / name).mkdir(parents=True)
    assert expand(["c[2]/*"]) == ["c[2]/d"]
    assert expand(["a-*", "a-?", "b[1]*", "d*", "a-1"]) == ["a-1", "a-2", "a-1", "a-2", "b[1]*", "d*", "a-1"]


@pytest.mark.parametrize("words", ["-m config.plan starts", "-m data.runs data/results/csv/starts.csv --all"])
def test_a_reader_that_stops_reading_ends_a_command_without_a_word(words):
    argv = f"{sys.executable} -u {words} | head -n 1"
    ended = subprocess.run(argv, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout.count("\n") == 1 and ended.stderr == ""


def hold(folder, wait):
    with atomic.locked(folder, wait):
        return "mine"


def test_a_second_program_is_refused_or_waits_for_the_end_of_the_first_one(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        with atomic.locked(tmp_path):
            with pytest.raises(OSError, match="another program is writing there: wait for it, or set --out_dir") as e:
                hold(tmp_path, wait=False)
            assert "\n" not in str(e.value)
            second = pool.submit(hold, tmp_path, wait=True)
            with pytest.raises(TimeoutError):  # one that does not wait has ended by now
                second.result(0.5)
        assert second.result(60) == "mine"
