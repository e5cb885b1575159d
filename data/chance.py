"""
What chance gives to the scores of M = W_q W_k^T, (n, n): of random matrices that use the same directions as M.

Symmetry. A matrix of few directions has some symmetry by chance, if its two sides use the same ones: with one direction
on both sides it is 1. Random matrices in the directions of M are A Z B, with Z ~ N(0, 1) and the roots A of M M^T and
B of M^T M, so they have the energy of M in every direction of both sides. Then

    E tr(AZB AZB) = |BA|^2 = |MM|^2   and   E |AZB|^2 = |M|^4   (of M with |M| = 1),

and mean_symmetry returns their quotient |MM|^2 / |M|^4. It is 1/n if M uses n directions alike. For trained positions it
was within a twentieth of the mean symmetry of such matrices, and their standard deviation was at most sqrt(2) times it.
If a few singular values are far above the others, it can be a third above their mean, or half of it.

Directionality. Turn both sides of M = U S V^T to random directions. Then rows of U S and of V S are random directions
times S, and draw_norms draws their norms. If a few singular values are large, norms differ much by chance.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SCORES = ["symmetry", "directionality"]  # of the three, the two that are compared and drawn
DIRECTIONS = 4096  # that are drawn for the norms of a matrix: then a limit of directionality is within a tenth, mostly
MATRICES = 512  # of such norms that are drawn


class Product(NamedTuple):
    """M = W_q W_k^T in float64, or what stands for it if M takes longer: three products of columns."""

    w_q: Tensor  # (..., C, r)
    w_k: Tensor  # (..., C, r)
    m: Tensor | None  # (..., C, C)
    gram_q: Tensor | None  # W_q^T W_q, (..., r, r)
    gram_k: Tensor | None  # W_k^T W_k
    kq: Tensor | None  # W_k^T W_q


def multiply(w_q, w_k):
    """W_q and W_k (..., C, r) -> their Product. Their size does not matter, and they may overflow when multiplied."""
    w_q, w_k = near_one(w_q), near_one(w_k)
    C, r = w_q.shape[-2:]
    if 3 * r <= C:  # 3 to 5 C r^2 multiplications, and M takes C^2 r
        gram_q, gram_k, kq = w_q.mT @ w_q, w_k.mT @ w_k, w_k.mT @ w_q
        energy = (gram_q * gram_k).sum((-2, -1))  # |M|^2
        if (energy > 1e-4 * apart(w_q, w_k)).all():
            return Product(w_q, w_k, None, gram_q, gram_k, kq)
    # Or heads nearly cancel. Gram matrices hold squares, and have lost the digits of what remains of M.
    return Product(w_q, w_k, w_q @ w_k.mT, None, None, None)


def in_float64(w):
    """Returns w in float64. A Mac's GPU, which has no float64, gives it to the CPU."""
    return w.to("cpu" if w.device.type == "mps" else w.device, torch.float64)


def near_one(w):
    """Returns w in float64 with a largest entry of 1."""
    w = in_float64(w)
    largest = w.abs().amax((-2, -1), keepdim=True)
    return w / torch.where(largest > 0, largest, 1.0)


def apart(w_q, w_k):
    """M is a sum of r matrices, each a column of W_q times a column of W_k: their squared norms, added up (...)."""
    return (w_q.norm(dim=-2) * w_k.norm(dim=-2)).square().sum(-1)


@torch.no_grad()
def mean_symmetry(w_q, w_k):
    """W_q and W_k (..., C, r) -> about the mean symmetry (...) of random matrices in the directions of W_q W_k^T."""
    return mean_symmetry_of(multiply(w_q, w_k))


def mean_symmetry_of(product):
    """The same of a Product."""
    if product.m is not None:
        square = product.m @ product.m  # MM
        return square.square().sum((-2, -1)) / product.m.square().sum((-2, -1)).square()
    gram_q, gram_k, kq = product.gram_q, product.gram_k, product.kq  # MM = W_q kq W_k^T
    energy = (gram_q * gram_k).sum((-2, -1))
    return (kq.mT @ gram_q @ kq * gram_k).sum((-2, -1)) / energy.square()


@torch.no_grad()
def draw_norms(product):
    """Returns norms (MATRICES, C) of the rows of random matrices with the singular values of M, of one Product (C, C)."""
    # Row i of U S is as long as u_i M for a random direction u_i. So draw some directions, and rows among them.
    C = len(product.w_q)
    device = product.w_q.device
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(DIRECTIONS, C, generator=generator).to(device)
    if product.m is not None:
        norms = (u @ product.m.float()).norm(dim=1)  # (DIRECTIONS,)
    else:
        uq = u @ product.w_q.float()  # (DIRECTIONS, r), and |uq W_k^T|^2 = uq (W_k^T W_k) uq^T
        norms = (uq @ product.gram_k.float() * uq).sum(1).clamp_min(0).sqrt()
    norms /= u.norm(dim=1)
    chosen = torch.randint(DIRECTIONS, (MATRICES, C), generator=generator).to(device)
    return norms[chosen]
