"""
The files of a run of train.py. Each is complete, or not there; records.py reads the first three for comparisons.

    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before,
                 learning_rate that of the last step, and tokens_per_s without evaluations and checkpoints
    scores.csv   at every score_interval, one row per layer and one per head (an empty head: the whole layer)
    run.json     its configuration, its token files, all max_iters that it has had, and where its last steps come from
    ckpt.pt      what resuming needs, and the rows of both CSV files, written at every evaluation
    run.png      losses and scores over the steps
    .lock        empty; the process that writes the run holds a lock on it

    model, cfg, meta = open_run("out/tiny")
"""

import csv
import io
import subprocess
import sys
from dataclasses import asdict
from math import isnan
from pathlib import Path
from statistics import median

import torch

from config import HOW, ROOT, TrainConfig
from config.processes import device_name
from data.atomic import replacing, write_json
from data.chance import mean_symmetry
from data.names import fixed
from data.tokens import TOKENIZERS
from model import Transformer

DIGITS_OF = {"learning_rate": ".6g", "tokens_per_s": ".0f"}  # how these numbers are written; all others as .6f
ORIGIN = "commit", "python", "torch", "device_name"  # where steps come from; only older runs have python


class RunError(Exception):
    """A problem with the files of a run, in one line."""


def require(condition, message):
    """Raises RunError with this message unless the condition is true."""
    if not condition:
        raise RunError(message)


# ---- rows --------------------------------------------------------------------------------------------------------


def score_rows(step, matrix, n_heads, new, previous, scores):
    """
    Returns the rows of scores.csv at one step, each {column: a number}, nan for none. Column `head` is "" for a layer.

    matrix: "wqk", or "positions", which untied positions have. n_heads: of each layer. new: W_q and W_k of all layers,
    (L, C, C) each; previous: the same when scores were last written, or None. scores: the function of analyze.py.
    update_symmetry is that of the change of W_qk since then (Theorem 2.4).
    """
    if previous is None:
        previous = new  # no change yet, and the symmetry of a zero matrix is nan
    rows = []
    for layer, n_head in enumerate(n_heads):
        place = dict(step=step, matrix=matrix, layer=layer)
        factors = [w[layer] for w in (*new, *previous)]  # four, (C, C) each
        rows.append(place | dict(head="") | measure(*factors, scores))
        factors = [w.unflatten(-1, (n_head, -1)).movedim(-2, 0) for w in factors]  # (H, C, D) each
        of_heads = measure(*factors, scores)
        for head in range(n_head):
            rows.append(place | dict(head=head) | {name: values[head] for name, values in of_heads.items()})
    return rows


def measure(w_q, w_k, p_q, p_k, scores):
    """Returns the scores of W_qk, {name: a number, or a list}: W_q, W_k and before P_q, P_k, (..., C, r) each."""
    #     W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T = [W_q - P_q, P_q] [W_k, W_k - P_k]^T
    # The right side subtracts before it multiplies, so a small change keeps its digits.
    left = torch.cat([w_q - p_q, p_q], -1)  # (..., C, 2 r)
    right = torch.cat([w_k, w_k - p_k], -1)  # (..., C, 2 r)
    found = scores(w_q, w_k)._asdict()
    found |= dict(update_symmetry=scores(left, right).symmetry, chance=mean_symmetry(w_q, w_k))
    return {name: values.tolist() for name, values in found.items()}


def add_rows(text, rows):
    """Returns the text of a CSV file with more rows, each {column: a number}. Raises RunError for other columns."""
    header = ",".join(rows[0]) + "\n"
    require(not text or text.startswith(header), f"this run has other columns than {', '.join(rows[0])}: go on with "
            "the commit in its run.json")
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")  # refuses a row with other columns than the first
    for row in rows:
        writer.writerow({name: cell(name, value) for name, value in row.items()})
    return (text or header) + file.getvalue()


def cell(name, value):
    """Returns a value as it is written. nan is an empty cell."""
    if not isinstance(value, float):
        return value
    return "" if isnan(value) else format(value, DIGITS_OF.get(name, ".6f"))


def log_line(row, max_iters, symmetries, share):
    """
    Returns a row of log.csv as it is shown, with the symmetry of each layer: above six layers the lowest, the median
    and the highest. share: of the operations that the card could do, nan if that is not known.
    """
    shown = " ".join(fixed(symmetry, 2) for symmetry in symmetries)
    if len(symmetries) > 6:
        low, middle, high = [fixed(f(symmetries), 2) for f in (min, median, max)]
        shown = f"{low} to {high}, median {middle}"
    words = [f"step {row['step']:,}/{max_iters:,}: val_loss {row['val_loss']:.4f}"]
    if row["step"] > 0:
        words += [f"train_loss {row['train_loss']:.4f}", f"{row['tokens_per_s']:,.0f} tokens/s"]
    if not isnan(share):
        words.append(f"about {share:.0%} of the card")
    return ", ".join([*words, f"symmetry {shown}"])


def table_of_ends(arm):
    """Returns the first and the last scores of every layer of a run, an Arm, and its last loss, as a text."""
    scores = [score for score in ("symmetry", "heads", "directionality", "positions") if len(arm.curves(score))]
    lines = ["layer" + "".join(f"   {score}: start     end" for score in scores)]
    for layer in range(arm.layers("symmetry").shape[1]):
        line = f"{layer:5}"
        for score in scores:
            start, end = arm.values(f"{score}_{layer}").dropna().iloc[[0, -1]]
            line += " " * (len(score) + 1) + f"{fixed(start, 2):>8}{fixed(end, 2):>8}"
        lines.append(line)
    return "\n".join([*lines, f"validation loss {arm.at_end('loss').item():.4f} nats/token"])


# ---- what a run is, and where it comes from ----------------------------------------------------------------------


def describe(cfg, meta):
    """Returns the configuration of a run and its token files, which SHA-256 tells from others."""
    return dict(config=asdict(cfg), data={key: meta[key] for key in ("tokenizer", "tokens", "sha256")})


def identity(described):
    """Returns what must be the same in all processes of a run, and when it goes on: {key: value}."""
    config = vars(TrainConfig()) | described["config"]  # a newer key has its default
    free = HOW | {"data_dir"}
    if config["dropout"] or config["attn_dropout"]:  # each micro-batch has random numbers of its own
        free.remove("micro_batch_size")
    return {key: value for key, value in config.items() if key not in free} | dict(corpus=described["data"]["sha256"])


def find_commit():
    """
    Returns the commit of this project's own repository, or "no repository". It ends in -dirty if the code is another
    one: a file of the commit has changed, or a Python file was imported that is not in the repository.
    """
    def git(*words):  # of this repository, even if GIT_DIR is another one
        command = ["git", f"--git-dir={ROOT}/.git", f"--work-tree={ROOT}", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    try:
        commit = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        new = {str(ROOT / name) for name in git("ls-files", "--others", "--exclude-standard", "*.py").splitlines()}
    except OSError:  # git is not installed
        return "no repository"
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if new & imported and not commit.endswith("-dirty"):
        commit += "-dirty"
    return commit or "no repository"


# ---- writing and reading a run -----------------------------------------------------------------------------------


def write_start(folder, about, n_params, lengths, device):
    """Writes run.json. about: of `describe`."""
    config = {key: value for key, value in about["config"].items() if key not in HOW}
    origin = dict(commit=find_commit(), torch=torch.__version__, device_name=device_name(device))  # keys of ORIGIN
    write_json(folder / "run.json", dict(config=config, data=about["data"], n_params=n_params, lengths=lengths,
                                         origin=origin))


def write_rows(folder, texts):
    """Writes log.csv and scores.csv. texts: {name: text}. A file without rows is not written."""
    for name, text in texts.items():
        if text:
            with replacing(folder / name) as temporary:
                temporary.write_text(text)


def save_checkpoint(folder, state):
    """Writes ckpt.pt, and then the rows in it."""
    with replacing(folder / "ckpt.pt") as temporary:
        torch.save(state, temporary)
    write_rows(folder, state["rows"])


def checkpoint_to_resume(folder, about, device):
    """
    Returns the checkpoint (a dict) from which a run goes on, or None if it begins at step 0. about: of `describe`.

    Raises RunError if the folder has a run and this one does not resume, or another run, or rows without a checkpoint.
    """
    path = folder / "ckpt.pt"
    if not path.exists():
        require(not (folder / "log.csv").exists(), f"{folder} holds a log.csv, and no ckpt.pt to go on from: set "
                "--out_dir, or move the folder away")
        return None
    require(about["config"]["init_from"] == "resume",
            f"{folder} holds a run already: go on with --init_from=resume, or set --out_dir")
    state = torch.load(path, map_location=device, weights_only=True)
    before = identity(state)
    for key, here in identity(about).items():
        there = before.get(key)
        may_change = key in ("eval_interval", "score_interval") or (key == "max_iters" and there < here)
        may_change |= key == "micro_batch_size" and state["step"] == 0  # there was no room for it
        require(there == here or may_change, f"{path} is of another run: {key} = {there!r} there, {here!r} here "
                f"(its corpus was --data_dir={state['config']['data_dir']})")
    return state


def open_run(folder):
    """Returns the model of a run at its last checkpoint, its TrainConfig, and the meta of its tokens."""
    path = Path(folder, "ckpt.pt")
    require(path.exists(), f"{folder} holds no ckpt.pt: it is no run of train.py")
    state = torch.load(path, map_location="cpu", weights_only=True)
    cfg = TrainConfig(**state["config"])  # a newer key has its default
    meta = state["data"] | TOKENIZERS[state["data"]["tokenizer"]]
    model = Transformer(cfg.of_model(meta["vocab_size"])).eval()
    model.load_state_dict(state["model"])
    return model, cfg, meta
