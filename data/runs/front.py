"""
Draws the picture of the front page: both scores in training, every seed a thin line and their mean a thick one.

    python -m data.runs.front    # data/results/csv/columns.csv -> data/results/png/front.png
"""

from config import ROOT
from data import take_no_arguments
from data.drawing import DECODER, ENCODER, figure, put_names, put_steps, put_titles, put_zero
from data.runs.curves import draw_seeds
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
                draw_seeds(axis, arms[encoder].curves(score), "encoder", color=ENCODER, lw=2.4)
                draw_seeds(axis, arms[decoder].curves(score), "decoder", color=DECODER, lw=2.4)
            panels[0].plot(arms[encoder].curves("chance").mean(axis="columns"), ":", color=ENCODER, label="chance")

        # single heads, where encoders are symmetric
        heads, chance = [arms["learned"].curves(score).mean(axis="columns") for score in ("heads", "heads_chance")]
        axes[0, 0].plot(heads, color=ENCODER, lw=1.2, label="its single heads")
        axes[0, 0].plot(chance, ":", color=ENCODER, lw=0.8, label="heads' chance")

        axes[0, 0].set_ylim(-0.15, 0.7)  # early, a few seeds of rotary encoders are above
        for axis in axes.flat:
            put_names(axis)
            axis.label_outer()


if __name__ == "__main__":
    take_no_arguments(__doc__)
    draw_front(pool([ROOT / "data/results/csv/columns.csv"]), ROOT / "data/results/png/front.png")
