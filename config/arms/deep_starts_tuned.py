"""
W_k = W_q and tilted in four layers of 256 dimensions, at BERT's scale and at the learning rate that
config/arms/tuning_deep_starts.py found for them, which is twice that of config/arms/deep_starts.py. The random starts that
they are compared with are those of config/arms/deep.py, with the same seeds.

    python -m config config/arms/deep_starts_tuned.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import deep, tuning_deep_starts

base = deep.base
seeds = deep.seeds

arms = {name: tuning_deep_starts.arms[name] for name in ["symmetric_bert_deep_0.001", "tilted_bert_deep_0.001"]}
