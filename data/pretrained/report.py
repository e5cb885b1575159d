"""
Prints scores of pretrained models (analyze.py --hf, --paper), and draws the pictures that go with them. README.md
explains what was published.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from data import chance
from data.chance import SCORES
from data.pretrained.scores_table import StackName, by_stack, is_causal, quartiles, whole_layers
from data.pretrained.sources import known_models

PRINTED_TABLES = Path(__file__).parent / "printed_tables.csv"


def report_models(args, table):
    """Prints and draws what was asked for: the paper, a training, or single models. table: of scores_table.Asked"""
    if table.empty and not args.paper:  # nothing could be scored
        return
    stacks = by_stack(table)
    trainings = [] if args.paper else find_trainings(table)
    is_one = not trainings and table["model"].nunique() == 1
    texts = []
    if not args.paper and (is_one or (args.per_head and not args.csv)):
        texts.append(f"Layers:\n{layer_table(table)}\n")
    if stacks:
        texts.append(f"Whole models, medians over layers:\n{model_table(stacks)}")
    tables = "".join(texts)
    for line in LEGEND_OF_SCORES:
        column = line.split(":")[0].strip()
        if column in tables:
            texts.append(line)
    if args.paper:
        texts.append(printed_tables())
    print(*texts, sep="\n", flush=True)
    if args.plot:
        from data.pretrained import figures  # and matplotlib with it

        if args.paper:
            figures.plot_published(known_models(), stacks, args.plot)
        elif trainings:
            figures.plot_training(trainings, args.plot)
        elif is_one:
            figures.plot_model(table, args.plot)
        else:
            figures.plot_models(stacks, args.plot)


LEGEND_OF_SCORES = """\
  symmetry: 1 if W_qk equals its transpose, -1 if it equals minus its transpose, and near 0 if it is random
  directionality: below 0 if a few columns of W_qk are much longer than the others, above 0 if a few rows are
  [quartiles]: first and third quartile over layers
  above chance: how many standard deviations the symmetry is above the mean of random matrices
  by chance: 95 % of random matrices with the same singular values have a directionality in this range
  beyond chance: how many layers have a directionality outside of the range of random matrices
  published: the same medians, as the authors of the paper published them
  *: not a score of W_qk, but of another matrix (data/pretrained/README.md)""".splitlines()


def align(lines):
    """Returns lists of cells, the first of headings, as a text in columns. A column without cells is left out."""
    padded = []
    for heading, *cells in zip(*lines):
        if any(cells):
            width = max(len(cell) for cell in [heading, *cells])
            padded.append([cell.ljust(width) for cell in [heading, *cells]])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded))


def with_quartiles(values):
    found = quartiles(values)
    return f"{found.median:5.2f} [{found.q1:.2f}, {found.q3:.2f}]"


def model_table(stacks):
    """Returns a line for each stack: medians over layers, beside the published ones. stacks: of scores_table.by_stack"""
    lines = [["model", "revision", "stack", "layers", "symmetry [quartiles]", "above chance", "published",
              "directionality [quartiles]", "published", "beyond chance"]]
    known = {}  # StackName -> its row of models.csv
    for row in known_models():
        for model in row["name"], row["hub_id"]:
            known[StackName(model, "", row["stack"])] = row
    for name, layers in stacks.items():
        published = dict.fromkeys(SCORES, "")
        if name in known:
            star = "" if known[name]["matrix"] == "wqk" else "*"
            published = {score: f"{float(known[name][score]):5.2f}{star}" for score in SCORES}
        above_chance = chance.deviations(layers["symmetry"], layers["n"]).median()
        n_beyond = (layers["directionality"].abs() > layers["limit"]).sum()
        lines.append([
            *name, str(len(layers)),
            with_quartiles(layers["symmetry"]), f"{above_chance:+.1f}", published["symmetry"],
            with_quartiles(layers["directionality"]), published["directionality"], f"{n_beyond} of {len(layers)}",
        ])
    return align(lines)


def layer_table(table):
    """Returns a line for each layer and head."""
    lines = [["model", "stack", "layer", "head", "symmetry", "above chance", "directionality", "by chance"]]
    for row in table.itertuples():
        head = "" if row.head is pandas.NA else str(row.head)
        limit = "" if np.isnan(row.limit) else f"{-row.limit:.2f} to {row.limit:.2f}"  # it is not computed for heads
        lines.append([row.model, row.stack, str(row.layer), head, f"{row.symmetry:6.3f}",
                      f"{chance.deviations(row.symmetry, row.n):+6.1f}", f"{row.directionality:6.3f}", limit])
    return align(lines)


class Training(NamedTuple):
    """The scores of one stack over the steps of a training."""

    name: str
    causal: bool | None
    n: int  # W_qk is n x n
    limit: float  # of directionality by chance, median over layers and steps
    scores: pandas.DataFrame  # (S, 2 L): by step; its columns by score, and then by layer


def find_trainings(table):
    """Returns the Trainings in a table of scores_table.Asked, one for each stack; [] if it is of single models."""
    table = whole_layers(table).dropna(subset="step")
    table = table.drop_duplicates(["model", "stack", "step", "layer"], keep="last")
    trainings = []
    for (model, stack), layers in table.groupby(["model", "stack"], sort=False):
        scores = layers.pivot(index="step", columns="layer", values=SCORES)
        name = f"{model} {stack}".strip()
        trainings.append(Training(name, is_causal(layers), layers["n"].iloc[0], layers["limit"].median(), scores))
    return trainings


# ---- what was published ------------------------------------------------------------------------------------------

# What was scored, if it is not W_qk: the column `matrix` of models.csv and of printed_tables.csv.
MATRICES = dict(tiled_kv="queries with the wrong keys", head_space="W_q^T W_k instead of W_q W_k^T",
                cross_attention="attention to another stack", random_init="an untrained model")


def printed_tables():
    """Returns Tables S2 and S3, left halves and then right ones, what each row is, and how many are of W_qk."""
    rows = pandas.read_csv(PRINTED_TABLES, dtype=str, keep_default_na=False).to_dict("records")
    lines = [["row", "printed as", "symmetry", "directionality", "what it is"]]
    for row in rows:
        scores = [f"{row[score] or '-':>5}" for score in SCORES]  # Table S3 lacks two rows
        repeats = f"row {row['repeats']} again" if row["repeats"] else ""
        remarks = [MATRICES.get(row["matrix"], ""), row["remark"], repeats]
        lines.append([row["row"], row["printed_as"], *scores, "; ".join(filter(None, remarks))])
    n_wqk = sum(row["matrix"] == "wqk" for row in rows)
    return (f"Tables S2 and S3 of the paper, medians over layers:\n{align(lines)}\n"
            f"Of {len(rows)} rows {n_wqk} are of W_qk, and {len(rows) - n_wqk} are not.")
