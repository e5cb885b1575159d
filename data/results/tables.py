"""
Tables that analyze.py prints, and the CSV files that it writes and reads.
"""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.results import compare, null
from data.results.runs import RunError, find_lost, replacing, require

SCORES = ["symmetry", "directionality"]  # of the three, the two that are compared and drawn


class ModelScore(NamedTuple):
    """A row of the CSV of pretrained models: the scores of one layer, or of one of its heads."""

    model: str
    revision: str  # which of its checkpoints; "" if its name stands for one only
    stack: str  # encoder, decoder, ...; "" if the model has one stack
    layer: int
    head: int | None  # None: the whole layer, an empty cell in the file
    n: int  # W_qk is n x n, the product of two factors (n, r)
    r: int
    matrix: str  # what was scored: wqk, or published, as with --published
    gamma: float  # of both directionalities
    symmetry: float
    directionality: float
    directionality_eq17: float


class Facts(NamedTuple):
    """What is known about one stack of layers of a model besides its scores."""

    n_params: float  # nan: not known
    causal: bool | None
    modality: str = "language"  # or vision, audio


class Summary(NamedTuple):
    """One stack of layers of one model: the quartiles of its scores, and what is known about it."""

    model: str
    stack: str
    n_layer: int
    n_params: float
    causal: bool | None
    modality: str
    published: dict  # its row of data/pretrained/models.csv, or {}
    n_outside: int | None  # layers whose directionality random matrices seldom have; None: not known
    n: int  # the size of its layers, and gamma, as in ModelScore
    r: int
    gamma: float
    symmetry: tuple  # (q1, median, q3) over layers, as the next two
    directionality: tuple
    directionality_eq17: tuple

    def matrix(self):
        """The matrix whose scores were published: wqk, or another one according to models.csv."""
        return self.published.get("matrix", "wqk")


# ---- pretrained models -------------------------------------------------------------------------------------------


def write_scores(path, rows):
    """rows: a list of ModelScore."""
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        csv.writer(f).writerows([ModelScore._fields, *rows])


def holds_scores(path):
    """Whether the first line of a file is that of write_scores."""
    header = ",".join(ModelScore._fields).encode()
    with open(path, "rb") as f:
        return f.readline(10 * len(header)).strip() == header  # a file of another kind may be one endless line


def read_scores(path, matrix, gamma, per_head):
    """The rows of a CSV that is to be gone on with. RunError if they are damaged, or were asked for in another way."""
    require(holds_scores(path), f"{path} is not of the form {','.join(ModelScore._fields)}: give another --csv")
    rows = []
    with open(path, newline="") as f:
        reader = csv.DictReader(f)
        try:
            rows = [read_row(row) for row in reader]
        except (ValueError, TypeError, csv.Error) as e:  # TypeError: a line that is cut short
            raise RunError(f"{path}, line {reader.line_num} is damaged: mend it, or give another --csv") from e
    places = [(row.model, row.revision, row.stack, row.layer, row.head) for row in rows]
    require(len(places) == len(set(places)), f"{path} has a layer twice: mend it, or give another --csv")
    for row in rows:
        if row.matrix != matrix:
            how = "without" if row.matrix == "wqk" else "with"
            raise RunError(f"{path} was scored {how} --published: give another --csv")
        require(row.gamma == gamma, f"{path} was scored with --gamma={row.gamma} and not {gamma}: give another --csv")
    if per_head:
        checkpoints = {(row.model, row.revision) for row in rows}
        with_heads = {(row.model, row.revision) for row in rows if row.head is not None}
        require(checkpoints == with_heads, f"{path} was scored without --per_head: give another --csv")
    return rows


def rows_so_far(path, takes_long, targets, args):
    """
    The rows of the CSV file at path, if there is one. A job that takes long goes on where it ends. Another job scores
    all models anew, and keeps the rows of one that cannot be read any more. So the file must hold nothing else.
    """
    if not path or not Path(path).exists():
        return []
    if not takes_long:
        asked = {(target.model, target.revision) for target in targets}
        asked |= {(name, args.revision or "") for name in args.hf}  # those that were not found, too
        require_no_others(path, asked)
    rows = read_scores(path, "published" if args.published else "wqk", args.gamma, args.per_head)
    loses_heads = not takes_long and not args.per_head and any(row.head is not None for row in rows)
    require(not loses_heads, f"{path} was scored with --per_head: give it as well, or another --csv")
    return rows


def require_no_others(path, asked):
    """RunError if a CSV file holds the scores of something that is not in asked, a set of (model, revision)."""
    for cells in find_lost(path, ["model", "revision"], asked):
        name = " ".join(cells).strip()
        raise RunError(f"{path} holds the scores of {name}, which would be lost: give another --csv")


def replace_rows(rows, target, new):
    """rows, with the new rows of a target in the place of those it had, or at the end if it had none."""
    had = [(row.model, row.revision) == (target.model, target.revision) for row in rows]
    place = had.index(True) if any(had) else len(rows)
    others = [row for row, is_old in zip(rows, had) if not is_old]
    return others[:place] + new + others[place:]  # no row before the place is an old one


def read_row(row):
    """A ModelScore from the text of its cells."""
    return ModelScore(
        model=row["model"],
        revision=row["revision"],
        stack=row["stack"],
        layer=int(row["layer"]),
        head=int(row["head"]) if row["head"] else None,
        n=int(row["n"]),
        r=int(row["r"]),
        matrix=row["matrix"],
        gamma=float(row["gamma"]),
        symmetry=float(row["symmetry"]),
        directionality=float(row["directionality"]),
        directionality_eq17=float(row["directionality_eq17"]),
    )


def summarise(rows, facts, known):
    """
    One Summary for every model and stack in rows, which hold one checkpoint of each model.

    facts: (model, stack) -> Facts. known: the rows of data/pretrained/models.csv; a model is found there by its name or
    its Hub id.
    """
    published = {}  # (model, stack) -> its row of models.csv
    for row in known:
        published[row["hub_id"], row["stack"]] = row
    for row in known:
        published[row["name"], row["stack"]] = row
    layers_of = {}  # (model, stack) -> the rows of its layers
    for row in rows:
        if row.head is None:
            layers_of.setdefault((row.model, row.stack), []).append(row)
    summaries = []
    for key, layers in layers_of.items():
        summaries.append(summarise_stack(layers, facts[key], published.get(key, {})))
    return summaries


def summarise_stack(layers, facts, published):
    """layers: the rows of one stack. facts: its Facts. published: its row of models.csv, or {}."""
    return Summary(
        model=layers[0].model,
        stack=layers[0].stack,
        n_layer=len(layers),
        n_params=facts.n_params,
        causal=facts.causal,
        modality=facts.modality,
        published=published,
        n_outside=count_outside(layers),
        n=layers[0].n,
        r=layers[0].r,
        gamma=layers[0].gamma,
        symmetry=quartiles([row.symmetry for row in layers]),
        directionality=quartiles([row.directionality for row in layers]),
        directionality_eq17=quartiles([row.directionality_eq17 for row in layers]),
    )


def quartiles(values):
    return tuple(np.percentile(values, [25, 50, 75]))


def count_outside(layers):
    """
    How many layers have a directionality outside of the range in which 95 of 100 random matrices are. None if the range
    is not known.
    """
    n_outside = 0
    for row in layers:
        band = null.band("directionality", row.n, row.r, row.gamma)
        if band is None:
            return None
        low, high = band
        if not low <= row.directionality <= high:
            n_outside += 1
    return n_outside


def summary_table(summaries):
    """Median [q1, q3] over layers. * marks a published number that is not a score of W_qk (`matrix` in models.csv)."""
    model_width = max(len(name) for name in ["model", *(summary.model for summary in summaries)])
    stack_width = max(len(name) for name in ["stack", *(summary.stack for summary in summaries)])
    lines = [f"{'model':{model_width}}  {'stack':{stack_width}}  layers   params  {'symmetry':20} {'published':>9}   "
             f"{'directionality':20} {'published':>9}  outside  Eq. 17"]
    for summary in summaries:
        params = "-" if math.isnan(summary.n_params) else tqdm.format_sizeof(summary.n_params)
        line = f"{summary.model:{model_width}}  {summary.stack:{stack_width}}  {summary.n_layer:6}  {params:>7}"
        star = " " if summary.matrix() == "wqk" else "*"
        for score in "symmetry", "directionality":
            q1, median, q3 = getattr(summary, score)
            ours = f"{median:5.2f} [{q1:.2f}, {q3:.2f}]"
            theirs = f"{float(summary.published[score]):.2f}" if summary.published else "-"
            line += f"  {ours:20} {theirs:>9}{star}"
        outside = "-" if summary.n_outside is None else f"{summary.n_outside}/{summary.n_layer}"
        _, eq17, _ = summary.directionality_eq17
        lines.append(f"{line} {outside:>8} {eq17:7.2f}")
    for matrix in sorted({summary.matrix() for summary in summaries} - {"wqk"}):
        lines.append(f"* published: {matrix}, not W_qk")
    lines.append("median [quartiles] over layers; outside: layers with a directionality that 95 of 100 random matrices "
                 "do not have;\nEq. 17: directionality as printed, whose sign can be wrong")
    return "\n".join(lines)


def layer_table(rows):
    """A line for each layer and head. If there are several models, the name of each stands before its lines."""
    lines = ["stack    layer  head  symmetry  directionality  as printed, Eq. 17"]
    has_several = len({row.model for row in rows}) > 1
    named = None  # the model whose name was the last
    for row in rows:
        if has_several and row.model != named:
            named = row.model
            lines.append(named)
        head = "" if row.head is None else row.head
        lines.append(f"{row.stack:8} {row.layer:5} {head:>5} {row.symmetry:9.3f} {row.directionality:15.3f}"
                     f" {row.directionality_eq17:19.3f}")
    return "\n".join(lines)


# ---- runs of train.py --------------------------------------------------------------------------------------------


def run_table(run):
    """The first and the last scores of every layer of a run."""
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry = run.layers["symmetry"][:, layer]
        directionality = run.layers["directionality"][:, layer]
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    return "\n".join(lines)


# Below the table of a comparison: what its columns hold.
COMPARISON_COLUMNS = """\
left: seeds whose loss (mean of three evaluations) came to the level; their median step, "not left" being the latest;
less: loss at the end above the baseline's [nats/token], and what the pairs of this arm alone do not exclude at 0.05;
p: exact sign flips of pairs of one seed (of steps: of their ranks), each column after Holm; speed-up: share of the
steps not needed to come to the baseline's last loss, median;
symm., direct.: at the end, median over layers; change: symmetry of what was added to W_qk, median over the run"""


def comparison_table(outcomes, arms, level):
    """
    How many seeds left the plateau, at which step, and their final losses. outcomes: from compare.find_outcomes. arms:
    {name: its records}.
    """
    width = max(12, *(len(outcome.name) for outcome in outcomes))
    left_title, less_title = f"left {level:g}: of, at step", "less [95 of 100]"
    lines = [f"{'arm':{width}} {left_title:>21} {'p':>6} {'loss':>6} {less_title:>23} {'p':>6} {'speed-up':>11}"
             f" {'symm.':>6} {'direct.':>7} {'change':>6}"]
    for outcome in outcomes:
        left = f"{np.isfinite(outcome.first_steps).sum()} of {len(outcome.first_steps)}"
        loss = f"{outcome.losses.mean():.3f}"
        p_step, less, p_loss, speed_up = "", "baseline", "", ""
        if outcome.name != outcome.baseline:
            p_step = p_text(outcome.p_step)
            low, high = outcome.interval
            less = f"{signed(outcome.difference)} [{signed(low)}, {signed(high)}]"
            p_loss = p_text(outcome.p_loss)
            speed_up = share(outcome.speed_up)
        lines.append(f"{outcome.name:{width}} {left:>10} {step_text(outcome.first_steps):>10} {p_step:>6} {loss:>6}"
                     f" {less:>23} {p_loss:>6} {speed_up:>11} {number(outcome.symmetry):>6}"
                     f" {number(outcome.directionality):>7} {number(outcome.update_symmetry):>6}")
    return "\n".join([*lines, COMPARISON_COLUMNS, *comparison_notes(outcomes, arms)])


def step_text(steps):
    """The median over seeds, in which "not left" is later than any step."""
    median = np.median(steps)
    return f"{median:.0f}" if np.isfinite(median) else "not left"


def p_text(p):
    if np.isnan(p):
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def signed(x):
    return "-" if np.isnan(x) else f"{x:+.3f}"


def share(x):
    if np.isnan(x):
        return "-"
    return f"{x:.0%}" if np.isfinite(x) else "not reached"


def number(x):
    return "-" if np.isnan(x) else f"{x:.2f}"


def comparison_notes(outcomes, arms):
    """Lines below the table: what a reader must know about these runs."""
    notes = []
    for outcome in outcomes:
        if outcome.name == outcome.baseline and len(outcome.losses) > 1:
            notes.append(chance_note(outcome.name, compare.counted(arms[outcome.name])))
        elif outcome.name != outcome.baseline and outcome.n_pairs < len(outcome.losses):
            notes.append(f"{outcome.name}: {outcome.n_pairs} of its seeds are seeds of {outcome.baseline}, and only "
                         "these are compared")
    n_pairs = max(outcome.n_pairs for outcome in outcomes)
    n_tests = sum(outcome.n_pairs > 0 for outcome in outcomes)
    smallest_p = n_tests * 2 / 2**n_pairs  # of sign flips, after Holm
    if n_tests and smallest_p > 0.05:
        notes.append(f"with {n_pairs} pairs and {n_tests} tests no p can come below 0.05: nothing can be told from "
                     "chance")
    for outcome in outcomes:
        if outcome.n_unfinished:
            behind = min(record.eval_steps[-1] for record in arms[outcome.name])
            how = "counted as they are" if outcome.n_unfinished == len(arms[outcome.name]) else "left out"
            notes.append(f"{outcome.name}: {outcome.n_unfinished} of its runs have not finished ({how}), one is at "
                         f"{behind}")
    return notes


def chance_note(name, records):
    """How much faster one run of an arm is than another run of it: a speed-up within this range says nothing."""
    gains = np.array(compare.chance_speed_ups(records))
    reached = gains[np.isfinite(gains)]
    note = f"{name}, one seed against another: speed-up {share(np.median(gains))}"
    if len(reached):
        note += f", from {reached.min():.0%} to {reached.max():.0%}"
    return f"{note}, not reached by {len(gains) - len(reached)} of {len(gains)}"
