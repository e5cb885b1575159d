"""
Step 2: do a few rows of a matrix stand out, or a few columns?

A row stands out if its norm (its length) is above a threshold: the mean of the norms of all rows plus two standard
deviations (torch.std, which divides by n - 1). Let r be the sum of (norm - threshold) of the rows that stand out, and c
the same of the columns. The score is (r - c) / (r + c), and 0 if nothing stands out.

The paper prints another sum, of norm instead of norm - threshold. Fill in both, and see what one heavy column does.
"""


def directionality(m):
    """m (n, n) -> 1 if only rows stand out, -1 if only columns do."""
    return None


def directionality_as_printed(m):
    """m (n, n) -> the same, except that the whole norm of every row or column that stands out is added."""
    return None
