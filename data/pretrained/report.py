"""
Prints scores of pretrained models (analyze.py --hf, --paper), and draws the pictures that go with them. README.md
explains what was published.
"""

from pathlib import Path

import pandas

from .. import chance
from ..chance import SCORES
from ..names import ending
from .scores_table import STACK, whole_layers
from .sources import known_models

LONGEST = 36  # characters of a model's name in a table
PRINTED_TABLES = Path(__file__).parent / "printed_tables.csv"


def report_models(args, table):
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
        texts += [LEGEND, *legends, *left_out(table)]
    if args.paper:
        texts += [printed_tables(), separation()]
    print(*texts, sep="\n", flush=True)
    if args.plot:
        from . import figures  # and matplotlib with it

        if args.paper:
            figures.plot_published(known_models(), table, args.plot)
        else:
            figures.plot_models(table, args.plot)


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
        "by chance": table["limit"].map(lambda limit: f"{-limit:.2f} to {limit:.2f}", na_action="ignore").fillna(""),
    })
    names = [f"{ending(model, LONGEST)} {stack}".strip() for model, stack in zip(table["model"], table["stack"])]
    return in_columns(cells, names, "model")


def model_table(table):
    """Returns a line for each stack: medians over layers, beside the published ones."""
    names, lines = [], []
    for (model, revision, stack), layers in whole_layers(table).groupby(STACK, sort=False):
        above_chance = chance.deviations(layers["symmetry"], layers["n"]).median()
        n_beyond = (layers["directionality"].abs() > layers["limit"]).sum()
        published = published_cells(layers["source"].iloc[0], stack)
        names.append(" ".join(filter(None, [ending(model, LONGEST), revision, stack])))
        lines.append([str(len(layers)), with_quartiles(layers["symmetry"]), fixed(above_chance, 1, "+"),
                      published["symmetry"], with_quartiles(layers["directionality"]), published["directionality"],
                      f"{n_beyond} of {len(layers)}"])
    columns = ["layers", "symmetry [quartiles]", "above chance", "published", "directionality [quartiles]", "published",
               "beyond chance"]
    return in_columns(pandas.DataFrame(lines, columns=columns), names, "model")


def fixed(number, digits, sign=""):
    """Returns a number as a text with so many digits, and without a minus if they are all 0."""
    return f"{round(number, digits) + 0.0:{sign}.{digits}f}"


def with_quartiles(values):
    q1, median, q3 = (fixed(value, 2) for value in values.quantile([0.25, 0.5, 0.75]))
    return f"{median} [{q1}, {q3}]"


def left_out(table):
    """Returns a line for each model of which something has no rows."""
    notes = table.loc[table["note"] != "", ["model", "revision", "note"]].drop_duplicates()
    return [f"  {ending(model, LONGEST)} {revision}".rstrip() + f": {note}" for model, revision, note in notes.values]


def published_cells(source, stack):
    """Returns {score: its published median}, with a star if it is not of W_qk, or empty texts. source: of the model"""
    for row in known_models():
        if (source, stack) == (row["hub_id"], row["stack"]):  # and not by its name, which a folder may have too
            star = " " if row["matrix"] == "wqk" else "*"
            return {score: fixed(float(row[score]), 2) + star for score in SCORES}
    return dict.fromkeys(SCORES, "")


# ---- what was published ------------------------------------------------------------------------------------------

# What was scored, if it is not W_qk: the column `matrix` of models.csv and of printed_tables.csv.
MATRICES = dict(wqk="", tiled_kv="queries with the wrong keys", head_space="W_q^T W_k instead of W_q W_k^T",
                cross_attention="attention to another stack", random_init="an untrained model")


def separation():
    """Returns how well each score tells the encoders of Figure 2 from its decoders, with and without other matrices."""
    models = pandas.DataFrame(known_models()).query("figure == '2'")
    models[SCORES] = models[SCORES].astype(float)
    lines = ["Pairs of an encoder and a decoder of Figure 2 in which the encoder has the higher score:"]
    for words, chosen in ("of W_qk alone", models[models["matrix"] == "wqk"]), ("all rows", models):
        encoders, decoders = chosen[chosen["causal"] == "0"], chosen[chosen["causal"] == "1"]
        shares = []
        for score in SCORES:
            higher = encoders[score].to_numpy()[:, None] > decoders[score].to_numpy()  # (encoders, decoders)
            shares.append(f"{score} {higher.mean():.1%}")
        lines.append(f"  {words} ({len(encoders)} x {len(decoders)}): {', '.join(shares)}")
    return "\n".join(lines)


def printed_tables():
    """Returns Tables S2 and S3, left halves and then right ones, what each row is, and how many are of W_qk."""
    rows = pandas.read_csv(PRINTED_TABLES, dtype=str, keep_default_na=False)
    repeats = rows["repeats"].where(rows["repeats"] == "", "row " + rows["repeats"] + " again")
    cells = pandas.DataFrame({"printed as": rows["printed_as"]})
    for score in SCORES:
        cells[score] = rows[score].replace("", "-")  # Table S3 lacks two rows
    remarks = ["; ".join(filter(None, row)) for row in zip(rows["matrix"].map(MATRICES), rows["remark"], repeats)]
    cells["what it is"] = [remark.ljust(max(map(len, remarks))) for remark in remarks]  # text begins at the left
    n_wqk = (rows["matrix"] == "wqk").sum()
    return (f"Tables S2 and S3 of the paper, medians over layers:\n{in_columns(cells, rows['row'], 'row')}\n"
            f"Of {len(rows)} rows {n_wqk} are of W_qk, and {len(rows) - n_wqk} are not.")
