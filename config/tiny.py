"""An encoder small enough for one CPU core and two minutes, large enough to leave the plateau: python train.py"""
n_layer = 2
n_head = 2
n_embd = 64
block_size = 32
dropout = attn_dropout = 0.0  # no text comes twice, and on a CPU random numbers take a quarter of a small step
batch_size = 128
micro_batch_size = 128
max_iters = 1600
learning_rate = 6e-3  # as for the small encoders in config/plans
eval_interval = 100
eval_iters = 8
score_interval = 50
seed = 101  # the first of config/plans: this run is `learned` of data/results/csv/positions.csv
threads = 1  # with matrices this small, a second thread gains little, and loses much if it has to wait for its core
