"""
The task of the record (data/results/csv/record/README.md): the encoder of config/tiny.py, a shorter schedule, and an
evaluation every 20 updates.
"""
from config.tiny import *

max_iters = 600
warmup_iters = 100
eval_interval = 20
score_interval = 600
