"""
Best against best at C = 256, as config/arms/tuned.py does it at 64 and 128; and the random start that was best there.

    python -m config config/arms/tuned_wide.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms.tuning import _cell

base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

arms = {  # all at the learning rate of config/small.py, which was the best of three for every start
    "bert_256": dict(n_embd=256, n_head=4),
    "random_256_sharp": _cell("random", 256, 1),  # logits of deviation 1
    "random_256": _cell("random", 256, 0.33),
    "symmetric_256": _cell("symmetric", 256, 0.33),
    "tilted_256": _cell("tilted", 256, 0.1),
}
