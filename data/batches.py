"""
Batches for training: which tokens stand in which row of which step, and which of them are masked.

A batch is a pure function of (seed, step, row of the global batch). Nothing here has a state, so runs that differ only
in their start see the same data in the same order, and a resumed run, or one on more processes, goes on exactly.

Shapes: B rows, T = block_size, K = predicted tokens per row. cfg is train.py's: batch_size, block_size,
predicts_next, mlm_probability.
"""

import math

import numpy as np
import torch


def get_batch(cfg, meta, stream, seed, step, rows):
    """
    The given rows (array) of the global batch of a step, as the arguments of a Transformer: int64 tensors on the CPU.

    Encoder: idx (B, T) with K tokens a row masked, targets (B, K), positions (B, K). Decoder: idx (B, T), targets
    (B, T), the next token. Every block of the stream comes once per epoch, in an order of (seed, epoch) alone.
    """
    T = cfg.block_size
    n_blocks = (len(stream) - 1) // T  # one token more than the blocks hold: the last target of a decoder
    epoch, i = np.divmod(step * cfg.batch_size + rows, n_blocks)
    block = np.empty_like(i)
    for e in np.unique(epoch):
        block[epoch == e] = shuffled(i[epoch == e], n_blocks, [seed, int(e)])
    idx = torch.from_numpy(stream.rows(block * T, T + 1))  # (B, T + 1)
    if cfg.predicts_next:
        return idx[:, :-1].contiguous(), idx[:, 1:].contiguous()
    K = max(1, round(cfg.mlm_probability * T))
    # every row of the batch is drawn, whoever asks for which: row r depends on (seed, step, r) and on nothing else
    draws = np.random.default_rng([seed, step]).random((cfg.batch_size, T + 2 * K), dtype=np.float32)[rows]
    return mask_tokens(idx[:, :-1].contiguous(), torch.from_numpy(draws), K, meta)


def shuffled(i, n, seed):
    """
    Where a seeded permutation of range(n) takes i (array). A Feistel network permutes the next power of 4, and is
    applied until the result lies below n. Nothing of size n is made, so a corpus of any size costs the same.
    """
    half = np.uint64(max(1, math.ceil((n - 1).bit_length() / 2)))  # bits of each half
    mask = np.uint64((1 << int(half)) - 1)
    keys = np.random.SeedSequence(seed).generate_state(4, np.uint64) | np.uint64(1)
    x, outside = i.astype(np.uint64), np.ones(len(i), bool)
    while outside.any():
        left, right = x[outside] >> half, x[outside] & mask
        for k in keys:  # any function of `right` makes a permutation; the top bits of a product mix all bits below
            left, right = right, left ^ ((right + k) * k >> np.uint64(32) & mask)
        x[outside] = left << half | right
        outside = x >= n
    return x.astype(np.int64)


def mask_tokens(idx, draws, K, meta):
    """
    BERT's masking (Devlin et al. 2019): K tokens of each row of idx (B, T) are to be predicted; 80 % of them become
    the mask token, 10 % a random one, 10 % stay. draws (B, T + 2 K), uniform in [0, 1).
    -> masked idx (B, T), targets (B, K), positions (B, K)
    """
    T = idx.shape[1]
    positions = draws[:, :T].topk(K, largest=False).indices.sort().values  # (B, K): a fixed count, so static shapes
    targets = idx.gather(1, positions)
    fate, random = draws[:, T : T + K], (draws[:, T + K :] * meta["n_vocab"]).long()  # (B, K): never a padding id
    seen = torch.where(fate < 0.8, meta["mask_token"], torch.where(fate < 0.9, random, targets))
    return idx.scatter(1, positions, seen), targets, positions
