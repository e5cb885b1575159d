"""
Do four layers show what two do not: columns under causal attention? Models of four layers of 128 dimensions, twice as
long as small.py: an encoder, a model with causal attention that fills in masks as the authors' decoders do, and a
decoder that predicts the next token.

    python -m config.plan deep --run
    python -m data.runs out/plans/deep/* --plan config/plans/deep.py --csv deep.csv

What we predict for the end, as means over eight seeds. Known before: a pilot with seed 100 and twice the steps had a
directionality of -0.59, -0.56, -0.55, -0.34 by layer in `decoder`, and of 0.01, -0.37, -0.45, -0.71 in
`learned_causal`; its symmetry was 0.02, -0.07, -0.06, -0.10 at a chance of 0.02 to 0.06. Three encoders of twice the
steps had a median directionality of 0.00, -0.06, -0.31.
- Directionality: `decoder` is below -0.3 in layers 0, 1 and 2, and its layer 3 is the highest of its four.
  `learned_causal` is within 0.2 of 0 in layer 0, falls from layer to layer, and is below -0.4 in layer 3. `learned` is
  within 0.3 of 0 in its first layer. In the median over layers both are below `learned`.
- Symmetry: the median of `learned` is above 0.15, those of both others are between -0.1 and 0.05. So W_qk does not
  become skew here: all layers of both are above -0.15.
- Heads: the highest head of the last layer is above 0.3 in `learned`. In `learned_causal` and `decoder` it is below 0.2:
  with two heads a layer, none becomes symmetric by itself, as one of four did with 256 dimensions.

What would refute it: a test that comes out the other way round, a layer of `decoder` above 0, or a highest head of the
last layer above 0.3 with causal attention.
"""
base = "config/small.py"
seeds = range(201, 209)
minutes = 60

_shared = dict(n_layer=4, max_iters=1800, score_interval=100, eval_interval=100, learning_rate=1e-3)

arms = {
    "learned": _shared,
    "learned_causal": _shared | dict(objective="masked", causal=True),
    "decoder": _shared | dict(causal=True),
}

planned = [
    ("directionality", "decoder", "<", "learned"),
    ("directionality", "learned_causal", "<", "learned"),
    ("symmetry", "learned - decoder", ">", "learned_causal - learned"),  # learned is above the mean of both others
]
