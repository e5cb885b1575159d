"""
Step 3: one head of attention, and its W_qk.

T tokens are the rows of x (T, C). A head has W_q, W_k and W_v, (C, D) each. Token i compares itself with token j by the
product of its query, row i of x W_q, and the key of j, row j of x W_k, divided by sqrt(D). A softmax over j makes
weights of these, and the head returns the weighted means of the rows of x W_v.
"""


def head(x, w_q, w_k, w_v):
    """-> what the head returns, (T, D)."""
    return None


def wqk(w_q, w_k):
    """-> the one matrix M (C, C) with x_i^T M x_j = the product of the query of i and the key of j."""
    return None


def rotated(w_q, w_k, r):
    """r (D, D) is a rotation, r r^T = I -> another W_q and W_k, with which the head returns the same."""
    return None
