"""
Step 4: write the part of micro.py that moves M. Fill in, and run python -m tests.exercises 4

Forward, micro.py computes a_ij = x_i M x_j^T / sqrt(C) and alpha = softmax(a), and token i receives sum_j alpha_ij v_j.
Backward, it first finds dalpha, the gradient of the loss by alpha. What comes next is yours. The checker puts your
functions into micro.py, moves single weights by a millionth, and looks whether the loss moves as your gradients say.

The last function goes further than micro.py: in a real model M is a product, W_q W_k^T, and these two learn.
"""

import numpy as np


def beta(alpha, dalpha, C):
    """alpha, dalpha (B, T, T), arrays of numpy -> the gradient of the loss by x_i M x_j^T (B, T, T)"""
    return None


def gradient(x, beta):
    """x (B, T, C), beta (B, T, T) -> dL/dM (C, C), over all pairs of tokens of all sequences. x.mT transposes each."""
    return None


def gradients_of_factors(g, w_q, w_k):
    """g (C, C) is dL/dM, and M = w_q @ w_k.T, with w_q and w_k (C, D) -> dL/dw_q and dL/dw_k"""
    return None
