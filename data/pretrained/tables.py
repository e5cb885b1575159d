"""Scores of pretrained models as tables: a DataFrame, the CSV file of analyze.py --csv, and what is printed."""

import contextlib
import csv
import os
from pathlib import Path

import pandas

from analyze import SCORES

from .. import fixed, printable
from ..atomic import replacing
from . import CheckpointError, require
from .folders import find_source

# Columns of a table, beside the scores. A row is of one layer, or of one of its heads.
COLUMNS = {
    "layer": int,
    "symmetry_chance": float,  # the mean symmetry of random matrices in the directions of W_qk (analyze.py)
    "symmetry_95": float,  # of a layer of at most 1,024 dimensions: 95 % of these matrices are below it
    "own_heads": float,  # of a layer, with --per_head: its symmetry is own_heads + shared + mirror (analyze.py)
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


def score_table(rows, **common):
    """Returns rows of one model, {column: value} each, as a DataFrame. common: what is the same in all of them."""
    require(COLUMNS.keys().isdisjoint(SCORES), f"a score has the name of a column: {', '.join(SCORES)}")
    first, *later = SCORES  # they come first, because pandas hides what is in the middle
    types = {name: COLUMNS.get(name, float) for name in ["layer", first, "symmetry_chance", *later, *COLUMNS]}
    table = pandas.DataFrame(rows).assign(**common)
    return table.reindex(columns=list(types)).astype(types)  # what was not computed is an empty cell


def known_as(name):
    """Returns by what a model is known in a CSV: its path, or its id on the Hub."""
    source = find_source(name)
    return printable(str(source.resolve() if isinstance(source, Path) else source))


def whole_layers(table):
    return table[table["head"].isna()]


@contextlib.contextmanager
def new_file(path):
    """Makes an empty file for a block, and removes it if nothing was written. CheckpointError: it is there already."""
    if not path:
        yield
        return
    try:
        open(path, "x").close()  # of two programs one makes it, and the other ends here
    except FileExistsError:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            names = dict.fromkeys(row.get("model") for row in csv.DictReader(file))
        models = printable(", ".join(name or "a row without a model" for name in names)) or "no model"
        raise CheckpointError(f"{path} is there already, with {models}: give another --csv for the rest")
    try:
        yield
    finally:
        if os.path.getsize(path) == 0:
            os.remove(path)


def write_scores(path, models):
    """Writes the rows of some ScoredModels. The file is complete or as it was, also on a full disk."""
    table = pandas.concat([model.table for model in models])
    with replacing(path) as temporary:
        temporary.write_bytes(table.to_csv(index=False, lineterminator="\n").encode())


NOT_SHOWN = [*COLUMNS, "directionality_eq17"]  # no scores; and the one by Eq. (17), whose sign can be wrong
# The columns of a line for a layer. The scores that a fork adds come behind them.
FIRST = ("stack", "layer", "head", "symmetry", "symmetry_chance", "symmetry_95", "own_heads", "shared", "mirror",
         "directionality", "its 95 % range")
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
    # the tables: of the layers, and of whole models
    shown = {}  # {title: table}
    if len(tables) == 1 or (args.per_head and not args.csv):
        shown = {f"Layers of {table['model'].iloc[0]}:": f"{layer_table(table)}\n" for table in tables}
    shown["Whole models, medians over layers:"] = model_table(pandas.concat(tables))
    for title, table in shown.items():
        print(title, table, sep="\n")

    # and what the columns mean that are in one of them
    headers = " ".join(table.partition("\n")[0] for table in shown.values())
    print(*[f"  {name}: {words}" for name, words in LEGEND.items() if name in headers], sep="\n")


def layer_table(table):
    """Returns a line for each layer and head, without columns that are empty."""
    ends = table["directionality_95"].map(lambda end: f"{fixed(-end, 2)} to {end:.2f}", "ignore")
    added = table.columns.drop([*NOT_SHOWN, "symmetry", "directionality"])
    cells = table.assign(**{"its 95 % range": ends})[[*FIRST, *added]].map(cell_text)
    cells = cells.loc[:, (cells != "").any()]
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
        for name in table.columns.drop(NOT_SHOWN):
            q1, median, q3 = [fixed(value, 2) for value in layers[name].quantile([0.25, 0.5, 0.75])]
            line[f"{name} [quartiles]"] = f"{median} [{q1}, {q3}]"
            if name == "symmetry":
                line["symmetry chance"] = fixed(layers["symmetry_chance"].median(), 2)
            if name == "directionality":
                n_outside = (layers["directionality"].abs() > layers["directionality_95"]).sum()
                line["outside its 95 % range"] = f"{n_outside} of {len(layers)}"
        lines.append(line)
    return pandas.DataFrame(lines).to_string(index=False)
