"""
Where the symmetric part of W_qk is, and what attention uses of it: columns of the last rows of scores.csv.

What a layer reads is x = p + t. p (T, C) is its mean over texts, at each place: the positions. t (B, T, C) is the rest:
the contents. P projects on the first 8 directions of p (less its mean over places), and P_t on those of t.

    from_positions     tr(PWP PWP) / |W|^2, what W = W_qk has of its symmetry among positions
    from_contents      the same with P_t
    from_rest          symmetry - from_positions
    kernel_symmetry    tr(PWP PWP) / |PWP|^2, the symmetry of PWP alone
    kernel_norm        |PWP|^2 / |W|^2, the share of PWP
    kernel_logits      R^2 of p W p^T in the logits x W x^T, less their means over the keys that a query sees
    loss_kernel, loss_rest, loss_nothing    validation loss [nats/token] if M_h = W_q,h W_k,h^T in all heads of this
                                            layer is P M_h P, M_h - P M_h P, or 0
"""

import math

import torch

from analyze import heads_of, in_float64, wqk
from model import rows_at

N_DIRECTIONS = 8  # of P and P_t
N_BATCHES = 8  # validation batches for P and P_t, and as many others for R^2


@torch.no_grad()
def measure_kernel(trainer, w_q, w_k):
    """
    Returns the columns above for each layer, a list of {name: a number}. w_q, w_k (L, C, C): of all layers. A dict is
    empty if logits are not x M_h x^T (other positions than learned ones, a block of a fork), or if C is above 1,024.
    """
    model = trainer.model
    if trainer.cfg.positions != "learned" or w_q.shape[1] > 1024:
        return [{}] * len(w_q)
    model.eval()
    with torch.compiler.set_stance("force_eager"):  # modules are changed below, and each change would compile anew
        p, tt = split_inputs(trainer)
        w = wqk(in_float64(w_q), in_float64(w_k))  # (L, C, C)
        logits = share_of_logits(trainer, w, p)
        found = [measure_layer(trainer, *layer) for layer in zip(model.blocks, w_q, w_k, w, p, tt, logits)]
    model.train()
    return found


def inputs(trainer, batches):
    """Yields what all layers read of some validation texts, x (L, B, T, C), in float64."""
    found = []
    hooks = [block.attn.register_forward_pre_hook(lambda _, arguments: found.append(arguments[0]))
             for block in trainer.model.blocks]
    for i in batches:
        for _, (idx, *_) in trainer.loader.micro_batches(trainer.loader.batch("val", i)):
            trainer.model.hidden(idx)
            yield in_float64(torch.stack(found))
            found.clear()
    for hook in hooks:
        hook.remove()


def split_inputs(trainer):
    """Returns p (L, T, C) and the mean of t^T t (L, C, C), added up batch by batch."""
    n, x_sum, xx_sum = 0, 0.0, 0.0
    for x in inputs(trainer, range(N_BATCHES)):
        n += x.shape[1]
        x_sum += x.sum(1)  # (L, T, C)
        xx_sum += x.flatten(1, 2).mT @ x.flatten(1, 2)  # (L, C, C)
    p = trainer.place.mean(x_sum / n)
    return p, trainer.place.mean(xx_sum / n) - p.mT @ p  # x^T x = p^T p + t^T t, because t is 0 on average


def share_of_logits(trainer, w, p):
    """Returns R^2 = 1 - |L - L_pp|^2 / |L|^2 of each layer, L = x W x^T and L_pp = p W p^T. w (L, C, C)."""
    # softmax does not see what all keys of a query have in common, so take off the mean over those that it sees
    T = p.shape[1]
    sees = p.new_ones(T, T)
    if trainer.cfg.causal:
        sees = sees.tril()

    def less_mean(logits):
        logits = logits * sees
        return logits - sees * logits.sum(-1, keepdim=True) / sees.sum(-1, keepdim=True)

    # on texts that p has not seen
    of_positions = less_mean(p @ w @ p.mT)  # (L, T, T)
    errors, squares = 0.0, 0.0
    for x in inputs(trainer, range(N_BATCHES, 2 * N_BATCHES)):
        logits = less_mean(x @ w[:, None] @ x.mT)  # (L, B, T, T)
        errors += (logits - of_positions[:, None]).square().sum((1, 2, 3))
        squares += logits.square().sum((1, 2, 3))
    return 1 - trainer.place.mean(errors) / trainer.place.mean(squares)  # (L,)


def main_directions(moment):
    """
    Returns up to N_DIRECTIONS orthonormal directions (C, n) that hold most of some vectors x (N, C). moment: x^T x,
    (C, C). Vectors that are all 0 have none.
    """
    values, vectors = torch.linalg.eigh(moment)  # from the smallest to the largest
    return vectors[:, values > 1e-12 * values[-1].abs()][:, -N_DIRECTIONS:]


def within(m, directions):
    """
    Returns tr(PMP PMP) and |PMP|^2, where P = V V^T projects on orthonormal directions V (C, n). The first one, over
    |M|^2, is what M has of its symmetry among these directions.
    """
    small = directions.mT @ m @ directions  # (n, n): PMP = V small V^T, and V changes no trace and no norm
    return (small * small.mT).sum(), small.square().sum()


def measure_layer(trainer, block, w_q, w_k, w, p, tt, logits):
    """Returns the columns of one layer. w_q, w_k, w (C, C); p (T, C); tt (C, C); logits: its R^2."""
    # the algebra: P W P has the same trace and norm as W in the directions of P
    centred = p - p.mean(0)
    directions = main_directions(centred.mT @ centred)  # (C, 8)
    trace, energy = within(w, directions)
    trace_of_contents, _ = within(w, main_directions(tt))
    whole = w.square().sum()  # |W|^2
    columns = dict(from_positions=trace / whole, from_contents=trace_of_contents / whole,
                   from_rest=((w * w.mT).sum() - trace) / whole, kernel_symmetry=trace / energy,
                   kernel_norm=energy / whole, kernel_logits=logits)

    # the interventions: attention with other M_h, first with its own, which must change nothing
    heads_q, heads_k = heads_of(w_q, block.attn.n_head), heads_of(w_k, block.attn.n_head)  # (H, C, D) each
    m = wqk(heads_q, heads_k)  # (H, C, C)
    project = (directions @ directions.mT).to(m)  # P, (C, C)
    kernel = project @ m @ project
    plain = trainer.evaluate()
    losses = [loss_with(trainer, block.attn, other, heads_k) for other in (m, kernel, m - kernel, 0 * m)]
    if not abs(losses[0] - plain) < 1e-3:  # a fork's attention is another one, so these would not be its numbers
        return {}
    columns |= dict(zip(("loss_kernel", "loss_rest", "loss_nothing"), losses[1:]))
    return {name: float(number) for name, number in columns.items()}


def loss_with(trainer, attn, m, w_k):
    """Returns the validation loss with logits (x M_h + b_q,h W_k,h^T) x^T / sqrt(D). m (H, C, C), w_k (H, C, D)."""
    # as queries (x M_h + b_q,h W_k,h^T), and as keys x itself
    C, D = w_k.shape[1:]
    bias = 0.0
    if attn.q.bias is not None:
        bias = attn.q.bias.view(len(m), 1, D) @ w_k.mT  # (H, 1, C): the bias of k adds the same to all keys
    scale = math.sqrt(C / D)  # the vectors that meet have C numbers now, so attention divides by sqrt(C)
    calls = []

    def queries_and_keys(x, predict_at=None):
        calls.append(x)
        q = rows_at(x, predict_at)[:, None] @ m + bias  # (B, H, Q, C)
        return scale * q, x[:, None].expand(-1, len(m), -1, -1)

    # put them in place of the method, and then take them off, which brings the method back
    attn.queries_and_keys = queries_and_keys
    loss = trainer.evaluate()
    del attn.queries_and_keys
    # a fork's attention may never call it
    return loss if calls else math.nan
