"""
Step 2: do a few rows of a matrix stand out, or a few columns?

A row stands out if its norm (its length) is above the mean of all row norms plus two standard deviations (torch.std).
It counts by how far it is above. Columns are treated alike, with their own threshold. If r is the sum over rows, and c
the sum over columns, the score is (r - c) / (r + c): 1 if only rows stand out, -1 if only columns do. If nothing does,
it is 0. In Eq. 17 of the paper a norm above the threshold counts as a whole. In a large random matrix chance lifts
two rows in a hundred above it, so this can turn the sign.
"""

import torch


def directionality(m):
    """m (n, n), a tensor of torch -> the score, as a number"""
    return None


def wrong_sign():
    """-> a matrix whose columns outweigh its rows, so that the score is below 0, and that Eq. 17 puts above 0"""
    return None
