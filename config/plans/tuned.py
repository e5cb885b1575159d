"""
Does the lead of rotary positions survive if the baseline is tuned as well? In benchmark.py our entry, `rotary_tuned`,
has another width, depth, initialization and warm-up, and `learned` has none of these.

    python -m config.plan tuned --run
    python -m data.runs out/plans/tuned/* --plan config/plans/tuned.py --csv tuned.csv

What we predict for the mean number of steps to 1.80 nats: `learned` 1,100 to 1,400, `learned_tuned` 500 to 800, and
`rotary_tuned` 290 to 350. So both tests are shown, and rotary positions lead by about a factor of two in both settings.
Known before: benchmark.csv (1,319 and 312), and one seed of `learned_tuned`, which needed 650 steps. No other values
than those of the entry were tried for it: its rate, 6e-3, is that of both.

What would refute it: `learned_tuned` at or below `rotary_tuned`. Then tuning, and not rotary positions, made the lead.
"""
base = "config/tiny.py"
seeds = range(901, 909)  # none of them was used before
minutes = 20
# It says no most_params any more (140,000), which would make it an entry of the race, with the seeds of benchmark.py.

_shared = dict(eval_interval=25, score_interval=100)
_tuned = _shared | dict(init_std=0.06, n_layer=3, n_head=4, n_embd=56, warmup_iters=50)

arms = {
    "learned": _shared,
    "learned_tuned": _tuned,
    "rotary_tuned": _tuned | dict(positions="rotary"),
}

planned = [
    ("steps_to_1.8", "learned_tuned", "<", "learned"),
    ("steps_to_1.8", "rotary_tuned", "<", "learned_tuned"),
]
