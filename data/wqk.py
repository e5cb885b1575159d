"""
The numbers that scores and chance need of M = W_qk = W_q W_k^T, (C, C): from M itself, or from its factors W_q and W_k,
(C, r), if M is much larger than they are. Whole and Factored have the same five methods, one below the other:

    trace            tr(MM)
    row_norms        the lengths of the rows of M
    column_norms     the lengths of its columns
    mean_symmetry    what chance gives to its symmetry, |MM|^2 / |M|^4
    stretch          |g M| / |g| for random directions g, of which chance makes a directionality

Chance: keep how strong M is in each direction of its rows and columns, and redraw at random which meets which.

Symmetry. A matrix of few directions has some symmetry by chance, if its two sides use the same ones: with one direction
on both sides it is 1. Let A be the root of M M^T, which is how strong the directions of the query side are, and B the
root of M^T M, the same of the key side. Between them stands a random matrix, Z ~ N(0, 1): so A Z B. Since

    E tr(AZB AZB) = |BA|^2 = |MM|^2   and   E |AZB|^2 = |A|^2 |B|^2 = |M|^4,

their mean symmetry is about |MM|^2 / |M|^4. It is 1/C if M uses all directions alike. If a few singular values are far
above the others, this formula can give half more than the mean, or little more than a third of it.

Directionality. Turn both sides of M = U S V^T at random. Then rows of U S and of V S are random directions times S. If
a few singular values are large, their norms differ much, and directionality is far from 0 by chance.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

DIRECTIONS = 2048  # that are drawn for the norms of a matrix
MATRICES = 512  # of such norms that are drawn
SYMMETRIES = 400  # that are drawn of a matrix
FEW = 128  # directions, of which random matrices are drawn fast
SEED = 0x5EED0F64A11D0AB5  # of what is drawn here. A model may be drawn with 0 or 1, and would be these very numbers


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
        m = (self.m / self.m.norm(dim=(-2, -1), keepdim=True)).float()  # |M| = 1, of which float32 keeps five digits
        return (m @ m).square().sum((-2, -1)).double()

    def stretch(self, g):
        return (g @ self.m.float()).norm(dim=1) / g.norm(dim=1)


class Factored(NamedTuple):
    """Products of columns instead of M, in float32. None of them is larger than the factors."""

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
        square = (self.cross_gram.mT @ self.gram_q @ self.cross_gram * self.gram_k).double().sum((-2, -1))
        return square / self.energy().square()

    def stretch(self, g):
        z = g @ self.w_q  # (DIRECTIONS, r), and |z W_k^T|^2 = z (W_k^T W_k) z^T
        return (z @ self.gram_k * z).sum(1).clamp_min(0).sqrt() / g.norm(dim=1)


def multiply(w_q, w_k):
    """W_q and W_k (..., C, r) -> a Whole or a Factored. Their size does not matter: they are scaled first."""
    w_q, w_k = near_one(w_q), near_one(w_k)
    C, r = w_q.shape[-2:]
    if 3 * r <= C:  # 5 C r^2 multiplications in all, and M takes C^2 r
        q, k = w_q.float(), w_k.float()  # of which scores keep five digits
        factored = Factored(q, k, q.mT @ q, k.mT @ k, k.mT @ q)
        if (factored.energy() > 1e-2 * energy_of_terms(q, k)).all():
            return factored
        # Else heads nearly cancel. Gram matrices hold squares, and have lost the digits of what remains of M.
    return Whole(w_q, w_k, w_q @ w_k.mT)


def head_products(w_q, w_k):
    """
    Returns <W_h, W_g> and <W_h, W_g^T> of every two heads, (H, H) each. w_q, w_k (H, C, D): of each head, a key head
    once for every query head that uses it. <A, B> = tr(A^T B), and all W are scaled by one number.
    """
    dtype = torch.float64 if w_q.shape[1] <= 1024 else torch.float32  # of which parts keep five digits
    w_q, w_k = near_one(w_q, (-3, -2, -1)).to(dtype), near_one(w_k, (-3, -2, -1)).to(dtype)
    straight, turned = [], []
    for q, k in zip(w_q, w_k):  # W_h = q k^T, and all W_g at once; no matrix is (C, C)
        straight.append((q.mT @ w_q * (k.mT @ w_k)).double().sum((-2, -1)))  # tr(k q^T W_q,g W_k,g^T), (H,)
        turned.append((k.mT @ w_q * (q.mT @ w_k)).double().sum((-2, -1)))  # tr(q k^T W_q,g W_k,g^T), (H,)
    return torch.stack(straight), torch.stack(turned)


def parts_of_symmetry(straight, turned):
    """
    Returns what the symmetry of a layer is made of, {name: a number}, from the head_products of its H heads.

    W_h = W_q,h W_k,h^T = S_h + A_h has a symmetric and a skew part, and W is the sum of all W_h:

        symmetry = own_heads + shared + mirror
        own_heads = sum over h of <W_h, W_h^T> / |W|^2             what each head has by itself
        shared    = sum over h != g of <S_h, S_g> / |W|^2          heads have a symmetric part in common
        mirror    = - sum over h != g of <A_h, A_g> / |W|^2        one head is like the transpose of another
    """
    symmetric, skew = (straight + turned) / 2, (straight - turned) / 2  # <S_h, S_g> and <A_h, A_g>
    energy = straight.sum()  # |W|^2
    own = turned.trace()
    shared = symmetric.sum() - symmetric.trace()
    mirror = skew.trace() - skew.sum()
    return dict(own_heads=(own / energy).item(), shared=(shared / energy).item(), mirror=(mirror / energy).item())


def in_float64(w):
    """Returns w in float64. A Mac's GPU, which has none, gives it to the CPU."""
    return w.to("cpu" if w.device.type == "mps" else w.device, torch.float64)


def near_one(w, dims=(-2, -1)):
    """Returns w in float64 with a largest entry of 1, in every matrix or in all that dims name."""
    w = in_float64(w)
    largest = w.abs().amax(dims, keepdim=True)
    return w / torch.where(largest > 0, largest, 1.0)


def energy_of_terms(w_q, w_k):
    """M is a sum of r matrices, each a column of W_q times a column of W_k: their squared norms, added up (...)."""
    return (w_q.norm(dim=-2) * w_k.norm(dim=-2)).square().sum(-1)


def draw_norms(product):
    """Returns the norms (MATRICES, C) of the rows of random matrices with the singular values of M (C, C)."""
    # A row of U S is as long as u M for a random direction u = g / |g|, g ~ N(0, I). So draw some, and rows of them.
    g, chosen = draw(len(product.w_q), product.w_q.device)
    return product.stretch(g)[chosen]


def limit_of_symmetry(product):
    """
    Returns what the symmetry of about 95 in 100 random matrices in the directions of M (C, C) is below.

    They are drawn, unless there are many directions, and none dominates. Then |S Z S|^2 is nearly constant: its
    deviation is sqrt(2) |S^2|^2 / |S|^4 of its mean. And tr(Z K Z K), with the singular values k of K = S V^T U S, has
    the distribution of sum_ij k_i k_j g_ij g_ji, g ~ N(0, 1). Of such sums 94 to 96 in 100 are below 3.5 times the
    mean: 93.9 with a single k (chi-square), and 96.1 with many alike (normal, with sqrt(2) times the mean).
    """
    m = product.w_q.double() @ product.w_k.double().mT
    if len(m) > FEW:
        squares = m.float() @ m.float().mT  # U S^2 U^T
        if m.square().sum().square() > 30 * squares.square().sum():  # the deviation is below a twentieth
            return 3.5 * product.mean_symmetry().item()
    # With M = U S V^T they are U S Z S V^T, and with K = S V^T U S their symmetry is tr(Z K Z K) / |S Z S|^2.
    u, s, vt = torch.linalg.svd(m)
    r = 1 + int((s.square().cumsum(0) < 0.9995 * s.square().sum()).sum())  # directions that hold nearly all of |M|^2
    s = (s[:r] / s[0]).float()
    k = s[:, None] * (vt[:r] @ u[:, :r]).float() * s  # (r, r)
    generator = torch.Generator().manual_seed(SEED)
    symmetries = []
    for _ in range(SYMMETRIES if r <= FEW else SYMMETRIES // 4):  # of many directions each takes long
        z = torch.randn(r, r, generator=generator).to(k.device)
        zk = z @ k
        symmetries.append((zk * zk.mT).sum() / (s[:, None] * z * s).square().sum())
    return torch.stack(symmetries).quantile(0.95).item()


@functools.lru_cache(maxsize=1)  # all layers of a model have the same size
def draw(C, device):
    """Returns g ~ N(0, I), (DIRECTIONS, C), and which of them are the rows of matrices, (MATRICES, C)."""
    generator = torch.Generator().manual_seed(SEED)
    g = torch.randn(DIRECTIONS, C, generator=generator)
    chosen = torch.randint(DIRECTIONS, (MATRICES, C), generator=generator)
    return g.to(device), chosen.to(device)
