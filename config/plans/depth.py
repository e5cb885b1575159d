"""
Which layers become symmetric, and when? Encoders of four layers of 128 dimensions, four times as long as small.py. In
the authors' own runs of four layers the first one is the least symmetric, and in our short ones it was the most.

    python -m config.plan depth --run
    python -m data.runs out/plans/depth/* --csv depth.csv

What we predict: with learned positions the first two layers are the most symmetric at the end, as before (0.57, 0.51,
0.15, 0.03 after 900 steps on another corpus), and the last one rises late, if at all. With untied positions and [MASK]
no layer is above 0.1. Without [MASK] (0/50/50) the upper layers are above 0.2. Three seeds are too few for a test, so
this file has no planned ones: it shows curves by layer beside those of the authors, whose last layer of four ends at
0.68.

What would refute it: a last layer that is the most symmetric one at the end, or untied contents above 0.1 with [MASK].
"""
base = "config/small.py"
seeds = range(101, 104)
minutes = 45

# The rate is the best of 5e-4, 1e-3 and 2e-3 for `learned`, with seed 100.
_shared = dict(n_layer=4, max_iters=3600, score_interval=100, eval_interval=100, learning_rate=1e-3)

arms = {
    "learned": _shared,
    "untied": _shared | dict(positions="untied"),
    "untied_half": _shared | dict(positions="untied", mask_share=0.0, random_share=0.5),
}

picture = dict(  # of the layers of one arm
    title="The middle two of four layers turn most symmetric, after the loss has left its plateau",
    arm="learned",
    measures=["loss", "symmetry"],
)
