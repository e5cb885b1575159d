"""
What helps: symmetry, or the scale that came with it? Every arm differs from another arm in one thing only.

    python -m config.arms tiny | xargs -r -P 2 -L 1 python train.py

The published symmetric start, "symmetric_qkv", changed the symmetry, and also the scale of q, k and v to 1 / sqrt(3 C).
"_qk", "_v" and "_qkv" name the matrices that have this scale instead of 0.02.
"""
base = "config/tiny.py"
seeds = [1, 2, 3, 4, 5]

_big = (3 * 64) ** -0.5  # 1 / sqrt(3 C) of config/tiny.py
arms = {
    "random": dict(),
    "symmetric": dict(init="symmetric"),
    "random_qk": dict(qk_std=_big),
    "symmetric_qk": dict(init="symmetric", qk_std=_big),
    "random_qkv": dict(qk_std=_big, v_std=_big),
    "symmetric_qkv": dict(init="symmetric", qk_std=_big, v_std=_big),
    "random_v": dict(v_std=_big),
    "constraint": dict(constraint="symmetric", constraint_weight=0.1),
}
