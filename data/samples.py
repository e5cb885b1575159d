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
    starts = np.linspace(0, len(corpus.val) - T, ROWS).astype(np.int64)
    rows = torch.from_numpy(corpus.val.rows(starts, T)).to(model.tok_emb.weight.device)  # (ROWS, T)
    model.eval()
    if predicts_next:
        n_seen = max(1, T // 2)
        seen = rows[:, :n_seen]
        completed = go_on(model, seen, T, meta["n_vocab"])
        heading = f"{n_seen} tokens of validation text, and how the model goes on:"
    else:
        seen, completed = fill_in(model, rows, meta)
        masked = seen == meta["mask_token"]
        right = (completed == rows)[masked].float().mean()
        heading = f"masked validation text, and what the model fills in, right in {right:.0%} of the places:"
    lines = [heading]
    for before, after in zip(seen.tolist(), completed.tolist()):
        lines += ["  " + decode(before), "  " + decode(after), ""]
    return "\n".join(lines).rstrip()


def fill_in(model, rows, meta):
    """rows (B, T) -> rows with every seventh token masked, and rows with the model's guesses there, (B, T) each."""
    masked = torch.zeros_like(rows, dtype=torch.bool)
    first = min(MASK_EVERY // 2, rows.shape[1] - 1)  # a row may be shorter than that
    masked[:, first::MASK_EVERY] = True
    seen = torch.where(masked, meta["mask_token"], rows)
    logits = model(seen)[:, :, : meta["n_vocab"]]  # (B, T, n_vocab)
    return seen, torch.where(masked, logits.argmax(-1), rows)


def go_on(model, idx, length, n_vocab):
    """idx (B, n) -> (B, length). Add one token after the other; for a few tokens no cache of keys is needed."""
    while idx.shape[1] < length:
        logits = model(idx)[:, -1, :n_vocab]  # (B, n_vocab), of the token after the last
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return idx


def make_decode(meta):
    """A function that turns ids into one line of text. DataError if the files of gpt2 cannot be fetched."""
    if meta["tokenizer"] == "gpt2":
        to_bytes = open_gpt2().decode_single_token_bytes
    else:
        def to_bytes(i):
            return bytes([i])

    special = {meta["eot_token"]: b" ", meta["mask_token"]: b"_"}

    def decode(ids):
        text = b"".join(special[i] if i in special else to_bytes(i) for i in ids)
        return " ".join(text.decode(errors="replace").split())
    return decode
