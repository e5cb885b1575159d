"""
The learning rate of decoders, at either scale of q, k and v: one run each, of a seed that no comparison uses.

    python -m config config/arms/tuning_decoders.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

arms = {}
for _name, _scale in ("bert", 0.02), ("random", (3 * 128) ** -0.5):
    for _rate in 5e-4, 1e-3, 2e-3, 4e-3, 8e-3:  # the last one added when 4e-3 had come out as the best
        arms[f"{_name}_{_rate:g}"] = dict(
            causal=True, max_iters=500, qk_std=_scale, v_std=_scale, learning_rate=_rate, eval_interval=50)
