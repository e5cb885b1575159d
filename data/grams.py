"""
Measures M = W_q W_k^T, (C, C), from its factors W_q and W_k (..., C, r), in float64.

If r is small against C, M is never made: 3 to 5 C r^2 multiplications give its trace and norms, and M takes C^2 r.
"""

from functools import cached_property

import torch

BLOCK = 128  # rows of a Gram matrix that are made at once


class Product:
    """M = W_q W_k^T by its factors. The size of the weights does not matter. What several scores need is made once."""

    def __init__(self, w_q, w_k):
        device = "cpu" if w_q.device.type == "mps" else w_q.device  # the GPU of a Mac has no float64
        self.w_q, self.w_k = [near_one(w.to(device, torch.float64)) for w in (w_q, w_k)]

    @cached_property
    def gram_q(self):
        return gram(self.w_q)  # (..., r, r)

    @cached_property
    def gram_k(self):
        return gram(self.w_k)  # (..., r, r)

    @cached_property
    def kq(self):
        return self.w_k.mT @ self.w_q  # (..., r, r)

    @cached_property
    def whole(self):
        return self.w_q @ self.w_k.mT  # (..., C, C)

    @cached_property
    def energy(self):
        """|M|^2 (...), of which heads that cancel leave rounding."""
        return (self.gram_q * self.gram_k).sum((-2, -1))

    @cached_property
    def expected(self):
        """M is a sum of r matrices, each a column of W_q times a column of W_k: their squared norms, added up (...)."""
        return (self.w_q.norm(dim=-2) * self.w_k.norm(dim=-2)).square().sum(-1)

    @cached_property
    def cancels(self):
        """Whether heads cancel. Then Gram matrices, which hold squares, have lost the digits of what remains of M."""
        return (self.energy < 1e-4 * self.expected).any()

    @cached_property
    def measured(self):
        """The symmetry (...), nan if M is zero, the norms of its rows, and those of its columns (..., C)."""
        C, r = self.w_q.shape[-2:]
        is_faster = 3 * r <= C  # as measured at C = 768 and 4096
        symmetry, row_norms, column_norms = self.from_grams() if is_faster and not self.cancels else self.from_whole()
        is_zero = row_norms.square().sum(-1) <= 1e-26 * self.expected  # only rounding remains, about 1e-26 in squares
        return symmetry.masked_fill(is_zero, torch.nan), row_norms, column_norms

    def from_whole(self):
        """Returns what is measured, the plain way."""
        m = self.whole
        return (m * m.mT).sum((-2, -1)) / m.square().sum((-2, -1)), m.norm(dim=-1), m.norm(dim=-2)

    def from_grams(self):
        """Returns the same without M."""
        # tr(AB) = tr(BA), so factors may move round in a circle. With kq = W_k^T W_q, which is (r, r):
        #     tr(MM) = tr(W_q W_k^T W_q W_k^T) = tr(W_k^T W_q W_k^T W_q) = tr(kq kq)
        rows = squared_norms(self.w_q, self.gram_k).clamp_min(0)  # (..., C); rounding can make a square negative
        columns = squared_norms(self.w_k, self.gram_q).clamp_min(0)  # (..., C), of the rows of M^T = W_k W_q^T
        return (self.kq * self.kq.mT).sum((-2, -1)) / rows.sum(-1), rows.sqrt(), columns.sqrt()


def near_one(w):
    """Returns w times a power of two, if its largest entry is far from 1. So products do not overflow."""
    largest = torch.maximum(w.amax((-2, -1), keepdim=True), -w.amin((-2, -1), keepdim=True))
    exponent = torch.where(largest > 0, largest, 1.0).log2().floor().clamp(-1000, 1000)
    return w * torch.exp2(-exponent) if (exponent.abs() > 64).any() else w


def blocks(r):
    """Yields the (first, end) of r columns, block by block."""
    for first in range(0, r, BLOCK):
        yield first, min(first + BLOCK, r)


# A pair of columns has one product, whichever comes first. So both functions take each block of columns with itself and
# with the earlier ones, which is half of the work.


def gram(w):
    """Returns w^T w: (..., C, r) -> (..., r, r), the products of all pairs of columns."""
    r = w.shape[-1]
    found = w.new_empty(*w.shape[:-2], r, r)
    for first, end in blocks(r):
        rows = w[..., first:end].mT @ w[..., :end]  # (..., BLOCK, end)
        found[..., first:end, :end] = rows
        found[..., :end, first:end] = rows.mT
    return found


def squared_norms(x, gram_y):
    """Returns the squared norm of every row of x y^T: x (..., C, r), gram_y = y^T y (..., r, r) -> (..., C)."""
    # Row i of x y^T is x_i y^T, and its squared norm is x_i (y^T y) x_i^T, a sum over pairs of columns. x is a
    # transposed weight, so x.mT is contiguous, and these lines read memory in its order.
    half = gram_y.tril()  # (..., r, r): two columns that differ are a pair in both orders, of which one is left out,
    half.diagonal(dim1=-2, dim2=-1).mul_(0.5)  # and so is half of a column with itself
    total = 0.0
    for first, end in blocks(x.shape[-1]):
        products = half[..., first:end, :end] @ x[..., :end].mT  # (..., BLOCK, C)
        total = total + products.mul_(x[..., first:end].mT).sum(-2)
    return 2 * total  # (..., C)
