"""
The four models of the second laboratory, one seed of config/plans/positions.py each.

    python -m config.plan tests/exercises/lab.py --run
"""
from config.plans import positions

base = positions.base
seeds = [101]
arms = {name: positions.arms[name] for name in ("learned", "learned_causal", "rotary", "untied")}
