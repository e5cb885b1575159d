"""
The files of a run of train.py. Each is complete, or not there; read.py reads the first three for comparisons.

    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before,
                 learning_rate that of the last step, and tokens_per_s of the steps alone
    scores.csv   at every score_interval, one row per layer and one per head (an empty head: the whole layer);
                 the columns AT_END are in the rows of the last step alone, as they take longer than all others
    run.json     its configuration, its token files, all max_iters that it has had, and where its steps come from;
                 of a child also the configuration of its parent, and the SHA-256 of the weights it began with
    ckpt.pt      what resuming needs, and what the files above hold, written at every evaluation and at SIGTERM
    run.png      losses and scores over the steps
    .lock        empty; the process that writes the run holds a lock on it
"""

import hashlib
import math
import subprocess

import pandas
import torch

from analyze import heads_of, limit_of_symmetry, multiply, parts_of_symmetry, scores, unrounded
from config import ROOT, as_now, may_differ, require
from data.atomic import remove_leftovers, replacing, write_json

# Columns of a layer that only the rows of the last step have: what 95 % of random matrices stay below, and kernel.py's.
KERNEL = ("from_positions", "from_contents", "from_rest", "kernel_symmetry", "kernel_norm", "kernel_logits",
          "loss_kernel", "loss_rest", "loss_nothing")
AT_END = "symmetry_95", *KERNEL

# ---- rows --------------------------------------------------------------------------------------------------------


@unrounded()
def score_rows(step, matrix, n_heads, new, previous, at_end=None):
    """
    Returns the rows of scores.csv at one step, each {column: a number}. Column `head` is "" for a layer.

    matrix: "wqk", or "positions" for the matrix of untied positions. n_heads: a number for each layer. new: W_q and W_k
    of all layers, (L, C, C) each; previous: the same when scores were last written, or None. at_end: at the
    last step, what else each layer gets, {column: a number} each.
    """
    for w in new:  # grouped keys would not fit, and heads would be cut in the wrong places
        require(w.shape[1] == w.shape[2], f"{matrix}: W_q or W_k is {tuple(w.shape)}, expected (L, C, C) of stacked_qk")
    if previous is None:
        previous = new  # no change yet, and the symmetry of a zero matrix is nan
    rows = []
    for layer, n_head in enumerate(n_heads):
        # score the layer, as if it were one head with D = C
        factors = [w[layer] for w in (*new, *previous)]  # W_q, W_k, and both before: (C, C) each
        [of_layer] = score_heads(*[w[None] for w in factors])

        # score its heads
        heads = [heads_of(w, n_head) for w in factors]  # (H, C, D) each
        of_heads = score_heads(*heads)

        # what only a layer has; the cells of its heads stay empty
        of_layer |= parts_of_symmetry(*heads[:2])
        of_layer |= dict.fromkeys(AT_END, math.nan)
        if at_end and len(factors[0]) <= 1024:  # wider ones would take longer than all else
            of_layer |= dict(symmetry_95=limit_of_symmetry(multiply(*factors[:2]))) | at_end[layer]

        for head, row in zip(["", *range(n_head)], [of_layer, *of_heads], strict=True):
            rows.append(dict(step=step, matrix=matrix, layer=layer, head=head) | row)
    return rows


def score_heads(w_q, w_k, p_q, p_k):
    """
    Returns for each of H heads the scores of its W_qk, {name: a number}. W_q, W_k, and both before: (H, C, D) each.
    update_symmetry is the symmetry of the change of W_qk since then (Theorem 2.4).
    """
    #     W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T = [W_q - P_q, P_q] [W_k, W_k - P_k]^T
    # The right side subtracts before it multiplies, so a small change keeps its digits.
    left = torch.cat([w_q - p_q, p_q], -1)  # (H, C, 2 D)
    right = torch.cat([w_k, w_k - p_k], -1)  # (H, C, 2 D)
    of_run = dict(update_symmetry=scores(left, right).symmetry, chance=multiply(w_q, w_k).mean_symmetry())
    columns = dict(**scores(w_q, w_k)._asdict(), **of_run)  # (H,) each; a TypeError if two have one name
    numbers = [values.view(len(w_q)).tolist() for values in columns.values()]
    return [dict(zip(columns, row)) for row in zip(*numbers)]


def add_rows(text, rows, float_format):
    """Returns the text of a CSV file with more rows, each {column: a number}. Raises ConfigError for other columns."""
    table = pandas.DataFrame(rows)  # of cells by name; nan is an empty one
    header = ",".join(table) + "\n"
    require(not text or text.startswith(header), f"this run has other columns than {header.strip()}: go on with the "
            "commit in its run.json")
    return text + table.to_csv(index=False, header=not text, float_format=float_format, lineterminator="\n")


# ---- what a run is, and where it comes from ----------------------------------------------------------------------


def identity(run, path):
    """
    Returns what must be the same in all processes of a run, and when it goes on: {key: value}. run: what run.json and
    ckpt.pt say of it, its config and its data. path: of the file. Raises ConfigError if the code cannot do this run.
    """
    config = as_now(run["config"], path, only_known=True)
    same = {key: value for key, value in config.items() if not may_differ(key, "run")}
    return same | dict(corpus=run["data"]["sha256"], parent_sha256=run.get("parent_sha256", ""))


def digest(state):
    """Returns the SHA-256 of the weights in a state dict on the CPU, in the order of their names."""
    sha256 = hashlib.sha256()
    for _, tensor in sorted(state.items()):
        sha256.update(tensor.contiguous().numpy())
    return sha256.hexdigest()


def find_commit():
    """Returns the commit of this project's own repository, with -dirty if Python files differ from it."""
    def git(words):  # a shell goes on if there is no git
        command = f"git --git-dir=.git --work-tree=. {words}"  # of this folder, even if it is in another repository
        return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    commit = git("rev-parse --verify HEAD") or "no repository"
    is_dirty = git('status --porcelain --untracked-files=all -- "*.py"')  # changed or new, and not ignored
    return f"{commit}-dirty" if is_dirty else commit


# ---- writing and reading a run -----------------------------------------------------------------------------------


def write_files(folder, checkpoint):
    """Writes log.csv, scores.csv and run.json, all of which is in the checkpoint, too."""
    for name, text in checkpoint["rows"].items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    keys = "config", "data", "parent_sha256", "parent_config", "n_params", "lengths", "origin"
    write_json(folder / "run.json", {key: checkpoint[key] for key in keys})


def save_checkpoint(folder, checkpoint):
    """Writes ckpt.pt, and then the other files from it. The folder is locked."""
    remove_leftovers(folder / "ckpt.pt")
    with replacing(folder / "ckpt.pt") as temporary:
        try:
            torch.save(checkpoint, temporary)
        except RuntimeError as e:  # of which no line says what is wrong
            raise OSError(f"{folder}/ckpt.pt cannot be written: is the disk full?") from e
    write_files(folder, checkpoint)


def checkpoint_to_resume(folder, run, device):
    """
    Returns the checkpoint from which a run goes on, a dict, or None if it begins. run: as for identity; that of a child
    gets the parent that the checkpoint names.
    """
    path = folder / "ckpt.pt"
    if not path.exists() and not (folder / "log.csv").exists():
        return None
    require(run["config"]["init_from"] == "resume",
            f"{folder} holds a run already: go on with --init_from=resume, or set --out_dir")
    checkpoint = torch.load(path, map_location=device, weights_only=True)
    if run["config"]["parent"]:  # it has these weights already, whatever the parent is by now
        require(checkpoint.get("parent_sha256"), f"{path} is of another run: it began without a parent")
        run.update(parent_sha256=checkpoint["parent_sha256"], parent_config=checkpoint.get("parent_config"))
    before = identity(checkpoint, path)
    for key, here in identity(run, path).items():
        there = before[key]
        is_longer = key == "max_iters" and there < here
        require(there == here or is_longer, f"{path} is of another run: {key} = {there!r} there, {here!r} here")
    return checkpoint
