"""
What runs say together: arms of a comparison pooled over seeds, and each run beside the baseline of its seed.
"""

import math

import numpy as np

from data.results.runs import FREE, SAME, RunError, read_run

T95 = [math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]  # Student's t, by n - 1


def pool(folders):
    """-> {name of an arm: its runs, one per seed}; RunError names what makes runs incomparable."""
    arms, first = {}, None
    for run in map(read_run, folders):
        first = first or run
        for key in SAME:
            if run.config[key] != first.config[key]:
                raise RunError(f"{run.name} has {key} = {run.config[key]}, {first.name} has {first.config[key]}: these "
                               "are not runs of one comparison")
        for other in arms.setdefault(run.name, []):
            for key in run.config.keys() - FREE:
                if run.config[key] != other.config[key]:
                    raise RunError(f"two runs called {run.name} differ in {key}: {run.config[key]}, "
                                   f"{other.config[key]}")
            if run.config["seed"] == other.config["seed"]:
                raise RunError(f"two runs called {run.name} have the seed {run.config['seed']}")
        arms[run.name].append(run)
    return arms


def smooth(loss):
    """The mean of each evaluation and up to two before it; nan rows do not count."""
    means = []
    for i in range(len(loss)):
        window = loss[max(0, i - 2) : i + 1]
        window = window[np.isfinite(window)]
        means.append(window.mean() if len(window) else math.nan)
    return np.array(means)


def first_step(steps, loss, target):
    """The first step at which the loss is at or below the target; nan where it never is: not 0, and not the end."""
    reached = np.flatnonzero(loss <= target)
    return float(steps[reached[0]]) if len(reached) else math.nan


def speed_up(steps, loss, baseline_loss):
    """(T - t) / T: t the first evaluation at which the smoothed loss is at the baseline's last one, T the last step."""
    return (steps[-1] - first_step(steps, smooth(loss), smooth(baseline_loss)[-1])) / steps[-1]


def interval(values):
    """Mean and half-width of its 95 % interval (Student's t); nan with one value."""
    n = len(values)
    t = T95[n - 1] if n <= len(T95) else 1.96 + 2.6 / (n - 1)
    return np.mean(values), t * np.std(values, ddof=1) / n**0.5 if n > 1 else math.nan


def baseline(arms, causal):
    """The name of the arm that others of its kind are measured against: the plain random start, or the first."""
    kind = [name for name, runs in arms.items() if runs[0].config["causal"] == causal]
    plain = dict(init="random", qk_std=0.02, v_std=0.02, constraint="none")
    return next((name for name in kind if all(arms[name][0].config[k] == v for k, v in plain.items())), kind[0])


def compare(arms, level):
    """
    One dict per run: final loss [nats/token], what it is above that of the baseline of the same seed, which saw the
    same data, the speed-up over it, the first step below `level` [nats/token], and the scores at the end, median over
    layers.
    """
    rows = []
    for name, runs in arms.items():
        base = arms[baseline(arms, runs[0].config["causal"])]
        for run in runs:
            other = next((r for r in base if r.config["seed"] == run.config["seed"]), base[0])
            steps, loss, updates = run.log["step"], run.log["val_loss"], run.layers["update_symmetry"][1:]
            rows.append(dict(
                arm=name, seed=run.config["seed"], steps=int(steps[-1]), val_loss=loss[-1],
                difference=loss[-1] - other.log["val_loss"][-1],
                speed_up=math.nan if runs is base else speed_up(steps, loss, other.log["val_loss"]),
                first_step=first_step(steps, smooth(loss), level),
                **{score: float(np.median(run.layers[score][-1])) for score in ("symmetry", "directionality")},
                update_symmetry=float(np.nanmedian(updates)) if len(updates) else math.nan))
    return rows
