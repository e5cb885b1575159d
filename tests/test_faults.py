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
from config import TrainConfig
from config._place import what_counts
from data import loader, tokens
from data.results import runs
from tests.lives import SMALL, argv, begin, begin_ranks, end, refusal, result

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def cfg(data_dir, tmp_path):
    return TrainConfig(**SMALL | dict(max_iters=80, eval_interval=5), data_dir=data_dir, out_dir=str(tmp_path / "run"))


@pytest.fixture
def short(cfg, tmp_path):
    """A run of 12 steps as that of `finished`, and token files of its own."""
    shutil.copytree(cfg.data_dir, tmp_path / "data")
    return replace(cfg, data_dir=str(tmp_path / "data"), max_iters=12, eval_interval=4)


def losses(cfg):
    log = runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)
    return [[float(row[name] or "nan") for name in ("step", "train_loss", "val_loss")] for row in log]


# ---- killed ------------------------------------------------------------------------------------------------------

MOMENTS = [  # (the function in whose n-th call a process dies, n, the share of its bytes that it has written)
    ("data.results.runs.append", 1, 0), ("data.results.runs.append", 2, 0.1),
    *((name, rng.randint(1, most), rng.random()) for rng in [random.Random(1)] for name, most in 2 * [
        ("train.Trainer.train_step", 9), ("torch.save", 2), ("os.replace", 7), ("data.results.runs.append", 6)])]


def test_a_run_that_is_killed_at_ten_moments_ends_bit_for_bit_as_the_whole_one(cfg, tmp_path):
    whole = replace(cfg, out_dir=cfg.out_dir + "_whole")
    assert end(begin(argv(whole), tmp_path / "whole.txt"))[0] == 0
    out, stale = Path(cfg.out_dir), 0
    for moment in MOMENTS:
        status, said = end(begin(argv(cfg, init_from="resume"), tmp_path / "life.txt", moment))
        assert status == -signal.SIGKILL and "Traceback" not in said, (moment, said)
        stale += any(out.glob("ckpt.pt.*.tmp"))
    assert stale >= 1
    status, said = end(begin(argv(cfg, init_from="resume"), tmp_path / "life.txt"))
    assert status == 0, said
    assert result(cfg) == result(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in Path(whole.out_dir).iterdir()}


# ---- several processes -------------------------------------------------------------------------------------------


def until_step(cfg, step, life):
    """Wait until the log of a run has come so far."""
    while not Path(cfg.out_dir, "log.csv").exists() or not losses(cfg) or losses(cfg)[-1][0] < step:
        assert (life.exitcode if hasattr(life, "exitcode") else life.poll()) is None
        time.sleep(0.02)


def test_a_run_that_loses_a_process_ends_in_one_line_and_goes_on_with_any_number_of_them(cfg, tmp_path):
    """Two processes until the second is killed, one, two until the first is killed, one, two."""
    whole = replace(cfg, out_dir=cfg.out_dir + "_whole")
    train.main(argv(whole))
    for step, killed in (10, 1), (40, 0):
        lives = begin_ranks(argv(cfg, init_from="resume"), tmp_path / "rank")
        until_step(cfg, step, lives[0])
        lives[killed].kill()
        status, said = end(lives[1 - killed])
        assert status == 1 and "Traceback" not in said, said
        last = said.splitlines()[-1]
        assert last.startswith("train.py: another process of this run does not answer (") and "gloo" in last
        assert last.endswith(f"--init_from=resume goes on from the last checkpoint in {cfg.out_dir}")
        alone = begin(argv(cfg, init_from="resume"), tmp_path / "alone", ("train.Trainer.train_step", 12, 0))
        assert end(alone)[0] == -signal.SIGKILL
    assert [end(life)[0] for life in begin_ranks(argv(cfg, init_from="resume"), tmp_path / "rank")] == [0, 0]
    np.testing.assert_allclose(losses(cfg), losses(whole), atol=2e-5)


def test_two_processes_that_compile_within_ddp_give_the_losses_of_one_that_does_not_compile(short, tmp_path):
    """The graph of the backward pass is split at DDP's buckets, and every gradient is still sent once and complete."""
    short = replace(short, n_layer=1)
    train.main(argv(short))
    two = replace(short, out_dir=short.out_dir + "_two")
    lives = begin_ranks(argv(two, compile="on"), tmp_path / "rank", BACKEND="aot_eager")
    for life in lives:
        status, said = end(life)
        assert status == 0 and "torch.compile" not in said, said
    np.testing.assert_allclose(losses(two), losses(short), atol=2e-5)


@pytest.mark.parametrize("key", ["out_dir", "eval_interval"])
def test_processes_that_would_not_do_the_same_end_in_one_line(short, tmp_path, key):
    """Two nodes that do not see the same out_dir, so that one would resume and the other begin; or other commands."""
    changes = dict(out_dir=tmp_path / "elsewhere", eval_interval=3)
    train.main(argv(short, max_iters=2))
    lives = begin_ranks(argv(short, init_from="resume"), tmp_path / "rank",
                        others=argv(short, init_from="resume", **{key: changes[key]}))
    for life in lives:
        status, said = end(life)
        assert status == 1 and "Traceback" not in said, said
        assert said.splitlines()[-1].startswith("train.py: the processes of this run differ in their configuration")


def test_processes_do_the_same_if_they_differ_in_their_paths_alone(short):
    here = what_counts(runs.describe(short, tokens.load(short.data_dir).meta), 4)
    elsewhere = replace(short, out_dir="elsewhere", data_dir="elsewhere", threads=2)
    other = replace(short, seed=2)
    meta = tokens.load(short.data_dir).meta
    assert what_counts(runs.describe(elsewhere, meta), 4) == here
    for run, step in (runs.describe(other, meta), 4), (runs.describe(short, meta | dict(checksum="0")), 4), \
            (runs.describe(short, meta), 8):
        assert what_counts(run, step) != here


@pytest.mark.parametrize("compile", ["off", "on"])
def test_out_of_memory_names_what_to_lower(short, monkeypatch, compile):
    def forward(model, *batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore advice")

    monkeypatch.setattr(train.Transformer, "forward", forward)
    assert refusal(argv(short, compile=compile)) == ("train.py: out of memory (CUDA out of memory. Tried to allocate "
                                                     "3 GiB): lower micro_batch_size = 4, or the sizes of the model")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the processes of torchrun are found in /proc")
def test_torchrun_goes_on_by_itself_after_losing_a_process(cfg):
    torchrun = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max_restarts=1", "--standalone",
         train.__file__, *argv(cfg, init_from="resume")], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | dict(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    until_step(cfg, 10, torchrun)
    os.kill(int(Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()[-1]), signal.SIGKILL)
    said, _ = torchrun.communicate(timeout=300)
    assert torchrun.returncode == 0, said
    assert said.count("step 0: validation loss") == said.count("step 80: validation loss") == 1
    assert len(losses(cfg)) == 17


# ---- disk and numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, n, file", [("torch.save", 2, "ckpt.pt"), ("data.results.runs.append", 6, "log.csv"),
                                           ("data.results.runs.append", 7, "scores.csv")])
def test_a_full_disk_ends_in_one_line_with_the_path_and_nothing_is_lost(finished, short, tmp_path, name, n, file):
    out = Path(short.out_dir)
    status, said = end(begin(argv(short), tmp_path / "life.txt", full=(name, n, 30)))
    assert status == 1 and "Traceback" not in said, said
    assert said.splitlines()[-1].startswith(f"train.py: {out}/{file} cannot be written (File too large): mend that")
    assert not list(out.glob("*.tmp"))
    assert torch.load(out / "ckpt.pt", weights_only=True)["step"] == (4 if file == "scores.csv" else 0)
    train.main(argv(short, init_from="resume"))
    assert result(short) == result(finished)


def overflow(monkeypatch, steps, value=torch.inf):
    """Gradients are not finite in the steps for which steps(step) holds -> the loss scales, one for every step made."""
    scales, train_step = [], train.Trainer.train_step

    def step(run, batch):
        hook = run.model.head.bias.register_hook(lambda g: g + value) if steps(run.step) else None
        before = [x.clone() for x in run.model.parameters()]
        train_step(run, batch)
        scales.append(run.scaler.get_scale())
        if hook:
            hook.remove()
            if run.scaler.is_enabled():  # the step is skipped
                assert all(map(torch.equal, before, run.model.parameters()))
    monkeypatch.setattr(train.Trainer, "train_step", step)
    return scales


def test_float16_backs_off_from_an_overflow_and_goes_on(short, monkeypatch):
    scales = overflow(monkeypatch, lambda step: 4 <= step < 9)
    train.main(argv(short, dtype="float16", max_iters=40))
    assert scales[3] / scales[8] == 2**5 and scales[8:] == scales[8:9] * len(scales[8:])
    log = losses(short)
    assert [row[0] for row in log] == list(range(0, 41, 4)) and np.isfinite(log[1:]).all()
    assert log[-1][2] < log[1][2] - 0.5


def test_float16_that_overflows_at_every_scale_stops_the_run_and_leaves_a_good_checkpoint(short, monkeypatch):
    scales = overflow(monkeypatch, lambda step: step >= 6)
    with pytest.raises(SystemExit) as e:
        train.main(argv(short, dtype="float16", max_iters=100, eval_interval=50))
    first = next(step for step, scale in enumerate(scales, 1) if scale < 1)
    assert len(scales) < first + train.READ_EVERY
    assert e.value.code.startswith(f"train.py: step {len(scales)}: float16 gradients overflow")
    assert f"what {short.out_dir}/ckpt.pt holds" in e.value.code
    assert torch.load(short.out_dir + "/ckpt.pt", weights_only=True)["step"] == 0


def test_weights_that_are_not_finite_are_never_saved(short, monkeypatch):
    overflow(monkeypatch, lambda step: step == 7, torch.nan)  # the loss of step 8 is finite, its update is not
    monkeypatch.setattr(train.Trainer, "evaluate", lambda run: 1.0)  # weights that no batch uses do not show in a loss
    with pytest.raises(SystemExit, match="step 8: weights are no longer finite"):
        train.main(argv(short))
    assert torch.load(short.out_dir + "/ckpt.pt", weights_only=True)["step"] == 4


def test_profile_writes_a_trace_of_a_few_updates(short):
    train.main(argv(short, max_iters=20, eval_interval=20, profile=True))
    events = json.loads(Path(short.out_dir, "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert names.count("aten::scaled_dot_product_attention") == 5 * 2 * short.n_layer  # updates, micro-batches, layers
    assert any(name.startswith("Optimizer.step") for name in names)


# ---- what a step may cost ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read in /proc")
def test_ten_thousand_steps_grow_memory_by_less_than_50_mb(short, monkeypatch):
    """Evaluations, scores and checkpoints among them. 400 steps are measured, after 100 that fill all caches."""
    resident, train_step = [], train.Trainer.train_step

    def step(run, batch):
        train_step(run, batch)
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
    monkeypatch.setattr(train.Trainer, "train_step", step)
    train.main(argv(short, n_layer=1, block_size=8, batch_size=4, max_iters=500, eval_interval=50, score_interval=50))
    assert (resident[-1] - resident[100]) / 400 * 10_000 < 50


@pytest.mark.parametrize("changes", [dict(), dict(causal=True, dtype="bfloat16")])
def test_a_compiled_model_is_one_graph_for_training_and_one_for_evaluation(short, monkeypatch, changes):
    """Counted where graphs are made; what a backend does with them is not of interest here."""
    compile, counts = torch.nn.Module.compile, torch._dynamo.utils.counters
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **kwargs: compile(model, backend="eager", **kwargs))
    torch._dynamo.reset()
    counts.clear()
    short = replace(short, n_layer=1, **changes)
    train.main(argv(short, compile="on"))
    assert counts["stats"]["unique_graphs"] == 2 and not counts["graph_break"]
    whole = replace(short, out_dir=short.out_dir + "_eager")
    train.main(argv(whole))
    np.testing.assert_allclose(losses(short), losses(whole), rtol=1e-3)


# ---- data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, words", [
    (lambda path: os.truncate(path, path.stat().st_size // 2), "bytes of train.bin, not "),
    (lambda path: path.unlink(), "0 bytes of train.bin, not "),
    (lambda path: path.write_bytes(bytes(path.stat().st_size)), "another train.bin than its meta.json says"),
], ids=["cut", "gone", "replaced"])
def test_token_files_that_change_under_a_run_end_it_in_one_line_and_nothing_is_lost(finished, short, monkeypatch,
                                                                                   fault, words):
    path = Path(short.data_dir, "train.bin")
    kept, whole_batch = path.read_bytes(), loader.get_batch

    def get_batch(cfg, meta, stream, seed, step, rows):
        if step == 6:
            fault(path)
        return whole_batch(cfg, meta, stream, seed, step, rows)
    with monkeypatch.context() as patched:
        patched.setattr(loader, "get_batch", get_batch)
        with pytest.raises(SystemExit) as e:
            train.main(argv(short))
    assert words in e.value.code and "delete it and run python" in e.value.code and "\n" not in e.value.code
    path.write_bytes(kept)
    train.main(argv(short, init_from="resume"))
    assert result(short) == result(finished)


def test_token_files_that_are_exchanged_between_two_starts_are_noticed(short):
    train.main(argv(short))
    path = Path(short.data_dir, "train.bin")
    path.write_bytes(bytes(path.stat().st_size))
    assert "has another train.bin than its meta.json says: delete it and run python" in refusal(
        argv(short, init_from="resume", max_iters=20))


def test_token_files_of_another_tokenizer_are_not_gone_on_with(short):
    train.main(argv(short))
    path = Path(short.data_dir, "meta.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | tokens.TOKENIZERS["gpt2"] | dict(tokenizer="gpt2")))
    with pytest.raises(SystemExit, match="tokenizer of data_dir = 'bytes' there, 'gpt2' here") as e:
        train.main(argv(short, init_from="resume", max_iters=12))
    assert "\n" not in e.value.code
