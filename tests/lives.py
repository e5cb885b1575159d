"""
Runs of train.py for the tests, in this process, or in one that is killed:

    life = begin(argv(cfg), output, kill=("torch.save", 2, 0.5))  # SIGKILL in the middle of the second checkpoint
    status, said = end(life)

A process imports torch once, is never used, and forks every life.
"""

import itertools
import multiprocessing
import os
import pkgutil
import resource
import signal
import socket
import threading
from pathlib import Path
from unittest import mock

import pandas
import pytest
import torch
from tqdm import tqdm

import train
from config import TrainConfig
from data.results import figures_runs

SMALL = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, batch_size=8, micro_batch_size=4, max_iters=12,
             warmup_iters=3, learning_rate=1e-2, eval_interval=4, eval_iters=2, score_interval=3)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.lives", "torch._dynamo"])  # an optimizer imports it, for seconds


def small_run(data_dir, out_dir, **changes):
    """The configuration of a run of twelve steps."""
    return TrainConfig(**SMALL | changes, data_dir=data_dir, out_dir=str(out_dir))


def argv(cfg, **changes):
    """The command line of a TrainConfig, with every key in it."""
    base = Path(cfg.out_dir).parent / "base.py"  # without a file it would be config/tiny.py
    base.write_text("seed = 1\n")
    return [str(base), *(f"--{name}={value}" for name, value in (vars(cfg) | changes).items())]


def refusal(args):
    """The one line in which train.py ends."""
    with pytest.raises(SystemExit) as e:
        train.main(args)
    assert isinstance(e.value.code, str) and "\n" not in e.value.code, e.value.code
    return e.value.code


def log(cfg):
    """log.csv of a run, a DataFrame."""
    return pandas.read_csv(Path(cfg.out_dir, "log.csv"))


def result(cfg):
    """Everything of a run that has to be the same bit for bit: weights and rows, all but the speed."""
    out = Path(cfg.out_dir)
    rows = log(cfg).drop(columns="tokens_per_s").to_csv()
    return (out / "model.safetensors").read_bytes(), (out / "scores.csv").read_bytes(), rows


def draw_nothing(run, path):
    """Instead of figures_runs.plot_run, which takes longer than all steps of these runs."""
    Path(path).touch()


# ---- lives -------------------------------------------------------------------------------------------------------


def begin(argv, output, kill=None, full=None, **env):
    """train.main(argv) in a process of its own, its output in a file -> the process. kill, full, env: as in `live`."""
    life = FORKS.Process(target=live, args=(argv, output, kill, full, env))
    life.output = Path(output)
    life.start()
    return life


def begin_ranks(argv, output, others=None, **env):
    """The same on two processes; others: the arguments of the second one, where they are not its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lives = []
    for rank, args in enumerate([argv, others or argv]):
        ranks = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        lives.append(begin(args, f"{output}.{rank}", **{name: str(value) for name, value in ranks.items()}, **env))
    return lives


def end(life, timeout=300):
    """-> exit status (None: it still runs), what it said."""
    life.join(timeout)
    return life.exitcode, life.output.read_text(errors="replace")  # killed in the middle of a character


def live(argv, output, kill, full, env):
    """
    kill: (the name of a function, n, a share): SIGKILL in its n-th call, when it has written this share of its bytes
    full: (the name of a function, n, a number): in its n-th call, the file can grow by no more than so many bytes
    env: variables of the environment, and BACKEND and CXX of torch.compile
    """
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for fd in 1, 2:  # one file for both, or one would write over the other
        os.dup2(file, fd)
    os.environ.update(env)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process leaves behind
    figures_runs.plot_run = draw_nothing
    if kill:
        replace_call(*kill, kill_here)
    if full:
        replace_call(*full, fill_disk)
    if "BACKEND" in env:  # of torch.compile; its own one takes half a minute
        compile = torch.nn.Module.compile
        torch.nn.Module.compile = lambda model, **kwargs: compile(model, backend=env["BACKEND"], **kwargs)
    if "CXX" in env:  # torch reads the variable when it is imported
        torch._inductor.config.cpp.cxx = (None, env["CXX"])
        torch._inductor.config.compile_threads = 1  # or it starts a process for each
    train.main(argv)


def replace_call(name, n, amount, instead):
    """Have the n-th call of a function do something else: instead(the function, its arguments, amount)."""
    whole, calls = pkgutil.resolve_name(name), itertools.count(1)

    def called(*args):
        if next(calls) == n:
            return instead(whole, args, amount)
        return whole(*args)

    mock.patch(name, called).start()


def written_by(whole, args):
    """The file to which a call writes, and its size so far; None if it writes to none."""
    if whole.__name__ not in ("save", "append"):
        return None, 0
    path = Path(args[1].name if whole.__name__ == "save" else args[0])
    return path, path.stat().st_size if path.exists() else 0


def kill_here(whole, args, share):
    """SIGKILL: before the call if share is 0, else after it, when a share of the bytes has been written."""
    path, before = written_by(whole, args)
    if share > 0:
        whole(*args)
        if path:
            os.truncate(path, before + int(share * (path.stat().st_size - before)))
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk(whole, args, n_bytes):
    """The file can grow by no more than n_bytes."""
    _, before = written_by(whole, args)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + n_bytes, most))
    try:
        return whole(*args)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
