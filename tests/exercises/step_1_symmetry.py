"""
Step 1: how symmetric is a matrix? With a pencil first; then fill in, and run python -m tests.exercises 1

Every M is the sum of one symmetric matrix S = S^T and one skew matrix N = -N^T. The size of a matrix is the sum of the
squares of its entries. The symmetry of M is the share by which S is the larger: 1 if N = 0, and -1 if S = 0.
"""


def parts(m):
    """m (n, n), a tensor of torch -> S and N"""
    return None


def symmetry(m):
    """-> the same share from M alone. Write the sizes of S and N out in entries of M, and see what cancels."""
    return None


def symmetry_0_trace_1():
    """-> a matrix whose symmetry is 0 and whose trace is 1: a token attends to itself, and the score sees nothing."""
    return None
