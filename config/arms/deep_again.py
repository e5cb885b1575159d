"""
Two starts of config/arms/deep.py once more with twelve fresh seeds, and "tilted", which has the positive part of
W_k = W_q and no symmetry: does W_k = W_q help where there is more depth, and is it by likeness?

    python -m config config/arms/deep_again.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import deep

base = deep.base
seeds = range(8, 20)

arms = {
    "random_deep": deep.arms["random_deep"],
    "symmetric_deep": deep.arms["symmetric_deep"],
    "tilted_deep": dict(deep.arms["symmetric_deep"], init="tilted"),
}
