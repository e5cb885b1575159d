"""
The paper, statement by statement: pytest tests/test_paper*.py -v. The table is in data/results/review.md.

A docstring gives the statement. Where the print is wrong, the test shows that it fails, and what holds instead. Shapes
are in tests/paper.py.
"""

import pytest
import torch
import torch.nn.functional as F

import init
from analyze import directionality, directionality_eq17, heads_of, symmetry, wqk
from model import MLP, ModelConfig
from tests.paper import batch_of, betas, exact, float64, fresh, gradient_of_wqk  # noqa: F401

# ---- S1.1, S1.2: what attention computes -------------------------------------------------------------------------


@pytest.mark.bert_block
@pytest.mark.parametrize("causal, bias_of, keeps", [(False, "k", True), (True, "k", True), (False, "q", False)])
def test_prop_2_1_the_softmax_keeps_the_order_of_the_scores(causal, bias_of, keeps):
    """alpha_ij < alpha_ij' <=> x_i^T W_qk x_j < x_i^T W_qk x_j', and alpha_i is convex (Eq. 2-5, S11-S16), in each
    head, among the keys that i sees. A bias of k adds the same to a whole row; one of q changes the order."""
    T, C, H = 8, 16, 2
    x = torch.randn(1, T, C)
    attn = fresh(T, C, H, causal).blocks[0].attn.requires_grad_(False)
    # In each head value j is the j-th unit vector, and nothing follows: so the layer's output is alpha, head by head.
    attn.v.weight.copy_((torch.linalg.pinv(x[0]) @ torch.eye(T).repeat(1, H)).T)
    attn.proj.weight.copy_(torch.eye(C))
    getattr(attn, bias_of).bias.normal_()
    alpha = attn(x)[0].unflatten(1, (H, T)).transpose(0, 1)  # (H, T, T)
    w_q, w_k = [heads_of(part.weight.T, H) for part in (attn.q, attn.k)]  # (H, C, D)
    scores = x @ wqk(w_q, w_k) @ x.mT  # (H, T, T), x_i^T W_qk x_j, Eq. (2)
    unseen = torch.full((T, T), causal).triu(1)
    alpha_order, order = [m.masked_fill(unseen, -1).argsort(stable=True) for m in (alpha, scores.exp())]
    assert torch.equal(alpha_order, order) == keeps
    assert ((alpha > 1e-12) == ~unseen).all() and exact(alpha.sum(2), torch.ones(H, T))


@pytest.mark.bert_block
def test_remark_S1_5_multi_head_attention_is_a_sum_over_heads_but_no_function_of_the_summed_wqk():
    """W_qk = sum_h W_qk,h with rank W_qk,h <= D, and the output is a sum over heads (Eq. S17-S21). Queries and keys
    that are rotated across heads keep W_qk, and the layer computes something else."""
    T, C, H, D = 6, 32, 4, 8
    attn = fresh(T, C, H).requires_grad_(False).blocks[0].attn
    x = 30 * torch.randn(1, T, C)
    w_q, w_k, w_v = [heads_of(part.weight.T, H) for part in (attn.q, attn.k, attn.v)]  # (H, C, D)
    w_o = attn.proj.weight.T.unflatten(0, (H, D))  # (H, D, C)
    heads, output = wqk(w_q, w_k), attn(x)  # (H, C, C), (1, T, C)
    whole = wqk(attn.q.weight.T, attn.k.weight.T)  # (C, C)
    assert exact(whole, heads.sum(0)) and (torch.linalg.matrix_rank(heads) == D).all()
    alpha = (x @ heads @ x.mT / D**0.5).softmax(-1)  # (H, T, T); model.py divides by sqrt(D), the paper by sqrt(d)
    assert exact(output[0], (alpha @ x @ w_v @ w_o).sum(0))

    rotation, _ = torch.linalg.qr(torch.randn(C, C))
    for part in attn.q, attn.k:
        part.weight.copy_(rotation @ part.weight)
    assert exact(wqk(attn.q.weight.T, attn.k.weight.T), whole)
    assert (attn(x) - output).norm() > 0.1 * output.norm()


# ---- S1.3: the gradient ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_prop_2_2_the_gradient_of_wqk_is_a_sum_of_rank_1_matrices(softmax):
    """dL/dW_qk = sum_i sum_{j in C_i} beta_ij x_i x_j^T (Eq. 8-10, S27-S38), beta_ij = delta_i . x_j; with the softmax
    beta_ij = alpha_ij (delta_i . x_j - sum_j' alpha_ij' delta_i . x_j'), and a row of beta sums to zero."""
    T, C, V = 7, 6, 5
    sees, predicted = torch.ones(T, T).tril().bool(), torch.arange(T) % 3 == 1  # j in C_i, and t_i in the loss: Eq. (7)
    x, w_v, w_u = torch.randn(T, C), torch.randn(C, C), torch.randn(C, V)
    t = torch.randint(V, (T,))
    mlp = MLP(ModelConfig(V, T, 1, 1, C))

    # One attention layer and one MLP with residuals, as in the paper; autograd gives the gradient and beta.
    w_qk = torch.randn(C, C, requires_grad=True)
    scores = x @ w_qk @ x.T  # (T, T)
    alpha = scores.masked_fill(~sees, -torch.inf).softmax(-1) if softmax else scores * sees  # (T, T)
    x_hat = x + alpha @ x @ w_v  # (T, C)
    z = (x_hat + mlp(x_hat)) @ w_u  # (T, V)
    loss = F.cross_entropy(z[predicted], t[predicted], reduction="sum")
    gradient, beta = torch.autograd.grad(loss, (w_qk, scores))  # (C, C), (T, T)

    # The same by hand. delta_i, Eq. (S31), is the error carried back to the value side; S31 has the sign of the step.
    error = (z.softmax(-1) - F.one_hot(t, V)) * predicted[:, None]  # (T, V), dL / dz_i
    mlp_slope = torch.stack([torch.autograd.functional.jacobian(mlp, x_i) for x_i in x_hat])  # (T, C, C), Eq. (S30)
    delta = torch.einsum("iv,cv,ice,ae->ia", error, w_u, torch.eye(C) + mlp_slope, w_v)  # (T, C)
    by_hand = delta @ x.T * sees  # (T, T), delta_i . x_j, without the sum over j printed in Eq. (S28)
    if softmax:
        by_hand = alpha * (by_hand - (alpha * by_hand).sum(-1, keepdim=True))
        assert exact(beta.sum(-1), torch.zeros(T))
    assert exact(by_hand, beta)
    assert exact(sum(by_hand[i, j] * x[i].outer(x[j]) for i, j in sees.nonzero()), gradient)


@pytest.mark.bert_block  # with W_q and W_k of their own
def test_remark_S1_6_a_step_of_wq_and_wk_moves_wqk_by_the_preconditioned_gradient():
    """A step eta of q and k moves W_qk by -eta (W_q W_q^T G + G W_k W_k^T) + O(eta^2), G = sum beta_ij x_i x_j^T (Eq.
    S39-S41), in every head of model.py, with the gradients of its own loss."""
    T, C, H = 32, 64, 4
    model, batch = fresh(T, C, H, n_layer=2), batch_of(4, T)
    gradients = gradient_of_wqk(*betas(model, *batch))  # (L, H, C, C), Eq. (S37)
    model(*batch).backward()
    for block, G in zip(model.blocks, gradients):
        attn = block.attn
        w_q, w_k = [heads_of(part.weight.T, H) for part in (attn.q, attn.k)]  # (H, C, D)
        grad_q, grad_k = [heads_of(part.weight.grad.T, H) for part in (attn.q, attn.k)]
        step = -(w_q @ w_q.mT @ G + G @ w_k @ w_k.mT)  # (H, C, C), Eq. (S40) over eta

        def error(eta):
            moved = wqk(w_q - eta * grad_q, w_k - eta * grad_k) - wqk(w_q, w_k)  # (H, C, C)
            return (moved - eta * step).norm(dim=(1, 2))  # (H,)

        assert torch.allclose(error(0.2) / error(0.1), torch.tensor(4.0), rtol=1e-5)  # eta^2: half the step, a quarter


# ---- S1.5: the symmetry score ------------------------------------------------------------------------------------


def squared(m):
    return m.square().sum()


def test_lemma_S1_16_and_prop_S1_17_symmetry_is_between_minus_1_and_1_and_eq_S147_is_least_at_1_S148_at_minus_1():
    """|M|^2 = |M_s|^2 + |M_n|^2 (Eq. S120). -1 <= s <= 1, the ends for skew and symmetric M (Eq. S131, S132), of s =
    (|M_s|^2 - |M_n|^2) / |M|^2, Eq. (15) without its leading 2: tr(MM) reaches |M|^2, not half of it (S127, S129)."""
    m = torch.randn(9, 9)
    symmetric, skew = (m + m.T) / 2, (m - m.T) / 2
    assert exact(squared(m), squared(symmetric) + squared(skew))
    assert exact(symmetry(m), (squared(symmetric) - squared(skew)) / squared(m))
    assert exact((symmetric @ symmetric).trace(), squared(symmetric)) and exact((skew @ skew).trace(), -squared(skew))
    for p in torch.linspace(0.1, 0.9, 9):
        mixed = p.sqrt() * symmetric / symmetric.norm() + (1 - p).sqrt() * skew / skew.norm()
        assert exact(symmetry(mixed), 2 * p - 1)
        assert exact(squared(mixed) / squared((mixed + mixed.T) / 2), 1 / p)  # S147 falls as s rises
        assert exact(squared(mixed) / squared((mixed - mixed.T) / 2), 1 / (1 - p))  # S148 rises, from s = -1 on


# ---- S1.6: the directionality score ------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [directionality, directionality_eq17])
def test_prop_S1_18_directionality_is_1_for_rows_minus_1_for_columns_and_0_for_neither(score):
    """-1 <= d <= 1, the ends if only rows or only columns stand out."""
    flat, heavy_row = torch.ones(16, 16), torch.ones(16, 16)
    heavy_row[3] = 10
    assert score(heavy_row) == 1 and score(heavy_row.T) == -1 and score(flat) == 0
    assert -1 < score(heavy_row + 2 * heavy_row.T) < 0


def test_eq_17_has_the_wrong_sign_where_one_column_is_heavy():
    """Columns dominate, so d < 0 (Section 3): not of Eq. (17) as printed. By the excess over the threshold it does."""
    w_q, w_k = torch.randn(2, 40, 256, 64)
    w_k[:, 0] *= 4  # the first column of W_qk
    m = wqk(w_q, w_k)
    assert directionality_eq17(m).mean() > 0.2 and directionality(m).mean() < -0.4


def test_prop_S1_18_directionality_belongs_to_a_basis_and_symmetry_does_not():
    """In another basis, x -> Q x, the same bilinear form has the matrix Q M Q^T: its columns stand out no more."""
    m = torch.randn(64, 64)
    m[:, 0] *= 8
    Q = torch.linalg.qr(torch.randn(200, 64, 64)).Q
    assert exact(symmetry(Q @ m @ Q.mT), symmetry(m).expand(200))
    assert directionality(m) < -0.4
    found = directionality(Q @ m @ Q.mT)  # (200,)
    assert found.mean().abs() < 5 * found.std() / 200**0.5  # five standard errors


def test_prop_S1_18_directionality_of_random_matrices_falls_to_0_slowly():
    """d -> 0 for n -> infinity; at n = 32 |d| is still 0.5 or more."""
    small, large = directionality(torch.randn(400, 32, 32)), directionality(torch.randn(200, 256, 256))
    assert small.std() > 0.5 and large.std() < 0.55 * small.std()


# ---- S2.1: how training starts -----------------------------------------------------------------------------------


def test_S2_1_the_skew_start_is_skew_as_a_whole_only_and_sharp_and_S2_1_the_symmetric_start_looks_at_itself():
    """W_k = W_q S^T with S = A - A^T makes W_qk skew: of the layer, not of its heads, which are cut across S. Attention
    starts on 1 or 2 tokens if A ~ N(0, 1). In the symmetric start a token looks at itself."""
    H, C, D = 12, 768, 64  # of BERT
    x = F.layer_norm(torch.randn(4, 1, 64, C), (C,))  # (B, 1, T, C)

    def attention(w_q, w_k):
        return (x @ w_q @ (x @ w_k).mT / D**0.5).softmax(-1)  # (B, H, T, T)

    w_q, A = 0.02 * torch.randn(H, C, D), torch.randn(C, C)
    side_by_side = w_q.transpose(0, 1).flatten(1)  # (C, C), W_q
    w_k = (side_by_side @ (A - A.T).T).unflatten(1, (H, D)).transpose(0, 1)  # (H, C, D)
    heads = wqk(w_q, w_k)
    assert symmetry(heads.sum(0)).item() == pytest.approx(-1)
    assert symmetry(heads).mean().item() == pytest.approx(-1 / H, rel=0.1)
    attended = torch.special.entr(attention(w_q, w_k)).sum(-1).exp()  # (B, H, T), exp of the entropy
    assert 1 < attended.mean() < 2
    itself = attention(*init.symmetric(w_q, w_k, None)).diagonal(dim1=2, dim2=3)  # (B, H, T)
    assert 64 * itself.mean().item() == pytest.approx(10, rel=0.2)
