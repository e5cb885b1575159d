"""
Computes the scores that chance gives to a matrix M (n, n): it keeps its singular values, while both of its sides are
turned to random directions. Such nulls were used for heads by HengyuLi-Ozaki-lab/qk-spectral-fingerprint.

Let M = U S V^T with S = diag(s_1 ... s_n), and U, V random rotations. W = V^T U is a random rotation as well.

Symmetry. tr(MM) = tr(S W S W) = sum_ij s_i s_j W_ij W_ji. The signs of the rows of W are random, so W_ij W_ji is 0 on
average unless i = j, and E W_ii^2 = 1/n:

    E tr(MM) = sum_i s_i^2 / n = |M|^2 / n,   so that   E symmetry = 1/n, whatever the s_i are.

Of (tr(MM))^2 only the terms s_i^2 s_j^2 are left: E W_ii^4 = 3 / (n (n + 2)) if i = j, and else E W_ii^2 W_jj^2 and
twice E W_ij^2 W_ji^2, which are (n + 1) / (n (n - 1) (n + 2)). With p = sum_i s_i^4 / |M|^4, between 1/n and 1,

    E symmetry^2 = 3 (n + 1 - 2 p) / (n (n - 1) (n + 2)) = 3 / n^2 + O(1 / n^3).

So the variance is 2 / n^2, and the standard deviation sqrt(2) / n: the s_i hardly matter.

Directionality is (r - c) / (r + c), where r depends on the row norms and c on the column norms. Row norms are the norms
of the rows of U S, and column norms of V S, so r and c are two independent draws of the same number. Here the s_i
matter: if a few of them are much larger than the others, norms differ more.
"""

import functools
import math

import numpy as np
import torch

SCORES = ["symmetry", "directionality"]  # of the three, the two that are compared and drawn
QUANTILES = 2**14  # of a distribution, from which lengths are drawn
NUMBERS = 2**21  # lengths to draw for a matrix (n, n): as many draws of r, and so of c, as these are rows of n
PAIRS = 2**16  # of a draw of r and one of c


def deviations(symmetry, n):
    """Returns how many standard deviations a symmetry is above its mean over random matrices."""
    return (symmetry - 1 / n) * n / math.sqrt(2)


def interval(score, n, limit):
    """Returns the range (low, high) of 95 % of such matrices. limit: of directionality, from directionality_limit."""
    if score == "symmetry":
        return (1 - 1.96 * math.sqrt(2)) / n, (1 + 1.96 * math.sqrt(2)) / n
    return -limit, limit


def limit_of_random(n, gamma):
    """Returns the limit of directionality for W_q W_k^T of random W_q and W_k, (n, n)."""
    return directionality_limit(n, (1.0, 2.0 * n, 5.0 * n), gamma)  # of the Fuss-Catalan numbers 1, 3, 12


@torch.no_grad()
def mean_symmetry(product):
    """
    Returns about the mean symmetry (...) of random matrices in the directions of M, a grams.Product.

    Such a matrix is A Z B with Z ~ N(0, 1) and the roots A of M M^T and B of M^T M. So it has the energy of M in every
    direction on both sides. E tr(AZB AZB) = |BA|^2 = |MM|^2, and E |AZB|^2 = |M|^4. Their quotient |MM|^2 / |M|^4 is
    returned. For trained positions it was within a twentieth of their mean, and their standard deviation was at most
    sqrt(2) times it. But if a few singular values are far above the others, it can be a third above their mean, or half
    of it. It is 1/n if M uses n directions alike, and 1 if both sides use one alone.
    """
    gram_q, gram_k, kq = product.gram_q, product.gram_k, product.kq  # (..., r, r): MM = W_q kq W_k^T
    return (kq.mT @ gram_q @ kq * gram_k).sum((-2, -1)) / product.energy.square()


@torch.no_grad()
def moments(product):
    """Returns the mean of the C squared singular values s^2 of M, scaled, and the sums of (s^2 - mean)^2 and ^3."""
    # The s^2 are the eigenvalues of M M^T = W_q (W_k^T W_k) W_q^T. Moved round, as in a trace, this is (r, r), and the
    # other C - r of them are 0.
    C, r = product.w_q.shape
    if r < C and not product.cancels:
        p = to_float(product.gram_k) @ to_float(product.gram_q)
    else:
        m = to_float(product.whole)
        p = m @ m.mT
    mean = p.trace().item() / C
    p.diagonal().sub_(mean)  # at once: of nearly equal s nothing would be left of the difference of larger sums
    n_zero = C - len(p)
    return mean, (p * p.mT).sum().item() + n_zero * mean**2, trace_of_cube(p).item() - n_zero * mean**3


def to_float(m):
    return (m / m.abs().max()).float()  # the size of M does not matter


def trace_of_cube(p):
    """Returns tr(PPP) of p (n, n), with half of the multiplications of P @ P."""
    # With the quarters P = [[A, B], [C, D]] it is tr(AAA) + tr(DDD) + 3 tr(BCA) + 3 tr(CBD).
    half = len(p) // 2
    a, b = p[:half, :half], p[:half, half:]
    c, d = p[half:, :half], p[half:, half:]
    return ((a @ a + 3 * b @ c) * a.mT).sum() + ((d @ d + 3 * c @ b) * d.mT).sum()


@functools.lru_cache(maxsize=4)
def draws(n):
    """Returns indices into the list of quantiles (S, n), and pairs of the S rows (2, PAIRS). Drawing them is slow."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(QUANTILES, (max(2, NUMBERS // n), n), generator=generator, dtype=torch.int32)
    return indices, torch.randint(len(indices), (2, PAIRS), generator=generator)


def chi2_quantiles(nu):
    """Returns numbers (QUANTILES,), in order, that are distributed as chi^2 with nu degrees of freedom."""
    # The cube root of chi^2 / nu is nearly normal (Wilson and Hilferty), so these x are spread well enough.
    root = 1 - 2 / (9 * nu) + torch.linspace(-7, 7, 2001, dtype=torch.float64) * math.sqrt(2 / (9 * nu))
    x = nu * root.clamp_min(0) ** 3
    below_x = torch.special.gammainc(torch.tensor(nu / 2, dtype=torch.float64), x / 2)
    return np.interp((np.arange(QUANTILES) + 0.5) / QUANTILES, below_x.numpy(), x.numpy())


def directionality_limit(n, moments, gamma):
    """Returns the limit of directionality: 95 of 100 matrices (n, n) with these moments are between minus it and it."""
    # The squared length of row i is sum_j s_j^2 U_ij^2, and a row of U is a random direction: g / |g| with normal g_j.
    # sum_j U_ij^2 = 1, so n times this length is n mean + sum_j (s_j^2 - mean) g_j^2, as |g|^2 is n + O(sqrt(n)).
    # Such a sum of squares is distributed nearly as b (chi^2 - nu), chi^2 with nu degrees of freedom, if b and nu give
    # it the same second and third moments, c2 = b^2 nu and c3 = b^3 nu (Pearson).
    mean, c2, c3 = moments
    if not math.sqrt(c2 / 2) > 1e-5 * n * mean:  # all s_j are the same, and lengths differ by rounding (analyze.py)
        return 0.0
    skew = c3 / c2**1.5
    nu = 1 / max(skew**2, 1e-6)  # with more than 10^6 degrees of freedom it is normal
    b = math.copysign(math.sqrt(c2 / nu), skew)
    lengths = np.sqrt(np.maximum(n * mean + b * (chi2_quantiles(nu) - nu), 0))  # (QUANTILES,)
    lengths = (lengths - lengths.mean()) / lengths.std()  # or float32 could not tell them apart
    indices, pairs = draws(n)
    norms = torch.tensor(lengths, dtype=torch.float32)[indices]  # (S, n)
    above_mean = norms - norms.mean(1, keepdim=True)
    std = (above_mean.square().sum(1, keepdim=True) / (n - 1)).sqrt()
    excess = (above_mean - gamma * std).clamp_min_(0).sum(1)  # (S,)
    rows, columns = excess[pairs]  # (PAIRS,) each
    total = rows + columns
    balance = torch.where(total > 0, (rows - columns) / total, 0.0)
    return float(np.quantile(balance.abs().numpy(), 0.95))
