"""
The best of config/arms/tuning.py once more with another seed, because one run can be lucky: of each start the two best
scales, at the two best learning rates. At the higher one some runs do not leave the plateau at all.

    python -m config config/arms/tuning_again.py | xargs -P 2 -L 1 python train.py
"""
from config.arms import tuning

base = tuning.base
seeds = [102]

_best_scales = {
    64: dict(random=[1, 0.33], symmetric=[0.33, 1], tilted=[0.33, 0.1]),
    128: dict(random=[1, 0.33], symmetric=[0.33, 0.1], tilted=[0.33, 0.1]),
}
_best_rates = 1e-3, 2e-3
arms = {}
for _width, _starts in _best_scales.items():
    for _start, _scales in _starts.items():
        for _scale in _scales:
            for _rate in _best_rates:
                _name = f"{_start}_{_width}_{_scale}_{_rate:g}"
                arms[_name] = tuning.arms[_name]
    for _rate in _best_rates:
        _name = f"bert_{_width}_{_rate:g}"
        arms[_name] = tuning.arms[_name]
