"""train.py: runs that are stopped, killed, gone on with, refused; full disks, overflow. pytest tests/test_resume.py"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import train
from data.atomic import locked
from data.results import ends
from data.results.runs import HEADERS
from model import Block
from tests.lives import (TRAIN_STEP, argv, at_call, begin, begin_ranks, checkpoint, compile_quickly, end, log, refusal,
                         result, resume, run, signal_at)
from tests.toy import as_bin, files_of, folder

APPEND = "data.results.runs.append"
# Where a process dies: before the n-th call of a function.
ROOT = Path(train.__file__).parent
MOMENTS = [(APPEND, 1), (APPEND, 2), ("torch.save", 1), (TRAIN_STEP, 3), ("torch.save", 1), ("os.replace", 3),
           (APPEND, 1), (TRAIN_STEP, 7), ("torch.save", 2), (APPEND, 3)]


@pytest.fixture
def copied(finished, cfg):
    """A finished run that a test may change."""
    shutil.copytree(finished.out_dir, cfg.out_dir)
    return cfg


# ---- stopped, killed, gone on with -------------------------------------------------------------------------------


@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129),
                                          (signal.SIGUSR1, 138), (signal.SIGUSR2, 140)])
def test_a_signal_ends_a_run_after_its_step_and_loses_nothing(finished, cfg, tmp_path, signum, code):
    status, said = end(begin(argv(cfg), tmp_path / "life.txt", partial(signal_at, TRAIN_STEP, 5, signum)))
    assert status == code and "stopped at step 5; --init_from=resume goes on from" in said, said
    assert checkpoint(cfg)["step"] == 5
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does: from now on the terminal may be closed
    try:
        with at_call(TRAIN_STEP, 2, partial(signal.raise_signal, signal.SIGHUP)):
            resume(cfg)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result(cfg) == result(finished)


@pytest.mark.parametrize("changes", [
    dict(dtype="bfloat16", compile="on"), dict(dtype="float16", qk_norm=True), dict(causal=True, threads=2),
    dict(causal=True, objective="masked"), dict(positions="untied", optimizer="muon"),
    dict(mask_share=0.0, random_share=0.5, init_std=0.05, qk_std="linear", v_std="linear", device="cpu:0"),
    dict(constraint="symmetric", constraint_weight=0.1, dropout=0, attn_dropout=0),
], ids=str)
def test_every_kind_of_run_goes_on_bit_for_bit(cfg, monkeypatch, changes):
    monkeypatch.setattr(torch.nn.Module, "compile", torch.nn.Module.compile)  # and back at the end
    compile_quickly()
    whole = replace(cfg, **changes, out_dir=f"{cfg.out_dir}_whole")
    cfg = replace(cfg, **changes)
    run(whole)
    with at_call(TRAIN_STEP, 6, partial(signal.raise_signal, signal.SIGTERM)), pytest.raises(SystemExit):
        run(cfg)
    resume(cfg)
    torch.set_num_threads(1)
    assert result(cfg) == result(whole)


def test_a_fork_may_keep_a_mask_with_its_weights(cfg, monkeypatch):
    def masked(cfg):
        block = Block(cfg)
        block.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))
        return block

    monkeypatch.setattr("model.Block", masked)
    run(cfg, max_iters=1)
    resume(cfg, max_iters=2)
    assert checkpoint(cfg)["step"] == 2


def test_a_run_does_without_the_locks_and_the_signal_that_windows_does_not_have(finished, cfg, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # so that it cannot be imported
    monkeypatch.delattr(signal, "SIGHUP")
    run(cfg)
    assert result(cfg) == result(finished)


def test_a_run_can_be_extended_and_looked_at_more_often_and_its_past_stays(finished, copied, capsys):
    for name in "log.csv", "scores.csv":
        Path(copied.out_dir, name).write_text("rows that were lost or changed")
    resume(copied)  # which is at its end, and writes them again
    assert result(copied) == result(finished)
    resume(copied, max_iters=18, eval_interval=2, score_interval=6)
    said = capsys.readouterr().out
    assert "going on from step 12 of 18" in said and "the learning rate is now that of 18 steps" in said
    rows = log(copied)
    assert list(rows.step) == [0, 4, 8, 12, 14, 16, 18] and rows[:4].equals(log(finished))
    assert result(copied)[1].startswith(result(finished)[1])
    for row in rows[4:].itertuples():  # the schedule is that of a run of 18 steps
        assert row.learning_rate == pytest.approx(1e-2 * (18 - (row.step - 1)) / (18 - 3), rel=1e-5)


def test_a_run_comes_from_the_commit_of_the_last_start_that_trained(copied, monkeypatch):
    path = Path(copied.out_dir, "run.json")
    before = json.loads(path.read_text())["origin"]
    monkeypatch.setattr("data.results.ends.find_origin", lambda device: dict(commit="later"))
    resume(copied)  # as the commands of `python -m config.plan` do with a finished run
    assert json.loads(path.read_text())["origin"] == before
    resume(copied, max_iters=13)
    assert json.loads(path.read_text())["origin"] == dict(commit="later")
    path.write_text("{")
    resume(copied, max_iters=13)
    assert json.loads(path.read_text())["config"]["max_iters"] == 13


def test_code_that_differs_has_another_origin_also_if_no_commit_has_it(tmp_path, monkeypatch):
    def origin():
        return ends.find_origin(torch.device("cpu"))["commit"]

    monkeypatch.setattr(ends, "__file__", str(folder(tmp_path, {"model.py": b"gelu\n"}, config=None) / "ends.py"))
    for words in "init -q", "add .", "-c user.name=A -c user.email=a@b commit -qm 1":
        subprocess.run(["git", "-C", tmp_path, *words.split()], check=True)
    commits = [origin()]
    for text in b"relu\n", b"\xff\n", b"relu\n":
        (tmp_path / "model.py").write_bytes(text)
        commits.append(origin())
    assert re.fullmatch("[0-9a-f]{40}", commits[0]) and len(set(commits)) == 3 and commits[1] == commits[3]
    assert commits[1].startswith(f"{commits[0]}-dirty")


def test_without_dropout_a_run_goes_on_with_other_micro_batches(cfg):
    cfg = replace(cfg, dropout=0.0, attn_dropout=0.0)
    whole = replace(cfg, out_dir=f"{cfg.out_dir}_whole")
    run(whole)
    with at_call(TRAIN_STEP, 6, partial(signal.raise_signal, signal.SIGTERM)), pytest.raises(SystemExit):
        run(cfg)
    resume(cfg, micro_batch_size=32)  # which is more than a batch has, as the default may be
    for column in "step", "train_loss", "val_loss":
        np.testing.assert_allclose(log(cfg)[column], log(whole)[column], atol=2e-5)
    assert checkpoint(cfg)["config"]["micro_batch_size"] == 8


def test_numbered_checkpoints_are_kept_and_other_files_left_alone(cfg):
    out = Path(cfg.out_dir)
    others = {"ckpt-0-mine.pt", "ckpt-9.pt", "ckpt-99999999-mine.pt", "ckpt-bestever.pt", "ckpt.pt.12.tmp"}
    out.mkdir()
    for name in others:
        (out / name).write_bytes(b"of somebody")
    run(cfg, keep=2)
    assert {path.name for path in out.glob("ckpt*")} == {"ckpt.pt", "ckpt-00000008.pt", "ckpt-00000012.pt"} | others
    os.utime(out / "ckpt-00000008.pt", (2**32, 2**32))  # it was copied, or the clock has been set back since
    resume(cfg, keep=2, max_iters=16)
    assert {path.name for path in out.glob("ckpt*")} == {"ckpt.pt", "ckpt-00000012.pt", "ckpt-00000016.pt"} | others
    shutil.copy(out / "ckpt-00000012.pt", out / "ckpt.pt")  # to go on from there, and stop before the step of the other
    with at_call(TRAIN_STEP, 2, partial(signal.raise_signal, signal.SIGTERM)), pytest.raises(SystemExit):
        resume(cfg, keep=1, max_iters=16)
    assert {path.name for path in out.glob("ckpt*")} == {"ckpt.pt", "ckpt-00000014.pt"} | others
    assert all((out / name).read_bytes() == b"of somebody" for name in others) and list(log(cfg).step) == [0, 4, 8, 12]


def test_a_run_that_is_killed_again_and_again_ends_bit_for_bit_as_the_whole_one(finished, cfg, tmp_path):
    out, stale = Path(cfg.out_dir), 0
    for name, n in MOMENTS:
        life = begin(argv(cfg, init_from="resume"), tmp_path / "life.txt", partial(signal_at, name, n))
        status, said = end(life)
        assert status == -signal.SIGKILL and "Traceback" not in said, (name, n, said)
        stale += any(out.glob("ckpt.pt.*.tmp"))
        if name == "torch.save":  # its rows are not in a checkpoint yet: be killed in the middle of one
            rows = (out / "log.csv").read_bytes()
            (out / "log.csv").write_bytes(rows[: rows[:-1].rindex(b"\n") + 2])  # the first digit of its step is left
    assert stale >= 1
    resume(cfg)
    assert result(cfg) == result(finished)
    assert files_of(out).keys() == files_of(finished.out_dir).keys()


# ---- what is refused, and what stays as it was -------------------------------------------------------------------


def refusal_that_changes_nothing(cfg, **changes):
    before = files_of(cfg.out_dir)
    said = refusal(cfg, **changes)
    assert said.startswith("train.py: ") and len(said) < 600 and files_of(cfg.out_dir) == before
    return said


RESUME = dict(init_from="resume")
DAMAGED = "ckpt.pt is not a checkpoint that can be resumed: "


@pytest.mark.parametrize("spoil, changes, words", [
    (None, dict(), "holds a run already: go on with --init_from=resume"),
    (None, RESUME | dict(max_iters=11), "is of another run: max_iters = 12 there, 11 here"),
    (None, RESUME | dict(qkv_rate=2.0), "is of another run: qkv_rate = 1.0 there, 2.0 here"),
    (None, RESUME | dict(dtype="bfloat16"), "is of another run: dtype = 'float32' there, 'bfloat16' here"),
    (None, RESUME | dict(micro_batch_size=2), "is of another run: micro_batch_size = 4 there, 2 here"),
    (None, dict(data_dir="/nowhere"), "/nowhere has no finished token files"),
    (None, dict(device="xla"), "device = 'xla' cannot be used"),  # torch names all of its backends
    (None, dict(n_embd=2_000_000_000), "or the sizes of the model"),
    (None, dict(out_dir="/dev/null/run"), "/dev/null/run cannot be written (Not a directory)"),
    (lambda state: state["data"].update(tokens=5), RESUME, "its corpus was --data_dir="),
    (lambda state: state["config"].update(gain=2), RESUME, "unexpected keyword argument 'gain'"),
    (lambda state: state["model"]["head.bias"].fill_(torch.nan), RESUME, DAMAGED),
    (lambda state: state["adamw"]["state"][0]["exp_avg"].fill_(torch.inf), RESUME, "(ValueError: it holds nan or inf)"),
    (lambda state: state["model"].pop("head.bias"), RESUME, 'Missing key(s) in state_dict: "head.bias"'),
    (lambda state: state["rows"].update({"log.csv": "step,norm\n"}), RESUME, "of code with other columns of log.csv"),
    (lambda state: state.pop("scaler"), RESUME, "go on with the commit that is in run.json (KeyError"),
])
def test_a_run_that_is_refused_ends_in_one_line_and_touches_nothing(copied, spoil, changes, words):
    state = checkpoint(copied)
    del state["config"]["qkv_rate"]  # a key that is newer than a checkpoint has its default there
    if spoil:
        spoil(state)
    torch.save(state, Path(copied.out_dir, "ckpt.pt"))
    said = refusal_that_changes_nothing(copied, **changes)
    assert words in said and ("its corpus was" in said) == ("its corpus was" in words)


@pytest.mark.parametrize("name, text", [
    ("log.csv", "of\nsomebody\n"), ("log.csv", HEADERS["log.csv"] + "0,0,,5.5,,\n4,512,5.2,5.1,0.01,99\n"),
    ("scores.csv", "of somebody"), ("model.safetensors", "of somebody")])
def test_what_a_folder_without_a_checkpoint_holds_is_not_overwritten(cfg, name, text):
    folder(Path(cfg.out_dir), {name: text.encode()}, config=None)
    for init_from in "scratch", "resume":
        said = refusal_that_changes_nothing(cfg, init_from=init_from)
        assert f"holds a {name}, and no ckpt.pt to go on from" in said


def test_a_damaged_checkpoint_is_refused_and_does_not_replace_a_good_model(copied):
    path = Path(copied.out_dir, "ckpt.pt")
    whole = path.read_bytes()
    middle = len(whole) // 2  # which is in a tensor
    four_bytes = whole[:middle] + b"\0\0\x80F" + whole[middle + 4 :]
    half, zip_of_zeros, unsafe = whole[:middle], b"PK\3\4" + bytes(1000), as_bin(path)  # a Path is no tensor
    for data in b"", half, zip_of_zeros, unsafe, four_bytes:
        path.write_bytes(data)
        assert DAMAGED in refusal_that_changes_nothing(copied, **RESUME)


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_one_lasts(cfg):
    with locked(cfg.out_dir):
        assert "another process is writing there" in refusal(cfg)
        assert {path.name for path in Path(cfg.out_dir).iterdir()} == {".lock"}
    run(cfg, max_iters=4)


# ---- several processes -------------------------------------------------------------------------------------------


def test_two_processes_that_are_told_to_stop_and_killed_go_on_bit_for_bit_and_one_goes_on_from_them(
        finished, cfg, tmp_path):
    """At slow steps a process that is told to stop stops both. Without the other one, a process ends."""
    whole = replace(cfg, out_dir=f"{cfg.out_dir}_whole")
    assert [end(life)[0] for life in begin_ranks(argv(whole), tmp_path / "whole")] == [0, 0]
    stop = partial(signal_at, TRAIN_STEP, 5, signal.SIGTERM, rank="1", slow_steps=True)
    kill = partial(signal_at, TRAIN_STEP, 5, rank="1")
    for prepare, status, step in (stop, [143, 143], 5), (kill, [1, -signal.SIGKILL], 8), (None, [0, 0], 12):
        lives = begin_ranks(argv(cfg, init_from="resume"), tmp_path / "cut", prepare=prepare)
        ends = [end(life) for life in lives]
        assert [code for code, _ in ends] == status and checkpoint(cfg)["step"] == step
        for words in "train.py: if another process has ended", "Traceback":
            assert (words in ends[0][1]) == (prepare is kill)
    assert result(cfg) == result(whole)
    resume(cfg, max_iters=14)  # with one process
    for column in "step", "train_loss", "val_loss":
        np.testing.assert_allclose(log(cfg)[column][:4], log(finished)[column], atol=2e-5)


def test_torchrun_starts_eight_processes_of_the_papers_config(cfg):
    """The paper's batch of 256 sequences and 12 layers, which are narrow and short here. One update is all warm-up."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=8", "train.py"]
    small = ["--n_embd=24", "--block_size=16", "--max_iters=1", "--eval_iters=1", "--threads=1", "--device=cpu",
             "--compile=off", f"--data_dir={cfg.data_dir}", f"--out_dir={cfg.out_dir}"]
    done = subprocess.run([*torchrun, "config/bert_symm.py", *small], cwd=ROOT, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0 and "made by 8 processes" in done.stdout, done.stderr
    assert list(log(cfg).tokens) == [0, 256 * 16] and log(cfg).learning_rate[1] == pytest.approx(5e-5)
    config = checkpoint(cfg)["config"]
    assert (config["n_layer"], config["batch_size"], config["init"]) == (12, 256, "symmetric")


@pytest.mark.parametrize("mine, others, words", [
    (dict(), dict(learning_rate=0.03, seed=9), "process 0 has learning_rate = 0.01, and process 1 0.03"),
    (dict(init_from="resume"), dict(init_from="resume", out_dir="other"), "process 0 has step = 2, and process 1 0"),
    (dict(data_dir="gpt2"), dict(data_dir="gpt2"), "without, --data_dir=data/sympy/gpt2 prepares itself"),
    (dict(), dict(data_dir="gpt2"), "gpt2 has no finished token files"),
])
def test_processes_that_are_not_of_one_run_do_not_begin_and_one_of_them_says_why(
        cfg, tmp_path, monkeypatch, mine, others, words):
    monkeypatch.chdir(tmp_path)
    if "init_from" in mine:
        run(cfg, max_iters=2)
    (status, said), other = map(end, begin_ranks(argv(cfg, **mine), tmp_path / "rank", argv(cfg, **others)))
    assert status == other[0] == 1
    (line,) = [line for line in said.splitlines() if "train.py" in line]  # beside it, Gloo may tell of its connection
    assert line.startswith("train.py: ") and words in line and "train.py" not in other[1]


def test_under_torchrun_which_prints_35_lines_below_it_a_line_says_that_it_is_the_reason(cfg, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for key, value, words in ("batch_size", 7, "batch_size = 7, expected a"), ("n_head", 3, "n_embd = 16, expected a"):
        said = refusal(cfg, **{key: value})
        assert f"torchrun says below only that this process has ended. The reason is: {words}" in said


# ---- disk, memory and numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, n, file", [
    ("torch.save", 2, "ckpt.pt"), (APPEND, 4, "log.csv"), (APPEND, 5, "scores.csv")])
def test_a_full_disk_ends_in_one_line_with_the_path_and_nothing_is_lost(finished, cfg, name, n, file):
    path = Path(cfg.out_dir, file)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        """From now on files have room for 30 bytes more than this one has."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, most))

    try:
        with at_call(name, n, fill):
            said = refusal(cfg)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert said.startswith(f"train.py: {path} cannot be written (File too large): put that right")
    assert not list(path.parent.glob("*.tmp"))
    resume(cfg)
    assert result(cfg) == result(finished)


def test_out_of_memory_names_what_to_lower_and_another_error_is_shown_as_it_is(cfg):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\n" + "and more " * 50)
    with mock.patch(TRAIN_STEP, side_effect=error):
        assert re.search(r"3 GiB and more .* \.\.\.: lower micro_batch_size, or the sizes", refusal(cfg))
    bug = RuntimeError("a fork's own, which speaks of gloo")
    with mock.patch(TRAIN_STEP, side_effect=bug), pytest.raises(RuntimeError, match="of gloo"):
        resume(cfg, micro_batch_size=2)  # as the line says: before the first step it may


@pytest.mark.parametrize("value, first, changes, words, kept", [
    (torch.inf, 7, dict(dtype="float16", max_iters=100, eval_interval=50), "float16 gradients overflow", 0),
    (torch.nan, 6, dict(), "step 8: the loss is nan", 4),
    (torch.nan, 7, dict(), "step 8: weights are no longer finite", 4),  # the loss of step 8 is that before its update
    (torch.nan, 7, dict(), "step 8: the validation loss is nan", 4)])
def test_numbers_that_are_lost_stop_the_run_and_are_never_saved(cfg, monkeypatch, value, first, changes, words, kept):
    train_step = train.Trainer.train_step

    def spoiled_step(trainer, batch):
        hook = trainer.model.head.bias.register_hook(lambda grad: grad + value if trainer.step >= first else grad)
        train_step(trainer, batch)
        hook.remove()

    monkeypatch.setattr(train.Trainer, "train_step", spoiled_step)
    if "weights" in words:  # those of no batch do not show in a loss
        monkeypatch.setattr(train.Trainer, "evaluate", lambda trainer: 1.0)
    said = refusal(cfg, **changes)
    assert words in said and f"{cfg.out_dir}/ckpt.pt" in said
    assert checkpoint(cfg)["step"] == kept


@pytest.mark.bert_block
@pytest.mark.parametrize("changes, words", [
    (dict(init="symmetric", constraint="skew", constraint_weight=0.1), "constraint = 'skew' adds "),
    (dict(constraint="symmetric", constraint_weight=1e300), "choose another constraint than at init = 'random'"),
    (dict(qk_std=1e30), "step 0: the validation loss is nan; this is the start"),
    (dict(init="tilted", n_head=16), "step 0: the validation loss is nan; this is the start")])
def test_a_start_that_is_no_number_is_the_fault_of_the_start_and_not_of_the_learning_rate(cfg, changes, words):
    said = refusal(cfg, **changes)
    assert words in said and "learning_rate" not in said
