"""Trainings: what names stand for, in which order, and what is drawn of them. pytest tests/test_revisions.py"""

import glob
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data import drawing
from data.pretrained import revisions
from tests.hub import ID, ROUTES, in_json
from tests.lives import at_call
from tests.test_analyze import bert, symmetry_of
from tests.toy import files_of, one_line

STEPS = [2, 10, 300]


def symmetries():
    """Of all layers of all checkpoints of the run."""
    return [symmetry for step in STEPS for symmetry in symmetry_of(f"run/checkpoint-{step}")]


@pytest.fixture
def run(tmp_path):
    """What a Trainer leaves: checkpoints whose order by name is not that of their steps, and other folders."""
    for step, mix in zip(STEPS, (0.0, 0.4, 0.9)):
        bert(tmp_path / "run" / f"checkpoint-{step}", mix)
    (tmp_path / "run" / "logs").mkdir()
    return tmp_path / "run"


CHECKPOINTS = "--hf", "./run", "--revisions=checkpoint-*"


@pytest.mark.parametrize("name, step", [
    ("stage1-step900-tokens4B", 900), ("step_20k", 20e3), ("checkpoint-500", 500), ("epoch=1-step=200.ckpt", 200),
    ("610m-mlm40-42k-1000", 1000), ("model_000020.pt", 20), ("chck_0.5M", 5e5), ("main", None)])
def test_the_step_is_the_number_after_step_else_the_last_one(name, step):
    assert revisions.read_step(name) == step


@pytest.mark.parametrize("limit, steps", [(1, [0]), (4, [0, 3, 7, 10]), (20, [*range(11)])])
def test_a_limit_is_spread_over_each_training_of_folders_or_files(tmp_path, limit, steps):
    for step in range(11):
        (tmp_path / "a" / f"step{step}").mkdir(parents=True)
        for ending in "pt", "txt":
            (tmp_path / f"step{step:02}.{ending}").touch()
    found, errors = revisions.find_all([str(tmp_path / "a"), str(tmp_path)], "step*", limit)
    assert [target.step for target in found.values()] == 2 * steps and not errors


def test_checkpoints_of_one_step_are_in_the_order_of_their_names(tmp_path):
    for name in "edacb":
        (tmp_path / f"step1-{name}.pt").touch()
    assert [target.revision[6] for target in revisions.find_targets(str(tmp_path), "*")] == [*"abcde"]


@pytest.mark.parametrize("asked", ["some", "all", "shell"])
def test_the_checkpoints_of_a_local_run_are_scored_in_the_order_of_their_steps(run, analysed, asked):
    """The option; and what a shell makes of a pattern without quotes."""
    argv = {"some": CHECKPOINTS, "all": ["--hf", "run", "--revisions=*"],
            "shell": ["--hf", *sorted(glob.glob("run/checkpoint-*"))]}[asked]
    found = analysed(*argv)
    assert found.status == 0
    assert [Path(name).name for name in found.table.revision[::3]] == [f"checkpoint-{step}" for step in STEPS]
    assert list(found.table.symmetry) == pytest.approx(symmetries(), abs=1e-5)
    lines = [line.split() for line in found.out.splitlines()[2:5]]
    assert [words[1] for words in lines] == [f"checkpoint-{step}" for step in STEPS]
    told = "1 of the 4 that match have no step in their names, and are left out: logs"
    assert (told in found.err) == (asked == "all")


def test_the_table_of_heads_names_the_checkpoint_of_each_row(run, analysed):
    lines = analysed(*CHECKPOINTS, "--per_head", csv=False).out.split("\n\n")[0].splitlines()[2:]
    assert [line.split()[1] for line in lines[:: len(lines) // 3]] == [f"checkpoint-{step}" for step in STEPS]


@pytest.mark.parametrize("names", [("llama-7b", "llama-13b"), ("run/checkpoint-300", "other/checkpoint-300"),
                                   ("run/bert-step300", "run/gpt-step300"), ("epoch1/step300", "epoch2/step300")])
def test_models_that_are_named_one_by_one_are_no_training(run, analysed, names):
    found = analysed("--hf", *(bert(name, 0.1) for name in names))
    assert found.status == 0 and list(found.table.model[::3]) == list(names) and set(found.table.revision) == {""}


def test_the_picture_holds_medians_quartiles_and_a_line_per_layer(run, analysed, drawn):
    analysed(*CHECKPOINTS, "--plot=s.png")
    medians, layers = drawn[0].axes[::2]
    values = np.reshape(symmetries(), (3, 3))  # (P, L)
    line = medians.lines[0]
    assert list(line.get_xdata()) == STEPS
    np.testing.assert_allclose(line.get_ydata(), np.median(values, axis=1), atol=1e-5)
    corners = medians.collections[0].get_paths()[0].vertices
    for i, step in enumerate(STEPS):
        edges = corners[corners[:, 0] == step, 1]
        np.testing.assert_allclose([edges.min(), edges.max()], np.percentile(values[i], [25, 75]), atol=1e-5)
    for i in range(3):
        np.testing.assert_allclose(layers.lines[i].get_ydata(), values[:, i], atol=1e-5)
    assert line.get_color() == drawing.ENCODER
    assert medians.get_xscale() == layers.get_xscale() == "symlog"  # the last step is 150 times the first


def test_trainings_whose_short_names_are_alike_have_a_line_each(run, analysed, drawn):
    names = ["./a/" + "long-" * 8, "./b/" + "long-" * 8]
    for name in names:
        shutil.copytree(run, name)
    assert analysed("--hf", *names, "--revisions=checkpoint-*", "--plot=s.png").status == 0
    medians, *layers = drawn[0].axes[::2]
    lines = [line for line in medians.lines if len(line.get_xdata()) == 3]
    assert len(lines) == len(layers) == 2 and lines[0].get_color() != lines[1].get_color()


@pytest.mark.parametrize("argv, wanted", [
    ("--hf ./run --revisions=step*", "./run: none of its 4 checkpoints matches step*"),
    ("--hf org/model --revisions=stage*", "org/model: none of its 2 checkpoints matches stage*")])
def test_what_cannot_be_found_is_one_line_and_no_csv_is_touched(hub, run, analysed, argv, wanted):
    for branch in "main", "step1":
        hub.add("org/model", files_of(run / "checkpoint-2"), branch=branch)
    before = analysed(*CHECKPOINTS).table
    found = analysed(*argv.split())
    assert found.status == 1 and found.err.startswith(f"analyze.py: {wanted}") and found.err.count("\n") == 1
    assert found.table.equals(before)


def test_after_ctrl_c_what_was_scored_is_there_and_is_not_scored_again(run, analysed):
    with at_call("analyze.score_model", 3, partial(signal.raise_signal, signal.SIGINT)):
        found = analysed(*CHECKPOINTS)
    assert found.status == 130 and found.err.splitlines()[-1] == "analyze.py: stopped"
    assert analysed(*CHECKPOINTS).err.count(": read ") == 1  # of the last


def test_a_mirror_of_the_hub_that_answers_otherwise_is_one_line(hub, monkeypatch):
    monkeypatch.setitem(ROUTES, f"/api/models/{ID}/refs", lambda *_: in_json({}))
    assert "what the Hub answers makes no sense" in one_line(lambda: revisions.find_targets("org/model", "*"))


def test_branches_and_tags_are_read_in_order(hub, run, analysed):
    hub.add("org/model", files_of(run / "checkpoint-300"), branch="step300")
    hub.add("org/model", files_of(run / "checkpoint-10"), branch="step10")
    hub.add("org/model", files_of(run / "checkpoint-2"), tag="step2")
    hub.add("org/model", {"README.md": b"no model here"})
    found = analysed("--hf", "org/model", "--revisions=step*")
    assert found.status == 0 and list(found.table.revision[::3]) == ["step2", "step10", "step300"]
    assert list(found.table.symmetry) == pytest.approx(symmetries(), abs=1e-5)
