"""The exercises of tests/exercises: our own functions pass them, and wrong ones are told what is wrong."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import analyze
import init
from data.results.record import FOLDER
from tests.exercises import (conftest, step_1_symmetry, step_2_directionality, step_3_attention, step_4_predict,
                             step_5_start, test_steps)

EXERCISES = Path(conftest.__file__).parent


def head(x, w_q, w_k, w_v):
    return torch.softmax(x @ w_q @ w_k.T @ x.T / w_q.shape[1] ** 0.5, -1) @ (x @ w_v)


OURS = {
    (step_1_symmetry, "symmetry"): analyze.symmetry,
    (step_2_directionality, "directionality"): analyze.directionality,
    (step_2_directionality, "directionality_as_printed"): analyze.directionality_eq17,
    (step_3_attention, "head"): head,
    (step_3_attention, "wqk"): analyze.wqk,
    (step_3_attention, "rotated"): lambda w_q, w_k, r: (w_q @ r, w_k @ r),
    (step_4_predict, "predictions"): lambda: dict.fromkeys(step_4_predict.RUNS, (0.5, -0.5)),
    (step_5_start, "start"): init.symmetric,
}


@pytest.fixture
def solved(monkeypatch, finished):
    """Every function is ours, and every run of step 4 is at its end."""
    monkeypatch.setattr(test_steps, "UPDATES", 12)
    for (step, name), function in OURS.items():
        monkeypatch.setattr(step, name, function)
    monkeypatch.setattr(step_5_start, "NAME", "symmetric")
    for name in step_4_predict.RUNS:
        monkeypatch.setitem(step_4_predict.RUNS, name, finished.out_dir)


def check(step):
    """-> what was learned"""
    learned = []
    getattr(test_steps, f"test_{step.__name__.split('.')[-1][:6]}")(learned.append)
    return " ".join(learned)


def mistake(step):
    """The sentence in which the check of a step ends."""
    with pytest.raises(AssertionError) as e:
        check(step)
    return str(e.value).splitlines()[0]


@pytest.mark.parametrize("step, told", [
    (step_1_symmetry, "1/n on average"), (step_2_directionality, "+0.58 as printed"), (step_3_attention, "of rank D"),
    (step_4_predict, "predicted -0.50, off by 0."), (step_5_start, "symmetric takes 508 updates")])
def test_our_own_functions_pass_every_step_and_it_is_said_what_was_learned(solved, step, told):
    learned = check(step)
    assert told in learned and "float64" not in learned


@pytest.mark.parametrize("step, name, wrong, told", [
    (step_1_symmetry, "symmetry", lambda m: (m * m.T).sum() / m.norm(), "The symmetry of A + A^T is 1, and yours is 7"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m.T), "norm(dim=1) is of rows"),
    (step_2_directionality, "directionality", analyze.directionality_eq17, "whole norms are added up"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m, 1), "The threshold is mean + 2"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m) + 0 / m[0, 1], "yours is nan"),
    (step_2_directionality, "directionality_as_printed", analyze.directionality, "As printed it is 0.585"),
    (step_3_attention, "head", lambda x, w_q, w_k, w_v: head(x, 2 * w_q, w_k, w_v), "softmax over keys"),
    (step_3_attention, "wqk", lambda w_q, w_k: w_k @ w_q.T, "M is (C, C)"),
    (step_3_attention, "rotated", lambda w_q, w_k, r: (w_q, w_k), "returns the W_q that it was given"),
    (step_3_attention, "rotated", lambda w_q, w_k, r: (w_q @ r, w_k @ r.T), "changes W_qk"),
    (step_4_predict, "predictions", lambda: dict(encoder=(0.5, 0)), "The decoder has no prediction yet"),
    (step_5_start, "start", lambda *_: None, "step_5_start.py: start(...) returns nothing yet."),
    (step_5_start, "start", init.random, "the random start"),
    (step_5_start, "start", lambda w_q, w_k, generator: (w_q, torch.randn_like(w_k)), "draw with the generator")])
def test_a_wrong_answer_is_told_what_is_wrong_with_it(solved, monkeypatch, step, name, wrong, told):
    monkeypatch.setattr(step, name, wrong)
    assert told in mistake(step)


def test_what_comes_after_the_function_is_told_as_well(solved, monkeypatch, tmp_path):
    monkeypatch.setitem(step_4_predict.RUNS, "decoder", str(tmp_path))
    assert mistake(step_4_predict).startswith("Now train the decoder for 12 updates")
    monkeypatch.setattr(test_steps, "UPDATES", 13)  # the run of the encoder has finished, but is shorter
    assert mistake(step_4_predict).startswith("Now train the encoder for 13 updates")
    monkeypatch.setattr(step_5_start, "NAME", "mine")
    assert mistake(step_5_start).startswith("It is a start. Now copy it to init.py, and name it in STARTS: mine.")
    monkeypatch.setitem(init.STARTS, "mine", init.symmetric)
    assert mistake(step_5_start).startswith("Now train mine with eight seeds and write")


def test_plain_pytest_leaves_the_exercises_out(monkeypatch, pytestconfig):
    monkeypatch.chdir(pytestconfig.rootpath)
    assert conftest.pytest_ignore_collect(SimpleNamespace(args=["tests"]))
    assert not conftest.pytest_ignore_collect(SimpleNamespace(args=["tests/exercises/test_steps.py::test_step_1"]))


def test_the_command_prints_a_line_for_each_step_and_no_traceback(pytestconfig):
    command = [sys.executable, "-m", "pytest", EXERCISES, "-p", "no:cacheprovider"]
    out = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True).stdout
    named = [line.split(":")[0] for line in out.splitlines() if line.endswith("returns nothing yet.")]
    assert named == [f"step_{i}" for i in range(1, 6)] and "Error" not in out and len(out.splitlines()) < 16


def test_every_answer_of_the_questions_names_a_test_or_a_file_that_is_there():
    text = " ".join((EXERCISES / "README.md").read_text().split())
    tests = "".join(path.read_text() for path in EXERCISES.parent.glob("test_paper*.py"))
    sources = re.findall(r"\[([^]]*)\] </details>", text)
    assert len(sources) == text.count("<summary>") == 15
    for source in sources:
        name = source.removeprefix("-k ")
        if name != source:
            assert re.search(rf"def test_\w*{name}_", tests), name
            continue
        for file in re.split("[,;] ", source):
            assert (EXERCISES.parents[1] / file).exists() or (FOLDER.parent / file).exists(), file
