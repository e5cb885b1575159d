"""
What M of micro.py is made of: pairs of two positions, of two contents, or of one of each.

    python -m tests.exercises.ledger             # both sides, seeds 1 to 8: a minute
    python -m tests.exercises.ledger causal 3    # the words of micro.py; with one seed it takes seconds

Write x = p + t. Here p (T, C) is the mean over texts of what attention reads at each place, and t is how a text differs
from it. Then the gradient of M is a sum of four parts, pp, pt, tp and tt. Adam divides all four by the same numbers. So
M is a sum, too: of its start, which is M after 20 steps, and of the four parts of all later steps. Each has

    share       <part, M> / |M|^2, over all entries: these add up to 1
    adds        <part, M^T> / |M|^2: these add up to the symmetry of M
    symmetry    of the part alone

and a line of the table shows their mean over seeds, with the lowest and the highest.
"""

import sys
from unittest import mock

from tests.exercises import micro  # before numpy: it sets the number of threads

import numpy as np

NAMES = ["start", "pp", "pt", "tp", "tt", "M"]
# In the first steps the parts of a gradient may cancel in an entry, while the running square that Adam divides by is
# still as small as their sum. Parts that began at step 0 would be several times as large as M, and cancel as well.
FIRST = 20


def parts_of_gradient(x, beta):
    """Eq. 8 with x = p + t: sum_ij beta_ij (p_i + t_i)^T (p_j + t_j), as pp, pt, tp and tt, (4, C, C)."""
    p = np.broadcast_to(x.mean(0), x.shape)  # (B, T, C), the same in every text of the batch
    t = x - p
    pairs = [(p, p), (p, t), (t, p), (t, t)]
    return np.stack([(query.mT @ beta @ key).sum(0) for query, key in pairs])


def train(argv):
    """Trains micro.py with a seed as the last word. Returns M and its parts: start, pp, pt, tp, tt, (5, C, C)."""
    gradients = []
    gradient_of_M = micro.gradient_of_M

    # 1) let micro.py train, and note every gradient of M, and its four parts
    def note_parts(x, beta):
        whole = gradient_of_M(x, beta)
        gradients.append(np.stack([whole, *parts_of_gradient(x, beta)]))
        return whole

    with mock.patch.object(micro, "gradient_of_M", note_parts):
        w = micro.main(argv)

    # 2) repeat its Adam: each part has a running mean of its own, and all are divided by the square of the whole
    parts, mean = np.zeros((5, micro.C, micro.C)), np.zeros((5, micro.C, micro.C))
    square = np.zeros((micro.C, micro.C))
    parts[0] = micro.new_weights(np.random.default_rng(int(argv[-1])))["M"]
    for step, g in enumerate(gradients):
        mean += 0.1 * (g - mean)
        square += 0.01 * (g[0] ** 2 - square)
        change = -micro.LEARNING_RATE * mean / (np.sqrt(square) + 1e-8)  # (5, C, C)
        if step < FIRST:
            parts[0] += change[0]  # the start moves as M does
        else:
            parts[1:] += change[1:]
    return w["M"], parts


def measure(part, m):
    """Returns the share of a part, what it adds to the symmetry of M, and its own symmetry."""
    return (part * m).sum() / (m * m).sum(), (part * m.T).sum() / (m * m).sum(), micro.symmetry(part)


def main(argv):
    if "-h" in argv or "--help" in argv:
        return print(__doc__.strip())
    words = [word for word in argv if not word.isdigit()]
    seeds = [word for word in argv if word.isdigit()] or "12345678"
    if len(words) > 1 or not micro.BESIDE.keys() >= {*words}:
        sys.exit(f"ledger: expected [causal | left | right | both] [SEED ...], got {' '.join(argv)}")
    rows = []
    for seed in seeds:
        m, parts = train([*words, seed])
        rows.append([measure(part, m) for part in [*parts, m]])

    print(f"\n{len(seeds)} seeds".ljust(10) + f"{'share':22}{'adds':22}symmetry")
    for name, of_seeds in zip(NAMES, np.swapaxes(rows, 0, 1)):  # (seeds, 3)
        cells = [f"{x.mean():+.2f} [{x.min():+.2f}, {x.max():+.2f}]" for x in of_seeds.T]
        print(f"{name:9}{cells[0]:22}{cells[1]:22}{cells[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
