"""Runs of train.py: in this process, or in forks of one that imports torch once and is never used, to be `killed`."""

import itertools
import multiprocessing
import os
import pkgutil
import signal
import socket
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pandas
import pytest
import torch
from tqdm import tqdm

import train
from config import TrainConfig
from config.processes import Place
from data import tokens

SMALL = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, batch_size=8, micro_batch_size=4, max_iters=12,
             warmup_iters=3, learning_rate=1e-2, eval_interval=4, eval_iters=2, score_interval=3)
CPU = Place(0, 1, torch.device("cpu"))
TRAIN_STEP = "train.Trainer.train_step"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.lives", "torch._dynamo"])  # an optimizer imports it, for seconds
FINISH, COMPILE = train.finish, torch.nn.Module.compile
train.finish = lambda trainer: None  # a picture takes longer than all of these steps
torch.nn.Module.compile = lambda model, **kwargs: COMPILE(model, backend="aot_eager", **kwargs)  # inductor takes longer


def small_run(data_dir, out_dir):
    """The configuration of a run of twelve steps."""
    return TrainConfig(**SMALL, data_dir=data_dir, out_dir=str(out_dir))


def make_trainer(cfg, **changes):
    """Of one process, before its first step."""
    cfg = replace(cfg, **changes)
    return train.Trainer(cfg, CPU, tokens.load(cfg.data_dir))


def run(cfg, **changes):
    train.main(replace(cfg, **changes))


def resume(cfg, **changes):
    run(cfg, init_from="resume", **changes)


def refusal(cfg, **changes):
    """The one line in which train.py ends."""
    with pytest.raises(SystemExit) as e:
        run(cfg, **changes)
    assert isinstance(e.value.code, str) and "\n" not in e.value.code, e.value.code
    return e.value.code


def log(cfg):
    """log.csv of a run, a DataFrame."""
    return pandas.read_csv(Path(cfg.out_dir, "log.csv"))


def scores(cfg):
    """scores.csv of a run, a DataFrame, in which the rows of whole layers have no head."""
    return pandas.read_csv(Path(cfg.out_dir, "scores.csv"))


def checkpoint(cfg):
    return torch.load(Path(cfg.out_dir, "ckpt.pt"), weights_only=True)


def result(cfg):
    """Everything of a run that has to be the same bit for bit: what is trained, and rows, all but the speed."""
    state = checkpoint(cfg)
    values = torch.utils._pytree.tree_leaves([state[name] for name in ("step", "model", "optimizer", "scaler")])
    bits = [x.numpy().tobytes() if isinstance(x, torch.Tensor) else x for x in values]
    return bits, Path(cfg.out_dir, "scores.csv").read_text(), log(cfg).drop(columns="tokens_per_s").to_csv()


def killed(cfg, name, n, number=signal.SIGKILL):
    """A run that resumes, and kill -9, or another signal, before the n-th call of a function."""
    whole, calls = pkgutil.resolve_name(name), itertools.count(1)

    def called(*args):
        if next(calls) == n:
            signal.raise_signal(number)
        return whole(*args)

    with mock.patch(name, called):
        resume(cfg)


def in_processes(*calls):
    """Makes calls (function, *arguments) in processes, many as torchrun does -> [(exit status, what it said), ...]"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = dict(WORLD_SIZE=str(len(calls)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    with tempfile.TemporaryDirectory() as folder:
        lives = {}  # {the file of what it says: the process}
        for rank, call in enumerate(calls):
            of_rank = env | dict(RANK=str(rank), LOCAL_RANK=str(rank)) if len(calls) > 1 else {}
            output = Path(folder, str(rank))
            lives[output] = FORKS.Process(target=live, args=(call, output, of_rank))
            lives[output].start()
        for life in lives.values():
            life.join(300)
        return [(life.exitcode, output.read_text(errors="replace")) for output, life in lives.items()]


def live(call, output, env):
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for fd in 1, 2:  # one file for both, or one would write over the other
        os.dup2(file, fd)
    os.environ.update(env)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process leaves behind
    function, *args = call
    function(*args)
