"""
What heads look for: the mean logit of every head of a layer, by how far the key is from the query.

    python -m tests.exercises.offsets 1 out/tiny out/tiny_decoder    # layer 1 of both -> offsets.png

A head that looks at the token before has its peak at -1. Two heads that mirror each other have each other's curve,
turned round at 0. Softmax does not see what all keys of a query have in common, so the mean over its keys is taken off.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from data import tokens
from data.batches import get_batch
from data.drawing import figure, put_legend, put_titles, put_zero
from data.runs.model import open_run

N_TEXTS = 64  # blocks of validation text, as in training, masks and all
FARTHEST = 8  # offset that is drawn [tokens]


@torch.no_grad()
def offset_logits(model, idx, layer):
    """Returns the mean logits of a layer for idx (B, T), at offsets 1 - T to T - 1 of key from query: (H, 2 T - 1)."""
    # catch the input of the layer's attention
    attn, inputs, T = model.blocks[layer].attn, [], idx.shape[1]
    hook = attn.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    model.hidden(idx)
    hook.remove()

    # compute its logits again, and let nan stand where no query sees a key
    x = inputs[0]  # (B, T, C)
    q, k = attn.queries_and_keys(x)  # (B, H, T, D) each
    logits = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
    if attn.causal:
        logits = logits.masked_fill(torch.ones(T, T).triu(1) > 0, torch.nan)

    # take the mean over keys off, average over texts, and then along diagonals: key - query is the same on each
    logits = (logits - logits.nanmean(-1, keepdim=True)).nanmean(0)  # (H, T, T)
    diagonals = [logits.diagonal(offset, -2, -1) for offset in range(1 - T, T)]  # (H, T - |offset|) each
    return torch.stack([diagonal.nanmean(-1) for diagonal in diagonals], -1)


def main(layer, *folders):
    with figure("offsets.png", 1, len(folders), title=f"Mean logit by offset, layer {layer}") as axes:
        put_titles(axes.flat, [Path(folder).name.replace("_", " ") for folder in folders])
        for axis, folder in zip(axes.flat, folders):
            model, cfg = open_run(folder)
            assert cfg.positions == "learned", f"{folder}: {cfg.positions} positions are not in q and k"
            idx, *_ = get_batch(cfg, tokens.load(cfg.data_dir), "val", 0, np.arange(N_TEXTS))  # (B, T)

            # draw a curve for each head
            middle = cfg.block_size - 1  # the place of offset 0
            logits = offset_logits(model, idx, int(layer))[:, middle - FARTHEST : middle + FARTHEST + 1]
            axis.plot(range(-FARTHEST, FARTHEST + 1), logits.T, label=[f"head {head}" for head in range(cfg.n_head)])
            put_zero(axis)
            axis.set_xlabel("key - query [tokens]")
            axis.locator_params(axis="x", integer=True)
        axes[0, 0].set_ylabel("logit, less its mean over keys")
        put_legend(axes.flat)


if __name__ == "__main__":
    main(*sys.argv[1:])
