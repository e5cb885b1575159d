"""
What a run reads: its token files, and of every batch the rows of this process, made in another thread ahead of time,
in pieces that fit the device.

Shapes of a batch: those of data/batches.py.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from config import ConfigError
from data import tokens
from data.batches import get_batch
from data.stdlib import prepare

AHEAD = 4  # batches that are made while one is trained on


def split_batch(cfg, world):
    """-> (rows of the global batch for each of `world` processes, rows of a micro-batch). ConfigError."""
    per_process, rest = divmod(cfg.batch_size, world)
    micro = min(cfg.micro_batch_size, per_process)
    if rest or per_process % micro:
        raise ConfigError(f"batch_size = {cfg.batch_size}, expected a multiple of {world} processes x micro_batch_size "
                          f"= {cfg.micro_batch_size}")
    return per_process, micro


def open_corpus(cfg, place):
    """The token files of cfg.data_dir. DataError and ConfigError say what is missing."""
    folder = Path(cfg.data_dir)
    if place.rank == 0:
        prepare.make(folder)  # those of the standard library, where they are missing: a few seconds, no network
    place.wait()  # the others, for the files
    corpus = tokens.load(folder)
    # One block to train on will do, as epochs follow each other; an evaluation shall not see a token twice.
    for split, rows in (corpus.train, 1), (corpus.val, cfg.eval_iters * cfg.batch_size):
        if len(split) <= rows * cfg.block_size:
            raise ConfigError(f"data_dir = {cfg.data_dir}: a split of {len(split):,} tokens, expected more than "
                              f"{rows:,} x block_size = {rows * cfg.block_size:,}; lower block_size or eval_iters, or prepare more")
    return corpus


class Loader:
    """The rows of process `rank` of `world` processes."""

    def __init__(self, cfg, corpus, rank, world, device):
        self.cfg, self.corpus, self.device = cfg, corpus, device
        per_process, self.micro_batch_size = split_batch(cfg, world)
        self.rows = np.arange(rank * per_process, (rank + 1) * per_process)  # of the global batch

    def train_batches(self, first_step):
        """The batches of the steps from first_step on; those of the next steps are made meanwhile."""
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
        """The same whatever the seed, so that runs are compared on the same tokens."""
        return self.pinned(get_batch(self.cfg, self.corpus.meta, self.corpus.val, 0, i, self.rows))

    def pinned(self, batch):
        """Where a GPU copies from by itself, while the program goes on."""
        if self.device.type == "cuda":
            return [x.pin_memory() for x in batch]
        return batch

    def micro_batches(self, batch):
        """-> [(number of its first row, the arguments of the model, on the device)]"""
        parts = [x.to(self.device, non_blocking=True).split(self.micro_batch_size) for x in batch]
        first_rows = self.rows[:: self.micro_batch_size].tolist()
        return list(zip(first_rows, zip(*parts)))
