"""
What a run has learned: its scores, and how its model completes text, with the most likely tokens. A decoder goes on
with it. An encoder fills in masked tokens, shown as ░. train.py ends with a table of scores and three lines of
validation text.

    model, cfg, meta = open_run("out/tiny")
"""

from pathlib import Path

import numpy as np
import pandas
import tiktoken
import torch

from config import TrainConfig, as_now
from data.names import fixed
from data.tokens import TOKENIZERS
from model import Transformer

MASK = "░"  # a masked token in a text. Code is full of underscores
MASK_EVERY = 7  # tokens: about the 15 % that BERT predicts


def open_run(folder):
    """
    Returns the model of a run at its last checkpoint, its TrainConfig, and the meta of its tokens. Raises ConfigError
    if the code cannot do this run.
    """
    path = Path(folder, "ckpt.pt")
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    cfg = TrainConfig(**as_now(checkpoint["config"], path, only_known=True))
    meta = checkpoint["data"] | TOKENIZERS[checkpoint["data"]["tokenizer"]]
    model = Transformer(cfg.of_model(meta["vocab_size"])).eval()
    model.load_state_dict(checkpoint["model"])
    return model, cfg, meta


def table_of_ends(arm, limits):
    """
    Returns the first and last scores of every layer, and the last loss, as a text. arm: Runs of one seed. limits: of
    each layer, what the symmetry of 95 % of random matrices is below; none in a wide model.
    """
    ends = []
    for score in "symmetry", "heads", "directionality", "positions":
        layers = arm.layers(score)  # (S, L)
        if len(layers):
            ends.append(layers.iloc[[0, -1]].set_axis([f"{score}: start", "end"]).T.reset_index(drop=True))  # (L, 2)
        if score == "symmetry":
            chance = pandas.DataFrame({"by chance": arm.layers("chance").iloc[-1].to_numpy()})
            if limits:
                chance["95 % below"] = limits
                chance["beyond"] = ["yes" if end > limit else "no" for end, limit in zip(ends[0]["end"], limits)]
            ends.append(chance)
    table = pandas.concat(ends, axis="columns").rename_axis(columns="layer")
    scores = table.to_string(float_format=lambda score: fixed(score, 2))
    return f"{scores}\nvalidation loss {arm.at_end('loss').item():.4f} nats/token"


def make_decode(meta):
    """Returns a function that turns a list of ids into a text. A space ends a document, MASK is a masked token."""
    special = {meta["eot_token"]: b" ", meta["mask_token"]: MASK.encode()}
    if meta["tokenizer"] == "bytes":
        to_bytes = lambda i: bytes([i])
    else:
        to_bytes = tiktoken.get_encoding(meta["tokenizer"]).decode_single_token_bytes
    return lambda ids: b"".join(special.get(i) or to_bytes(i) for i in ids).decode(errors="replace")


@torch.no_grad()
def complete(model, ids, meta, predicts_next, n):
    """Returns the list ids (T,) and n more tokens, or, if the model fills in masks, ids with its guesses for them."""
    idx = torch.tensor([ids], device=model.tok_emb.weight.device)  # (1, T)
    if not predicts_next:
        guesses = model(idx)[:, :, : meta["n_vocab"]].argmax(-1)  # (1, T)
        return torch.where(idx == meta["mask_token"], guesses, idx)[0].tolist()
    for _ in range(n):  # without a cache of keys: they are a few
        logits = model(idx[:, -model.cfg.block_size :])[:, -1, : meta["n_vocab"]]  # (1, n_vocab), of the next token
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    return idx[0].tolist()


def sample(model, corpus, predicts_next):
    """Returns three lines of at most 100 characters, of validation text and how it is completed, below a heading."""
    meta, T = corpus.meta, model.cfg.block_size
    marked = [max(1, T // 2)] if predicts_next else np.arange(MASK_EVERY // 2, T, MASK_EVERY)
    try:
        decode = make_decode(meta)
    except OSError as error:  # no network, which is no reason for a run to fail at its end
        return f"no sample of text: {error}"
    model.eval()
    lines = ["validation text, and after each ░ what the model makes of it:"]
    for start in np.linspace(0, len(corpus.val) - T, 3).astype(int):
        ids = np.array(corpus.val[start : start + T])
        if predicts_next:
            ids = ids[: marked[0]]
        else:
            ids[marked] = meta["mask_token"]
        completed = complete(model, ids.tolist(), meta, predicts_next, n=50)
        completed = np.insert(completed, marked, meta["mask_token"]).tolist()  # shown as ░
        text = " ".join(decode(completed).split())  # in one line
        lines.append(text[max(0, text.find(MASK) - 50) :][:100])
    return "\n".join(lines)
