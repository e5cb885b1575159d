"""
Pretrained models, scored: the command line of analyze.py asks for some, a CSV file has those that were scored before,
and the others are scored one after the other.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from data.pretrained import revisions
from data.pretrained.by_hand import read_hand
from data.pretrained.files import CheckpointError, printable
from data.pretrained.sources import known_models
from data.results import tables
from data.results.runs import RunError, require
from data.tokens import locked, replacing

PAPER = "data/results/csv/paper.csv"

# The columns of the CSV. A row has the scores of one layer, or of one of its heads.
COLUMNS = {
    "model": str,
    "revision": str,  # which of its checkpoints; "" if its name stands for one only
    "stack": str,  # encoder, decoder, ...; "" if the model has one stack
    "causal": "Int64",  # 1: no token sees a later one; 0: all see all; an empty cell: it is not known
    "params": int,  # of the whole checkpoint
    "layer": int,
    "head": "Int64",  # an empty cell: the whole layer
    "n": int,  # W_qk is n x n, the product of two factors (n, r)
    "r": int,
    "layout": str,  # "", or what the user said of the tensors that are queries and keys
    "gamma": float,  # of both directionalities
    "limit": float,  # by chance 95 of 100 directionalities of a layer are between minus this and this (chance.py)
    "symmetry": float,
    "directionality": float,
    "directionality_eq17": float,
    "rows": int,  # that this checkpoint has here: if there are fewer, some were lost
    "changed": float,  # when a local checkpoint last changed, as of changed_at: if it has since, it is scored again
}


def tell(line):
    """Print a line on stderr, above any progress bar. Names in it may hold control characters."""
    tqdm.write(printable(line), file=sys.stderr)


def bar(items, name, unit, n):
    """The items, and a progress bar if stderr is a terminal."""
    return tqdm(items, printable(name), n, leave=False, unit=unit, disable=None)


# ---- the CSV file ------------------------------------------------------------------------------------------------


def score_table(rows, common):
    """
    The rows of one checkpoint as a DataFrame, from dicts by COLUMNS. common: what is the same in all rows.

    Raises KeyError if a row has no value for a column, or one for which there is no column.
    """
    table = pd.DataFrame([common | row for row in rows], columns=None if rows else list(COLUMNS))
    table = table.assign(rows=len(rows), changed=0.0)
    unknown = set(table) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no column for {unknown}")
    return table[list(COLUMNS)].astype(COLUMNS)


def read_scores(path):
    """The table in a CSV file that add_scores has written; an empty one if there is no file."""
    if not path or not Path(path).exists():
        return score_table([], {})
    require(Path(path).is_file(), f"{path} is no file: give another --csv")
    numbers = {name: [""] for name, kind in COLUMNS.items() if kind is not str}  # else "" is a text
    try:
        # As texts first, because read_csv may be off in the last digit of a number, and astype is not.
        table = pd.read_csv(path, dtype=str, na_values=numbers, keep_default_na=False)
        if list(table.columns) != list(COLUMNS):
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        return table.astype(COLUMNS)
    except ValueError as e:
        raise RunError(f"{path} holds something else, which would be lost, or is damaged ({str(e).strip()}): mend it, "
                       "or give another --csv") from e


def add_scores(path, table):
    """Put the rows of one checkpoint into the CSV, in the place of those that it had of it."""
    with locked(Path(path).absolute().parent, wait=True):  # another process may add to it too
        others = read_scores(path)
        ours = table["model"].iloc[0], table["revision"].iloc[0]
        stays = [key != ours for key in zip(others["model"], others["revision"])]
        with replacing(path) as temporary:
            together([others[stays], table]).to_csv(temporary, index=False)


def together(found):
    """One table of all."""
    return pd.concat(found, ignore_index=True) if found else score_table([], {})


def scores_so_far(path, targets, args):
    """
    {(model, revision): its table} of the CSV file at path, if there is one: what is in it is not scored again. Left out
    are checkpoints that lack rows, or have them twice, and local ones that have changed since then.
    """
    table = read_scores(path)
    ours = how_scored(args.gamma, args.per_head, str(read_hand(**layout_of(args)) or ""))
    so_far = {}
    for key, rows in table.groupby(["model", "revision"], sort=False):
        first = rows.iloc[0]
        theirs = how_scored(first["gamma"], rows["head"].notna().any(), first["layout"])
        require(theirs == ours, f"{path} was scored with {theirs}, and not with {ours}: give another --csv")
        is_whole = len(rows) == rows["rows"].max() and not rows.duplicated(["stack", "layer", "head"]).any()
        if is_whole:
            so_far[key] = rows
    for target in targets:
        if target.key() in so_far and so_far[target.key()]["changed"].iloc[0] != changed_at(target.source):
            del so_far[target.key()]
    return so_far


def layout_of(args):
    """What the user says of the layout, as score_model takes it."""
    return {word: getattr(args, word) for word in ("q", "k", "qkv", "heads", "order", "transposed")}


def how_scored(gamma, per_head, layout):
    flags = f"--gamma={gamma:g}{' --per_head' if per_head else ''}"
    return f"{flags} and the layout {layout}" if layout else flags


def changed_at(source):
    """When a local checkpoint, or a link on the way to it, last changed [s]. 0.0 of the Hub: it cannot be told."""
    checkpoint = Path(os.path.expanduser(source))
    files = [file for file in (checkpoint, *checkpoint.rglob("*")) if file.is_file() and file.suffix != ".csv"]
    links = [place for place in (checkpoint, *checkpoint.parents) if place.is_symlink()]
    found = [file.stat() for file in files] + [link.lstat() for link in links]
    # A copy may keep the st_mtime of its original (cp -p, rsync -a); st_ctime tells when it came here, but on Windows.
    return max((max(stat.st_ctime, stat.st_mtime) for stat in found), default=0.0)


def of_targets(targets, so_far):
    """The table of these targets, as far as they are scored, with the step of each."""
    step_of = {target.key(): target.step for target in targets}
    table = together([so_far[checkpoint] for checkpoint in step_of if checkpoint in so_far])
    steps = [step_of[checkpoint] for checkpoint in zip(table["model"], table["revision"])]
    return table.assign(step=np.array(steps, float))  # nan where it is None


# ---- scoring what is not there -----------------------------------------------------------------------------------


def report_models(args, score_model):
    """Score all checkpoints that were asked for. -> the exit status: 1 if one of them could not be scored"""
    names = [row["name"] for row in known_models()] if args.paper else args.hf
    targets, errors = revisions.find_all(names, args.revisions, args.stride or 1, args.limit)
    for name, error in errors.items():  # a name that cannot be found does not stop the others
        tell(f"analyze.py: {name}: {error}")
    is_training = any(target.step is not None for target in targets)
    require(is_training or errors or not (args.stride or args.limit),
            "--stride and --limit are of trainings: give --revisions as well")

    path = args.csv or (PAPER if args.paper else None)
    so_far = scores_so_far(path, targets, args)
    # What is in the file is not scored again, unless its W_qk is to be drawn.
    to_score = [target for target in targets if args.matrices or target.key() not in so_far]
    if args.offline:
        to_score = []
    elif len(to_score) < len(targets):
        n_known = len(targets) - len(to_score)
        tell(f"{n_known} of {len(targets)} are in {path}, and are not scored again: that takes another --csv")
    results = score_all(to_score, path, args, score_model)
    so_far |= {target.key(): result.table for target, result in results.items()}
    report(args, of_targets(targets, so_far))
    if args.matrices and results:
        from data.results import figures

        figures.plot_matrices(results, args.matrices)
    return 1 if errors or len(results) < len(to_score) else 0


def score_all(targets, path, args, score_model):
    """
    Score one checkpoint after the other. One that cannot be scored is named on stderr, and the others go on. path: of
    the CSV to which they come. -> {target: its ScoredModel}
    """
    results = {}
    for target in bar(targets, "checkpoints", "model", len(targets)):
        changed = changed_at(target.source)
        try:
            result = score_model(target.source, args.gamma, args.per_head, args.device, **layout_of(args))
        except CheckpointError as e:
            tell(f"analyze.py: {target.label()}: {e}")
            continue
        tell(f"{target.label()}: {result.note}")
        named = result.table.assign(model=target.model, revision=target.revision, changed=changed)
        results[target] = result._replace(table=named)
        if path:  # after every checkpoint, so that nothing is lost if this is stopped
            add_scores(path, named)
    return results


# ---- what is printed and drawn -----------------------------------------------------------------------------------


def report(args, table):
    """It depends on the question: the paper, trainings, or single models. table: as of of_targets"""
    from data.results import figures, figures_pretrained

    trainings = tables.find_trainings(table)
    stacks = tables.by_stack(table)
    is_one = table["model"].nunique() == 1
    if args.paper:
        ours = [tables.model_table(stacks)] if stacks else []
        show([*ours, tables.printed_tables()], args.plot, figures_pretrained.plot_pretrained, known_models(), stacks)
    elif trainings:
        show([tables.training_table(trainings)], args.plot, figures_pretrained.plot_training, trainings)
    elif is_one:
        show([tables.layer_table(table), tables.model_table(stacks)], args.plot, figures.plot_model, table)
    elif len(table):
        heads = [tables.layer_table(table)] if args.per_head and not args.csv else []
        show([*heads, tables.model_table(stacks)], args.plot, figures.plot_models, stacks)


def show(texts, path, draw, *drawn):
    print(*texts, sep="\n", flush=True)  # OSError: a full disk
    if path:
        draw(*drawn, path)
