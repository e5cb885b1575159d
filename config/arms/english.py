"""
Does what was found on code hold for English? The scale and the structure of a start, and both. Any text of about 2 MB or
more will do, prepared with

    python data/text/prepare.py FILE... --out_dir=data/text/bytes
    python -m config config/arms/english.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuned

base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

_english = dict(data_dir="data/text/bytes")
arms = {
    "random_english": dict(_english),
    "symmetric_english": dict(_english, init="symmetric"),
    "random_sharp_english": dict(_english, **tuned.arms["random_128_sharp"]),
    "symmetric_tuned_english": dict(_english, **tuned.arms["symmetric_128"]),
}
