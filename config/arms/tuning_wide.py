"""
config/arms/tuning.py at C = 256, with four heads of 64: five scales of q and k at the best learning rate, fewer at others.

    python -m config config/arms/tuning_wide.py | xargs -P 2 -L 1 python train.py
"""
from config.arms.tuning import _cell

base = "config/small.py"
seeds = [101]

_scales = {  # C std^2 by learning rate; BERT's 0.02 is 0.1 at C = 256
    5e-4: dict(random=[0.1, 0.33, 1], symmetric=[0.1, 0.33, 1], tilted=[0.1, 0.33, 1]),
    1e-3: dict(random=[0.03, 0.1, 0.33, 1, 3], symmetric=[0.03, 0.1, 0.33, 1, 3], tilted=[0.03, 0.1, 0.33, 1, 3]),
    2e-3: dict(random=[0.33], symmetric=[0.1], tilted=[0.1]),  # the best of three at 1e-3
}
arms = {}
for _rate, _starts in _scales.items():
    arms[f"bert_256_{_rate:g}"] = dict(n_embd=256, n_head=4, learning_rate=_rate, eval_interval=50)
    for _start, _some in _starts.items():
        for _scale in _some:
            arms[f"{_start}_256_{_scale}_{_rate:g}"] = dict(
                _cell(_start, 256, _scale), learning_rate=_rate, eval_interval=50)
