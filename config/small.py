"""
Between config/tiny.py and BERT-mini: 2 layers of 128 dimensions, heads of 64 as in BERT; 1 or 2 minutes a run.
It is compiled: without a C++ compiler it ends in an error of torch, and --compile=off runs it as it is.
"""
n_layer = 2
n_head = 2
n_embd = 128
block_size = 64
dropout = attn_dropout = 0.0  # as in config/tiny.py
batch_size = 32
max_iters = 900
warmup_iters = 50
learning_rate = 1e-3
eval_interval = 25
eval_iters = 8
score_interval = 50
threads = 1
compile = "on"
