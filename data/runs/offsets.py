"""
What heads look for: the mean logit of every head of a layer, by how far the key is from the query.

    python -m data.runs.offsets out/tiny out/tiny_decoder --layer 1 --plot offsets.png

A head that looks at the token before has its peak at -1. Two heads that mirror each other have each other's curve,
turned round at 0. Softmax does not see what all keys of a query have in common, so the mean over its keys is taken off.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from config import ConfigError, require
from data import tokens
from data.batches import get_batch
from data.drawing import figure, put_legend, put_titles, put_zero
from data.samples import open_run

N_TEXTS = 64  # blocks of validation text
FARTHEST = 8  # offset that is drawn [tokens]


@torch.no_grad()
def offset_logits(model, idx, layer):
    """Returns the mean logits of a layer for idx (B, T), at offsets 1 - T to T - 1 of key from query: (H, 2 T - 1)."""
    attn, inputs, T = model.blocks[layer].attn, [], idx.shape[1]
    hook = attn.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    model.hidden(idx)
    hook.remove()
    x = inputs[0]  # (B, T, C)
    q, k = attn.split_heads(attn.q(x)), attn.split_heads(attn.k(x))  # (B, H, T, D) each
    logits = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
    if attn.causal:
        logits = logits.masked_fill(torch.ones(T, T).triu(1) > 0, torch.nan)  # no query sees a later key
    logits = (logits - logits.nanmean(-1, keepdim=True)).nanmean(0)  # (H, T, T)
    diagonals = [logits.diagonal(offset, -2, -1) for offset in range(1 - T, T)]  # of each offset (H, T - |offset|)
    return torch.stack([diagonal.nanmean(-1) for diagonal in diagonals], -1)


def draw(folders, layer, path):
    """Draws a panel for each run, with a line for each head, on validation text as it was trained on, masks and all."""
    with figure(path, 1, len(folders), title=f"Mean logit by offset, layer {layer}") as axes:
        put_titles(axes.flat, [Path(folder).name.replace("_", " ") for folder in folders])
        for axis, folder in zip(axes.flat, folders):
            model, cfg, _ = open_run(folder)
            require(cfg.positions == "learned", f"{folder}: {cfg.positions} positions are not in q and k")
            require(layer < cfg.n_layer, f"{folder} has no layer {layer}: there are 0 to {cfg.n_layer - 1}")
            rows = np.arange(min(N_TEXTS, cfg.batch_size))
            idx, *_ = get_batch(cfg, tokens.load(cfg.data_dir), "val", 0, rows)  # (B, T)
            n = min(FARTHEST, cfg.block_size - 1)
            middle = cfg.block_size - 1  # where offset 0 is
            logits = offset_logits(model, idx, layer)[:, middle - n : middle + n + 1]  # (H, 2 n + 1)
            axis.plot(range(-n, n + 1), logits.T, label=[f"head {head}" for head in range(cfg.n_head)])
            put_zero(axis)
            axis.set_xlabel("key - query [tokens]")
            axis.locator_params(axis="x", integer=True)
        axes[0, 0].set_ylabel("logit, less its mean over keys")
        put_legend(axes.flat)


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.runs.offsets", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("runs", nargs="+", metavar="DIR", help="folders of runs, at most four")
    cli.add_argument("--layer", type=int, default=0, help="from 0 (0)")
    cli.add_argument("--plot", metavar="FILE.png", required=True, help="the picture")
    args = cli.parse_args(argv)
    try:
        draw(args.runs, args.layer, args.plot)
    except (ConfigError, tokens.DataError, OSError) as e:
        sys.exit(f"python -m data.runs.offsets: {e}")


if __name__ == "__main__":
    main()
