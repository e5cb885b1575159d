"""Draws wqk.png and beta.png of README.md, in half a minute: python -m tests.exercises.draw"""

from pathlib import Path
from unittest import mock

from tests.exercises import micro  # first, because it tells numpy to use one thread

import numpy as np

from data.drawing import figure

HERE = Path(__file__).parent


def draw(name, matrices, rows, columns):
    """One matrix beside another. rows, columns: what they stand for."""
    with figure(HERE / name, 1, 2, height=2.9) as axes:
        for axis, (title, m) in zip(axes.flat, matrices.items()):
            size = np.quantile(abs(m), 0.995)
            axis.imshow(m, "RdBu_r", vmin=-size, vmax=size)
            axis.set_title(f"{title}: symmetry {micro.symmetry(m):.2f}", fontsize=9)
            axis.set(ylabel=rows, xlabel=columns)


def main():
    betas, beta_of = [], micro.beta_of

    def note(alpha, dalpha):
        beta = beta_of(alpha, dalpha)  # (B, T, T)
        betas.append(beta.sum(0) * (1 - np.eye(micro.T)))  # over all texts of an update, without i = j
        return beta

    with mock.patch.object(micro, "beta_of", note):
        encoder = micro.main([])["M"]
    mean = {r"$\beta$, of update 100": betas[99], r"$\beta$, mean of updates 1 to 100": np.mean(betas[:100], axis=0)}
    draw("beta.png", mean, "place i of the query", "place j of the key")
    matrices = {"M, both sides": encoder, "M, causal": micro.main(["causal"])["M"]}
    draw("wqk.png", matrices, "dimension of the query", "dimension of the key")


if __name__ == "__main__":
    main()
