"""
The files of a run, as train.py writes them and analyze.py reads them. log.csv and scores.csv grow by rows, and `read`
leaves out a last row that is incomplete. Every other file is complete, or not there.

    run.json     the configuration, and which token files the run was trained on; written first
    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before
    scores.csv   at every score_interval, one row per layer and one per head (an empty head: the whole layer)
    ckpt.pt      what resuming needs, written at every evaluation; a finished run does not need it any more
    ckpt-STEP.pt, ckpt-best.pt        with --keep=N: the last N checkpoints, and the one with the lowest validation loss
    model.safetensors, config.json    the model as a Hugging Face BERT
    run.png      losses and scores over the steps, drawn at the end, and before if the last one is not too recent
    .lock        empty; the process that writes the run holds a lock on it
    trace.json   with --profile=True: five updates, for chrome://tracing or ui.perfetto.dev

Rows are written before the checkpoint of their step. So a run that was killed may have rows after its last checkpoint.
When it resumes, `cut` drops these rows, and the run writes them again: no row is lost, and none is there twice. A file
that has lost rows from before the checkpoint is refused.
"""

import contextlib
import csv
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import save as safetensors

from config import TrainConfig

DATA = ["tokenizer", "tokens", "checksum"]  # the keys of meta.json that identify a corpus

# Keys that a resumed run may change: where and how it runs, and how often it is looked at. max_iters may grow.
RESUME_FREE = {"out_dir", "data_dir", "init_from", "device", "threads", "compile", "profile", "keep",
               "micro_batch_size", "eval_interval", "score_interval"}
TRACE_AFTER = 10  # updates, which are slower than those that follow
UNREADABLE = (RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
              ArithmeticError, struct.error, pickle.UnpicklingError)  # what torch.load raises for damaged files
NOT_A_CHECKPOINT = "is not a checkpoint that can be resumed: cut short, damaged, or of another program"


class LogRow(NamedTuple):
    """A row of log.csv. At step 0 three cells are empty."""

    step: int
    tokens: int
    train_loss: str = ""  # [nats/token], mean since the row before
    val_loss: str = ""  # [nats/token]
    learning_rate: str = ""  # of the last update
    tokens_per_s: str = ""  # without the time of evaluations and checkpoints


class RunScore(NamedTuple):
    """A row of scores.csv: one layer, or one of its heads. The scores are texts with six decimals."""

    step: int
    layer: int
    head: int | str  # "": the whole layer
    symmetry: str
    directionality: str
    directionality_eq17: str
    update_symmetry: str  # symmetry of the change of W_qk since the rows before; nan at the start


LOG_COLUMNS = list(LogRow._fields)
SCORES_COLUMNS = list(RunScore._fields)
SCORES = SCORES_COLUMNS[3:]  # the columns after step, layer and head
ROW_FILES = (("log.csv", LOG_COLUMNS), ("scores.csv", SCORES_COLUMNS))  # the files that grow by rows
# In old files directionality is Eq. (17), and there is no column of that name.
OLDER_SCORES_COLUMNS = [name for name in SCORES_COLUMNS if name != "directionality_eq17"]


class RunError(Exception):
    """A problem with the files of a run, in one line."""


def require(condition, message):
    if not condition:
        raise RunError(message)


# ---- complete or not at all --------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path):
    """Turn an error of the system, such as a full disk, into a RunError that names the file."""
    try:
        yield
    except (OSError, RuntimeError) as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch.save hides an OSError behind a RuntimeError
        if not isinstance(cause, OSError):
            raise
        raise RunError(f"{path} cannot be written ({cause.strerror}): mend that and go on; nothing is lost") from e


@contextlib.contextmanager
def replacing(path):
    """A temporary path for the block to write. At its end the file is renamed to `path`: complete or not at all."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # of this process alone
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # a killed run may have left one, and nothing may be appended to it
        try:
            yield temporary
            with open(temporary, "rb+") as f:
                os.fsync(f.fileno())  # or after a power cut the new name could be there without the bytes
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def find_lost(path, columns, kept):
    """
    What would be lost if the CSV file at path were written anew: the cells in `columns` of every row of it, as a tuple,
    that are not in kept. "# config" and a line that is cut short hold no row. RunError: the file is damaged.
    """
    with open(path, newline="", errors="replace") as f:
        try:
            rows = list(csv.DictReader(line for line in f if not line.startswith("# config")))
        except csv.Error as e:
            raise RunError(f"{path} is damaged ({e}): give another --csv") from e
    found = [tuple(row.get(column) for column in columns) for row in rows]
    return [cells for cells in found if cells not in kept and None not in cells]


def write_json(path, value):
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def save_hf(folder, config, state):
    """Write the files that from_pretrained of transformers reads. config, state: as model.to_hf returns them."""
    state = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    with replacing(folder / "model.safetensors") as temporary:
        temporary.write_bytes(safetensors(state, {"format": "pt"}))
    write_json(folder / "config.json", config)


def traced(batches, path):
    """Yield the same batches. After the first TRACE_AFTER, record five updates, and write a Chrome trace to path."""
    def write(profiler):
        with replacing(path) as temporary:
            profiler.export_chrome_trace(str(temporary))

    schedule = torch.profiler.schedule(skip_first=TRACE_AFTER - 1, wait=0, warmup=1, active=5, repeat=1)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=write) as profiler:
        for batch in batches:
            yield batch
            profiler.step()


# ---- rows --------------------------------------------------------------------------------------------------------


def append(path, header, rows):
    new = not Path(path).exists()
    with writing(path), open(path, "a", newline="") as f:
        csv.writer(f).writerows([header, *rows] if new else rows)
        f.flush()
        os.fsync(f.fileno())  # before the checkpoint of these rows


def describe_row(row):
    """A LogRow as a line of output."""
    text = f"step {row.step}: validation loss {float(row.val_loss):.4f}"
    if row.train_loss:
        text += (f", training loss {float(row.train_loss):.4f}, learning rate {float(row.learning_rate):.3g}, "
                 f"{int(row.tokens_per_s):,} tokens/s")
    return text


def read(path, header, older=None):
    """The rows of a CSV file with one of these headers, as dicts of strings, without a last row that is incomplete."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}; the folder of a run of train.py has it") from e
    complete_lines = text[: text.rfind("\n") + 1].splitlines()
    lines = [line.split(",") for line in complete_lines]
    first = lines[0] if lines else []
    rows = lines[1:]
    require(first in (header, older), f"{path} is not a {Path(path).name} of train.py: it does not begin with "
                                      f"{','.join(header)}")
    for number, row in enumerate(rows, 2):
        require(is_row(row, first), f"{path} is damaged: line {number} is no row of {','.join(first)}")
    return [dict(zip(first, row)) for row in rows]


def is_row(row, header):
    """Whether a row has the cells of the header, each of them empty or a number, and counts are whole numbers."""
    if len(row) != len(header) or not row[0]:  # the first cell is the step, and never empty
        return False
    for name, cell in zip(header, row):
        if name in ("step", "layer", "head") and cell and not (cell.isascii() and cell.isdecimal()):
            return False
        try:
            float(cell or "nan")
        except ValueError:
            return False
    return True


def read_begun(path, header):
    """The same for a run that goes on. Its file may be missing, or have no complete first line."""
    if not Path(path).exists() or b"\n" not in Path(path).read_bytes():
        return []
    return read(path, header)


def cut(path, header, step):
    """Drop the rows of steps after `step`. A missing file gets its header."""
    rows = [row for row in read_begun(path, header) if int(row["step"]) <= step]
    with replacing(path) as temporary:
        append(temporary, header, [row.values() for row in rows])


# ---- a run begun, or gone on with --------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder):
    """Lock a folder for this process. The system unlocks it when the process ends, however it ends."""
    import fcntl  # in here, because Windows does not have it, and can still read runs

    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock = open(Path(folder) / ".lock", "w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: another process is writing a run there: wait for it, or set --out_dir") from None
        except OSError:
            pass  # this file system has no locks
        yield


def describe(cfg, meta):
    """What run.json and every checkpoint say about a run: its configuration and its token files."""
    return dict(config=asdict(cfg), data={key: meta[key] for key in DATA})


def find_checkpoint(folder, cfg, meta, resume, device):
    """
    The checkpoint (a dict) from which a run goes on, or None if it begins at step 0.

    RunError: the folder has a run and `resume` is False, or another run, or a model, or the checkpoint is damaged.
    """
    path = Path(folder) / "ckpt.pt"
    if not path.exists():
        for name in "model.safetensors", "config.json":
            is_foreign = Path(folder, name).exists() and not Path(folder, "run.json").exists()
            require(not is_foreign, f"{folder} holds a {name} that is of no run, and would be overwritten: set --out_dir")
        start = began_from(folder)
        require(cfg.init_from != "resume" or start == "scratch",
                f"{folder} has no checkpoint yet, and its run began from {start}: begin again with --init_from={start}")
        for name, header in ROW_FILES:
            steps = [int(row["step"]) for row in read_begun(Path(folder) / name, header)]
            require(max(steps, default=0) == 0, f"{folder} holds the {name} of a run, and no ckpt.pt to go on from: "
                                                "set --out_dir, or move the folder away")
        return None
    require(resume, f"{folder} holds a run already: go on with --init_from=resume, or set --out_dir")
    try:
        with zipfile.ZipFile(path) as file:  # torch writes a zip, and does not look at its checksums when it reads
            require(file.testzip() is None, f"{path} {NOT_A_CHECKPOINT}")
        state = torch.load(path, map_location=device, weights_only=True)
        theirs = dict(config=dict(state["config"]), data={key: state["data"][key] for key in DATA})
    except (zipfile.BadZipFile, *UNREADABLE) as e:
        raise RunError(f"{path} {NOT_A_CHECKPOINT}") from e
    require_same_run(path, theirs, describe(cfg, meta))
    require_rows(Path(folder), state)
    return state


def began_from(folder):
    """Where the weights of the run in a folder came from: scratch (also if there is no run yet), or a folder."""
    if not Path(folder, "run.json").exists():
        return "scratch"
    start = read_config(Path(folder))["init_from"]
    return "scratch" if start == "resume" else start  # older runs said resume when they went on


def require_same_run(path, theirs, ours):
    """RunError if a run cannot continue the other because of a key. theirs, ours: as `describe` returns them."""
    defaults = asdict(TrainConfig())  # for keys that are newer than the checkpoint
    for key, here in ours["config"].items():
        there = theirs["config"].get(key, defaults[key])
        same = there == here or (key == "max_iters" and there < here)
        require(same or key in RESUME_FREE, f"{path} is of another run: {key} = {there!r} there, {here!r} here")
    for key, here in ours["data"].items():
        there = theirs["data"][key]
        require(there == here, f"{path} is of another run: {key} of data_dir = {there!r} there, {here!r} here")


def require_rows(folder, state):
    """RunError if a file of rows is damaged, or has not the rows that it had when the checkpoint was written."""
    step = state["step"]
    for name, header in ROW_FILES:
        rows = [row for row in read_begun(folder / name, header) if int(row["step"]) <= step]
        expected = state.get("rows", {}).get(name, len(rows))  # older checkpoints do not have it
        same = len(rows) == expected or step == 0  # the rows of step 0 are written again
        require(same, f"{folder / name} has {len(rows)} rows up to step {step}, where ckpt.pt stands, and not "
                      f"{expected}: put the whole file back, or move the folder away")


def begin(folder, cfg, meta, step):
    """Prepare the files of a run that is at `step`. Only one process does this, before any training."""
    folder = Path(folder)
    for left in folder.glob("*.tmp"):  # by a run that was killed
        left.unlink()
    if cfg.init_from == "resume":
        cfg = replace(cfg, init_from=began_from(folder))  # it stays known where the weights came from
    write_json(folder / "run.json", describe(cfg, meta))
    last = step if step > 0 else -1  # at step 0 a run writes the rows of its start again
    for name, header in ROW_FILES:
        cut(folder / name, header, last)


def save_checkpoint(folder, cfg, meta, state):
    """Write ckpt.pt. It needs no random state: batches and dropout follow from seed, step and micro-batch."""
    rows = {name: (folder / name).read_bytes().count(b"\n") - 1 for name, _ in ROW_FILES}  # without the header
    with replacing(folder / "ckpt.pt") as temporary, open(temporary, "wb") as f:
        torch.save(describe(cfg, meta) | dict(rows=rows) | state, f)
    if cfg.keep > 0:
        keep_checkpoints(folder, state["step"], cfg.keep)


def keep_checkpoints(folder, step, n):
    """Copy ckpt.pt to ckpt-STEP.pt, and to ckpt-best.pt if it is the best so far. Keep the last n of ckpt-STEP.pt."""
    losses = {int(row["step"]): float(row["val_loss"]) for row in read(folder / "log.csv", LOG_COLUMNS)}
    names = [f"ckpt-{step:08d}.pt"]
    if step in losses and losses[step] == min(losses.values()):
        names.append("ckpt-best.pt")
    for name in names:
        with replacing(folder / name) as temporary:
            shutil.copyfile(folder / "ckpt.pt", temporary)
    numbered = {}  # step -> its checkpoint; other files of such names are not ours
    for path in folder.glob("ckpt-*.pt"):
        found = re.fullmatch(r"ckpt-(\d{8,})\.pt", path.name)
        if found:
            numbered[int(found[1])] = path
    for old in sorted(numbered)[:-n]:
        numbered[old].unlink()


# ---- a run read again --------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """What one run has written. An empty cell of its CSV files is nan."""

    name: str  # the name of its arm: that of the folder, without the seed at the end
    config: dict  # its configuration, and the checksum and tokenizer of its token files
    log: dict  # column of log.csv -> (evaluations,)
    steps: np.ndarray  # of scores.csv, (steps,)
    layers: dict  # symmetry, directionality, directionality_eq17, update_symmetry -> (steps, L)
    heads: dict  # the same -> (steps, L, H)


def read_run(folder):
    """A run, finished or not. RunError if there is no run in the folder."""
    folder = Path(folder)
    log_rows = read(folder / "log.csv", LOG_COLUMNS)
    score_rows = read(folder / "scores.csv", SCORES_COLUMNS, OLDER_SCORES_COLUMNS)
    config = read_config(folder)
    log = {name: np.array([float(row[name] or "nan") for row in log_rows]) for name in LOG_COLUMNS}
    steps, layers, heads = read_scores(score_rows, config["n_layer"], config["n_head"])
    require(log_rows and len(steps), f"{folder} has no row in its CSV files yet")
    return Run(folder.resolve().name.removesuffix(f"-{config['seed']}"), config, log, steps, layers, heads)


def read_scores(rows, n_layer, n_head):
    """The rows of scores.csv, in any order -> steps, layers and heads of a Run. Incomplete steps are left out."""
    by_step = {}  # step -> (layer, head) -> its row
    for row in rows:
        if "directionality_eq17" not in row:
            row = row | dict(directionality_eq17=row["directionality"], directionality="nan")
        by_step.setdefault(int(row["step"]), {})[row["layer"], row["head"]] = row
    expected = {(str(layer), str(head)) for layer in range(n_layer) for head in ("", *range(n_head))}
    complete = [step for step, found in by_step.items() if found.keys() == expected]  # the last step may lack rows
    steps = sorted(complete)
    layers, heads = {}, {}
    for name in SCORES:
        layers[name] = np.full((len(steps), n_layer), np.nan)
        heads[name] = np.full((len(steps), n_layer, n_head), np.nan)
        for i, step in enumerate(steps):
            for (layer, head), row in by_step[step].items():
                if head == "":
                    layers[name][i, int(layer)] = float(row[name])
                else:
                    heads[name][i, int(layer), int(head)] = float(row[name])
    return np.array(steps), layers, heads


def read_config(folder):
    """The configuration of a run, and the checksum and tokenizer of its token files, from run.json or ckpt.pt."""
    path = folder / "run.json"
    if not path.exists():
        path = folder / "ckpt.pt"  # old runs have no run.json
    try:
        if path.name == "run.json":
            run = json.loads(path.read_text())
        else:
            run = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        defaults = asdict(TrainConfig())  # for keys that are newer than the run
        config = defaults | run["config"]
        require(all(type(config[key]) is type(value) for key, value in defaults.items()), f"{path} cannot be read")
        return config | {key: run["data"][key] for key in ("checksum", "tokenizer")}
    except (OSError, *UNREADABLE) as e:
        raise RunError(f"{path} cannot be read: {str(e).splitlines()[0]}") from e
