"""
The learning rate of every start, scale and width: one run each, with a seed that no comparison uses. Only the best of
each start is then worth a comparison.

    python -m config.arms tuning | xargs -r -P 2 -L 1 python train.py

The scale of q and k is C std^2. If W_k = W_q, the logit of a token with itself is larger than the others by sqrt(D)
times this scale. v has the published scale, 1 / sqrt(3 C).
"""
base = "config/small.py"
seeds = [101]

_rates = {64: [1e-3, 2e-3, 4e-3], 128: [5e-4, 1e-3, 2e-3]}  # by C: the wider, the smaller
_scales = 0.03, 0.1, 0.33, 1, 3  # BERT's 0.02 gives 0.026, 0.051 and 0.31 at C = 64, 128 and 768
arms = {}
for _width in _rates:
    _wide = dict(n_embd=_width, n_head=_width // 64, v_std=(3 * _width) ** -0.5, eval_interval=50)  # heads of 64
    for _start in "random", "symmetric", "tilted":
        for _scale in _scales:
            for _rate in _rates[_width]:
                arms[f"{_start}_{_width}_{_scale}_{_rate:g}"] = dict(
                    _wide, init=_start, qk_std=(_scale / _width) ** 0.5, learning_rate=_rate)
