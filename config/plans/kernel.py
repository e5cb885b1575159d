"""
Does the symmetric part of W_qk compare positions, and does attention use it? What a layer reads is x = p + t, the mean
over texts at each place and the rest. P projects on the first 8 directions of p. data/runs/kernel.py has the measures.

    python -m config.plan kernel --run
    python -m data.runs out/plans/kernel/* --plan config/plans/kernel.py --csv kernel.csv

What we predict for the upper layer, as means over the seeds. In `learned` from_positions is between 0.4 and 0.8, and
from_contents is below 0.1; kernel_symmetry is above 0.6, and in `decoder` within 0.3 of 0. In `causal_both`, where the
mask is taken away after 1,600 steps, from_positions is above from_rest as well. If only P M_h P is left of the
encoder's attention, its loss rises by less than 0.3 nats, and without P M_h P by more than 1. In the decoder it is the
other way round: without P M_h P its loss rises by less than 0.1, and with nothing else by more than 0.2. kernel_logits
is above 0.9 in `learned`. So we expect all six tests to be shown; the least sure are the fourth and the third.

The lower layer is not predicted: in pilots half of its symmetry, or all, was in P, and a sum over heads hides one.

Known before: pilots of seeds 991 and 101, in which from_positions was 0.68 and 0.73 of 0.78 and 0.82 in `learned`, 0.45
of 0.42 in `causal_both` (800 steps each), and kernel_symmetry of the decoder near 0. Losses of seed 991: encoder 1.614,
with P M_h P alone 1.713, without it 3.759, with no attention pattern 3.762; decoder 1.558, 1.908, 1.586 and 1.996.

What would refute it: a test that comes out the other way round; or if, over those upper layers of `learned` that are
above their 95 % limit, the sum of from_positions divided by the sum of symmetry is below 0.7 (pilots: 0.87, 0.89 and
0.78).
"""
base = "config/tiny.py"
seeds = range(601, 609)  # none of them was used before
minutes = 35

_shared = dict(learning_rate=6e-3, score_interval=100)  # the rate as in positions.py

arms = {
    "learned": _shared,
    "decoder": _shared | dict(causal=True),
    "learned_causal": _shared | dict(causal=True, objective="masked"),
    # the mask is taken away, and the text goes on where its parent ended
    "causal_both": _shared | dict(parent="learned_causal", objective="masked", skip_iters=1600),
}

planned = [
    ("from_positions_1 - from_rest_1", "learned", ">", "0"),
    ("from_positions_1 - from_contents_1", "learned", ">", "0"),
    ("kernel_symmetry_1", "learned", ">", "decoder"),
    ("from_positions_1 - from_rest_1", "causal_both", ">", "0"),
    ("loss_rest_1 - loss_kernel_1", "learned", ">", "0"),
    ("loss_kernel_1 - loss_rest_1", "decoder", ">", "0"),
]
