"""
Which part of the published start helps: the scale of v, or that of q and k? And with QK-norm, which removes the latter?

    python -m config config/arms/parts.py | xargs -r -P 2 -L 1 python train.py

The arms without QK-norm belong to the table of config/arms/starts.py, which has "random" and "random_qkv".
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
arms = {
    "random_v": dict(v_std=_big),
    "random_qk": dict(qk_std=_big),
    "random_norm": dict(qk_norm=True, v_std=_big),
    "symmetric_norm": dict(init="symmetric", qk_norm=True, v_std=_big),
    "tilted_norm": dict(init="tilted", qk_norm=True, v_std=_big),
}
