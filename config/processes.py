"""
Where a run runs: its device, its processes (one, or several that torchrun has started), and the signals that end them.

To train on several nodes, run this command on each of them, with its own --node_rank. All nodes must see the same
out_dir and data_dir:

    torchrun --nnodes=2 --node_rank=0 --master_addr=HOST --master_port=29500 --nproc_per_node=8 train.py ...
"""

import contextlib
import os
import signal
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from tqdm import tqdm

from config import ConfigError, last_line, prepare_streams

OF_A_GROUP = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}  # what torchrun sets
ANSWER = timedelta(minutes=10)  # how long a process waits for another one; checkpoints and compiling take less


@dataclass(frozen=True)
class Place:
    """The device of a process, and which of all processes it is. One process is rank 0 of a world of 1."""

    rank: int  # the number of this process, from 0
    world: int  # how many processes there are
    device: torch.device

    def mean(self, x):
        """Returns the mean of a tensor over all processes."""
        total = x.clone()
        if self.world > 1:
            dist.all_reduce(total)  # which changes it to the sum
        return total / self.world

    def gather(self, value):
        """Returns the values of all processes, as a list."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def together(self, mistakes):
        """
        Waits at the end of a block until every process has done it. mistakes: the errors that a user can mend.

        If the block ends in one of these anywhere, all processes end, and only the first one says why.
        """
        mistake = None
        try:
            yield
        except mistakes as e:
            if self.world == 1:
                raise
            mistake = last_line(e)
        said = [text for text in self.gather(mistake) if text]
        if said:
            if self.rank == 0:
                print(said[0], file=sys.stderr, flush=True)
            dist.barrier()  # torchrun ends the others as soon as one of them has ended
            sys.exit(1)

    def require_same(self, values):
        """Raises ConfigError unless all processes have the same values, a dict."""
        first = self.gather(values)[0]
        for key, value in values.items():
            if value != first[key]:
                raise ConfigError(f"process 0 has {key} = {first[key]!r}, and process {self.rank} {value!r}")

    def say(self, text):
        """Prints a line above any progress bar, once and not for every process. It goes on when nobody reads."""
        if self.rank == 0:
            with contextlib.suppress(OSError):  # as after `| head`
                tqdm.write(text)
                sys.stdout.flush()


def find_place(cfg):
    """
    Sets up this process: what it prints to, threads, the precision of float32, and, if torchrun started it, the group
    of all processes.

    Returns its Place, and cfg with the dtype that "auto" means there. Raises ConfigError if the device is not there, or
    if the processes do not find each other.
    """
    prepare_streams()
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    is_group = OF_A_GROUP <= os.environ.keys() and os.environ["WORLD_SIZE"] != "1"  # a cluster may leave some of them
    device = find_device(cfg.device, os.environ["LOCAL_RANK"] if is_group else "0")
    dtype = "float32"  # what "auto" means
    if device.type == "cuda":
        dtype = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
        # TF32: float32 matrix products in tensor cores, 10 bits of mantissa, several times as fast
        torch.set_float32_matmul_precision("high")
    if cfg.dtype == "auto":
        cfg = replace(cfg, dtype=dtype)
    if is_group:
        join_group(device)
        return Place(dist.get_rank(), dist.get_world_size(), device), cfg
    return Place(0, 1, device), cfg


def join_group(device):
    """Waits for the other processes. Raises ConfigError if they do not come, or if a number of this one is wrong."""
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device, timeout=ANSWER)
        else:
            dist.init_process_group("gloo", timeout=ANSWER)
    except (ValueError, RuntimeError) as e:
        raise ConfigError(f"{', '.join(sorted(OF_A_GROUP))} make no group of processes: {one_line(e)}") from e


def find_device(wanted, local_rank):
    """Returns the device of this name; auto: an accelerator or the CPU. Raises ConfigError if it cannot be used."""
    name = wanted
    if name == "auto":
        name = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    if name == "cuda":  # without a number all processes of this node would use its first GPU
        name = f"cuda:{local_rank}"
    try:
        device = torch.device("cpu" if name.startswith("cpu:") else name)  # it has no number that torch.load knows
        torch.zeros(1, device=device).item()  # the name may be valid, and the device not there
    except (RuntimeError, AssertionError, ImportError) as e:  # AssertionError: torch was built without CUDA
        raise ConfigError(f"device = {wanted!r} cannot be used: {one_line(e)}")
    return device


@contextlib.contextmanager
def noted_signals():
    """
    Gives a block a list, to which the number of every signal is added that would end this process.

    A signal may come in the middle of a step. So it is only noted here, and train.py acts on it between two steps.
    """
    signals = []
    with contextlib.ExitStack() as handlers_before:
        # SIGHUP: the terminal was closed. SIGUSR1, SIGUSR2: what Slurm's --signal sends before a job's time is over.
        for name in "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2":
            signum = getattr(signal, name, None)  # Windows does not have all of them
            if signum and signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP, so that a run goes on
                before = signal.signal(signum, lambda signum, frame: signals.append(signum))
                handlers_before.callback(signal.signal, signum, before)
        yield signals


def leave_processes():
    """Leaves the group of all processes, if there is one."""
    if dist.is_initialized():
        # Gloo's thread needs Python's lock to free what was sent last. If this thread holds the lock while it deletes
        # DDP, it waits for that thread for ever, so it lets go of the lock for a moment.
        time.sleep(0.1)
        dist.destroy_process_group()


def one_line(error):
    """Returns what an error says in one short line, because some errors of torch list all of its backends."""
    return textwrap.shorten(str(error) or type(error).__name__, 200, placeholder=" ...")
