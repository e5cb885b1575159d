"""train.py: runs that are stopped, gone on with, refused, and what stays as it was. pytest tests/test_resume.py"""

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import train
from data import disk
from data.results import runs
from tests.lives import argv, begin, end, log, refusal, result, small_run

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def copied(finished, cfg):
    """A finished run that a test may change."""
    shutil.copytree(finished.out_dir, cfg.out_dir)
    return cfg


# ---- stopped, gone on with ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_of_100_steps(data_dir, tmp_path_factory):
    """An uninterrupted run that is long enough to be hit by a signal."""
    cfg = small_run(data_dir, tmp_path_factory.mktemp("run") / "whole", max_iters=100, eval_interval=25,
                    score_interval=30, n_layer=1)
    train.main(argv(cfg))
    return cfg


@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129),
                                          (signal.SIGKILL, -9)])
def test_a_signal_loses_nothing(whole_of_100_steps, cfg, tmp_path, signum, code):
    cfg = replace(whole_of_100_steps, out_dir=cfg.out_dir)
    life = begin(argv(cfg), tmp_path / "life.txt")
    while not Path(cfg.out_dir, "ckpt.pt").exists():  # of step 0
        time.sleep(0.02)
    time.sleep(0.05)
    os.kill(life.pid, signum)
    status, output = end(life)
    assert status == code, output
    assert "Traceback" not in output and (code < 0 or "--init_from=resume goes on" in output)
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg) == result(whole_of_100_steps)


def test_a_run_under_nohup_goes_on_when_the_terminal_is_closed(finished, cfg, monkeypatch):
    train_step = train.Trainer.train_step

    def step(run, batch):
        os.kill(os.getpid(), signal.SIGHUP)
        train_step(run, batch)

    monkeypatch.setattr(train.Trainer, "train_step", step)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        train.main(argv(cfg))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result(cfg) == result(finished)


def test_a_run_that_goes_on_says_from_where_and_that_it_is_at_its_end(finished, copied, capsys):
    assert "holds a run already" in refusal(argv(copied))
    train.main(argv(copied, init_from="resume"))
    assert "this run is at its end already, step 12: a larger --max_iters goes on" in capsys.readouterr().out
    assert result(copied) == result(finished)
    train.main(argv(copied, init_from="resume", max_iters=14))
    said = capsys.readouterr().out
    assert "going on from step 12 of 14" in said and "the learning rate is now that of 14 updates" in said


def test_a_run_can_be_extended_and_looked_at_more_often_and_its_past_stays(finished, copied):
    train.main(argv(copied, init_from="resume", max_iters=18, eval_interval=2, score_interval=6))
    rows = log(copied)
    assert list(rows.step) == [0, 4, 8, 12, 14, 16, 18] and rows[:4].equals(log(finished))
    assert result(copied)[1].startswith(result(finished)[1])
    for row in rows[4:].itertuples():  # the schedule is that of a run of 18 steps
        assert row.learning_rate == pytest.approx(1e-2 * (18 - (row.step - 1)) / (18 - 3), rel=1e-5)


def test_a_run_that_is_killed_while_it_keeps_a_checkpoint_keeps_it_when_it_goes_on(cfg, tmp_path):
    life = begin(argv(cfg, keep=9), tmp_path / "life.txt", kill=("shutil.copyfile", 3, 0))
    assert end(life)[0] == -signal.SIGKILL
    train.main(argv(cfg, init_from="resume", keep=9))
    kept = {f"ckpt-{step:08d}.pt" for step in (0, 4, 8, 12)} | {"ckpt.pt", "ckpt-best.pt"}
    assert {path.name for path in Path(cfg.out_dir).glob("ckpt*")} == kept


def test_numbered_checkpoints_and_the_best_one_are_kept_and_other_files_left_alone(finished, cfg):
    out = Path(cfg.out_dir)
    others = {"ckpt-0-mine.pt", "ckpt-9.pt", "ckpt-99999999-mine.pt"}
    out.mkdir()
    for name in others:
        (out / name).write_bytes(b"of somebody")
    train.main(argv(cfg, keep=2))
    kept = {"ckpt.pt", "ckpt-00000008.pt", "ckpt-00000012.pt", "ckpt-best.pt"}
    assert {path.name for path in out.glob("ckpt*")} == kept | others
    assert all((out / name).read_bytes() == b"of somebody" for name in others)
    rows, best = log(cfg), torch.load(out / "ckpt-best.pt", weights_only=True)
    assert best["step"] == rows.step[rows.val_loss.idxmin()]
    shutil.copy(out / "ckpt-00000008.pt", out / "ckpt.pt")  # and go on from there, to the same end
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg) == result(finished)


# ---- what is refused, and what stays as it was -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_model_of_no_run_is_not_overwritten(cfg, name):
    path = Path(cfg.out_dir, name)
    path.parent.mkdir()
    path.write_bytes(b"somebody's")
    for init_from in "scratch", "resume":
        assert f"holds a {name} that is of no run" in refusal(argv(cfg, init_from=init_from))
    assert path.read_bytes() == b"somebody's"


@pytest.mark.parametrize("left", ["log.csv", "scores.csv"])
def test_rows_whose_checkpoint_was_deleted_are_kept(finished, cfg, left):
    Path(cfg.out_dir).mkdir()
    for name in "run.json", left:
        shutil.copy(Path(finished.out_dir, name), cfg.out_dir)
    for init_from in "scratch", "resume":
        said = refusal(argv(cfg, init_from=init_from))
        assert f"holds the {left} of a run, and no ckpt.pt to go on from" in said
    assert Path(cfg.out_dir, left).read_bytes() == Path(finished.out_dir, left).read_bytes()


@pytest.mark.parametrize("changes, words", [
    (dict(max_iters=11), "max_iters = 12 there, 11 here"),
    (dict(eval_iters=3), "eval_iters = 2 there, 3 here"),
    (dict(n_embd=32), "is of another run: n_embd = 16 there, 32 here"),
    (dict(seed=9), "is of another run: seed = 1 there, 9 here"),
])
def test_a_checkpoint_of_another_run_is_refused_with_what_differs(copied, changes, words):
    assert words in refusal(argv(copied, init_from="resume", **changes))


def test_a_key_that_is_newer_than_a_checkpoint_has_its_default_there(copied):
    path = Path(copied.out_dir, "ckpt.pt")
    state = torch.load(path, weights_only=True)
    del state["config"]["qkv_rate"]
    torch.save(state, path)
    assert "qkv_rate = 1.0 there, 2.0 here" in refusal(argv(copied, init_from="resume", qkv_rate=2.0))
    train.main(argv(copied, init_from="resume", max_iters=14))


def test_a_run_whose_log_a_spreadsheet_has_changed_goes_on_without_a_picture(cfg, monkeypatch, capsys):
    train_step = train.Trainer.train_step

    def step(run, batch):
        path = Path(cfg.out_dir, "log.csv")
        path.write_text(path.read_text().replace(",", ";"))
        train_step(run, batch)

    monkeypatch.setattr(train.Trainer, "train_step", step)
    monkeypatch.setattr(train, "DRAW_EVERY", 0)
    said = refusal(argv(cfg))
    assert "is not a log.csv" in said and "no picture" in capsys.readouterr().out
    assert torch.load(cfg.out_dir + "/ckpt.pt", weights_only=True)["step"] == 12


class RunsCode:
    """Its pickle makes a file when it is opened."""

    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_a_damaged_checkpoint_is_refused_and_does_not_replace_a_good_model(finished, copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(copied.out_dir, "ckpt.pt")
    whole = path.read_bytes()
    torch.save(dict(config=RunsCode()), "pickle.pt")
    half, zip_of_zeros, pickle = whole[: len(whole) // 2], b"PK\3\4" + bytes(1000), Path("pickle.pt").read_bytes()
    for data in b"", half, zip_of_zeros, pickle:
        path.write_bytes(data)
        assert "ckpt.pt is not a checkpoint that can be resumed" in refusal(argv(copied, init_from="resume"))
    assert result(copied) == result(finished) and not Path("ran").exists()


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_one_lasts(cfg):
    with disk.locked(cfg.out_dir):
        assert "another process is writing there" in refusal(argv(cfg))
        assert {path.name for path in Path(cfg.out_dir).iterdir()} == {".lock"}
    train.main(argv(cfg, max_iters=4))


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(cfg):
    said = refusal(argv(cfg, learning_rate=1e30, warmup_iters=6, grad_clip=1e30, dropout=0.0))
    assert "the loss is nan" in said and "step " in said
    state = torch.load(cfg.out_dir + "/ckpt.pt", weights_only=True)
    assert all(x.isfinite().all() for x in state["model"].values())


@pytest.mark.parametrize("changes, words", [
    (dict(n_layers=3), "unknown key n_layers; the nearest one is n_layer"),
    (dict(data_dir="/nowhere"), "/nowhere has no finished token files"),
    (dict(data_dir="data/stdlib/foo"), "data/stdlib/foo has no finished token files"),
    (dict(device="tpu9"), "device = 'tpu9' cannot be used"),
    (dict(device="xla"), "device = 'xla' cannot be used"),  # torch names all of its backends
    (dict(init_from="resum"), "init_from = 'resum', expected scratch, resume, or a folder"),
    (dict(n_embd=2_000_000_000), "or the sizes of the model"),
    (dict(out_dir="/dev/null/run"), "/dev/null/run cannot be written (Not a directory)"),
])
def test_a_mistake_ends_in_one_line(cfg, changes, words):
    said = refusal(argv(cfg) + [f"--{name}={value}" for name, value in changes.items()])
    assert words in said and said.startswith("train.py: ") and len(said) < 300


def test_processes_that_cannot_find_each_other_end_in_one_line(cfg, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "cannot meet at None:None" in refusal(argv(cfg))
