"""
The decoders of config/arms/decoders.py once more with twelve fresh seeds, and one that starts skew at the larger scale:
does scale help a decoder, and does any start?

    python -m config config/arms/decoders_again.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import decoders

base = decoders.base
seeds = range(8, 20)

_names = "random", "random_qkv", "symmetric_qkv", "symmetric", "tilted", "skew", "tilted_qkv"
arms = {name: decoders.arms[name] for name in _names}
arms["skew_qkv"] = dict(decoders.arms["random_qkv"], init="skew")
