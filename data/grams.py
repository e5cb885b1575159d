"""
Measures M = W_q W_k^T, (C, C), from its factors W_q and W_k (..., C, r), in float64.

If r is small against C, M is never made: 3 to 5 C r^2 multiplications give its trace and norms, and M takes C^2 r.
"""

from functools import cached_property

import torch

WHOLE_GRAM = 128  # Gram matrices of at most so many columns are made whole


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
    def expected(self):
        """M is a sum of r matrices, each a column of W_q times a column of W_k: their squared norms, added up (...)."""
        return (self.w_q.norm(dim=-2) * self.w_k.norm(dim=-2)).square().sum(-1)

    @cached_property
    def cancels(self):
        """Whether heads cancel. Then Gram matrices, which hold squares, have lost the digits of what remains of M."""
        return ((self.gram_q * self.gram_k).sum((-2, -1)) < 1e-4 * self.expected).any()

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


def gram(w):
    """Returns w^T w: (..., C, r) -> (..., r, r), the products of all pairs of columns."""
    if w.shape[-1] <= WHOLE_GRAM:
        return w.mT @ w
    # It is symmetric: of its quarters the two off the diagonal are equal, so one of them is enough.
    w_1, w_2 = w.tensor_split(2, -1)  # (..., C, r / 2)
    cross = w_2.mT @ w_1  # (..., r / 2, r / 2)
    upper = torch.cat([gram(w_1), cross.mT], -1)
    lower = torch.cat([cross, gram(w_2)], -1)
    return torch.cat([upper, lower], -2)


def squared_norms(x, gram_y):
    """Returns the squared norm of every row of x y^T: x (..., C, r), gram_y = y^T y (..., r, r) -> (..., C)."""
    # Row i of x y^T is x_i y^T, and its squared norm is x_i (y^T y) x_i^T. x is a transposed weight, so x.mT is
    # contiguous, and these lines read memory in its order.
    if x.shape[-1] <= WHOLE_GRAM:
        return ((gram_y @ x.mT) * x.mT).sum(-2)
    # With half of the columns each, x y^T = x_1 y_1^T + x_2 y_2^T, and |a + b|^2 = |a|^2 + |b|^2 + 2 a b.
    x_1, x_2 = x.tensor_split(2, -1)  # (..., C, r / 2)
    half = x_1.shape[-1]
    cross = ((gram_y[..., half:, :half] @ x_1.mT) * x_2.mT).sum(-2)  # (..., C)
    squares_1 = squared_norms(x_1, gram_y[..., :half, :half])
    squares_2 = squared_norms(x_2, gram_y[..., half:, half:])
    return squares_1 + squares_2 + 2 * cross
