"""
The learning rate of the starts of config/arms/english_long.py: three for each, one run each, of a seed that no
comparison uses.

    python data/text/prepare.py FILE... --out_dir=data/text/bytes
    python -m config config/arms/tuning_english.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
_english = dict(  # float32, because a CPU without AVX-512 emulates bfloat16
    data_dir="data/text/bytes", max_iters=2000, eval_interval=50, dtype="float32")
_starts = {
    "random_english": dict(_english),
    "random_qkv_english": dict(_english, qk_std=_big, v_std=_big),
    "symmetric_qkv_english": dict(_english, init="symmetric", qk_std=_big, v_std=_big),
}
arms = {}
for _rate in 1e-3, 5e-4, 2e-3:
    for _name, _start in _starts.items():
        arms[f"{_name}_{_rate:g}"] = dict(_start, learning_rate=_rate)
