"""
Finds the learning rate of every start, scale and width: one run each, with a seed that no comparison uses.

    python -m config config/arms/tuning.py | xargs -r -P 2 -L 1 python train.py

v starts at the published scale, 1 / sqrt(3 C), except in "bert", where q, k and v start at 0.02. The scale of q and k
is C std^2. If W_k = W_q, the logit of a token with itself is larger than the others by sqrt(D) times this scale.
config/arms/tuned.py compares the best of each start.
"""
base = "config/small.py"
seeds = [101]

_rates = {64: [1e-3, 2e-3, 4e-3], 128: [5e-4, 1e-3, 2e-3]}  # by C: the wider, the smaller
_more = {64: [], 128: [4e-3]}  # added for the best scales, once 2e-3 had come out as their best


def _cell(start, width, scale):
    """A start at a width, with heads of 64; scale: C std^2 of q and k."""
    return dict(init=start, n_embd=width, n_head=width // 64, qk_std=(scale / width) ** 0.5, v_std=(3 * width) ** -0.5)


arms = {}
for _width, _three in _rates.items():
    for _rate in _three:
        arms[f"bert_{_width}_{_rate:g}"] = dict(
            n_embd=_width, n_head=_width // 64, learning_rate=_rate, eval_interval=50)
for _width, _three in _rates.items():
    for _start in "random", "symmetric", "tilted":
        for _scale in 0.03, 0.1, 0.33, 1, 3:  # C std^2; BERT's 0.02 gives 0.026, 0.051 and 0.31 at C = 64, 128 and 768
            _best_scale = _scale in (0.33, 1)
            for _rate in _three + (_more[_width] if _best_scale else []):
                arms[f"{_start}_{_width}_{_scale}_{_rate:g}"] = dict(
                    _cell(_start, _width, _scale), learning_rate=_rate, eval_interval=50)
