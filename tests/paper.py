"""
What the tests of the paper share: test_paper.py, test_paper_training.py and test_paper_scores.py.

B sequences, T tokens (the paper's N), C = n_embd (its d), H heads, D = C // H, V tokens in the vocabulary, S samples.
x (T, C) has x_i as rows; in beta_ij x_i x_j^T, i is the query (predicted) and j the key (its context).
"""

import argparse
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from data.batches import mask_tokens
from model import ModelConfig, Transformer, rows_at

MASK = 257
TEXT = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # real text: a token is a byte


@pytest.fixture(autouse=True)
def float64_and_a_seed():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def exact(a, b):
    return torch.allclose(a, b, atol=1e-10, rtol=1e-10)


def assert_mean(samples, expected):
    """The mean of samples (S, ...) is the expected one, within five standard errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - expected).abs() < 5 * error).all(), (samples.mean(0), expected, error)


def fresh(T, C, H, causal=False, n_layer=1):
    """A model as train.py makes it, of bytes and a mask token."""
    return Transformer(ModelConfig(258, T, n_layer, H, C, dropout=0.0, attn_dropout=0.0, causal=causal))


def batch_of(causal, B, T):
    """Real text, as train.py gives it to a model: idx (B, T), targets (B, T or K), of an encoder positions (B, K)."""
    begin = torch.randint(len(TEXT) - T, (B, 1))
    idx = TEXT[begin + torch.arange(T + 1)]  # (B, T + 1)
    if causal:
        return idx[:, :-1], idx[:, 1:]
    K = round(0.15 * T)
    return mask_tokens(idx[:, :-1], torch.rand(B, T + 2 * K), K, {"mask_token": MASK, "n_vocab": 256}, 0.8, 0.1)


def watch(model, batch):
    """
    The backward pass of the model's own loss -> its attention layers, with their comparisons in sight: x_i is attn.x
    (B, T, C), beta_ij is attn.scores.grad (B, H, T, T).
    """
    idx, targets, *positions = batch
    layers = [block.attn for block in model.blocks]
    coming = iter(layers)

    def attention(q, k, v, is_causal, **_):
        """What torch's scaled_dot_product_attention does, q, k and v (B, H, T, D)."""
        scores = next(coming).scores = q @ k.mT  # (B, H, T, T), x_i^T W_qk x_j
        scores.retain_grad()
        logits = scores / q.shape[-1] ** 0.5
        if is_causal:
            logits = logits + torch.full_like(logits[0, 0], -torch.inf).triu(1)  # no token sees a later one
        return logits.softmax(-1) @ v

    for attn in layers:
        attn.register_forward_pre_hook(lambda attn, args: setattr(attn, "x", args[0].detach()))
    with mock.patch.object(F, "scaled_dot_product_attention", attention):
        x = model.hidden(idx)  # (B, T, C): every row, where the model itself leaves out those that nothing predicts
    if positions:
        x = rows_at(x, positions[0])  # (B, K, C)
    logits = F.linear(model.head(x), model.tok_emb.weight, model.head.bias)  # (B, T or K, V)
    model.zero_grad()
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return layers
