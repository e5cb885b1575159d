"""
Tables that analyze.py prints, and the CSV files that it writes and reads.
"""

import csv
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.results import compare, null
from data.results.runs import append, replacing


class ModelScore(NamedTuple):
    """A row of the CSV of pretrained models: the scores of one layer, or of one of its heads."""

    model: str
    stack: str  # encoder, decoder, ...; "" where the model has one
    layer: int
    head: int | None  # None: the whole layer; an empty cell
    n: int  # W_qk is n x n, the product of factors (n, r)
    r: int
    symmetry: float
    directionality: float
    directionality_eq17: float


class Summary(NamedTuple):
    """One stack of layers of one model: quartiles (q1, median, q3) over its layers, and what is known of it."""

    model: str
    stack: str
    n_layer: int
    n_params: float
    causal: bool | None
    published: dict  # the row of data/pretrained/models.csv that is about it, or {}
    outside: int | None  # layers with a directionality that random factors seldom have, or None: not known
    n: int  # of its layers, as in ModelScore
    r: int
    symmetry: tuple
    directionality: tuple
    directionality_eq17: tuple

    def matrix(self):
        """Of which matrix the published numbers are: wqk, or what models.csv says instead."""
        return self.published.get("matrix", "wqk")


# ---- pretrained models -------------------------------------------------------------------------------------------


def write_scores(path, rows):
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        csv.writer(f).writerows([ModelScore._fields, *rows])


def read_scores(path):
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            head = int(row["head"]) if row["head"] else None
            rows.append(ModelScore(row["model"], row["stack"], int(row["layer"]), head, int(row["n"]), int(row["r"]),
                                   *(float(row[name]) for name in ModelScore._fields[6:])))
    return rows


def summarise(rows, facts, known):
    """
    One Summary per model and stack in rows. facts: (model, stack) -> n_params, causal; known: the rows of
    data/pretrained/models.csv, whose models go by their name or their Hub id.
    """
    published = {}
    for row in known:
        published[row["hub_id"], row["stack"]] = row
    for row in known:
        published[row["name"], row["stack"]] = row
    by_stack = {}
    for row in rows:
        if row.head is None:
            by_stack.setdefault((row.model, row.stack), []).append(row)
    summary = []
    for (model, stack), layers in by_stack.items():
        n_params, causal = facts[model, stack]
        quartiles = np.percentile([row[6:] for row in layers], [25, 50, 75], axis=0)  # (3, scores)
        summary.append(Summary(model, stack, len(layers), n_params, causal, published.get((model, stack), {}),
                               count_outside(layers), layers[0].n, layers[0].r, *quartiles.T))
    return summary


def count_outside(layers):
    """How many of them have a directionality outside of what 95 of 100 random matrices of their size have."""
    outside = 0
    for row in layers:
        band = null.band("directionality", row.n, row.r)
        if band is None:
            return None
        if not band[0] <= row.directionality <= band[1]:
            outside += 1
    return outside


def summary_table(summary):
    """Median [q1, q3] over layers; * marks a published number that is not of W_qk (`matrix` in models.csv)."""
    model_width = max(len(s.model) for s in summary)
    model_width = max(model_width, len("model"))
    stack_width = max(len(s.stack) for s in summary)
    stack_width = max(stack_width, len("stack"))
    lines = [f"{'model':{model_width}}  {'stack':{stack_width}}  layers   params  {'symmetry':20} {'published':>9}   "
             f"{'directionality':20} {'published':>9}  outside  Eq. 17"]
    for s in summary:
        params = tqdm.format_sizeof(s.n_params)
        line = f"{s.model:{model_width}}  {s.stack:{stack_width}}  {s.n_layer:6}  {params:>7}"
        star = " " if s.matrix() == "wqk" else "*"
        for name in "symmetry", "directionality":
            q1, median, q3 = getattr(s, name)
            ours = f"{median:5.2f} [{q1:.2f}, {q3:.2f}]"
            theirs = f"{float(s.published[name]):.2f}" if s.published else "-"
            line += f"  {ours:20} {theirs:>9}{star}"
        outside = "-" if s.outside is None else f"{s.outside}/{s.n_layer}"
        lines.append(f"{line} {outside:>8} {s.directionality_eq17[1]:7.2f}")
    for matrix in sorted({s.matrix() for s in summary} - {"wqk"}):
        lines.append(f"* published: {matrix}, not W_qk")
    lines.append("median [quartiles] over layers; outside: layers with a directionality that 95 of 100 random matrices "
                 "do not have;\nEq. 17: directionality as printed, whose sign can be wrong")
    return "\n".join(lines)


def layer_table(rows):
    lines = ["stack    layer  head  symmetry  directionality  as printed, Eq. 17"]
    for row in rows:
        head = "" if row.head is None else row.head
        lines.append(f"{row.stack:8} {row.layer:5} {head:>5} {row.symmetry:9.3f} {row.directionality:15.3f}"
                     f" {row.directionality_eq17:19.3f}")
    return "\n".join(lines)


# ---- runs of train.py --------------------------------------------------------------------------------------------


def run_table(run):
    """The scores of every layer of one run, first and last."""
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry = run.layers["symmetry"][:, layer]
        directionality = run.layers["directionality"][:, layer]
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    return "\n".join(lines)


def with_interval(values, form):
    mean, half = compare.interval(values)
    return format(mean, form) + ("" if np.isnan(half) else f" +- {half:{form.lstrip('+')}}")


def runs_table(arms, rows, level):
    """Table 1: mean over seeds +- half of its 95 % interval; what some seeds do not reach is not averaged."""
    lines = [f"{'arm':20} seeds  loss [nats/token]  less baseline's    {'speed-up':21}  {f'step below {level:g}':21}"
             " symmetry  direct."]
    for name, seeds in arms.items():
        mine = [row for row in rows if row["arm"] == name]
        base = compare.baseline(arms, seeds[0].config["causal"]) == name
        cells = [with_interval([row["val_loss"] for row in mine], ".3f")]
        for key, form in ("difference", "+.3f"), ("speed_up", ".0%"), ("first_step", ".0f"):
            values = np.array([row[key] for row in mine])
            missed = f"not reached by {np.isnan(values).sum()} of {len(values)}"
            cells.append("baseline" if base and key != "first_step" else
                         missed if np.isnan(values).any() else with_interval(values, form))
        scores = (np.mean([row[key] for row in mine]) for key in ("symmetry", "directionality"))
        lines.append(f"{name:20} {len(seeds):5}  {cells[0]:17}  {cells[1]:17}  {cells[2]:21}  {cells[3]:21}"
                     "{:9.2f}{:9.2f}".format(*scores))
        behind = [run for run in seeds if run.log["step"][-1] < run.config["max_iters"]]
        if behind:
            at = behind[0].log["step"][-1]
            lines.append(f"  {len(behind)} of its runs have not finished, the first of them is at {at:.0f}")
    if all(len(seeds) == 1 for seeds in arms.values()):
        lines.append("one seed each: there is no interval, and a difference may be chance")
    return "\n".join(lines)


def write_comparison(path, rows):
    with replacing(path) as temporary:
        append(temporary, list(rows[0]), [row.values() for row in rows])
