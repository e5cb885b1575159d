"""
The paper, statement by statement, S1.4: what training does to the rows, the columns and the symmetry of W_qk. See
test_paper.py.
"""

import re
from itertools import product
from pathlib import Path
from statistics import NormalDist

import pytest
import torch
import torch.nn.functional as F

from analyze import directionality, symmetry
from config import load
from tests.lives import make_trainer
from tests.paper import assert_mean, batch_of, betas, exact, float64, fresh, train_and_measure  # noqa: F401


def test_prop_S1_8_and_cor_S1_9_a_token_as_context_adds_more_to_columns_than_to_rows_of_low_variance():
    """E|column k|^2 / E|row m|^2 = tr(Sigma) / (C Sigma_mm) (Eq. S53-S63); transposed of a prediction (S64-S67)."""
    # S goes through all draws of entries that are -1, 0 or 1, of variance 2/3: means over S are expectations, exactly.
    T, C, var_y = 2, 3, 8 / 3
    draws = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * ((T + 1) * C)).unflatten(1, (T + 1, C))
    root, beta = torch.randn(C, C) * torch.tensor([[0.5], [1.0], [2.0]]), torch.randn(T)
    x, sigma = draws[:, :T] @ root.T, 2 / 3 * root @ root.T  # (S, T, C), i.i.d. with covariance sigma (C, C)
    y = 2 * draws[:, T]  # (S, C), independent, with covariance 8/3 I
    update = torch.einsum("t,stc,sd->scd", beta, x, y)  # (S, C, C), Eq. (S47): sum_i beta_i x_i y^T
    assert exact(torch.einsum("t,sc,std->scd", beta, y, x), update.mT)  # Cor. S1.9: sum_j beta_j y x_j^T
    rows = update.square().sum(2).mean(0)  # (C,), E|row m|^2
    cols = update.square().sum(1).mean(0)  # (C,), E|column k|^2
    assert exact(rows, beta.square().sum() * sigma.diag() * C * var_y)  # Eq. (S61)
    assert exact(cols, beta.square().sum() * sigma.trace() * var_y * torch.ones(C))  # Eq. (S58)
    assert torch.equal(cols > rows, sigma.diag() < sigma.trace() / C) and 0 < (cols > rows).sum() < C
    # With the beta_i = delta_i . y of Prop. 2.2, every delta_i the first unit vector, column 1 has E y_1^4 = (2/3) 2^4.
    cols = torch.einsum("s,stc,sd->scd", y[:, 0], x, y).square().sum(1).mean(0)
    assert exact(cols[0] / cols[1], torch.tensor(1.5))  # and others have E y_1^2 E y_2^2 = (2/3)^2 2^4


def counts(joint, masked=False):
    """E mu_c, E mu_p of the token 1, over all sequences of N bits of probabilities joint (2, ..., 2), and all masks."""
    N, mu = joint.ndim, torch.zeros(2)
    everywhere = [torch.tensor(bits, dtype=joint.dtype) for bits in product([0, 1], repeat=N)]
    pairs = torch.ones(N, N).tril(-1)  # Pr[i is predicted from j]
    if masked:  # from every j that is not
        pairs = sum(torch.where(mask == 1, 0.15, 0.85).prod() * mask.outer(1 - mask) for mask in everywhere)
    for is_star, probability in zip(everywhere, joint.flatten()):
        mu += probability * torch.stack([(pairs @ is_star).sum(), (is_star @ pairs).sum()])
    return mu


def test_prop_S1_10_counts_of_context_and_prediction_with_a_causal_mask_and_of_masked_tokens():
    """E mu_c / E mu_p = sum_k (T - k) Pr[t_k = t*] / sum_k (k - 1) Pr[t_k = t*] (Eq. S68, S72-S76). With masks it is 1
    (Eq. S69, S77-S81), without the factor T in S79 and S80."""
    joint = torch.rand(2, 2, 2, 2)
    joint /= joint.sum()
    k, p = torch.arange(1, 5), torch.stack([joint.select(k, 1).sum() for k in range(4)])  # Pr[t_k = 1]
    mu_c, mu_p = counts(joint)
    assert exact(mu_c, ((4 - k) * p).sum()) and exact(mu_p, ((k - 1) * p).sum())
    assert not exact(mu_p, ((k - 1) * p)[:-1].sum())  # as S73 is printed
    # S96 takes the ratio to be above 1 for most tokens. All tokens together are at 1.
    other_c, other_p = counts(joint.flip(0, 1, 2, 3))  # of the token 0
    assert exact(mu_c + other_c, mu_p + other_p)
    assert exact(counts(joint, masked=True), 0.15 * 0.85 * 3 * p.sum() * torch.ones(2))


def test_eq_S99_S100_rows_and_columns_start_alike_but_not_with_the_moments_of_an_entry():
    """E|w| = mu, Var|w| = sigma^2 for entries of mean mu and variance sigma^2: does not hold. Rows and columns are
    alike, which is all that the proof uses."""
    S, n, mu, sigma = 4000, 16, 0.5, 0.7
    m = mu + sigma * torch.randn(S, n, n)
    rows, cols = m.norm(dim=2), m.norm(dim=1)  # (S, n)
    assert_mean(rows.square(), n * (mu**2 + sigma**2))
    assert_mean((rows.square() - n * (mu**2 + sigma**2)).square(), n * (2 * sigma**4 + 4 * mu**2 * sigma**2))
    assert rows.mean() > 6 * mu and rows.var() < 0.9 * sigma**2
    assert_mean(rows - cols, 0)


def test_lemma_S1_11_a_larger_variance_need_not_make_a_heavier_tail():
    """sigma_a > sigma_b => Pr[X_a > z] >= Pr[X_b > z] for z > sqrt(sigma_a sigma_b) - mu (Eq. S88): does not hold, as
    X_a = +-2 never passes 2."""
    mu, z, sigma_a, sigma_b, x_a = 0, 4, 2, 1, torch.tensor([-2.0, 2.0])
    assert z > (sigma_a * sigma_b) ** 0.5 - mu  # Eq. (S93)
    share = (x_a > z).double().mean()
    assert share < 1 - NormalDist(mu, sigma_b).cdf(z)
    # S91 has sigma_a^2 for the second moment, and so a bound of 4. With the second moment it does not hold either.
    assert share < (mu - z) ** 2 / (x_a - z).square().mean() < 1 < (mu - z) ** 2 / sigma_a**2


UNEQUAL = torch.tensor([5.0] * 3 + [1.0] * 61)  # deviations of the entries of x_i: not isotropic, as S1.12 asks


def attend(x, w_qk, causal):
    """alpha (..., T, T) of Eq. (1)."""
    scores = x @ w_qk @ x.mT / x.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool() & causal, -torch.inf).softmax(-1)


@pytest.mark.parametrize("causal", [True, False])
def test_thm_2_3_the_gradient_of_wqk_is_a_sum_of_x_times_error_times_covariance(causal):
    """dL/dW_qk = sum_i x_i delta_i^T Cov_i / sqrt(d), of any loss: delta_i is the gradient at the attention-weighted mean
    of what i sees, and Cov_i its attention-weighted covariance. So W_v and the loss decide what stands out."""
    T, C = 7, 5
    x, w_v, w_qk = torch.randn(T, C), torch.randn(C, C), torch.randn(C, C, requires_grad=True)
    alpha = attend(x, w_qk, causal)
    mean = alpha @ x  # (T, C)
    gradient, delta = torch.autograd.grad((x + mean @ w_v).pow(3).sum(), (w_qk, mean))  # (C, C), (T, C)
    centred = x - mean[:, None]  # (T, T, C), x_j less the mean of what i sees
    cov = torch.einsum("ij,ijc,ijd->icd", alpha, centred, centred)  # (T, C, C)
    assert exact(gradient, torch.einsum("ic,ie,ied->cd", x, delta, cov) / C**0.5)


def first_gradient(power, causal, late=256):
    """dL/dW_qk (S, C, C) of a layer that predicts T random tokens, when x_i are i.i.d. with the deviations UNEQUAL, and
    W_v gives those of UNEQUAL ** power to the errors delta_i. All of it is as Theorem S1.12 assumes, if causal. From
    `late` on all tokens are the same one."""
    S, T, C, V = 100, 256, 64, 258
    x, w_u = torch.randn(S, T, C) * UNEQUAL, 0.002 * torch.randn(C, V)
    x[:, late:] = x[:, -1:]
    w_qk = (0.01 * torch.randn(S, C, C)).requires_grad_()
    z = (x + attend(x, w_qk, causal) @ x @ (UNEQUAL**power).diag()) @ w_u  # (S, T, V)
    loss = F.cross_entropy(z.flatten(0, 1), torch.randint(V, (S * T,)), reduction="sum")
    return torch.autograd.grad(loss, w_qk)[0]


@pytest.mark.parametrize("power, words", [(0, "all equal"), (-1, "1/σ_k"), (-2, "1/σ_k²")])
def test_thm_2_3_S1_12_and_cor_S1_13_rows_or_columns_dominate_as_the_errors_are_uneven(power, words):
    """Pr[|column| > w] > Pr[|row| > w] for all large w if causal (Eq. 13, S94), and Var|row| = Var|column| if not (Eq.
    S103): neither follows. With equal errors columns dominate in both, and with errors of deviations 1/sigma^2 rows do,
    whether or not most tokens have more tokens after them than before (Eq. S96)."""
    torch.set_default_dtype(torch.float32)
    gradients = [first_gradient(power, causal) for causal in (True, False)]
    found = [directionality(gradient).mean().item() for gradient in gradients]
    norms = torch.stack([gradients[0].norm(dim=dim).flatten() for dim in (2, 1)])  # (2, S C), of rows and of columns
    beyond = (norms > norms.quantile(0.98)).sum(1).tolist()
    page = (Path(__file__).parent / "README.md").read_text()
    shown = re.search(rf"^\| {re.escape(words)} \| (\S+) \| (\S+) \| (\d+) and (\d+) \|$", page, re.MULTILINE).groups()
    assert found == pytest.approx([float(cell.strip("*")) for cell in shown[:2]], abs=0.03)
    assert beyond == pytest.approx(list(map(int, shown[2:])), abs=15)
    if power == -2:  # now with 193 tokens in a text, of which 127 have more tokens after them than before
        assert directionality(first_gradient(power, True, late=192)).mean() > 0.1


@pytest.mark.parametrize("b_ij, b_ji", [(1, 1), (1, 0), (1, -0.5)])
def test_thm_2_4_S1_14_a_pair_is_as_symmetric_as_its_betas(b_ij, b_ji):
    """beta_ij K + beta_ji K^T is about symmetric if beta_ij ~ beta_ji (Eq. 14, S108-S114): with t = 2 beta_ij beta_ji /
    (beta_ij^2 + beta_ji^2) and cos of x_i, x_j its symmetry is (t + cos^2) / (1 + t cos^2)."""
    x_i, x_j = torch.randn(8), torch.randn(8)
    K = x_i.outer(x_j)  # (8, 8)
    S_ij, N_ij = (K + K.T) / 2, (K - K.T) / 2
    pair = b_ij * K + b_ji * K.T
    assert exact(pair, (b_ij + b_ji) * S_ij + (b_ij - b_ji) * N_ij)  # Eq. (S113)
    t = 2 * b_ij * b_ji / (b_ij**2 + b_ji**2)
    cos = F.cosine_similarity(x_i, x_j, 0)
    assert exact(symmetry(pair), (t + cos**2) / (1 + t * cos**2))
    assert exact(pair, 2 * b_ij * S_ij) == (b_ij == b_ji)  # Eq. (S114), with its 2


@pytest.mark.bert_block  # with a softmax
def test_thm_2_4_S1_14_beta_ij_nears_beta_ji_in_the_mean_of_many_texts_and_in_few_single_ones(data_dir):
    """In the upper of two layers, at step 100 or 200, which depends on the text, and not at the start. Nor does it for
    two predicted tokens, the case of Remark S1.15. `python -m tests.paper` with less of all."""
    torch.set_default_dtype(torch.float32)
    tiny = load([str(Path(__file__).parents[1] / "config/tiny.py")])
    trainer = make_trainer(tiny, data_dir=data_dir, seed=101, block_size=16, batch_size=64, micro_batch_size=64,
                           learning_rate=6e-3)
    start, *later = [train_and_measure(trainer, step) for step in (0, 100, 200)]
    assert (start["beta"] < 0.1).all() and max(found["beta"][1] for found in later) > 0.2
    for found in start, *later:
        assert (found["text"].abs() < 0.05).all() and (found["above_02"] < 0.25).all()
        assert (found["pairs"].abs() < 0.15).all() and ((found["same_sign"] - 0.5).abs() < 0.15).all()


@pytest.mark.bert_block  # with a softmax
def test_remark_S1_15_only_predicted_tokens_are_queries_in_the_last_layer_and_others_too_in_a_lower_one():
    """beta_ij = 0 for i not in M (Eq. S115-S118)."""
    idx, targets, positions = batch_of(8, 32)
    beta, _ = betas(fresh(32, 64, 2, n_layer=2), idx, targets, positions)  # (2, B, H, T, T)
    lower, last = beta * torch.ones(8, 1, 32, 1).scatter(2, positions[:, None, :, None], 0.0)  # i not in M
    assert lower.norm() > 1e-3 * beta[0].norm() and (last == 0).all()


def test_remark_S1_15_and_eq_S119_the_share_of_symmetric_pairs_under_masking():
    """(i, j in M) / (i in M, j not) = pN (pN - 1) / pN (N - pN) ~ p / (1 - p) (Eq. S119)."""
    T, K = 1000, 150
    _, _, positions = batch_of(8, T)
    assert all(len(set(row)) == K for row in positions.tolist())
    assert K * (K - 1) / (K * (T - K)) == pytest.approx(0.15 / 0.85, rel=0.01)
