"""
How much of what a symmetric or tilted start gains is the size of W_qk? Both make W_qk larger than BERT's random start
does, and a larger start helps by itself. Measured from init.py at these sizes, in multiples of `random`: |W_qk| of a
layer is 1.88 in `tilted` and 1.42 in `symmetric`, and that of a head 1.74 and 1.23. So `random_up` is random with q and
k at sqrt(1.88) x 0.02 = 0.0274, which makes both 1.88.

    python -m config.plan up --run
    python -m data.runs out/plans/up/* --plan config/plans/up.py --csv up.csv

What we predict for the loss after 900 steps: `random_up` gains 0 to 0.05 nats, which may not be shown. `tilted` and
`symmetric` are lower than it by 0.1 to 0.3 nats. So size is less than a third of both gains. Known before: a single run
at a smaller size gained nothing from its larger q and k (+0.002).

What would refute it: if `random_up` is as low as the two others, their gain is size and not the trace of W_qk.
"""
base = "config/small.py"
seeds = range(201, 209)
minutes = 15

_rate = dict(learning_rate=1e-3)  # as in starts.py

arms = {
    "random": _rate,
    "random_up": _rate | dict(qk_std=0.0274),
    "tilted": _rate | dict(init="tilted"),
    "symmetric": _rate | dict(init="symmetric"),
}

planned = [
    ("loss", "random_up", "<", "random"),
    ("loss", "tilted", "<", "random_up"),
    ("loss", "symmetric", "<", "random_up"),
]
