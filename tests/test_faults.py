"""What goes wrong during a run: kills, lost ranks, full disks, overflow, broken data. pytest tests/test_faults.py"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from data import tokens
from tests.lives import argv, begin, begin_ranks, end, log, refusal, result

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def long(cfg):
    """A run in whose middle there is time to kill something."""
    return replace(cfg, max_iters=80, eval_interval=5)


@pytest.fixture
def whole(long):
    """The same run, which nothing interrupts."""
    whole = replace(long, out_dir=long.out_dir + "_whole")
    train.main(argv(whole))
    return whole


def last_line(life):
    """The line in which a process ended that met something a user can mend."""
    status, said = end(life)
    assert status == 1 and "Traceback" not in said, said
    return said.splitlines()[-1]


def assert_same_losses(cfg, other):
    columns = ["step", "train_loss", "val_loss"]
    np.testing.assert_allclose(log(cfg)[columns], log(other)[columns], atol=2e-5)


# ---- killed ------------------------------------------------------------------------------------------------------

MOMENTS = [  # (the function in whose n-th call a process dies, n, the share of its bytes that it has written)
    ("data.results.runs.append", 1, 0), ("data.results.runs.append", 2, 0.1),
    *((name, rng.randint(1, most), rng.random()) for rng in [random.Random(1)] for name, most in 2 * [
        ("train.Trainer.train_step", 9), ("torch.save", 2), ("os.replace", 7), ("data.results.runs.append", 6)])]


def test_a_run_that_is_killed_at_ten_moments_ends_bit_for_bit_as_the_whole_one(long, whole, tmp_path):
    out, stale = Path(long.out_dir), 0
    for moment in MOMENTS:
        status, said = end(begin(argv(long, init_from="resume"), tmp_path / "life.txt", moment))
        assert status == -signal.SIGKILL and "Traceback" not in said, (moment, said)
        stale += any(out.glob("ckpt.pt.*.tmp"))
    assert stale >= 1
    train.main(argv(long, init_from="resume"))
    assert result(long) == result(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in Path(whole.out_dir).iterdir()}


# ---- several processes -------------------------------------------------------------------------------------------


def until_step(cfg, step):
    """Wait until the log of a run has come so far."""
    path = Path(cfg.out_dir, "log.csv")
    deadline = time.monotonic() + 120
    while not path.exists() or f"\n{step}," not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_that_loses_a_process_ends_in_one_line_and_goes_on_with_any_number_of_them(long, whole, tmp_path):
    """Two processes until the second is killed, one, two until the first is killed, one, two."""
    resume = argv(long, init_from="resume")
    for step, killed in (10, 1), (40, 0):
        lives = begin_ranks(resume, tmp_path / "rank")
        until_step(long, step)
        lives[killed].kill()
        last = last_line(lives[1 - killed])
        assert last.startswith("train.py: another process of this run does not answer (") and "gloo" in last
        assert last.endswith(f"--init_from=resume goes on from the last checkpoint in {long.out_dir}")
        alone = begin(resume, tmp_path / "alone", ("train.Trainer.train_step", 12, 0))
        assert end(alone)[0] == -signal.SIGKILL
    assert [end(life)[0] for life in begin_ranks(resume, tmp_path / "rank")] == [0, 0]
    assert_same_losses(long, whole)


def test_two_processes_that_compile_within_ddp_give_the_losses_of_one_that_does_not_compile(cfg, tmp_path):
    """The graph of the backward pass is split at DDP's buckets, and every gradient is still sent once and complete."""
    cfg = replace(cfg, n_layer=1)
    train.main(argv(cfg))
    two = replace(cfg, out_dir=cfg.out_dir + "_two")
    compiled = argv(two, compile="on")
    own_threads = argv(two, compile="on", threads=1)  # another node may have its own device and paths
    for life in begin_ranks(compiled, tmp_path / "rank", others=own_threads, BACKEND="aot_eager"):
        status, said = end(life)
        assert status == 0 and "torch.compile" not in said, said
    assert_same_losses(two, cfg)


@pytest.mark.parametrize("change", [dict(out_dir="{}/elsewhere"), dict(eval_interval=3)])
def test_processes_that_would_not_do_the_same_end_in_one_line(cfg, tmp_path, change):
    """Two nodes that do not see the same out_dir, so that one would resume and the other begin; or other commands."""
    train.main(argv(cfg, max_iters=2))
    others = [arg.format(tmp_path) for arg in argv(cfg, init_from="resume", **change)]
    for life in begin_ranks(argv(cfg, init_from="resume"), tmp_path / "rank", others):
        assert last_line(life).startswith("train.py: the processes of this run differ in their configuration")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the processes of torchrun are found in /proc")
def test_torchrun_goes_on_by_itself_after_losing_a_process(long):
    torchrun = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max_restarts=1", "--standalone",
         train.__file__, *argv(long, init_from="resume")],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | dict(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    until_step(long, 10)
    os.kill(int(Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()[-1]), signal.SIGKILL)
    said, _ = torchrun.communicate(timeout=300)
    assert torchrun.returncode == 0, said
    assert said.count("step 0: validation loss") == said.count("step 80: validation loss") == 1
    assert len(log(long)) == 17


# ---- disk, memory and numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, n, file", [("torch.save", 2, "ckpt.pt"), ("data.results.runs.append", 4, "log.csv"),
                                           ("data.results.runs.append", 5, "scores.csv")])
def test_a_full_disk_ends_in_one_line_with_the_path_and_nothing_is_lost(finished, cfg, tmp_path, name, n, file):
    out = Path(cfg.out_dir)
    life = begin(argv(cfg), tmp_path / "life.txt", full=(name, n, 30))
    assert last_line(life).startswith(f"train.py: {out}/{file} cannot be written (File too large): mend that")
    assert not list(out.glob("*.tmp"))
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg) == result(finished)


@pytest.mark.parametrize("compile", ["off", "on"])
def test_out_of_memory_names_what_to_lower(cfg, monkeypatch, compile):
    def forward(model, *batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore advice")

    monkeypatch.setattr(train.Transformer, "forward", forward)
    assert refusal(argv(cfg, compile=compile)) == ("train.py: out of memory (CUDA out of memory. Tried to allocate "
                                                   "3 GiB): lower micro_batch_size = 4, or the sizes of the model")


def spoil_gradients(monkeypatch, steps, value):
    """Add a value to a gradient in all steps for which steps(step) holds."""
    train_step = train.Trainer.train_step

    def step(run, batch):
        hook = run.model.head.bias.register_hook(lambda grad: grad + value if steps(run.step) else grad)
        train_step(run, batch)
        hook.remove()

    monkeypatch.setattr(train.Trainer, "train_step", step)


def test_float16_skips_a_step_that_overflows_and_goes_on(cfg, monkeypatch):
    spoil_gradients(monkeypatch, lambda step: 4 <= step < 9, torch.inf)
    train.main(argv(cfg, dtype="float16", max_iters=40))
    losses = log(cfg).val_loss
    assert losses.iloc[-1] < losses[1] - 0.5


@pytest.mark.parametrize("value, changes, words, kept", [
    (torch.inf, dict(dtype="float16", max_iters=100, eval_interval=50), "float16 gradients overflow", 0),
    (torch.nan, dict(), "step 8: weights are no longer finite", 4)])
def test_numbers_that_are_lost_stop_the_run_and_are_never_saved(cfg, monkeypatch, value, changes, words, kept):
    spoil_gradients(monkeypatch, lambda step: step >= 7, value)  # the loss of step 8 is finite, its update is not
    monkeypatch.setattr(train.Trainer, "evaluate", lambda run: 1.0)  # weights that no batch uses do not show in a loss
    said = refusal(argv(cfg, **changes))
    assert words in said and f"{cfg.out_dir}/ckpt.pt" in said
    assert torch.load(cfg.out_dir + "/ckpt.pt", weights_only=True)["step"] == kept


# ---- what a step may cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [dict(), dict(causal=True, dtype="bfloat16")])
def test_a_compiled_model_is_one_graph_for_training_and_one_for_evaluation(cfg, monkeypatch, changes):
    """Counted where graphs are made; what a backend does with them is not of interest here."""
    compile, counts = torch.nn.Module.compile, torch._dynamo.utils.counters
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **kwargs: compile(model, backend="eager", **kwargs))
    torch._dynamo.reset()
    counts.clear()
    train.main(argv(cfg, compile="on", n_layer=1, **changes))
    assert counts["stats"]["unique_graphs"] == 2 and not counts["graph_break"]


# ---- data --------------------------------------------------------------------------------------------------------


def test_token_files_of_another_tokenizer_are_not_gone_on_with(cfg, tmp_path):
    train.main(argv(cfg, max_iters=2))
    shutil.copytree(cfg.data_dir, tmp_path / "data")
    path = tmp_path / "data" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | tokens.TOKENIZERS["gpt2"] | dict(tokenizer="gpt2")))
    said = refusal(argv(cfg, init_from="resume", data_dir=path.parent))
    assert "tokenizer = 'bytes' there, 'gpt2' here" in said
