"""train.py: runs that are killed, gone on with, refused; numbers that are lost. pytest tests/test_resume.py"""

import json
import re
import resource
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from config import ConfigError
from data import export
from data.runs import kept, read, write
from tests.lives import (TRAIN_STEP, checkpoint, in_processes, killed, log, make_trainer, refusal, result, resume, run,
                         scores)


@pytest.fixture
def copied(finished, cfg):
    """A finished run that a test may change."""
    shutil.copytree(finished.out_dir, cfg.out_dir)
    return cfg


# ---- killed, gone on with ----------------------------------------------------------------------------------------


# Where a process dies: before the n-th call of a function.
MOMENTS = [("torch.save", 1), (TRAIN_STEP, 3), ("data.runs.write.write_files", 2), ("os.replace", 5)]


@pytest.mark.parametrize("keys, moments", [
    (dict(dtype="float16", positions="untied"), MOMENTS),  # all that a checkpoint can hold: a scaler, a second matrix
    (dict(qk_update="matrix"), [(TRAIN_STEP, 7)]), (dict(qk_update="muon"), [(TRAIN_STEP, 7)]),
    (dict(muon_rate=0.03, decay_iters=9), [(TRAIN_STEP, 7)])])
def test_a_run_that_is_killed_again_and_again_ends_bit_for_bit_as_the_whole_one(cfg, keys, moments):
    cfg = replace(cfg, **keys)
    whole = replace(cfg, out_dir=f"{cfg.out_dir}_whole")
    run(whole)
    for name, n in moments:
        ((status, said),) = in_processes((killed, cfg, name, n))
        assert status == -signal.SIGKILL, (name, n, said)
    assert 0 < checkpoint(cfg)["step"] < 12
    for name in "log.csv", "scores.csv":
        Path(cfg.out_dir, name).write_text("rows that were lost or changed")
    resume(cfg)
    assert result(cfg) == result(whole)


def test_a_run_can_be_extended_and_looked_at_more_often_and_says_which_lengths_it_had(finished, copied):
    run_json = Path(copied.out_dir, "run.json")
    before = run_json.read_text()
    resume(copied)  # which is at its end: its last steps come from where they came from
    assert result(copied) == result(finished) and run_json.read_text() == before
    older = {name: value for name, value in checkpoint(copied).items() if name not in ("losses", "seconds")}
    torch.save(older, run_json.with_name("ckpt.pt"))  # as older code wrote it
    resume(copied, max_iters=18, eval_interval=2, score_interval=6)
    assert json.loads(run_json.read_text())["lengths"] == [12, 18]
    rows = log(copied)
    assert list(rows.step) == [0, 4, 8, 12, 14, 16, 18] and rows[:4].equals(log(finished))
    assert result(copied)[1].startswith(result(finished)[1])
    for row in rows[4:].itertuples():  # the schedule is that of a run of 18 steps
        assert row.learning_rate == pytest.approx(1e-2 * (18 - (row.step - 1)) / (18 - 3), rel=1e-5)
    files = {path: path.read_text() for path in (run_json, run_json.with_name("log.csv"))}
    for path in files:
        path.write_text("of step 12")  # where it was killed before it wrote them, and after ckpt.pt
    resume(copied, max_iters=18)
    assert all(path.read_text() == text for path, text in files.items())


def test_a_run_keeps_the_commits_and_lengths_with_which_its_steps_were_made(cfg, monkeypatch):
    in_processes((killed, replace(cfg, max_iters=1), TRAIN_STEP, 1))  # its commit and its length are forgotten
    for commit, max_iters in ("a-dirty", 2), ("b", 3), ("a-dirty", 4), ("at its end", 4):
        monkeypatch.setattr(write, "find_commit", lambda commit=commit: commit)
        resume(cfg, max_iters=max_iters)
    run_json = json.loads(Path(cfg.out_dir, "run.json").read_text())
    assert run_json["origin"]["commit"] == ["a-dirty", "b"] and run_json["lengths"] == [2, 3, 4]
    assert read.read_run(cfg.out_dir).config["commit"] == ["a-dirty", "b"]


def test_groups_have_the_hyperparameters_of_the_code_and_rates_of_their_own_also_when_resumed(cfg, copied, monkeypatch):
    """The second one of a fork peaks at 0.5 where the run has 0.01."""
    def make_optimizer(cfg, model, make=train.make_optimizer):
        optimizer = make(cfg, model)
        optimizer.param_groups[0] |= dict(betas=(0.5, 0.6), weight_decay=0.25)
        optimizer.param_groups[1]["peak"] = 0.5
        return optimizer

    monkeypatch.setattr(train, "make_optimizer", make_optimizer)
    begun, resumed = make_trainer(cfg), make_trainer(replace(copied, init_from="resume", max_iters=24))
    resumed.begin()
    for trainer, share in (begun, 1 / 3), (resumed, (24 - 12) / (24 - 3)):  # of the schedule
        trainer.train_step(trainer.loader.batch("train", trainer.step))
        matrices, vectors = trainer.optimizer.param_groups
        assert [matrices["lr"], vectors["lr"]] == pytest.approx([0.01 * share, 0.5 * share])
        assert matrices["betas"] == (0.5, 0.6) and matrices["weight_decay"] == 0.25


def test_sigterm_saves_and_the_run_goes_on_bit_for_bit(finished, cfg):
    for n in 7, 2:  # before step 7, with evaluations at 4 and 8, and then before its second step after resuming
        ((status, said),) = in_processes((killed, cfg, TRAIN_STEP, n, signal.SIGTERM))
        assert status == -signal.SIGTERM and "--init_from=resume goes on from there" in said, said
    assert checkpoint(cfg)["step"] == 9
    resume(cfg)
    assert result(cfg) == result(finished)


def test_the_handler_of_a_program_that_trains_is_put_back_and_other_threads_train_without_one(cfg):
    before = signal.getsignal(signal.SIGTERM)
    run(cfg, max_iters=1)
    assert signal.getsignal(signal.SIGTERM) is before
    thread = threading.Thread(target=resume, args=(replace(cfg, max_iters=2),))
    thread.start()
    thread.join()
    assert checkpoint(cfg)["step"] == 2


def test_a_run_has_the_commit_of_its_own_repository_and_is_dirty_if_its_code_is_another_one(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=A", "-c", "user.email=a@b", *words], check=True)

    (tmp_path / "model.py").write_text("gelu")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "1")
    monkeypatch.setattr(write, "ROOT", tmp_path)
    commit = write.find_commit()
    assert re.fullmatch("[0-9a-f]{40}", commit)
    for name, is_dirty in {"notes.md": False, "config/mine.py": True, "model.py": True}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("relu")
        assert write.find_commit() == commit + is_dirty * "-dirty"
        git("stash", "-qu")


# ---- what is refused, and what stays as it was -------------------------------------------------------------------


@pytest.mark.parametrize("changes, words", [
    (dict(init_from="scratch"), "holds a run already: go on with --init_from=resume"),
    (dict(max_iters=11), "is of another run: max_iters = 12 there, 11 here"),
    (dict(beta2=0.9), "is of another run: beta2 = 0.999 there, 0.9 here"),
    (dict(micro_batch_size=2), "is of another run: micro_batch_size = 4 there, 2 here"),
    (dict(), "is of another run: corpus = {"),
])
def test_a_run_that_is_refused_ends_in_one_line(copied, changes, words):
    state = checkpoint(copied)
    del state["config"]["beta2"]  # a key that is newer than a checkpoint has its default there
    state["data"]["sha256"]["val"] = "5"  # of another corpus, which is said after other keys
    torch.save(state, Path(copied.out_dir, "ckpt.pt"))
    said = refusal(copied, **dict(init_from="resume") | changes)
    assert said.startswith("train.py: ") and words in said
    assert checkpoint(copied)["step"] == 12


def test_a_checkpoint_that_is_a_link_is_replaced_and_the_run_behind_it_kept(copied, tmp_path):
    cfg = replace(copied, out_dir=str(tmp_path / "other"))
    Path(cfg.out_dir).mkdir()
    Path(cfg.out_dir, "ckpt.pt").symlink_to(Path(copied.out_dir, "ckpt.pt"))
    run(cfg, init_from="resume", max_iters=14)
    assert (checkpoint(copied)["step"], checkpoint(cfg)["step"]) == (12, 14)


def test_a_full_disk_is_named_in_one_line_and_what_a_killed_run_left_is_removed(copied, monkeypatch):
    left = Path(copied.out_dir, "ckpt.pt.999.tmp")
    left.write_bytes(b"of a killed run")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # bytes of a file, at most
    try:
        assert "ckpt.pt cannot be written: is the disk full?" in refusal(copied, init_from="resume", max_iters=18)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoint(copied)["step"] == 12 and not left.exists()


@pytest.mark.parametrize("key, value", [("qk_norm", True), ("of_a_fork", 1)])  # of older code, and of other code
def test_a_run_that_this_code_cannot_do_is_refused_by_the_name_of_its_key(copied, key, value):
    folder = Path(copied.out_dir)
    state, run_json = checkpoint(copied), json.loads((folder / "run.json").read_text())
    for file in state, run_json:
        file["config"][key] = value
    torch.save(state, folder / "ckpt.pt")
    (folder / "run.json").write_text(json.dumps(run_json))
    assert f"{key} = {value}" in refusal(copied, init_from="resume", max_iters=18)
    with pytest.raises(SystemExit, match=f"{key} = {value}"):
        export.main([copied.out_dir])
    arm = read.read_run(folder)
    assert arm.config[key] == value  # it is compared: its key makes another task
    kept.write_comparison(folder / "c.csv", dict(a=arm))
    with pytest.raises(ConfigError, match=f"c.csv has {key} = {value}, .*: use the commit of its run.json"):
        kept.read_comparison(folder / "c.csv")


def test_rows_in_a_folder_without_a_checkpoint_are_not_overwritten(cfg):
    path = Path(cfg.out_dir, "log.csv")
    path.parent.mkdir()
    path.write_text("of somebody")
    for init_from, words in dict(scratch="holds a run already", resume="No such file or directory").items():
        assert words in refusal(cfg, init_from=init_from)
    assert path.read_text() == "of somebody"


# ---- several processes -------------------------------------------------------------------------------------------


def test_two_processes_give_the_losses_of_one_and_when_killed_go_on_bit_for_bit(cfg):
    """
    Dropout is on: it is a function of the row, and the micro-batches are the same, two for each process. To compile
    splits the graph of the backward pass at DDP's buckets, and every gradient is still sent once and complete.
    """
    cfg = replace(cfg, compile="on", n_layer=1, micro_batch_size=2)
    one, whole = [replace(cfg, out_dir=cfg.out_dir + end) for end in ("_one", "_whole")]
    run(one, compile="off")
    for status, said in in_processes(*2 * [(run, whole)]):
        assert status == 0, said
    for name in "step", "tokens", "val_loss", "train_loss":
        np.testing.assert_allclose(log(whole)[name], log(one)[name], atol=2e-5)
    np.testing.assert_allclose(scores(whole).symmetry, scores(one).symmetry, atol=2e-4)
    assert [status for status, _ in in_processes(*2 * [(killed, cfg, TRAIN_STEP, 6)])] == 2 * [-signal.SIGKILL]
    assert checkpoint(cfg)["step"] == 4
    # SIGTERM to one of them ends both, after the same step: the next at which they look
    calls = (killed, cfg, TRAIN_STEP, 2, signal.SIGTERM), (resume, cfg)
    assert [status for status, _ in in_processes(*calls)] == 2 * [-signal.SIGTERM]
    assert checkpoint(cfg)["step"] == 6  # where scores are due
    assert [status for status, _ in in_processes(*2 * [(resume, cfg)])] == [0, 0]
    assert result(cfg) == result(whole)


def test_processes_that_are_not_of_one_run_do_not_begin(cfg):
    for status, said in in_processes((run, cfg), (run, replace(cfg, learning_rate=0.03, seed=9))):
        assert status == 1 and "the processes of this run differ in learning_rate, seed" in said


# ---- numbers that are lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value, first, changes, words, kept", [
    (torch.inf, 7, dict(dtype="float16", max_iters=100, eval_interval=50), "float16 gradients overflow", 0),
    (torch.nan, 6, dict(), "step 8: the loss is nan", 4),
    (torch.nan, 7, dict(), "step 8: the validation loss is nan", 4)])
def test_numbers_that_are_lost_stop_the_run_and_are_never_saved(cfg, monkeypatch, value, first, changes, words, kept):
    train_step = train.Trainer.train_step

    def spoiled_step(trainer, batch):
        hook = trainer.model.head.bias.register_hook(lambda grad: grad + value if trainer.step >= first else grad)
        train_step(trainer, batch)
        hook.remove()

    monkeypatch.setattr(train.Trainer, "train_step", spoiled_step)
    said = refusal(cfg, **changes)
    assert words in said and f"{cfg.out_dir}/ckpt.pt" in said
    assert checkpoint(cfg)["step"] == kept
