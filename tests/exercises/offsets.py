"""
What heads look for: the mean logit of every head of a layer, by how far the key is from the query.

    python -m tests.exercises.offsets 1 out/tiny out/tiny_decoder    # layer 1 of both -> offsets.png

A head that looks at the token before has its peak at -1. Two heads that mirror each other have each other's curve,
turned round at 0. Softmax does not see what all keys of a query have in common, so the mean over its keys is taken off.

The dashed curve is what positions add in the whole layer: K(d), the mean over i of p_i W_qk p_(i+d)^T. Here p_i is the
mean over texts of what attention reads at place i. It is divided by sqrt(D), as logits are, and less its mean. If W_qk
compares positions symmetrically, K(-d) = K(d). It is drawn also where a mask hides the key.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps

from config import ConfigError, require
from data import expand, tokens
from data.batches import get_batch
from data.drawing import figure, put_legend, put_titles, put_zero
from data.runs.model import open_run

N_TEXTS = 64  # at most so many blocks of validation text, as in training, masks and all
FARTHEST = 8  # offset that is drawn [tokens]


def read_by_attention(model, idx, layer):
    """Returns the input of a layer's attention for idx (B, T): x (B, T, C)."""
    inputs = []
    attn = model.blocks[layer].attn
    hook = attn.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    model.hidden(idx)
    hook.remove()
    return inputs[0]


def mean_by_offset(a):
    """Returns the mean along each diagonal of a (..., T, T), where column - row is 1 - T to T - 1: (..., 2 T - 1)."""
    T = a.shape[-1]
    diagonals = [a.diagonal(offset, -2, -1) for offset in range(1 - T, T)]  # (..., T - |offset|) each
    return torch.stack([diagonal.nanmean(-1) for diagonal in diagonals], -1)


@torch.no_grad()
def kernel(model, idx, layer):
    """Returns K(d), the mean over i of p_i W_qk p_(i+d)^T, at offsets d from 1 - T to T - 1: (2 T - 1,)."""
    attn = model.blocks[layer].attn
    p = read_by_attention(model, idx, layer).mean(0)  # (T, C)
    weights = attn.state_dict()  # where tied heads have a W_k, too
    wqk = weights["q.weight"].T @ weights["k.weight"]  # (C, C), the sum over heads
    return mean_by_offset(p @ wqk @ p.T)


@torch.no_grad()
def offset_logits(model, idx, layer):
    """Returns the mean logits of a layer for idx (B, T), at offsets 1 - T to T - 1 of key from query: (H, 2 T - 1)."""
    # compute its logits again, and let nan stand where no query sees a key
    attn, T = model.blocks[layer].attn, idx.shape[1]
    q, k = attn.queries_and_keys(read_by_attention(model, idx, layer))  # (B, H, T, D) each
    logits = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
    if attn.causal:
        logits = logits.masked_fill(torch.ones(T, T).triu(1) > 0, torch.nan)

    # take the mean over keys off, average over texts, and then along diagonals: key - query is the same on each
    logits = (logits - logits.nanmean(-1, keepdim=True)).nanmean(0)  # (H, T, T)
    return mean_by_offset(logits)


def draw_offsets(layer, folders, title, names):
    """Draws offsets.png, a panel for each run, with its name above."""
    opened = [open_run(folder) for folder in folders]
    for folder, (_, cfg) in zip(folders, opened):
        require(cfg.positions == "learned", f"{folder}: its positions are {cfg.positions}, so they are not in q and k")
        require(0 <= layer < cfg.n_layer, f"{folder} has no layer {layer}: the lowest is 0")

    with figure("offsets.png", 1, len(folders), title=title or f"Mean logit by offset, layer {layer}") as axes:
        put_titles(axes.flat, names or [Path(folder).name.replace("_", " ") for folder in folders])
        for axis, (model, cfg) in zip(axes.flat, opened):
            rows = np.arange(min(N_TEXTS, cfg.batch_size))
            idx, *_ = get_batch(cfg, tokens.load(cfg.data_dir), "val", 0, rows)  # (B, T)

            # draw a curve for each head
            middle = cfg.block_size - 1  # the place of offset 0
            near = slice(middle - FARTHEST, middle + FARTHEST + 1)
            offsets = range(-FARTHEST, FARTHEST + 1)
            logits = offset_logits(model, idx, layer)[:, near]
            for head, row in enumerate(logits):
                colour = colormaps["viridis"](0.7 * head / max(1, cfg.n_head - 1))
                axis.plot(offsets, row, color=colour, label=f"head {head}")

            # and one for the positions of the whole layer
            of_positions = kernel(model, idx, layer) / (cfg.n_embd / cfg.n_head) ** 0.5
            axis.plot(offsets, (of_positions - of_positions.mean())[near], "k--", lw=1,
                      label="K(d), the layer's positions")
            put_zero(axis)
            axis.set_xlabel("key - query [tokens]")
            axis.locator_params(axis="x", integer=True)
        axes[0, 0].set_ylabel("logit, less its mean over keys")
        put_legend(axes.flat)


def main(argv):
    cli = argparse.ArgumentParser(prog="python -m tests.exercises.offsets", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("layer", type=int, help="0 is the lowest")
    cli.add_argument("folders", metavar="RUN", nargs="+", help="the folder of a run, such as out/tiny")
    cli.add_argument("--title", help="of the picture")
    cli.add_argument("--names", nargs="+", metavar="NAME", help="what stands above the panels (the folders)")
    args = cli.parse_args(argv or ["--help"])
    try:
        draw_offsets(args.layer, expand(args.folders), args.title, args.names)
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m tests.exercises.offsets: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
