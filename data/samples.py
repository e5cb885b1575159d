"""
Shows how a trained model completes text. A decoder goes on with it. An encoder fills in masked tokens, shown as ░ (or
as ? where a terminal lacks this sign). Both take the most likely token. train.py ends with three rows of validation
text. In a prompt of your own _ is a masked token:

    python -m data.samples out/tiny --prompt="import _ as np"
"""

import argparse
import sys

import numpy as np
import torch

from config import prepare_streams
from data.results.checkpoints import RunError, open_run
from data.tokens import DataError, make_decode, make_encode

ROWS = 3
MASK_EVERY = 7  # tokens: about the 15 % that BERT predicts


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
        seen = corpus.val[start : start + T].astype(np.int64)  # (T,)
        if predicts_next:
            seen = seen[: max(1, T // 2)]
        else:
            seen[MASK_EVERY // 2 :: MASK_EVERY] = meta["mask_token"]
        completed = complete(model, seen, meta, predicts_next, T - T // 2)
        before = " ".join(decode(seen.tolist()).split())  # in one line
        after = " ".join(decode(completed).split())
        shown.append(f"  seen:  {before}\n  model: {after}")
    return "validation text, and how the model completes it:\n" + "\n\n".join(shown)


@torch.no_grad()
def complete(model, ids, meta, predicts_next, n):
    """
    Returns the list of ids (T,) and n more tokens, each the most likely one after those before it. If the model fills
    in masks, returns ids with its guesses in place of the masks.
    """
    idx = torch.as_tensor(ids, device=model.tok_emb.weight.device)[None]  # (1, T)
    if not predicts_next:
        guesses = model(idx)[:, :, : meta["n_vocab"]].argmax(-1)  # (1, T)
        return torch.where(idx == meta["mask_token"], guesses, idx)[0].tolist()
    for _ in range(n):  # without a cache of keys: they are a few
        logits = model(idx[:, -model.cfg.block_size :])[:, -1, : meta["n_vocab"]]  # (1, n_vocab), of the next token
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return idx[0].tolist()


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.samples", description="Complete a text with the model of a run.")
    cli.add_argument("run", help="the folder of a run, such as out/tiny")
    cli.add_argument("--prompt", required=True, help="a text: a decoder goes on with it, an encoder fills in every _")
    args = cli.parse_args(argv)
    prepare_streams()
    try:
        model, cfg, meta = open_run(args.run)
        encode, decode = make_encode(meta), make_decode(meta)
    except (DataError, RunError) as error:
        sys.exit(f"error: {error}")
    prompt = args.prompt.encode("utf-8", "surrogateescape").decode(errors="replace")  # a terminal may send any bytes
    pieces = [prompt] if cfg.predicts_next else prompt.split("_")
    ids = encode(pieces[0]).tolist()
    for piece in pieces[1:]:
        ids += [meta["mask_token"], *encode(piece).tolist()]
    if not ids or (len(ids) > cfg.block_size and not cfg.predicts_next):
        sys.exit(f"error: the prompt has {len(ids)} tokens, and this model sees 1 to {cfg.block_size}")
    print(decode(complete(model, ids, meta, cfg.predicts_next, cfg.block_size)))


if __name__ == "__main__":
    main()
