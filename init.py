"""
How W_q and W_k of every attention layer start: the paper's starts (S2.1), and the controls that tell them apart.

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Heads are blocks of D rows of q.weight and k.weight.

Any W_qk = S + N, with S symmetric and N skew. N adds nothing to x^T W_qk x, so how much a token likes what is equal to
it is decided by S alone, and, for random x, by the trace of S: the part of W_qk along the identity. That part and the
symmetry are two things, and each start below fixes both:

    init         W_k of a head h                    symmetry   along I   a token attends to
    random       independent of W_q                 about 0    0         all alike
    symmetric    W_q                                +1         +         what is like it
    tilted       W_q (I + K)^T, K skew               0         +         what is like it, as in symmetric
    mimetic      W_q W_k^T near a Z + b I           about 0.7  +         what is like it
    indefinite   W_q (A + A^T)                      +1         0         all alike
    negative     -W_q                               +1         -         what is unlike it
    skew         W_q (A - A^T)^T                    -1         0         all alike

Only q and k change (and v, in scale, when v_std is set): MLP, embeddings, biases and the directions of v are those of
the random start with the same seed. q and k stay two parameters, free to part in training.
"""

import torch

BERT_STD = 0.02  # what model.py draws every matrix with

# Every function below takes the random start of one layer, w_q and w_k (H, C, D), and returns another one.
# W_qk of head h is w_q[h] @ w_k[h].T, (C, C). Z, A and K are standard normal draws of `generator`.


def random(w_q, w_k, generator):
    return w_q, w_k


def symmetric(w_q, w_k, generator):
    """W_qk = W_q W_q^T: symmetric, and x^T W_qk x = |W_q^T x|^2 is never negative."""
    return w_q, w_q  # of a normalised x the logit with itself is C std^2 sqrt(D), with others C std^2 at random


def negative(w_q, w_k, generator):
    """W_qk = -W_q W_q^T: as symmetric as `symmetric`, and a token avoids what is like it."""
    return w_q, -w_q  # if symmetry is what helps, this one helps too


def indefinite(w_q, w_k, generator):
    """W_qk = W_q S W_q^T, S = A + A^T: symmetric, with as many negative eigenvalues as positive ones."""
    a = normal_squares(w_q, generator)  # (H, D, D)
    w_k = w_q @ (a + a.mT)  # (H, C, D); W_q W_k^T = W_q (A + A^T) W_q^T
    return w_q, with_norm_of(w_q, w_k)


def skew(w_q, w_k, generator):
    """
    W_qk = W_q N W_q^T, N = A - A^T, so that W_qk^T = -W_qk.

    As printed (S2.1), with one N for all heads and A ~ N(0, 1), single heads are not skew and W_k comes out tens of
    times larger than W_q. Here each head has its own N, and its W_k the norm of its W_q.
    """
    a = normal_squares(w_q, generator)  # (H, D, D)
    w_k = w_q @ (a - a.mT).mT  # (H, C, D); W_q W_k^T = W_q (A - A^T) W_q^T
    return w_q, with_norm_of(w_q, w_k)


def tilted(w_q, w_k, generator):
    """
    W_qk = W_q (I + K) W_q^T = W_q W_q^T + W_q K W_q^T: the symmetric start plus a skew part of the same norm.

    The two parts are orthogonal and of one norm, so the symmetry is exactly 0; yet x^T W_qk x is that of `symmetric`
    for every x. |W_k| is sqrt(2 + D / C) |W_q|, about. That is of heads: the symmetric parts of two heads overlap, and
    the skew ones do not, so the sum of H heads has symmetry (H - 1) / (3 H + 1), about.
    """
    a = normal_squares(w_q, generator)  # (H, D, D)
    k = a - a.mT
    positive_part = w_q @ w_q.mT  # (H, C, C), symmetric
    skew_part = w_q @ k @ w_q.mT  # (H, C, C), x^T of it x = 0 for every x
    # s = (|symmetric part|^2 - |skew part|^2) / |W_qk|^2, so equal norms make it 0
    k = k * positive_part.norm(dim=(1, 2), keepdim=True) / skew_part.norm(dim=(1, 2), keepdim=True)
    return w_q, w_q + w_q @ k.mT


def mimetic(w_q, w_k, generator):
    """
    W_qk = the best approximation of rank D to 0.7 Z + 0.7 I, Z ~ N(0, 1/C) (Trockman and Kolter 2023, Section 3).

    Both factors then get the norm that W_q of the random start has: theirs would be larger.
    """
    n_head, C, D = w_q.shape
    z = torch.randn(n_head, C, C, generator=generator).to(w_q) / C**0.5
    # The identity of a C x C matrix cannot be had from D < C columns; its nearest one of rank D keeps a share of it.
    u, s, vt = torch.linalg.svd(0.7 * z + 0.7 * torch.eye(C).to(w_q))  # (H, C, C), (H, C), (H, C, C)
    root = s[:, None, :D].sqrt()  # (H, 1, D): half of each singular value for W_q, half for W_k
    return with_norm_of(w_q, u[:, :, :D] * root), with_norm_of(w_q, vt.mT[:, :, :D] * root)


def normal_squares(w_q, generator):
    """A of every head, (H, D, D)."""
    n_head, _, D = w_q.shape
    return torch.randn(n_head, D, D, generator=generator).to(w_q)


def with_norm_of(w_q, w):
    """w (H, C, D), every head scaled to the norm of the same head of w_q: a start shall not change the scale."""
    return w * w_q.norm(dim=(1, 2), keepdim=True) / w.norm(dim=(1, 2), keepdim=True)


STARTS = dict(random=random, symmetric=symmetric, tilted=tilted, mimetic=mimetic, indefinite=indefinite,
              negative=negative, skew=skew)


@torch.no_grad()
def apply_(model, init="random", qk_std=BERT_STD, v_std=BERT_STD, seed=0):
    """
    Give every attention layer of a freshly built Transformer its start, in place.

    qk_std, v_std: standard deviation of the entries of q, k and of v; the same draws as at 0.02, scaled. The published
    symmetric runs had 1 / sqrt(3 C), PyTorch's default for nn.Linear, for all three. ValueError: no such start.
    """
    if init not in STARTS:
        raise ValueError(f"init={init!r} is none of {', '.join(STARTS)}")
    generator = torch.Generator().manual_seed(seed)  # its own, so that the other weights do not depend on init
    for block in model.blocks:
        attn = block.attn
        # 1. the scale
        attn.q.weight *= qk_std / BERT_STD
        attn.k.weight *= qk_std / BERT_STD
        attn.v.weight *= v_std / BERT_STD
        # 2. the geometry, head by head
        w_q = attn.q.weight.unflatten(0, (attn.n_head, -1)).mT  # (H, C, D)
        w_k = attn.k.weight.unflatten(0, (attn.n_head, -1)).mT  # (H, C, D)
        w_q, w_k = STARTS[init](w_q.clone(), w_k.clone(), generator)  # clones: they are views of what is written below
        attn.q.weight.copy_(w_q.mT.flatten(0, 1))  # (C, C)
        attn.k.weight.copy_(w_k.mT.flatten(0, 1))
