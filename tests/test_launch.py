"""python -m config.plan NAME --run: which runs begin when, what becomes of those that fail, and Ctrl-C."""

import os
from pathlib import Path

import pytest

from config import launch
from config.plan import main

# In place of train.py. It writes into one file for all when it begins and ends, and ends when enough have begun and the
# text --until is in this file. It fails if the name of its folder is b.
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
    text = said.read_text()
    if text.count("begin") >= int(os.environ["N_BEGUN"]) and keys.get("until", "") in text:
        break
    time.sleep(0.02)
else:
    sys.exit("waited in vain")
if name == "b":
    sys.exit("train.py: no")
say("end")
"""
ARMS = "base = 'config/tiny.py'\nseeds = [1]\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Lets PROGRAM be what is run, in tmp_path, and returns a function that gives what it said, a list."""
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.setattr(launch, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("N_BEGUN", "1")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # output.txt is UTF-8, whatever the system prefers
    return lambda: Path("said").read_text().splitlines()


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
def test_all_runs_are_done_so_many_at_once_and_begin_in_the_order_of_the_plan(program, monkeypatch, n_jobs):
    monkeypatch.setenv("N_BEGUN", str(n_jobs))
    start, processes, n_alive = launch.start, [], []

    def counted(run):
        processes.append(start(run))
        n_alive.append(sum(process.poll() is None for process in processes))
        return processes[-1]

    monkeypatch.setattr(launch, "start", counted)
    Path("mine.py").write_text(ARMS + "arms = {name: dict() for name in 'acdef'}")
    for _ in 1, 2:  # and again: what was stopped goes on
        with pytest.raises(SystemExit) as e:
            main(["mine.py", "--run", f"--jobs={n_jobs}", "--max_iters=9"])
        assert e.value.code is None
    said = program()
    assert max(n_alive) == n_jobs and len(said) == 20
    if n_jobs == 1:
        assert [line for line in said if "begin" in line] == 2 * [f"begin {name}-1" for name in "acdef"]
    output = Path("out/plans/mine_9/a-1/output.txt").read_text("utf-8")
    assert output == 2 * "begin ░\nend ░\n"  # added to what was there


def test_a_run_that_fails_is_named_the_others_go_on_and_those_that_start_from_it_are_not_begun(program):
    lines = [f"config/tiny.py --out_dir=x/{name}" for name in ("a", "b", "c")]
    lines[2:2] = ["config/tiny.py --out_dir=x/of_a --data_dir=x/a", "config/tiny.py --out_dir=x/of_both --data_dir=x/b"]
    assert launch.do_all(lines, 2).splitlines() == [
        "x/b failed: see its output.txt", "x/of_both was not begun: one that it starts from failed"]
    said = program()
    assert said.index("begin of_a") > said.index("end a") and {"end of_a", "end c"} <= {*said}
    assert "train.py: no" in Path("x/b/output.txt").read_text("utf-8")


def test_a_child_waits_for_its_parent_and_a_run_behind_it_does_not(program):
    lines = [f"config/tiny.py --out_dir={words}" for words in ("x/a --until='end d'", "x/c --data_dir=x/a", "x/d")]
    assert launch.do_all(lines, 3) == ""
    assert program()[-3:] == ["end a", "begin c", "end c"]


def test_ctrl_c_ends_the_runs(program, monkeypatch):
    def pressed(_):
        while not Path("said").exists():
            os.sched_yield()
        raise KeyboardInterrupt

    monkeypatch.setattr(launch.time, "sleep", pressed)
    assert launch.do_all(["config/tiny.py --out_dir=x/a --until=never"], 2) == "stopped; the same command goes on"
    assert "waited in vain" not in Path("x/a/output.txt").read_text("utf-8")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


@pytest.mark.parametrize("flags, words", [
    (["--run", "--jobs=0"], "jobs = 0, expected 1 or more"), (["--run", "--jobs=x"], "jobs = x"),
    (["--jobs=2"], "unknown key jobs"), (["--runs"], "--runs: write --key=value")])
def test_what_is_mistyped_ends_in_one_line_and_begins_no_run(program, flags, words):
    Path("mine.py").write_text(ARMS + "arms = dict(a={})")
    with pytest.raises(SystemExit, match=words):
        main(["mine.py", *flags])
    assert not Path("said").exists()
