"""
Where a run runs: on which device, and in one process or in several that torchrun has started. It stands beside the keys
that it reads (device, threads); the underscore of this file says that it is no configuration.

To train on several nodes, run this command on each of them, with its own --node_rank. All nodes must see the same
out_dir and data_dir:

    torchrun --nnodes=2 --node_rank=0 --master_addr=HOST --master_port=29500 --nproc_per_node=8 train.py ...

If the nodes hang at the start, set NCCL_IB_DISABLE=1, or name the network with NCCL_SOCKET_IFNAME (on CPUs
GLOO_SOCKET_IFNAME). On one machine, a run that loses a process goes on from its last checkpoint by itself with

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --max-restarts=3 ... train.py ... --init_from=resume

Without this variable the new processes look for each other at the addresses of the old ones.
"""

import contextlib
import os
import signal
import sys
import textwrap
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from tqdm import tqdm

from config import ConfigError

ANSWER = timedelta(minutes=10)  # how long a process waits for another one; checkpoints and compiling take less


@dataclass(frozen=True)
class Place:
    """The device of a process, and which of all processes it is. One process is rank 0 of a world of 1."""

    rank: int  # the number of this process, from 0
    world: int  # how many processes there are
    device: torch.device

    def mean(self, x):
        """The mean of a tensor over all processes. With several of them, x itself becomes the sum."""
        if self.world > 1:
            dist.all_reduce(x)
        return x / self.world

    def wait(self):
        """Wait until all processes have come here."""
        if self.world > 1:
            dist.barrier()

    def any(self, condition):
        """Whether the condition holds in at least one process."""
        return self.mean(torch.tensor(float(condition), device=self.device)).item() > 0

    def progress_bar(self, total, done):
        """One bar of steps on stderr, drawn by the first process only."""
        hidden = True if self.rank > 0 else None  # None lets tqdm hide it where stderr is no terminal
        return tqdm(total=total, initial=done, unit="step", disable=hidden, dynamic_ncols=True)

    def say(self, text):
        """Print a line, once and not for every process."""
        if self.rank == 0:
            say(text)


def find_place(cfg):
    """
    Set up this process, and return its Place: threads, the precision of float32, and, if torchrun started it, the group
    of all processes. ConfigError: a device that is not there.
    """
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    # torchrun sets these variables. Without it there is one process.
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    device = find_device(cfg.device)
    if device.type == "cuda":
        # TF32: float32 matrix products in tensor cores, 10 bits of mantissa, several times as fast
        torch.set_float32_matmul_precision("high")
    if world > 1 and device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=ANSWER)
    elif world > 1:
        dist.init_process_group("gloo", timeout=ANSWER)
    return Place(rank, world, device)


def say(text):
    """Print a line above any progress bar. The program goes on when nobody reads the output, as after `| head`."""
    try:
        tqdm.write(text)
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_device(wanted):
    """The device of this name; auto: the accelerator of this machine, or the CPU if there is none."""
    name = wanted
    if name == "auto":
        name = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    if name == "cuda":  # without a number all processes of this node would use its first GPU
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the name may be valid, and the device not there
    except (RuntimeError, AssertionError, ImportError) as e:  # AssertionError: torch was built without CUDA
        raise ConfigError(f"device = {wanted!r} cannot be used: {first_line(e)}")
    return device


def require_same_step(place, step):
    """ConfigError unless all processes begin at the same step. One that does not see the checkpoint begins at 0."""
    mean = place.mean(torch.tensor(step, dtype=torch.float64, device=place.device)).item()
    if place.any(mean != step):
        raise ConfigError("the processes of this run begin at different steps: all of them must see the same out_dir")


@contextlib.contextmanager
def noted_signals():
    """
    A list, to which the number of every signal is added that would end this process.

    A signal may come in the middle of a step. So it is only noted here, and train.py acts on it between two steps.
    """
    signals, handlers_before = [], {}
    ends = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):  # the terminal was closed; Windows does not have it
        ends.append(signal.SIGHUP)
    for signum in ends:
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP, so that a run goes on
            handlers_before[signum] = signal.signal(signum, lambda signum, frame: signals.append(signum))
    try:
        yield signals
    finally:
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)


def end_unless_bug(error, cfg):
    """If memory has run out or another process is lost, end this one in one line, with exit status 1."""
    on_a_gpu, on_a_cpu = "out of memory", "can't allocate memory"  # what torch says
    if isinstance(error, MemoryError) or on_a_gpu in str(error) or on_a_cpu in str(error):
        advice = f"lower micro_batch_size = {cfg.micro_batch_size}, or the sizes of the model"
        message = f"train.py: out of memory ({first_line(error)}): {advice}"
    elif isinstance(error, dist.DistError) or "gloo" in str(error).lower():  # Gloo has no error class of its own
        advice = f"--init_from=resume goes on from the last checkpoint in {cfg.out_dir}"
        message = f"train.py: another process of this run does not answer ({first_line(error)}); {advice}"
    else:
        return
    if not dist.is_initialized():
        sys.exit(message)
    # With other processes, sys.exit can hang: the threads of DDP and of Gloo wait for each other when they are deleted.
    sys.stdout.flush()
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


def first_line(error):
    """What an error says, in one short line: some errors of torch list all of its backends."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], 200, placeholder=" ...")
