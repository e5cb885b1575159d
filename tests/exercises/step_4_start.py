"""
Step 4: an initialization of your own, and what it is worth.

A start takes the random W_q and W_k of the heads of a layer, w_q and w_k (H, C, D), and returns another pair (init.py
has seven). The W_qk of head h is w_q[h] @ w_k[h].T. Draw what you need with torch.randn(..., generator=generator).

Then copy it to init.py, and name it in STARTS there and in config: python train.py --init=NAME trains with it.
"""

NAME = "mine"  # in STARTS


def start(w_q, w_k, generator):
    """-> w_q and w_k (H, C, D)"""
    return None
