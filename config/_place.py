"""
Where a run runs: its device, and this process alone or among those that torchrun started.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from tqdm import tqdm

from config import ConfigError

RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))  # torchrun repeats the command line as it was
BYTES_PER_WEIGHT = 16  # float32 four times: the weight, its gradient, and AdamW's two moments
MEET = 300  # seconds that the processes wait for each other at the start
GRACE = 25  # seconds from torchrun's SIGTERM to our own end: its SIGKILL, which says nothing, comes after 30


@dataclass(frozen=True)
class Place:
    rank: int
    world: int  # number of processes
    device: torch.device

    def mean(self, x):
        """The mean over processes of a tensor of this one."""
        if self.world > 1:
            dist.all_reduce(x)
        return x / self.world

    def wait(self):
        """Until all processes have come here."""
        if self.world > 1:
            dist.barrier()

    def any(self, condition):
        """Whether the condition holds in one process at least."""
        return self.mean(torch.tensor(float(condition), device=self.device)).item() > 0

    def all_equal(self, number):
        """Whether the number is the same in all processes."""
        x = torch.tensor([float(number), -float(number)], device=self.device)
        if self.world > 1:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)  # the largest, and minus the smallest
        return (x[0] == -x[1]).item()

    def say(self, text):
        """A line on stdout, above the progress bar; a run goes on when nobody reads it any more, as after `| head`."""
        if self.rank > 0:
            return
        try:
            tqdm.write(text)
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_place(cfg):
    """Where this process runs, joined to the others if torchrun started it. ConfigError says what cannot be had."""
    if cfg.threads:
        most = os.cpu_count()
        if cfg.threads > most:
            raise ConfigError(f"threads = {cfg.threads}, expected at most the {most} of this machine")
        torch.set_num_threads(cfg.threads)
    check_cache()
    rank, local_rank, world = read_ranks()
    device = find_device(cfg.device, local_rank)
    if device.type == "cuda":
        # TF32: float32 matrix products in tensor cores, 10 bits of mantissa, several times as fast
        torch.set_float32_matmul_precision("high")
    if rank is None:
        return Place(0, 1, device)
    try:
        join(device, rank, world)
    except (dist.DistError, RuntimeError, ValueError) as e:  # busy port, unknown host, no such interface, time-out
        raise ConfigError(f"the processes of this run cannot meet at {os.environ.get('MASTER_ADDR')}:"
                          f"{os.environ.get('MASTER_PORT')}: {first_line(e)}")
    return Place(rank, world, device)


def check_cache():
    """torch makes the folder of its compiler's cache whenever an optimizer is made, and fails where it cannot."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    if name not in os.environ:
        return
    try:
        os.makedirs(os.environ[name], exist_ok=True)
        tempfile.TemporaryFile(dir=os.environ[name]).close()
    except OSError as e:
        print(f"{name} = {os.environ[name]} cannot be written ({e.strerror}): torch's own place for it is used instead")
        del os.environ[name]


def read_ranks():
    """-> (rank, rank on this node, number of processes) as torchrun sets them; None three times without it."""
    if "RANK" not in os.environ:
        return None, None, None
    numbers = []
    for name in "RANK", "LOCAL_RANK", "WORLD_SIZE":
        text = os.environ.get(name, "")
        if not text.isdecimal():
            raise ConfigError(f"the environment has RANK, but {name} = {text!r}: start with torchrun, or unset RANK")
        numbers.append(int(text))
    rank, _, world = numbers
    if rank >= world:
        raise ConfigError(f"the environment has RANK = {rank}, but WORLD_SIZE = {world}: ranks count from 0")
    return numbers


def find_device(name, local_rank):
    wanted = name
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
        else:
            name = "cpu"
    if name == "cuda" and local_rank is not None:
        name = f"cuda:{local_rank}"  # without a number every process would put something on the first GPU
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device can have a name and no memory
    except (RuntimeError, AssertionError, ImportError) as e:  # AssertionError: torch was built without CUDA
        raise ConfigError(f"device = {wanted!r} cannot be used: {first_line(e)}")
    return device


def require_memory(cfg, vocab_size, device):
    """Refuse a model that does not fit, before it is drawn. ConfigError."""
    C = cfg.n_embd
    embeddings = (vocab_size + cfg.block_size) * C
    # of a layer: q, k, v and proj, C^2 each, and 8 C^2 of the MLP; biases and LayerNorm are small beside these
    n_params = embeddings + cfg.n_layer * 12 * C**2
    needed = BYTES_PER_WEIGHT * n_params
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ConfigError(f"n_layer = {cfg.n_layer}, n_embd = {C}: {n_params / 1e6:,.0f} M parameters take "
                          f"{needed / 1e9:,.0f} GB to train, and {device} has {there / 1e9:,.0f} GB")


def join(device, rank, world):
    """Meet the other processes."""
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=MEET)))
    # The store of one node outlives a restart, and with it the addresses of processes that are gone: each start keeps
    # its own under a name of its own. Several nodes count their restarts separately, and get a new store.
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
        store = dist.PrefixStore(f"start {RESTARTS}", store)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=world, device_id=device)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    watch()


def watch():
    """
    End this process, in one line, when it has not heard SIGTERM for GRACE seconds.

    Python hears a signal between two lines of Python, and a process that waits for a lost one on a GPU is in none. The
    byte that the system writes into a pipe at once is heard by a thread.
    """
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def wait():
        os.read(heard, 1)
        time.sleep(GRACE)
        print(f"train.py: told to stop, and still waiting for another process after {GRACE} s: ending without a new "
              "checkpoint", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def is_lost_process(error):
    """Whether an error of torch says that the processes of a run cannot reach each other; Gloo has no class for it."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def is_out_of_memory(error):
    words = "out of memory", "can't allocate memory", "not enough memory"
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]
