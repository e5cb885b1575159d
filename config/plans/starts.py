"""
Does a symmetric start help because it is symmetric? These starts of W_q and W_k separate symmetry from what else it
brings (init.py): tilted has its trace and no symmetry in its heads, indefinite has symmetry and no trace, and negative
has symmetry and a trace below 0. Two arms have the standard deviation of a new nn.Linear, and two have untied
positions. All runs are encoders of 128 dimensions.

    python -m config.plan starts --run
    python -m data.runs out/plans/starts/* --plan config/plans/starts.py --csv starts.csv

What we predict for the loss after 900 steps: symmetric and tilted are lower than random, and indefinite a little;
negative is higher; the larger standard deviation is lower. The gain of the symmetric start is larger with learned than
with untied positions. Known before, on another corpus: -0.211, -0.222, -0.108, +0.159 and -0.436 nats in this order,
and nothing with untied positions.

What would refute it: if indefinite gained as much as symmetric, symmetry would be enough, and if tilted gained nothing,
it would be needed. If the interaction is not shown, positions do not decide whether the start helps.
"""
base = "config/small.py"
seeds = range(101, 109)
minutes = 40

_rate = dict(learning_rate=1e-3)  # the best of 5e-4, 1e-3 and 2e-3 for `random`, with seed 100
_linear = dict(qk_std="linear", v_std="linear")

arms = {
    "random": _rate,
    "symmetric": _rate | dict(init="symmetric"),
    "tilted": _rate | dict(init="tilted"),
    "indefinite": _rate | dict(init="indefinite"),
    "negative": _rate | dict(init="negative"),
    "random_linear": _rate | _linear,
    "symmetric_linear": _rate | _linear | dict(init="symmetric"),
    "untied": _rate | dict(positions="untied"),
    "untied_symmetric": _rate | dict(positions="untied", init="symmetric"),
}

planned = [
    ("loss", "symmetric", "<", "random"),
    ("loss", "tilted", "<", "random"),
    ("loss", "indefinite", "<", "random"),
    ("loss", "negative", ">", "random"),
    ("loss", "random_linear", "<", "random"),
    ("loss", "symmetric - random", "<", "untied_symmetric - untied"),
]

picture = dict(
    title="An encoder of 128 dimensions: larger initial weights help more than $W_k = W_q$,\n"
          "and positions with matrices of their own (untied) most",
    labels={"loss": dict(random="random start", symmetric="$W_k = W_q$", random_linear="larger q, k, v",
                         symmetric_linear="both", untied="untied")},
)
