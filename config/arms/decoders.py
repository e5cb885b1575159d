"""
The same starts for decoders, which predict the next token: at BERT's scale and at the published one, and a random start
whose logits have the deviation 1. A decoder has no plateau: 500 updates are enough.

    python -m config config/arms/decoders.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

_all = dict(causal=True, max_iters=500, learning_rate=4e-3)  # the best of five learning rates, at either scale
_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
arms = {"random_sharp": dict(_all, qk_std=128**-0.5, v_std=_big)}
for _start in "random", "symmetric", "tilted", "skew":
    arms[_start] = dict(_all, init=_start)
    arms[f"{_start}_qkv"] = dict(_all, init=_start, qk_std=_big, v_std=_big)
