"""
The authors' own training runs, as they published them. published/README.md says where the files come from.

    loss_curves.csv    training losses [nats/token], a column per run: Table 1
    trajectories.csv   symmetry and directionality of every layer: Figures 3, S3, S4
"""

import csv
from typing import NamedTuple

import numpy as np

from data.results import compare
from data.results.runs import RunError

LOGGED_EVERY = 200  # updates; a row of losses is the mean over those since the row before
TRAJECTORIES = ["run", "step", "layer", "symmetry", "directionality"]  # the first line of trajectories.csv
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


class CsvFiles(NamedTuple):
    """What is in the authors' CSV files that were given to analyze.py --runs."""

    curves: dict  # name of a published run -> (steps, training loss)
    trajectories: list  # of Trajectory


def read_csv_files(paths):
    """Read files of both kinds; the first line tells which kind a file is. RunError: a file is neither."""
    found = CsvFiles({}, [])
    for path in paths:
        try:
            with open(path, newline="") as f:
                header = next(csv.reader(f), [])
            if header == TRAJECTORIES:
                found.trajectories.extend(read_trajectories(path))
            else:
                found.curves.update(read_curves(path))
        except (KeyError, TypeError, ValueError, csv.Error) as e:  # TypeError: a line that is cut short
            raise RunError(f"{path} is no CSV file of --runs, and none of data/results/csv/published: it has {e}; "
                           "for a run of train.py, give its folder") from e
    return found


def read_trajectories(path):
    """-> a list of Trajectory, in the order of the file."""
    scores = {}  # run -> step -> (symmetry, directionality) of each layer
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            steps = scores.setdefault(row["run"], {})
            layers = steps.setdefault(int(row["step"]), [])  # layers follow one another
            layers.append((float(row["symmetry"]), float(row["directionality"])))
    trajectories = []
    for name, steps in scores.items():
        model, kind, corpus = name.split("--")
        values = np.array(list(steps.values()))  # (S, L, 2)
        trajectories.append(Trajectory(
            name=name,
            n_layer=N_LAYER[model],
            causal=kind == "decoder",
            corpus=corpus,
            steps=np.array(list(steps)),
            symmetry=values[:, :, 0],
            directionality=values[:, :, 1],
        ))
    return trajectories


def read_curves(path):
    """Training losses, a column per run and a row every LOGGED_EVERY updates -> {name: (steps, loss)}."""
    with open(path, newline="") as f:
        names, *rows = csv.reader(f)
    for name in names:
        if name.split("--")[0] not in N_LAYER:
            raise ValueError(f"a column {name}, and no published run is called {name}")
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
        lines.append(f"{name:31} {loss[-1]:9.3f} {symmetric_loss[-1]:21.3f} {percent(theirs):>30}  {percent(ours)}")
    return "\n".join(lines)


def percent(x):
    return f"{x:.1%}" if np.isfinite(x) else "not reached"


def ends_table(trajectories, arms):
    """Scores at the last step, medians over layers: of every published run, and of our arms as means over seeds."""
    lines = [f"{'published run':31} symmetry  directionality"]
    for run in trajectories:
        lines.append(end_line(run.name, np.median(run.symmetry[-1]), np.median(run.directionality[-1])))
    if arms:
        lines.append("ours")
    for name, records in arms.items():
        symmetry = np.mean([np.median(record.layers["symmetry"][-1]) for record in records])
        directionality = np.mean([np.median(record.layers["directionality"][-1]) for record in records])
        lines.append(end_line(name, symmetry, directionality))
    return "\n".join(lines)


def end_line(name, symmetry, directionality):
    return f"{name:31} {symmetry:8.2f}  {directionality:14.2f}"
