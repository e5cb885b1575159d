"""The exercises of tests/exercises: our own functions pass them, and wrong ones are told what is wrong."""

import re
from pathlib import Path

import pytest
import torch

import analyze
import init
from data.results.record import FOLDER
from tests.exercises import __main__ as exercises
from tests.exercises import step_1_symmetry, step_2_directionality, step_3_attention, step_4_predict, step_5_start


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
def check(monkeypatch, finished, capsys):
    """Returns what the command prints of a step. Every function is ours, and every run of step 4 is at its end."""
    monkeypatch.setattr(exercises, "UPDATES", 12)
    for (step, name), function in OURS.items():
        monkeypatch.setattr(step, name, function)
    monkeypatch.setattr(step_5_start, "NAME", "symmetric")
    for name in step_4_predict.RUNS:
        monkeypatch.setitem(step_4_predict.RUNS, name, finished.out_dir)

    def check(step):
        exercises.main([step.__name__.split("step_")[1][0]])
        return capsys.readouterr().out

    return check


@pytest.mark.parametrize("step, told", [
    (step_1_symmetry, "1/n on average"), (step_2_directionality, "+0.58 as printed"), (step_3_attention, "of rank D"),
    (step_4_predict, "predicted -0.50, off by "), (step_5_start, "symmetric takes 508 updates")])
def test_our_own_functions_pass_every_step_and_it_is_said_what_was_learned(check, step, told):
    learned = check(step)
    assert ": done. " in learned and told in learned and "float64" not in learned


@pytest.mark.parametrize("step, name, wrong, told", [
    (step_1_symmetry, "symmetry", lambda m: (m * m.T).sum() / m.norm(), "The symmetry of A + A^T is 1, and yours is 7"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m.T), "norm(dim=1) is of rows"),
    (step_2_directionality, "directionality", analyze.directionality_eq17, "whole norms are added up"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m, 1), "The threshold is mean + 2"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m) + 0 / m[0, 1], "yours is nan"),
    (step_2_directionality, "directionality_as_printed", analyze.directionality, "As printed it is 0.585"),
    (step_3_attention, "head", lambda x, w_q, w_k, w_v: head(x, 2 * w_q, w_k, w_v), "softmax over keys"),
    (step_3_attention, "wqk", lambda w_q, w_k: w_k @ w_q.T, "M is (C, C)"),
    (step_3_attention, "rotated", lambda w_q, w_k, r: (r @ w_q, w_k), "RuntimeError: mat1 and mat2 shapes"),
    (step_3_attention, "rotated", lambda w_q, w_k, r: (w_q, w_k), "returns the W_q that it was given"),
    (step_3_attention, "rotated", lambda w_q, w_k, r: (w_q @ r, w_k @ r.T), "changes W_qk"),
    (step_4_predict, "predictions", lambda: dict(encoder=(0.5, 0)), "The decoder has no prediction yet"),
    (step_5_start, "start", lambda *_: None, "step_5_start.py: start(...) returns nothing yet."),
    (step_5_start, "start", init.random, "the random start"),
    (step_5_start, "start", lambda w_q, w_k, generator: (w_q, torch.randn_like(w_k)), "draw with the generator")])
def test_a_wrong_answer_is_told_what_is_wrong_with_it(check, monkeypatch, step, name, wrong, told):
    monkeypatch.setattr(step, name, wrong)
    said = check(step)
    assert told in said and "done" not in said and said.count("\n") == 1


def test_what_comes_after_the_function_is_told_as_well(check, monkeypatch, tmp_path):
    monkeypatch.setitem(step_4_predict.RUNS, "decoder", str(tmp_path))
    assert "Now train the decoder for 12 updates" in check(step_4_predict)
    monkeypatch.setattr(exercises, "UPDATES", 13)  # the run of the encoder has finished, but is shorter
    assert "Now train the encoder for 13 updates" in check(step_4_predict)
    monkeypatch.setattr(step_5_start, "NAME", "mine")
    assert "It is a start. Now copy it to init.py, and name it in STARTS: mine." in check(step_5_start)
    monkeypatch.setitem(init.STARTS, "mine", init.symmetric)
    assert "Now train mine with eight seeds and write" in check(step_5_start)


def test_the_command_prints_a_line_for_each_step(capsys):
    exercises.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step_{i}" for i in range(1, 6)]
    assert all(line.endswith("returns nothing yet.") for line in lines)


def test_every_answer_of_the_questions_names_a_test_or_a_file_that_is_there():
    folder = Path(exercises.__file__).parent
    text = " ".join((folder / "README.md").read_text().split())
    tests = "".join(path.read_text() for path in folder.parent.glob("test_paper*.py"))
    sources = re.findall(r"\[([^]]*)\] </details>", text)
    assert len(sources) == text.count("<summary>") == 15
    for source in sources:
        name = source.removeprefix("-k ")
        if name != source:
            assert re.search(rf"def test_\w*{name}_", tests), name
            continue
        for file in re.split("[,;] ", source):
            assert (folder.parents[1] / file).exists() or (FOLDER.parent / file).exists(), file
