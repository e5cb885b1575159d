"""
What the tests of the paper share: test_paper.py, test_paper_training.py and test_paper_scores.py.

B sequences, T tokens (the paper's N), C = n_embd (its d), H heads, D = C // H, V tokens in the vocabulary, S samples.
x (T, C) has x_i as rows; in beta_ij x_i x_j^T, i is the query (predicted) and j the key (its context).
"""

import os
from pathlib import Path

import pytest
import torch

from data.batches import mask_tokens
from model import ModelConfig, Transformer
from tests.theorem import head_factors, pair_sum, watch  # noqa: F401

MASK = 257
LIBRARY = Path(os.__file__).parent
TEXT = b"".join((LIBRARY / name).read_bytes() for name in ["argparse.py", "ast.py", "difflib.py"])  # real text
TEXT = torch.tensor(list(TEXT))  # a token is a byte


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
    return mask_tokens(idx[:, :-1], torch.rand(B, T + 2 * K), K, {"mask_token": MASK, "n_vocab": 256})
