"""
Shows how a trained model completes text. A decoder goes on with it, and an encoder fills in masked tokens, which are
shown as ░ (or as ? where a terminal lacks this sign). Both take the most likely token. train.py ends with three rows of
validation text. In a prompt of your own _ stands for a masked token:

    python -m data.samples out/tiny --prompt="import _ as np"
"""

import argparse
import sys

import numpy as np
import torch

from config.processes import prepare_streams
from data.encode import make_decode, make_encode
from data.tokens import DataError
from data.trained import RunError, open_run

ROWS = 3
MASK_EVERY = 7  # tokens: about the 15 % that BERT predicts


@torch.no_grad()
def sample(model, corpus, predicts_next):
    """Returns three rows of validation text, as the model sees them and as it completes them, in one text."""
    meta = corpus.meta
    try:
        decode = make_decode(meta)
    except DataError as error:  # no reason for a run to fail at its end
        return f"There is no sample of text: {error}"
    model.eval()
    T = model.cfg.block_size
    shown = []
    for start in np.linspace(0, len(corpus.val) - T, ROWS).astype(int):
        seen = torch.from_numpy(corpus.val[start : start + T].astype(np.int64))[None]  # (1, T)
        if predicts_next:
            seen = seen[:, : max(1, T // 2)]  # (1, T / 2)
        else:
            seen[:, MASK_EVERY // 2 :: MASK_EVERY] = meta["mask_token"]
        completed = complete(model, seen.to(model.tok_emb.weight.device), meta, predicts_next, T - T // 2)  # (1, T)
        before, after = (" ".join(decode(ids[0].tolist()).split()) for ids in (seen, completed))
        shown.append(f"  seen:  {before}\n  model: {after}")
    return "validation text, and how the model completes it:\n" + "\n\n".join(shown)


def complete(model, idx, meta, predicts_next, n):
    """Returns idx (1, T) with n more tokens or, if the model fills in masks, with its guesses in their place."""
    if not predicts_next:
        guesses = model(idx)[:, :, : meta["n_vocab"]].argmax(-1)  # (1, T)
        return torch.where(idx == meta["mask_token"], guesses, idx)
    for _ in range(n):  # without a cache of keys: they are a few
        logits = model(idx[:, -model.cfg.block_size :])[:, -1, : meta["n_vocab"]]  # (1, n_vocab), of the next token
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return idx


@torch.no_grad()
def complete_text(folder, prompt):
    """Returns how the model of a run completes a prompt. Raises DataError if there is nothing to complete."""
    model, cfg, meta = open_run(folder)
    encode, decode = make_encode(meta), make_decode(meta)
    # The mask token stands before every piece but the first.
    pieces = [prompt] if cfg.predicts_next else prompt.split("_")
    ids = [i for piece in pieces for i in (meta["mask_token"], *encode(piece).tolist())][1:]
    if not ids or not (cfg.predicts_next or len(pieces) > 1):
        raise DataError("there is nothing to complete: a decoder goes on with a prompt, an encoder fills in every _")
    if len(ids) > cfg.block_size and not cfg.predicts_next:
        raise DataError(f"the prompt has {len(ids)} tokens, and this encoder sees block_size = {cfg.block_size}")
    completed = complete(model, torch.tensor([ids]), meta, cfg.predicts_next, cfg.block_size)
    return decode(completed[0].tolist())


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.samples", description="Complete a text with the model of a run.")
    cli.add_argument("run", help="the folder of a run, such as out/tiny")
    cli.add_argument("--prompt", required=True, help="a text: a decoder goes on with it, an encoder fills in every _")
    args = cli.parse_args(argv)
    prepare_streams()
    try:
        print(complete_text(args.run, args.prompt.encode("utf-8", "replace").decode()))
    except (DataError, RunError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
