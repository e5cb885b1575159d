"""
Does what was found on code hold for English, if runs are long enough to leave their plateau? config/arms/english.py
was too short for that. Scale, and two starts, as on code. The learning rate is that of config/arms/tuning_english.py.

    python data/text/prepare.py FILE... --out_dir=data/text/bytes
    python -m config config/arms/english_long.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_english

base = tuning_english.base
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

_small = tuning_english.arms["random_english_0.001"]
_large = tuning_english.arms["random_qkv_english_0.001"]
arms = {
    "random_english": _small,
    "random_qkv_english": _large,
    "symmetric_english": dict(_small, init="symmetric"),
    "symmetric_qkv_english": dict(_large, init="symmetric"),
    "tilted_english": dict(_small, init="tilted"),
    "indefinite_english": dict(_small, init="indefinite"),
}
