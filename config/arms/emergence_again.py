"""
config/arms/emergence.py once more with eight fresh seeds, as many as tests of two arms and two scores need.

    python -m config config/arms/emergence_again.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import emergence

base = emergence.base
seeds = range(6, 14)
arms = emergence.arms
