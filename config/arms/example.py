"""
A comparison to copy. Each arm runs with each seed, into out/arms/NAME/ARM-SEED, where NAME is the name of this file.

    python -m config.arms example                                                    # prints one run a line
    python -m config.arms example --max_iters=40 | xargs -r -P 2 -L 1 python train.py    # -P: runs at a time
    python analyze.py --runs out/arms/example/* --csv example.csv                    # table, tests, and the numbers
"""
base = "config/tiny.py"  # what all arms share: a file that train.py takes
seeds = [1, 2, 3]  # an exact test needs six or more to find anything at 5 %

_big = (3 * 64) ** -0.5  # names with an underscore are your own
arms = {  # name: the keys that differ from base; python train.py --help lists them
    "random": dict(),
    "random_qkv": dict(qk_std=_big, v_std=_big),
}
