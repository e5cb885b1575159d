"""
Three of the decoders of config/arms/decoders.py once more with twelve fresh seeds: does scale help a decoder, and does
W_k = W_q help at that scale?

    python -m config config/arms/decoders_again.py | xargs -P 2 -L 1 python train.py
"""
from config.arms import decoders

base = decoders.base
seeds = range(8, 20)

arms = {name: decoders.arms[name] for name in ("random", "random_qkv", "symmetric_qkv")}
