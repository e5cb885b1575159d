"""
How a model completes text: a decoder goes on with it, an encoder fills in masked tokens, shown as "_". Both take the
most likely token. train.py ends with three rows of validation text; a prompt of your own goes to a run by

    python -m data.samples out/tiny --prompt="import _ as np"
"""

import argparse
import pickle
import sys
from pathlib import Path

import numpy as np
import torch

from config import TrainConfig
from config.processes import prepare_streams
from data.encode import make_decode, make_encode
from data.tokens import TOKENIZERS, DataError

ROWS = 3
MASK_EVERY = 7  # tokens: about the 15 % that BERT predicts


@torch.no_grad()
def sample(model, corpus, predicts_next):
    """Three rows of validation text as the model sees them, and as it completes them: one text of several lines."""
    meta = corpus.meta
    try:
        decode = make_decode(meta)
    except DataError as error:  # no reason for a run to fail at its end
        return f"no sample of text: {error}"
    T = model.cfg.block_size
    model.eval()
    lines = ["validation text, and how the model completes it:"]
    for start in np.linspace(0, len(corpus.val) - T, ROWS).astype(int):
        row = torch.from_numpy(corpus.val[start : start + T].astype(np.int64))[None]  # (1, T)
        row = row.to(model.tok_emb.weight.device)
        if predicts_next:
            seen = row[:, : max(1, T // 2)]  # (1, T / 2)
            completed = go_on(model, seen, T - T // 2, meta)  # (1, T)
        else:
            seen = row.clone()
            seen[:, min(MASK_EVERY // 2, T - 1) :: MASK_EVERY] = meta["mask_token"]
            completed = fill_in(model, seen, meta)
        for label, ids in ("seen: ", seen), ("model:", completed):
            lines.append(f"  {label} " + " ".join(decode(ids[0].tolist()).split()))
        lines.append("")
    return "\n".join(lines[:-1])


def fill_in(model, seen, meta):
    """seen (1, T) -> the same with the model's guesses in place of the mask token."""
    guesses = model(seen)[:, :, : meta["n_vocab"]].argmax(-1)  # (1, T)
    return torch.where(seen == meta["mask_token"], guesses, seen)


def go_on(model, seen, n, meta):
    """seen (1, T) -> the same with n tokens more, of which each follows from block_size tokens before it at most."""
    idx = seen
    for _ in range(n):  # for a few tokens no cache of keys is needed
        logits = model(idx[:, -model.cfg.block_size :])[:, -1, : meta["n_vocab"]]  # (1, n_vocab), of the next token
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return idx


# ---- a prompt of one's own ---------------------------------------------------------------------------------------


@torch.no_grad()
def complete(folder, prompt):
    """How the model of a run completes a prompt, as a text. DataError: it cannot."""
    import train  # here, because it imports this file

    path = Path(folder, "ckpt.pt")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        cfg = TrainConfig(**state["config"] | dict(init_from="scratch"))
        meta = state["data"] | TOKENIZERS[state["data"]["tokenizer"]]
        model = train.build_model(cfg, meta).eval()
        model.load_state_dict(state["model"])
    except (OSError, EOFError, pickle.UnpicklingError, RuntimeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not there, or no checkpoint of train.py that can be read") from error
    encode, decode = make_encode(meta), make_decode(meta)
    pieces = [prompt] if cfg.predicts_next else prompt.split("_")
    ids = encode(pieces[0]).tolist()
    for piece in pieces[1:]:
        ids += [meta["mask_token"], *encode(piece).tolist()]
    seen = torch.tensor([ids], dtype=torch.long)  # (1, T)
    if not ids or (len(pieces) == 1 and not cfg.predicts_next):
        raise DataError("nothing to complete: a decoder goes on with a prompt, an encoder fills in every _ of it")
    if len(ids) > cfg.block_size and not cfg.predicts_next:
        raise DataError(f"a prompt of {len(ids)} tokens: an encoder sees block_size = {cfg.block_size} at most")
    completed = go_on(model, seen, cfg.block_size, meta) if cfg.predicts_next else fill_in(model, seen, meta)
    return decode(completed[0].tolist())


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.samples", description="Complete a text with the model of a run.")
    cli.add_argument("run", help="its folder, such as out/tiny")
    cli.add_argument("--prompt", required=True, help="a decoder goes on with it, an encoder fills in every _ of it")
    args = cli.parse_args(argv)
    prepare_streams()
    try:
        print(complete(args.run, args.prompt.encode("utf-8", "replace").decode()))
    except DataError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
