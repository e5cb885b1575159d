"""
Scores over the training of a pretrained model, and comparisons of the members of a suite: numbers and tables.
"""

from typing import NamedTuple

import numpy as np

from data.results.null import GAMMA

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
    gamma: float = GAMMA


def find_trainings(targets, rows, surveys):
    """
    The trainings that have rows. targets: the checkpoints, each with model, revision and step. rows: a list of
    tables.ModelScore. surveys: from data/pretrained/suites.py; they know which stacks are causal.
    """
    causal = {}  # (model, stack) -> causal
    for survey in surveys:
        for stack, is_causal in survey.causal.items():
            causal[survey.model, stack] = is_causal
    step_of = {}  # (model, revision) -> step
    for target in targets:
        if target.step is not None:
            step_of[target.model, target.revision] = target.step
    rows_of = {}  # (model, stack) -> the rows of its layers at all checkpoints
    for row in rows:
        if row.head is None and (row.model, row.revision) in step_of:
            rows_of.setdefault((row.model, row.stack), []).append(row)
    trainings = []
    for (model, stack), rows_of_stack in rows_of.items():
        name = f"{model} {stack}".strip()
        trainings.append(find_training(name, causal.get((model, stack)), rows_of_stack, step_of))
    return trainings


def find_training(name, causal, rows, step_of):
    """One Training from the rows of its layers, in any order."""
    checkpoints = sorted({(step_of[row.model, row.revision], row.revision) for row in rows})  # (step, revision)
    revisions = [revision for _, revision in checkpoints]
    layers = sorted({row.layer for row in rows})
    symmetry = np.full((len(revisions), len(layers)), np.nan)
    directionality = np.full((len(revisions), len(layers)), np.nan)
    for row in rows:
        place = revisions.index(row.revision), layers.index(row.layer)
        symmetry[place] = row.symmetry
        directionality[place] = row.directionality
    return Training(
        name=name,
        causal=causal,
        steps=np.array([step for step, _ in checkpoints]),
        revisions=revisions,
        n=rows[0].n,  # all rows have the same size
        r=rows[0].r,
        symmetry=symmetry,
        directionality=directionality,
        gamma=rows[0].gamma,
    )


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
    gamma: float = GAMMA

    def depth(self):
        """The relative depth of its layers, (L,): 0 is the first layer, 1 the last."""
        n_layer = len(self.symmetry)
        return np.array([0.5]) if n_layer == 1 else np.linspace(0, 1, n_layer)


def layers_of(member, rows):
    """The rows of the layers of a member that is no training, of all its stacks."""
    checkpoint = member.name, member.revision  # the same CSV may hold other revisions, as of its training
    return [row for row in rows if (row.model, row.revision) == checkpoint and row.head is None]


def without_their_stack(members, rows):
    """The members that were scored, but do not have the stack that is meant."""
    found = []
    for member in members:
        stacks = {row.stack for row in layers_of(member, rows)}
        if member.stack and stacks and member.stack not in stacks:
            found.append(member)
    return found


def find_scored(members, rows):
    """The members that have rows and are not trainings."""
    found = []
    for member in members:
        if member.kind == "training":
            continue
        layers = layers_of(member, rows)
        if member.stack:
            layers = [row for row in layers if row.stack == member.stack]
        if layers:
            layers.sort(key=lambda row: (row.stack, row.layer))
            found.append(Scored(
                member=member,
                n=layers[0].n,
                r=layers[0].r,
                symmetry=np.array([row.symmetry for row in layers]),
                directionality=np.array([row.directionality for row in layers]),
                gamma=layers[0].gamma,
            ))
    return found


class Pair(NamedTuple):
    """Two members that are alike but for their objective."""

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
    """Encoder less decoder at the relative depths of GRID, (21,), with linear interpolation between layers."""
    encoder = np.interp(GRID, pair.encoder.depth(), getattr(pair.encoder, score))
    decoder = np.interp(GRID, pair.decoder.depth(), getattr(pair.decoder, score))
    return encoder - decoder


def suite_table(scored, trainings):
    """
    For each member, median [q1, q3] over layers. For each size, encoder less decoder, mean over depth. Last the
    trainings.
    """
    name_width = max([len(one.member.name) for one in scored], default=0)
    objective_width = max([len(one.member.objective) for one in scored], default=0)
    lines = [f"{'member':{name_width}}  {'objective':{objective_width}}  size  layers  {'symmetry [quartiles]':24}"
             "directionality [quartiles]"]
    for one in scored:
        member = one.member
        lines.append(f"{member.name:{name_width}}  {member.objective:{objective_width}}  {member.size:4}  "
                     f"{len(one.symmetry):6}  {with_quartiles(one.symmetry):24}{with_quartiles(one.directionality)}")
    for pair in find_pairs(scored):
        symmetry = difference(pair, "symmetry").mean()
        directionality = difference(pair, "directionality").mean()
        lines.append(f"encoder less decoder, {pair.size}: symmetry {symmetry:+.2f}, directionality "
                     f"{directionality:+.2f}")
    if trainings:
        lines.append(training_table(trainings))
    return "\n".join(lines)
