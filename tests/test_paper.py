"""
The paper, statement by statement, on real numbers: pytest tests/test_paper.py -v. The table is in tests/README.md.

A docstring gives the statement and whether it holds. Autograd, enumeration, Monte Carlo or a matrix made by hand stand
against the printed formula; where the print is wrong, the test shows that it fails, and what holds instead.

B sequences, T tokens (the paper's N), C = n_embd (its d), H heads, D = C // H, V tokens in the vocabulary, S samples.
x (T, C) has x_i as rows; in beta_ij x_i x_j^T, i is the query (predicted) and j the key (its context).
"""

import copy
import csv
import itertools
import math
import os
from pathlib import Path
from statistics import NormalDist, mean, pstdev, stdev

import pytest
import torch
import torch.nn.functional as F

import init
from analyze import directionality, directionality_eq17, scores, symmetry, wqk
from data.batches import mask_tokens
from model import MLP, ModelConfig, SelfAttention, Transformer

MASK = 257
LIBRARY = Path(os.__file__).parent
TEXT = b"".join((LIBRARY / name).read_bytes() for name in ["argparse.py", "ast.py", "difflib.py"])  # real text
TEXT = torch.tensor(list(TEXT))  # a token is a byte


@pytest.fixture(autouse=True)
def float64_and_a_seed():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def exact(a, b):
    return torch.allclose(a, b, atol=1e-10, rtol=1e-10)


def assert_mean(samples, expected):
    """The mean of samples (S, ...) is the expected one, within five standard errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - expected).abs() < 5 * error).all(), (samples.mean(0), expected, error)


def fresh(T, C, H, causal=False, n_layer=1):
    """A model as train.py makes it, of bytes and a mask token."""
    return Transformer(ModelConfig(258, T, n_layer, H, C, dropout=0.0, attn_dropout=0.0, causal=causal))


def batch_of(causal, B, T):
    """Real text, as train.py gives it to the model: idx (B, T), targets (B, T or K), positions None or (B, K)."""
    begin = torch.randint(len(TEXT) - T, (B, 1))
    idx = TEXT[begin + torch.arange(T + 1)]  # (B, T + 1)
    if causal:
        return idx[:, :-1], idx[:, 1:], None
    K = round(0.15 * T)
    return mask_tokens(idx[:, :-1], torch.rand(B, T + 2 * K), K, {"mask_token": MASK, "n_vocab": 256})


def head_factors(attn):
    """W_q and W_k of every head of a layer of model.py, (H, C, D) each."""
    w_q = attn.q.weight.T.unflatten(1, (attn.n_head, -1)).transpose(0, 1)
    w_k = attn.k.weight.T.unflatten(1, (attn.n_head, -1)).transpose(0, 1)
    return w_q, w_k


# ---- S1.1, S1.2: what attention computes -------------------------------------------------------------------------


def attention_and_scores(causal, bias_of=None):
    """alpha (T, T) as the layer of model.py computes it, and x_i^T W_qk x_j (T, T), Eq. (2)."""
    T, C = 8, 16
    x = torch.randn(1, T, C)
    attn = fresh(T, C, 1, causal).blocks[0].attn.requires_grad_(False)
    # Value j is the j-th unit vector, and nothing follows: row i of the layer's output is alpha_i itself.
    attn.v.weight.copy_((torch.linalg.pinv(x[0]) @ torch.eye(T, C)).T)
    attn.proj.weight.copy_(torch.eye(C))
    if bias_of == "q":
        attn.q.bias.normal_()
    if bias_of == "k":
        attn.k.bias.normal_()
    scores = (x @ wqk(attn.q.weight.T, attn.k.weight.T) @ x.mT)[0]
    return attn(x)[0, :, :T], scores


def same_order(alpha, scores, causal):
    """Whether every row of alpha sorts the keys that its query sees as its row of scores does."""
    T = len(alpha)
    seen = [i + 1 if causal else T for i in range(T)]
    return all(torch.equal(alpha[i, :n].argsort(), scores[i, :n].argsort()) for i, n in enumerate(seen))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias_of", [None, "k"])
def test_prop_2_1_the_softmax_keeps_the_order_of_the_scores(bias_of, causal):
    """alpha_ij < alpha_ij' <=> x_i^T W_qk x_j < x_i^T W_qk x_j', and alpha_i is convex (Eq. 2-5, S11-S16): holds in
    each head, among the keys that i sees. A bias of k adds the same to a whole row."""
    alpha, scores = attention_and_scores(causal, bias_of)
    assert same_order(alpha, scores, causal)
    assert (alpha > -1e-12).all() and exact(alpha.sum(1), torch.ones(len(alpha)))
    assert ((alpha > 1e-12) == torch.ones_like(alpha).tril().bool()).all() or not causal


@pytest.mark.parametrize("causal", [False, True])
def test_prop_2_1_needs_queries_without_a_bias(causal):
    alpha, scores = attention_and_scores(causal, bias_of="q")
    assert not same_order(alpha, scores, causal)


def test_eq_S8_the_product_of_all_conditionals_is_not_the_probability():
    """Pr[U] = prod_i Pr[t_i | t_j, j != i] (Eq. S8): does not hold; it does not even sum to 1. Eq. (S6) does hold."""
    joint = torch.tensor([[0.4, 0.1], [0.2, 0.3]])  # Pr[t_1, t_2]
    first, second = joint.sum(1, keepdim=True), joint.sum(0, keepdim=True)  # Pr[t_1] (2, 1), Pr[t_2] (1, 2)
    assert exact(first * (joint / first), joint)  # Eq. (S6): Pr[t_1] Pr[t_2 | t_1]
    S8 = (joint / second) * (joint / first)  # Pr[t_1 | t_2] Pr[t_2 | t_1]
    assert not exact(S8, joint) and abs(S8.sum() - 1) > 0.1


def test_remark_S1_5_multi_head_attention_is_a_sum_over_heads():
    """W_qk = sum_h W_qk,h with rank W_qk,h <= D, and the output is a sum over heads (Eq. S17-S21): holds."""
    T, C, H, D = 6, 32, 4, 8
    attn = fresh(T, C, H).requires_grad_(False).blocks[0].attn
    x = 30 * torch.randn(1, T, C)
    w_q, w_k = head_factors(attn)  # (H, C, D)
    w_v = attn.v.weight.T.unflatten(1, (H, D)).transpose(0, 1)  # (H, C, D)
    w_o = attn.proj.weight.T.unflatten(0, (H, D))  # (H, D, C)
    heads = wqk(w_q, w_k)  # (H, C, C)
    assert exact(wqk(attn.q.weight.T, attn.k.weight.T), heads.sum(0))
    assert (torch.linalg.matrix_rank(heads) == D).all()
    alpha = (x @ heads @ x.mT / D**0.5).softmax(-1)  # (H, T, T); model.py divides by sqrt(D), the paper by sqrt(d)
    assert exact(attn(x)[0], (alpha @ x @ w_v @ w_o).sum(0))


def test_remark_S1_5_the_output_is_no_function_of_the_summed_wqk():
    """Queries and keys rotated across heads keep W_qk, and the layer computes something else."""
    T, C, H = 6, 32, 4
    attn = fresh(T, C, H).requires_grad_(False).blocks[0].attn
    x = 30 * torch.randn(1, T, C)
    whole, output = wqk(attn.q.weight.T, attn.k.weight.T), attn(x)
    rotation, _ = torch.linalg.qr(torch.randn(C, C))
    attn.q.weight.copy_(rotation @ attn.q.weight)
    attn.k.weight.copy_(rotation @ attn.k.weight)
    assert exact(wqk(attn.q.weight.T, attn.k.weight.T), whole)
    assert (attn(x) - output).norm() > 0.1 * output.norm()


# ---- S1.3: the gradient ------------------------------------------------------------------------------------------


def who_sees_whom(objective, T):
    """sees (T, T): is j in C_i; predicted (T,): does t_i count in the loss, Eq. (7)."""
    if objective == "autoregressive":
        return torch.ones(T, T).tril().bool(), torch.arange(T) < T - 1
    if objective == "bidirectional":
        return ~torch.eye(T).bool(), torch.ones(T).bool()
    return torch.ones(T, T).bool(), torch.arange(T) % 3 == 1  # masked tokens: every third


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
@pytest.mark.parametrize("objective", ["autoregressive", "bidirectional", "masked"])
def test_prop_2_2_the_gradient_of_wqk_is_a_sum_of_rank_1_matrices(objective, softmax):
    """dL/dW_qk = sum_i sum_{j in C_i} beta_ij x_i x_j^T (Eq. 8-10, S27-S38). Holds, beta_ij = delta_i . x_j; with the
    softmax beta_ij = alpha_ij (delta_i . x_j - sum_j' alpha_ij' delta_i . x_j'), and a row of beta sums to zero."""
    T, C, V = 7, 6, 5
    x, w_v, w_u = torch.randn(T, C), torch.randn(C, C), torch.randn(C, V)
    t = torch.randint(V, (T,))
    mlp = MLP(ModelConfig(V, T, 1, 1, C))
    sees, predicted = who_sees_whom(objective, T)

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

    total = torch.zeros(C, C)
    for i in range(T):
        for j in range(T):
            if sees[i, j]:
                total = total + by_hand[i, j] * x[i].outer(x[j])
    assert exact(total, gradient)


class Watched(SelfAttention):
    """model.py's attention with its scores in sight: after backward(), x_i is self.x and beta_ij self.scores.grad."""

    def forward(self, x, positions=None):  # (B, T, C)
        q = self.q(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
        k = self.k(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        self.x = x.detach()
        self.scores = q @ k.mT  # (B, H, T, T)
        self.scores.retain_grad()
        logits = self.scores / q.shape[-1] ** 0.5
        if self.causal:
            later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()  # (T, T)
            logits = logits.masked_fill(later, -torch.inf)
        return self.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


def watch(model, batch):
    """The backward pass of the model's own loss -> the attention layers of a copy of it, watched."""
    expected = model(*batch)
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.attn.__class__ = Watched  # the same weights, another forward
    idx, targets, positions = batch
    x = model.hidden(idx)  # (B, T, C): every row, where the model itself leaves out those that nothing predicts
    if positions is not None:
        x = x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))  # (B, K, C)
    logits = F.linear(model.head(x), model.tok_emb.weight, model.head.bias)  # (B, T or K, V)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)  # and the same function
    loss.backward()
    return [block.attn for block in model.blocks]


def test_remark_S1_6_a_step_of_wq_and_wk_moves_wqk_by_the_preconditioned_gradient():
    """A step eta of q and k moves W_qk by -eta (W_q W_q^T G + G W_k W_k^T) + O(eta^2), G = sum beta_ij x_i x_j^T (Eq.
    S39-S41): holds in every head of model.py (printed: + eta, o(eta^2))."""
    T, C, H = 32, 64, 4
    model = fresh(T, C, H, causal=True, n_layer=2)
    for attn in watch(model, batch_of(True, 4, T)):
        G = torch.einsum("bhij,bic,bjd->hcd", attn.scores.grad, attn.x, attn.x)  # (H, C, C), Eq. (S37)
        w_q, w_k = head_factors(attn)  # (H, C, D)
        grad_q = attn.q.weight.grad.T.unflatten(1, (H, -1)).transpose(0, 1)  # (H, C, D)
        grad_k = attn.k.weight.grad.T.unflatten(1, (H, -1)).transpose(0, 1)
        step = -(w_q @ w_q.mT @ G + G @ w_k @ w_k.mT)  # (H, C, C), Eq. (S40) over eta

        def error(eta):
            moved = wqk(w_q - eta * grad_q, w_k - eta * grad_k) - wqk(w_q, w_k)  # (H, C, C)
            return (moved - eta * step).norm(dim=(1, 2))  # (H,)

        assert torch.allclose(error(0.2) / error(0.1), torch.tensor(4.0), rtol=1e-5)  # eta^2: half the step, a quarter


def test_remark_S1_6_the_step_of_wqk_is_not_proportional_to_its_gradient():
    """"Delta W_qk proportional to G" (Eq. S40): does not hold. From a random start a symmetric G moves a head by a
    matrix of symmetry 2 D / (2 D + C)."""
    S, C, D = 100, 64, 16
    w_q, w_k, a = torch.randn(S, C, D), torch.randn(S, C, D), torch.randn(S, C, C)
    G = a + a.mT
    step = w_q @ w_q.mT @ G + G @ w_k @ w_k.mT  # (S, C, C)
    assert symmetry(step).mean() == pytest.approx(2 * D / (2 * D + C), abs=0.02)


def gradients_through(query=None, key=None):
    """
    x (T, C), beta (T, T), and the part of dL/dW_qk (C, C) that passes through the scores of one query or of one key.
    """
    T, C, V = 6, 4, 5
    x, w_v, w_u = torch.randn(T, C), torch.randn(C, C), torch.randn(C, V)
    t = torch.randint(V, (T,))
    w_qk = torch.randn(C, C, requires_grad=True)
    scores = x @ w_qk @ x.T  # (T, T)
    passes = torch.zeros(T, T).bool()
    if query is not None:
        passes[query, :] = True
    if key is not None:
        passes[:, key] = True
    scores = torch.where(passes, scores, scores.detach())
    scores.retain_grad()
    z = (x + scores.softmax(-1) @ x @ w_v) @ w_u  # (T, V)
    F.cross_entropy(z, t, reduction="sum").backward()
    return x, scores.grad, w_qk.grad


def test_prop_S1_7_columns_and_rows_for_a_token_as_context():
    """Column k is [x*]_k sum_i beta_i* x_i, row m is (sum_i beta_i* [x_i]_m) x* (Eq. 11, 12, S42, S43): holds."""
    star = 2
    x, beta, update = gradients_through(key=star)
    predicted = sum(beta[i, star] * x[i] for i in range(len(x)))  # (C,), all that t* helps to predict
    for n in range(len(update)):
        assert exact(update[:, n], x[star, n] * predicted)
        assert exact(update[n, :], predicted[n] * x[star])


def test_prop_S1_7_columns_and_rows_for_a_token_as_prediction():
    """Row m is [x*]_m sum_j beta_*j x_j (S45): holds. Column k, and not row k as S44 and S51 say, is (sum_j beta_*j
    [x_j]_k) x*; and S50 is printed transposed."""
    star = 2
    x, beta, update = gradients_through(query=star)
    context = sum(beta[star, j] * x[j] for j in range(len(x)))  # (C,), all that t* is predicted from
    for n in range(len(update)):
        assert exact(update[n, :], x[star, n] * context)
        S44 = context[n] * x[star]  # (C,)
        assert exact(update[:, n], S44) and not exact(update[n, :], S44)
    S50 = context.outer(x[star])  # (C, C)
    assert exact(update.T, S50) and not exact(update, S50)


# ---- S1.4.1, S1.4.2: rows and columns, expected ------------------------------------------------------------------


def every_draw(T, C):
    """
    Embeddings of which every entry is -1, 0 or 1, independently and with the same probability: all 3^(T C) of them,
    (S, T, C). Means over S are expectations, exactly; an entry has mean 0 and variance 2/3.
    """
    return torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=T * C))).unflatten(1, (T, C))


def tokens_and_y(T=2, C=3):
    """x (S, T, C), i.i.d. with covariance sigma (C, C); y (S, C), independent, with covariance 8/3 I; and sigma."""
    draws = every_draw(T + 1, C)
    root = torch.randn(C, C) * torch.tensor([[0.5], [1.0], [2.0]])
    return draws[:, :T] @ root.T, 2 * draws[:, T], 2 / 3 * root @ root.T


def test_prop_S1_8_a_token_as_context_adds_more_to_columns_than_to_rows_of_low_variance():
    """E|column k|^2 / E|row m|^2 = tr(Sigma) / (C Sigma_mm), > 1 for Sigma_mm below average (Eq. S53-S63). Holds for
    constant beta; the ratio depends on m alone, and rows above average beat every column."""
    x, y, sigma = tokens_and_y()
    C, beta, var_y = len(sigma), torch.randn(x.shape[1]), 8 / 3
    update = torch.einsum("t,stc,sd->scd", beta, x, y)  # (S, C, C), Eq. (S47): sum_i beta_i x_i y^T
    rows = update.square().sum(2).mean(0)  # (C,), E|row m|^2
    cols = update.square().sum(1).mean(0)  # (C,), E|column k|^2
    assert exact(rows, beta.square().sum() * sigma.diag() * C * var_y)  # Eq. (S61)
    assert exact(cols, beta.square().sum() * sigma.trace() * var_y * torch.ones(C))  # Eq. (S58)
    below_average = sigma.diag() < sigma.trace() / C  # (C,)
    assert 0 < below_average.sum() < C
    ratio = cols[:, None] / rows  # (C, C): k, m
    assert (ratio[:, below_average] > 1).all() and (ratio[:, ~below_average] < 1).all()


def test_cor_S1_9_a_token_as_prediction_adds_less_to_columns_of_low_variance_than_to_rows():
    """E|column k|^2 / E|row m|^2 = C Sigma_kk / tr(Sigma), < 1 for Sigma_kk below average (Eq. S64-S67): the mirror
    image, holds for constant beta. S65-S67 drop beta."""
    x, y, sigma = tokens_and_y()
    C, beta, var_y = len(sigma), torch.randn(x.shape[1]), 8 / 3
    update = torch.einsum("t,sc,std->scd", beta, y, x)  # (S, C, C): sum_j beta_j y x_j^T
    rows = update.square().sum(2).mean(0)  # (C,)
    cols = update.square().sum(1).mean(0)  # (C,)
    assert exact(rows, beta.square().sum() * sigma.trace() * var_y * torch.ones(C))
    assert exact(cols, beta.square().sum() * sigma.diag() * C * var_y)
    assert exact(cols[:, None] / rows, (C * sigma.diag() / sigma.trace())[:, None].expand(C, C))  # Eq. (S67)


def test_prop_S1_8_with_the_beta_of_prop_2_2_depends_on_the_column_too():
    """beta_i = delta_i . y, which Prop. 2.2 gives, is not constant: with every delta_i the first unit vector, column 1
    gets E y_1^4 = (2/3) 2^4 where others get E y_1^2 E y_2^2 = (2/3)^2 2^4."""
    x, y, _ = tokens_and_y()
    update = torch.einsum("s,stc,sd->scd", y[:, 0], x, y)  # (S, C, C)
    cols = update.square().sum(1).mean(0)  # (C,)
    assert exact(cols[0] / cols[1], torch.tensor(1.5)) and exact(cols[1], cols[2])


# ---- S1.4.3: how often a token is context, and how often predicted -----------------------------------------------


def causal_pairs(T):
    """(probability, pairs (i, j) of a predicted i and its context j), once: there is nothing to draw."""
    return [(1.0, [(i, j) for i in range(T) for j in range(i)])]


def masked_pairs(T, rho):
    """The same for every mask: a masked i is predicted from every j that is not masked."""
    cases = []
    for mask in itertools.product([False, True], repeat=T):
        probability = rho ** sum(mask) * (1 - rho) ** (T - sum(mask))
        cases.append((probability, [(i, j) for i in range(T) for j in range(T) if mask[i] and not mask[j]]))
    return cases


def expected_counts(joint, cases, token=1):
    """E mu_c and E mu_p of a token, by going through all sequences of T bits, of probability joint (2, ..., 2)."""
    mu_c = mu_p = 0.0
    for bits in itertools.product([0, 1], repeat=joint.dim()):
        for probability, pairs in cases:
            weight = joint[bits].item() * probability
            mu_c += weight * sum(bits[j] == token for i, j in pairs)
            mu_p += weight * sum(bits[i] == token for i, j in pairs)
    return mu_c, mu_p


def any_source(T):
    """The joint probability (2, ..., 2) of T bits, any; and Pr[t_k = 1], (T,)."""
    joint = torch.rand((2,) * T)
    joint /= joint.sum()
    return joint, torch.stack([joint.select(k, 1).sum() for k in range(T)])


@pytest.mark.parametrize("T", [2, 3, 4, 5, 6])
def test_prop_S1_10_counts_of_context_and_prediction_with_a_causal_mask(T):
    """E mu_c / E mu_p = sum_k (T - k) Pr[t_k = t*] / sum_k (k - 1) Pr[t_k = t*] (Eq. S68, S72-S76): holds, with the
    sum of S73 up to T and not T - 1."""
    joint, p = any_source(T)
    k = torch.arange(1, T + 1)
    mu_c, mu_p = expected_counts(joint, causal_pairs(T))
    assert mu_c == pytest.approx(((T - k) * p).sum().item())
    assert mu_p == pytest.approx(((k - 1) * p).sum().item())
    S73 = ((k - 1) * p)[:-1].sum().item()
    assert mu_p != pytest.approx(S73)
    # S96 takes the ratio to be above 1 for most tokens: that is about the corpus. All tokens together are at 1.
    other_c, other_p = expected_counts(joint, causal_pairs(T), token=0)
    assert mu_c + other_c == pytest.approx(mu_p + other_p)


@pytest.mark.parametrize("T", [2, 3, 4, 5, 6])
def test_prop_S1_10_correlation_alone_leaves_the_ratio_at_1(T):
    """A stationary source, however correlated, has the counts that S83 and S84 derive from independence."""
    joint = torch.tensor([0.4, 0.6])
    stay_or_leave = torch.tensor([[0.85, 0.15], [0.1, 0.9]])  # keeps 0.4 and 0.6
    for _ in range(T - 1):
        joint = joint.unsqueeze(-1) * stay_or_leave  # (2, ..., 2), a bit that mostly stays what it was
    assert expected_counts(joint, causal_pairs(T)) == pytest.approx((0.6 * T * (T - 1) / 2,) * 2)


@pytest.mark.parametrize("T", [2, 3, 4, 5, 6])
def test_prop_S1_10_counts_of_context_and_prediction_of_masked_tokens(T):
    """The ratio is 1 (Eq. S69, S77-S81): holds, without the factor T in S79 and S80."""
    joint, p = any_source(T)
    count = 0.15 * 0.85 * (T - 1) * p.sum().item()
    assert expected_counts(joint, masked_pairs(T, 0.15)) == pytest.approx((count, count))


# ---- S1.4.4: directionality --------------------------------------------------------------------------------------


def test_eq_S99_S100_rows_and_columns_start_alike_but_not_with_the_moments_of_an_entry():
    """E|w| = mu, Var|w| = sigma^2 for entries of mean mu and variance sigma^2 (Eq. S99, S100): does not hold. The
    squared norm has mean n (mu^2 + sigma^2) and, for normal entries, variance n (2 sigma^4 + 4 mu^2 sigma^2). That
    rows and columns are alike, which is all that the proof uses, holds."""
    S, n, mu, sigma = 4000, 16, 0.5, 0.7
    m = mu + sigma * torch.randn(S, n, n)
    rows, cols = m.norm(dim=2), m.norm(dim=1)  # (S, n)
    assert_mean(rows.square(), n * (mu**2 + sigma**2))
    assert_mean((rows.square() - n * (mu**2 + sigma**2)).square(), n * (2 * sigma**4 + 4 * mu**2 * sigma**2))
    assert rows.mean() > 6 * mu and rows.var() < 0.9 * sigma**2
    assert_mean(rows - cols, 0)
    assert_mean(rows.var(1) - cols.var(1), 0)


def test_lemma_S1_11_a_larger_variance_does_not_make_a_heavier_tail():
    """Equal means, sigma_a > sigma_b => Pr[X_a > z] >= Pr[X_b > z] for z > sqrt(sigma_a sigma_b) - mu (Eq. S88): does
    not hold. X_a = +-2 (sigma_a = 2) never passes 2; a standard normal X_b does."""
    for z in [2.5, 4, 6]:
        assert z > (2 * 1) ** 0.5 - 0  # Eq. (S93)
        tail_a = sum(x > z for x in [-2, 2]) / 2
        assert tail_a < 1 - NormalDist(0, 1).cdf(z)


def test_lemma_S1_11_the_second_moment_of_S91_is_not_the_variance():
    """S91 has sigma_a^2 where the second-moment method has E(X_a - z)^2 = sigma_a^2 + (mu - z)^2. For X_a = +-2 and z
    = 4 it bounds a probability from below by 4."""
    z, mu, sigma_a = 4, 0, 2
    assert ((mu - z) / sigma_a) ** 2 == 4
    second_moment = sum((x - z) ** 2 for x in [-2, 2]) / 2
    assert second_moment == sigma_a**2 + (mu - z) ** 2 and (mu - z) ** 2 / second_moment < 1


def test_lemma_S1_11_holds_within_one_family_above_the_mean():
    """Two normals of one mean, for z >= mu. Not from sqrt(sigma_a sigma_b) - mu on: S93 needs + mu."""
    a, b = NormalDist(3, 1), NormalDist(3, 0.5)
    for z in range(30, 100):
        assert 1 - a.cdf(z / 10) >= 1 - b.cdf(z / 10)
    z = 0
    assert z > (1 * 0.5) ** 0.5 - 3 and 1 - a.cdf(z) < 1 - b.cdf(z)


S, T, C = 400, 32, 64  # samples, tokens, dimensions of the tests below
UNEQUAL = torch.where(torch.arange(C) < 3, 5.0, 1.0)  # deviations of the entries of x_i: not isotropic, as S1.12 asks


def updates(x, beta, causal):
    """Eq. (S37), sum_ij beta_ij x_i x_j^T, of x (S, T, C) and beta (S, T, T) -> (S, C, C); causal: over j <= i."""
    if causal:
        beta = beta.tril()
    return x.mT @ beta @ x


def test_thm_2_3_S1_12_a_causal_mask_alone_favours_neither_rows_nor_columns():
    """Pr[|column| > w] > Pr[|row| > w] for all large w (Eq. 13, S94): does not follow. With i.i.d. embeddings of
    unequal variances and i.i.d. beta, both stand out alike; and their squared norms add up to the same in any matrix,
    so that there is no "net increase" of columns over rows."""
    update = updates(torch.randn(S, T, C) * UNEQUAL, torch.randn(S, T, T), causal=True)
    rows, cols = update.norm(dim=2), update.norm(dim=1)  # (S, C)
    assert exact(rows.square().sum(1), cols.square().sum(1))
    assert_mean(directionality(update), 0)
    assert_mean(rows.var(1) - cols.var(1), 0)


def test_thm_2_3_S1_12_the_tokens_of_prop_S1_8_make_rows_stand_out():
    """Queries of unequal variances and isotropic contexts, as in Prop. S1.8, for T tokens t*: rows. The other way
    round: columns. With S102 the variance of columns is then the larger one: S101 has the two exchanged."""
    unequal, isotropic = torch.randn(S, T, C) * UNEQUAL, torch.randn(S, T, C)
    assert (directionality(unequal.mT @ isotropic) > 0).all()
    columns = isotropic.mT @ unequal  # (S, C, C)
    assert (directionality(columns) < 0).all()
    assert (columns.norm(dim=1).var(1) > columns.norm(dim=2).var(1)).all()  # Var|column| > Var|row|, not S101


def test_thm_2_3_S1_12_columns_stand_out_where_early_tokens_are_the_uneven_ones():
    """What a causal mask does do: early tokens are contexts more often than predicted. If it is these that have a few
    heavy dimensions, columns stand out. Without the mask nothing does."""
    early = (torch.arange(T) < T // 4)[:, None]  # (T, 1)
    x = torch.randn(S, T, C) * torch.where(early, UNEQUAL, 1.0)
    beta = torch.randn(S, T, T)
    assert directionality(updates(x, beta, causal=True)).mean() < -0.4
    assert_mean(directionality(updates(x, beta, causal=False)), 0)


@pytest.mark.parametrize("causal", [False, True])
def test_thm_2_3_and_cor_S1_13_with_the_beta_of_prop_2_2_columns_stand_out_with_and_without_a_mask(causal):
    """Var|row| = Var|column| under bidirectional training (Eq. S103): does not hold, and the mask is not what makes
    columns stand out. The embeddings are i.i.d. and of unequal variances, as S1.12 and S1.13 assume, and beta_ij =
    delta_i . x_j, as Prop. 2.2 gives it: x_j x_j^T puts the variances on the key side twice, on the query side once."""
    x = torch.randn(S, T, C) * UNEQUAL
    delta = torch.randn(S, T, C)
    beta = delta @ x.mT  # (S, T, T)
    update = updates(x, beta, causal)
    assert (update.norm(dim=1).var(1) > update.norm(dim=2).var(1)).all()
    assert directionality(update).mean() < -0.15


# ---- S1.4.5: symmetry --------------------------------------------------------------------------------------------


def test_cor_S1_13_holds_for_symmetric_betas():
    """Rows and columns have the same norms, one by one, if beta_ij = beta_ji."""
    x, beta = torch.randn(S, T, C) * UNEQUAL, torch.randn(S, T, T)
    update = updates(x, beta + beta.mT, causal=False)
    assert exact(update.norm(dim=2), update.norm(dim=1))


@pytest.mark.parametrize("b_ij, b_ji", [(1, 1), (1, 0.7), (1, 0), (1, -0.5), (1, -1)])
def test_thm_2_4_S1_14_a_pair_is_as_symmetric_as_its_betas(b_ij, b_ji):
    """beta_ij K + beta_ji K^T is about symmetric if beta_ij ~ beta_ji (Eq. 14, S108-S114; S114 lacks a 2). Holds: with
    t = 2 beta_ij beta_ji / (beta_ij^2 + beta_ji^2) and cos of x_i, x_j its symmetry is (t + cos^2) / (1 + t cos^2)."""
    x_i, x_j = torch.randn(8), torch.randn(8)
    K = x_i.outer(x_j)  # (8, 8)
    S_ij, N_ij = (K + K.T) / 2, (K - K.T) / 2
    pair = b_ij * K + b_ji * K.T
    assert exact(pair, (b_ij + b_ji) * S_ij + (b_ij - b_ji) * N_ij)  # Eq. (S113)
    t = 2 * b_ij * b_ji / (b_ij**2 + b_ji**2)
    cos = F.cosine_similarity(x_i, x_j, 0)
    assert exact(symmetry(pair), (t + cos**2) / (1 + t * cos**2))
    assert exact(pair, 2 * b_ij * S_ij) == (b_ij == b_ji)  # Eq. (S114), with its 2


def trained(causal, steps):
    """Three layers, after so many steps of Adam on real text."""
    model = fresh(32, 64, 2, causal, n_layer=3)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(*batch_of(causal, 16, 32)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("steps", [0, 50])
def test_thm_2_4_S1_14_beta_ij_is_not_near_beta_ji_in_our_encoder(steps):
    """What the theorem assumes, sign(beta_ij) = sign(beta_ji) and about one size, is not met: where it is, the symmetry
    of beta is near 1. In every layer, at the start and after 50 steps, it is below 0.1 over all i != j, and below 0.5
    over the few pairs of which both are predicted."""
    torch.set_default_dtype(torch.float32)
    T = 32
    idx, targets, positions = batch_of(False, 64, T)
    in_M = torch.zeros(64, T).scatter(1, positions, 1.0)  # (B, T): is i predicted
    for attn in watch(trained(False, steps), (idx, targets, positions)):
        beta = attn.scores.grad * (1 - torch.eye(T))  # (B, H, T, T)
        both_in_M = beta * in_M[:, None, :, None] * in_M[:, None, None, :]
        assert abs(symmetry_of_all(beta)) < 0.1
        assert abs(symmetry_of_all(both_in_M)) < 0.5


def symmetry_of_all(beta):
    """tr(beta beta) / |beta|^2 with both sums over all sequences and heads."""
    return ((beta * beta.mT).sum() / beta.square().sum()).item()


def test_prop_2_2_beta_of_our_decoder_is_zero_for_later_keys():
    torch.set_default_dtype(torch.float32)
    for attn in watch(trained(True, 0), batch_of(True, 32, 32)):
        beta = attn.scores.grad  # (B, H, T, T)
        assert (beta.triu(1) == 0).all() and beta.tril().abs().sum() > 0


@pytest.mark.parametrize("steps", [0, 50])
def test_remark_S1_15_only_masked_queries_count_in_the_last_layer_and_no_lower_one(steps):
    """beta_ij = 0 for i not in M (Eq. S115-S118): holds in the last layer; below it other queries carry beta too."""
    torch.set_default_dtype(torch.float32)
    idx, targets, positions = batch_of(False, 32, 32)
    not_in_M = 1 - torch.zeros(32, 32).scatter(1, positions, 1.0)  # (B, T)
    *lower, last = watch(trained(False, steps), (idx, targets, positions))
    for attn in lower:
        beta = attn.scores.grad
        assert (beta * not_in_M[:, None, :, None]).norm() > 1e-3 * beta.norm()
    assert (last.scores.grad * not_in_M[:, None, :, None] == 0).all()


def test_remark_S1_15_and_eq_S119_the_share_of_symmetric_pairs_under_masking():
    """(i, j in M) / (i in M, j not) = pN (pN - 1) / pN (N - pN) ~ p / (1 - p) (Eq. S119): holds. "About 25 %" is
    loose: 0.18 at p = 0.15, 0.43 at 0.3, 0.29 on average between. Two thirds of these pairs are two mask tokens."""
    B, T = 8, 1000
    idx, _, positions = batch_of(False, B, T)
    M = torch.zeros(B, T).scatter(1, positions, 1).bool()  # (B, T)
    others = ~torch.eye(T).bool()  # (T, T): i != j

    def count(i_in, j_in):
        return (i_in[:, :, None] & j_in[:, None, :] & others).sum().item()

    assert count(M, M) / count(M, ~M) == pytest.approx(150 * 149 / (150 * 850))
    assert count(M, M) / count(M, ~M) == pytest.approx(0.15 / 0.85, rel=0.01)
    assert count(idx == MASK, idx == MASK) / count(M, M) == pytest.approx(0.8**2, abs=0.05)
    between = torch.linspace(0.15, 0.3, 1001)
    assert (between / (1 - between)).mean().item() == pytest.approx(0.29, abs=0.005)


# ---- S1.5: the symmetry score ------------------------------------------------------------------------------------


def squared(m):
    return m.square().sum()


def test_lemma_S1_16_the_squared_norm_is_that_of_both_parts():
    """|M|^2 = |M_s|^2 + |M_n|^2 (Eq. S120): holds."""
    m = torch.randn(9, 9)
    assert exact(squared(m), squared((m + m.T) / 2) + squared((m - m.T) / 2))


def test_prop_S1_17_symmetry_is_between_minus_1_and_1_and_what_the_parts_make_it():
    """-1 <= s <= 1, the ends for skew and symmetric M (Eq. S131, S132): holds for s = (|M_s|^2 - |M_n|^2) / |M|^2, Eq.
    (15) without its leading 2. S127 and S129 have a 1/2 too many: tr(MM) reaches |M|^2."""
    m = torch.randn(9, 9)
    symmetric, skew = m + m.T, m - m.T
    assert exact(symmetry(m), (squared(symmetric / 2) - squared(skew / 2)) / squared(m)) and -1 < symmetry(m) < 1
    assert exact(symmetry(symmetric), torch.tensor(1.0)) and exact((symmetric @ symmetric).trace(), squared(symmetric))
    assert exact(symmetry(skew), torch.tensor(-1.0)) and exact((skew @ skew).trace(), -squared(skew))


def test_eq_S147_and_S148_are_least_at_a_symmetry_of_1_and_of_minus_1():
    """|M|^2 / |M_s|^2 is least at s = 1 (S147): holds. |M|^2 / |M_n|^2 at s = 0 (S148): does not; it is at s = -1."""
    m = torch.randn(9, 9)
    symmetric, skew = (m + m.T) / 2, (m - m.T) / 2
    parts = torch.linspace(0, 1, 11)[1:-1]
    mixed = [p.sqrt() * symmetric / symmetric.norm() + (1 - p).sqrt() * skew / skew.norm() for p in parts]
    s = torch.stack([symmetry(x) for x in mixed])  # rises from -0.8 to 0.8
    S147 = torch.stack([squared(x) / squared((x + x.T) / 2) for x in mixed])
    S148 = torch.stack([squared(x) / squared((x - x.T) / 2) for x in mixed])
    assert exact(s, 2 * parts - 1)
    assert (S147.diff() < 0).all() and (S148.diff() > 0).all()


@pytest.mark.parametrize("r", [None, 1, 4, 16])
def test_prop_S1_17_symmetry_of_a_random_matrix(r):
    """s -> 8 / n (Eq. S137): does not hold. The mean is 1 / n (S133 lacks 1/4, Eq. 15 has a 2 too many), the standard
    deviation sqrt(2) / n; and the same for W_q W_k^T of random factors with any number r of columns."""
    S, n = 4000, 32
    if r is None:
        m = torch.randn(S, n, n)
    else:
        m = wqk(torch.randn(S, n, r), torch.randn(S, n, r))
    assert_mean(symmetry(m), 1 / n)
    assert symmetry(m).std() == pytest.approx(2**0.5 / n, rel=0.15)


# ---- S1.6: the directionality score ------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("score", [directionality, directionality_eq17])


@BOTH
def test_prop_S1_18_directionality_is_1_for_rows_minus_1_for_columns_and_0_for_neither(score):
    """-1 <= d <= 1, the ends if only rows or only columns stand out: holds for both forms."""
    flat, heavy_row = torch.ones(16, 16), torch.ones(16, 16)
    heavy_row[3] = 10
    assert score(heavy_row) == 1 and score(heavy_row.T) == -1 and score(flat) == 0
    both = heavy_row + 2 * heavy_row.T
    assert -1 < score(both) < 0
    assert score(both, gamma=4) == 0  # of n numbers none is sqrt(n - 1) deviations above their mean


def test_prop_S1_18_the_two_forms_of_directionality_worked_out_with_single_numbers():
    """
    W_qk = u v^T has row norms |v| |u_i| and column norms |u| |v_j|. One row far out, two columns a little: by what
    stands out the columns win (Eq. 17-19), by how far it does the row (what the published tables hold).
    """
    u, v = [1.0] * 15 + [4.0], [1.0] * 14 + [2.5, 2.5]
    rows, cols = [math.hypot(*v) * x for x in u], [math.hypot(*u) * x for x in v]
    printed, excess = {}, {}
    for side, norms in [("rows", rows), ("cols", cols)]:
        threshold = mean(norms) + 2 * pstdev(norms)  # divided by n
        printed[side] = sum(x for x in norms if x > threshold)
        threshold = mean(norms) + 2 * stdev(norms)  # divided by n - 1
        excess[side] = sum(x - threshold for x in norms if x > threshold)
    m = torch.tensor(u).outer(torch.tensor(v))
    eq17 = (printed["rows"] - printed["cols"]) / (printed["rows"] + printed["cols"])
    published = (excess["rows"] - excess["cols"]) / (excess["rows"] + excess["cols"])
    assert directionality_eq17(m).item() == pytest.approx(eq17) and eq17 < -0.1
    assert directionality(m).item() == pytest.approx(published) and published > 0.3


@pytest.mark.parametrize("C, k, f, printed", [(256, 1, 4, 0.39), (768, 1, 4, 0.61), (768, 8, 4, -0.07)])
def test_eq_17_has_the_wrong_sign_where_one_column_is_heavy(C, k, f, printed):
    """
    Columns dominate, so d < 0 (Section 3): does not hold of Eq. (17) as printed. By the excess it does: how far a norm
    stands out counts, and what chance brings over a threshold is little.
    """
    torch.set_default_dtype(torch.float32)
    w_q, w_k = torch.randn(40, C, 64), torch.randn(40, C, 64)
    w_k[:, :k] *= f  # the first k columns of W_qk, f times
    m = wqk(w_q, w_k)
    assert directionality_eq17(m).mean().item() == pytest.approx(printed, abs=0.15)
    assert directionality(m).mean() < -0.4


def test_eq_17_counts_one_heavy_column_and_all_the_rows_that_chance_lets_pass():
    """Why: the heavy column lifts the threshold of the columns beyond nearly all others. Rows pass as before."""
    def outliers(norms):  # (S, C) -> how many
        return (norms > norms.mean(1, keepdim=True) + 2 * norms.std(1, keepdim=True)).sum(1).double().mean()

    w_q, w_k = torch.randn(40, 768, 64), torch.randn(40, 768, 64)
    before = wqk(w_q, w_k)
    w_k[:, 0] *= 4
    after = wqk(w_q, w_k)
    assert outliers(before.norm(dim=1)) > 15 and outliers(before.norm(dim=2)) > 15
    assert outliers(after.norm(dim=1)) < 4 and outliers(after.norm(dim=2)) > 15


@BOTH
def test_prop_S1_18_directionality_of_random_matrices_falls_to_0_slowly(score):
    """d -> 0 for n -> infinity: holds, but as slowly as outliers gather: at n = 32 |d| is still 0.5 or more."""
    small, large = score(torch.randn(400, 32, 32)), score(torch.randn(200, 256, 256))
    assert_mean(small, 0)
    assert_mean(large, 0)
    assert small.std() > 0.5 and large.std() < 0.55 * small.std()


# ---- S2.1: how training starts -----------------------------------------------------------------------------------


def base_size():
    """Of BERT: x (B, 1, T, C) behind a LayerNorm, w_q and w_k (H, C, D) of a random start."""
    x = F.layer_norm(torch.randn(8, 1, 64, 768), (768,))
    return x, *head_factors(fresh(64, 768, 12).blocks[0].attn.requires_grad_(False))


def first_attention(x, w_q, w_k):
    """How many of 64 tokens a query attends to, exp of the entropy; and its own share, in those of an even one."""
    alpha = (x @ w_q @ (x @ w_k).mT / w_q.shape[-1] ** 0.5).softmax(-1)  # (B, H, T, T)
    attended = torch.special.entr(alpha).sum(-1).exp().mean().item()
    return attended, 64 * alpha.diagonal(dim1=2, dim2=3).mean().item()


def test_S2_1_the_skew_start_as_printed_is_skew_as_a_whole_only_and_starts_sharp():
    """W_k = W_q S^T with S = A - A^T makes W_qk skew: holds for the layer, not for its heads, which are cut across S.
    If A ~ N(0, 1), which the paper does not say, W_k is sqrt(2 C) times W_q and attention starts on 1 or 2 tokens."""
    x, w_q, _ = base_size()
    H, C, D = w_q.shape
    A = torch.randn(C, C)
    side_by_side = w_q.transpose(0, 1).flatten(1)  # (C, C), W_q
    w_k = (side_by_side @ (A - A.T).T).unflatten(1, (H, D)).transpose(0, 1)  # (H, C, D)
    heads = wqk(w_q, w_k)
    assert symmetry(heads.sum(0)).item() == pytest.approx(-1)
    assert symmetry(heads).mean().item() == pytest.approx(-1 / H, rel=0.1)
    assert (w_k.norm() / w_q.norm()).item() == pytest.approx((2 * C) ** 0.5, rel=0.05)
    attended, _ = first_attention(x, w_q, w_k)
    assert 1 < attended < 2


def test_S2_1_our_skew_start_is_skew_head_by_head_and_starts_even():
    x, w_q, w_k = base_size()
    w_q, w_k = init.skew(w_q, w_k, torch.Generator().manual_seed(0))
    heads = wqk(w_q, w_k)
    assert exact(symmetry(heads), torch.tensor(-1.0)) and exact(symmetry(heads.sum(0)), torch.tensor(-1.0))
    assert exact(w_k.norm(), w_q.norm())
    attended, itself = first_attention(x, w_q, w_k)
    assert attended > 55 and itself == pytest.approx(1, abs=0.1)


def test_S2_1_the_symmetric_start_is_positive_so_that_a_token_attends_to_itself():
    """W_k = W_q makes W_qk symmetric: holds; and positive semi-definite, with which a token starts by attending to
    itself ten times as much as to the average one. That is a second thing that this start changes."""
    x, w_q, w_k = base_size()
    w_q, w_k = init.symmetric(w_q, w_k, None)
    heads = wqk(w_q, w_k)
    assert exact(symmetry(heads), torch.tensor(1.0))
    assert torch.linalg.eigvalsh(heads[0]).min() > -1e-10
    attended, itself = first_attention(x, w_q, w_k)
    assert attended < 55 and itself == pytest.approx(10, rel=0.2)


# ---- the table and the null --------------------------------------------------------------------------------------


def test_every_statement_in_the_table_has_tests_and_every_test_a_statement():
    lines = (Path(__file__).parent / "README.md").read_text().split("## The paper, line by line")[1].splitlines()
    selectors = [line.split("|")[2].strip() for line in lines if line.startswith("|")][2:]  # without its two heads
    selectors = [selector for selector in selectors if selector != "–"]
    tests = [name for name in globals() if name.startswith("test_")]
    statements = [name for name in tests if name not in ABOUT_FILES]
    for selector in selectors:
        assert any(selector in name for name in statements), f"{selector} selects no test"
    for name in statements:
        assert any(selector in name for selector in selectors), f"{name} belongs to no row"


def committed_null(n, r):
    with open(Path(__file__).parents[1] / "data" / "results" / "null.csv", newline="") as f:
        return next(row for row in csv.DictReader(f) if int(row["n"]) == n and int(row["r"]) == r)


@pytest.mark.parametrize("n, r", [(128, 32), (128, 128), (256, 64)])
def test_the_committed_null_holds_95_of_100_scores_of_random_weights(n, r):
    row = committed_null(n, r)
    found = scores(torch.randn(400, n, r), torch.randn(400, n, r))
    for name in ["symmetry", "directionality", "directionality_eq17"]:
        values = getattr(found, name)
        inside = (values >= float(row[f"{name}_q025"])) & (values <= float(row[f"{name}_q975"]))
        assert 0.91 < inside.double().mean() < 0.985
        assert_mean(values, float(row[f"{name}_mean"]))


def test_of_64_columns_no_directionality_is_beyond_chance():
    """d = -1, the least there is, comes up in more than 1 of 40 random matrices."""
    d = directionality(wqk(torch.randn(1000, 64, 32), torch.randn(1000, 64, 32)))
    assert (d == -1).double().mean() > 1 / 40
    assert float(committed_null(64, 32)["directionality_q025"]) == -1


ABOUT_FILES = ["test_every_statement_in_the_table_has_tests_and_every_test_a_statement",
               "test_the_committed_null_holds_95_of_100_scores_of_random_weights",
               "test_of_64_columns_no_directionality_is_beyond_chance"]
