"""
Step 1: how symmetric is a matrix? With a pencil first; then fill in, and run python -m tests.exercises 1

Every M is the sum of one symmetric matrix S = S^T and one skew matrix N = -N^T. The size of a matrix is the sum of the
squares of its entries. The symmetry of M is the size of S less the size of N, divided by the size of M: it is 1 if M is
symmetric, and -1 if M is skew.
"""

import torch


def parts(m):
    """m (n, n), a tensor of torch -> S and N"""
    return None


def symmetry(m):
    """-> the symmetry, without S and N. Write the sizes of both out in entries of M, and see what cancels."""
    return None


def symmetry_0_trace_1():
    """-> a matrix whose symmetry is 0 and whose trace is 1: tokens favour themselves, and the score does not see it."""
    return None
