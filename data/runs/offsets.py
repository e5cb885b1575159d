"""
What heads look for: the mean logit of every head of a layer, by how far the key is from the query.

    python -m data.runs.offsets out/tiny out/tiny_decoder --layer 1 --plot offsets.png

A head that looks at the token before has its peak at -1. Two heads that mirror each other have each other's curve,
turned round at 0. Softmax does not see what all keys of a query have in common, so the mean over its keys is taken off.
"""

import argparse
import sys

import numpy as np
import torch

from config import ConfigError, require
from data import tokens
from data.batches import get_batch
from data.drawing import figure, put_legend, put_titles, put_zero
from data.samples import open_run
from model import rotate

N_TEXTS = 64  # blocks of validation text


@torch.no_grad()
def offset_logits(model, idx, layer):
    """Returns the mean logits of a layer for idx (B, T), at offsets 1 - T to T - 1 of key from query: (H, 2 T - 1)."""
    attn, inputs = model.blocks[layer].attn, []
    hook = attn.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    model.hidden(idx)
    hook.remove()
    x = inputs[0]  # (B, T, C)
    T = x.shape[1]
    q, k = attn.split_heads(attn.q(x)), attn.split_heads(attn.k(x))  # (B, H, T, D) each
    if attn.rotary:
        token_at = torch.arange(T)[None]  # (1, T)
        q, k = rotate(q, token_at), rotate(k, token_at)
    logits = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
    if attn.causal:
        logits = logits.masked_fill(torch.ones(T, T).triu(1) > 0, torch.nan)  # no query sees a later key
    logits = (logits - logits.nanmean(-1, keepdim=True)).nanmean(0)  # (H, T, T)
    diagonals = [logits.diagonal(offset, -2, -1) for offset in range(1 - T, T)]  # of each offset (H, T - |offset|)
    return torch.stack([diagonal.nanmean(-1) for diagonal in diagonals], -1)


def of_run(folder, layer):
    """Returns offset_logits of the model of a run, on validation text as it was trained on, masked tokens among it."""
    model, cfg, _ = open_run(folder)
    require(cfg.positions != "untied", f"{folder}: untied positions add logits of their own")
    require(layer < cfg.n_layer, f"{folder} has no layer {layer}: there are 0 to {cfg.n_layer - 1}")
    idx, *_ = get_batch(cfg, tokens.load(cfg.data_dir), "val", 0, np.arange(min(N_TEXTS, cfg.batch_size)))
    return offset_logits(model, idx, layer)


def draw(folders, layer, path, farthest=8):
    """Draws a panel for each run, with a line for each head, up to the farthest offset."""
    with figure(path, 1, len(folders), title=f"Mean logit by offset, layer {layer}") as axes:
        put_titles(axes.flat, [folder.rstrip("/").split("/")[-1].replace("_", " ") for folder in folders])
        for axis, folder in zip(axes.flat, folders):
            logits = of_run(folder, layer)  # (H, 2 T - 1)
            T = (logits.shape[1] + 1) // 2
            n = min(farthest, T - 1)
            for head, of_head in enumerate(logits[:, T - 1 - n : T + n]):
                axis.plot(range(-n, n + 1), of_head, label=f"head {head}")
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
