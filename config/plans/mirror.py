"""
What is a symmetric layer made of? Its symmetry is the sum of three parts (analyze.py): what each head has by itself
(own_heads), symmetric parts that heads share (shared), and heads that are like the transpose of each other (mirror).
And what does it cost to impose one of them? With tie=same every W_k is the W_q of its head for good, as in the paper's
symmetric initialization, which training may leave. With tie=mirror the W_k of each of two heads is the W_q of the
other.

    python -m config.plan mirror --run
    python -m data.runs out/plans/mirror/* --plan config/plans/mirror.py --csv mirror.csv

What we predict for the loss at the end: `learned_mirror` is below `learned` by 0.02 to 0.10 nats, and `learned_same` is
above it by 0.15 or more. In decoders both ties cost less than 0.06. With rotary positions tie=mirror costs 0.05 to
0.15. For the symmetry of the upper layer (its parts have _1): in `learned` shared is above 0.1 in at least six of eight
seeds, and mirror above 0.2 in two to four of them. In `decoder` shared is above 0 and mirror below 0 in at least six of
eight: they cancel. `one_head` is as symmetric in the upper layer as `learned`, within 0.2, and its loss is 0.1 to 0.3
nats higher. Known before: pilots of other seeds, two to eight for each setting, which had these signs; none of four
heads.

What would refute it: a test that comes out the other way round. If tie=mirror costs as much as tie=same, it is no use
to heads that they may mirror each other. If mirror is above 0.2 in none of eight seeds, the pilots were accidents.
"""
base = "config/tiny.py"
seeds = range(401, 409)  # none of them was used before
minutes = 55

_shared = dict(learning_rate=6e-3, score_interval=100)  # the rate as in positions.py
_decoder = _shared | dict(causal=True)
_rotary = _shared | dict(positions="rotary")

arms = {
    "learned": _shared,  # two heads
    "learned_mirror": _shared | dict(tie="mirror"),
    "learned_same": _shared | dict(tie="same"),
    "one_head": _shared | dict(n_head=1),
    "four_heads": _shared | dict(n_head=4),
    "decoder": _decoder,
    "decoder_mirror": _decoder | dict(tie="mirror"),
    "decoder_same": _decoder | dict(tie="same"),
    "rotary": _rotary,
    "rotary_mirror": _rotary | dict(tie="mirror"),
}

planned = [
    ("loss", "learned_mirror", "<", "learned"),
    ("loss", "learned_same", ">", "learned"),
    ("mirror_1", "learned", ">", "decoder"),
]
