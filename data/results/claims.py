"""
What the comparisons say: a table and a figure, made from the runs in csv/.

    python -m data.results.claims         # prints the table, puts most of it into README.md, draws png/summary.png

csv/claims.csv says what is compared with what, a row for each comparison:

    question, setting    where it stands in the table; without a question it counts in its family, and is not shown
    arm, baseline        initialisations by the names that they have in the files
    files                where their runs are: names in csv/
    family               comparisons that were planned together: their p are corrected for their number
    measure              of a run, at its end: val_loss [nats/token]; symmetry or directionality, median over layers

A new comparison is a new row.
"""

import functools
import math
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from data.results import compare
from data.results.figures import DECODER, ENCODER, figure

HERE = Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- the table of python -m data.results.claims -->\n", "<!-- its end -->\n"
SIGNIFICANT = 0.05


class Claim(NamedTuple):
    """What came of a comparison. A pair is two runs of one seed: they saw the same data."""

    question: str
    setting: str
    family: str
    measure: str
    causal: bool
    n_pairs: int
    difference: float  # arm - baseline, mean over pairs
    interval: tuple  # the differences that these pairs, by themselves, do not exclude at 0.05
    speed_up: float  # of the baseline's steps, the share that the arm does not need for its loss, median over pairs
    p_alone: float  # of this comparison, exact
    p: float  # after Holm's correction for its family


# ---- what came of them -------------------------------------------------------------------------------------------


def find_claim(row):
    """A row of claims.csv -> Claim, whose p is not yet corrected."""
    arms = read_arms(row.files)
    theirs = {record.seed: record for record in compare.finished(arms[row.baseline])}
    pairs = [(ours, theirs[ours.seed]) for ours in compare.finished(arms[row.arm]) if ours.seed in theirs]
    differences = np.array([last(ours, row.measure) - last(other, row.measure) for ours, other in pairs])
    gains = [compare.speed_up(ours.eval_steps, ours.val_loss, other.val_loss) for ours, other in pairs]
    p = compare.sign_flip(differences)
    return Claim(row.question, row.setting, row.family, row.measure, pairs[0][0].config["causal"], len(pairs),
                 differences.mean(), compare.interval(differences), np.median(gains), p_alone=p, p=p)


@functools.cache  # most files stand in many rows
def read_arms(names):
    return compare.pool([HERE / "csv" / f"{name}.csv" for name in names.split()])


def last(record, measure):
    """The measure of a run at its end."""
    return record.val_loss[-1] if measure == "val_loss" else record.medians[measure][-1]


def find_claims():
    """-> a list of Claim, of the comparisons that are shown."""
    rows = pandas.read_csv(HERE / "csv" / "claims.csv", keep_default_na=False)
    claims = [find_claim(row) for row in rows.itertuples()]
    corrected = []
    for claim in claims:
        family = [other for other in claims if other.family == claim.family]
        ps = compare.holm([other.p_alone for other in family])
        corrected.append(claim._replace(p=ps[family.index(claim)]))
    return [claim for claim in corrected if claim.question]


def false_discoveries(ps, rate=0.05):
    """
    Which of m comparisons are significant if `rate` of those that are called so may be of nothing? (m,) bool.

    Benjamini and Hochberg: the largest k such that the k smallest p are at most rate * k / m; then these k.
    """
    ps = np.asarray(ps)
    order = np.sort(ps)
    passed = order <= rate * np.arange(1, len(ps) + 1) / len(ps)
    return ps <= (order[passed].max() if passed.any() else -1)


# ---- the table ---------------------------------------------------------------------------------------------------


def table(claims):
    """Lines of Markdown: a row for each claim, under its question."""
    lines = ["| setting | pairs | difference [95 %] | p | steps saved |", "|---|---|---|---|---|"]
    for question in dict.fromkeys(claim.question for claim in claims):
        lines.append(f"| **{question}** | | | | |")
        lines += [row_of(claim) for claim in claims if claim.question == question]
    return "\n".join(lines) + "\n"


def row_of(claim):
    low, high = claim.interval
    saved = "–"  # the difference is not one of losses
    if claim.measure == "val_loss":
        saved = f"{claim.speed_up:.0%}" if math.isfinite(claim.speed_up) else "loss not reached"
    p = f"**{claim.p:.3f}**" if claim.p < SIGNIFICANT else f"{claim.p:.3f}"
    return f"| {claim.setting} | {claim.n_pairs} | {claim.difference:+.3f} [{low:+.3f}, {high:+.3f}] | {p} | {saved} |"


def summary(claims):
    """How many differences of losses are significant, after each of three corrections."""
    losses = [claim for claim in claims if claim.measure == "val_loss"]
    in_family = np.array([claim.p < SIGNIFICANT for claim in losses])
    alone = [claim.p_alone for claim in losses]
    in_all = compare.holm(alone) < SIGNIFICANT
    rest = [claim.setting for claim, yes, no in zip(losses, in_family, ~false_discoveries(alone)) if yes and no]
    return (f"Of {len(losses)} differences of losses {in_family.sum()} are significant. Over all {len(losses)} at "
            f"once, {in_family.sum() - len(rest)} of these hold at a false-discovery rate of 5 %"
            + (f" (not: {'; '.join(rest)})" if rest else "") + f", and {in_all.sum()} after Holm's correction.\n")


def readme_text(claims):
    """The table without the long list of other initialisations, which the picture has."""
    shown = [claim for claim in claims if not claim.question.startswith("Other")]
    return table(shown) + "\n" + summary(claims)


def write_into_readme(text):
    """Replace what stands between the two marks."""
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + BEGIN + text + END + after)


# ---- the figure --------------------------------------------------------------------------------------------------


def draw(claims, path):
    """A panel for each question about losses: a dot with its interval for each claim, full if it is significant."""
    claims = [claim for claim in claims if claim.measure == "val_loss"]
    questions = list(dict.fromkeys(claim.question for claim in claims))
    with figure(path, [1, 1], rows=math.ceil(len(questions) / 2), inches=3.4) as axes:
        for axis, question in zip(axes.flat, questions):
            rows = [claim for claim in claims if claim.question == question]
            for y, claim in enumerate(rows):
                colour = DECODER if claim.causal else ENCODER
                axis.plot(claim.interval, [y, y], color=colour, lw=1.5)
                axis.plot(claim.difference, y, "o", color=colour, mfc=colour if claim.p < SIGNIFICANT else "white")
            axis.axvline(0, color="0.8", lw=0.8, zorder=0)
            axis.set(yticks=range(len(rows)), yticklabels=[claim.setting for claim in rows])
            axis.set(ylim=(len(rows) - 0.5, -0.5), xlabel="difference of losses [nats/token]")
            axis.set_title(textwrap.fill(question, 42), fontsize=9)
        for empty in axes.flat[len(questions) :]:
            empty.axis("off")
        axes.flat[0].set_xlabel("difference of losses [nats/token]; full: p < 0.05; encoders blue, decoders purple")


def main():
    claims = find_claims()
    print(table(claims) + "\n" + summary(claims), end="")
    write_into_readme(readme_text(claims))
    draw(claims, HERE / "png" / "summary.png")


if __name__ == "__main__":
    main()
