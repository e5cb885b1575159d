"""
Step 4: write the part of micro.py that moves M. Fill in, and run python -m tests.exercises 4

Forward, micro.py computes a_ij = x_i M x_j^T / sqrt(C) and alpha = softmax(a), and token i receives sum_j alpha_ij v_j.
Backward, it first finds dalpha, the gradient of the loss by alpha. What comes next is yours. The checker puts your
functions into micro.py, moves single weights by a millionth, and looks whether the loss moves as your gradients say.
"""

import numpy as np


def beta(alpha, dalpha, C):
    """alpha, dalpha (B, T, T), arrays of numpy -> the gradient of the loss by x_i M x_j^T (B, T, T)"""
    return None


def gradient(x, beta):
    """x (B, T, C), beta (B, T, T) -> dL/dM (C, C), over all pairs of tokens of all sequences. x.mT transposes each."""
    return None
