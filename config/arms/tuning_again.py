"""
The best of config/arms/tuning.py and config/arms/tuning_wide.py once more with another seed, because one run can be
lucky: of each start the two best scales, at the two best learning rates. At the higher one some runs do not leave the
plateau at all. At C = 256 the best learning rate is far ahead of the others, so it is alone.

    python -m config config/arms/tuning_again.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning, tuning_wide

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

for _start, _scales in dict(random=[0.33, 0.1], symmetric=[0.1, 0.33], tilted=[0.1, 0.33]).items():
    for _scale in _scales:
        _name = f"{_start}_256_{_scale}_0.001"
        arms[_name] = tuning_wide.arms[_name]
