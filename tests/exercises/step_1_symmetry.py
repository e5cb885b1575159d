"""
Step 1: how symmetric is a matrix?

Every square matrix is the sum of a symmetric and a skew part, S = (M + M^T) / 2 and N = (M - M^T) / 2. The score
compares their sizes: (|S|^2 - |N|^2) / |M|^2, where |M|^2 is the sum of the squares of all entries.

Fill in the function, then ask: python -m tests.exercises 1
"""


def symmetry(m):
    """m (n, n), a tensor of torch -> 1 if M = M^T, -1 if M = -M^T, about 0 if M is random."""
    return None
