"""
Scores of pretrained models in a table, and in the CSV file that analyze.py --csv keeps of it: what is in the file is
not scored again.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from data.pretrained import revisions
from data.pretrained.by_hand import read_hand
from data.pretrained.files import as_text, printable
from data.pretrained.revisions import Target
from data.pretrained.sources import known_models
from data.results.runs import RunError, require
from data.tokens import locked, replacing

PAPER = "data/results/csv/paper.csv"

# The columns of the CSV. A row has the scores of one layer, or of one of its heads.
COLUMNS = {
    "model": str,  # as the user named it
    "revision": str,  # which of its checkpoints; "" if the name has only one
    "source": str,  # the path of this checkpoint, or its Hub id and revision: by it the rows are known
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
}


def tell(line):
    """Print a line on stderr, above any progress bar. Names in it may hold control characters."""
    tqdm.write(printable(line), file=sys.stderr)


def bar(items, name, unit, n):
    """The items, and a progress bar if stderr is a terminal."""
    return tqdm(items, printable(name), n, leave=False, unit=unit, disable=None)


# ---- the table ---------------------------------------------------------------------------------------------------


def score_table(rows, common):
    """
    The rows of one checkpoint as a DataFrame, from dicts by COLUMNS. common: what is the same in all rows.

    Raises KeyError if a row has no value for a column, or one for which there is no column.
    """
    common = dict(revision="", source="", rows=len(rows)) | common
    table = pd.DataFrame([common | row for row in rows])
    unknown = set(table) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no column for {unknown}")
    return table[list(COLUMNS)].astype(COLUMNS)


def together(tables):
    """One table of all."""
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS)).astype(COLUMNS)


def whole_layers(table):
    """Without the scores of heads."""
    return table[table["head"].isna()]


def by_stack(table):
    """A table with one checkpoint of each model -> {(model, stack): the rows of its whole layers}."""
    return dict(list(whole_layers(table).groupby(["model", "stack"], sort=False)))


def is_causal(stack):
    """Whether no token sees a later one, from the rows of a stack. None: it is not known."""
    causal = stack["causal"].iloc[0]
    return None if causal is pd.NA else bool(causal)


def quartiles(values):
    """(..., L) -> (3, ...): first quartile, median and third quartile over layers."""
    return np.nanpercentile(values, [25, 50, 75], axis=-1)


# ---- the CSV file ------------------------------------------------------------------------------------------------


def read_scores(path):
    """The table in a CSV file that add_scores has written; an empty one if there is no file."""
    if not path or not Path(path).exists():
        return together([])
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
        stays = others["source"] != table["source"].iloc[0]
        with replacing(path) as temporary:
            together([others[stays], table]).to_csv(temporary, index=False)


def scores_so_far(path, args):
    """
    {source: its rows} of the CSV file at path, if there is one, without checkpoints that lack rows or have them twice.
    Raises RunError if they were scored with other options.
    """
    ours = how_scored(args.gamma, args.per_head, str(read_hand(**layout_of(args)) or ""))
    found = {}
    for source, rows in read_scores(path).groupby("source", sort=False):
        first = rows.iloc[0]
        theirs = how_scored(first["gamma"], rows["head"].notna().any(), first["layout"])
        require(theirs == ours, f"{path} was scored with {theirs}, and not with {ours}: give another --csv")
        if len(rows) == rows["rows"].max() and not rows.duplicated(["stack", "layer", "head"]).any():
            found[source] = rows
    return found


def layout_of(args):
    """What the user says of the layout, as score_model takes it."""
    return {word: getattr(args, word) for word in ("q", "k", "qkv", "heads", "order", "transposed")}


def how_scored(gamma, per_head, layout):
    flags = f"--gamma={gamma:g}{' --per_head' if per_head else ''}"
    return f"{flags} and the layout {layout}" if layout else flags


# ---- what is asked for -------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a command line asks for, and what there is of it."""

    path: str | None  # of the CSV
    targets: dict[str, Target]  # by source
    to_score: dict[str, Target]  # targets that have to be scored
    found: dict[str, pd.DataFrame]  # source -> its rows, from the CSV and from what was scored since
    n_errors: int  # names without a checkpoint


def find_asked(args):
    """What the command line of analyze.py asks for. A name that cannot be found is told, and the others go on."""
    names = [row["name"] for row in known_models()] if args.paper else args.hf
    targets, errors = revisions.find_all(names, args.revisions, args.limit)
    for name, error in errors.items():
        tell(f"analyze.py: {name}: {error}")
    is_training = any(target.step is not None for target in targets)
    require(is_training or errors or not args.limit, "--limit is of trainings: give --revisions as well")

    path = args.csv or (PAPER if args.paper else None)
    of_source = {}
    for target in targets:
        of_source.setdefault(source_of(target), target)  # of m and ./m, the first name stays
    found = scores_so_far(path, args)
    # What is in the file is not scored again, unless its W_qk is to be drawn.
    to_score = {key: target for key, target in of_source.items() if args.matrices or key not in found}
    if args.offline:
        to_score = {}
    elif len(to_score) < len(of_source):
        n_known = len(of_source) - len(to_score)
        tell(f"{n_known} of {len(of_source)} are already in {path}: delete their rows to score them again")
    return Asked(path, of_source, to_score, found, len(errors))


def source_of(target):
    """By what the rows of a checkpoint are known: its path without links, or its Hub id and revision."""
    path = Path(target.source).expanduser()
    return as_text(str(path.resolve()) if path.exists() else target.source)


def keep(asked, source, scored):
    """Put the table of a checkpoint that was scored into the CSV, so that nothing is lost if this is stopped."""
    target = asked.targets[source]
    asked.found[source] = scored.assign(model=target.model, revision=target.revision, source=source)
    if asked.path:
        add_scores(asked.path, asked.found[source])


def table_of(asked):
    """One table of all that is asked for, as far as it is scored, with the step of each checkpoint."""
    steps = {source: np.nan if target.step is None else target.step for source, target in asked.targets.items()}
    return together([asked.found[source].assign(model=target.model, revision=target.revision, step=steps[source])
                     for source, target in asked.targets.items() if source in asked.found])
