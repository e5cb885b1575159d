"""
The record of the track `open` (data/results/csv/record/README.md): rotary positions, Muon with LTG-BERT's standard
deviation sqrt(2 / (5 C)), and a short schedule with a high rate.
"""
from config.tiny import *

max_iters = 300
warmup_iters = 20
eval_interval = 5  # so that two entries seldom tie
score_interval = 600
positions = "rotary"
optimizer = "muon"
init_std = 0.0791
learning_rate = 0.02
beta2 = 0.95
