"""
Symmetry and directionality of W_qk = W_q W_k^T: what they are, and what chance gives.

    scores(q.weight.T, k.weight.T)                               # of two nn.Linear
    score_layers([(block.wq, block.wk) for block in blocks])     # of a model of your own: a table, a row for each layer
    score_model("gpt2")                                          # of a run, a folder, or a model on the Hub
    python analyze.py --hf bert-base gpt2 --csv scores.csv       # the same as a command

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. If columns dominate, directionality is below 0.
W_qk is made of the raw weights, without biases, rotary positions, scaling, and norms of queries and keys.

This file is the mathematics, and needs torch alone. What reads and scores models is in data/pretrained.
"""

import contextlib
import importlib.util
import math
import sys
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations


def symmetry(m):
    """
    s = tr(MM) / |M|_F^2 of m (..., n, n): 1 if M = M^T, -1 if M = -M^T, 1/n on average if all entries are random.

    Eq. (15) without its leading 2, as in the paper's tables. nan for a zero matrix. float16 overflows: use m.float().
    """
    # Every matrix is the sum of a symmetric and a skew part, M = M_s + M_n:
    #     M_s = (M + M^T) / 2    i attends to j as j attends to i
    #     M_n = (M - M^T) / 2    what i adds to its attention to j, j takes from its attention to i
    # The parts are orthogonal, so |M|^2 = |M_s|^2 + |M_n|^2. The score compares the two:
    #     s = (|M_s|^2 - |M_n|^2) / |M|^2,    because |M_s|^2 - |M_n|^2 = sum_ij M_ij M_ji = tr(MM)
    if not m.is_floating_point():
        raise ValueError(f"the matrix is {m.dtype}, not floating point: its products may overflow")
    trace = (m * m.mT).sum((-2, -1))
    return trace / m.square().sum((-2, -1))


def directionality(m, gamma=GAMMA):
    """
    d = (rows - columns) / (rows + columns) of m (..., n, n): 1 if only rows stand out, -1 if only columns, 0 if none.

    rows is the excess of the row norms: a norm counts by how much it exceeds mean + gamma * standard deviation of all
    row norms, or not at all. columns is the same of the columns. The published tables hold this variant. nan if n = 1.
    """
    # A row of W_qk belongs to one dimension of the query token, a column to one dimension of the key token. The paper
    # argues: under a causal mask a token is the key of all later tokens, so a few columns grow long, and d < 0.
    rows = excess(m.norm(dim=-1), gamma)  # (...)
    columns = excess(m.norm(dim=-2), gamma)  # (...)
    return balance(rows, columns)


def directionality_eq17(m, gamma=GAMMA):
    """The same as printed in the paper, Eq. (17)-(19): a norm above the threshold counts as a whole."""
    # Its sign can be wrong. A very long column raises the threshold of columns, so it is the only one above. About 2 in
    # 100 rows are above theirs by chance. Each is far shorter, but together they add up to more.
    return balance(outliers(m.norm(dim=-1), gamma), outliers(m.norm(dim=-2), gamma))


def excess(norms, gamma):
    """(..., n) -> (...): by how much norms exceed the threshold, summed. As in the tables, std divides by n - 1."""
    # A norm that is barely above adds next to nothing, so one very long column outweighs many of those.
    threshold = find_threshold(norms, gamma, correction=1)
    return (norms - threshold).clamp_min(0).sum(-1)


def outliers(norms, gamma):
    """(..., n) -> (...): the sum of the norms above the threshold, Eq. (18), (19)."""
    threshold = find_threshold(norms, gamma, correction=0)
    return (norms * (norms > threshold)).sum(-1)


def find_threshold(norms, gamma, correction):
    """(..., n) -> (..., 1): mean + gamma std; std divides by n - correction. inf if all norms are equal."""
    mean = norms.mean(-1, keepdim=True)
    std = norms.std(-1, correction=correction, keepdim=True)
    all_equal = std < 1e-5 * mean  # as in an orthogonal W_qk, whose norms are all 1, but for rounding
    return (mean + gamma * std).masked_fill(all_equal, math.inf)


def balance(rows, columns):
    """(rows - columns) / (rows + columns), or 0 if nothing stands out on either side."""
    return torch.where(rows + columns == 0, 0.0, (rows - columns) / (rows + columns))


# ---- the same from the factors W_q and W_k -----------------------------------------------------------------------

# The symmetry (...), the norms of rows and of columns (..., C), and the product that they come from.
Measured = namedtuple("Measured", "symmetry rows columns product")
# {name: a function of a Measured and of gamma} that does not change if M is scaled. A new score is a line of its own.
SCORES = {
    "symmetry": lambda m, gamma: m.symmetry,
    "directionality": lambda m, gamma: balance(excess(m.rows, gamma), excess(m.columns, gamma)),
    "directionality_eq17": lambda m, gamma: balance(outliers(m.rows, gamma), outliers(m.columns, gamma)),
}
Scores = namedtuple("Scores", SCORES)


@contextlib.contextmanager
def unrounded():
    """Products of float32 are not rounded to fewer bits in here, whatever the user has set."""
    # torch.set_float32_matmul_precision sets both of these, but it cannot be read after a user has set one of them
    settings = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for setting, precision in zip(settings, before):
            setting.fp32_precision = precision


@torch.no_grad()
@unrounded()
def scores(w_q, w_k, gamma=GAMMA):
    """
    The Scores (...) of W_qk = W_q W_k^T from W_q and W_k (..., C, r), tensors or arrays of floats, as float64. nan for
    a zero matrix; directionality is also nan if C = 1. ValueError if C or r differ: use score_layers for grouped keys.
    """
    w_q, w_k = torch.as_tensor(w_q), torch.as_tensor(w_k)
    if not all(w.is_floating_point() and w.itemsize > 1 for w in (w_q, w_k)):
        raise ValueError(f"W_q is {w_q.dtype}, W_k {w_k.dtype}: multiply quantized weights by their scales, as floats")
    if w_q.shape[-2:] != w_k.shape[-2:]:
        raise ValueError(f"expected W_q and W_k of the same (C, r), got {tuple(w_q.shape)} and {tuple(w_k.shape)}: "
                         "for grouped keys use score_layers")
    measured = measure_wqk(w_q, w_k)
    return Scores(**{name: function(measured, gamma) for name, function in SCORES.items()})


def wqk(w_q, w_k):
    """W_qk = W_q W_k^T, Eq. (1): (..., C, r), (..., C, r) -> (..., C, C). Of a layer: Eq. (S20)."""
    return w_q @ w_k.mT


def heads_of(w, n_head):
    """(C, H D) -> (H, C, D): head h is columns h D to (h + 1) D of W_q or W_k."""
    return w.unflatten(-1, (n_head, -1)).movedim(-2, 0)


def measure_wqk(w_q, w_k):
    """Returns the Measured of W_q and W_k (..., C, r)."""
    product = multiply(w_q, w_k)
    rows, columns = product.row_norms(), product.column_norms()
    energy = rows.square().sum(-1)  # |W_qk|^2
    # if W_qk is zero, what is left of it is rounding: then all scores are nan
    is_zero = energy <= 1e-26 * energy_of_terms(product.w_q, product.w_k)
    rows = rows.masked_fill(is_zero[..., None], math.nan)
    columns = columns.masked_fill(is_zero[..., None], math.nan)
    return Measured((product.trace() / energy).masked_fill(is_zero, math.nan), rows, columns, product)


# ---- the product M = W_q W_k^T -----------------------------------------------------------------------------------
#
# M itself is (C, C). If its factors are far smaller (64 of 4,096 columns in a head of LLaMA), all that scores need
# follows from small products of these. So there are two classes, with the same five methods:
#
#     trace            tr(MM)
#     row_norms        the lengths of the rows of M
#     column_norms     the lengths of its columns
#     mean_symmetry    what chance gives to its symmetry, |MM|^2 / |M|^4 (see below)
#     stretch          |g M| / |g| for random directions g, from which a chance directionality is drawn


class Whole(NamedTuple):
    """M itself, in float64."""

    w_q: Tensor  # (..., C, r)
    w_k: Tensor  # (..., C, r)
    m: Tensor  # (..., C, C)

    def trace(self):
        return (self.m * self.m.mT).sum((-2, -1))  # sum_ij M_ij M_ji

    def row_norms(self):
        return self.m.norm(dim=-1)  # (..., C)

    def column_norms(self):
        return self.m.norm(dim=-2)  # (..., C)

    def mean_symmetry(self):
        m = (self.m / self.m.norm(dim=(-2, -1), keepdim=True)).float()  # |M| = 1; float32 is twice as fast
        return (m @ m).square().sum((-2, -1)).double()

    def stretch(self, g):
        return (g @ self.m.float()).norm(dim=1) / g.norm(dim=1)


class Factored(NamedTuple):
    """Products of columns of W_q and W_k, in float32: (r, r) each, and never (C, C)."""

    w_q: Tensor  # (..., C, r)
    w_k: Tensor  # (..., C, r)
    gram_q: Tensor  # W_q^T W_q, (..., r, r)
    gram_k: Tensor  # W_k^T W_k, (..., r, r)
    cross_gram: Tensor  # W_k^T W_q, (..., r, r)

    def energy(self):
        return (self.gram_q * self.gram_k).double().sum((-2, -1))  # |M|^2 = tr(W_q^T W_q W_k^T W_k)

    def trace(self):
        # tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(W_k^T W_q W_k^T W_q): factors of a trace may move round in a circle.
        return (self.cross_gram * self.cross_gram.mT).double().sum((-2, -1))

    def row_norms(self):
        # Row i of M is w_i W_k^T, and its squared norm is w_i (W_k^T W_k) w_i^T. Rounding can make it negative.
        q = self.w_q.mT  # (..., r, C), contiguous if it is a weight
        return (self.gram_k @ q * q).double().sum(-2).clamp_min(0).sqrt()  # (..., C)

    def column_norms(self):
        k = self.w_k.mT  # (..., r, C)
        return (self.gram_q @ k * k).double().sum(-2).clamp_min(0).sqrt()  # (..., C)

    def mean_symmetry(self):
        # MM = W_q X W_k^T with X = W_k^T W_q, (r, r). So |MM|^2 = tr(X^T (W_q^T W_q) X (W_k^T W_k)), and the trace of a
        # product with a symmetric matrix is the sum of all products of their entries.
        square = self.cross_gram.mT @ self.gram_q @ self.cross_gram  # (..., r, r)
        return (square * self.gram_k).double().sum((-2, -1)) / self.energy().square()

    def stretch(self, g):
        z = g @ self.w_q  # (..., r), and |z W_k^T|^2 = z (W_k^T W_k) z^T
        return (z @ self.gram_k * z).sum(1).clamp_min(0).sqrt() / g.norm(dim=1)


def multiply(w_q, w_k):
    """W_q and W_k (..., C, r) -> a Whole or a Factored."""
    # scale them first, so that nothing overflows: scores do not depend on the size of M
    w_q, w_k = near_one(w_q), near_one(w_k)
    C, r = w_q.shape[-2:]
    # M takes C^2 r multiplications in float64, which are half as fast as the 5 C r^2 of the Gram matrices in float32
    if 3 * r <= C:
        q, k = w_q.float(), w_k.float()
        factored = Factored(q, k, q.mT @ q, k.mT @ k, k.mT @ q)
        if (factored.energy() > 1e-2 * energy_of_terms(q, k)).all():
            return factored
        # subtle: else heads nearly cancel. Gram matrices hold squares, and have lost the digits of what is left of M
    return Whole(w_q, w_k, w_q @ w_k.mT)


def in_float64(w):
    """Returns w in float64: on the CPU if it was on a Mac's GPU, which has no float64."""
    return w.to("cpu" if w.device.type == "mps" else w.device, torch.float64)


def near_one(w, dims=(-2, -1)):
    """Returns w in float64 with a largest entry of 1, in every matrix or in all that dims name."""
    w = in_float64(w)
    largest = w.abs().amax(dims, keepdim=True)
    return w / torch.where(largest > 0, largest, 1.0)


def energy_of_terms(w_q, w_k):
    """M is a sum of r matrices, each a column of W_q times a column of W_k: their squared norms, added up (...)."""
    return (w_q.norm(dim=-2) * w_k.norm(dim=-2)).square().sum(-1)


# ---- what the symmetry of a layer is made of ---------------------------------------------------------------------


def parts_of_symmetry(w_q, w_k):
    """
    Returns what the symmetry of a layer is made of, {name: a number}. w_q, w_k (H, C, D): its heads, a key head once
    for every query head that uses it.

    W_h = W_q,h W_k,h^T = S_h + A_h has a symmetric and a skew part, and W is the sum of all W_h. <A, B> = tr(A^T B).

        symmetry = own_heads + shared + mirror
        own_heads = sum over h of <W_h, W_h^T> / |W|^2             what each head has by itself
        shared    = sum over h != g of <S_h, S_g> / |W|^2          heads have a symmetric part in common
        mirror    = - sum over h != g of <A_h, A_g> / |W|^2        one head is like the transpose of another
    """
    dtype = torch.float64 if w_q.shape[1] <= 1024 else torch.float32  # parts of wide layers keep five digits
    dims = -3, -2, -1  # all heads are scaled by one number
    w_q, w_k = near_one(w_q, dims).to(dtype), near_one(w_k, dims).to(dtype)
    # <W_h, W_g> and <W_h, W_g^T>, row by row: W_h = q k^T and all W_g at once. No matrix is (C, C)
    straight, turned = [], []
    for q, k in zip(w_q, w_k):
        straight.append((q.mT @ w_q * (k.mT @ w_k)).double().sum((-2, -1)))  # tr(k q^T W_q,g W_k,g^T), (H,)
        turned.append((k.mT @ w_q * (q.mT @ w_k)).double().sum((-2, -1)))  # tr(q k^T W_q,g W_k,g^T), (H,)
    straight, turned = torch.stack(straight), torch.stack(turned)  # (H, H) each

    symmetric = (straight + turned) / 2  # <S_h, S_g>
    skew = (straight - turned) / 2  # <A_h, A_g>
    parts = dict(own_heads=turned.trace(), shared=symmetric.sum() - symmetric.trace(),
                 mirror=skew.trace() - skew.sum())
    energy = straight.sum()  # |W|^2
    return {name: (part / energy).item() for name, part in parts.items()}


# ---- chance ------------------------------------------------------------------------------------------------------
#
# Keep how strong M is in each direction of its rows and columns, and redraw at random which meets which.
#
# Symmetry. A matrix of few directions has some symmetry by chance, if its two sides use the same ones: with one
# direction on both sides it is 1. Let A be the root of M M^T, which is how strong the directions of the query side are,
# and B the root of M^T M, the same of the key side. Between them stands a random matrix, Z ~ N(0, 1): so A Z B. Since
#
#     E tr(AZB AZB) = |BA|^2 = |MM|^2   and   E |AZB|^2 = |A|^2 |B|^2 = |M|^4,
#
# their mean symmetry is about |MM|^2 / |M|^4. It is 1/C if M uses all directions alike. If a few singular values are
# far above the others, this formula can give half more than the mean, or little more than a third of it.
# Directionality by chance: limit_of_directionality in data/pretrained/scoring.py.

SYMMETRIES = 400  # so many random matrices are drawn for the limit of symmetry
FEW = 128  # directions, up to which random matrices are cheap
SEED = 0x5EED0F64A11D0AB5  # of what is drawn here. A model that was drawn with 0 or 1, say, would be these numbers


def limit_of_symmetry(product):
    """Returns the symmetry that about 95 of 100 random matrices in the directions of M (C, C) stay below."""
    m = product.w_q.double() @ product.w_k.double().mT  # (C, C)

    # the easy case: many directions, and none dominates. Then the limit is 3.5 times the mean. A chance symmetry is
    #     tr(Z K Z K) / |S Z S|^2,    with M = U S V^T, K = S V^T U S and Z ~ N(0, 1)
    # below:  |S Z S|^2 varies by sqrt(2) sum s^4 / (sum s^2)^2 of its mean, here by less than sqrt(2) / 30 = 5 %
    # above:  mean mu and deviation sqrt(2) mu. So 3.5 mu is above 93.9 % (one k: chi-square) to 96.1 % (many: normal)
    if len(m) > FEW:
        sum_s2 = m.square().sum()
        sum_s4 = (m.float() @ m.float().mT).square().sum()
        if sum_s2.square() > 30 * sum_s4:
            return 3.5 * product.mean_symmetry().item()

    # else draw them. First get U, S and V, and keep the r directions that hold 99.95 % of |M|^2
    u, s, vt = torch.linalg.svd(m)
    share = s.square().cumsum(0) / s.square().sum()
    r = 1 + int((share < 0.9995).sum())
    s = (s[:r] / s[0]).float()
    k = s[:, None] * (vt[:r] @ u[:, :r]).float() * s  # (r, r)

    generator = torch.Generator().manual_seed(SEED)
    symmetries = []
    for _ in range(SYMMETRIES if r <= FEW else SYMMETRIES // 4):  # large ones are slow, so draw fewer
        z = torch.randn(r, r, generator=generator).to(k.device)
        zk = z @ k
        trace = (zk * zk.mT).sum()  # tr(Z K Z K)
        energy = (s[:, None] * z * s).square().sum()  # |S Z S|^2
        symmetries.append(trace / energy)
    return torch.stack(symmetries).quantile(0.95).item()


# ---- models ------------------------------------------------------------------------------------------------------


def load(name):
    """Imports a file of data/pretrained, and returns it: only when it is asked for, as a training never needs it."""
    # a project that uses this file may have a package called data, too. Then ours gets another name
    folder, package = Path(__file__).resolve().parent / "data", "data"
    found = importlib.util.find_spec(package)
    if found is None or Path(found.origin or "").resolve().parent != folder:
        package = "data_of_analyze"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(package, folder / "__init__.py")
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.pretrained.{name}")


def __getattr__(name):
    """analyze.score_model, score_layers and CheckpointError are those of data/pretrained/scoring.py."""
    if name in ("score_model", "score_layers", "CheckpointError"):
        return getattr(load("scoring"), name)
    raise AttributeError(f"module 'analyze' has no attribute {name!r}")


def main(argv):
    load("command").main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
