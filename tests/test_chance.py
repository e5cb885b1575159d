"""What chance gives (analyze.py), against matrices that are drawn. pytest tests/test_chance.py"""

import pytest
import torch

import analyze
from data.pretrained.scoring import score_row

N, DRAWS = 96, 400
torch.manual_seed(0)
i = torch.arange(1, N + 1, dtype=torch.float64)
SPECTRA = dict(one=(i == 1), few=(i < 31) / i**0.5, falls=1 / i, grows=i, rotation=i**0, nearly_1=1 + 1e-3 * i / N)


@pytest.fixture(scope="module")
def rotations():
    """U and V (DRAWS, N, N), of the uniform measure on rotations: QR with a positive diagonal."""
    torch.manual_seed(0)
    q, r = torch.linalg.qr(torch.randn(2, DRAWS, N, N))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


@pytest.mark.parametrize("name", SPECTRA)
def test_95_of_100_matrices_that_are_turned_at_random_have_a_directionality_within_the_limit(rotations, name):
    """Of U diag(s) V^T. The limit depends on s. If few s are not 0, it comes from Gram matrices."""
    u, v = rotations
    s = SPECTRA[name].double()
    limit = score_row(torch.diag(s)[:, s > 0], torch.eye(N)[:, s > 0], 2.0)["directionality_95"]
    inside = (analyze.directionality((u * s.float()) @ v.mT).abs() <= limit + 1e-9).double().mean()
    assert 0.91 < inside < 0.99 or limit in (0, 1)
    assert (limit == 0) == (name == "rotation")


@pytest.mark.parametrize("r", [8, N])  # with Gram matrices, and without
def test_the_limit_does_not_depend_on_the_size_of_the_weights_and_stands_if_heads_all_but_cancel(r):
    w_q, w_k = torch.randn(2, N, r).double()
    limit = score_row(w_q, w_k, 2.0)["directionality_95"]
    large = 1e4 * torch.randn(N, r).double()
    cancelling = torch.cat([w_q + large, -large], 1), torch.cat([w_k, w_k], 1)  # all but: the same M
    for factors in cancelling, (w_q * 1e-30, w_k), (w_k, w_q):
        assert score_row(*factors, 2.0)["directionality_95"] == pytest.approx(limit, rel=0.12)


# common: of both sides. Of 200 dimensions none is drawn, unless few dominate.
@pytest.mark.parametrize("C, r, common", [(32, 1, 0), (32, 4, 1), (32, 32, 0), (32, 32, 3), (200, 200, 0),
                                          (200, 200, 1), (200, 50, 1), (200, 2, 1)])
def test_random_matrices_in_the_directions_of_another_have_its_mean_and_limit_and_no_larger_deviation(C, r, common):
    w_q, w_k = common * torch.randn(C, r).double() + torch.randn(2, C, r).double()
    u, s, vt = torch.linalg.svd(w_q @ w_k.T)
    before, after = (u * s) @ u.T, (vt.T * s) @ vt
    drawn = analyze.symmetry(before.float() @ torch.randn(128_000 // C, C, C) @ after.float())
    row = score_row(1e-20 * w_q, w_k, 2.0)
    mean, limit = row["symmetry_chance"], row["symmetry_95"]
    assert drawn.mean().item() == pytest.approx(mean, rel=0.2)
    assert drawn.std() < 1.05 * 2**0.5 * mean
    assert 0.92 < (drawn < limit).double().mean() < 0.98 or r == 1  # with one direction all have the same symmetry
    assert limit == pytest.approx(drawn.quantile(0.95).item(), rel=0.25)


def test_what_is_drawn_shares_no_number_with_a_model_that_was_drawn_with_seed_0():
    """If chance drew with manual_seed(0), the first layers here would be its own numbers, and have a range of 0.23."""
    torch.manual_seed(0)
    layers = [(torch.randn(256, 256).T, torch.randn(256, 256).T) for _ in range(8)]
    ranges = analyze.score_layers(layers).table["directionality_95"]
    assert ranges.min() > 0.45, list(ranges)  # 0.50 to 0.78 in models of other seeds
