"""
Is column dominance Adam's? Columns of W_qk belong to rows of k.weight, and Adam divides every entry by a number of its
own, v. Here only the updates of q and k change: `matrix` has one v for each matrix, and `muon` turns with a rotation.

    python -m config.plan basis --run
    python -m data.runs out/plans/basis/* --plan config/plans/basis.py --csv basis.csv

What we predict, as medians over the two layers and means over the seeds. `decoder` has a directionality between -0.65
and -0.4, as before. With `decoder_muon` and with `decoder_matrix` it is between -0.5 and -0.15, at losses within 0.05
nats of that of `decoder`. So columns still dominate, and less: both tests are shown, and both could as well not be. The
symmetry of `learned` does not depend on it: the 95 % intervals of `learned_matrix` and `learned_muon` less `learned`
are within 0.15 of 0. Their losses are not predicted.

Known before, from two programs. In an older one a decoder of seed 991 had -0.38 (mean of two layers) with AdamW, +0.06
and +0.18 with Muon at the same loss, and -0.21 and -0.35 with one v for each matrix; one layer, by six seeds, -0.50
with AdamW and -0.11 with one number for each of its matrices. With this code seed 991 has -0.51 and -0.24 by layer with
AdamW, -0.18 and -0.42 with one v, and -0.35 and -0.84 with Muon; seeds 992 and 993 have -0.13, -0.48 and -0.04, -0.41
with Muon. Losses are 1.560 to 1.574. So a first version of this plan, which predicted none with Muon, was too sure.

What would refute it: a test that comes out the other way round. If `decoder_muon` and `decoder_matrix` are as low as
`decoder`, columns dominate in whatever coordinates the optimizer of q and k works, and Adam is not the reason. If a
loss is higher by more than 0.1 nats, it is another training, and says little.
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

picture = dict(
    title="About half of column dominance in decoders is Adam's",
    labels={"directionality": dict(decoder="AdamW", decoder_matrix="one scale a matrix", decoder_muon="Muon")},
)
