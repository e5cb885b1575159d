"""
The three starts that config/arms/deep_again.py left out, in four layers of 256 dimensions, at 1 / sqrt(3 C).
"random_deep" of that file is the baseline, with the same seeds.

    python -m config config/arms/deep_signs.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import deep

base = deep.base
seeds = range(8, 15)

arms = {f"{name}_deep": dict(deep.arms["random_deep"], init=name) for name in ["indefinite", "negative", "skew"]}
