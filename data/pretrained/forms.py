"""
How the tensors of a layer hold its heads: layouts.csv names these functions.

Each takes the tensors, and returns q (H, D, C) and k (Hkv, D, C), as views if possible. Its docstring says what the
tensors hold. It raises RuntimeError if they do not. nn.Linear stores (out, in), so a head is D rows of a weight.
sizes: architectures.Sizes.
"""

import torch

from .architectures import pick


def split(weight, n, sizes):
    """(n D, C) -> (n, D, C)."""
    return weight.unflatten(0, (n, sizes.head_dim or weight.shape[1] // sizes.n_head))


def separate(weights, sizes):
    """q (H D, C) and k (Hkv D, C). The shape of k tells how many key heads there are, if the config does not."""
    q, k = weights
    return split(q, sizes.n_head, sizes), split(k, sizes.n_kv_head or -1, sizes)


def gated(weights, sizes):
    """q and the gate of the output, head by head (2 H D, C), and k (Hkv D, C)."""
    q_and_gate, k = weights
    return split(q_and_gate, 2 * sizes.n_head, sizes)[::2], split(k, sizes.n_kv_head or -1, sizes)


def q_k_v(weights, sizes, n_beside=2):
    """[q; k; v] ((H + 2 Hkv) D, C): all queries, all keys, all values."""
    n_kv_head = sizes.n_kv_head or sizes.n_head
    heads = split(weights[0], sizes.n_head + n_beside * n_kv_head, sizes)
    return heads[: sizes.n_head], heads[sizes.n_head : sizes.n_head + n_kv_head]


def conv1d(weights, sizes):
    """[q, k, v] (C, 3 H D): GPT-2's Conv1D stores (in, out)."""
    return q_k_v([weights[0].mT], sizes)


def grouped(weights, sizes):
    """For each key head [q_1; ...; q_G; k; v] (Hkv (G + 2) D, C), G = H / Hkv. If G = 1, [q; k; v] head by head."""
    n_kv_head = sizes.n_kv_head or sizes.n_head
    group = sizes.n_head // n_kv_head
    heads = split(weights[0], n_kv_head * (group + 2), sizes).unflatten(0, (n_kv_head, -1))
    return heads[:, :group].flatten(0, 1), heads[:, group]


def multi_query(weights, sizes):
    """Falcon, GPTBigCode and ChatGLM, whose configs say whether keys have one head, a few, or all."""
    # Without new_decoder_architecture num_kv_heads means nothing: falcon-7b has 71 there, and 1 key head.
    if pick(sizes.config, bool, "new_decoder_architecture"):
        return grouped(weights, sizes)
    if pick(sizes.config, bool, "multi_query", "multi_query_attention", default=True):
        return q_k_v(weights, sizes._replace(n_kv_head=pick(sizes.config, int, "multi_query_group_num", default=1)))
    return grouped(weights, sizes._replace(n_kv_head=sizes.n_head))


def latent(weights, sizes):
    """Multi-head latent attention, as in DeepSeek-V2, in float32. A, R and Q_a are the same for all heads h."""
    # W_q,h = Q_b,h Q_a, or Q_h where the queries have no latent; its rows are [nope; rope]
    # W_k,h = [K_b,h A; R]
    *q_weights, kv_a, kv_b = [weight.float() for weight in weights]
    keys = "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"
    nope, rope, v, r_kv = [pick(sizes.config, int, key, default=0) for key in keys]
    q = q_weights[0]  # (H (nope + rope), C); or Q_a (r_q, C)
    if len(q_weights) == 2:
        q = q_weights[1] @ q_weights[0]  # Q_b (H (nope + rope), r_q)
    q = q.unflatten(0, (sizes.n_head, nope + rope))
    a, r = kv_a.split([r_kv, rope])  # (r_kv, C), (rope, C)
    k_b = kv_b.unflatten(0, (sizes.n_head, nope + v))[:, :nope]  # (H, nope, r_kv)
    k = torch.cat([k_b @ a, r.expand(sizes.n_head, -1, -1)], 1)  # (H, nope + rope, C)
    return q, k


def halves(weights, sizes):
    """[q; k] ((H + Hkv) D, C): all queries, all keys. The values lie elsewhere, as in LTG-BERT."""
    return q_k_v(weights, sizes, n_beside=1)
