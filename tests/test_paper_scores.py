"""
The paper, statement by statement, S1.5, S1.6 and S2.1: the two scores, what random matrices have of them, and how
training starts. See test_paper.py.
"""

import pytest
import torch
import torch.nn.functional as F

import init
from analyze import directionality, directionality_eq17, symmetry, wqk
from data import chance
from tests.paper import assert_mean, exact, float64  # noqa: F401

# ---- S1.5: the symmetry score ------------------------------------------------------------------------------------


def squared(m):
    return m.square().sum()


def test_lemma_S1_16_and_prop_S1_17_symmetry_is_between_minus_1_and_1_and_eq_S147_is_least_at_1_S148_at_minus_1():
    """|M|^2 = |M_s|^2 + |M_n|^2 (Eq. S120). -1 <= s <= 1, the ends for skew and symmetric M (Eq. S131, S132), of s =
    (|M_s|^2 - |M_n|^2) / |M|^2, Eq. (15) without its leading 2: tr(MM) reaches |M|^2, not half of it (S127, S129)."""
    m = torch.randn(9, 9)
    symmetric, skew = (m + m.T) / 2, (m - m.T) / 2
    assert exact(squared(m), squared(symmetric) + squared(skew))
    assert exact(symmetry(m), (squared(symmetric) - squared(skew)) / squared(m)) and -1 < symmetry(m) < 1
    assert exact(symmetry(symmetric), torch.tensor(1.0)) and exact((symmetric @ symmetric).trace(), squared(symmetric))
    assert exact(symmetry(skew), torch.tensor(-1.0)) and exact((skew @ skew).trace(), -squared(skew))
    for p in torch.linspace(0, 1, 11)[1:-1]:
        mixed = p.sqrt() * symmetric / symmetric.norm() + (1 - p).sqrt() * skew / skew.norm()
        assert exact(symmetry(mixed), 2 * p - 1)
        assert exact(squared(mixed) / squared((mixed + mixed.T) / 2), 1 / p)  # S147 falls as s rises
        assert exact(squared(mixed) / squared((mixed - mixed.T) / 2), 1 / (1 - p))  # S148 rises, from s = -1 on


# ---- S1.6: the directionality score ------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("score", [directionality, directionality_eq17])


@BOTH
def test_prop_S1_18_directionality_is_1_for_rows_minus_1_for_columns_and_0_for_neither(score):
    """-1 <= d <= 1, the ends if only rows or only columns stand out."""
    flat, heavy_row = torch.ones(16, 16), torch.ones(16, 16)
    heavy_row[3] = 10
    assert score(heavy_row) == 1 and score(heavy_row.T) == -1 and score(flat) == 0
    both = heavy_row + 2 * heavy_row.T
    assert -1 < score(both) < 0
    assert score(both, gamma=4) == 0  # of n numbers none is sqrt(n - 1) deviations above their mean


@pytest.mark.parametrize("C, k, f, printed", [(256, 1, 4, 0.39), (768, 1, 4, 0.61), (768, 8, 4, -0.07)])
def test_eq_17_has_the_wrong_sign_where_one_column_is_heavy(C, k, f, printed):
    """Columns dominate, so d < 0 (Section 3): not of Eq. (17) as printed. By the excess over the threshold it does."""
    torch.set_default_dtype(torch.float32)
    w_q, w_k = torch.randn(40, C, 64), torch.randn(40, C, 64)
    w_k[:, :k] *= f  # the first k columns of W_qk, f times
    m = wqk(w_q, w_k)
    assert directionality_eq17(m).mean().item() == pytest.approx(printed, abs=0.15)
    assert directionality(m).mean() < -0.4


@BOTH
def test_prop_S1_18_directionality_of_random_matrices_falls_to_0_slowly(score):
    """d -> 0 for n -> infinity; at n = 32 |d| is still 0.5 or more."""
    small, large = score(torch.randn(400, 32, 32)), score(torch.randn(200, 256, 256))
    assert_mean(small, 0)
    assert_mean(large, 0)
    assert small.std() > 0.5 and large.std() < 0.55 * small.std()
    if score is directionality:  # of 64 columns none is beyond chance
        assert (score(torch.randn(1000, 64, 32) @ torch.randn(1000, 32, 64)) == -1).double().mean() > 1 / 40
        assert chance.of_random(64, 2.0) == 1


# ---- S2.1: how training starts -----------------------------------------------------------------------------------


def base_size():
    """Of BERT: x (B, 1, T, C) behind a LayerNorm, w_q and w_k (H, C, D) of a random start."""
    x = F.layer_norm(torch.randn(4, 1, 64, 768), (768,))
    return x, 0.02 * torch.randn(12, 768, 64), 0.02 * torch.randn(12, 768, 64)


def first_attention(x, w_q, w_k):
    """How many of 64 tokens a query attends to, exp of the entropy; and its own share, in those of an even one."""
    alpha = (x @ w_q @ (x @ w_k).mT / w_q.shape[-1] ** 0.5).softmax(-1)  # (B, H, T, T)
    attended = torch.special.entr(alpha).sum(-1).exp().mean().item()
    return attended, 64 * alpha.diagonal(dim1=2, dim2=3).mean().item()


def test_S2_1_the_skew_start_as_printed_is_skew_as_a_whole_only_and_starts_sharp():
    """W_k = W_q S^T with S = A - A^T makes W_qk skew: of the layer, not of its heads, which are cut across S. If A ~
    N(0, 1), attention starts on 1 or 2 tokens. Our start, which is skew head by head (tests/test_init.py), is even."""
    x, w_q, w_k = base_size()
    H, C, D = w_q.shape
    A = torch.randn(C, C)
    side_by_side = w_q.transpose(0, 1).flatten(1)  # (C, C), W_q
    theirs = (side_by_side @ (A - A.T).T).unflatten(1, (H, D)).transpose(0, 1)  # (H, C, D)
    heads = wqk(w_q, theirs)
    assert symmetry(heads.sum(0)).item() == pytest.approx(-1)
    assert symmetry(heads).mean().item() == pytest.approx(-1 / H, rel=0.1)
    assert (theirs.norm() / w_q.norm()).item() == pytest.approx((2 * C) ** 0.5, rel=0.05)
    attended, _ = first_attention(x, w_q, theirs)
    assert 1 < attended < 2
    attended, itself = first_attention(x, *init.skew(w_q, w_k, torch.Generator().manual_seed(0)))
    assert attended > 55 and itself == pytest.approx(1, abs=0.1)


def test_S2_1_the_symmetric_start_lets_a_token_attend_to_itself():
    """Ten times as much as to the average one. That W_qk is positive semi-definite shows tests/test_init.py."""
    x, w_q, w_k = base_size()
    attended, itself = first_attention(x, *init.symmetric(w_q, w_k, None))
    assert attended < 55 and itself == pytest.approx(10, rel=0.2)
