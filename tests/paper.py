"""
What the tests of the paper share: test_paper.py and test_paper_training.py.

B sequences, T tokens (the paper's N), C = n_embd (its d), H heads, D = C // H, L layers, V tokens in the vocabulary, S
samples. x (T, C) has x_i as rows; in beta_ij x_i x_j^T, i is the query (predicted) and j the key (its context).

Is beta_ij near beta_ji, as Theorem 2.4 assumes, and is the gradient of W_qk near its transpose, as it concludes? For
the encoders `learned` of config/plans/positions.py with five seeds; then the directionality of a decoder in other
bases. Ten minutes on one core:

    python -m tests.paper
"""

from pathlib import Path
from unittest import mock

import pandas
import pytest
import torch
import torch.nn.functional as F

from config import load, run_file
from data import take_no_arguments
from data.batches import mask_tokens
from analyze import directionality, multiply, symmetry, wqk
from data.sympy import prepare
from model import ModelConfig, Transformer, rows_at
from tests.lives import make_trainer


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def exact(a, b):
    return torch.allclose(a, b, atol=1e-10, rtol=1e-10)


def fresh(T, C, H, causal=False, n_layer=1):
    """A model as train.py makes it, of bytes and a mask token."""
    return Transformer(ModelConfig(258, T, n_layer, H, C, dropout=0.0, attn_dropout=0.0, causal=causal))


def batch_of(B, T):
    """Masked bytes, as train.py gives them to an encoder: idx (B, T), targets (B, K), positions (B, K)."""
    K = round(0.15 * T)
    draws, meta = torch.rand(B, T + 2 * K), dict(mask_token=257, n_vocab=256)
    return mask_tokens(torch.randint(256, (B, T)), draws, K, meta, 0.8, 0.1)


# ---- beta, and the gradient of W_qk ------------------------------------------------------------------------------


def betas(encoder, idx, targets, positions):
    """
    Returns beta_ij, the derivative of the encoder's own loss by x_i^T W_qk x_j, in each layer, (L, B, H, T, T); and
    what each layer of attention is given, x (L, B, T, C). No weight gets a gradient, so training can go on.
    """
    scores, xs = [], []  # of each layer x_i^T W_qk x_j (B, H, T, T), and x (B, T, C)

    def attention(q, k, v, **_):
        """What torch's scaled_dot_product_attention does, q, k and v (B, H, T, D)."""
        scores.append(q @ k.mT)
        return (scores[-1] / q.shape[-1] ** 0.5).softmax(-1) @ v

    hooks = [block.attn.register_forward_pre_hook(lambda _, given: xs.append(given[0].detach()))
             for block in encoder.blocks]
    with mock.patch.object(F, "scaled_dot_product_attention", attention):
        logits = encoder(idx)  # (B, T, V): of every row, where training leaves out those that nothing predicts
    for hook in hooks:
        hook.remove()
    loss = F.cross_entropy(rows_at(logits, positions).flatten(0, 1), targets.flatten())
    return torch.stack(torch.autograd.grad(loss, scores)), torch.stack(xs)


def gradient_of_wqk(beta, x):
    """dL/dW_qk = sum_ij beta_ij x_i x_j^T of each head, summed over sequences, Eq. (S37): (L, H, C, C)."""
    return torch.einsum("lbhij,lbic,lbjd->lhcd", beta, x, x)


def measure(model, batches):
    """
    Returns the premise and the conclusion of Theorem 2.4 in each layer, (L,) each, over `batches` of one size. The
    first five are of single texts, and the others of means over all texts.
    """
    found = [betas(model, *batch) for batch in batches]  # N batches
    gradients = torch.stack([gradient_of_wqk(beta, x) for beta, x in found], dim=1)  # (L, N, H, C, C)
    single = torch.stack([beta for beta, _ in found], dim=1)  # (L, N, B, H, T, T)
    single *= 1 - torch.eye(single.shape[-1])  # without i = j
    of_batches = single.sum(2)  # (L, N, H, T, T)
    beta, gradient = of_batches.sum(1), gradients.sum(1)  # (L, H, T, T), (L, H, C, C)
    texts = single.flatten(1, 2)  # (L, N B, H, T, T)
    of_texts = F.cosine_similarity(texts.flatten(2), texts.mT.flatten(2), dim=2)  # (L, N B), symmetry of beta
    positions = torch.cat([positions for _, _, positions in batches])  # (N B, K)
    predicted = torch.zeros(len(positions), beta.shape[-1]).scatter(1, positions, 1.0)  # (N B, T), i in M
    pairs = texts * predicted[:, None, :, None] * predicted[:, None, None]  # of Remark S1.15: i and j in M
    signs = pairs.sign() * pairs.mT.sign()
    return dict(
        text=of_texts.median(1).values,
        above_02=(of_texts > 0.2).double().mean(1),  # a share of texts
        above_05=(of_texts > 0.5).double().mean(1),
        same_sign=(signs > 0).sum((1, 2, 3, 4)) / (signs != 0).sum((1, 2, 3, 4)),  # a share of pairs
        pairs=in_common(pairs, pairs.mT),
        beta=in_common(beta, beta.mT),  # of the mean of beta, by head and pair of positions
        gradient=symmetry(gradient).mean(1),  # of the mean gradient of the W_qk of a head, mean over heads
        gradient_chance=multiply(gradient, torch.eye(gradient.shape[-1])).mean_symmetry().mean(1),
    )


def in_common(a, b):
    """The cosine of two (L, ...), (L,). Of m and m^T it is the symmetry of m."""
    return F.cosine_similarity(a.flatten(1), b.flatten(1), dim=1)


def train_and_measure(trainer, step):
    """Trains up to this step. Returns what `measure` finds in 32 batches that are not trained on."""
    while trainer.step < step:
        trainer.train_step(trainer.loader.batch("train", trainer.step))
    return measure(trainer.model, [trainer.loader.batch("val", i) for i in range(32)])


def main():
    torch.set_num_threads(1)
    prepare.make(Path("data/sympy/bytes"))
    arms = run_file("config/plans/positions.py")["arms"]
    rows = []
    for seed in 101, 102, 103, 104, 971:  # in 971 most texts come near the premise, of all that we tried
        trainer = make_trainer(load(["config/tiny.py"]), seed=seed, **arms["learned"])
        for step in 0, 50, 100, 200, 400, 800, 1600:
            measured = pandas.DataFrame({name: x.numpy() for name, x in train_and_measure(trainer, step).items()})
            pairs = [(block.attn.q.weight.T, block.attn.k.weight.T) for block in trainer.model.blocks]
            measured["W_qk"] = [symmetry(wqk(*pair)).item() for pair in pairs]
            rows.append(measured.assign(step=step))
    of_seeds = pandas.concat(rows).rename_axis("layer").groupby(["layer", "step"])
    print(of_seeds.agg(lambda x: f"{x.min():+.3f} to {x.max():+.3f}").to_string(line_width=120))
    decoder = make_trainer(load(["config/tiny.py"]), seed=101, **arms["decoder"])
    for step in range(1600):
        decoder.train_step(decoder.loader.batch("train", step))
    generator = torch.Generator().manual_seed(0)
    for layer, block in enumerate(decoder.model.blocks):
        m = wqk(block.attn.q.weight.T, block.attn.k.weight.T).detach().double()  # (C, C)
        Q = torch.linalg.qr(torch.randn(200, *m.shape, generator=generator, dtype=m.dtype)).Q  # x -> Q x
        d = directionality(Q @ m @ Q.mT)  # (200,)
        print(f"decoder, layer {layer}: {directionality(m):+.2f}; in 200 bases {d.mean():+.2f} ± {d.std():.2f}")


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
