"""
Tables that analyze.py prints, and the CSV files that it writes and reads.
"""

import csv
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.results import compare, null
from data.results.runs import RunError, replacing, require


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


SCORES = ["symmetry", "directionality", "directionality_eq17"]


class Facts(NamedTuple):
    """What is known about one stack of layers of a model besides its scores."""

    n_params: float
    causal: bool | None
    modality: str = "language"  # or vision, audio


class Summary(NamedTuple):
    """One stack of layers of one model: the quartiles (q1, median, q3) of its scores, and what is known about it."""

    model: str
    stack: str
    n_layer: int
    n_params: float
    causal: bool | None
    modality: str
    published: dict  # its row of data/pretrained/models.csv, or {}
    outside: int | None  # how many layers have a directionality that random factors seldom have; None: not known
    n: int  # the size of its layers, as in ModelScore
    r: int
    symmetry: tuple
    directionality: tuple
    directionality_eq17: tuple

    def matrix(self):
        """The matrix whose scores were published: wqk, or another one according to models.csv."""
        return self.published.get("matrix", "wqk")


# ---- pretrained models -------------------------------------------------------------------------------------------


def write_scores(path, rows):
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        csv.writer(f).writerows([ModelScore._fields, *rows])


def holds_scores(path):
    header = ",".join(ModelScore._fields).encode()
    with open(path, "rb") as f:
        return f.readline(10 * len(header)).strip() == header


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
    One Summary for every model and stack in rows.

    facts: (model, stack) -> Facts. known: the rows of data/pretrained/models.csv; a model is found there by its name or
    its Hub id.
    """
    published = {}
    for row in known:
        published[row["hub_id"], row["stack"]] = row
    for row in known:
        published[row["name"], row["stack"]] = row
    by_stack = {}
    for row in rows:
        if row.head is None:
            by_stack.setdefault((row.model, row.stack), []).append(row)
    summary = []
    for (model, stack), layers in by_stack.items():
        quartiles = {}
        for name in SCORES:
            quartiles[name] = np.percentile([getattr(row, name) for row in layers], [25, 50, 75])
        summary.append(Summary(
            model=model,
            stack=stack,
            n_layer=len(layers),
            n_params=facts[model, stack].n_params,
            causal=facts[model, stack].causal,
            modality=facts[model, stack].modality,
            published=published.get((model, stack), {}),
            outside=count_outside(layers),
            n=layers[0].n,
            r=layers[0].r,
            **quartiles,
        ))
    return summary


def count_outside(layers):
    """How many layers have a directionality outside of the range in which 95 of 100 random matrices are."""
    outside = 0
    for row in layers:
        band = null.band("directionality", row.n, row.r)
        if band is None:
            return None
        if not band[0] <= row.directionality <= band[1]:
            outside += 1
    return outside


def summary_table(summary):
    """Median [q1, q3] over layers. * marks a published number that is not a score of W_qk (`matrix` in models.csv)."""
    model_width = max(len(s.model) for s in summary)
    model_width = max(model_width, len("model"))
    stack_width = max(len(s.stack) for s in summary)
    stack_width = max(stack_width, len("stack"))
    lines = [f"{'model':{model_width}}  {'stack':{stack_width}}  layers   params  {'symmetry':20} {'published':>9}   "
             f"{'directionality':20} {'published':>9}  outside  Eq. 17"]
    for s in summary:
        params = tqdm.format_sizeof(s.n_params)
        line = f"{s.model:{model_width}}  {s.stack:{stack_width}}  {s.n_layer:6}  {params:>7}"
        star = " " if s.matrix() == "wqk" else "*"
        for name in "symmetry", "directionality":
            q1, median, q3 = getattr(s, name)
            ours = f"{median:5.2f} [{q1:.2f}, {q3:.2f}]"
            theirs = f"{float(s.published[name]):.2f}" if s.published else "-"
            line += f"  {ours:20} {theirs:>9}{star}"
        outside = "-" if s.outside is None else f"{s.outside}/{s.n_layer}"
        lines.append(f"{line} {outside:>8} {s.directionality_eq17[1]:7.2f}")
    for matrix in sorted({s.matrix() for s in summary} - {"wqk"}):
        lines.append(f"* published: {matrix}, not W_qk")
    lines.append("median [quartiles] over layers; outside: layers with a directionality that 95 of 100 random matrices "
                 "do not have;\nEq. 17: directionality as printed, whose sign can be wrong")
    return "\n".join(lines)


def layer_table(rows):
    lines = ["stack    layer  head  symmetry  directionality  as printed, Eq. 17"]
    for row in rows:
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


def comparison_table(lines, arms, level):
    """How many seeds left the plateau, at which step, and their final losses. lines: from compare.compare."""
    width = max(12, *(len(line.name) for line in lines))
    left_title, less_title = f"left {level:g}: of, at step", "less [95 of 100]"
    table = [f"{'arm':{width}} {left_title:>21} {'p':>6} {'loss':>6} {less_title:>23} {'p':>6} {'speed-up':>11}"
             f" {'symm.':>6} {'direct.':>7} {'change':>6}"]
    for line in lines:
        left = f"{np.isfinite(line.first_steps).sum()} of {len(line.first_steps)}"
        p_step, less, p_loss, speed_up = "", "baseline", "", ""
        if line.name != line.baseline:
            p_step = p_text(line.p_step)
            low, high = line.interval
            less = f"{signed(line.difference)} [{signed(low)}, {signed(high)}]"
            p_loss = p_text(line.p_loss)
            speed_up = share(line.speed_up)
        table.append(f"{line.name:{width}} {left:>10} {step_text(line.first_steps):>10} {p_step:>6} {line.losses.mean():6.3f}"
                     f" {less:>23} {p_loss:>6} {speed_up:>11} {number(line.symmetry):>6}"
                     f" {number(line.directionality):>7} {number(line.update_symmetry):>6}")
    return "\n".join(table + comparison_notes(lines, arms))


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


def comparison_notes(lines, arms):
    """Notes below the table: what the columns mean, and what a reader must know about these runs."""
    notes = ["left: seeds whose loss (mean of three evaluations) came to the level; their median step, \"not left\" "
             "being the latest;",
             "less: loss at the end above the baseline's [nats/token], and what the pairs of this arm alone do not "
             "exclude at 0.05;",
             "p: exact sign flips of pairs of one seed (of steps: of their ranks), each column after Holm; speed-up: "
             "share of the",
             "steps not needed to come to the baseline's last loss, median;",
             "symm., direct.: at the end, median over layers; change: symmetry of what was added to W_qk, median over "
             "the run"]
    for line in lines:
        if line.name == line.baseline and len(line.losses) > 1:
            gains = np.array(compare.chance_speed_ups(compare.counted(arms[line.name])))
            reached = gains[np.isfinite(gains)]
            note = f"{line.name}, one seed against another: speed-up {share(np.median(gains))}"
            if len(reached):
                note += f", from {reached.min():.0%} to {reached.max():.0%}"
            notes.append(note + f", not reached by {len(gains) - len(reached)} of {len(gains)}")
        elif line.name != line.baseline and line.n_pairs < len(line.losses):
            notes.append(f"{line.name}: {line.n_pairs} of its seeds are seeds of {line.baseline}, and only these are "
                         "compared")
    most = max(line.n_pairs for line in lines)
    n_tests = sum(line.n_pairs > 0 for line in lines)
    if most and min(1, n_tests * 2 / 2**most) > 0.05:
        notes.append(f"with {most} pairs and {n_tests} tests no p can come below 0.05: nothing can be told from chance")
    for line in lines:
        if line.unfinished:
            behind = min(record.eval_steps[-1] for record in arms[line.name])
            counted = "counted as they are" if line.unfinished == len(arms[line.name]) else "left out"
            notes.append(f"{line.name}: {line.unfinished} of its runs have not finished ({counted}), one is at "
                         f"{behind}")
    return notes
