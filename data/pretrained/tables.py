"""Prints scores of pretrained models (analyze.py --hf, --paper), and draws the pictures that go with them."""

import pandas

from .. import chance
from ..chance import SCORES
from ..names import ending, fixed
from .scores_table import STACK, whole_layers
from .sources import known_models

LONGEST = 36  # characters of a model's name in a table


def show_scores(args, table):
    """Prints and draws what was asked for: the paper, a training, or single models. table: of scores_table.choose"""
    if table.empty and not args.paper:  # nothing could be scored
        return
    is_one = table["model"].nunique() == 1 and table["step"].isna().all()
    texts = []
    legends = []
    if not args.paper and (is_one or (args.per_head and not args.csv)):
        texts += ["Layers:", layer_table(table), ""]
        legends.append(LEGEND_OF_LAYERS)
    if len(table):
        models = model_table(table)
        texts += ["Whole models, medians over layers:", models]
        legends.append(LEGEND_OF_MODELS)
        if "published" in models:
            legends.append(LEGEND_OF_PUBLISHED)
        texts += [LEGEND, *legends]
        for (model, revision, note), _ in table[table["note"] != ""].groupby(["model", "revision", "note"], sort=False):
            texts.append(f"  {in_full(model, revision)}: {note}")
    if args.paper:
        from .published import printed_tables, separation  # here, because only the paper needs them

        texts += [printed_tables(), separation()]
    print(*texts, sep="\n", flush=True)
    if args.plot:
        from . import pictures  # and matplotlib with it

        if args.paper:
            pictures.plot_published(known_models(), table, args.plot)
        else:
            pictures.plot_models(table, args.plot)


LEGEND = """\
  symmetry: 1 if W_qk equals its transpose, -1 if it equals minus its transpose, and near 0 if it is random
  directionality: below 0 if a few columns of W_qk are much longer than the others, above 0 if a few rows are
  above chance: how many standard deviations the symmetry is above the mean of random matrices"""
LEGEND_OF_LAYERS = """\
  by chance: 95 % of random matrices with the same singular values have a directionality in this range"""
LEGEND_OF_MODELS = """\
  [quartiles]: first and third quartile over layers
  beyond chance: how many layers have a directionality outside of the range of random matrices"""
LEGEND_OF_PUBLISHED = """\
  published: the same medians, as the authors of the paper published them
  *: not a score of W_qk, but of another matrix (data/pretrained/README.md)"""


def in_full(model, revision, stack=""):
    """Returns how a stack is called in the tables."""
    return " ".join(filter(None, [ending(model, LONGEST), revision, stack]))


def in_columns(cells, names, heading):
    """Returns a DataFrame of cells as a text, behind a column of names. Columns without cells are left out."""
    cells = cells.set_axis(list(names), axis="index").rename_axis(columns=heading)
    return cells.loc[:, (cells != "").any()].to_string()


def layer_table(table):
    """Returns a line for each layer and head."""
    cells = pandas.DataFrame({
        "layer": table["layer"].astype(str),
        "head": table["head"].astype("string").fillna(""),
        "symmetry": table["symmetry"].map(lambda score: fixed(score, 3)),
        "above chance": chance.deviations(table["symmetry"], table["n"]).map(lambda above: fixed(above, 1, "+")),
        "directionality": table["directionality"].map(lambda score: fixed(score, 3)),
        "by chance": table["limit"].map(lambda limit: f"{fixed(-limit, 2)} to {limit:.2f}", "ignore").fillna(""),
    })
    return in_columns(cells, map(in_full, table["model"], table["revision"], table["stack"]), "model")


def model_table(table):
    """Returns a line for each stack: medians over layers, beside the published ones."""
    names, lines = [], []
    for (model, revision, stack), layers in whole_layers(table).groupby(STACK, sort=False):
        above_chance = chance.deviations(layers["symmetry"], layers["n"]).median()
        n_beyond = (layers["directionality"].abs() > layers["limit"]).sum()
        published = published_cells(layers["source"].iloc[0], stack)
        names.append(in_full(model, revision, stack))
        lines.append([str(len(layers)), with_quartiles(layers["symmetry"]), fixed(above_chance, 1, "+"),
                      published["symmetry"], with_quartiles(layers["directionality"]), published["directionality"],
                      f"{n_beyond} of {len(layers)}"])
    columns = ["layers", "symmetry [quartiles]", "above chance", "published", "directionality [quartiles]", "published",
               "beyond chance"]
    return in_columns(pandas.DataFrame(lines, columns=columns), names, "model")


def with_quartiles(values):
    q1, median, q3 = (fixed(value, 2) for value in values.quantile([0.25, 0.5, 0.75]))
    return f"{median} [{q1}, {q3}]"


def published_cells(source, stack):
    """Returns {score: its published median}, with a star if it is not of W_qk, or empty texts. source: of the model"""
    for row in known_models():
        if (source, stack) == (row["hub_id"], row["stack"]):  # and not by its name, which a folder may have too
            star = " " if row["matrix"] == "wqk" else "*"
            return {score: fixed(float(row[score]), 2) + star for score in SCORES}
    return dict.fromkeys(SCORES, "")
