"""
Draws the picture of the front page: both scores in training, every seed a thin line and their mean a thick one.

    python -m data.runs.front    # data/results/csv/columns.csv -> data/results/png/front.png
"""

from config import ROOT
from data import take_no_arguments
from data.drawing import DECODER, ENCODER, figure, put_names, put_steps, put_titles, put_zero
from data.runs.curves import draw_mean
from data.runs.kept import pool

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
            for axis, (score, label) in zip(panels, AXES.items()):
                axis.set_ylabel(label)
                put_zero(axis)
                put_steps(axis)
                draw_mean(axis, arms[encoder], score, "encoder", has_seeds=True, color=ENCODER, lw=2.4)
                draw_mean(axis, arms[decoder], score, "decoder", has_seeds=True, color=DECODER, lw=2.4)
            draw_mean(panels[0], arms[encoder], "chance", "chance", color=ENCODER, ls=":")

        # single heads, where encoders are symmetric
        first = axes[0, 0]
        draw_mean(first, arms["learned"], "heads", "its single heads", color=ENCODER, lw=1.2)
        draw_mean(first, arms["learned"], "heads_chance", "heads' chance", color=ENCODER, ls=":", lw=0.8)
        first.set_ylim(-0.15, 0.7)  # early, a few seeds of rotary encoders are above
        for axis in axes.flat:
            put_names(axis)
            axis.label_outer()


if __name__ == "__main__":
    take_no_arguments(__doc__)
    draw_front(pool([ROOT / "data/results/csv/columns.csv"]), ROOT / "data/results/png/front.png")
