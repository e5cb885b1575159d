"""
How W_q and W_k of every attention layer start (the paper's S2.1).

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. Heads are blocks of D rows of q.weight and k.weight.

    random     q and k independent, N(0, qk_std): the start of BERT                             symmetry about 0
    symmetric  W_k = W_q: W_qk,h = W_q,h W_q,h^T                                                 symmetry +1 in every head
    skew       W_k,h = W_q,h S_h^T, S_h = A - A^T, rescaled to the norm of W_q,h                 symmetry -1 in every head

Only the weights of q and k change (and of v, in scale, when v_std is set): MLP, embeddings, biases and the directions
of v are those of the random start with the same seed. q and k stay two parameters, free to part in training.
"""

import torch

BERT_STD = 0.02  # what model.py draws every matrix with


@torch.no_grad()
def symmetric_(q, k):
    """Set W_k = W_q, in place. q, k: nn.Linear of the same shape."""
    k.weight.copy_(q.weight)


@torch.no_grad()
def skew_(q, k, n_head, generator):
    """
    Set W_k,h = W_q,h S_h^T with S_h skew-symmetric, head by head, in place: W_qk,h = W_q,h S_h W_q,h^T is skew.

    As printed (S2.1), with A ~ N(0, 1), W_k comes out tens of times larger than W_q; here each head's W_k has the
    norm of its W_q, so that the start changes the symmetry and not the scale.
    """
    w_q = q.weight.unflatten(0, (n_head, -1))  # (H, D, C), W_q,h^T
    a = torch.randn(n_head, w_q.shape[1], w_q.shape[1], generator=generator).to(w_q)  # (H, D, D)
    w_k = (a - a.mT) @ w_q  # (H, D, C), (W_q,h S_h^T)^T = S_h W_q,h^T
    w_k *= w_q.norm(dim=(1, 2), keepdim=True) / w_k.norm(dim=(1, 2), keepdim=True)
    k.weight.copy_(w_k.flatten(0, 1))


@torch.no_grad()
def apply_(model, init="random", qk_std=BERT_STD, v_std=BERT_STD, seed=0):
    """
    Give every attention layer of a freshly built Transformer its start, in place.

    init: "random", "symmetric" or "skew". qk_std, v_std: standard deviation of the entries of q, k and of v; the same
    draws as at 0.02, scaled. The published symmetric runs had 1 / sqrt(3 C), PyTorch's default for nn.Linear.
    """
    generator = torch.Generator().manual_seed(seed)  # its own, so that the other weights do not depend on init
    for block in model.blocks:
        attn = block.attn
        for linear, std in (attn.q, qk_std), (attn.k, qk_std), (attn.v, v_std):
            linear.weight *= std / BERT_STD
        if init == "symmetric":
            symmetric_(attn.q, attn.k)
        elif init == "skew":
            skew_(attn.q, attn.k, attn.n_head, generator)
        elif init != "random":
            raise ValueError(f'init={init!r} is none of "random", "symmetric", "skew"')
