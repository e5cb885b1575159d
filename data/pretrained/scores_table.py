"""Keeps scores of pretrained models in a table, and in the CSV file of analyze.py --csv, which is not scored again."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from data.atomic import locked, replacing
from data.names import as_text, printable
from data.pretrained import revisions
from data.pretrained.by_hand import read_hand
from data.pretrained.files import CheckpointError, require
from data.pretrained.sources import known_models

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
    """Prints a line on stderr, above any progress bar. Names in it may hold control characters."""
    tqdm.write(printable(line), file=sys.stderr)


def bar(items, name, unit, n):
    """Yields the items, and shows a progress bar if stderr is a terminal."""
    return tqdm(items, printable(name), n, leave=False, unit=unit, disable=None)


# ---- the table ---------------------------------------------------------------------------------------------------


def score_table(rows, common):
    """Returns the rows of one checkpoint, dicts by COLUMNS, as a DataFrame. common: what is the same in all rows."""
    common = dict(revision="", source="", rows=len(rows)) | common
    table = pd.DataFrame([common | row for row in rows])
    unknown = set(table) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no column for {unknown}")
    return table[list(COLUMNS)].astype(COLUMNS)


def together(tables):
    """Returns one table of all. It has no rows if there are no tables."""
    if not tables:
        return pd.DataFrame(columns=list(COLUMNS)).astype(COLUMNS)
    return pd.concat(tables, ignore_index=True)


def whole_layers(table):
    """Returns the table without the rows of heads."""
    return table[table["head"].isna()]


class StackName(NamedTuple):
    model: str
    revision: str
    stack: str


def by_stack(table):
    """Returns {StackName: the rows of its whole layers}."""
    stacks = whole_layers(table).groupby(["model", "revision", "stack"], sort=False)
    return {StackName(*name): layers for name, layers in stacks}


def is_causal(stack):
    """Returns whether no token sees a later one, from the rows of a stack. None: it is not known."""
    return {0: False, 1: True}.get(stack["causal"].iloc[0])


class Quartiles(NamedTuple):
    q1: np.ndarray
    median: np.ndarray
    q3: np.ndarray


def quartiles(values):
    """Returns the Quartiles (...) of values (..., L) over layers."""
    return Quartiles(*np.nanpercentile(values, [25, 50, 75], axis=-1))


# ---- the CSV file ------------------------------------------------------------------------------------------------


def read_scores(path):
    """Returns the table in a file of add_scores, without rows if there is none. Raises CheckpointError if it is another."""
    if not path or not Path(path).exists():
        return together([])
    is_missing = {name: [""] for name, kind in COLUMNS.items() if kind is not str}  # elsewhere "" is a text
    try:
        # As texts first, because read_csv may be off in the last digit of a number, and astype is not.
        table = pd.read_csv(path, dtype=str, na_values=is_missing, keep_default_na=False)
        if list(table.columns) != list(COLUMNS):
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        return table.astype(COLUMNS)
    except (ValueError, OverflowError) as e:
        raise CheckpointError(f"{path} holds something else, which would be lost, or is damaged ({str(e).strip()}): mend it, "
                       "or give another --csv") from e


def add_scores(path, table):
    """Puts the rows of one checkpoint into the CSV, in the place of older ones."""
    with locked(Path(path).absolute().parent, wait=True):  # another process may add to it too
        others = read_scores(path)
        stays = others["source"] != table["source"].iloc[0]
        with replacing(path) as temporary:
            together([others[stays], table]).to_csv(temporary, index=False)


def scores_so_far(args):
    """Returns {source: its rows} of whole checkpoints in --csv. Raises CheckpointError if other options scored them."""
    ours = dict(gamma=args.gamma, per_head=args.per_head, layout=str(read_hand(**args.layout) or ""))
    found = {}
    for source, rows in read_scores(args.csv).groupby("source", sort=False):
        first = rows.iloc[0]
        theirs = dict(gamma=first["gamma"], per_head=rows["head"].notna().any(), layout=first["layout"])
        for option, value in ours.items():
            require(theirs[option] == value, f"{args.csv} was scored with {option} = {theirs[option] or 'none'}, "
                                             f"and not with {value or 'none'}: give another --csv")
        if len(rows) == first["rows"] and not rows.duplicated(["stack", "layer", "head"]).any():
            found[source] = rows
    return found


# ---- what is asked for -------------------------------------------------------------------------------------------


class Asked:
    """What a command line of analyze.py asks for, and its scores, from the CSV file and since."""

    def __init__(self, args):
        names = args.hf
        if args.paper:
            names = [row["name"] for row in known_models()]
        targets, errors = revisions.find_all(names, args.revisions, args.limit)
        for name, error in errors.items():  # and the others go on
            tell(f"analyze.py: {name}: {error}")
        self.n_errors = len(errors)
        self.path = args.csv
        self.targets = {source_of(target): target for target in targets}
        self.found = scores_so_far(args)  # {source: its rows}
        wanted = {} if args.offline else self.targets
        # What is in the file is not scored again, unless its W_qk is to be drawn.
        self.to_score = {source: target for source, target in wanted.items()
                         if args.matrices or source not in self.found}
        n_known = len(wanted) - len(self.to_score)
        if n_known:
            tell(f"{n_known} of {len(wanted)} are already in {self.path}: delete their rows to score them again")

    def add(self, source, scored):
        """Puts the scores of a checkpoint into the CSV at once, so that nothing is lost if this is stopped."""
        target = self.targets[source]
        self.found[source] = scored.assign(model=target.model, revision=target.revision, source=source)
        if self.path:
            add_scores(self.path, self.found[source])

    def table(self):
        """Returns one table of all that is asked for, as far as it is scored, with the step of each checkpoint."""
        tables = []
        for source, target in self.targets.items():
            if source in self.found:
                step = np.float64(target.step)  # None becomes nan
                tables.append(self.found[source].assign(model=target.model, revision=target.revision, step=step))
        return together(tables)


def source_of(target):
    """Returns by what the rows of a checkpoint are known: its path without links, or its Hub id and revision."""
    path = Path(target.source).expanduser()
    if path.exists():
        return as_text(str(path.resolve()))
    return as_text(target.source)
