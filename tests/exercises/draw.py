"""Draws the three pictures of README.md, in half a minute: python -m tests.exercises.draw"""

from pathlib import Path
from unittest import mock

from tests.exercises import micro  # first, because it tells numpy to use one thread

import numpy as np
from matplotlib.colors import ListedColormap

from data.drawing import figure, put_titles

HERE = Path(__file__).parent
GREY_ORANGE_BLUE = ListedColormap(["0.93", "#e08214", "#2166ac"])


def draw_masks():
    """Pairs of eight places in the last layer: 0 if beta_ij = 0, 1 if beta_ji = 0 alone, 2 if neither is."""
    asks = np.isin(np.arange(8), [2, 5])[:, None]  # (8, 1): in one text these places are [MASK]
    panels = {"both sides, one text": np.ones((8, 8)) * asks, "both sides, all texts": np.ones((8, 8)),
              "causal, one text": np.tri(8) * asks, "causal, all texts": np.tri(8)}
    with figure(HERE / "masks.png", 1, 4, height=2.1, sharey=True) as axes:
        put_titles(axes.flat, panels)
        for axis, moves in zip(axes.flat, panels.values()):
            axis.imshow(moves * (1 + moves.T), GREY_ORANGE_BLUE, vmin=0, vmax=2)
            axis.set(xlabel="token j, the key", xticks=[])
        axes[0, 0].set(ylabel="token i, the query", yticks=[2, 5], yticklabels=["[MASK]", "[MASK]"])


def draw_wqk(matrices):
    """M of both runs, and each of its entries beside its mirror entry."""
    with figure(HERE / "wqk.png", 1, 4, height=2.1) as axes:
        for pair, (title, m) in zip(axes.reshape(2, 2), matrices.items()):
            put_titles(pair, [f"M, {title}", f"symmetry {micro.symmetry(m):.2f}"])
            image, scatter = pair
            show(image, m)
            image.set(xlabel="dimension of the key", ylabel="of the query", xticks=[], yticks=[])
            scatter.axline((0, 0), slope=1, color="0.5", lw=0.8)
            scatter.plot(m, m.T, ".", color="#2166ac", ms=2, alpha=0.4)
            scatter.set(xlabel="$M_{ij}$", ylabel="$M_{ji}$", xticks=[], yticks=[], aspect="equal")


def draw_beta(betas):
    """beta (T, T) of one update of the encoder, summed over its texts, and the mean of a hundred updates."""
    panels = {"of update 100": betas[99], "mean of updates 1 to 100": np.mean(betas[:100], axis=0)}
    with figure(HERE / "beta.png", 1, 2, height=2.9) as axes:
        for axis, (title, beta) in zip(axes.flat, panels.items()):
            beta = beta * (1 - np.eye(len(beta)))  # without i = j
            show(axis, beta)
            put_titles([axis], [rf"$\beta$, {title}: symmetry {micro.symmetry(beta):.2f}"])
            axis.set(xlabel="place j of the key", ylabel="place i of the query")


def show(axis, m):
    """Draws m, white where it is 0. The colours end at what 995 of 1,000 entries do not exceed."""
    size = np.quantile(abs(m), 0.995)
    axis.imshow(m, "RdBu_r", vmin=-size, vmax=size)


def main():
    draw_masks()
    with mock.patch.object(micro, "gradient_of_M", side_effect=micro.gradient_of_M) as gradient_of_M:
        encoder = micro.main([])["M"]
    draw_beta([beta.sum(0) for (_, beta), _ in gradient_of_M.call_args_list])  # (B, T, T) of each update
    draw_wqk({"both sides": encoder, "causal": micro.main(["causal"])["M"]})


if __name__ == "__main__":
    main()
