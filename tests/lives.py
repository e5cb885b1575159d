"""
Runs of train.py for the tests, in this process, or in one of its own:

    life = begin(argv(cfg), output, partial(train_killed, "torch.save", 2))  # kill -9 before the second checkpoint
    status, said = end(life)

A process imports torch once, is never used, and forks every life.
"""

import itertools
import multiprocessing
import os
import pkgutil
import signal
import socket
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pandas
import pytest
import torch
from tqdm import tqdm
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

import train
from config import TrainConfig, command_line
from config.processes import Place
from data import tokens
from data.export import to_hf

SMALL = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, batch_size=8, micro_batch_size=4, max_iters=12,
             warmup_iters=3, learning_rate=1e-2, eval_interval=4, eval_iters=2, score_interval=3)
TRAIN_STEP = "train.Trainer.train_step"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.lives", "torch._dynamo"])  # an optimizer imports it, for seconds
FINISH, DRAW = train.finish, train.Trainer.draw
train.finish = train.Trainer.draw = lambda trainer: None  # a picture takes longer than all of these steps


def as_theirs(model):
    """The model as a BertForMaskedLM or BertLMHeadModel of transformers."""
    config, state = to_hf(model)
    hf = (BertLMHeadModel if model.cfg.causal else BertForMaskedLM)(BertConfig(**config))
    hf.load_state_dict(state, strict=False)  # the decoder is tied, and has no tensor of its own
    return hf


def small_run(data_dir, out_dir):
    """The configuration of a run of twelve steps."""
    return TrainConfig(**SMALL, data_dir=data_dir, out_dir=str(out_dir))


def make_trainer(cfg, **changes):
    """Of one process, before its first step."""
    cfg = replace(cfg, **changes)
    return train.Trainer(cfg, Place(0, 1, torch.device("cpu")), tokens.load(cfg.data_dir))


def argv(cfg, **changes):
    """The command line of a TrainConfig, with every key in it."""
    return [f"--{name}={value}" for name, value in (vars(cfg) | changes).items()]


def train_main(argv):
    """python train.py ..."""
    train.main(command_line(argv))


def run(cfg, **changes):
    train_main(argv(cfg, **changes))


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


def at_call(name, n, act):
    """act() happens before the n-th call of a function -> the patch, for `with`."""
    whole, calls = pkgutil.resolve_name(name), itertools.count(1)

    def called(*args, **kwargs):
        if next(calls) == n:
            act()
        return whole(*args, **kwargs)

    return mock.patch(name, called)


def train_killed(name, n, argv):
    """python train.py ..., and kill -9 before the n-th call of a function."""
    with at_call(name, n, partial(signal.raise_signal, signal.SIGKILL)):
        train_main(argv)


def train_compiled(argv):
    """python train.py ... without inductor, which takes half a minute."""
    whole = torch.nn.Module.compile
    quickly = lambda model, **kwargs: whole(model, backend="aot_eager", **kwargs)
    with mock.patch("torch.nn.Module.compile", quickly):
        train_main(argv)


def stop_at(n, cfg):
    """A run that ends before its n-th step."""
    def stop():
        raise KeyboardInterrupt

    with at_call(TRAIN_STEP, n, stop), pytest.raises(KeyboardInterrupt):
        train_compiled(argv(cfg))


def begin(argv, output, main=train_main, **env):
    """main(argv) in a process of its own. output: a file for what it says; env: variables -> the process"""
    life = FORKS.Process(target=live, args=(argv, output, main, env))
    life.output = Path(output)
    life.start()
    return life


def live(argv, output, main, env):
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for fd in 1, 2:  # one file for both, or one would write over the other
        os.dup2(file, fd)
    os.environ.update(env)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process leaves behind
    main(argv)


def begin_ranks(argv, output, others=None, main=train_main):
    """The same on two processes; others: the arguments of the second one, where they are not its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return [begin(args, f"{output}.{rank}", main, RANK=str(rank), LOCAL_RANK=str(rank), **env)
            for rank, args in enumerate((argv, others or argv))]


def end(life):
    """-> exit status (None: it still runs), what it said."""
    life.join(300)
    return life.exitcode, life.output.read_text(errors="replace")  # killed in the middle of a character
