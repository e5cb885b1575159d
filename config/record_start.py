"""
The record of the track `start` (data/results/csv/record/README.md): the encoder of config/tiny.py on a shorter
schedule, whose matrices all start with LTG-BERT's standard deviation sqrt(2 / (5 C)).
"""
from config.tiny import *

max_iters = 600
warmup_iters = 100
eval_interval = 5  # so that two entries seldom tie
score_interval = 600
init_std = 0.0791
