"""python -m config.plan NAME --run: which runs begin when, what becomes of those that fail, and Ctrl-C."""

import os
import shlex
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from config import launch
from config.plan import main
from data.runs import write
from tests.test_runs import FALL, STEPS, write_run

# In place of train.py. It writes into one file for all when it begins and when it ends, and ends when the text --until
# is in this file. It fails if the name of its folder is b.
PROGRAM = """
import os, pathlib, sys, time
keys = dict(word.lstrip("-").split("=", 1) for word in sys.argv[2:])
name = os.path.basename(keys["out_dir"])
said = pathlib.Path("said")
def say(text):
    print(text, "░")
    with open(said, "a") as file:
        file.write(f"{text} {name}\\n")
pathlib.Path("pid").write_text(str(os.getpid()))
say("begin")
for _ in range(3000):
    if keys.get("until", "") in said.read_text():
        break
    time.sleep(0.02)
else:
    sys.exit("waited in vain")
if name == "b":
    sys.exit("train.py: no")
say("end")
"""
PLAN = "base = 'config/tiny.py'\nseeds = [1]\narms = dict(c={}, a={}, d={})"


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Lets PROGRAM be what is run, in tmp_path, and gives the file of what it said, and mine.py, which is a plan."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "mine.py").write_text(PLAN)
    monkeypatch.setattr(launch, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # output.txt is UTF-8, whatever the system prefers
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path / "said"
    signal.signal(signal.SIGTERM, before)  # which do_all has set


def test_runs_are_done_in_the_order_of_the_plan_and_again_if_they_were_stopped(said):
    for _ in 1, 2:
        with pytest.raises(SystemExit) as e:
            main(["mine.py", "--run", "--jobs=1", "--max_iters=9"])
        assert e.value.code is None
    one_by_one = [f"{text} {name}-1" for name in "cad" for text in ("begin", "end")]
    assert said.read_text().splitlines() == 2 * one_by_one
    output = Path("out/plans/mine_max_iters=9/a-1/output.txt").read_text("utf-8")
    assert output == 2 * "begin ░\nend ░\n"  # added to what was there


def runs(*names):
    """A generation of launch.do_all. A name may be followed by keys."""
    return [(f"x/{name.split()[0]}", shlex.split(f"config/tiny.py --out_dir=x/{name}")) for name in names]


def test_runs_that_fail_or_cannot_be_started_are_named_others_go_on_and_children_wait_for_all_parents(said):
    """Two at once: a ends when d has ended, which begins when b and c have failed."""
    Path("x").mkdir()
    Path("x/c").write_text("a file where its folder should be")
    generations = [runs("a --until='end d'", "b", "c", "d"), runs("of_a")]
    failed = launch.do_all(generations, 2).splitlines()
    assert sorted(failed) == ["x/b failed: see its output.txt", "x/c failed: [Errno 17] File exists: 'x/c'"]
    lines = [line for line in said.read_text().splitlines() if line not in ("begin a", "begin b")]  # at any time
    assert lines == ["begin d", "end d", "end a", "begin of_a", "end of_a"]
    assert "train.py: no" in Path("x/b/output.txt").read_text("utf-8")


def test_finished_runs_of_another_commit_than_the_code_are_named(said, monkeypatch, capsys):
    monkeypatch.setattr(write, "find_commit", lambda: "c2")
    write_run(Path("x/a"), commit="c1")
    write_run(Path("x/b"), commit="c2")
    write_run(Path("x/c"), FALL[:3], steps=STEPS[:3], commit="c1")  # has not finished
    write_run(Path("x/d"), FALL[:4], steps=STEPS[:4], commit=["c1"], max_iters=300)
    launch.do_all([runs("a", "b", "c", "new"), runs("d")], 1)
    words = "2 finished runs are not of commit c2, as the code is. Delete a folder to do its run again: x/a x/d"
    assert words in capsys.readouterr().err
    launch.do_all([runs("c", "new")], 1)
    assert "finished" not in capsys.readouterr().err


def test_to_stop_the_command_ends_its_runs_and_to_stop_it_again_changes_nothing(said, monkeypatch):
    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=lambda _: os.kill(os.getpid(), signal.SIGTERM)))

    def stop():
        while not said.exists():
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert launch.do_all([runs("a --until=never", "never_begun")], 1) == "stopped; the same command goes on"
    assert not Path("x/never_begun").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)
