"""
The learning rate of config/arms/decoders_deep.py: three or more for each start, one run each, of a seed that no
comparison uses.

    python -m config config/arms/tuning_decoders_deep.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

_mini = dict(causal=True, max_iters=500, n_layer=4, n_head=4, n_embd=256)  # the sizes of config/bert_mini_decoder.py
_big = (3 * 256) ** -0.5  # 1 / sqrt(3 C)
_starts = {
    "bert": dict(_mini),
    "random": dict(_mini, qk_std=_big, v_std=_big),
    "symmetric_bert": dict(_mini, init="symmetric"),
    "symmetric": dict(_mini, init="symmetric", qk_std=_big, v_std=_big),
}
arms = {}
for _rate in 2e-3, 1e-3, 4e-3:
    for _start, _changes in _starts.items():
        arms[f"{_start}_deep_decoder_{_rate:g}"] = dict(_changes, learning_rate=_rate, eval_interval=50)
