"""
Is it [MASK] that keeps the contents from becoming symmetric? W_qk of these models sees contents alone, because their
positions are untied. Of the tokens to predict, some are seen as [MASK], some as a random token, and the rest as they
are: 100/0/0 (masked), 0/100/0 (random) or 0/50/50 (half). BERT's 80/10/10 is in positions.py. Each has an arm with
causal attention.

    python -m config.plan masks --run
    python -m data.runs out/plans/masks/* --plan config/plans/masks.py --csv masks.csv

What we predict: without [MASK], W_qk of contents becomes symmetric in encoders, and less so with causal attention. With
[MASK] it does not. Early in training nearly all of its gradient comes from pairs whose query is [MASK] and whose key is
another token, and such a pair has no mirror image. Known before: three encoders without [MASK] ended at 0.24 to 0.47 in
the upper layer and two causal models at 0.16 and 0.30, where three encoders with [MASK] ended at -0.01 to 0.05. They
were on another corpus, and their learning rate was not tuned.

What would refute it: contents as symmetric with [MASK] as without. If only sums over heads were symmetric, the test of
single heads would not come out. If causal models without [MASK] are as symmetric as encoders, it is not seeing both
sides that makes contents symmetric.
"""
base = "config/tiny.py"
seeds = range(101, 109)
minutes = 30

_shared = dict(positions="untied", learning_rate=3e-3)  # the best of 1.5e-3, 3e-3, 6e-3 for 80/10/10, with seed 100
_causal = dict(objective="masked", causal=True)

arms = {
    "masked": _shared | dict(mask_share=1.0, random_share=0.0),
    "masked_causal": _shared | _causal | dict(mask_share=1.0, random_share=0.0),
    "random": _shared | dict(mask_share=0.0, random_share=1.0),
    "random_causal": _shared | _causal | dict(mask_share=0.0, random_share=1.0),
    "half": _shared | dict(mask_share=0.0, random_share=0.5),
    "half_causal": _shared | _causal | dict(mask_share=0.0, random_share=0.5),
}

planned = [
    ("symmetry", "half", ">", "masked"),
    ("symmetry", "random", ">", "masked"),
    ("heads", "half", ">", "masked"),
    ("symmetry", "half", ">", "half_causal"),
    ("symmetry", "random", ">", "random_causal"),
    ("positions", "half", ">", "half_causal"),
]

picture = dict(
    title="[MASK] may prevent symmetry: with none it is higher, but for random tokens so is chance",
    labels={"symmetry": dict(masked="[MASK]", half="half random, half left", random="random tokens")},
    with_chance=["masked", "half", "random"],
)
