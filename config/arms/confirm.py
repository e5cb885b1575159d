"""
The two starts of config/arms/tuned.py that the question is about, once more with sixteen fresh seeds: one test.

    python -m config config/arms/confirm.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuned

base = tuned.base
seeds = range(9, 25)

arms = {name: tuned.arms[name] for name in ("random_128_sharp", "symmetric_128")}
