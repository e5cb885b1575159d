"""
config/arms/tuning.py at C = 256, with four heads of 64.

    python -m config config/arms/tuning_wide.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms.tuning import _cell

base = "config/small.py"
seeds = [101]

arms = {}
for _rate in 5e-4, 1e-3, 2e-3:
    arms[f"bert_256_{_rate:g}"] = dict(n_embd=256, n_head=4, learning_rate=_rate, eval_interval=50)
    for _start in "random", "symmetric", "tilted":
        for _scale in 0.03, 0.1, 0.33, 1, 3:  # C std^2; BERT's 0.02 is 0.1 at C = 256
            arms[f"{_start}_256_{_scale}_{_rate:g}"] = dict(
                _cell(_start, 256, _scale), learning_rate=_rate, eval_interval=50)
