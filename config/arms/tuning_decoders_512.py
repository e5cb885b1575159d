"""
The learning rate of config/arms/decoders_512.py: three or more at either scale of q, k and v, one run each, of a seed
that no comparison uses.

    python -m config config/arms/tuning_decoders_512.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

_wide = dict(causal=True, max_iters=500, n_embd=512, n_head=8)  # heads of 64, as everywhere
arms = {}
for _rate in 1e-3, 2e-3, 5e-4:
    for _start, _std in ("bert", 0.02), ("random", (3 * 512) ** -0.5):
        arms[f"{_start}_512_decoder_{_rate:g}"] = dict(
            _wide, qk_std=_std, v_std=_std, learning_rate=_rate, eval_interval=50)
