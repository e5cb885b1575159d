"""Keeps scores of pretrained models in a table, and in the CSV file of analyze.py --csv, which is not scored again."""

from pathlib import Path

import pandas

from ..atomic import locked, replacing
from ..names import tell
from .by_hand import read_hand
from .files import CheckpointError, require

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
    "note": str,  # what of the model has no rows here
    "gamma": float,  # of both directionalities
    "limit": float,  # by chance 95 of 100 directionalities of a layer are between minus this and this (chance.py)
    "symmetry": float,
    "directionality": float,
    "directionality_eq17": float,
    "rows": int,  # that this checkpoint has here: if there are fewer, some were lost
}
STACK = ["model", "revision", "stack"]  # what a stack of layers is known by


def score_table(rows, common):
    """Returns the rows of one checkpoint, dicts by COLUMNS, as a DataFrame. common: what is the same in all rows."""
    common = dict(revision="", source="", note="", rows=len(rows)) | common
    table = pandas.DataFrame([common | row for row in rows])
    unknown = set(table) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no column for {unknown}")
    return table[list(COLUMNS)].astype(COLUMNS)


def whole_layers(table):
    """Returns the table without the rows of heads."""
    return table[table["head"].isna()]


def is_causal(rows):
    """Returns whether no token sees a later one, from rows of a stack. None: it is not known."""
    return {0: False, 1: True}.get(rows["causal"].iloc[0])


# ---- the CSV file ------------------------------------------------------------------------------------------------


def read_scores(path):
    """Returns the table in a file, without rows if there is none. Raises CheckpointError if it is another file."""
    if not path or not Path(path).exists():
        return pandas.DataFrame(columns=list(COLUMNS)).astype(COLUMNS)
    is_missing = {name: [""] for name, kind in COLUMNS.items() if kind is not str}  # elsewhere "" is a text
    try:
        # As texts first, because read_csv may be off in the last digit of a number, and astype is not.
        table = pandas.read_csv(path, dtype=str, na_values=is_missing, keep_default_na=False)
        if list(table.columns) != list(COLUMNS):
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        return table.astype(dict(causal=float, head=float)).astype(COLUMNS)  # pandas writes 1.0 beside empty cells
    except (ValueError, TypeError, OverflowError) as e:
        raise CheckpointError(f"{path} holds something else, which would be lost, or is damaged ({str(e).strip()}): "
                              "mend it, or give another --csv") from e


def replace_rows(table, rows):
    """Returns the table with the rows of one checkpoint, in the place of older ones."""
    others = table["source"] != rows["source"].iloc[0]
    return pandas.concat([table[others], rows], ignore_index=True)


def add_scores(path, rows):
    """Puts the rows of one checkpoint into the CSV, in the place of older ones."""
    with locked(Path(path).absolute().parent, wait=True):  # another process may add to it too
        table = replace_rows(read_scores(path), rows)
        with replacing(path) as temporary:
            table.to_csv(temporary, index=False)


def known_scores(args):
    """Returns the rows of whole checkpoints in --csv. Raises CheckpointError if other options scored any."""
    table = read_scores(args.csv)
    of_heads = table["head"].notna().groupby(table["source"]).any()
    layout = str(read_hand(**args.layout) or "")
    for option, theirs, ours in (("gamma", table["gamma"], args.gamma), ("layout", table["layout"], layout),
                                 ("per_head", of_heads, args.per_head)):
        other = theirs[theirs != ours]
        require(other.empty, f"{args.csv} was scored with {option} = {str(*other[:1]) or 'none'}, and not "
                             f"with {str(ours) or 'none'}: give another --csv")
    checkpoints = table.groupby("source")
    has_all = checkpoints["rows"].transform("size") == table["rows"]
    is_double = table.duplicated(["source", "stack", "layer", "head"], keep=False)
    return table[has_all & ~is_double.groupby(table["source"]).transform("any")]


def find_missing(table, targets, args):
    """Returns those of the targets, {source: Target}, that have to be scored."""
    if args.offline:
        return {}
    known = set() if args.matrices else set(table["source"])  # W_qk is not in the table
    missing = {source: target for source, target in targets.items() if source not in known}
    n_known = len(targets) - len(missing)
    if n_known:
        tell(f"{n_known} of {len(targets)} are already in {args.csv}: delete their rows to score them again")
    return missing


def choose(table, targets):
    """Returns the rows of the targets, in their order and by their present names, with the step of each checkpoint."""
    names = [(source, target.model, target.revision, target.step) for source, target in targets.items()]
    names = pandas.DataFrame(names, columns=["source", "model", "revision", "step"]).astype(dict(step=float))
    return names.merge(table.drop(columns=["model", "revision"]), on="source")
