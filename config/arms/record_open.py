"""
The entries of the record's track `open` (data/results/csv/record/README.md): all but the task is free.

    python -m config.arms record_open | xargs -r -P 2 -L 1 python train.py
    for name in rotary symmetric_linear muon muon_ltg short short_qk_norm; do
        python analyze.py --runs out/arms/record_open/$name-1? --csv data/results/csv/record/open/$name.csv; done

What we predict for the updates to 1.75 nats: they become fewer from entry to entry in the order below. Rotary positions
alone do not arrive in 600, and the last two need 250 to 270, with an order that we do not know. Of some fifteen tries
with seed 1, muon_ltg arrived at 310 and short at 255. A schedule of 240 steps did not arrive at any rate.
"""
base = "config/tiny.py"
seeds = range(11, 19)

_task = dict(eval_interval=5, score_interval=600, positions="rotary")
_long = _task | dict(max_iters=600, warmup_iters=100)
_short = _task | dict(optimizer="muon", init_std=0.0791, learning_rate=0.02, beta2=0.95, warmup_iters=20)

arms = {
    "rotary": _long,
    "symmetric_linear": _long | dict(init="symmetric", qk_std="linear", v_std="linear"),
    "muon": _long | dict(optimizer="muon", learning_rate=0.01),
    "muon_ltg": _long | dict(optimizer="muon", learning_rate=0.01, init_std=0.0791),
    "short": _short | dict(max_iters=300),
    "short_qk_norm": _short | dict(max_iters=270, qk_norm=True, qkv_rate=1.5),
}
