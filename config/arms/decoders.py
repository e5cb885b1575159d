"""
The same starts for decoders, which predict the next token: at BERT's scale and at the published one, and a random
start whose logits have the deviation 1.

    python -m config config/arms/decoders.py | xargs -r -P 2 -L 1 python train.py

The learning rate is the best of config/arms/tuning_decoders.py. A decoder has no plateau: 500 updates are enough.
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

_rate = 4e-3
_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
_all = dict(causal=True, max_iters=500, learning_rate=_rate)
arms = {
    "random": dict(_all),
    "symmetric": dict(_all, init="symmetric"),
    "tilted": dict(_all, init="tilted"),
    "skew": dict(_all, init="skew"),
    "random_qkv": dict(_all, qk_std=_big, v_std=_big),
    "symmetric_qkv": dict(_all, init="symmetric", qk_std=_big, v_std=_big),
    "tilted_qkv": dict(_all, init="tilted", qk_std=_big, v_std=_big),
    "random_sharp": dict(_all, qk_std=128**-0.5, v_std=_big),
}
