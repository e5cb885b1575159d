"""
The learning rate of config/arms/deep.py: three or more for each start, one run each, of a seed that no comparison uses.

    python -m config config/arms/tuning_deep.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

_mini = dict(n_layer=4, n_head=4, n_embd=256)  # the sizes of config/bert_mini.py
_big = (3 * 256) ** -0.5  # 1 / sqrt(3 C)
_starts = {
    "bert": dict(_mini),
    "random": dict(_mini, qk_std=_big, v_std=_big),
    "symmetric": dict(_mini, init="symmetric", qk_std=_big, v_std=_big),
}
arms = {}
for _rate in 1e-3, 5e-4, 2e-3:
    for _start, _changes in _starts.items():
        arms[f"{_start}_deep_{_rate:g}"] = dict(_changes, learning_rate=_rate, eval_interval=50)
# 5e-4, the lowest of three, came out as the best for BERT's start alone: one below it.
arms["bert_deep_0.00025"] = dict(_starts["bert"], learning_rate=2.5e-4, eval_interval=50)
# The scale was chosen in two layers: one to each side of it for the random start, which the others have to beat.
for _scale in 0.1, 1:
    _std = (_scale / 256) ** 0.5
    arms[f"random_deep_scale_{_scale}"] = dict(_starts["random"], qk_std=_std, learning_rate=1e-3, eval_interval=50)
