"""
Do columns still dominate in decoders after four times as many steps? At 1,600 steps they do (columns.py). In three
pairs of the authors' own runs the decoder has the far lower directionality early, and later the encoder catches up.
These are `learned` and `decoder` of columns.py, with its seeds, for 6,400 steps.

    python -m config.plan long --run
    python -m data.runs out/plans/long/* --plan config/plans/long.py --csv long.csv

What we predict, as medians over the two layers and means over the seeds. At step 1,600 the decoder is below the encoder
by 0.2 to 0.6, as in columns.csv (-0.56, and -0.08). From there the encoder falls, and ends between -0.2 and -0.5. The
decoder stays between -0.35 and -0.7. So at the end the decoder is still below, by 0.05 to 0.35, and the difference is
less than at step 1,600. The symmetry of `learned` ends between 0.4 and 0.75, and that of `decoder` is within 0.1 of 0.
Known before: columns.csv, the authors' curves, and two longer runs of other seeds, of which only losses were looked at.

What would refute it: an encoder at or below its decoder at the end. Then column dominance is of the first steps alone,
and no mark of autoregressive training that stays. If the difference has grown instead, the encoder does not catch up.
"""
base = "config/tiny.py"
seeds = range(201, 209)  # those of columns.py
minutes = 45

_shared = dict(max_iters=6400, learning_rate=6e-3, score_interval=100, eval_interval=200)

arms = {
    "learned": _shared,
    "decoder": _shared | dict(causal=True),
}

planned = [
    ("directionality", "decoder", "<", "learned"),
    ("symmetry", "learned", ">", "decoder"),
]

picture = dict(
    title="After 6,400 steps columns still dominate more in decoders, mostly in the lower layer",
    labels={f"directionality_{layer}": dict(learned="encoder", decoder="decoder") for layer in (0, 1)},
)
