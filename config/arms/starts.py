"""
Symmetry, scale, sharpness, likeness or self-attention: which of them makes a good start? Each answer has an arm.

    python -m config.arms starts | xargs -r -P 2 -L 1 python train.py

data/results/log.md says what each explanation predicts, and what came out.
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7, 8, 9]

_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
_up = 0.02 * 2**0.25  # W_qk as large as that of "tilted", which has sqrt(2) times the norm of "symmetric"
# By name, and not all of init.py: a start of your own belongs to a comparison of your own.
_starts = "random", "symmetric", "tilted", "mimetic", "indefinite", "negative", "skew"
arms = {
    "random_up": dict(qk_std=_up),
    "symmetric_up": dict(init="symmetric", qk_std=_up),
    # As fast in proportion to their size as at 0.02: is it the size at the start that helps, or the smaller step of it?
    "random_fast": dict(qkv_rate=_big / 0.02),
    "random_qkv_fast": dict(qk_std=_big, v_std=_big, qkv_rate=_big / 0.02),
}
for _start in _starts:
    arms[_start] = dict(init=_start)
    arms[f"{_start}_qkv"] = dict(init=_start, qk_std=_big, v_std=_big)
