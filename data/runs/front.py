"""
Draws the picture of the front page: both scores in training, every seed a thin line and their mean a thick one.

    python -m data.runs.front    # data/results/csv/columns.csv -> data/results/png/front.png
"""

from config import ROOT
from data import take_no_arguments
from data.drawing import DECODER, ENCODER, figure, put_steps, put_titles, put_zero
from data.runs.kept import pool
from data.runs.plots import draw_seeds, put_name

TITLE = ("With positions added to the tokens, encoders turn symmetric, and in decoders\n"
         "a few columns dominate. With rotary positions, neither lasts.")
COLUMNS = {"positions added to the tokens (BERT, GPT-2)": ("learned", "decoder"),
           "rotary positions (LLaMA, ModernBERT)": ("rotary", "decoder_rotary")}
AXES = {"symmetry": "symmetry of $W_{qk}$", "directionality": "directionality:\nbelow 0, columns dominate"}


def draw(arms, path):
    """Draws a panel for each kind of positions and each score. arms: {name: Runs} of config/plans/columns.py."""
    with figure(path, 2, 2, title=TITLE, sharex=True, sharey="row") as axes:
        put_titles(axes[0], COLUMNS)
        for score, row in zip(AXES, axes):
            row[0].set_ylabel(AXES[score])
            for axis, (encoder, decoder) in zip(row, COLUMNS.values()):
                put_zero(axis)
                put_steps(axis)
                # The mean of the encoder ends above that of the decoder in every panel.
                draw_seeds(axis, arms[encoder].curves(score), "encoder", True, color=ENCODER, lw=2.4)
                draw_seeds(axis, arms[decoder].curves(score), "decoder", True, side="top", color=DECODER, lw=2.4)
        for axis, (encoder, _) in zip(axes[0], COLUMNS.values()):
            chance = arms[encoder].curves("chance").mean(axis="columns")
            axis.plot(chance, "--", color="0.4", lw=1.2)
        put_name(axes[0, 0], arms["learned"].curves("chance").mean(axis="columns"), "chance", "0.4", "center")
        axes[0, 0].set_ylim(-0.15, 0.7)  # of the rotary encoders a few seeds were above, early


if __name__ == "__main__":
    take_no_arguments(__doc__)
    draw(pool([ROOT / "data/results/csv/columns.csv"]), ROOT / "data/results/png/front.png")
