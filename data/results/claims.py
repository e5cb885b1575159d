"""
What the comparisons say: a table and a figure, made from the runs in csv/.

    python -m data.results.claims         # prints the table, puts most of it into README.md, draws png/summary.png

csv/claims.csv says what is compared with what, a row for each comparison:

    question, setting    where it stands in the table; without a question it counts in its family, and is not shown
    arm, baseline        by the names that they have in the files
    files                where their runs are: names in csv/
    family               comparisons that were planned together: their p are corrected for their number
    measure              of a run, at its end: val_loss [nats/token]; symmetry or directionality, median over layers

A new comparison is a new row.
"""

import math
import textwrap
from pathlib import Path

import pandas
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from data.results import compare
from data.results.exact import false_discoveries, holm
from data.results.figures import COLOURS, KINDS
from data.tokens import replacing

HERE = Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- the table of python -m data.results.claims -->\n", "<!-- its end -->\n"
SIGNIFICANT = 0.05
WIDTH, ROW = 5.4, 0.16  # of the figure and of a row in it [inches]


# ---- what came of them -------------------------------------------------------------------------------------------


def find_claims():
    """
    The rows of claims.csv that are shown, and what came of them: a DataFrame with the columns of that file, those of
    compare.compare_pairs, and causal. p is corrected in its family, p_alone is not.
    """
    claims = pandas.read_csv(HERE / "csv" / "claims.csv", keep_default_na=False)
    arms_of = {}  # most files stand in many rows
    for names in claims["files"].unique():
        arms_of[names] = compare.pool([HERE / "csv" / f"{name}.csv" for name in names.split()])
    found = []
    for claim in claims.itertuples():
        arms = arms_of[claim.files]
        pairs = compare.pairs_of(arms[claim.arm], arms[claim.baseline])
        found.append(compare.compare_pairs(pairs, claim.measure) | dict(causal=arms[claim.arm][0].config["causal"]))
    claims = claims.join(pandas.DataFrame(found))
    claims["p_alone"] = claims["p"]
    # Those that are not shown were tried as well, and count.
    claims["p"] = claims.groupby("family")["p_alone"].transform(holm)
    return claims[claims["question"] != ""]


# ---- the table ---------------------------------------------------------------------------------------------------


def table(claims):
    """Lines of Markdown: a row for each claim, under its question."""
    lines = ["| setting | pairs | difference [95 %] | p | steps saved |", "|---|---|---|---|---|"]
    for question, rows in claims.groupby("question", sort=False):
        lines.append(f"| **{question}** | | | | |")
        lines += [row_of(claim) for claim in rows.itertuples()]
    return "\n".join(lines) + "\n"


def row_of(claim):
    low, high = claim.interval
    saved = "–"  # the difference is not one of losses
    if claim.measure == "val_loss":
        saved = f"{claim.speed_up:.0%}" if math.isfinite(claim.speed_up) else "loss not reached"
    p = f"**{claim.p:.3f}**" if claim.p < SIGNIFICANT else f"{claim.p:.3f}"
    difference = f"{claim.difference:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"| {claim.setting} | {claim.n_pairs} | {difference} | {p} | {saved} |"


def summary(claims):
    """How many differences of losses are significant, after each of three corrections."""
    losses = claims[claims["measure"] == "val_loss"]
    is_significant = losses["p"] < SIGNIFICANT
    n_in_all = (is_significant & false_discoveries(losses["p_alone"])).sum()
    n_strictly = (holm(losses["p_alone"]) < SIGNIFICANT).sum()
    n = len(losses)
    return (f"Of {n} differences of losses {is_significant.sum()} are significant. Over all {n} at once, {n_in_all} of "
            f"these hold at a false-discovery rate of 5 %, and {n_strictly} after Holm's correction.\n")


def readme(claims):
    """The text of README.md with the table between its marks, without the rows that only the picture has."""
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    shown = claims[~claims["question"].str.startswith("Other")]
    return before + BEGIN + table(shown) + "\n" + summary(claims) + END + after


# ---- the figure --------------------------------------------------------------------------------------------------


def draw(claims, path):
    """A row for each claim about losses, under its question: a dot with its interval, full if it is significant."""
    rows = []  # from the top: claims, and the lines of questions
    for question, group in claims[claims["measure"] == "val_loss"].groupby("question", sort=False):
        rows += ["", *textwrap.wrap(question, 70), *group.itertuples()]
    height = ROW * (len(rows) + 6)  # [inches], with room for the legend and the axis
    fig = Figure((WIDTH, height))
    axis = fig.add_axes((0.42, 3 * ROW / height, 0.46, ROW * len(rows) / height))  # left, bottom, width, height
    beside = axis.get_yaxis_transform()  # x: a share of the axis, y: a row
    for y, row in enumerate(rows):
        if isinstance(row, str):
            axis.text(-0.9, y, row, transform=beside, va="center", fontsize=8, weight="bold")
            continue
        colour = COLOURS[row.causal]
        full = colour if row.p < SIGNIFICANT else "white"
        axis.plot(row.interval, [y, y], color=colour, lw=1.5)
        axis.plot(row.difference, y, "o", color=colour, mfc=full, ms=4.5)
        axis.text(-0.03, y, row.setting, transform=beside, va="center", ha="right", fontsize=7.5)
        axis.text(1.24, y, f"{row.difference:+.3f}", transform=beside, va="center", ha="right", fontsize=7.5)
    axis.grid(axis="x", color="0.92")
    axis.axvline(0, color="0.6", lw=0.8, zorder=0)
    axis.set(yticks=[], ylim=(len(rows) - 0.5, -0.5))
    axis.set_xlabel("difference of losses [nats/token]: left of 0 is better", fontsize=8)
    axis.tick_params(labelsize=8, labeltop=True)
    axis.spines[["left", "right", "top"]].set_visible(False)
    kinds = [(KINDS[causal], COLOURS[causal], COLOURS[causal]) for causal in (False, True)]
    kinds += [("p < 0.05", "0.3", "0.3"), ("not significant", "0.3", "white")]
    fig.legend([Line2D([], [], marker="o", ls="", color=edge, mfc=face) for _, edge, face in kinds],
               [name for name, *_ in kinds], loc="upper center", ncols=4, frameon=False, fontsize=8)
    with replacing(path) as temporary:
        fig.savefig(temporary, dpi=200, format="png")


def main():
    claims = find_claims()
    print(table(claims) + "\n" + summary(claims), end="")
    README.write_text(readme(claims))
    draw(claims, HERE / "png" / "summary.png")


if __name__ == "__main__":
    main()
