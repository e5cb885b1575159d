"""
config/small.py with another scale of q, k and v, and nothing else. data/results/README.md says what it saves, where.

x comes from a LayerNorm, so its C entries are about 1. An entry of q or k then has the deviation sqrt(C) std, and the
logit q k^T / sqrt(D) of a random initialisation the deviation C std^2, whatever the size D of a head is. BERT's 0.02
makes this 0.31 at its own C = 768, but 0.05 at C = 128, where an encoder stays on its plateau for longer. Here it is
1/3 at any C. This is the default of nn.Linear, and the scale of the published symmetric initialisation.
"""
from config.small import *

qk_std = v_std = (3 * n_embd) ** -0.5
