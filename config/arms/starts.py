"""
Symmetry, scale, sharpness, likeness or self-attention: which of them makes a good start? Each answer has an arm.

    python -m config config/arms/starts.py | xargs -r -P 2 -L 1 python train.py

data/results/log.md says what each explanation predicts, and what came out.
"""
from init import STARTS as _starts

base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7, 8, 9]

_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
_up = 0.02 * 2**0.25  # W_qk as large as that of "tilted", which has sqrt(2) times the norm of "symmetric"
_self = 64**0.5 * 128 * 0.02**2  # what W_k = W_q at 0.02 adds to the logit of a token with itself: sqrt(D) C std^2
arms = {
    "random_up": dict(qk_std=_up),
    "symmetric_up": dict(init="symmetric", qk_std=_up),
    "random_self": dict(diagonal=_self),
    "symmetric_no_self": dict(init="symmetric", diagonal=-_self),
    # As fast in proportion to their size as at 0.02: is it the size at the start that helps, or the smaller step of it?
    "random_fast": dict(qkv_rate=_big / 0.02),
    "random_qkv_fast": dict(qk_std=_big, v_std=_big, qkv_rate=_big / 0.02),
}
for _start in _starts:
    arms[_start] = dict(init=_start)
    arms[f"{_start}_qkv"] = dict(init=_start, qk_std=_big, v_std=_big)
