"""
What is new in this entry? Say it here in a sentence. The rules are in data/results/README.md, question 8.

    python -m config.plan config/records/template.py            # refuses what is against them, and says what lacks
    python -m config.plan config/records/template.py --run      # does the runs
    python -m data.runs out/plans/template/* --plan config/records/template.py --csv data/results/csv/template.csv

What we predict for the mean number of steps: A to B. Tuned with seeds 1 to 8 in N trials.
"""
from config.plans.benchmark import arms as _arms
from config.plans.benchmark import base, most_params, seeds  # which an entry has in common with the race
from config.records.muon import arms as _records

arms = {
    "learned": _arms["learned"],  # the baseline
    "muon": _records["muon"],  # the record
    "template": _records["muon"] | dict(learning_rate=8e-3),  # the entry: put its keys here
}

planned = [("steps_to_1.8", "template", "<", "muon")]
