"""
Two starts of config/arms/deep.py once more with twelve fresh seeds: does W_k = W_q help where there is more depth?

    python -m config config/arms/deep_again.py | xargs -P 2 -L 1 python train.py
"""
from config.arms import deep

base = deep.base
seeds = range(8, 20)

arms = {name: deep.arms[name] for name in ("random_deep", "symmetric_deep")}
