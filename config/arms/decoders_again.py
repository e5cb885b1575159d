"""
The decoders of config/arms/decoders.py once more with twelve fresh seeds: does scale help a decoder, and does W_k = W_q, or
a part of it, help at either scale?

    python -m config config/arms/decoders_again.py | xargs -P 2 -L 1 python train.py
"""
from config.arms import decoders

base = decoders.base
seeds = range(8, 20)

_again = "random", "symmetric", "tilted", "skew", "random_qkv", "symmetric_qkv", "tilted_qkv"
arms = {name: decoders.arms[name] for name in _again}
