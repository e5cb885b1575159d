"""
What chance gives to the scores of M = W_q W_k^T, (C, C): those of random matrices that use the same directions as M.

Symmetry. A matrix of few directions has some symmetry by chance, if its two sides use the same ones: with one direction
on both sides it is 1. Random matrices in the directions of M are A Z B, with Z ~ N(0, 1) and the roots A of M M^T
and B of M^T M, so they have the energy of M in every direction of both sides. Since

    E tr(AZB AZB) = |BA|^2 = |MM|^2   and   E |AZB|^2 = |A|^2 |B|^2 = |M|^4,

their mean symmetry is about |MM|^2 / |M|^4. It is 1/C if M uses all directions alike. For trained positions it was
within a twentieth of the mean, and the standard deviation at most sqrt(2) times it. If a few singular values are far
above the others, it can be a third above the mean, or half of it.

Directionality. Turn both sides of M = U S V^T at random. Then rows of U S and of V S are random directions times S. If
a few singular values are large, their norms differ much, and directionality is far from 0 by chance.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

DIRECTIONS = 2048  # that are drawn for the norms of a matrix
MATRICES = 512  # of such norms that are drawn


class Product(NamedTuple):
    """M = W_q W_k^T in float64; or, where M takes longer, three products of columns in float32."""

    w_q: Tensor  # (..., C, r)
    w_k: Tensor  # (..., C, r)
    m: Tensor | None  # (..., C, C)
    gram_q: Tensor | None  # W_q^T W_q, (..., r, r)
    gram_k: Tensor | None  # W_k^T W_k, (..., r, r)
    kq: Tensor | None  # W_k^T W_q, (..., r, r)


def multiply(w_q, w_k):
    """W_q and W_k (..., C, r) -> their Product. Their size does not matter: they are scaled first."""
    w_q, w_k = near_one(w_q), near_one(w_k)
    C, r = w_q.shape[-2:]
    if 3 * r <= C:  # 5 C r^2 multiplications in all, and M takes C^2 r
        q, k = w_q.float(), w_k.float()  # of which scores keep five digits
        gram_q, gram_k, kq = q.mT @ q, k.mT @ k, k.mT @ q
        energy = (gram_q * gram_k).sum((-2, -1))  # |M|^2
        if (energy > 1e-2 * apart(q, k)).all():
            return Product(q, k, None, gram_q, gram_k, kq)
        # Else heads nearly cancel. Gram matrices hold squares, and have lost the digits of what remains of M.
    return Product(w_q, w_k, w_q @ w_k.mT, None, None, None)


def in_float64(w):
    """Returns w in float64. A Mac's GPU, which has none, gives it to the CPU."""
    return w.to("cpu" if w.device.type == "mps" else w.device, torch.float64)


def near_one(w):
    """Returns w in float64 with a largest entry of 1."""
    w = in_float64(w)
    largest = w.abs().amax((-2, -1), keepdim=True)
    return w / torch.where(largest > 0, largest, 1.0)


def apart(w_q, w_k):
    """M is a sum of r matrices, each a column of W_q times a column of W_k: their squared norms, added up (...)."""
    return (w_q.norm(dim=-2) * w_k.norm(dim=-2)).square().sum(-1)


def mean_symmetry_of(product):
    """A Product -> about the mean symmetry (...) of random matrices in the directions of its M."""
    w_q, w_k, m, gram_q, gram_k, kq = product
    if m is not None:
        m = (m / m.norm(dim=(-2, -1), keepdim=True)).float()  # |M| = 1, of which float32 keeps five digits
        return (m @ m).square().sum((-2, -1)).double()
    energy = (gram_q * gram_k).double().sum((-2, -1))  # |M|^2
    return (kq.mT @ gram_q @ kq * gram_k).double().sum((-2, -1)) / energy.square()  # MM = W_q kq W_k^T


def draw_norms(product):
    """Returns the norms (MATRICES, C) of the rows of random matrices with the singular values of M (C, C)."""
    # A row of U S is as long as u M for a random direction u = g / |g|, g ~ N(0, I). So draw some, and rows of them.
    g, chosen = draw(len(product.w_q), product.w_q.device)
    if product.m is not None:
        lengths = (g @ product.m.float()).norm(dim=1)  # (DIRECTIONS,)
    else:
        z = g @ product.w_q  # (DIRECTIONS, r), and |z W_k^T|^2 = z (W_k^T W_k) z^T
        lengths = (z @ product.gram_k * z).sum(1).clamp_min(0).sqrt()
    return (lengths / g.norm(dim=1))[chosen]


@functools.lru_cache(maxsize=1)  # all layers of a model have the same size
def draw(C, device):
    """Returns g ~ N(0, I), (DIRECTIONS, C), and which of them are the rows of matrices, (MATRICES, C)."""
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(DIRECTIONS, C, generator=generator)
    chosen = torch.randint(DIRECTIONS, (MATRICES, C), generator=generator)
    return g.to(device), chosen.to(device)
