"""
What makes W_qk symmetric: seeing both sides, or filling in masks? These arms change one of the two at a time. A file to
copy: each arm runs with each seed, into out/arms/NAME/ARM-SEED, where NAME is the name of the file.

    python -m config.arms emergence | xargs -r -P 2 -L 1 python train.py    # -P: runs at a time
    python analyze.py --runs out/arms/emergence/* --csv emergence.csv       # table, tests, and the numbers
"""
base = "config/tiny.py"  # what all arms share: a file that train.py takes
seeds = [1, 2, 3, 4, 5]  # an exact test needs six or more to find anything at 5 %

arms = {  # name: the keys that differ from base; python train.py --help lists them
    "encoder": dict(),
    "decoder": dict(causal=True),
    "decoder_masked": dict(causal=True, objective="masked"),  # as the authors trained theirs
}
