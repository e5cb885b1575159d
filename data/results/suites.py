"""
Scores over the training of a pretrained model, and comparisons of the members of a suite: numbers and tables.
"""

from typing import NamedTuple

import numpy as np

SCORES = ["symmetry", "directionality"]
GRID = np.linspace(0, 1, 21)  # relative depth


# ---- over training -----------------------------------------------------------------------------------------------


class Training(NamedTuple):
    """One stack of a model over its training. If a checkpoint does not have a layer, its scores are nan."""

    name: str
    causal: bool | None
    steps: np.ndarray  # (P,), rising
    revisions: list[str]  # P
    n: int  # W_qk is n x n, the product of factors (n, r)
    r: int
    symmetry: np.ndarray  # (P, L)
    directionality: np.ndarray  # (P, L)


def find_trainings(targets, rows, surveys):
    """
    The trainings that have rows. targets: the checkpoints, each with model, revision and step. rows: a list of
    tables.ModelScore. surveys: from data/pretrained/suites.py; they know which stacks are causal.
    """
    causal = {(seen.model, stack): seen.causal[stack] for seen in surveys for stack in seen.causal}
    steps = {(target.model, target.revision): target.step for target in targets if target.step is not None}
    found = {}  # (model, stack) -> (step, revision) -> layer -> row
    for row in rows:
        if row.head is None and (row.model, row.revision) in steps:
            checkpoint = steps[row.model, row.revision], row.revision
            found.setdefault((row.model, row.stack), {}).setdefault(checkpoint, {})[row.layer] = row
    trainings = []
    for (model, stack), checkpoints in found.items():
        order = sorted(checkpoints)
        row = next(iter(checkpoints[order[0]].values()))  # any row, because all have the same size
        layers = sorted({layer for rows_of_layers in checkpoints.values() for layer in rows_of_layers})
        values = {score: np.full((len(order), len(layers)), np.nan) for score in SCORES}
        for p, checkpoint in enumerate(order):
            for i, layer in enumerate(layers):
                if layer in checkpoints[checkpoint]:
                    for score in SCORES:
                        values[score][p, i] = getattr(checkpoints[checkpoint][layer], score)
        trainings.append(Training(f"{model} {stack}".strip(), causal.get((model, stack)),
                                  np.array([step for step, _ in order]), [revision for _, revision in order],
                                  row.n, row.r, **values))
    return trainings


def quartiles(values):
    """(..., L) -> (3, ...): first quartile, median and third quartile over layers."""
    return np.nanpercentile(values, [25, 50, 75], axis=-1)


def with_quartiles(values):
    q1, median, q3 = quartiles(values)
    return f"{median:5.2f} [{q1:.2f}, {q3:.2f}]"


def training_table(trainings):
    """A line for each checkpoint: median [q1, q3] over layers."""
    lines = []
    for training in trainings:
        lines.append(f"{training.name}: {training.symmetry.shape[1]} layers")
        lines.append(f"{'step':>12}  {'symmetry [quartiles]':24}{'directionality [quartiles]':26}  revision")
        for i, step in enumerate(training.steps):
            symmetry = with_quartiles(training.symmetry[i])
            directionality = with_quartiles(training.directionality[i])
            lines.append(f"{step:12,.0f}  {symmetry:24}{directionality:26}  {training.revisions[i]}")
    return "\n".join(lines)


# ---- suites ------------------------------------------------------------------------------------------------------


class Scored(NamedTuple):
    """A member of a suite that has been scored: its row of suites.csv, and the scores of its layers."""

    member: object  # a Member of data/pretrained/suites.py
    n: int  # the size of its layers, as in Training
    r: int
    symmetry: np.ndarray  # (L,)
    directionality: np.ndarray  # (L,)

    def depth(self):
        """The relative depth of its layers, (L,): 0 is the first layer, 1 the last."""
        n_layer = len(self.symmetry)
        return np.array([0.5]) if n_layer == 1 else np.linspace(0, 1, n_layer)


def find_scored(members, rows):
    """The members that have rows and are not trainings."""
    found = []
    for member in members:
        layers = []
        for row in rows:
            wanted_stack = not member.stack or row.stack == member.stack
            if row.model == member.name and row.head is None and wanted_stack:
                layers.append(row)
        if layers and member.kind != "trajectory":
            layers.sort(key=lambda row: (row.stack, row.layer))
            symmetry = np.array([row.symmetry for row in layers])
            directionality = np.array([row.directionality for row in layers])
            found.append(Scored(member, layers[0].n, layers[0].r, symmetry, directionality))
    return found


class Pair(NamedTuple):
    size: str
    encoder: Scored
    decoder: Scored


def find_pairs(scored):
    """The encoder and the decoder of each size, in the order of the suite. A size with only one of them has no pair."""
    halves = {}  # size -> causal -> Scored
    for one in scored:
        if one.member.kind == "pair":
            halves.setdefault(one.member.size, {})[one.member.causal] = one
    pairs = []
    for size, half in halves.items():
        if False in half and True in half:
            pairs.append(Pair(size, half[False], half[True]))
    return pairs


def difference(pair, score):
    """Encoder minus decoder at the relative depths of GRID, with linear interpolation between layers."""
    encoder = np.interp(GRID, pair.encoder.depth(), getattr(pair.encoder, score))
    decoder = np.interp(GRID, pair.decoder.depth(), getattr(pair.decoder, score))
    return encoder - decoder


def suite_table(scored, trainings):
    """
    For each member, median [q1, q3] over layers. For each size, encoder minus decoder, mean over depth. The trainings.
    """
    width = max([len(one.member.name) for one in scored], default=0)
    aims = max([len(one.member.objective) for one in scored], default=0)
    lines = [f"{'member':{width}}  {'objective':{aims}}  size  layers  {'symmetry [quartiles]':24}"
             "directionality [quartiles]"]
    for one in scored:
        member = one.member
        lines.append(f"{member.name:{width}}  {member.objective:{aims}}  {member.size:4}  {len(one.symmetry):6}  "
                     f"{with_quartiles(one.symmetry):24}{with_quartiles(one.directionality)}")
    for pair in find_pairs(scored):
        means = [difference(pair, score).mean() for score in SCORES]
        lines.append(f"encoder less decoder, {pair.size}: symmetry {means[0]:+.2f}, directionality {means[1]:+.2f}")
    if trainings:
        lines.append(training_table(trainings))
    return "\n".join(lines)
