"""
Is column dominance Adam's? Columns of W_qk belong to rows of k.weight, and Adam divides every entry by a number of its
own, v. Here only the updates of q and k change: `matrix` has one v for each matrix, and `muon` turns with a rotation.

    python -m config.plan basis --run
    python -m data.runs out/plans/basis/* --plan config/plans/basis.py --csv basis.csv

What we predict, as medians over the two layers and means over the seeds. `decoder` has a directionality between -0.6
and -0.35, as before. With `decoder_muon` it is between -0.15 and 0.25, at a loss within 0.05 nats of that of `decoder`.
With `decoder_matrix` it is between the two: -0.4 to -0.05. So both tests are shown; that of `matrix` is the less sure.
The symmetry of `learned` does not depend on it: the 95 % intervals of `learned_matrix` and `learned_muon` less
`learned` are within 0.15 of 0. Their losses are not predicted.

Known before: pilots of decoders of seed 991: -0.38 (mean of two layers) with AdamW, +0.06 and +0.18 with Muon at the
same loss (1.578 and 1.576), -0.21 and -0.35 with one v for each matrix. In one layer, by six seeds, -0.50 with AdamW,
-0.38 with one number for k, -0.32 with one for q, and -0.11 with one for each, at losses within 0.003.

What would refute it: a test that comes out the other way round. If `decoder_muon` is as low as `decoder`, columns
dominate in whatever coordinates the optimizer works, and Adam is not the reason. If its loss is higher by more than 0.1
nats, it is another training, and says little.
"""
base = "config/tiny.py"
seeds = range(801, 817)  # sixteen: with eight, an interval within 0.15 would be a coin toss
minutes = 70

_shared = dict(learning_rate=6e-3, score_interval=100)

arms = {
    "decoder": _shared | dict(causal=True),
    "decoder_matrix": _shared | dict(causal=True, qk_update="matrix"),
    "decoder_muon": _shared | dict(causal=True, qk_update="muon"),
    "learned": _shared,
    "learned_matrix": _shared | dict(qk_update="matrix"),
    "learned_muon": _shared | dict(qk_update="muon"),
}

planned = [
    ("directionality", "decoder_matrix", ">", "decoder"),
    ("directionality", "decoder_muon", ">", "decoder"),
]
