"""What goes wrong during a run: kills, lost ranks, full disks, overflow. pytest tests/test_faults.py"""

import resource
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from config.processes import find_ranks
from tests.lives import (TRAIN_STEP, argv, at_call, begin, begin_ranks, checkpoint, end, log, refusal, result, resume,
                         run, signal_at, small_run)

APPEND = "data.results.runs.append"
# Where a process dies: before the n-th call of a function.
MOMENTS = [(APPEND, 1), (APPEND, 2), (TRAIN_STEP, 3), ("torch.save", 1), ("os.replace", 3), (APPEND, 1),
           (TRAIN_STEP, 8), ("torch.save", 2), ("os.replace", 4), (APPEND, 6)]


@pytest.fixture(scope="module")
def whole(data_dir, tmp_path_factory):
    """A run in whose middle there is time to kill something, and which nothing interrupts."""
    cfg = small_run(data_dir, tmp_path_factory.mktemp("run") / "whole", max_iters=80, eval_interval=5)
    run(cfg)
    return cfg


@pytest.fixture
def long(whole, cfg):
    """The same run, before it begins."""
    return replace(whole, out_dir=cfg.out_dir)


def last_line(life):
    """The line in which a process ended that met something a user can mend."""
    status, said = end(life)
    assert status == 1 and "Traceback" not in said, said
    return said.splitlines()[-1]


# ---- killed ------------------------------------------------------------------------------------------------------


def test_a_run_that_is_killed_again_and_again_ends_bit_for_bit_as_the_whole_one(long, whole, tmp_path):
    out, stale = Path(long.out_dir), 0
    for name, n in MOMENTS:
        life = begin(argv(long, init_from="resume"), tmp_path / "life.txt", partial(signal_at, name, n))
        status, said = end(life)
        assert status == -signal.SIGKILL and "Traceback" not in said, (name, n, said)
        stale += any(out.glob("ckpt.pt.*.tmp"))
        if name == "torch.save":  # its rows are not in a checkpoint yet: be killed in the middle of one
            rows = (out / "log.csv").read_bytes()
            (out / "log.csv").write_bytes(rows[: rows[:-1].rindex(b"\n") + 2])  # the first digit of its step is left
    assert stale >= 1
    resume(long)
    assert result(long) == result(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in Path(whole.out_dir).iterdir()}


# ---- several processes -------------------------------------------------------------------------------------------


def test_a_run_that_loses_a_process_ends_in_one_line_and_goes_on_with_any_number_of_them(long, whole, tmp_path):
    """Two processes until the second is killed, one, two until the first is killed, one, two."""
    words = argv(long, init_from="resume")
    for killed, other in (1, 0), (0, 1):
        lives = begin_ranks(words, tmp_path / "rank", prepare=partial(signal_at, TRAIN_STEP, 12, rank=str(killed)))
        last = last_line(lives[other])
        assert last.startswith("train.py: another process of this run does not answer (") and "gloo" in last
        assert last.endswith(f"--init_from=resume goes on from the last checkpoint in {long.out_dir}")
        assert end(lives[killed])[0] == -signal.SIGKILL
        alone = begin(words, tmp_path / "alone", partial(signal_at, TRAIN_STEP, 12))
        assert end(alone)[0] == -signal.SIGKILL
    assert [end(life)[0] for life in begin_ranks(words, tmp_path / "rank")] == [0, 0]
    for column in "step", "train_loss", "val_loss":
        np.testing.assert_allclose(log(long)[column], log(whole)[column], atol=2e-5)


@pytest.mark.parametrize("mine, others, words", [
    (dict(), dict(learning_rate=0.03, seed=9), "process 0 has learning_rate = 0.01, and process 1 0.03: start all"),
    (dict(init_from="resume"), dict(init_from="resume", out_dir="{}/other"), "process 0 has step = 2, and process 1 0"),
    (dict(data_dir="{}/gpt2"), dict(data_dir="{}/gpt2"), "without, --data_dir=data/pytorch/gpt2 prepares itself"),
    (dict(), dict(data_dir="{}/gpt2"), "/gpt2 has no finished token files"),
])
def test_processes_that_are_not_of_one_run_do_not_begin_and_one_of_them_says_why(cfg, tmp_path, mine, others, words):
    if "init_from" in mine:
        run(cfg, max_iters=2)
    mine, others = ({key: value.format(tmp_path) if isinstance(value, str) else value for key, value in keys.items()}
                    for keys in (mine, others))
    first, second = map(end, begin_ranks(argv(cfg, **mine), tmp_path / "rank", argv(cfg, **others)))
    assert first[0] == 1 and second == (1, "")
    assert first[1].count("train.py: ") == 1 and words in first[1].splitlines()[-1]


def test_what_a_cluster_has_left_in_the_environment_makes_no_group(monkeypatch):
    for name, value in dict(WORLD_SIZE="2", RANK="", MASTER_ADDR="::1", MASTER_PORT="1").items():
        monkeypatch.setenv(name, value)
    assert find_ranks() == (0, 1, 0)


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
    assert said.startswith(f"train.py: {path} cannot be written (File too large): mend that")
    assert not list(path.parent.glob("*.tmp"))
    resume(cfg)
    assert result(cfg) == result(finished)


def test_out_of_memory_names_what_to_lower(cfg, monkeypatch):
    def forward(model, *batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore advice")

    monkeypatch.setattr(train.Transformer, "forward", forward)
    assert refusal(cfg) == ("train.py: out of memory (CUDA out of memory. Tried to allocate 3 GiB): "
                            "lower micro_batch_size = 4, or the sizes of the model")


def spoil_gradients(monkeypatch, steps, value):
    """Add a value to a gradient in some steps."""
    train_step = train.Trainer.train_step

    def step(trainer, batch):
        hook = trainer.model.head.bias.register_hook(lambda grad: grad + value if trainer.step in steps else grad)
        train_step(trainer, batch)
        hook.remove()

    monkeypatch.setattr(train.Trainer, "train_step", step)


@pytest.mark.parametrize("value, first, changes, words, kept", [
    (torch.inf, 7, dict(dtype="float16", max_iters=100, eval_interval=50), "float16 gradients overflow", 0),
    (torch.nan, 6, dict(), "step 8: the loss is nan", 4),
    (torch.nan, 7, dict(), "step 8: weights are no longer finite", 4),  # the loss of step 8 is that before its update
    (torch.nan, 7, dict(), "step 8: the validation loss is nan", 4)])
def test_numbers_that_are_lost_stop_the_run_and_are_never_saved(cfg, monkeypatch, value, first, changes, words, kept):
    spoil_gradients(monkeypatch, range(first, 100), value)
    if "weights" in words:  # those of no batch do not show in a loss
        monkeypatch.setattr(train.Trainer, "evaluate", lambda trainer: 1.0)
    said = refusal(cfg, **changes)
    assert words in said and f"{cfg.out_dir}/ckpt.pt" in said
    assert checkpoint(cfg)["step"] == kept


@pytest.mark.parametrize("init, constraint", [("symmetric", "skew"), ("skew", "symmetric")])
def test_a_constraint_that_divides_by_zero_at_the_start_is_refused(cfg, init, constraint):
    said = refusal(cfg, init=init, constraint=constraint, constraint_weight=0.1)
    assert f"divides by the {constraint} part of W_qk, which is 0 at this start" in said


# ---- what a step may cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [dict(), dict(causal=True, dtype="bfloat16")])
def test_a_compiled_model_is_one_graph_for_training_and_one_for_evaluation(cfg, monkeypatch, changes):
    """Counted where graphs are made; what a backend does with them is not of interest here."""
    compile, counts = torch.nn.Module.compile, torch._dynamo.utils.counters
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **kwargs: compile(model, backend="eager", **kwargs))
    torch._dynamo.reset()
    counts.clear()
    run(cfg, compile="on", n_layer=1, **changes)
    assert counts["stats"]["unique_graphs"] == 2 and not counts["graph_break"]
