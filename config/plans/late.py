"""
Do single heads lose their symmetry late in training, while their layer keeps it? `late` is `early` for four times as
many steps, with the same seeds. Heads that mirror each other are symmetric together, and not alone.

    python -m config.plan late --run
    python -m data.runs out/plans/late/* --plan config/plans/late.py --csv late.csv

What we predict for the upper layer, as means over the seeds. The symmetry of single heads (heads_1) ends between 0.2
and 0.45 in `early`, and between -0.05 and 0.25 in `late`. mirror_1 ends between 0 and 0.25 in `early`, and 0.1 higher
or more in `late`. The symmetry of the layer (symmetry_1) is above 0.5 in both, and in `late` not lower by more than
0.15, which no test of signs can show: we say it with its interval. The lower layer is not predicted.

Known before: along long.csv heads_1 goes 0.39, 0.29, 0.13, 0.03, 0.02 at steps 400, 800, 1,600, 3,200 and 6,400, and
all eight of its seeds end with -0.17 to 0.18. But a fresh seed (991) ended with heads of 0.44 and 0.47, and a mirror of
0.02, at a symmetry of 0.67. So this may fail. For two heads mirror is at least (3 symmetry - 1) / 4 - own_heads.

Two things differ between the arms: the number of steps, and with it the schedule of the learning rate. At step 1,600
the rate of `late` is still high: heads had 0.13 there, and 0.34 at the end of short runs. So step 1,600 of `late` is
shown beside both.

What would refute it: a test that comes out the other way round, or heads_1 above 0.25 in four of eight late runs.
"""
base = "config/tiny.py"
seeds = range(701, 709)  # none of them was used before
minutes = 60

_shared = dict(learning_rate=6e-3, score_interval=100, eval_interval=200)

arms = {
    "early": _shared,
    "late": _shared | dict(max_iters=6400),
}

planned = [
    ("heads_1", "late", "<", "early"),
    ("mirror_1", "late", ">", "early"),
]
