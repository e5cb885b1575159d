"""
config/small.py with the start to use: nothing but a scale. data/results/README.md says what it saves, and where.

x comes from a LayerNorm, so its C entries are about 1. An entry of q or k then has the deviation sqrt(C) std, and the
logit q k^T / sqrt(D) of a random start the deviation C std^2, whatever the size D of a head is. At BERT's 0.02 this is
0.05 for C = 128: attention is nearly uniform, and a small encoder stays on a plateau for long. Here it is 1.
"""
from config.small import *

qk_std = n_embd**-0.5  # logits of deviation 1
v_std = (3 * n_embd) ** -0.5  # that of nn.Linear, as in the published symmetric start
