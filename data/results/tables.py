"""
The scores of pretrained models: the CSV file that analyze.py writes and goes on with, and the tables that it prints.

null.csv in this folder has what chance alone gives; models.csv and printed_tables.csv in data/pretrained have what was
published, and of which matrix. README.md there explains them.
"""

import codecs
import csv
import functools
import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from data.disk import replacing
from data.pretrained.sources import known_models
from data.results.records import Record, by_layer
from data.results.runs import SCORES, RunError, require

NULL = Path(__file__).parent / "csv" / "null.csv"
PRINTED_TABLES = Path(__file__).parents[1] / "pretrained" / "printed_tables.csv"
GAMMA = 2.0  # of the directionalities in null.csv
GRID = np.linspace(0, 1, 21)  # relative depth


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


# ---- the CSV file of scores --------------------------------------------------------------------------------------


# The columns of the CSV of pretrained models. A row has the scores of one layer, or of one of its heads.
COLUMNS = {
    "model": str,
    "revision": str,  # which of its checkpoints; "" if its name stands for one only
    "stack": str,  # encoder, decoder, ...; "" if the model has one stack
    "causal": "Int64",  # 1: no token sees a later one; 0: all see all; an empty cell: it is not known
    "params": int,  # of the whole checkpoint
    "layer": int,
    "head": "Int64",  # an empty cell: the whole layer
    "n": int,  # W_qk is n x n, the product of two factors (n, r)
    "r": int,
    "matrix": str,  # what was scored: wqk, or published, as with --published
    "gamma": float,  # of both directionalities
    "symmetry": float,
    "directionality": float,
    "directionality_eq17": float,
}


def score_table(rows):
    """rows: lists of the values of COLUMNS -> a DataFrame."""
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def write_scores(path, table):
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False)


def holds_scores(path):
    """Whether the first line of a file is that of write_scores."""
    header = ",".join(COLUMNS).encode()
    with open(path, "rb") as f:
        first = f.readline(10 * len(header))  # a file of another kind may be one endless line
    return first.removeprefix(codecs.BOM_UTF8).strip() == header  # which Excel puts before the text


def read_scores(path):
    """The table in a CSV file that write_scores has written; an empty one if there is no file."""
    if not path or not Path(path).exists():
        return score_table([])
    require(holds_scores(path), f"{path} is not of the form {','.join(COLUMNS)}: give another --csv")
    numbers = {name: ["", "nan"] for name, kind in COLUMNS.items() if kind is not str}  # a model may be called nan
    try:
        # As texts first, because read_csv may be off in the last digit of a number, and astype is not.
        table = pd.read_csv(path, dtype=str, na_values=numbers, keep_default_na=False)
        # As floats next, because another program may have written the head 3 as 3.0.
        return table.astype({name: float for name in numbers}).astype(COLUMNS)
    except ValueError as e:
        raise RunError(f"{path} is damaged ({str(e).strip()}): mend it, or give another --csv") from e


def scores_so_far(path, takes_long, targets, args):
    """
    {(model, revision): its table} of the CSV file at path, if there is one. A job that takes long goes on where it
    ends. Another job scores all models anew, and keeps the scores of one that cannot be read any more. So the file must
    hold nothing else.
    """
    table = read_scores(path)
    asked = {target.key() for target in targets}
    ours = how_scored(args.published, args.gamma, args.per_head)
    with_heads = table["head"].notna().any()
    by_checkpoint = dict(list(table.groupby(["model", "revision"], sort=False)))
    for checkpoint, rows in by_checkpoint.items():
        require(takes_long or checkpoint in asked,
                f"{path} holds the scores of {' '.join(checkpoint).strip()}, which would be lost: give another --csv")
        first = rows.iloc[0]
        theirs = how_scored(first["matrix"] == "published", first["gamma"], with_heads)
        require(theirs == ours, f"{path} was scored with {theirs}, and not with {ours}: give another --csv")
    return by_checkpoint


def together(by_checkpoint):
    """One table of all."""
    return pd.concat(by_checkpoint.values()) if by_checkpoint else score_table([])


def how_scored(published, gamma, per_head):
    return f"--gamma={gamma:g}{' --published' if published else ''}{' --per_head' if per_head else ''}"


def whole_layers(table):
    """Without the scores of heads."""
    return table[table["head"].isna()]


def is_causal(stack):
    """Whether no token sees a later one, from the rows of a stack. None: it is not known."""
    causal = stack["causal"].iloc[0]
    return None if causal is pd.NA else bool(causal)


# ---- what chance gives -------------------------------------------------------------------------------------------


@functools.cache
def read_null(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def band(score, n, r, gamma=GAMMA):
    """
    (low, high): 95 of 100 matrices W_q W_k^T with random factors (n, r) have a score in this range, at the nearest size
    in null.csv. None for directionality with another gamma.

    The range narrows with n, and hardly depends on r. So we look for the nearest n first, then for the nearest r.
    """
    if score != "symmetry" and gamma != GAMMA:
        return None

    def distance(row):
        return abs(math.log(int(row["n"]) / n)), abs(math.log(int(row["r"]) / r))

    nearest = min(read_null(NULL), key=distance)
    return float(nearest[f"{score}_q025"]), float(nearest[f"{score}_q975"])


# ---- models ------------------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """One stack of layers of one model."""

    layers: pd.DataFrame  # of whole_layers
    n_params: int
    causal: bool | None  # None: not known
    published: dict  # its row of data/pretrained/models.csv, or {}

    def quartiles(self, score):
        return quartiles(self.layers[score])

    def outside(self):
        """How many layers have a directionality that 95 of 100 random matrices do not have, as "2/12"."""
        bands = [band("directionality", layer.n, layer.r, layer.gamma) for layer in self.layers.itertuples()]
        if None in bands:
            return "-"
        low, high = np.transpose(bands)  # (L,) each
        is_outside = ~self.layers["directionality"].between(low, high)
        return f"{is_outside.sum()}/{len(self.layers)}"


def summarise(table):
    """{(model, stack): Summary} of a table with one checkpoint of each model."""
    published = {}  # (model, stack) -> its row of models.csv; a model is found by its name or its Hub id
    for row in known_models():
        for name in row["name"], row["hub_id"]:
            published[name, row["stack"]] = row
    return {key: Summary(layers, layers["params"].iloc[0], is_causal(layers), published.get(key, {}))
            for key, layers in whole_layers(table).groupby(["model", "stack"], sort=False)}


def summary_table(summaries):
    """
    Median [q1, q3] over layers. * marks a published number that is not a score of W_qk (`matrix` in models.csv).
    summaries: as summarise returns them.
    """
    lines = [["model", "stack", "layers", "params", "symmetry", "published", "directionality", "published", "outside",
              "Eq. 17"]]
    other_matrices = set()
    for (model, stack), summary in summaries.items():
        published = summary.published
        is_of_wqk = published.get("matrix", "wqk") == "wqk"
        if not is_of_wqk:
            other_matrices.add(published["matrix"])
        cells = [model, stack, str(len(summary.layers)), tqdm.format_sizeof(summary.n_params)]
        for score in SCORES:
            cells.append(with_quartiles(summary.layers[score]))
            cells.append(f"{float(published[score]):5.2f}{'' if is_of_wqk else '*'}" if published else "-")
        _, eq17, _ = summary.quartiles("directionality_eq17")
        lines.append([*cells, summary.outside(), f"{eq17:5.2f}"])
    notes = [f"* published: {matrix}, not W_qk" for matrix in sorted(other_matrices)]
    notes += ["median [quartiles] over layers; outside: layers with a directionality that 95 of 100 random matrices "
              "do not have;", "Eq. 17: directionality as printed, whose sign can be wrong"]
    return "\n".join([align(lines), *notes])


def layer_table(table):
    """A line for each layer and head."""
    cells = [["model", "stack", "layer", "head", "symmetry", "directionality", "as printed, Eq. 17"]]
    for row in table.itertuples():
        head = "" if row.head is pd.NA else str(row.head)
        scores = [f"{score:6.3f}" for score in (row.symmetry, row.directionality, row.directionality_eq17)]
        cells.append([row.model, row.stack, str(row.layer), head, *scores])
    return align(cells)


# ---- trainings ---------------------------------------------------------------------------------------------------


def find_trainings(targets, table):
    """The trainings in a table, a Record for each stack. targets: the checkpoints, each with model, revision, step."""
    step_of = {target.key(): target.step for target in targets}
    table = whole_layers(table)
    steps = [step_of.get(checkpoint) for checkpoint in zip(table["model"], table["revision"])]
    table = table.assign(step=pd.Series(steps, table.index, float)).dropna(subset="step")
    trainings = []
    for (model, stack), layers in table.groupby(["model", "stack"], sort=False):
        layers = layers.drop_duplicates(["step", "layer"], keep="last")
        revisions = layers.groupby("step")["revision"].last()
        first = layers.iloc[0]
        config = dict(causal=is_causal(layers), n=first.n, r=first.r, gamma=first.gamma)
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


# ---- suites ------------------------------------------------------------------------------------------------------


class Scored(NamedTuple):
    """A member of a suite that has been scored."""

    member: object  # a Member of data/pretrained/suites.py
    layers: pd.DataFrame  # of whole_layers

    def depth(self):
        """The relative depth of its layers, (L,): 0 is the first layer, 1 the last."""
        return np.linspace(0, 1, len(self.layers))


def find_scored(members, table):
    """The members in a table that are no trainings; and (member, its stacks) where none of these is the one meant."""
    table = whole_layers(table)
    scored, without_stack = [], []
    for member in members:
        # The same CSV may hold other revisions, as of its training.
        of_member = table[(table["model"] == member.name) & (table["revision"] == member.revision)]
        if member.kind == "training" or of_member.empty:
            continue
        layers = of_member[of_member["stack"] == member.stack] if member.stack else of_member
        if layers["stack"].nunique() == 1:
            scored.append(Scored(member, layers.sort_values("layer")))  # a spreadsheet may have sorted its rows
        else:
            without_stack.append((member, of_member["stack"].unique()))
    return scored, without_stack


def find_pairs(scored):
    """[(size, encoder, decoder)] in the order of the suite. A size with only one of them has no pair."""
    halves = {}  # size -> causal -> Scored
    for one in scored:
        if one.member.kind == "pair":
            halves.setdefault(one.member.size, {})[one.member.causal] = one
    return [(size, half[False], half[True]) for size, half in halves.items() if len(half) == 2]


def difference(encoder, decoder, score):
    """Encoder less decoder at the relative depths of GRID, (21,), with linear interpolation between layers."""
    of_encoder = np.interp(GRID, encoder.depth(), encoder.layers[score])
    of_decoder = np.interp(GRID, decoder.depth(), decoder.layers[score])
    return of_encoder - of_decoder


def suite_table(scored, trainings):
    """
    For each member, median [q1, q3] over layers. For each size, encoder less decoder, mean over depth. Last the
    trainings.
    """
    cells = [["member", "objective", "size", "layers", "symmetry [quartiles]", "directionality [quartiles]"]]
    for one in scored:
        cells.append([one.member.name, one.member.objective, one.member.size, str(len(one.layers)),
                      *(with_quartiles(one.layers[score]) for score in SCORES)])
    lines = [align(cells)]
    for size, encoder, decoder in find_pairs(scored):
        symmetry, directionality = [difference(encoder, decoder, score).mean() for score in SCORES]
        lines.append(f"encoder less decoder, {size}: symmetry {symmetry:+.2f}, directionality {directionality:+.2f}")
    if trainings:
        lines.append(training_table(trainings))
    return "\n".join(lines)


# ---- what was published ------------------------------------------------------------------------------------------


# Rows of models.csv and of printed_tables.csv are dicts of texts. Columns of both that matter here:
#     matrix      what was scored: wqk, tiled_kv, head_space, cross_attention, random_init. A second copy of a model in
#                 the printed tables may be of another matrix than the first
#     repeats     the model whose weights these are, or the earlier row that has the same symmetry in every layer
#     drawn_as    encoder, decoder: the colour of the authors' notebook; "" where it draws none
#     layers, of_layers    how many were scored, and how many the stack has


def is_miscoloured(model):
    """Whether the figure has an encoder in the colour of decoders, or a decoder in that of encoders."""
    kind = "decoder" if model["causal"] == "1" else "encoder"
    return model["drawn_as"] not in ("", kind)


def read_printed_tables():
    """Tables S2 and S3, row by row, down the left half and then down the right half."""
    with open(PRINTED_TABLES, newline="") as f:
        return list(csv.DictReader(f))


def printed_table(rows, ours):
    """
    Tables S2 and S3 as printed, with a remark on what each row really is.

    ours: {(name, stack): Summary} of the models that we have scored. Our medians stand beside the printed ones. It may
    be empty.
    """
    our_column = ["ours"] if ours else []
    lines = [["row", "printed as", "symmetry", *our_column, "directionality", *our_column, "what it is"]]
    for row in rows:
        cells = [row["row"], row["printed_as"]]
        for score in SCORES:
            cells.append(f"{row[score] or '-':>5}")  # Table S3 lacks two rows
            if ours:
                summary = ours.get((row["model"], ""))
                cells.append(f"{summary.quartiles(score)[1]:5.2f}" if summary else "    -")
        remarks = [row["matrix"] if row["matrix"] != "wqk" else "", row["remark"]]
        remarks.append(f"row {row['repeats']} again" if row["repeats"] else "")
        lines.append([*cells, "; ".join(filter(None, remarks))])
    return align(lines)


def tally(rows):
    """How many printed rows are of which matrix."""
    counts = Counter(row["matrix"] for row in rows)
    of_wqk = counts.pop("wqk")
    others = ", ".join(f"{count} {matrix}" for matrix, count in counts.most_common())
    return f"of {len(rows)} rows {of_wqk} are of W_qk, and {counts.total()} are not: {others}"
