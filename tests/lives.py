"""
Runs that are killed, as often as a test likes: a process imports torch once, is never used, and forks every life.

    life = begin(argv, output, break_off=("torch.save", 2, 0.5))  # SIGKILL in the middle of the second checkpoint
    status, said = end(life)
"""

import importlib
import itertools
import multiprocessing
import os
import resource
import signal
import socket
import threading
from pathlib import Path

import torch
from tqdm import tqdm

import train
from config import _place
from data.results import figures_runs

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.lives", "torch._dynamo"])  # an optimizer imports it, for seconds


def begin(argv, output, break_off=None, **env):
    """train.main(argv) in a process of its own, its output in a file -> the process. env: as `live` reads it."""
    life = FORKS.Process(target=live, args=(argv, Path(output), break_off, env))
    life.output = Path(output)
    life.start()
    return life


def begin_ranks(argv, output, n=2, others=None, **more_env):
    """The same on n processes; others: the arguments of all but the first, where they are not its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lives = []
    for rank in range(n):
        env = dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port)) | more_env
        args = others if others and rank > 0 else argv
        lives.append(begin(args, f"{output}.{rank}", **env))
    return lives


def end(life, timeout=300):
    """-> exit status (None: it still runs), what it said."""
    life.join(timeout)
    return life.exitcode, life.output.read_text(errors="replace")  # killed in the middle of a character


def live(argv, output, break_off, env):
    """env: variables of the environment, and BACKEND and CXX of torch.compile, and GIVE_UP of config/_place.py."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for fd in 1, 2:  # one file for both, or one would write over the other
        os.dup2(file, fd)
    os.environ.update(env)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process leaves behind
    figures_runs.plot_run = draw_nothing
    if break_off:
        kill_in(*break_off)
    if "BACKEND" in env:  # of torch.compile; its own one takes half a minute
        compile = torch.nn.Module.compile
        torch.nn.Module.compile = lambda model, **kwargs: compile(model, backend=env["BACKEND"], **kwargs)
    if "CXX" in env:  # torch reads the variable when it is imported
        torch._inductor.config.cpp.cxx = (None, env["CXX"])
        torch._inductor.config.compile_threads = 1  # or it starts a process for each
    if "GIVE_UP" in env:
        _place.GIVE_UP = int(env["GIVE_UP"])
    train.main(argv)


def draw_nothing(run, path):
    """Instead of figures_runs.plot_run, which takes longer than all steps of these runs."""
    Path(path).touch()


def kill_in(name, n, share, full=False):
    """
    Have this process end in its n-th call of a function: one that writes a file is killed when it has written a share
    of the bytes, os.replace before or after it did its work, and any other so many seconds later, wherever it is then.
    full: nothing is killed, but the file can grow by no more than `share` bytes.
    """
    module, *path, name = name.split(".")
    owner, calls = importlib.import_module(module), itertools.count(1)
    for part in path:
        owner = getattr(owner, part)
    whole = getattr(owner, name)

    def until(*args):
        file = {"save": lambda: Path(args[1].name), "append": lambda: Path(args[0])}.get(name, lambda: None)()
        before = file.stat().st_size if file and file.exists() else 0
        if next(calls) != n:
            return whole(*args)
        if full:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (before + share, most))
            try:
                return whole(*args)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        if file:
            whole(*args)
            os.truncate(file, before + int(share * (file.stat().st_size - before)))
        elif name != "replace":
            signal.setitimer(signal.ITIMER_REAL, share)  # SIGALRM has no handler here: it ends a process like SIGKILL
            return whole(*args)
        elif share > 0.5:
            whole(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, until)
