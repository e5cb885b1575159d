"""
How the tensors of a self-attention layer hold its heads: a function for each way. And at the end, from the heads to two
matrices whose product is W_qk of the layer.

Each way takes the tensors of a layer and returns q (H, D, C) and k (Hkv, D, C), as views if possible. A RuntimeError
means that the tensors do not have this form. nn.Linear stores (out, in), so a head is D rows of a weight.
"""

from typing import NamedTuple

import torch

from data.pretrained.files import CheckpointError, pick, require


class Sizes(NamedTuple):
    n_head: int  # H
    n_kv_head: int | None  # Hkv; None: take it from the shape of k, or H in a fused tensor
    head_dim: int | None  # D; None: C / H


def separate(weights, sizes, config):
    """q (H D, C) and k (Hkv D, C)."""
    q, k = weights
    head_dim = sizes.head_dim or q.shape[1] // sizes.n_head
    n_kv_head = sizes.n_kv_head or -1  # -1: as many as there are
    return q.unflatten(0, (sizes.n_head, head_dim)), k.unflatten(0, (n_kv_head, head_dim))


def gated(weights, sizes, config):
    """q and the gate of the output, head by head (2 H D, C), and k (Hkv D, C)."""
    q_and_gate, k = weights
    q = q_and_gate.unflatten(0, (sizes.n_head, 2, -1))[:, 0].flatten(0, 1)
    return separate([q, k], sizes, config)


def blocks(weights, sizes, config):
    """[q; k; v] ((H + 2 Hkv) D, C): all queries, all keys, all values."""
    [qkv] = weights
    n_head = sizes.n_head
    n_kv_head = sizes.n_kv_head or n_head
    head_dim = sizes.head_dim or qkv.shape[1] // n_head
    heads = qkv.unflatten(0, (n_head + 2 * n_kv_head, head_dim))
    return heads[:n_head], heads[n_head : n_head + n_kv_head]


def widening(weights, sizes, config):
    """[q; k; v] (3 H D, C): in the first layer of a stage of Hiera, H D is more than C."""
    [qkv] = weights
    q, k, v = qkv.unflatten(0, (3, sizes.n_head, -1))
    return q, k


def query_key_value(weights, sizes, config):
    """q (H D, C) and [k; v] (2 H D, C)."""
    q, kv = weights
    k, v = kv.chunk(2)
    return separate([q, k], sizes, config)


def query_key(weights, sizes, config):
    """[q; k] (2 H D, C)."""
    [qk] = weights
    return separate(qk.chunk(2), sizes, config)


def conv1d(weights, sizes, config):
    """[q, k, v] (C, 3 H D): GPT-2's Conv1D stores (in, out)."""
    return blocks([weights[0].mT], sizes, config)


def grouped(weights, sizes, config):
    """[q_1; ...; q_G; k; v] of each key head (Hkv (G + 2) D, C), G = H / Hkv: [q; k; v] head by head where G = 1."""
    [qkv] = weights
    n_kv_head = sizes.n_kv_head or sizes.n_head
    group = sizes.n_head // n_kv_head
    head_dim = sizes.head_dim or qkv.shape[1] // sizes.n_head
    heads = qkv.unflatten(0, (n_kv_head, group + 2, head_dim))
    return heads[:, :group].flatten(0, 1), heads[:, group]


def multi_query(weights, sizes, config):
    """Falcon, GPTBigCode and ChatGLM: one key head, a few, or as many as queries. Their configs have keys for this."""
    if pick(config, "new_decoder_architecture", bool):  # else num_kv_heads means nothing: falcon-7b has 71 there, and 1
        return grouped(weights, sizes._replace(n_kv_head=pick(config, "num_kv_heads", int)), config)
    if pick(config, "multi_query multi_query_attention", bool, True):
        return blocks(weights, sizes._replace(n_kv_head=pick(config, "multi_query_group_num", int, 1)), config)
    return grouped(weights, sizes._replace(n_kv_head=sizes.n_head), config)


def codegen(weights, sizes, config):
    """4 blocks, 8 in CodeGen2, of [q; v; k] (3 H D, C), each of H / 4 or H / 8 heads."""
    [qvk] = weights
    n_block = codegen_blocks(config)
    head_dim = sizes.head_dim or qvk.shape[1] // sizes.n_head
    heads = qvk.unflatten(0, (n_block, 3, sizes.n_head // n_block, head_dim))
    return heads[:, 0].flatten(0, 1), heads[:, 2].flatten(0, 1)


def codegen_blocks(config: dict) -> int:
    """
    CodeGen2 has CodeGen's model_type and code of its own (auto_map), with mp_num = 8 in those whose config also has a
    head_dim: 1B (its modeling_codegen.py) and 3.7B (by CTranslate2's converter, which has 4 for all others).
    """
    own_code, head_dim = "auto_map" in config, "head_dim" in config
    require(own_code == head_dim, "codegen: the config of CodeGen has neither auto_map nor head_dim, that of CodeGen2 "
            f"has both, this one has {'auto_map' if own_code else 'head_dim'} only: in 4 or in 8 blocks?")
    return 8 if own_code else 4


def grouped_convolution(weights, sizes, config):
    """SqueezeBERT: q and k (C, C / G, 1), each a Conv1d of width 1 in G groups."""
    linears = []
    for weight, key in zip(weights, ["q_groups", "k_groups"]):
        groups = weight.squeeze(-1).chunk(pick(config, key, int, 4))  # G of (C / G, C / G)
        linears.append(torch.block_diag(*groups))  # (C, C): the Linear that does the same
    return separate(linears, sizes, config)


def xlnet(weights, sizes, config):
    """q and k (C, H, D)."""
    q, k = weights
    return q.permute(1, 2, 0), k.permute(1, 2, 0)


def low_rank_queries(weights, sizes, config):
    """DeepSeek-V4, in float32: W_q,h = Q_b,h Q_a with Q_a the same for all heads, and k (Hkv D, C)."""
    q_a, q_b, k = [weight.float() for weight in weights]  # (r_q, C), (H D, r_q), (Hkv D, C)
    return separate([q_b @ q_a, k], sizes, config)


def latent(weights, sizes, config):
    """
    Multi-head latent attention, as in DeepSeek-V2, in float32. Head h has, with A, R, Q_a the same for all heads:

    W_q,h = Q_b,h Q_a, or Q_h where the queries have no latent; its rows are [nope; rope]
    W_k,h = [K_b,h A; R]
    """
    *q_weights, kv_a, kv_b = [weight.float() for weight in weights]
    nope = pick(config, "qk_nope_head_dim", int, 0)
    rope = pick(config, "qk_rope_head_dim", int, 0)
    v = pick(config, "v_head_dim", int, 0)
    r_kv = pick(config, "kv_lora_rank", int, 0)

    q = q_weights[0]  # (H (nope + rope), C); or Q_a (r_q, C)
    if len(q_weights) == 2:
        q = q_weights[1] @ q_weights[0]  # Q_b (H (nope + rope), r_q)
    q = q.unflatten(0, (sizes.n_head, nope + rope))

    a, r = kv_a.split([r_kv, rope])  # (r_kv, C), (rope, C)
    k_b = kv_b.unflatten(0, (sizes.n_head, nope + v))[:, :nope]  # (H, nope, r_kv)
    k = torch.cat([k_b @ a, r.expand(sizes.n_head, -1, -1)], 1)  # (H, nope + rope, C)
    return q, k


def scaled_latent(weights, sizes, config):
    """LongCat-Flash: its latents are multiplied by (C / r)^0.5, in queries r = r_q and in keys r = r_kv."""
    q_a, q_b, kv_a, kv_b = [weight.float() for weight in weights]
    C = q_a.shape[1]
    if pick(config, "mla_scale_q_lora", bool, True):
        q_b = q_b * (C / q_b.shape[1]) ** 0.5
    if pick(config, "mla_scale_kv_lora", bool, True):
        kv_b = kv_b * (C / kv_b.shape[1]) ** 0.5
    return latent([q_a, q_b, kv_a, kv_b], sizes, config)


FORMS = {form.__name__: form for form in (
    separate, gated, blocks, widening, query_key_value, query_key, conv1d, grouped, multi_query, codegen,
    grouped_convolution, xlnet, low_rank_queries, latent, scaled_latent)}

# ---- from the heads of a layer to W_q and W_k -----------------------------------------------------------------------


# The forms in which q, k and v are one (out, in) weight.
FUSED = {"blocks", "widening", "grouped", "multi_query", "codegen"}


def layer_factors(w_q, w_k, tiled=False):
    """
    The heads w_q (H, C, D) and w_k (Hkv, C, D) of a layer -> W_q and W_k (C, Hkv D), such that their product W_q W_k^T
    is the layer's W_qk = sum_h W_q,h W_k,g(h)^T, Eq. (S20).

    g(h) is the key head of query head h. In models it is h // (H / Hkv). tiled: it is h % Hkv, as in the published
    scores of models with grouped queries, which therefore are scores of another matrix.
    """
    # Six query heads and two key heads:      q0 q1 q2  q3 q4 q5            tiled:   q0 q1 q2 q3 q4 q5
    #                                          \  |  /   \  |  /                      |  |  |  |  |  |
    #                                             k0        k1                       k0 k1 k0 k1 k0 k1
    # q0 k0^T + q1 k0^T + q2 k0^T = (q0 + q1 + q2) k0^T, so we add the queries of a group before the product. Then W_q
    # has Hkv D columns instead of H D.
    n_kv = len(w_k)
    if tiled:
        groups = w_q.unflatten(0, (-1, n_kv)).transpose(0, 1)  # (Hkv, H / Hkv, C, D)
    else:
        groups = w_q.unflatten(0, (n_kv, -1))  # (Hkv, H / Hkv, C, D)
    if groups.shape[1] > 1:
        w_q = torch.stack([sum_exactly(group.mT) for group in groups]).mT  # (Hkv, C, D), views of (D, C)
    w_q = w_q.to(torch.promote_types(w_q.dtype, torch.float32))
    return side_by_side(w_q), side_by_side(w_k.to(w_q.dtype))


def sum_exactly(heads):
    """(H, D, C) -> (D, C), in twice the digits of the weights, so that heads that nearly cancel lose none."""
    total = heads[0].to(torch.float32 if heads.itemsize == 2 else torch.float64)
    for head in heads[1:]:
        total = total + head
    return total


def side_by_side(heads):
    """The heads (H, C, D) as one matrix (C, H D)."""
    # The heads are views of a Linear weight (H D, C). So this is that weight, transposed, and no number is copied.
    return heads.mT.flatten(0, 1).mT


def published_factors(layer, tensors, w_q, w_k):
    """For --published: the two factors that the authors' code multiplied, to check the tables of the paper."""
    if layer.form in FUSED:
        # Their code took rows 0 to C as W_q and rows C to 2 C as W_k, and did not transpose them. If these rows are q
        # and k, it scored W_q^T W_k. In Pythia they are not: there q, k and v of one head stand together.
        weight = tensors[layer.names[0]]
        C = weight.shape[1]
        if len(weight) < 2 * C:  # as where all query heads share a key head
            raise CheckpointError(f"{layer.names[0]} has {len(weight)} rows, and the authors' code took rows {C} to "
                                  f"{2 * C} of it as keys: leave out --published")
        return weight[:C], weight[C : 2 * C]  # (C, C) each
    return layer_factors(w_q, w_k, tiled=True)
