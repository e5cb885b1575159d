"""
What makes W_qk symmetric: seeing both sides, filling in masks, or positions? The first six arms fill in masks, with and
without causal attention, and have positions of three kinds. The last two predict the next token. A file to copy: each
arm runs with each seed, into out/plans/NAME/ARM-SEED, where NAME is the name of the file.

    python -m config.plan positions --run    # two at a time; --jobs=4: four
    python -m data.runs out/plans/positions/* --plan config/plans/positions.py --csv positions.csv

What we predict: an encoder with learned positions becomes symmetric. With causal attention it does not, and neither
does one whose W_qk sees no positions (rotary, untied). The matrix that untied positions have of their own becomes
symmetric instead, but not with causal attention. Single heads have less symmetry than their layer, and still more than
with causal attention. Columns dominate more with causal attention. Known before: runs of the same kind on other
corpora, and measurements by others in which single heads had a third to two thirds of the symmetry of their layer.

What would refute it: a test that comes out the other way round, or an encoder with rotary or untied positions whose
W_qk is as symmetric as with learned ones. Without an effect on single heads, the symmetry would be one of sums alone.
"""
base = "config/tiny.py"  # what all arms share: a file that train.py takes
seeds = range(101, 109)  # eight: an exact test needs six or more to find anything at 5 %
minutes = 45

_rate = dict(learning_rate=6e-3)  # the best of 1.5e-3, 3e-3 and 6e-3 for `learned`, with seed 100
_masked = dict(objective="masked", causal=True)  # as the authors trained their decoders

arms = {  # name: the keys that differ from base; python train.py --help lists them
    "learned": _rate,
    "learned_causal": _rate | _masked,
    "rotary": _rate | dict(positions="rotary"),
    "rotary_causal": _rate | _masked | dict(positions="rotary"),
    "untied": _rate | dict(positions="untied"),
    "untied_causal": _rate | _masked | dict(positions="untied"),
    "decoder": _rate | dict(causal=True),
    "decoder_rotary": _rate | dict(causal=True, positions="rotary"),
}

planned = [  # measure, arm, direction, arm: config/plan.py
    ("symmetry", "learned", ">", "learned_causal"),
    ("symmetry", "learned", ">", "rotary"),
    ("symmetry", "learned", ">", "untied"),
    ("heads", "learned", ">", "learned_causal"),
    ("positions", "untied", ">", "untied_causal"),
    ("directionality", "learned_causal", "<", "learned"),
]

picture = dict(  # what python -m data.runs --plot draws: the name of an arm at its line, by measure
    title="If positions are added to its tokens, an encoder turns symmetric.\n"
          "If positions have matrices of their own, these do.",
    labels={"symmetry": dict(learned="encoder", learned_causal="causal mask", rotary="rotary", untied="untied"),
            "positions": dict(untied="untied", untied_causal="causal mask")},
    with_chance=["learned", "untied"],
)
