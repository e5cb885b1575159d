"""
Batches for training: which tokens are in each row of each step, and which of them are masked.

A batch is a pure function of (seed, step, row), and nothing here has a state. So runs that differ only in their start
see the same data in the same order, and a resumed run, or a run on more processes, goes on exactly.

Shapes: B rows, T = block_size, K = predicted tokens per row. cfg is a TrainConfig of config/, meta and stream (N,) are
those of a corpus (data/tokens.py).
"""

import functools

import numpy as np
import torch


def get_batch(cfg, meta, stream, seed, step, rows):
    """
    Some rows (B,) of the batch of a step, as the arguments of a Transformer: int64 tensors on the CPU.

    To predict next tokens: idx (B, T), targets (B, T). To predict masked tokens: idx (B, T) with K tokens of each row
    masked, targets (B, K), positions (B, K). Every block of T tokens comes once per epoch; its order depends on (seed,
    epoch) alone.
    """
    T = cfg.block_size
    n_blocks = (len(stream) - 1) // T  # - 1, because the last block needs one more token as the last target
    epoch, turn = np.divmod(step * cfg.batch_size + rows, n_blocks)  # (B,) each; turn: from 0 in every epoch
    block = np.empty_like(turn)  # (B,), the block of the stream whose turn it is
    for e in np.unique(epoch):  # usually one epoch; two in the batch where an epoch ends
        here = epoch == e
        block[here] = block_order(n_blocks, seed, int(e))[turn[here]]
    places = block[:, None] * T + np.arange(T + 1)  # (B, T + 1)
    tokens = torch.from_numpy(stream[places].astype(np.int64))  # (B, T + 1)
    idx = tokens[:, :-1].contiguous()  # (B, T)
    if cfg.predicts_next:
        return idx, tokens[:, 1:].contiguous()
    K = count_targets(cfg)
    # Draw for all rows of the batch, whichever are asked for. So row r depends on (seed, step, r) alone.
    draws = np.random.default_rng([seed, step]).random((cfg.batch_size, T + 2 * K), dtype=np.float32)
    return mask_tokens(idx, torch.from_numpy(draws[rows]), K, meta)


def count_targets(cfg):
    """How many tokens of a sequence are predicted."""
    if cfg.predicts_next:
        return cfg.block_size
    return max(1, round(cfg.mlm_probability * cfg.block_size))


@functools.lru_cache(maxsize=4)  # two epochs meet in one batch, and an evaluation has an order of its own
def block_order(n_blocks, seed, epoch):
    """The order of the blocks in an epoch: (n_blocks,) int64."""
    return np.random.default_rng([seed, epoch]).permutation(n_blocks)


def mask_tokens(idx, draws, K, meta):
    """
    BERT's masking (Devlin et al. 2019): choose K tokens of each row of idx (B, T) as targets. Of these, 80 % are
    replaced by the mask token, 10 % by a random token, and 10 % stay. draws (B, T + 2 K) are uniform in [0, 1).
    -> masked idx (B, T), targets (B, K), positions (B, K)
    """
    T = idx.shape[1]
    # For every token, whether it is chosen; for every chosen one, what becomes of it, and which token may replace it.
    lot, fate, other = draws.split([T, K, K], dim=1)  # (B, T), (B, K), (B, K)
    positions = lot.topk(K, largest=False).indices.sort().values  # (B, K); always K tokens, so shapes never change
    targets = idx.gather(1, positions)  # (B, K)
    random_token = (other * meta["n_vocab"]).long()  # (B, K); below n_vocab all ids stand for text
    seen = torch.where(fate < 0.9, random_token, targets)
    seen = torch.where(fate < 0.8, meta["mask_token"], seen)  # (B, K)
    return idx.scatter(1, positions, seen), targets, positions
