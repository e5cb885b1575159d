"""
Four layers of 256 dimensions, the sizes of the paper's BERT-mini: does W_k = W_q help where there is more depth? And how
much is BERT's scale behind? Each at the learning rate that config/arms/tuning_deep.py found.

    python -m config config/arms/deep.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_deep

base = tuning_deep.base
seeds = [1, 2, 3, 4, 5, 6, 7]

_best_rates = dict(bert=5e-4, random=1e-3, symmetric=1e-3)
arms = {f"{start}_deep": tuning_deep.arms[f"{start}_deep_{rate:g}"] for start, rate in _best_rates.items()}
