"""
768 dimensions, BERT's own width, where its 0.02 is 1 / sqrt(3 C) (0.0208): what is left of likeness when scale is out of
the question? Two layers, 12 heads of 64, each start at the better of the two learning rates of config/arms/tuning_768.py.

    python -m config config/arms/width_768.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

_wide = dict(n_embd=768, n_head=12, max_iters=300, dtype="float32")  # float32: not every CPU has units for bfloat16
_rate = {"random": 1e-3, "symmetric": 1e-3, "tilted": 1e-3}
arms = {f"{_init}_768": dict(_wide, init=_init, learning_rate=_rate[_init]) for _init in _rate}
