"""
Draws the three pictures of README.md, in half a minute.

    python -m tests.exercises.draw    # tests/exercises/masks.png, beta.png, wqk.png
"""

from pathlib import Path
from unittest import mock

from tests.exercises import micro  # first, because it tells numpy to use one thread

import numpy as np
from matplotlib.colors import ListedColormap

from data import take_no_arguments
from data.drawing import COLOURS, figure, put_titles

HERE = Path(__file__).parent
PAIRS = {"no pair": "0.93", "without a\nmirror image": "#e08214", "with a\nmirror image": COLOURS["encoder"]}


def draw_masks(folder):
    """Pairs of eight places in the last layer: 0 if beta_ij = 0, 1 if beta_ji = 0 alone, 2 if neither is."""
    asks = np.isin(np.arange(8), [2, 5])[:, None]  # (8, 1): in one text these places are [MASK]
    panels = {"both sides,\none text": np.ones((8, 8)) * asks, "both sides,\nall texts": np.ones((8, 8)),
              "causal,\none text": np.tri(8) * asks, "causal,\nall texts": np.tri(8)}
    title = "Over many texts, each pair has a mirror image. With a causal mask only the diagonal has."
    with figure(folder / "masks.png", 1, 4, 2.1, title, sharey=True) as axes:
        put_titles(axes.flat, panels)
        for axis, moves in zip(axes.flat, panels.values()):
            image = axis.imshow(moves * (1 + moves.T), ListedColormap(list(PAIRS.values())), vmin=0, vmax=2)
            axis.set(xlabel="token j, the key", xticks=[])
        axes[0, 0].set(ylabel="token i, the query", yticks=[2, 5], yticklabels=["[MASK]", "[MASK]"])
        bar = axis.figure.colorbar(image, ax=axes, ticks=[1 / 3, 1, 5 / 3], shrink=0.7)
        bar.ax.set_yticklabels(PAIRS, fontsize=9)


def draw_wqk(folder, matrices):
    """M of both runs, and each of its entries beside its mirror entry."""
    title = "If tokens see both sides, an entry of M is much like its mirror entry.\nWith a causal mask it is not."
    with figure(folder / "wqk.png", 1, 4, 2.2, title) as axes:
        for pair, (name, m) in zip(axes.reshape(2, 2), matrices.items()):
            put_titles(pair, [f"M, {name}", f"symmetry {micro.symmetry(m):.2f}"])
            image, scatter = pair
            show(image, m)
            image.set(xlabel="dimension of the key", ylabel="of the query", xticks=[], yticks=[])
            scatter.axline((0, 0), slope=1, color="0.5", lw=0.8)
            colour = COLOURS["decoder" if name == "causal" else "encoder"]
            scatter.plot(m, m.T, ".", color=colour, ms=2, alpha=0.4)
            scatter.set(xlabel="$M_{ij}$", ylabel="$M_{ji}$", xticks=[], yticks=[], aspect="equal")


def draw_beta(folder, betas):
    """beta (T, T) of one update of the encoder, summed over its texts, and the mean of a hundred updates."""
    panels = {"update 100": betas[99], "mean of 1 to 100": np.mean(betas[:100], axis=0)}
    title = r"$\beta$ of one update is hardly symmetric. The mean of a hundred is."
    with figure(folder / "beta.png", 1, 2, 2.7, title) as axes:
        for axis, (name, beta) in zip(axes.flat, panels.items()):
            beta = 1000 * beta * (1 - np.eye(len(beta)))  # without i = j
            put_titles([axis], [f"{name}: symmetry {micro.symmetry(beta):.2f}"])
            axis.set(xlabel="place j of the key", ylabel="place i of the query")
            axis.figure.colorbar(show(axis, beta), ax=axis, label=r"$\beta_{ij}$ [nats / 1000]")


def show(axis, m):
    """Draws m, white where it is 0. The colours end at what 995 of 1,000 entries do not exceed."""
    size = np.quantile(abs(m), 0.995)
    return axis.imshow(m, "RdBu_r", vmin=-size, vmax=size)


def main(folder=HERE):
    draw_masks(folder)
    with mock.patch.object(micro, "gradient_of_M", side_effect=micro.gradient_of_M) as gradient_of_M:
        encoder = micro.main([])["M"]
    draw_beta(folder, [beta.sum(0) for (_, beta), _ in gradient_of_M.call_args_list])  # (B, T, T) of each update
    draw_wqk(folder, {"both sides": encoder, "causal": micro.main(["causal"])["M"]})


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
