"""
Step 1: how symmetric is a matrix? With a pencil first; then fill in, and run python -m tests.exercises 1

Every M is the sum of one symmetric matrix S = S^T and one skew matrix N = -N^T. The size of a matrix is the sum of the
squares of its entries. The symmetry of M is the size of S less the size of N, divided by the size of M: it is 1 if M is
symmetric, and -1 if M is skew.

With the pencil: what do all products S_ij N_ij add up to? So what is the size of M, in those of S and N? And what is
the symmetry, in entries of M alone?
"""

import torch


def parts(m):
    """m (n, n), a tensor of torch -> S and N"""
    return None


def with_symmetry(s):
    """-> a matrix whose symmetry is s, of any n > 1 that you like, for each s from -1 to 1"""
    return None
