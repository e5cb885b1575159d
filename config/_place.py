"""
Where a run runs: on which device, and in one process or in several that torchrun has started. The underscore of this
file says that it is no configuration.

The signals that tell a process to stop, and the errors of memory and of lost processes, are handled here as well.

To train on several nodes, run this command on each of them, with its own --node_rank. All nodes must see the same
out_dir and data_dir:

    torchrun --nnodes=2 --node_rank=0 --master_addr=HOST --master_port=29500 --nproc_per_node=8 train.py ...

If the nodes hang at the start, set NCCL_IB_DISABLE=1, or name the network with NCCL_SOCKET_IFNAME (on CPUs
GLOO_SOCKET_IFNAME). For several jobs on one machine, use torchrun --standalone. With --max-restarts=3 a run that loses
a process goes on from its last checkpoint by itself. A process that does not answer for ten minutes counts as lost.
Below the line that says what is wrong, torchrun prints a report and a traceback of its own.
"""

import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from config import ConfigError

RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))  # how often torchrun has started this run again
BYTES_PER_WEIGHT = 16  # four numbers in float32: the weight, its gradient, and AdamW's two moments
MEET = 300  # seconds in which all processes must have started
GIVE_UP = 330  # seconds after which a process ends itself if torch still waits for the others to start
ANSWER = 600  # seconds that a process waits for another one from then on; checkpoints and compiling take less
NODE_KEYS = {"out_dir", "data_dir", "device", "threads"}  # keys that may have another value on every node
LONGEST = 200  # characters of an error message of torch; some list all of its backends
GRACE = 25  # seconds from SIGTERM until this process ends itself: torchrun sends SIGKILL after 30, without a word


@dataclass(frozen=True)
class Place:
    """The device of a process, and which of all processes it is. One process is rank 0 of a world of 1."""

    rank: int  # the number of this process, from 0
    world: int  # the number of processes
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

    def all_equal(self, number):
        """Whether the number is the same in all processes."""
        x = torch.tensor([float(number), -float(number)], device=self.device)
        if self.world > 1:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)  # now x is the largest number, and minus the smallest one
        return (x[0] == -x[1]).item()

    def restarted(self):
        """
        Whether torchrun has started this run again after a lost process. It repeats the same command, which may say
        init_from = scratch. Every node counts its own restarts, so the processes ask each other.
        """
        return self.any(RESTARTS > 0)

    def progress_bar(self, total, done):
        """One bar of steps on stderr, drawn by the first process only."""
        hidden = True if self.rank > 0 else None  # None lets tqdm hide it where stderr is no terminal
        return tqdm(total=total, initial=done, unit="step", disable=hidden, dynamic_ncols=True)

    def say(self, text):
        """Print a line above the progress bar. A run goes on when nobody reads the output, as after `| head`."""
        if self.rank > 0:
            return
        try:
            tqdm.write(text)
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_place(cfg):
    """
    Set up this process, and return its Place: streams, threads, the precision of float32, and, if torchrun started it,
    the group of all processes. ConfigError: a device, threads or processes that are not there.
    """
    open_streams()
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
    meet(device, rank, world)
    return Place(rank, world, device)


def open_streams():
    """
    Let no stream end a run. One that was closed, as by `>&-`, is None in Python: what is written to it goes nowhere.
    One that is not UTF-8 gets ? for a letter that it does not have.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # in a notebook it is not
        with contextlib.suppress(OSError):  # as if its file was exchanged for a pipe
            sys.stdout.reconfigure(errors="replace")


def check_cache():
    """torch makes the folder of its compiler's cache with every optimizer, and fails where it cannot write."""
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
    """-> (rank, rank on this node, number of processes) as torchrun sets them; three times None without torchrun."""
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
        name = f"cuda:{local_rank}"  # without a number all processes would use the first GPU
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the name may be valid, and the device not there
    except (RuntimeError, AssertionError, ImportError) as e:  # AssertionError: torch was built without CUDA
        raise ConfigError(f"device = {wanted!r} cannot be used: {first_line(e)}")
    return device


def matrix_rate(device, dtype):
    """Operations per second of a GPU in one large matrix product: no training step is faster. None if not on cuda."""
    if device.type != "cuda":
        return None
    n = 8192
    return 2 * n**3 / product_seconds(n, device, dtype)


def slowdown(device, dtype):
    """How many times as long as in float32 a matrix product takes in dtype: above 1 if the device emulates it."""
    if dtype == "float32":
        return 1.0
    return product_seconds(512, device, dtype) / product_seconds(512, device, "float32")


def product_seconds(n, device, dtype):
    """The time that one product of two (n, n) matrices takes."""
    x = torch.ones(n, n, device=device, dtype=getattr(torch, dtype))
    (x @ x)[0, 0].item()  # the first product takes longer; item() waits for the GPU
    began = time.perf_counter()
    for _ in range(10):
        y = x @ x
    y[0, 0].item()
    return (time.perf_counter() - began) / 10


def require_memory(cfg, vocab_size, device):
    """ConfigError if a model does not fit in memory, before it is built."""
    C = cfg.n_embd
    embeddings = (vocab_size + cfg.block_size) * C
    # Each layer has q, k, v and proj of C^2 weights each, and an MLP of 8 C^2. Biases and LayerNorm are small.
    n_params = embeddings + cfg.n_layer * 12 * C**2
    needed = BYTES_PER_WEIGHT * n_params
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ConfigError(f"n_layer = {cfg.n_layer}, n_embd = {C}: {n_params / 1e6:,.0f} M parameters take "
                          f"{needed / 1e9:,.0f} GB to train, and {device} has {there / 1e9:,.0f} GB")


def meet(device, rank, world):
    """Join the other processes. ConfigError if they are not there."""
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    failed = f"the processes of this run cannot meet at {address}"
    # If another program has this port and never answers, torch waits for ever.
    message = f"train.py: {failed}: no answer; see what the other processes say, or choose another port"
    alarm = threading.Timer(GIVE_UP, end_now, [message])
    alarm.daemon = True
    alarm.start()
    try:
        join(device, rank, world)
    except (dist.DistError, RuntimeError, ValueError) as e:  # busy port, unknown host, no such interface, time-out
        raise ConfigError(f"{failed}: {first_line(e)}")
    finally:
        alarm.cancel()


def join(device, rank, world):
    """Join the group of processes through the store of torchrun. Raises what torch raises; `meet` explains it."""
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=MEET)))
    # Processes find each other's addresses in the store. On one node it outlives a restart, and still has the addresses
    # of processes that are gone, so every start uses a prefix of its own. Several nodes get a new store by themselves.
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
        store = dist.PrefixStore(f"start {RESTARTS}", store)
    group = dict(store=store, rank=rank, world_size=world, timeout=timedelta(seconds=ANSWER))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, **group)
    else:
        dist.init_process_group("gloo", **group)
    watch()


def require_same(place, run, step):
    """
    ConfigError unless all processes will do the same. run: the configuration and the token files, as runs.describe
    returns them; step: the step of the checkpoint that this process goes on from.
    """
    if not place.all_equal(fingerprint(run, step)):
        raise ConfigError("the processes of this run differ in their configuration, code, token files or checkpoint: "
                          f"give all of them the same command, and an {run['config']['out_dir']} that all of them see")


def fingerprint(run, step):
    """A number that is the same in two processes if these and their code are."""
    config = {key: value for key, value in run["config"].items() if key not in NODE_KEYS}
    root = Path(__file__).parents[1]
    code = [path.read_bytes() for path in sorted(root.glob("*.py")) + sorted(root.glob("data/*.py"))]
    text = repr([config, run["data"], step, code])
    return zlib.crc32(text.encode()) % 2**24  # a float32 can hold this


def watch():
    """
    End this process, with one line, GRACE seconds after a signal to stop, if it has not ended by then.

    Python runs a signal handler only between two lines of Python. A process that waits on a GPU for a lost one never
    comes there. But the system also writes a byte into a pipe at once, and a thread can read this byte.
    """
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def wait():
        os.read(heard, 1)
        time.sleep(GRACE)
        end_now(f"train.py: told to stop, and not done after {GRACE} s (waiting for another process, or writing): ending "
                "with the last checkpoint that is complete")

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def noted_signals():
    """
    A list, to which the number of every signal is added that would end this process.

    A signal may come in the middle of a step. So it is only noted here, and train.py acts on it between two steps.
    """
    signals = []

    def note(signum, frame):
        signals.append(signum)

    handlers_before = {}
    for signum in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:  # SIGHUP: the terminal was closed
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP, so that a run goes on
            handlers_before[signum] = signal.signal(signum, note)
    try:
        yield signals
    finally:
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def or_without_compiler(place):
    """If torch.compile does not work in this block, say so in one line, and go on without it."""
    try:
        yield
    except (RuntimeError, OSError) as e:  # errors of the compiler are RuntimeErrors
        if is_out_of_memory(e):
            raise
        place.say(f"torch.compile does not work here, going on without it: {first_line(e)}")
        torch.compiler.set_stance("force_eager")  # from now on a compiled model runs as if it were not


def explain(error, cfg):
    """One line for an error that is no bug: out of memory, or a lost process. None for any other error."""
    if is_out_of_memory(error):
        return f"out of memory ({first_line(error)}): lower micro_batch_size = {cfg.micro_batch_size}"
    # Gloo has no error class of its own.
    if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
        return (f"another process of this run does not answer ({first_line(error)}); --init_from=resume goes on from "
                f"the last checkpoint in {cfg.out_dir}")
    return None


def is_out_of_memory(error):
    words = "out of memory", "can't allocate memory", "not enough memory"
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def first_line(error):
    """What an error says, in one line of at most LONGEST characters."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def leave(message):
    """End this process with a line on stderr and exit status 1."""
    if not dist.is_initialized():
        sys.exit(message)
    # With other processes, sys.exit can hang: the threads of DDP and of Gloo wait for each other when they are deleted.
    sys.stdout.flush()
    end_now(message)


def end_now(message):
    print(message, file=sys.stderr, flush=True)
    os._exit(1)
