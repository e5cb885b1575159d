"""
The starts of config/arms/starts.py in four layers of 256 dimensions, at BERT's scale and learning rate. "bert_deep" of
config/arms/deep.py is the baseline, with the same seeds.

    python -m config config/arms/deep_starts.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import deep

base = deep.base
seeds = deep.seeds

_names = ["symmetric", "tilted", "indefinite", "negative", "skew"]
arms = {f"{name}_bert_deep": dict(deep.arms["bert_deep"], init=name) for name in _names}
