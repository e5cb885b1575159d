"""Scores of pretrained models as tables: a DataFrame, the CSV file of analyze.py --csv, and what is printed."""

import os
from pathlib import Path

import pandas

from ..atomic import replacing
from ..names import fixed, printable, require
from .folders import find_source

# Columns of a table, beside the scores. A row is of one layer, or of one of its heads.
COLUMNS = {
    "layer": int,
    "symmetry_chance": float,  # the mean symmetry of random matrices in the directions of W_qk (data/wqk.py)
    "symmetry_95": float,  # of a layer of at most 1,024 dimensions: 95 % of these matrices are below it
    "own_heads": float,  # of a layer, with --per_head: its symmetry is own_heads + shared + mirror (data/wqk.py)
    "shared": float,
    "mirror": float,
    "directionality_95": float,  # of a layer: 95 % of random directionalities are between minus this and this
    "head": "Int64",  # an empty cell: the whole layer
    "stack": "str",  # encoder, decoder, ...; "" if the model has one stack
    "causal": "Int64",  # 1: no token sees a later one; 0: all see all; an empty cell: it is not known
    "model": "str",  # as the user named it
    "source": "str",  # its path, or its id on the Hub with @revision: by it the rows are known
    "params": int,  # of the whole checkpoint; 0 of score_layers
    "gamma": float,  # of directionalities
    "n": int,  # W_qk is n x n, the product of two factors (n, r)
    "r": int,
}
STACK = ["model", "source", "stack"]  # what a stack of layers is known by


def column_types(scores):
    """Returns {column: its type}. scores: their names. They come first, because pandas hides what is in the middle."""
    require(COLUMNS.keys().isdisjoint(scores), f"a score has the name of a column: {', '.join(scores)}")
    first, *later = scores
    return {name: COLUMNS.get(name, float) for name in ["layer", first, "symmetry_chance", *later, *COLUMNS]}


def score_table(rows, common, scores):
    """Returns rows of one model, {column: value} each, as a DataFrame. common: what is the same in all of them."""
    types = column_types(scores)
    table = pandas.DataFrame([row | common for row in rows])
    return table.reindex(columns=list(types)).astype(types)  # what was not computed is an empty cell


def known_as(source):
    """Returns by what a model is known in a CSV: its path, its id on the Hub, or "" of a model in memory."""
    if not isinstance(source, str | os.PathLike):
        return ""
    path_or_id = find_source(str(source))
    path = Path(path_or_id).expanduser()
    return printable(str(path.resolve() if path.exists() else path_or_id))


def whole_layers(table):
    return table[table["head"].isna()]


# ---- the CSV file ------------------------------------------------------------------------------------------------


def read_scores(path, scores):
    """Returns the table in a file, empty if there is none. Raises CheckpointError if it holds something else."""
    types = column_types(scores)
    if not path or not os.path.exists(path):
        return pandas.DataFrame(columns=list(types)).astype(types)
    with open(path, encoding="utf-8", errors="replace") as f:
        require(f.readline().strip() == ",".join(types), f"{path} holds something else: give another --csv")
    empty = {name: [""] for name, kind in types.items() if kind != "str"}  # elsewhere "" is a text, and so is "NA"
    table = pandas.read_csv(path, dtype=types, na_values=empty, keep_default_na=False)
    return table.drop_duplicates(["source", "stack", "layer", "head", "gamma"], keep="last")


def rows_of(table, name, args):
    """Returns the rows of a model that was scored with the same options, none if it has to be scored."""
    same = dict(source=known_as(name), gamma=args.gamma)
    rows = table[(table[list(same)] == pandas.Series(same)).all(axis="columns")]
    if not args.per_head:
        return whole_layers(rows)
    return rows if rows["head"].notna().any() else rows[:0]


def add_scores(path, rows):
    """Adds the rows of one model to a CSV file, which is written anew, so that no half of it is left on a full disk."""
    before = Path(path).read_bytes() if os.path.exists(path) else b""
    text = rows.to_csv(index=False, header=not before, lineterminator="\n")
    with replacing(path) as temporary:
        temporary.write_bytes(before + text.encode())


# ---- what is printed ---------------------------------------------------------------------------------------------


# The columns of a line for a layer. The scores that a fork adds come behind them.
FIRST = ("stack", "layer", "head", "symmetry", "symmetry_chance", "symmetry_95", "own_heads", "shared", "mirror",
         "directionality", "directionality_95")
LEGEND = {  # what a column means, in a line of 116 characters at most
    "symmetry": "1 if W_qk equals its transpose, -1 if it equals minus its transpose",
    "symmetry chance": "the mean symmetry of random matrices that use the same directions as W_qk",
    "symmetry 95": "what about 95 % of these matrices are below, for layers of at most 1,024 dimensions",
    "own heads": "what single heads have of the symmetry of their layer; own heads + shared + mirror = symmetry",
    "shared": "what it has because heads have a symmetric part in common",
    "mirror": "what it has because one head is like the transpose of another",
    "directionality": "below 0 if a few columns of W_qk are much longer than the others, above 0 if a few rows are",
    "its 95 % range": "about where the directionality of 95 % of random matrices with the same singular values is",
    "outside its 95 % range": "how many layers have a directionality that is not in this range",
}


def show_scores(tables, args):
    """Prints layers, of a single model or of all if heads are not in a file; medians; and what the columns mean."""
    shown = {}  # {title: table}
    if len(tables) == 1 or (args.per_head and not args.csv):
        shown = {f"Layers of {table['model'].iloc[0]}:": f"{layer_table(table)}\n" for table in tables}
    shown["Whole models, medians over layers:"] = model_table(pandas.concat(tables))
    for title, table in shown.items():
        print(title, table, sep="\n")
    headers = " ".join(table.partition("\n")[0] for table in shown.values())
    print(*[f"  {name}: {words}" for name, words in LEGEND.items() if name in headers], sep="\n")


def shown_scores(table):
    """Returns the names of the scores that are printed: all but that of Eq. (17), whose sign can be wrong."""
    return table.columns.drop([*COLUMNS, "directionality_eq17"])


def layer_table(table):
    """Returns a line for each layer and head, without columns that are empty."""
    ends = table["directionality_95"].map(lambda end: f"{fixed(-end, 2)} to {end:.2f}", "ignore")
    added = shown_scores(table).drop(["symmetry", "directionality"])
    cells = table.assign(directionality_95=ends)[[*FIRST, *added]].map(cell_text)
    cells = cells.loc[:, (cells != "").any()].rename(columns={"directionality_95": "its 95 % range"})
    return cells.rename(columns=lambda name: name.replace("_", " ")).to_string(index=False)


def cell_text(value):
    if pandas.isna(value):
        return ""
    return fixed(value, 3) if isinstance(value, float) else str(value)


def model_table(table):
    """Returns a line for each stack of layers: medians."""
    lines = []
    for (model, _, stack), layers in whole_layers(table).groupby(STACK, sort=False):
        line = {"model": f"{model[-36:]} {stack}".strip(), "layers": len(layers)}
        for name in shown_scores(table):
            q1, median, q3 = [fixed(value, 2) for value in layers[name].quantile([0.25, 0.5, 0.75])]
            line[f"{name} [quartiles]"] = f"{median} [{q1}, {q3}]"
            if name == "symmetry":
                line["symmetry chance"] = fixed(layers["symmetry_chance"].median(), 2)
            if name == "directionality":
                n_outside = (layers["directionality"].abs() > layers["directionality_95"]).sum()
                line["outside its 95 % range"] = f"{n_outside} of {len(layers)}"
        lines.append(line)
    return pandas.DataFrame(lines).to_string(index=False)
