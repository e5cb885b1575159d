"""
What scale is worth to decoders of other widths than 128, and W_k = W_q: random starts of 64 and of 256 dimensions, at
BERT's scale and at the published one, and W_k = W_q at the published one. The learning rates are the best that
config/arms/tuning_decoders_widths.py found for the random starts.

    python -m config config/arms/decoders_widths.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_decoders_widths

base = tuning_decoders_widths.base
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

_best_rates = dict(bert_64=8e-3, random_64=8e-3, bert_256=2e-3, random_256=2e-3)
arms = {}
for _name, _rate in _best_rates.items():
    arms[f"{_name}_decoder"] = dict(
        tuning_decoders_widths.arms[f"{_name}_decoder_{_rate:g}"], eval_interval=25)
for _width in 64, 256:
    arms[f"symmetric_{_width}_decoder"] = dict(arms[f"random_{_width}_decoder"], init="symmetric")
