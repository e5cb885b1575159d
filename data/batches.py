"""
Batches for training: which tokens stand in which row of which step, and which of them are masked.

A batch is a pure function of (seed, step, row of the global batch). Nothing here has a state, so runs that differ only
in their start see the same data in the same order, and a resumed run, or one on more processes, goes on exactly.

Shapes: B rows, T = block_size, K = predicted tokens per row. cfg is train.py's: batch_size, block_size,
predicts_next, mlm_probability.
"""

import numpy as np
import torch


def get_batch(cfg, meta, stream, seed, step, rows):
    """
    The given rows (B,) of the global batch of a step, as the arguments of a Transformer: int64 tensors on the CPU.

    Masked tokens: idx (B, T) with K tokens a row masked, targets (B, K), positions (B, K). Next token: idx (B, T),
    targets (B, T). Every block of the stream comes once per epoch, in an order of (seed, epoch) alone.
    """
    T = cfg.block_size
    n_blocks = (len(stream) - 1) // T  # one token more than the blocks hold: the last target of a decoder
    epoch, place = np.divmod(step * cfg.batch_size + rows, n_blocks)  # (B,) each; place: within the epoch
    block = np.empty_like(place)  # (B,): which block of the stream stands there
    for e in np.unique(epoch):  # nearly always one: the last batch of an epoch holds the first rows of the next
        here = epoch == e
        block[here] = shuffled(place[here], n_blocks, [seed, int(e)])
    tokens = torch.from_numpy(stream.rows(block * T, T + 1))  # (B, T + 1)
    idx = tokens[:, :-1].contiguous()  # (B, T)
    if cfg.predicts_next:
        return idx, tokens[:, 1:].contiguous()
    K = max(1, round(cfg.mlm_probability * T))
    # Draws are made for every row of the batch, whoever asks for which: so row r depends on (seed, step, r) alone.
    draws = np.random.default_rng([seed, step]).random((cfg.batch_size, T + 2 * K), dtype=np.float32)
    return mask_tokens(idx, torch.from_numpy(draws[rows]), K, meta)


def shuffled(i, n, seed):
    """
    Where a seeded permutation of range(n) takes each i (B,). In plain words:

        np.random.default_rng(seed).permutation(n)[i]

    which has to make all n numbers for the B that are wanted, whatever the size of the corpus. A Feistel network takes
    each i to its place by itself. It permutes not range(n) but range(4 ** half), the next power of 4: where it leaves
    range(n), it is applied again until it comes back, which makes a permutation of range(n).
    """
    half = 1  # bits of each half of a number
    while 4**half < n:
        half += 1
    keys = np.random.SeedSequence(seed).generate_state(4, np.uint64) | np.uint64(1)
    x = feistel(i.astype(np.uint64), half, keys)
    while (x >= n).any():
        x = np.where(x >= n, feistel(x, half, keys), x)
    return x.astype(np.int64)


def feistel(x, half, keys):
    """
    A permutation of range(4 ** half), x (B,) uint64: each number is cut into two halves of bits, and one half is mixed
    into the other, in turns. Each turn can be undone, since the half that was mixed in is still there.
    """
    shift = np.uint64(half)
    mask = np.uint64(2**half - 1)
    left, right = x >> shift, x & mask
    for key in keys:
        mixed = (right + key) * key >> np.uint64(32)  # bits from the middle of a product depend on all bits below
        left, right = right, left ^ (mixed & mask)
    return left << shift | right


def mask_tokens(idx, draws, K, meta):
    """
    BERT's masking (Devlin et al. 2019): K tokens of each row of idx (B, T) are to be predicted; 80 % of them become
    the mask token, 10 % a random one, 10 % stay. draws (B, T + 2 K), uniform in [0, 1).
    -> masked idx (B, T), targets (B, K), positions (B, K)
    """
    T = idx.shape[1]
    lot, fate, other = draws.split([T, K, K], dim=1)
    positions = lot.topk(K, largest=False).indices.sort().values  # (B, K): a fixed count, so static shapes
    targets = idx.gather(1, positions)  # (B, K)
    random_token = (other * meta["n_vocab"]).long()  # (B, K): text, never a padding id
    seen = torch.where(fate < 0.9, random_token, targets)
    seen = torch.where(fate < 0.8, meta["mask_token"], seen)  # (B, K)
    return idx.scatter(1, positions, seen), targets, positions
