"""
Muon updates the matrices of all blocks, and the rates fall to a tenth by step 200 instead of to 0 by step 1,600.

    python -m config.plan config/records/muon.py            # refuses what is against the rules, and says what it lacks
    python -m config.plan config/records/muon.py --run      # does the runs
    python -m data.runs out/plans/muon/* --plan config/records/muon.py --csv data/results/csv/muon.csv

What we predict for the mean number of steps: 165 to 195, and no run that never arrives. Tuned in 4 trials, with seeds
1 to 3 or 4, --skip_eval_iters=8, and the first 350 or 500 steps, since these rates do not depend on max_iters:

    mean steps  the record, and
           271  decay_iters=250
           230  decay_iters=250 muon_rate=0.012
           187  decay_iters=200 muon_rate=0.025
           176  decay_iters=200 muon_rate=0.025 learning_rate=1e-2 warmup_iters=20

What would refute it: an entry at or above 230 steps, which the second trial had without the last two changes.
"""
from config.plans.benchmark import arms as _arms
from config.plans.benchmark import base, most_params, seeds  # which an entry has in common with the race

_muon = dict(muon_rate=0.025, decay_iters=200, learning_rate=1e-2, warmup_iters=20)

arms = {
    "learned": _arms["learned"],  # the baseline
    "rotary_tuned": _arms["rotary_tuned"],  # the record
    "muon": _arms["rotary_tuned"] | _muon,  # the entry
}

planned = [("steps_to_1.8", "muon", "<", "rotary_tuned")]
