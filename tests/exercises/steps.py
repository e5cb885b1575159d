"""
Four steps: fill in the functions that return None, and run python -m tests.exercises, or with the number of a step.
"""

import numpy as np
import torch

# ---- Step 1: how symmetric is a matrix? With a pencil first ------------------------------------------------------
#
# Every M is the sum of one symmetric matrix S = S^T and one skew matrix N = -N^T. The size of a matrix is the sum of
# the squares of its entries. The symmetry of M is the size of S less the size of N, divided by the size of M: it is 1
# if M is symmetric, and -1 if M is skew.
#
# With the pencil: what do all products S_ij N_ij add up to? So what is the size of M, if you know the sizes of S and N?
# And what is the symmetry, in entries of M alone?


def parts(m):
    """m (n, n), a tensor of torch -> S and N"""
    return None


def with_symmetry(s):
    """-> a matrix whose symmetry is s, of any n > 1 that you like, for each s from -1 to 1"""
    return None


# ---- Step 2: do a few rows of a matrix stand out, or a few columns? ----------------------------------------------
#
# A row stands out if its norm (its length) is above the mean of all row norms plus two standard deviations (torch.std).
# It counts by how far it is above. Columns are treated alike, with their own threshold. If r is the sum over rows, and
# c the sum over columns, the score is (r - c) / (r + c): 1 if only rows stand out, -1 if only columns do. If nothing
# does, it is 0. In Eq. 17 of the paper a norm above the threshold counts as a whole. In a large random matrix chance
# lifts two rows in a hundred above it, so this can turn the sign.


def directionality(m):
    """m (n, n), a tensor of torch -> the score, as a number"""
    return None


def wrong_sign():
    """-> a matrix whose columns outweigh its rows, so that the score is below 0, and that Eq. 17 puts above 0"""
    return None


# ---- Step 3: how does a head of attention learn what to compare? With a pencil first -----------------------------
#
# Token i compares itself with token j by a_ij = x_i M x_j^T, where x_i and x_j are rows of x, and M is W_qk. Here
# attention is causal: token i sees itself and the tokens before it.


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


# ---- Step 4: write the part of micro.py that moves M -------------------------------------------------------------
#
# Forward, micro.py computes a_ij = x_i M x_j^T / sqrt(C) and alpha = softmax(a), and token i receives sum_j alpha_ij
# v_j. Backward, it first finds dalpha, the gradient of the loss by alpha. What comes next is yours. The checker puts
# your functions into micro.py, moves single weights by a millionth, and looks whether the loss moves as your gradients
# say.


def beta(alpha, dalpha, C):
    """alpha, dalpha (B, T, T), arrays of numpy -> the gradient of the loss by x_i M x_j^T (B, T, T)"""
    return None


def gradient(x, beta):
    """x (B, T, C), beta (B, T, T) -> dL/dM (C, C), over all pairs of tokens of all sequences. x.mT transposes each."""
    return None
