"""
Does the mask make W_qk symmetric, and does it unmake it? A masked language model is trained with attention to both
sides, or with causal attention. Then the mask alone is switched, or not, and the training goes on for as long again.
All fill in masked tokens, so nothing else changes: not the objective, not the data, not the loss.

    python -m config.plan switch --run
    python -m data.runs out/plans/switch/* --plan config/plans/switch.py --csv switch.csv

What we predict for the symmetry at the end, a median over the two layers. The mask makes it: `causal_both` ends between
0.25 and 0.6, and `causal_causal` within 0.1 of 0. The mask hardly unmakes it: `both_causal` keeps more than half of
what `both` had when it was switched, and ends 0.05 to 0.3 below `both_both`, which ends between 0.3 and 0.6. So
`causal_both` is above `both_causal`, by 0 to 0.25, though they end with other masks than they began with. Of the three
tests the first is the surest, and the third the least sure: its difference was +0.24 and 0.00 in the pilots. Losses:
`both_causal` ends above `causal_causal`, by less than 0.1 nats. Known before: pilots with two other seeds, in which
these were, in this order, 0.51 and 0.32; 0.08 and -0.04; 0.27 and 0.32; 0.44 and 0.44, after 0.41 and 0.31 in `both`.

What would refute it: a test that comes out the other way round. If `causal_both` stays within 0.1 of 0, symmetry needs
attention to both sides from the first step on. If `both_causal` falls below 0.1, the mask unmakes it as it makes it.
"""
base = "config/tiny.py"
seeds = range(301, 309)  # none of them was used before
minutes = 25

_shared = dict(objective="masked", learning_rate=6e-3)  # as in positions.py

arms = {  # parent: the arm whose last weights a run begins with
    "both": _shared,
    "causal": _shared | dict(causal=True),
    "both_both": _shared | dict(parent="both"),
    "both_causal": _shared | dict(parent="both", causal=True),
    "causal_causal": _shared | dict(parent="causal", causal=True),
    "causal_both": _shared | dict(parent="causal"),
}

planned = [
    ("symmetry", "causal_both", ">", "causal_causal"),
    ("symmetry", "both_causal", "<", "both_both"),
    ("symmetry", "causal_both", ">", "both_causal"),
]

picture = dict(
    title="Remove the causal mask, and $W_{qk}$ turns symmetric.\nAdd one, and symmetry falls, but not to zero.",
    labels={"symmetry": dict(both="bidirectional", causal="causal", both_both="bidirectional → bidirectional",
                             both_causal="bidirectional → causal", causal_causal="causal → causal",
                             causal_both="causal → bidirectional")},
    with_chance=["both", "both_both"],
)
