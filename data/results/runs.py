"""
The files of a run, as train.py writes them, and what they say together, as analyze.py --runs shows it.

    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before
    scores.csv   one row per layer, and one per head (head empty: the whole layer)

Rows are appended whole and flushed before the checkpoint of their step is written. A run that was killed may hold rows
past its last checkpoint: `cut` drops them on resuming, so that none is lost and none stands twice.
"""

import contextlib
import csv
import json
import math
import os
import pickle
from collections import namedtuple
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as safetensors

LOG = ["step", "tokens", "train_loss", "val_loss", "learning_rate", "tokens_per_s"]
SCORES = ["step", "layer", "head", "symmetry", "directionality", "update_symmetry"]


class RunError(Exception):
    """Runs that cannot be read or compared, in one line."""


@contextlib.contextmanager
def writing(path):
    """What the system has against a file, a full disk for example, as a RunError that names it."""
    try:
        yield
    except Exception as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch.save makes a RuntimeError of its file's OSError
        if not isinstance(cause, OSError):
            raise
        raise RunError(f"{path} cannot be written ({cause.strerror}): mend that and go on; nothing is lost") from e


@contextlib.contextmanager
def replacing(path):
    """A temporary path beside `path`, which takes its place once the block is through: whole or not at all."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # that of a killed run: nothing may be appended to it
        try:
            yield temporary
            with open(temporary, "rb+") as f:
                os.fsync(f.fileno())  # or the name could outlive a power cut, and the bytes not
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def append(path, header, rows):
    new = not Path(path).exists()
    with writing(path), open(path, "a", newline="") as f:
        csv.writer(f).writerows([header, *rows] if new else rows)
        f.flush()
        os.fsync(f.fileno())  # before the checkpoint of these rows


def save_hf(folder, config, state):
    """The files that from_pretrained of transformers reads: config (dict) and state dict as model.to_hf gives them."""
    with replacing(folder / "model.safetensors") as path:
        path.write_bytes(safetensors({name: x.cpu().contiguous() for name, x in state.items()}, {"format": "pt"}))
    with replacing(folder / "config.json") as path:
        path.write_text(json.dumps(config, indent=2) + "\n")


def read(path, header):
    """The rows of a CSV as dicts of strings; a last row that was cut short is left out."""
    try:
        with open(path, newline="") as f:
            text = f.read()
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}; the folder of a run of train.py has it") from e
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if rows[:1] != [header]:
        raise RunError(f"{path} is not a {Path(path).name} of train.py: it does not begin with {','.join(header)}")
    return [dict(zip(header, row)) for row in rows[1:]]


def cut(path, header, step):
    """Drop the rows of steps after `step`."""
    begun = Path(path).exists() and "\n" in Path(path).read_text()  # not if it was killed in its first line
    rows = [row for row in read(path, header) if int(row["step"]) <= step] if begun else []
    with replacing(path) as temporary:
        append(temporary, header, [row.values() for row in rows])


def traced(batches, path, on=True):
    """The same batches; if on, what is done with five of them, after the first ten, becomes a Chrome trace at path."""
    profiler = torch.profiler.profile()
    for i, batch in enumerate(batches):
        if on and i == 10:
            profiler.start()
        if on and i == 15:
            profiler.stop()
            with replacing(path) as temporary:
                profiler.export_chrome_trace(str(temporary))
        yield batch


# ---- what runs say together --------------------------------------------------------------------------------------

# log: column -> (evaluations,); layers, heads: score -> (steps, L), (steps, L, H); an empty cell is nan
Run = namedtuple("Run", "name config log steps layers heads")
SAME = "max_iters batch_size block_size eval_interval eval_iters mlm_probability checksum tokenizer".split()
FREE = {"seed", "out_dir", "init_from", "device", "threads", "compile", "profile", "micro_batch_size", "data_dir"}
T95 = [math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]  # Student's t, by n - 1


def read_run(folder):
    """A finished or running run. Its name is the folder's, without the seed at the end."""
    folder = Path(folder)
    log, scores = read(folder / "log.csv", LOG), read(folder / "scores.csv", SCORES)
    try:
        state = torch.load(folder / "ckpt.pt", map_location="cpu", weights_only=True, mmap=True)
        config = state["config"] | {key: state["data"][key] for key in ("checksum", "tokenizer")}
    except (OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as e:
        raise RunError(f"{folder}/ckpt.pt cannot be read: {str(e).splitlines()[0]}") from e
    L, H = config["n_layer"], config["n_head"]
    n = len(scores) // (L * (1 + H))  # whole steps: the last one may be being written
    if not log or not n:
        raise RunError(f"{folder} has no row in its CSV files yet")
    table = {name: np.array([float(row[name]) for row in scores[: n * L * (1 + H)]]).reshape(n, L, 1 + H)
             for name in ("symmetry", "directionality", "update_symmetry")}
    steps = np.array([int(row["step"]) for row in scores[: n * L * (1 + H) : L * (1 + H)]])
    return Run(folder.name.removesuffix(f"-{config['seed']}"), config,
               {name: np.array([float(row[name] or "nan") for row in log]) for name in LOG}, steps,
               {name: x[:, :, 0] for name, x in table.items()}, {name: x[:, :, 1:] for name, x in table.items()})


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
    return np.array([np.nanmean(loss[max(0, i - 2) : i + 1]) if np.isfinite(loss[max(0, i - 2) : i + 1]).any() else
                     math.nan for i in range(len(loss))])


def first_step(steps, loss, target):
    """The first step at which the loss is at or below the target; nan where it never is: not 0, and not the end."""
    return next((float(step) for step, x in zip(steps, loss) if x <= target), math.nan)


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
