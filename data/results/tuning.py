"""
Which learning rate, and which scale of q and k, is best for each start: a comparison in which arms that are otherwise
the same differ in learning_rate. Every start is tuned alike before starts are compared at their best.
"""

import json
import math
from typing import NamedTuple

import numpy as np

from data.results import compare
from data.results.records import FREE


class Rate(NamedTuple):
    """One learning rate of a cell: what the runs of one arm came to."""

    learning_rate: float
    loss: float  # at the end, mean over seeds [nats/token]
    first_step: float  # at or below the level, smoothed, median over seeds; inf: never
    n_seeds: int

    def rank(self):
        """A key to sort by: the best is lowest. What was run with more seeds goes before, as one run can be lucky."""
        return -self.n_seeds, self.loss if math.isfinite(self.loss) else math.inf  # nan is less than nothing


class Cell(NamedTuple):
    """One start at one scale and width."""

    start: str  # as in init.py, and what else it differs in
    n_embd: int
    scale: float  # C std^2 of q and k
    v_scale: float  # C std^2 of v
    rates: list[Rate]  # rising

    def best(self):
        return min(self.rates, key=Rate.rank)

    def series(self):
        """The same for cells that differ in the scale of q and k alone: the picture joins them, the table stars one."""
        return self.n_embd, self.start, round(self.v_scale, 3)


def varies_rates(arms):
    """Whether there are arms that are the same but for their learning rate."""
    rates = {}
    for records in arms.values():
        config = records[0].config
        rates.setdefault(but_for_rate(config), set()).add(config["learning_rate"])
    return any(len(found) > 1 for found in rates.values())


def but_for_rate(config):
    """A text that is the same for configurations that differ in their learning rate, or in keys of FREE, alone."""
    others = {key: value for key, value in config.items() if key != "learning_rate" and key not in FREE}
    return json.dumps(others, sort_keys=True)


def find_cells(arms, level):
    """arms: {name: its records} -> Cells, by width, start and scale."""
    configs, rates = {}, {}  # but_for_rate -> a configuration, and the Rates
    for records in arms.values():
        config = records[0].config
        key = but_for_rate(config)
        configs[key] = config
        rates.setdefault(key, []).append(rate_of(compare.counted(records), level))
    cells = []
    for key, config in configs.items():
        n_embd = config["n_embd"]
        cells.append(Cell(
            start=name_of_start(config),
            n_embd=n_embd,
            scale=n_embd * config["qk_std"] ** 2,
            v_scale=n_embd * config["v_std"] ** 2,
            rates=sorted(rates[key]),
        ))
    return sorted(cells, key=lambda cell: (cell.n_embd, cell.start, cell.v_scale, cell.scale))


def name_of_start(config):
    start = config["init"]
    if config["causal"]:
        start += " decoder"
    if config["qk_norm"]:
        start += " qk_norm"
    return start


def rate_of(records, level):
    losses = [record.val_loss[-1] for record in records]
    steps = [compare.leaving_step(record, level) for record in records]
    return Rate(
        learning_rate=records[0].config["learning_rate"],
        loss=float(np.mean(losses)),
        first_step=float(np.median(steps)),
        n_seeds=len(records),
    )


def find_best(cells):
    """{Cell.series: its best cell}"""
    best = {}
    for cell in cells:
        key = cell.series()
        if key not in best or cell.best().rank() < best[key].best().rank():
            best[key] = cell
    return best


def cells_table(cells, level):
    """A line for each cell: what every learning rate ends at, and when the best of them comes to the level."""
    best = find_best(cells).values()
    lines = [f"{'C':>4}  {'start':18}{'C std^2: q, k':>13}{'v':>6}   loss at the end [nats/token], by learning rate"]
    for cell in cells:
        losses = "   ".join(f"{rate.learning_rate:g} {rate.loss:.3f} ({rate.n_seeds})" for rate in cell.rates)
        first = cell.best().first_step
        left = f"{first:.0f}" if math.isfinite(first) else "not left"
        mark = "*" if cell in best else " "
        lines.append(f"{cell.n_embd:4}  {cell.start:18}{cell.scale:13.3g}{cell.v_scale:6.2g} {mark} {losses}; at "
                     f"{cell.best().learning_rate:g}: {left}")
    lines.append(f"(n): seeds; last: step at which the best learning rate comes to {level:g} nats/token; *: the best "
                 "of this start, width and scale of v, among those with the most seeds")
    return "\n".join(lines)
