"""Between config/tiny.py and BERT-mini: 2 layers of 128 dimensions, heads of 64 as in BERT; 1 or 2 minutes a run."""
from config.bert_mini_cpu import *

n_layer = 2
n_head = 2
n_embd = 128
block_size = 64
max_iters = 900
warmup_iters = 50
eval_interval = 25
score_interval = 50
