"""
512 dimensions, the widest that two CPU cores train here: does scale help where BERT's 0.02 is nearly 1 / sqrt(3 C), and
does W_k = W_q? Each at the learning rate and the scale that config/arms/tuning_512.py found.

    python -m config config/arms/tuned_512.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_512

base = tuning_512.base
seeds = [1, 2, 3, 4, 5, 6, 7]

_best = {
    "bert_512": tuning_512.arms["bert_512_0.001"],
    "random_512": tuning_512.arms["random_512_0.001"],
    "symmetric_512": tuning_512.arms["symmetric_512_scale_0.1"],
    "random_512_tenth": tuning_512.arms["random_512_scale_0.1"],  # random at the scale of symmetric_512
}
arms = {name: dict(changes, eval_interval=25) for name, changes in _best.items()}
