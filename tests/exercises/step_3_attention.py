"""
Step 3: how does a head of attention learn what to compare? With a pencil first; then python -m tests.exercises 3

Token i compares itself with token j by a_ij = x_i M x_j^T, where x_i and x_j are rows of x, and M is W_qk. Here
attention is causal: token i sees itself and the tokens before it.
"""

import torch


def loss(m, x, targets):
    """A head without W_v: the weighted mean of what token i sees should be its target. x, targets (T, C)"""
    later = torch.ones(len(x), len(x)).triu(1).bool()  # (T, T), True for j > i
    alpha = (x @ m @ x.T).masked_fill(later, -torch.inf).softmax(-1)  # (T, T)
    return (alpha @ x - targets).square().sum() / 2


def gradient_at_zero(x, targets):
    """-> dL/dM (C, C) at M = 0, as a formula: autograd is off. What are the alpha of token i at M = 0?"""
    return None


def two_heads():
    """-> w_q and w_k (2, C, D): the symmetry of W_q W_k^T is near 0 in each head, and 1 in the sum of both heads."""
    return None
