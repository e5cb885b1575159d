"""
config/bert_mini.py with the published symmetric start: W_k = W_q, and q, k and v at the scale of the authors' code,
PyTorch's default for nn.Linear. To tell start and scale apart, set --init or --qk_std and --v_std alone.
"""
from config.bert_mini import *

init = "symmetric"
qk_std = v_std = (3 * n_embd) ** -0.5
