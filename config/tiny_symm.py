"""
config/tiny.py with the published symmetric start: W_k = W_q, and q, k and v at the scale of the authors' code, which is
PyTorch's default for nn.Linear. To tell start and scale apart, set only --init, or only --qk_std and --v_std.
"""
from config.tiny import *

init = "symmetric"
qk_std = v_std = "linear"
