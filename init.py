"""
How W_q and W_k of a layer start: the paper's starts (S2.1), and controls that show what makes them work.

    model = Transformer(cfg)
    init.apply_(model, "symmetric")

    for layer in bert.bert.encoder.layer:  # a new BertForMaskedLM of transformers
        attn = layer.attention.self
        init.apply_to_layer_(attn.query, attn.key, attn.value, attn.num_attention_heads, "symmetric")

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Heads are blocks of D rows of q.weight and k.weight.

The symmetric start changes two things at once: W_qk becomes symmetric, and a token attends to tokens that are like it.
The second follows from the trace of W_qk. The logit of a token x with itself is x W_qk x^T, and for random x its mean
is proportional to the trace. A symmetric matrix can have a positive, a negative or a zero trace. So there is a start
for each combination of symmetry and trace (A is a random matrix, and N a skew one):

    init         W_k of a head                 symmetry of a head   trace   a token attends to
    random       independent of W_q            about 0              0       all tokens alike
    symmetric    W_q                           +1                   +       what is like it
    tilted       W_q (I + N)^T                  0                   +       what is like it, as in symmetric
    indefinite   W_q (A + A^T)                 +1                   0       all tokens alike
    negative     -W_q                          +1                   -       what is unlike it
    skew         W_q (A - A^T)^T               -1                   0       all tokens alike

A start changes q and k, and v only if v_std is set. Everything else is as in the random start with the same seed.
q and k remain two parameters, so training can move them apart.
"""

import torch

from model import BERT_STD  # the standard deviation of the random start

# A start is a function. It takes the random W_q and W_k of a layer, w_q and w_k (H, C, D), and returns new ones.
# The W_qk of head h is w_q[h] @ w_k[h].T, (C, C). The random matrix A is drawn from `generator`. A start of your own is
# one more such function, with its name in STARTS below.


def normal_matrices(w_q, generator):
    """Returns A ~ N(0, 1) for every head, (H, D, D)."""
    H, _, D = w_q.shape
    return torch.randn(H, D, D, generator=generator).to(w_q)  # drawn on the CPU, so the same on every device


def head_norms(m):
    """Returns the norm of every head of m (H, ..., ...), as (H, 1, 1)."""
    return m.norm(dim=(1, 2), keepdim=True)


def random(w_q, w_k, generator):
    """BERT's start: the random matrices of model.py as they are."""
    return w_q, w_k


def symmetric(w_q, w_k, generator):
    """W_qk = W_q W_q^T is symmetric, and x W_qk x^T = |x W_q|^2 is never negative."""
    # After LayerNorm, the logit of a token with itself is about C std^2 sqrt(D). With another token it is random, with
    # the standard deviation C std^2.
    return w_q, w_q  # W_k = W_q, in every head


def tilted(w_q, w_k, generator):
    """
    W_qk = W_q (I + N) W_q^T = W_q W_q^T + W_q N W_q^T is the symmetric start plus a skew part of the same norm.

    Both parts have the same norm and are orthogonal, so the symmetry of a head is exactly 0. Yet x W_qk x^T is the same
    as in `symmetric` for every x. The norm of W_k is about sqrt(2 + D / C) times that of W_q. A layer of H heads has a
    symmetry of about (H - 1) / (3 H + 1), because the symmetric parts of its heads add up and the skew parts do not.
    """
    a = normal_matrices(w_q, generator)  # (H, D, D)
    n = a - a.mT  # (H, D, D), skew
    symmetric_part = w_q @ w_q.mT  # (H, C, C)
    skew_part = w_q @ n @ w_q.mT  # (H, C, C)
    # The symmetry is (|symmetric part|^2 - |skew part|^2) / |W_qk|^2, so it is 0 if both norms are equal.
    n = n * head_norms(symmetric_part) / head_norms(skew_part)
    return w_q, w_q + w_q @ n.mT  # W_k = W_q (I + N)^T


def indefinite(w_q, w_k, generator):
    """W_qk = W_q (A + A^T) W_q^T is symmetric, and has as many negative eigenvalues as positive ones."""
    a = normal_matrices(w_q, generator)  # (H, D, D)
    w_k = w_q @ (a + a.mT)  # (H, C, D)
    return w_q, w_k * head_norms(w_q) / head_norms(w_k)  # every head of W_k gets the norm of W_q


def negative(w_q, w_k, generator):
    """W_qk = -W_q W_q^T is symmetric, but a token avoids tokens that are like it."""
    return w_q, -w_q  # if symmetry alone helped, this would help too


def skew(w_q, w_k, generator):
    """
    W_qk = W_q (A - A^T) W_q^T, so W_qk^T = -W_qk.

    The paper (S2.1) has one A for all heads. With A ~ N(0, 1) single heads are then not skew, and W_k is tens of times
    larger than W_q. Here each head has an A of its own, and its W_k gets the norm of its W_q.
    """
    a = normal_matrices(w_q, generator)  # (H, D, D)
    w_k = w_q @ (a - a.mT).mT  # (H, C, D)
    return w_q, w_k * head_norms(w_q) / head_norms(w_k)  # every head of W_k gets the norm of W_q


STARTS = dict(random=random, symmetric=symmetric, tilted=tilted, indefinite=indefinite, negative=negative, skew=skew)


@torch.no_grad()
def apply_to_layer_(q, k, v, n_head, init="random", qk_std="init_std", v_std="init_std", generator=None,
                    init_std=BERT_STD):
    """
    Changes the three nn.Linear of a new attention layer to the start `init`, in place. v may be None.

    Their entries were drawn with the standard deviation init_std. Afterwards it is qk_std in q and k, and v_std in v:
    a number, "init_std", or "linear", 1 / sqrt(3 C), as in a new nn.Linear and in the published symmetric runs.
    The random matrices of a start come from `generator`, or without one from torch's own. Raises KeyError if there is
    no such start, and ValueError if k shares the weights of q, or has fewer rows (grouped keys).
    """
    # model.py's tied heads come here with q for k. In other models a k.weight that is no parameter may be made of q
    is_made_of_q = q is k or not isinstance(k.weight, torch.nn.Parameter)
    if init != "random" and (is_made_of_q or k.weight.shape != q.weight.shape):
        raise ValueError(f"k has no weights of its own, or fewer than q, so init = {init!r} is not possible")

    std_of = {"init_std": init_std, "linear": (3 * q.in_features) ** -0.5}
    qk_scale = std_of.get(qk_std, qk_std) / init_std

    # subtle: read q and k, compute, and copy both at the end. They can be one nn.Linear, which is then scaled once
    w_q = q.weight.unflatten(0, (n_head, -1)).mT * qk_scale  # (H, C, D)
    w_k = k.weight.unflatten(0, (n_head, -1)).mT * qk_scale  # (H, C, D)
    w_q, w_k = STARTS[init](w_q, w_k, generator)
    q.weight.copy_(w_q.mT.flatten(0, 1))  # (C, C)
    k.weight.copy_(w_k.mT.flatten(0, 1))
    if v is not None:
        v.weight *= std_of.get(v_std, v_std) / init_std


def apply_(model, init="random", qk_std="init_std", v_std="init_std", seed=0):
    """
    Changes every layer of a new Transformer to the start `init`, in place. In a fork, layers may share a whole attn, as
    in ALBERT.
    """
    generator = torch.Generator().manual_seed(seed)  # its own: torch's random state stays as it is
    more = dict(generator=generator, init_std=model.cfg.init_std)
    for attn in dict.fromkeys(block.attn for block in model.blocks):  # a shared one once
        apply_to_layer_(attn.q, attn.k or attn.q, attn.v, attn.n_head, init, qk_std, v_std, **more)
        if model.cfg.positions == "untied":  # their q and k start as those of tokens do, and they have no v
            apply_to_layer_(attn.pos_q, attn.pos_k, None, attn.n_head, init, qk_std, **more)
