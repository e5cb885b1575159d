"""
Tables of the scores of pretrained models, as analyze.py prints them.

models.csv and printed_tables.csv in data/pretrained have what was published, and of which matrix. README.md there
explains them.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from data.pretrained.sources import known_models
from data.results import chance
from data.results.compare import Record, by_layer
from data.results.runs import SCORES

PRINTED_TABLES = Path(__file__).parents[1] / "pretrained" / "printed_tables.csv"


def align(lines):
    """Lists of cells -> lines of a text, whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = [[cell.ljust(width) for cell, width in zip(cells, widths)] for cells in lines]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def quartiles(values):
    """(..., L) -> (3, ...): first quartile, median and third quartile over layers."""
    return np.nanpercentile(values, [25, 50, 75], axis=-1)


def with_quartiles(values):
    q1, median, q3 = quartiles(values)
    return f"{median:5.2f} [{q1:.2f}, {q3:.2f}]"


# ---- models and their layers -------------------------------------------------------------------------------------


def whole_layers(table):
    """Without the scores of heads."""
    return table[table["head"].isna()]


def is_causal(stack):
    """Whether no token sees a later one, from the rows of a stack. None: it is not known."""
    causal = stack["causal"].iloc[0]
    return None if causal is pd.NA else bool(causal)


def by_stack(table):
    """A table with one checkpoint of each model -> {(model, stack): the rows of its whole layers}."""
    return dict(list(whole_layers(table).groupby(["model", "stack"], sort=False)))


def model_table(stacks):
    """
    Median [q1, q3] over layers. * marks a published number that is not a score of W_qk (`matrix` in models.csv).
    stacks: as of by_stack
    """
    lines = [["model", "stack", "layers", "symmetry", "from chance", "published", "directionality", "published",
              "outside"]]
    known = {(row[name], row["stack"]): row for row in known_models() for name in ("name", "hub_id")}
    matrices = set()  # that were scored for the published numbers
    for (model, stack), layers in stacks.items():
        published = known.get((model, stack))
        matrix = published["matrix"] if published else "wqk"
        star = "" if matrix == "wqk" else "*"
        matrices.add(matrix)
        from_chance = chance.deviations(layers["symmetry"], layers["n"]).median()
        n_outside = (layers["directionality"].abs() > layers["limit"]).sum()
        theirs = [f"{float(published[score]):5.2f}{star}" if published else "-" for score in SCORES]
        lines.append([model, stack, str(len(layers)),
                      with_quartiles(layers["symmetry"]), f"{from_chance:+.1f}", theirs[0],
                      with_quartiles(layers["directionality"]), theirs[1], f"{n_outside}/{len(layers)}"])
    notes = [f"* published: {matrix}, not W_qk" for matrix in sorted(matrices - {"wqk"})]
    notes += ["median [quartiles] over layers; from chance: symmetry, in standard deviations above that of chance; "
              "outside: layers with a directionality that 95 of 100 matrices of their singular values do not have"]
    return "\n".join([align(lines), *notes])


def layer_table(table):
    """A line for each layer and head."""
    cells = [["model", "stack", "layer", "head", "symmetry", "from chance", "directionality"]]
    for row in table.itertuples():
        head = "" if row.head is pd.NA else str(row.head)
        deviations = chance.deviations(row.symmetry, row.n)
        cells.append([row.model, row.stack, str(row.layer), head, f"{row.symmetry:6.3f}", f"{deviations:+6.1f}",
                      f"{row.directionality:6.3f}"])
    return align(cells)


# ---- trainings ---------------------------------------------------------------------------------------------------


def find_trainings(table):
    """The trainings in a table of models.of_targets: a Record for each stack."""
    table = whole_layers(table).dropna(subset="step")
    trainings = []
    for (model, stack), layers in table.groupby(["model", "stack"], sort=False):
        layers = layers.drop_duplicates(["step", "layer"], keep="last")
        revisions = layers.groupby("step")["revision"].last()
        first = layers.iloc[0]
        config = dict(causal=is_causal(layers), n=first.n, limit=layers["limit"].median())
        trainings.append(Record(f"{model} {stack}".strip(), 1, config, by_layer(layers).assign(revision=revisions)))
    return trainings


def training_table(trainings):
    """A line for each checkpoint: median [q1, q3] over layers."""
    lines = []
    for training in trainings:
        scores = [training.layers(score) for score in SCORES]  # (S, L) each
        lines.append(f"{training.arm}: {scores[0].shape[1]} layers")
        cells = [["step", "symmetry [quartiles]", "directionality [quartiles]", "revision"]]
        for step, revision in training.table["revision"].items():
            cells.append([f"{step:,.0f}", *(with_quartiles(score.loc[step]) for score in scores), revision])
        lines.append(align(cells))
    return "\n".join(lines)


# ---- what was published ------------------------------------------------------------------------------------------


# Rows of models.csv and of printed_tables.csv are dicts of texts. Columns of both that matter here:
#     matrix      what was scored: wqk, tiled_kv, head_space, cross_attention, random_init. A second copy of a model in
#                 the printed tables may be of another matrix than the first
#     repeats     the model whose weights these are, or the earlier row that has the same symmetry in every layer


def printed_tables():
    """Tables S2 and S3, the left half and then the right, with what each row really is; and how many are of W_qk."""
    rows = pd.read_csv(PRINTED_TABLES, dtype=str, keep_default_na=False).to_dict("records")
    lines = [["row", "printed as", "symmetry", "directionality", "what it is"]]
    for row in rows:
        scores = [f"{row[score] or '-':>5}" for score in SCORES]  # Table S3 lacks two rows
        remarks = [row["matrix"] if row["matrix"] != "wqk" else "", row["remark"]]
        remarks.append(f"row {row['repeats']} again" if row["repeats"] else "")
        lines.append([row["row"], row["printed_as"], *scores, "; ".join(filter(None, remarks))])
    counts = Counter(row["matrix"] for row in rows)
    of_wqk = counts.pop("wqk")
    others = ", ".join(f"{count} {matrix}" for matrix, count in counts.most_common())
    return f"{align(lines)}\nof {len(rows)} rows {of_wqk} are of W_qk, and {counts.total()} are not: {others}"
