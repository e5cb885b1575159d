"""
config/small.py with the start to use: nothing but a scale. data/results/README.md says what it saves, and where.

x comes from a LayerNorm, so its C entries are about 1. An entry of q or k then has the deviation sqrt(C) std, and the
logit q k^T / sqrt(D) of a random start the deviation C std^2, whatever the size D of a head is. BERT's 0.02 makes this
0.31 at its own C = 768, but 0.05 at C = 128: attention is then nearly uniform, and a small encoder stays on a plateau
for long. Here it is 1/3 at any C. This is the default of nn.Linear, and the scale of the published symmetric start.
"""
from config.small import *

qk_std = v_std = (3 * n_embd) ** -0.5
