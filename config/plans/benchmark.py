"""
The benchmark: in how few steps does a small encoder get to a validation loss of 1.80 nats? Anybody can enter, on any
computer: data/results/README.md, question 8, says how. What is fixed is the task of config/tiny.py and its 1,600
steps. What a setting may change is all else, within 140,000 parameters.

    python -m config.plan benchmark --run
    python -m data.runs out/plans/benchmark/* --plan config/plans/benchmark.py --csv benchmark.csv

What we predict for the mean number of steps. `learned` needs 1,100 to 1,350, with two seeds at most that never get
there. As shares of that: `symmetric` 80 to 105 %, `paper` 55 to 90 %, `rotary` 42 to 55 %, `untied` 47 to 60 %,
`mirror` 80 to 105 %, and `rotary_tuned`, our own entry, 24 to 30 %. So the tests of `paper`, `rotary`, `untied` and
`rotary_tuned` come out, and those of `symmetric` and `mirror` do not. Known before: kept files with other seeds, where
an evaluation came every 100 steps (`rotary` 43 to 51 %, `untied` 54 %, tie=mirror 88 %), and ten trials for
`rotary_tuned` with seeds 1 to 3, the first without 3. The best of them needed 300 to 325 steps with each of the seeds
1 to 8:

    mean steps  rotary and, if nothing else is said, n_head=2
           550
           408  init_std=0.06
           425  init_std=0.06 learning_rate=1e-2 beta2=0.98 warmup_iters=100
           425  init_std=0.06 init=symmetric
           383  init_std=0.06 n_head=4
           392  init_std=0.1 n_head=4
           365  init_std=0.06 n_head=4 n_layer=3 n_embd=56
           319  init_std=0.06 n_head=4 n_layer=3 n_embd=56 warmup_iters=50
           383  untied, init_std=0.06
           367  untied, init_std=0.06 n_head=4

What would refute it: a test that comes out the other way round, or `rotary_tuned` above `rotary`.

Since these runs steps are interpolated between two evaluations, and no longer those of the first one at 1.80 or below.
"""
base = "config/tiny.py"
seeds = range(501, 509)  # none of them was used before
minutes = 40
most_params = 140_000  # config/race.py holds entries against this file

# Steps are counted between evaluations, so all have the same ones.
_shared = dict(eval_interval=25, score_interval=100)

arms = {
    "learned": _shared,  # the baseline
    "symmetric": _shared | dict(init="symmetric"),  # W_k = W_q at the start
    "paper": _shared | dict(init="symmetric", qk_std="linear", v_std="linear"),  # and larger q, k and v, as its code
    "rotary": _shared | dict(positions="rotary"),
    "untied": _shared | dict(positions="untied"),
    "mirror": _shared | dict(tie="mirror"),
    "rotary_tuned": _shared | dict(positions="rotary", init_std=0.06, n_layer=3, n_head=4, n_embd=56, warmup_iters=50),
}

planned = [("steps_to_1.8", arm, "<", "learned") for arm in arms if arm != "learned"]

picture = dict(
    title="Rotary positions reach the goal in half the steps of the baseline, and tuned in a quarter",
    labels={"loss": dict(learned="baseline", symmetric="$W_k = W_q$", mirror="mirrored heads", paper="authors' start",
                         untied="untied", rotary="rotary", rotary_tuned="rotary, tuned")},
    levels={"goal: 1.80": 1.80},
)
