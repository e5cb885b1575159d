"""
The published scores of pretrained models, and of which matrix each of them is. README.md in this folder explains them.

    models.csv           a row per model and stack: its published scores, and the matrix that was scored
    printed_tables.csv   a row per row of the paper's Tables S2 and S3: the two numbers, and the model they belong to
"""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from data.pretrained.sources import known_models


class PublishedModel(NamedTuple):
    """A row of models.csv: one stack of layers of one model, as the authors published it."""

    name: str
    hub_id: str
    modality: str  # language, vision, audio
    family: str  # the authors' file that holds it
    stack: str  # encoder, decoder, vision; "" where the model has one
    causal: bool
    params: int  # of the whole model
    layers: int  # that were scored
    of_layers: int  # that the stack has
    symmetry: tuple  # (q1, median, q3) over the layers that were scored
    directionality: tuple
    matrix: str  # wqk, tiled_kv, head_space, cross_attention, random_init
    figure: str  # 2, S1, S2: where a model of its kind is drawn
    drawn_as: str  # encoder, decoder: the colour of the authors' notebook; "" where it draws none
    repeats: str  # the model whose weights these are, where that is another one


class PrintedRow(NamedTuple):
    """A row of Tables S2 and S3, counted down the left half and then down the right half."""

    row: int
    printed_as: str
    published_as: str  # the authors' own key for it
    model: str  # name in models.csv
    matrix: str  # what was scored in this row; a second copy of a model may be of another matrix than the first
    remark: str  # what else is not as the name says
    repeats: int | None  # an earlier row with the same symmetry in every layer: the same matrices
    symmetry: float  # medians over layers, as printed
    directionality: float | None  # None: Table S3 lacks the row


def read_models():
    models = []
    for row in known_models():
        row["causal"] = row["causal"] == "1"
        for count in "params", "layers", "of_layers":
            row[count] = int(row[count])
        for score in "symmetry", "directionality":
            q1, q3 = row.pop(f"{score}_q1"), row.pop(f"{score}_q3")
            row[score] = (float(q1), float(row[score]), float(q3))
        models.append(PublishedModel(**row))
    return models


def read_printed_tables():
    rows = []
    with open(Path(__file__).parent / "printed_tables.csv", newline="") as f:
        for row in csv.DictReader(f):
            row["row"] = int(row["row"])
            row["repeats"] = int(row["repeats"]) if row["repeats"] else None
            row["symmetry"] = float(row["symmetry"])
            row["directionality"] = float(row["directionality"]) if row["directionality"] else None
            rows.append(PrintedRow(**row))
    return rows


def is_of_wqk(row):
    """For a PublishedModel or a PrintedRow: whether its numbers are those of W_q W_k^T."""
    return row.matrix == "wqk"


def is_miscoloured(model):
    """Whether the figure has a bidirectional stack in the colour of decoders, or a causal one in that of encoders."""
    if not model.drawn_as:
        return False
    return model.causal != (model.drawn_as == "decoder")


def remark(model):
    """What a reader of the figure should know about this point, or ""."""
    remarks = []
    if not is_of_wqk(model):
        remarks.append(model.matrix)
    if is_miscoloured(model):
        remarks.append(f"drawn as {model.drawn_as}")
    if model.layers < model.of_layers:
        remarks.append(f"{model.layers} of {model.of_layers} layers")
    return ", ".join(remarks)


def printed_table(rows, ours):
    """
    Tables S2 and S3 as printed, with a remark on what each row really is.

    ours: {(name, stack): tables.Summary} of the models that we have scored. Our medians stand beside the printed ones.
    It may be empty.
    """
    if ours:
        lines = [["row", "printed as", "symmetry", "ours", "directionality", "ours", "what it is"]]
    else:
        lines = [["row", "printed as", "symmetry", "directionality", "what it is"]]
    for row in rows:
        cells = [str(row.row), row.printed_as]
        for score in "symmetry", "directionality":
            cells.append(number(getattr(row, score)))
            if ours:
                cells.append(our_median(ours.get((row.model, "")), score))
        cells.append(what_it_is(row))
        lines.append(cells)
    return align(lines)


def our_median(summary, score):
    if summary is None:  # a model that we have not scored
        return number(None)
    _, median, _ = getattr(summary, score)
    return number(median)


def number(value):
    return "-" if value is None else f"{value:5.2f}"


def align(lines):
    """Lists of cells -> lines of a text, whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    aligned = []
    for cells in lines:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths)]
        aligned.append("  ".join(padded).rstrip())
    return "\n".join(aligned)


def what_it_is(row):
    remarks = []
    if not is_of_wqk(row):
        remarks.append(row.matrix)
    if row.remark:
        remarks.append(row.remark)
    if row.repeats:
        remarks.append(f"row {row.repeats} again")
    return "; ".join(remarks)


def tally(rows):
    """Three counts of the printed rows: not of W_qk, of W_qk with a remark, and as they say."""
    others = [row for row in rows if not is_of_wqk(row)]
    remarked = [row for row in rows if is_of_wqk(row) and row.remark]
    sound = [row for row in rows if is_of_wqk(row) and not row.remark]
    again = [row for row in sound if row.repeats]
    counts = Counter(row.matrix for row in others).most_common()
    kinds = ", ".join(f"{count} {matrix}" for matrix, count in counts)
    return (f"of {len(rows)} rows\n"
            f"  {len(others)} are not of W_qk: {kinds}\n"
            f"  {len(remarked)} are of W_qk, but of images, of other weights or of part of the layers\n"
            f"  {len(sound)} are as they say, {len(again)} of these an earlier row again")
