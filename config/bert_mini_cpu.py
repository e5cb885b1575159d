"""What two CPU cores can do with BERT-mini in minutes: bytes, short sequences, small batches, 1,000 updates."""
from config.bert_mini import *

data_dir = "data/pytorch/bytes"
block_size = 128
dropout = attn_dropout = 0.0  # as in config/tiny.py
batch_size = 32
max_iters = 1000
warmup_iters = 100
learning_rate = 1e-3
eval_interval = score_interval = 50
eval_iters = 8
threads = 1
dtype = "float32"  # a CPU with units for bfloat16 (lscpu: avx512_bf16, amx_bf16) is faster with --dtype=bfloat16
compile = "on"
