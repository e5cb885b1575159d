"""
Batches for training: which tokens are in each row of each step, and which of them are masked.

A batch is a pure function of (seed, step, row), and has no state. So runs that differ only in their start see the same
data in the same order, and a resumed run, or a run on more processes, sees what it would have seen.

Shapes: B rows, T = block_size, K = predicted tokens per row. cfg is a TrainConfig, and a corpus one of data/tokens.py.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from config import require

# What random numbers are for. Each has a stream of its own, so that no two of them are the same by chance.
STREAMS = "train order", "train masks", "val order", "val masks", "start", "dropout"


def seed_of(stream, *numbers):
    """Returns the np.random.SeedSequence of one of STREAMS for numbers such as the seed of a run and a step."""
    return np.random.SeedSequence([STREAMS.index(stream), *numbers])


def torch_seed(stream, *numbers):
    """The same as one number below 2^32, for torch."""
    return int(seed_of(stream, *numbers).generate_state(1)[0])


def get_batch(cfg, corpus, split, step, rows):
    """
    Returns some rows (B,) of the batch of a step, as the arguments of a Transformer: int64 tensors on the CPU.
    To predict next tokens: idx (B, T), targets (B, T). To predict masked tokens: idx (B, T) with K tokens of each row
    masked, targets (B, K), predict_at (B, K). Every block of T tokens comes once per epoch.
    """
    T = cfg.block_size
    tokens = corpus.train if split == "train" else corpus.val  # (N,)
    seed = cfg.seed if split == "train" else 0  # all runs are validated on the same batches
    n_blocks = (len(tokens) - 1) // T  # - 1, because the last block needs one more token as the last target
    block = np.empty_like(rows)  # (B,), the block of tokens whose turn it is
    for i, row in enumerate(rows.tolist()):
        epoch, turn = divmod(step * cfg.batch_size + row, n_blocks)
        block[i] = block_order(n_blocks, f"{split} order", seed, epoch)[turn]
    token_at = block[:, None] * T + np.arange(T + 1)  # (B, T + 1)
    ids = torch.from_numpy(tokens[token_at].astype(np.int64))  # (B, T + 1)
    idx = ids[:, :-1].contiguous()  # (B, T)
    if cfg.predicts_next:
        return idx, ids[:, 1:].contiguous()  # the target of a token is the next one
    K = round(cfg.mlm_probability * T)
    # Draw for all rows of the batch, whichever are asked for. So row r depends on (seed, step, r) alone.
    rng = np.random.default_rng(seed_of(f"{split} masks", seed, step))
    draws = rng.random((cfg.batch_size, T + 2 * K), dtype=np.float32)
    return mask_tokens(idx, torch.from_numpy(draws[rows]), K, corpus.meta, cfg.mask_share, cfg.random_share)


@functools.lru_cache(maxsize=4)  # two epochs meet in one batch, and an evaluation has an order of its own
def block_order(n_blocks, stream, seed, epoch):
    """Returns the order of the blocks in an epoch: (n_blocks,) int64."""
    return np.random.default_rng(seed_of(stream, seed, epoch)).permutation(n_blocks)


def mask_tokens(idx, draws, K, meta, mask_share, random_share):
    """
    Returns the masked idx (B, T), targets (B, K) and predict_at (B, K). draws (B, T + 2 K) are uniform in [0, 1).
    BERT's masking (Devlin et al. 2019) chooses K tokens of each row of idx (B, T) as targets. Of these, a mask_share of
    80 % are replaced by the mask token, a random_share of 10 % by a random token, and the rest stay.
    """
    T = idx.shape[1]
    # For every token, whether it is chosen; for every chosen one, what becomes of it, and which token may replace it.
    lot, fate, other = draws.split([T, K, K], dim=1)  # (B, T), (B, K), (B, K)
    predict_at = lot.topk(K, largest=False).indices.sort().values  # (B, K); always K tokens, so shapes never change
    targets = idx.gather(1, predict_at)  # (B, K)
    random_token = (other * meta["n_vocab"]).long()  # (B, K); below n_vocab all ids stand for text
    seen = torch.where(fate < mask_share + random_share, random_token, targets)
    seen = torch.where(fate < mask_share, meta["mask_token"], seen)  # (B, K)
    return idx.scatter(1, predict_at, seen), targets, predict_at


def split_batch(cfg, world):
    """Returns cfg with the micro_batch_size of each of `world` processes. Raises ConfigError if they do not divide."""
    per_process, rest = divmod(cfg.batch_size, world)
    micro = min(cfg.micro_batch_size, per_process)
    require(rest == 0 and per_process % micro == 0, f"batch_size = {cfg.batch_size}, expected a multiple of {world} "
            f"processes x micro_batch_size = {cfg.micro_batch_size}")
    return replace(cfg, micro_batch_size=micro)


class Loader:
    """Makes the batches of one process, in micro-batches that fit on its device. cfg: of split_batch."""

    def __init__(self, cfg, corpus, place):
        n_tokens = cfg.eval_iters * cfg.batch_size * cfg.block_size  # of an evaluation, which sees none twice
        for split, n in dict(train=cfg.block_size, val=n_tokens).items():
            require(len(getattr(corpus, split)) > n,  # the last one has a next one
                    f"{cfg.data_dir} has {len(getattr(corpus, split)):,} tokens in {split}.bin, expected more than "
                    f"{n:,}: prepare more text, or lower batch_size, block_size or eval_iters")
        self.cfg = cfg
        self.corpus = corpus
        self.device = place.device
        self.rows = np.arange(cfg.batch_size).reshape(place.world, -1)[place.rank]  # of a batch, those made here

    def train_batches(self, first_step):
        """Yields the batches of all steps from first_step on. While one is used, a thread makes the next one."""
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(self.batch, "train", first_step)
            for step in range(first_step, self.cfg.max_iters):
                batch = ahead.result()
                ahead = thread.submit(self.batch, "train", step + 1)
                yield batch

    def batch(self, split, step):
        """Returns a batch, in memory from which a GPU can copy while the program goes on."""
        batch = get_batch(self.cfg, self.corpus, split, step, self.rows)
        return [x.pin_memory() for x in batch] if self.device.type == "cuda" else batch

    def micro_batches(self, batch):
        """Returns a list: for each micro-batch the number of its first row, and the arguments of the model."""
        n, parts = self.cfg.micro_batch_size, []
        for start in range(0, len(self.rows), n):
            arguments = [x[start : start + n].to(self.device, non_blocking=True) for x in batch]
            parts.append((int(self.rows[start]), arguments))
        return parts
