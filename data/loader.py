"""
What a run reads. open_corpus opens its token files. Loader makes the rows of each batch that belong to this process: in
another thread, a few steps ahead, and split into micro-batches that fit on the device. Shapes are in data/batches.py.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from config import ConfigError
from data import tokens
from data.batches import get_batch
from data.pytorch import prepare as pytorch

AHEAD = 4  # the number of batches that are made in advance


def split_batch(cfg, world):
    """-> (rows of a batch for each of `world` processes, rows of a micro-batch). ConfigError if these do not divide."""
    per_process, rest = divmod(cfg.batch_size, world)
    micro = min(cfg.micro_batch_size, per_process)
    if rest or per_process % micro:
        raise ConfigError(f"batch_size = {cfg.batch_size}, expected a multiple of {world} processes x micro_batch_size "
                          f"= {cfg.micro_batch_size}")
    return per_process, micro


def open_corpus(cfg, place):
    """The token files in cfg.data_dir. DataError and ConfigError say what is missing."""
    folder = Path(cfg.data_dir)
    if place.rank == 0:
        pytorch.make(folder)  # if it is a folder of data/pytorch and missing: seconds, no network. Others: nothing
    place.wait()  # the other processes wait for the files
    corpus = tokens.load(folder)
    # One block is enough to train on, because epochs repeat it. But an evaluation should not see a token twice.
    for split, rows in (corpus.train, 1), (corpus.val, cfg.eval_iters * cfg.batch_size):
        if len(split) <= rows * cfg.block_size:
            raise ConfigError(f"data_dir = {cfg.data_dir}: a split of {len(split):,} tokens, expected more than "
                              f"{rows:,} x block_size = {rows * cfg.block_size:,}; lower batch_size, block_size "
                              "or eval_iters, or prepare more")
    return corpus


class Loader:
    """Batches for process `rank` of `world` processes."""

    def __init__(self, cfg, corpus, rank, world, device):
        self.cfg = cfg
        self.corpus = corpus
        self.device = device
        per_process, self.micro_batch_size = split_batch(cfg, world)
        self.rows = np.arange(rank * per_process, (rank + 1) * per_process)  # which rows of a batch are made here

    def train_batches(self, first_step):
        """The batches of all steps from first_step on. While one is used, a thread makes the next ones."""
        ahead = deque()
        with ThreadPoolExecutor(1) as thread:
            for step in range(first_step, self.cfg.max_iters):
                ahead.append(thread.submit(self.train_batch, step))
                if len(ahead) > AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def train_batch(self, step):
        return self.pinned(get_batch(self.cfg, self.corpus.meta, self.corpus.train, self.cfg.seed, step, self.rows))

    def val_batch(self, i):
        """Validation batch i, the same for every seed, so that runs are compared on the same tokens."""
        return self.pinned(get_batch(self.cfg, self.corpus.meta, self.corpus.val, 0, i, self.rows))

    def pinned(self, batch):
        """Move a batch to memory from which a GPU can copy while the program goes on."""
        return [x.pin_memory() for x in batch] if self.device.type == "cuda" else batch

    def micro_batches(self, batch):
        """Split a batch -> a list of (number of its first row, arguments of the model on the device)."""
        # For each argument (idx, targets, perhaps positions) the list of its parts.
        parts = [x.to(self.device, non_blocking=True).split(self.micro_batch_size) for x in batch]
        first_rows = self.rows[:: self.micro_batch_size].tolist()
        micro_batches = zip(*parts)  # the first part of each argument, then the second part of each, ...
        return list(zip(first_rows, micro_batches))
