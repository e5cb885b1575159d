"""config/bert_mini_cpu.py, as short as keeps the order of the starts: shorter sequences, fewer updates, 95 s a run."""
from config.bert_mini_cpu import *

block_size = 64
max_iters = 900
warmup_iters = 50
eval_interval = 25
score_interval = 100
