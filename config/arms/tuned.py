"""
Best against best: each start at the scale and the learning rate that suit it, as config/arms/tuning.py found them.

    python -m config config/arms/tuned.py | xargs -r -P 2 -L 1 python train.py

BERT's start at C = 128, q, k and v at 0.02, was best at the learning rate of config/small.py: it is "random" of
config/arms/starts.py. There are two random starts at C = 128, because the best two differed by 0.003 nats.
"""
from config.arms.tuning import _cell

base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

_best = [  # arm, init, C, C std^2 of q and k, learning rate
    ("random_64", "random", 64, 1, 2e-3),
    ("symmetric_64", "symmetric", 64, 1, 2e-3),
    ("tilted_64", "tilted", 64, 0.33, 2e-3),
    ("random_128", "random", 128, 0.33, 2e-3),
    ("random_128_sharp", "random", 128, 1, 1e-3),
    ("symmetric_128", "symmetric", 128, 0.33, 1e-3),
    ("tilted_128", "tilted", 128, 0.33, 1e-3),
]
arms = {"bert_64": dict(n_embd=64, n_head=1, learning_rate=2e-3)}
for _name, _init, _width, _scale, _rate in _best:
    arms[_name] = dict(_cell(_init, _width, _scale), learning_rate=_rate)
