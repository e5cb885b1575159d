"""
Does what helps at C = 128 help in wider and deeper models? Heads of 64 as everywhere, and each size at the learning
rate that a tuning as in config/arms/tuning.py found.

    python -m config config/arms/widths.py | grep _768 | xargs -r -P 2 -L 1 python train.py      # one of the sizes

768 is BERT's own width. There its 0.02 is 1 / sqrt(3 C) (0.0208), so "random_768" asks what is left of likeness when
scale is out of the question.
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

_sizes = {
    "64": dict(n_embd=64, n_head=1, learning_rate=2e-3),
    "256": dict(n_embd=256, n_head=4, learning_rate=1e-3),
    "512": dict(n_embd=512, n_head=8, max_iters=500, learning_rate=1e-3),
    "deep": dict(n_layer=4, n_embd=256, n_head=4, learning_rate=1e-3),  # the sizes of config/bert_mini.py
}
for _size in _sizes.values():
    _size["qk_std"] = _size["v_std"] = (3 * _size["n_embd"]) ** -0.5
_sizes["768"] = dict(n_embd=768, n_head=12, max_iters=300, learning_rate=5e-4)  # at BERT's 0.02

arms = {}
for _name, _size in _sizes.items():
    for _start in "random", "symmetric", "tilted":
        arms[f"{_start}_{_name}"] = dict(_size, init=_start)
