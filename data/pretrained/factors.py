"""
From the heads of a layer to two matrices whose product is its W_qk, also where query heads share a key head.

layouts.py finds the heads; analyze.py scores the product.
"""

import torch

from data.pretrained.layout_config import LayoutError

# forms of layouts in which q, k and v are one (out, in) weight
FUSED = {"blocks", "widening", "grouped", "multi_query", "codegen"}


def at_least_float32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


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
    w_q = at_least_float32(w_q)
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
            raise LayoutError(f"{layer.names[0]} has {len(weight)} rows, and the authors' code took rows {C} to {2 * C}"
                              " of it as keys: leave out --published")
        return weight[:C], weight[C : 2 * C]  # (C, C) each
    return layer_factors(w_q, w_k, tiled=True)
