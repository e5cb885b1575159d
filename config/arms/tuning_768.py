"""
The learning rate of config/arms/width_768.py: one run each, of a seed that no comparison uses.

    python -m config config/arms/tuning_768.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import width_768

base = width_768.base
seeds = [101]

arms = {}
for _rate in 1e-3, 5e-4:
    for _init in "random", "symmetric", "tilted":
        arms[f"{_init}_768_{_rate:g}"] = dict(width_768._wide, init=_init, learning_rate=_rate, eval_interval=50)
