"""
A few lines of validation text, and how a model completes them. It shows what the model has learned.
"""

import numpy as np
import torch

from data.tokens import DataError, open_gpt2

ROWS = 3
MASK_EVERY = 7  # tokens: about the 15 % that BERT predicts


@torch.no_grad()
def sample(model, corpus, predicts_next):
    """
    Three rows of validation text, and how the model completes each of them, as one text of several lines. An encoder
    fills in masked tokens, shown as "_"; a decoder goes on from the first half. Both take the most likely token.
    """
    meta = corpus.meta
    try:
        decode = make_decode(meta)
    except DataError as error:  # no reason for a run to fail at its end
        return f"no sample of text: {error}"
    T = model.cfg.block_size
    model.eval()
    complete = go_on if predicts_next else fill_in
    lines = ["validation text, and how the model completes it:"]
    for start in np.linspace(0, len(corpus.val) - T, ROWS).astype(int):
        row = torch.from_numpy(corpus.val[start : start + T].astype(np.int64))[None]  # (1, T)
        seen, completed = complete(model, row.to(model.tok_emb.weight.device), meta)
        lines += ["", "  " + decode(seen[0].tolist()), "  " + decode(completed[0].tolist())]
    return "\n".join(lines)


def fill_in(model, row, meta):
    """row (1, T) -> the row with every seventh token masked, and the row with the model's guesses there."""
    masked = torch.zeros_like(row, dtype=torch.bool)
    masked[:, MASK_EVERY // 2 :: MASK_EVERY] = True
    seen = torch.where(masked, meta["mask_token"], row)  # (1, T)
    guesses = model(seen)[:, :, : meta["n_vocab"]].argmax(-1)  # (1, T)
    return seen, torch.where(masked, guesses, row)


def go_on(model, row, meta):
    """row (1, T) -> the first half of the row, and that half with the model's own tokens up to T."""
    T = row.shape[1]
    seen = idx = row[:, : T // 2]
    while idx.shape[1] < T:  # one token after the other; for a few tokens no cache of keys is needed
        logits = model(idx)[:, -1, : meta["n_vocab"]]  # (1, n_vocab), of the token after the last
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return seen, idx


def make_decode(meta):
    """A function that turns ids into one line of text. DataError if the files of gpt2 cannot be fetched."""
    if meta["tokenizer"] == "gpt2":
        to_bytes = open_gpt2().decode_single_token_bytes
    else:
        to_bytes = int.to_bytes  # an id below 256 is a byte
    special = {meta["eot_token"]: b" ", meta["mask_token"]: b"_"}

    def decode(ids):
        text = b"".join(special.get(i) or to_bytes(i) for i in ids)
        return " ".join(text.decode(errors="replace").split())
    return decode
