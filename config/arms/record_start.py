"""
The entries of the record's track `start` (data/results/csv/record/README.md): how an encoder begins, and nothing else.

    python -m config.arms record_start | xargs -r -P 2 -L 1 python train.py
    for name in random symmetric tilted mimetic random_linear symmetric_linear tilted_linear mimetic_linear ltg \
        ltg_symmetric; do python analyze.py --runs out/arms/record_start/$name-1? \
        --csv data/results/csv/record/start/$name.csv; done

What we predict for the updates to 2.25 nats: the order of an earlier corpus. LTG-BERT's standard deviation needs the
fewest (265 there), then come the starts of q, k and v at `linear` (308 to 352), and those at 0.02 need the most (465 or
more). Seed 1 chose the loss of the track: ltg 300, ltg_symmetric 290, symmetric_linear 325, and random not within 600.
"""
base = "config/tiny.py"
seeds = range(11, 19)

_task = dict(max_iters=600, warmup_iters=100, eval_interval=5, score_interval=600)
_linear = dict(qk_std="linear", v_std="linear")

arms = {
    "random": _task,
    "symmetric": _task | dict(init="symmetric"),
    "tilted": _task | dict(init="tilted"),
    "mimetic": _task | dict(init="mimetic"),
    "random_linear": _task | _linear,
    "symmetric_linear": _task | _linear | dict(init="symmetric"),
    "tilted_linear": _task | _linear | dict(init="tilted"),
    "mimetic_linear": _task | _linear | dict(init="mimetic"),
    "ltg": _task | dict(init_std=0.0791),
    "ltg_symmetric": _task | dict(init_std=0.0791, init="symmetric"),
}
