"""
Where a run runs: its device, and its processes, which are one, or several that torchrun has started.

On several nodes run this on each, with its own --node_rank. All must see the same out_dir and data_dir:

    torchrun --nnodes=2 --node_rank=0 --master_addr=HOST --master_port=29500 --nproc_per_node=8 train.py ...
"""

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from tqdm import tqdm

from config import differing_keys, require


@dataclass(frozen=True)
class Place:
    """The device of a process, and which of all processes it is. One process is rank 0 of a world of 1."""

    rank: int  # the number of this process, from 0
    world: int  # how many processes there are
    device: torch.device
    name: str = "cpu"  # of the card, such as NVIDIA H200, or of another device

    def mean(self, x):
        """Returns the mean of a tensor over all processes."""
        total = x.clone()
        if self.world > 1:
            dist.all_reduce(total)  # which changes it to the sum
        return total / self.world

    def require_same(self, values):
        """Raises ConfigError in all processes unless they all have the same values, a dict."""
        of_all = [values] * self.world
        if self.world > 1:
            dist.all_gather_object(of_all, values)
        keys = differing_keys(of_all)
        require(not keys, f"the processes of this run differ in {', '.join(keys)}")

    def say(self, text):
        """Prints a line above any progress bar, once and not for every process."""
        if self.rank == 0:
            tqdm.write(text)


def find_place(cfg):
    """Sets up this process. Returns its Place, and cfg with the dtype that "auto" means there."""
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    if cfg.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)

    # torchrun numbers the processes of a machine from 0 (LOCAL_RANK), and each takes the card with its number
    gpu = torch.accelerator.current_accelerator(check_available=True)
    devices = [gpu.type, "cpu"] if gpu else ["cpu"]
    name = devices[0] if cfg.device == "auto" else cfg.device
    require(name in devices, f"device = {name}, expected one that torch finds here: {' or '.join(devices)}")
    device = torch.device("cpu" if name == "cpu" else f"{name}:{os.environ.get('LOCAL_RANK', 0)}")

    dtype = "float32"  # what "auto" means
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        dtype = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
        # TF32: float32 matrix products in tensor cores, 10 bits of mantissa, several times as fast
        torch.set_float32_matmul_precision("high")
    if cfg.dtype == "auto":
        cfg = replace(cfg, dtype=dtype)

    # join the other processes. Without torchrun, which sets RANK, there are none
    if "RANK" not in os.environ:
        return Place(0, 1, device, name), cfg
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    return Place(dist.get_rank(), dist.get_world_size(), device, name), cfg


def leave_processes():
    """Leaves the group of all processes, if there is one."""
    if dist.is_initialized():
        # without this pause destroy_process_group can hang: it holds the GIL, for which Gloo's thread may wait to end
        time.sleep(0.1)
        dist.destroy_process_group()


@contextlib.contextmanager
def noted_signals():
    """
    Gives a block a list that gets an entry for each SIGTERM, which then ends nothing: clusters send one some seconds
    before they end a job, and the block can save first. After it SIGTERM does what it did before.
    """
    signals = []
    is_main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number)) if is_main else None
    try:
        yield signals
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
