"""
The learning rate and the scale of config/arms/tuned_512.py: one run each, of a seed that no comparison uses.

    python -m config config/arms/tuning_512.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

_wide = dict(n_embd=512, n_head=8, max_iters=500, eval_interval=50)  # heads of 64, as everywhere
_big = (3 * 512) ** -0.5  # 1 / sqrt(3 C), a scale C std^2 of 1/3; BERT's 0.02 is 0.205 here
_starts = {
    "bert": dict(_wide),
    "random": dict(_wide, qk_std=_big, v_std=_big),
    "symmetric": dict(_wide, init="symmetric", qk_std=_big, v_std=_big),
}
_rates = {  # 1e-3 came out better than 5e-4 for two of them, and worse for symmetric: one more beyond the better one
    "bert": [1e-3, 5e-4, 2e-3],
    "random": [1e-3, 5e-4, 2e-3],
    "symmetric": [1e-3, 5e-4, 2.5e-4],
}
arms = {}
for _start, _three in _rates.items():
    for _rate in _three:
        arms[f"{_start}_512_{_rate:g}"] = dict(_starts[_start], learning_rate=_rate)
# The best scale fell from 1 to 1/3 between C = 128 and 256: one to each side of it for random, two below for symmetric.
for _start, _scale in ("random", 0.1), ("random", 1), ("symmetric", 0.1), ("symmetric", 0.03):
    _std = (_scale / 512) ** 0.5
    arms[f"{_start}_512_scale_{_scale}"] = dict(_starts[_start], qk_std=_std, learning_rate=1e-3)
