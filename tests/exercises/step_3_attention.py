"""
Step 3: how does a head of attention learn what to compare? With a pencil first.

Token i compares itself with token j by a_ij = x_i M x_j^T, where x_i and x_j are rows of x, and M is W_qk.
"""

import torch


def loss(m, x, targets):
    """A head without W_v: the weighted mean of all x_j should be the target of token i. x, targets (T, C)."""
    alpha = torch.softmax(x @ m @ x.T, dim=-1)  # (T, T)
    return (alpha @ x - targets).square().sum() / 2


def gradient_at_zero(x, targets):
    """-> dL/dM (C, C) at M = 0, as a formula: autograd is off. At M = 0 all alpha are 1/T."""
    return None


def two_heads():
    """-> w_q and w_k (2, C, D): the symmetry of W_q W_k^T is near 0 in each head, and 1 in the sum of both heads."""
    return None
