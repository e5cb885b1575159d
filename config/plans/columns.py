"""
Do columns dominate in decoders? An earlier test compared encoders with masked models under causal attention, which are
no decoders: they do not predict the next token. Here they do, with learned and with rotary positions.

    python -m config.plan columns --run
    python -m data.runs out/plans/columns/* --plan config/plans/columns.py --csv columns.csv

What we predict for the directionality at the end, a median over the two layers: `decoder` is below `learned`, by 0.1 to
0.5. With rotary positions the decoder is not below its encoder but above it, by 0 to 0.3. So the interaction is there:
causal attention and next tokens lower directionality with learned positions more than with rotary ones. Known before,
from positions.csv, where none of this was planned: -0.43 for -0.13 with learned positions (p = 0.031), and 0.15 higher
with rotary ones (p = 0.16).

What would refute it: a test that comes out the other way round. If the first one is not shown, columns of decoders
stay unshown in models of two layers. If the second one comes out with < instead, positions do not decide it.
"""
base = "config/tiny.py"
seeds = range(201, 209)  # none of them was used before
minutes = 25

_rate = dict(learning_rate=6e-3)  # as in positions.py

arms = {
    "learned": _rate,
    "decoder": _rate | dict(causal=True),
    "rotary": _rate | dict(positions="rotary"),
    "decoder_rotary": _rate | dict(causal=True, positions="rotary"),
}

planned = [
    ("directionality", "decoder", "<", "learned"),
    ("directionality", "decoder_rotary", ">", "rotary"),
    ("directionality", "decoder - learned", "<", "decoder_rotary - rotary"),
]
