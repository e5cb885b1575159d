"""
The scores of pretrained models: the CSV file that analyze.py writes and goes on with, and the tables that it prints.

null.csv in this folder has what chance alone gives; models.csv and printed_tables.csv in data/pretrained have what was
published, and of which matrix. README.md there explains them.
"""

import csv
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from data.tokens import replacing
from data.pretrained.sources import known_models
from data.results.runs import SCORES, Record, RunError, by_layer, require

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


def read_scores(path):
    """The table in a CSV file that write_scores has written; an empty one if there is no file."""
    if not path or not Path(path).exists():
        return score_table([])
    numbers = {name: [""] for name, kind in COLUMNS.items() if kind is not str}  # else "" is a text
    try:
        # As texts first, because read_csv may be off in the last digit of a number, and astype is not.
        table = pd.read_csv(path, dtype=str, na_values=numbers, keep_default_na=False)
        if list(table.columns) != list(COLUMNS):
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        return table.astype(COLUMNS)
    except ValueError as e:
        raise RunError(f"{path} holds something else, which would be lost, or is damaged ({str(e).strip()}): mend it, "
                       "or give another --csv") from e


def scores_so_far(path, targets, args):
    """
    {(model, revision): its table} of the CSV file at path, if there is one: what is in it is not scored again. A local
    checkpoint that has changed since then is left out, because what is in the file are no scores of it.
    """
    table = read_scores(path)
    with_heads = table["head"].notna().any()
    ours = how_scored(args.published, args.gamma, args.per_head)
    for matrix, gamma in table.groupby(["matrix", "gamma"]).groups:
        theirs = how_scored(matrix == "published", gamma, with_heads)
        require(theirs == ours, f"{path} was scored with {theirs}, and not with {ours}: give another --csv")
    so_far = dict(list(table.groupby(["model", "revision"], sort=False)))
    for target in targets:
        if target.key() in so_far and is_newer(target.source, path):
            del so_far[target.key()]
    return so_far


def how_scored(published, gamma, per_head):
    return f"--gamma={gamma:g}{' --published' if published else ''}{' --per_head' if per_head else ''}"


def is_newer(source, path):
    """
    Whether a local checkpoint has a file that changed after the file at path, or a link on the way to it has. Of the
    Hub it cannot be told.
    """
    checkpoint = Path(os.path.expanduser(source))
    # Not st_mtime: a copy may keep the time of its original (cp -p, rsync -a). When it came here, st_ctime tells.
    times = [file.stat().st_ctime for file in (checkpoint, *checkpoint.rglob("*")) if file.is_file()]
    times += [place.lstat().st_ctime for place in (checkpoint, *checkpoint.parents) if place.is_symlink()]
    return max(times, default=0.0) > os.path.getmtime(path)


def together(tables):
    """One table of all."""
    return pd.concat(tables, ignore_index=True) if tables else score_table([])


def of_targets(targets, so_far):
    """The table of these targets, as far as they are scored, with the step of each."""
    step_of = {target.key(): target.step for target in targets}
    table = together([so_far[checkpoint] for checkpoint in step_of if checkpoint in so_far])
    steps = [step_of[checkpoint] for checkpoint in zip(table["model"], table["revision"])]
    return table.assign(step=np.array(steps, float))  # nan where it is None


def whole_layers(table):
    """Without the scores of heads."""
    return table[table["head"].isna()]


def is_causal(stack):
    """Whether no token sees a later one, from the rows of a stack. None: it is not known."""
    causal = stack["causal"].iloc[0]
    return None if causal is pd.NA else bool(causal)


# ---- what chance gives -------------------------------------------------------------------------------------------


def band(score, n, r, gamma=GAMMA):
    """
    (low, high): 95 of 100 matrices W_q W_k^T with random factors (n, r) have a score in this range, at the nearest size
    in null.csv. None for directionality with another gamma.

    The range narrows with n, and hardly depends on r. So we look for the nearest n first, then for the nearest r.
    """
    if score != "symmetry" and gamma != GAMMA:
        return None
    null = pd.read_csv(NULL)
    distance_n = np.abs(np.log(null["n"] / n))
    distance_r = np.abs(np.log(null["r"] / r))
    nearest = null.iloc[np.lexsort([distance_r, distance_n])[0]]  # the last key counts first
    return nearest[f"{score}_q025"], nearest[f"{score}_q975"]


# ---- models ------------------------------------------------------------------------------------------------------


def by_stack(table):
    """A table with one checkpoint of each model -> {(model, stack): the rows of its whole layers}."""
    return dict(list(whole_layers(table).groupby(["model", "stack"], sort=False)))


def published_rows():
    """{(model, stack): its row of models.csv}; a model is found by its name or its Hub id."""
    found = {}
    for row in known_models():
        for name in row["name"], row["hub_id"]:
            found[name, row["stack"]] = row
    return found


def outside(layers):
    """How many layers have a directionality that 95 of 100 random matrices do not have, as "2/12"."""
    bands = [band("directionality", layer.n, layer.r, layer.gamma) for layer in layers.itertuples()]
    if None in bands:
        return "-"
    low, high = np.transpose(bands)  # (L,) each
    is_outside = ~layers["directionality"].between(low, high)
    return f"{is_outside.sum()}/{len(layers)}"


def model_table(stacks):
    """
    Median [q1, q3] over layers. * marks a published number that is not a score of W_qk (`matrix` in models.csv).
    stacks: as of by_stack
    """
    lines = [["model", "stack", "layers", "params", "symmetry", "published", "directionality", "published", "outside"]]
    known = published_rows()
    matrices = set()  # that were scored for the published numbers
    for (model, stack), layers in stacks.items():
        published = known.get((model, stack))
        matrix = published["matrix"] if published else "wqk"
        star = "" if matrix == "wqk" else "*"
        matrices.add(matrix)
        cells = [model, stack, str(len(layers)), tqdm.format_sizeof(layers["params"].iloc[0])]
        for score in SCORES:
            cells.append(with_quartiles(layers[score]))
            cells.append(f"{float(published[score]):5.2f}{star}" if published else "-")
        lines.append([*cells, outside(layers)])
    notes = [f"* published: {matrix}, not W_qk" for matrix in sorted(matrices - {"wqk"})]
    notes += ["median [quartiles] over layers; outside: layers with a directionality that 95 of 100 random matrices do "
              "not have"]
    return "\n".join([align(lines), *notes])


def layer_table(table):
    """A line for each layer and head."""
    cells = [["model", "stack", "layer", "head", "symmetry", "directionality"]]
    for row in table.itertuples():
        head = "" if row.head is pd.NA else str(row.head)
        cells.append([row.model, row.stack, str(row.layer), head, f"{row.symmetry:6.3f}", f"{row.directionality:6.3f}"])
    return align(cells)


# ---- trainings ---------------------------------------------------------------------------------------------------


def find_trainings(table):
    """The trainings in a table of of_targets: a Record for each stack."""
    table = whole_layers(table).dropna(subset="step")
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


def find_scored(members, table):
    """
    The members of a suite that are in a table of of_targets, and no trainings -> {member: the rows of its layers}; and
    {member: its stacks} where none of these is the one meant.
    """
    table = whole_layers(table)
    table = table[table["step"].isna()]
    scored, without_stack = {}, {}
    for member in members:
        of_member = table[(table["model"] == member.name) & (table["revision"] == member.revision)]
        layers = of_member[of_member["stack"] == member.stack] if member.stack else of_member
        if layers["stack"].nunique() == 1:
            scored[member] = layers.sort_values("layer")  # a spreadsheet may have sorted its rows
        elif len(of_member):
            without_stack[member] = of_member["stack"].unique()
    return scored, without_stack


def find_pairs(scored):
    """{size: the layers of its encoder and of its decoder}. A size with only one of them has no pair."""
    halves = {}  # size -> causal -> layers
    for member, layers in scored.items():
        if member.kind == "pair":
            halves.setdefault(member.size, {})[member.causal] = layers
    return {size: (half[False], half[True]) for size, half in halves.items() if {False, True} <= set(half)}


def depth(layers):
    """The relative depth of layers, (L,): 0 is the first layer, 1 the last."""
    return np.linspace(0, 1, len(layers))


def difference(encoder, decoder, score):
    """Encoder less decoder at the relative depths of GRID, (21,), with linear interpolation between layers."""
    of_encoder = np.interp(GRID, depth(encoder), encoder[score])
    of_decoder = np.interp(GRID, depth(decoder), decoder[score])
    return of_encoder - of_decoder


def suite_table(scored, trainings):
    """
    For each member, median [q1, q3] over layers. For each size, encoder less decoder, mean over depth. Last the
    trainings.
    """
    cells = [["member", "objective", "size", "layers", "symmetry [quartiles]", "directionality [quartiles]"]]
    for member, layers in scored.items():
        cells.append([member.name, member.objective, member.size, str(len(layers)),
                      *(with_quartiles(layers[score]) for score in SCORES)])
    lines = [align(cells)]
    for size, pair in find_pairs(scored).items():
        symmetry, directionality = [difference(*pair, score).mean() for score in SCORES]
        lines.append(f"encoder less decoder, {size}: symmetry {symmetry:+.2f}, directionality {directionality:+.2f}")
    if trainings:
        lines.append(training_table(trainings))
    return "\n".join(lines)


# ---- what was published ------------------------------------------------------------------------------------------


# Rows of models.csv and of printed_tables.csv are dicts of texts. Columns of both that matter here:
#     matrix      what was scored: wqk, tiled_kv, head_space, cross_attention, random_init. A second copy of a model in
#                 the printed tables may be of another matrix than the first
#     repeats     the model whose weights these are, or the earlier row that has the same symmetry in every layer


def printed_tables():
    """Tables S2 and S3, the left half and then the right, with what each row really is; and how many are of W_qk."""
    with open(PRINTED_TABLES, newline="") as f:
        rows = list(csv.DictReader(f))
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
