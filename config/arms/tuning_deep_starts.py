"""
The learning rate of the starts that config/arms/tuning_deep.py left out: three for each, one run each, of a seed that
no comparison uses. The middle one of three is that of the seventh round and before.

    python -m config config/arms/tuning_deep_starts.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_deep

base = tuning_deep.base
seeds = tuning_deep.seeds

_bert = tuning_deep.arms["bert_deep_0.0005"]
_random = tuning_deep.arms["random_deep_0.001"]
arms = {}
for _rate in 5e-4, 2.5e-4, 1e-3:
    for _start in "symmetric", "tilted", "indefinite":
        arms[f"{_start}_bert_deep_{_rate:g}"] = dict(_bert, init=_start, learning_rate=_rate)
# 1e-3, the highest of three, came out as the best for these two: one above it.
for _start in "symmetric", "tilted":
    arms[f"{_start}_bert_deep_0.002"] = dict(_bert, init=_start, learning_rate=2e-3)
for _rate in 1e-3, 5e-4, 2e-3:
    for _start in "tilted", "indefinite", "skew":
        arms[f"{_start}_deep_{_rate:g}"] = dict(_random, init=_start, learning_rate=_rate)
