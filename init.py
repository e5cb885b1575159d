"""
How W_q and W_k of every attention layer start (the paper's S2.1, and two controls).

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Heads are blocks of D rows of q.weight and k.weight.

    random       W_q, W_k independent, N(0, qk_std), as in BERT      symmetry of every head about 0
    symmetric    W_k = W_q                                           +1, positive: a token attends to what is like it
    negative     W_k = -W_q                                          +1, negative: to what is unlike it
    indefinite   W_k,h = W_q,h (A + A^T)                             +1, neither
    skew         W_k,h = W_q,h (A - A^T)^T                           -1

Only the weights of q and k change (and of v, in scale, when v_std is set): MLP, embeddings, biases and the directions
of v are those of the random start with the same seed. q and k stay two parameters, free to part in training.
"""

import torch

BERT_STD = 0.02  # what model.py draws every matrix with


@torch.no_grad()
def mixed_(q, k, n_head, sign, generator):
    """
    W_k,h = W_q,h S_h^T with S = A + sign A^T for every head, in place: W_qk,h = W_q,h S_h W_q,h^T is symmetric or skew.

    As printed (S2.1), with one S for all heads and A ~ N(0, 1), single heads are not skew and W_k comes out tens of
    times larger than W_q. Here each head's W_k has the norm of its W_q: the start changes symmetry and not scale.
    """
    w_q = q.weight.unflatten(0, (n_head, -1))  # (H, D, C), W_q,h^T
    a = torch.randn(n_head, w_q.shape[1], w_q.shape[1], generator=generator).to(w_q)  # (H, D, D)
    w_k = (a + sign * a.mT) @ w_q  # (H, D, C), (W_q,h S_h^T)^T = S_h W_q,h^T
    w_k *= w_q.norm(dim=(1, 2), keepdim=True) / w_k.norm(dim=(1, 2), keepdim=True)
    k.weight.copy_(w_k.flatten(0, 1))


@torch.no_grad()
def apply_(model, init="random", qk_std=BERT_STD, v_std=BERT_STD, seed=0):
    """
    Give every attention layer of a freshly built Transformer its start, in place.

    qk_std, v_std: standard deviation of the entries of q, k and of v; the same draws as at 0.02, scaled. The published
    symmetric runs had 1 / sqrt(3 C), PyTorch's default for nn.Linear, for all three.
    """
    generator = torch.Generator().manual_seed(seed)  # its own, so that the other weights do not depend on init
    for attn in (block.attn for block in model.blocks):
        for linear, std in (attn.q, qk_std), (attn.k, qk_std), (attn.v, v_std):
            linear.weight *= std / BERT_STD
        if init in ("symmetric", "negative"):
            attn.k.weight.copy_(attn.q.weight if init == "symmetric" else -attn.q.weight)
        elif init in ("indefinite", "skew"):
            mixed_(attn.q, attn.k, attn.n_head, 1 if init == "indefinite" else -1, generator)
        elif init != "random":
            raise ValueError(f"init={init!r} is none of random, symmetric, negative, indefinite, skew")
