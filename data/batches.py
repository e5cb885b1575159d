"""
Batches for training: which tokens are in each row of each step, and which of them are masked.

A batch is a pure function of (seed, step, row), and has no state. So runs that differ only in their start see the same
data in the same order, and a resumed run, or a run on more processes, sees what it would have seen.

Shapes: B rows, T = block_size, K = predicted tokens per row. cfg is a TrainConfig, corpus a tokens.Corpus.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from config import require

# Each use of random numbers has its own stream, so no two uses ever share numbers.
STREAMS = "train order", "train masks", "val order", "val masks", "start", "dropout"


def seed_of(stream, *numbers):
    """Returns the np.random.SeedSequence for one of STREAMS and numbers such as a run's seed and a step."""
    return np.random.SeedSequence([STREAMS.index(stream), *numbers])


def torch_seed(stream, *numbers):
    """The same as a number below 2^32, for torch.manual_seed."""
    return int(seed_of(stream, *numbers).generate_state(1)[0])


def get_batch(cfg, corpus, split, step, rows):
    """
    Returns the given rows (B,) of a step's batch, as a Transformer's arguments: int64 tensors on the CPU.
    To predict next tokens: idx (B, T), targets (B, T). To predict masked tokens: idx (B, T) with K tokens of each row
    masked, targets (B, K), predict_at (B, K). Every block of T tokens comes once per epoch.
    """
    T = cfg.block_size
    tokens = getattr(corpus, split)  # (N,)
    seed = cfg.seed if split == "train" else 0  # all runs are validated on the same batches

    # which block of T tokens is each row? Rows are numbered through all steps, and every block has a turn per epoch
    n_blocks = (len(tokens) - 1) // T  # - 1, because the last block needs one more token as the last target
    block = np.empty_like(rows)  # (B,)
    for i, row in enumerate(rows.tolist()):
        n_before = step * cfg.batch_size + row  # rows that came before this one, in all steps
        epoch, turn = divmod(n_before, n_blocks)
        block[i] = block_order(n_blocks, f"{split} order", seed, epoch)[turn]

    # read one token more than a row has, because the target of a token is the next one
    token_at = block[:, None] * T + np.arange(T + 1)  # (B, T + 1)
    ids = torch.from_numpy(tokens[token_at].astype(np.int64))  # (B, T + 1)
    idx = ids[:, :-1].contiguous()  # (B, T)
    if cfg.predicts_next:
        return idx, ids[:, 1:].contiguous()  # (B, T)

    # draw for the whole batch, whichever rows are asked for, so that row r depends on (seed, step, r) alone
    K = round(cfg.mlm_probability * T)
    rng = np.random.default_rng(seed_of(f"{split} masks", seed, step))
    draws = rng.random((cfg.batch_size, T + 2 * K), dtype=np.float32)
    return mask_tokens(idx, torch.from_numpy(draws[rows]), K, corpus.meta, cfg.mask_share, cfg.random_share)


@functools.lru_cache(maxsize=4)  # two epochs can meet in one batch, of each split
def block_order(n_blocks, stream, seed, epoch):
    """
    Returns the order of the blocks in an epoch: (n_blocks,) int64.
    Example: block_order(5, "train order", seed=101, epoch=0) -> [2, 1, 4, 0, 3], and in epoch 1 [2, 0, 3, 4, 1]
    """
    return np.random.default_rng(seed_of(stream, seed, epoch)).permutation(n_blocks)


def mask_tokens(idx, draws, K, meta, mask_share, random_share):
    """
    Returns the masked idx (B, T), targets (B, K) and predict_at (B, K). draws (B, T + 2 K) are uniform in [0, 1).
    BERT's masking (Devlin et al. 2019) chooses K tokens in each row of idx (B, T) as targets. It replaces 80 % of them
    (mask_share) by the mask token, 10 % (random_share) by a random token, and leaves the rest as they are.
    """
    # lot: is a token chosen? fate: what becomes of a chosen one? other: which random token may replace it?
    T = idx.shape[1]
    lot, fate, other = draws.split([T, K, K], dim=1)  # (B, T), (B, K), (B, K)

    # choose the K smallest lots, always as many, so that shapes never change
    predict_at = lot.topk(K, largest=False).indices.sort().values  # (B, K)
    targets = idx.gather(1, predict_at)  # (B, K)

    # what the model sees there: with a small fate the mask token, with the next a random one, else the target
    random_token = (other * meta["n_vocab"]).long()  # (B, K); below n_vocab all ids stand for text
    seen = torch.where(fate < mask_share + random_share, random_token, targets)
    seen = torch.where(fate < mask_share, meta["mask_token"], seen)  # (B, K)
    return idx.scatter(1, predict_at, seen), targets, predict_at


def split_batch(cfg, world):
    """Returns cfg with the micro_batch_size for each of `world` processes. Raises ConfigError if they do not divide."""
    per_process, rest = divmod(cfg.batch_size, world)
    micro = min(cfg.micro_batch_size, per_process)
    require(rest == 0 and per_process % micro == 0, f"batch_size = {cfg.batch_size}, expected a multiple of {world} "
            f"processes x micro_batch_size = {cfg.micro_batch_size}")
    return replace(cfg, micro_batch_size=micro)


class Loader:
    """Makes the batches of one process, in micro-batches that fit on its device. cfg: what split_batch returned."""

    def __init__(self, cfg, corpus, place):
        # is there enough text? Training needs one block, and an evaluation all its tokens, because it sees none twice
        n_val = (cfg.skip_eval_iters + cfg.eval_iters) * cfg.batch_size * cfg.block_size
        for split, n in dict(train=cfg.block_size, val=n_val).items():
            n_tokens = len(getattr(corpus, split))
            # >, not >=: the last token needs a target
            require(n_tokens > n, f"{cfg.data_dir} has {n_tokens:,} tokens in {split}.bin, expected more than {n:,}: "
                    "prepare more text, or lower batch_size, block_size or eval_iters")

        self.cfg = cfg
        self.corpus = corpus
        self.device = place.device
        self.rows = np.arange(cfg.batch_size).reshape(place.world, -1)[place.rank]  # those that this process makes

    def train_batches(self, first_step):
        """Yields the batches of all steps from first_step on. While one is used, a thread makes the next one."""
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(self.batch, "train", first_step)
            for step in range(first_step, self.cfg.max_iters):
                batch = ahead.result()
                ahead = thread.submit(self.batch, "train", step + 1)
                yield batch

    def batch(self, split, step):
        """Returns a batch. For a GPU it is in pinned memory, so that it can be copied while the program goes on."""
        step += self.cfg.skip_iters if split == "train" else self.cfg.skip_eval_iters
        batch = get_batch(self.cfg, self.corpus, split, step, self.rows)
        return [x.pin_memory() for x in batch] if self.device.type == "cuda" else batch

    def micro_batches(self, batch):
        """Returns a list: for each micro-batch the number of its first row, and the arguments of the model."""
        n = self.cfg.micro_batch_size
        first_rows = self.rows[::n].tolist()
        parts = [x.to(self.device, non_blocking=True).split(n) for x in batch]  # of each argument, one per micro-batch
        return list(zip(first_rows, zip(*parts)))
