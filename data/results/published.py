"""
The authors' own training runs, as they published them; published/README.md says where the files are from.

    loss_curves.csv    training losses [nats/token], a column per run: Table 1
    trajectories.csv   symmetry and directionality of every layer: Figures 3, S3, S4
"""

import csv
from typing import NamedTuple

import numpy as np

from data.results import compare

LOGGED_EVERY = 200  # updates; a row of losses is the mean over those since the row before
TRAJECTORIES = ["run", "step", "layer", "symmetry", "directionality"]  # how trajectories.csv begins
N_LAYER = {"bert_small": 4, "bert": 12}  # by the first part of a run's name
SYMMETRIC = "--symmetric-init"  # how the name of a run ends that starts from W_k = W_q


class Trajectory(NamedTuple):
    """The scores of one of their runs: bert_small--encoder--jigsaw has 4 layers, bert--decoder--wikipedia 12."""

    name: str
    n_layer: int
    causal: bool
    corpus: str
    steps: np.ndarray  # (S,)
    symmetry: np.ndarray  # (S, L)
    directionality: np.ndarray  # (S, L)


def first_line(path):
    with open(path, newline="") as f:
        return next(csv.reader(f), [])


def holds_trajectories(path):
    return first_line(path) == TRAJECTORIES


def read_trajectories(path):
    """-> a list of Trajectory, in the order of the file."""
    rows = {}
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            scores = float(row["symmetry"]), float(row["directionality"])
            steps = rows.setdefault(row["run"], {})
            steps.setdefault(int(row["step"]), []).append(scores)  # layers follow one another
    trajectories = []
    for name, steps in rows.items():
        model, kind, corpus = name.split("--")
        scores = np.array(list(steps.values()))  # (S, L, 2)
        trajectories.append(Trajectory(name, N_LAYER[model], kind == "decoder", corpus, np.array(list(steps)),
                                       scores[:, :, 0], scores[:, :, 1]))
    return trajectories


def read_curves(path):
    """Training losses, a column per run and a row every LOGGED_EVERY updates -> {name: (steps, loss)}."""
    with open(path, newline="") as f:
        names, *rows = csv.reader(f)
    curves = {}
    for name, column in zip(names, zip(*rows)):
        loss = np.array([float(cell or "nan") for cell in column])
        steps = LOGGED_EVERY * np.arange(1, len(loss) + 1)
        curves[name] = (steps, loss)
    return curves


def curves_table(curves):
    """
    Table 1 of the paper from its training losses. Speed-up is (T - t) / T: by the paper's rule t is the first step
    whose loss is below the plain run's last one, by ours the losses are smoothed first (compare.speed_up).
    """
    lines = [f"{'published run':31} last loss  with symmetric start  speed-up: by the paper's rule  by ours"]
    for name, (steps, loss) in curves.items():
        if name + SYMMETRIC not in curves:
            continue
        _, symmetric_loss = curves[name + SYMMETRIC]
        theirs = (steps[-1] - compare.first_step(steps, symmetric_loss, loss[-1])) / steps[-1]
        ours = compare.speed_up(steps, symmetric_loss, loss)
        lines.append(f"{name:31} {loss[-1]:9.3f} {symmetric_loss[-1]:21.3f} {share(theirs):>30}  {share(ours)}")
    return "\n".join(lines)


def share(x):
    return "not reached" if np.isnan(x) else f"{x:.1%}"


def ends_table(trajectories, arms):
    """Scores at the last step, median over layers: of every published run, and of arms (mean over seeds)."""
    lines = [f"{'published run':31} layers  symmetry  directionality"]
    for run in trajectories:
        symmetry = np.median(run.symmetry[-1])
        directionality = np.median(run.directionality[-1])
        lines.append(end_line(run.name, run.n_layer, symmetry, directionality))
    if arms:
        lines.append("ours")
    for name, seeds in arms.items():
        symmetry = np.mean([np.median(run.layers["symmetry"][-1]) for run in seeds])
        directionality = np.mean([np.median(run.layers["directionality"][-1]) for run in seeds])
        lines.append(end_line(name, seeds[0].config["n_layer"], symmetry, directionality))
    return "\n".join(lines)


def end_line(name, n_layer, symmetry, directionality):
    return f"{name:31} {n_layer:6}  {symmetry:8.2f}  {directionality:14.2f}"
