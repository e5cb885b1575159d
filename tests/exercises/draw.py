"""Draws the three pictures of README.md, in half a minute: python -m tests.exercises.draw"""

from pathlib import Path
from unittest import mock

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from data.drawing import figure
from tests.exercises import micro

HERE = Path(__file__).parent
PLACES, MASKED = 8, [2, 5]  # of the texts in masks.png; in its first and third panel these are [MASK]
NOTHING, ALONE, MIRRORED = 0, 1, 2  # beta_ij is 0; it is not, but beta_ji is; neither is 0
COLOURS = ListedColormap(["0.93", "#e08214", "#2166ac"])


def draw_masks():
    """Which pairs of places move M, in the last layer: in one text and in all, with both sides visible and causal."""
    asks = np.isin(np.arange(PLACES), MASKED)[:, None]  # (n, 1): a token that has to be guessed
    both, causal = np.ones((PLACES, PLACES)), np.tri(PLACES)
    panels = {"both sides, one text": both * asks, "both sides, all texts": both,
              "causal, one text": causal * asks, "causal, all texts": causal}
    with figure(HERE / "masks.png", 1, 4, height=2.3) as axes:
        for ax, (title, moves) in zip(axes.flat, panels.items()):
            ax.imshow(moves * np.where(moves.T > 0, MIRRORED, ALONE), COLOURS, vmin=NOTHING, vmax=MIRRORED)
            ax.set_title(title, fontsize=9)
            ax.set(xlabel="token j, the key", xticks=[])
            ax.set_yticks(range(PLACES), ["[MASK]" if "one" in title and i in MASKED else "" for i in range(PLACES)])
        axes[0, 0].set_ylabel("token i, the query")
        handles = [Patch(color=COLOURS(ALONE), label="(i, j) without its mirror image (j, i)"),
                   Patch(color=COLOURS(MIRRORED), label="with it, or i = j")]
        axes[0, 0].figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def draw_wqk(matrices):
    """M of both runs, and each of its entries beside its mirror entry."""
    with figure(HERE / "wqk.png", 1, 4, height=2.1) as axes:
        for i, (title, m) in enumerate(matrices.items()):
            image, scatter = axes[0, 2 * i : 2 * i + 2]
            size = np.quantile(abs(m), 0.995)
            image.imshow(m, "RdBu_r", vmin=-size, vmax=size)
            image.set_title(f"M, {title}", fontsize=9)
            image.set(xlabel="dimension of the key", ylabel="of the query", xticks=[], yticks=[])
            above = np.triu_indices(len(m), 1)
            scatter.axline((0, 0), slope=1, color="0.5", lw=0.8)
            scatter.plot(m[above], m.T[above], ".", ms=2, alpha=0.4)
            scatter.set_title(f"symmetry {micro.symmetry(m):.2f}", fontsize=9)
            scatter.set(xlabel="$M_{ij}$", ylabel="$M_{ji}$", xticks=[], yticks=[], aspect="equal",
                        xlim=(-size, size), ylim=(-size, size))


def draw_beta(betas):
    """beta of one update of the encoder, and the mean of a hundred. Each is a sum over sequences, (T, T)."""
    panels = {"of update 100": betas[99], "mean of updates 1 to 100": np.mean(betas[:100], axis=0)}
    with figure(HERE / "beta.png", 1, 2, height=2.9) as axes:
        for ax, (title, beta) in zip(axes.flat, panels.items()):
            beta = beta * (1 - np.eye(len(beta)))  # without i = j
            size = np.quantile(abs(beta), 0.995)
            ax.imshow(beta, "RdBu_r", vmin=-size, vmax=size)
            ax.set_title(rf"$\beta$, {title}: symmetry {micro.symmetry(beta):.2f}", fontsize=9)
            ax.set(xlabel="place j of the key", ylabel="place i of the query")


def main():
    betas = []  # of each update (T, T)
    beta_of = micro.beta_of

    def note(alpha, dalpha):
        beta = beta_of(alpha, dalpha)  # (B, T, T)
        betas.append(beta.sum(0))
        return beta

    draw_masks()
    with mock.patch.object(micro, "beta_of", note):
        encoder = micro.main([])["M"]
    draw_beta(betas)
    draw_wqk({"both sides": encoder, "causal": micro.main(["causal"])["M"]})


if __name__ == "__main__":
    main()
