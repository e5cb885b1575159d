"""
Draws the picture of the front page: both scores in training, every seed a thin line and their mean a thick one.

    python -m data.runs.front    # data/results/csv/columns.csv -> data/results/png/front.png
"""

from config import ROOT
from data import take_no_arguments
from data.drawing import DECODER, ENCODER, figure, put_name, put_steps, put_titles, put_zero
from data.runs.kept import pool
from data.runs.plots import draw_seeds

TITLE = ("With positions added to the tokens, encoders turn symmetric, and in decoders\n"
         "a few columns dominate. With rotary positions, neither lasts.")
COLUMNS = {"positions added to the tokens (BERT, GPT-2)": ("learned", "decoder"),
           "rotary positions (LLaMA, ModernBERT)": ("rotary", "decoder_rotary")}
AXES = {"symmetry": "symmetry of $W_{qk}$", "directionality": "directionality:\nbelow 0, columns dominate"}


def draw_front(arms, path):
    """Draws a panel for each kind of positions and each score. arms: {name: Runs} of config/plans/columns.py."""
    with figure(path, 2, 2, title=TITLE, sharex=True, sharey="row") as axes:
        put_titles(axes[0], COLUMNS)
        for panels, (encoder, decoder) in zip(axes.T, COLUMNS.values()):
            for axis, score in zip(panels, AXES):
                put_zero(axis)
                put_steps(axis)
                # the mean of the encoder ends above the decoder's in every panel, so names do not meet
                draw_seeds(axis, arms[encoder].curves(score), "encoder", True, color=ENCODER, lw=2.4)
                draw_seeds(axis, arms[decoder].curves(score), "decoder", True, side="top", color=DECODER, lw=2.4)
            chance = arms[encoder].curves("chance").mean(axis="columns")
            panels[0].plot(chance, "--", color="0.4", lw=1.2)
            if encoder == "learned":  # where there is room for a word
                put_name(panels[0], chance, "chance", "0.4", "center")

        for axis, label in zip(axes[:, 0], AXES.values()):
            axis.set_ylabel(label)
        axes[0, 0].set_ylim(-0.15, 0.7)  # early, a few seeds of rotary encoders are above


if __name__ == "__main__":
    take_no_arguments(__doc__)
    draw_front(pool([ROOT / "data/results/csv/columns.csv"]), ROOT / "data/results/png/front.png")
