"""
Decoders of 512 dimensions: does a larger scale than BERT's 0.02 still help where the two are nearly the same? At the
learning rate that config/arms/tuning_decoders_512.py found for each.

    python -m config config/arms/decoders_512.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_decoders_512

base = tuning_decoders_512.base
seeds = [1, 2, 3, 4, 5, 6, 7]

_best_rates = dict(bert=1e-3, random=1e-3)
arms = {}
for _start, _rate in _best_rates.items():
    _changes = tuning_decoders_512.arms[f"{_start}_512_decoder_{_rate:g}"]
    arms[f"{_start}_512_decoder"] = dict(_changes, eval_interval=25)
