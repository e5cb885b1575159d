"""
The four models for the second laboratory, one seed each, from config/plans/positions.py.

    python -m config.plan tests/exercises/lab.py --run
"""
from config.plans import positions

base = positions.base
seeds = [101]
arms = {name: positions.arms[name] for name in ("learned", "learned_causal", "rotary", "untied")}
