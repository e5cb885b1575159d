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
    starts = np.linspace(0, len(corpus.val) - T, ROWS).astype(int)
    rows = np.stack([corpus.val[start : start + T] for start in starts]).astype(np.int64)  # (ROWS, T)
    rows = torch.from_numpy(rows).to(model.tok_emb.weight.device)
    model.eval()
    complete = go_on if predicts_next else fill_in
    heading, seen, completed = complete(model, rows, meta)
    lines = [heading]
    for before, after in zip(seen.tolist(), completed.tolist()):
        lines += ["  " + decode(before), "  " + decode(after), ""]
    return "\n".join(lines).rstrip()


def fill_in(model, rows, meta):
    """rows (B, T) -> a heading, rows with every seventh token masked, and rows with the model's guesses there."""
    masked = torch.zeros_like(rows, dtype=torch.bool)
    masked[:, MASK_EVERY // 2 :: MASK_EVERY] = True
    seen = torch.where(masked, meta["mask_token"], rows)  # (B, T)
    guesses = model(seen)[:, :, : meta["n_vocab"]].argmax(-1)  # (B, T)
    right = (guesses == rows)[masked].float().mean()
    heading = f"masked validation text, and what the model fills in, right in {right:.0%} of the places:"
    return heading, seen, torch.where(masked, guesses, rows)


def go_on(model, rows, meta):
    """rows (B, T) -> a heading, the first half of the rows, and that half with the model's own tokens up to T."""
    T = rows.shape[1]
    seen = rows[:, : max(1, T // 2)]
    idx = seen
    while idx.shape[1] < T:  # one token after the other; for a few tokens no cache of keys is needed
        logits = model(idx)[:, -1, : meta["n_vocab"]]  # (B, n_vocab), of the token after the last
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return f"{seen.shape[1]} tokens of validation text, and how the model goes on:", seen, idx


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
