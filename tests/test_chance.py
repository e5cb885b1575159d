"""What chance gives (data/chance.py), against matrices that are turned. pytest tests/test_chance.py"""

import pytest
import torch

import analyze
from data import chance
from data.grams import Product

N, DRAWS = 96, 400
torch.manual_seed(0)
i = torch.arange(1, N + 1, dtype=torch.float64)
SPECTRA = dict(one=1 * (i == 1), three=1 * (i < 4), falls=1 / i, half=1 * (i <= N / 2), grows=i, head=1 + 10 * (i == 1),
               rotation=i**0, nearly_1=1 + 1e-3 * i / N, nearly_one=1 + 1e-3 * (i == 1),
               random=torch.linalg.svdvals(torch.randn(N, N).double() @ torch.randn(N, N).double()))


@pytest.fixture(scope="module")
def rotations():
    """U and V (DRAWS, N, N), of the uniform measure on rotations: QR with a positive diagonal."""
    torch.manual_seed(0)
    q, r = torch.linalg.qr(torch.randn(2, DRAWS, N, N, dtype=torch.float64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


@pytest.mark.parametrize("name", SPECTRA)
def test_by_chance_symmetry_is_1_over_n_give_or_take_root_2_over_n_and_directionality_within_the_limit(rotations, name):
    """Of U diag(s) V^T. The limit depends on s, and the symmetry does not."""
    u, v = rotations
    s = SPECTRA[name].double()
    m = (u * s) @ v.mT
    deviations = chance.deviations(analyze.symmetry(m), N)
    assert abs(deviations.mean()) < 5 / DRAWS**0.5 and deviations.std().item() == pytest.approx(1, abs=0.15)
    low, high = chance.interval("symmetry", N, None)
    assert 0.92 < ((low < analyze.symmetry(m)) & (analyze.symmetry(m) < high)).double().mean() < 0.98
    limit = chance.directionality_limit(N, chance.moments(Product(torch.diag(s), torch.eye(N))), 2.0)
    inside = (analyze.directionality(m).abs() <= limit + 1e-9).double().mean()
    assert 0.91 < inside < 0.99 or limit in (0, 1)
    assert (limit == 0) == (name == "rotation") and (limit == 1) <= (name in ("half", "grows", "random", "nearly_1"))


@pytest.mark.parametrize("r", [8, N, 2 * N])
def test_the_moments_are_those_of_the_singular_values_also_of_tiny_weights_and_of_heads_that_all_but_cancel(r):
    w_q, w_k = torch.randn(2, N, r).double()
    squares = torch.linalg.svdvals(w_q @ w_k.T).square()
    deviations = squares / squares.mean() - 1
    large = 1e4 * torch.randn(N, r).double()
    cancelling = torch.cat([w_q + large, -large], 1), torch.cat([w_k, w_k], 1)  # all but: the same M
    for factors in (w_q, w_k), cancelling, (w_q * 1e-30, w_k):
        found = chance.moments(Product(*factors))
        mean, c2, c3 = found
        expected = [(deviations**p).sum().item() for p in (2, 3)]
        assert [c2 / mean**2, c3 / mean**3] == pytest.approx(expected, rel=1e-4)
    if r == N:
        assert chance.directionality_limit(N, found, 2.0) == pytest.approx(chance.limit_of_random(N, 2.0), abs=0.1)


@pytest.mark.parametrize("r, common", [(1, 0), (4, 0), (4, 1), (4, 3), (32, 0), (32, 3)])  # common: of both sides
def test_random_matrices_in_the_directions_of_another_have_about_its_mean_and_no_larger_deviation(r, common):
    w_q, w_k = common * torch.randn(32, r).double() + torch.randn(2, 32, r).double()
    u, s, vt = torch.linalg.svd(w_q @ w_k.T)
    drawn = analyze.symmetry((u * s) @ u.T @ torch.randn(4000, 32, 32).double() @ (vt.T * s) @ vt)
    mean = chance.mean_symmetry(Product(w_q, w_k)).item()
    assert drawn.mean().item() == pytest.approx(mean, rel=0.2)
    assert drawn.std() < 1.05 * 2**0.5 * mean
