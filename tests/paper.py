"""
What the tests of the paper share: test_paper.py and test_paper_training.py.

B sequences, T tokens (the paper's N), C = n_embd (its d), H heads, D = C // H, L layers, V tokens in the vocabulary, S
samples. x (T, C) has x_i as rows; in beta_ij x_i x_j^T, i is the query (predicted) and j the key (its context).

Is beta_ij near beta_ji, as Theorem 2.4 assumes? Five minutes on one core, for the encoders `learned` of
config/plans/positions.py with the seeds 101 to 104:

    python -m tests.paper
"""

from collections import defaultdict
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from analyze import symmetry, wqk
from config import load, run_file
from data.batches import mask_tokens
from data.sympy import prepare
from model import ModelConfig, Transformer, rows_at
from tests.lives import make_trainer

MASK = 257
TEXT = torch.tensor(list((prepare.find_sympy() / "core/expr.py").read_bytes()))  # real text: a token is a byte


@pytest.fixture(autouse=True)
def float64():
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
    """Real text, as train.py gives it to a model: idx (B, T), targets (B, T or K), of an encoder positions (B, K)."""
    begin = torch.randint(len(TEXT) - T, (B, 1))
    idx = TEXT[begin + torch.arange(T + 1)]  # (B, T + 1)
    if causal:
        return idx[:, :-1], idx[:, 1:]
    K = round(0.15 * T)
    return mask_tokens(idx[:, :-1], torch.rand(B, T + 2 * K), K, {"mask_token": MASK, "n_vocab": 256}, 0.8, 0.1)


def betas(model, batch):
    """-> beta_ij, the derivative of the model's own loss by x_i^T W_qk x_j, in each layer: (L, B, H, T, T)."""
    idx, targets, *positions = batch
    scores = []  # of each layer (B, H, T, T), x_i^T W_qk x_j

    def attention(q, k, v, is_causal, **_):
        """What torch's scaled_dot_product_attention does, q, k and v (B, H, T, D)."""
        scores.append(q @ k.mT)
        logits = scores[-1] / q.shape[-1] ** 0.5
        if is_causal:
            logits = logits + torch.full_like(logits[0, 0], -torch.inf).triu(1)  # no token sees a later one
        return logits.softmax(-1) @ v

    with mock.patch.object(F, "scaled_dot_product_attention", attention):
        x = model.hidden(idx)  # (B, T, C): every row, where the model itself leaves out those that nothing predicts
    x = rows_at(x, positions[0] if positions else None)  # (B, T or K, C)
    logits = F.linear(model.head(x), model.tok_emb.weight, model.head.bias)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return torch.stack(torch.autograd.grad(loss, scores))  # no weight gets a gradient, so training can go on


def symmetry_of_betas(trainer, n_batches):
    """
    How near beta_ij is to beta_ji for i != j, tr(beta beta) / |beta|^2, on validation text -> of each layer, (L,) each:
    in single sequences; in their mean, by head and pair of positions; what 95 % of all orders of the keys do not exceed
    in that mean; and how the means of two halves correlate.
    """
    cfg = trainer.cfg
    means, single = torch.zeros(2, cfg.n_layer, cfg.n_head, cfg.block_size, cfg.block_size), 0
    for i in range(n_batches):
        found = betas(trainer.model, trainer.loader.batch("val", i)) * (1 - torch.eye(cfg.block_size))
        single += torch.stack([products(found, found.mT), products(found, found)])
        means[i % 2] += found.sum(1)
    mean = means.sum(0)  # (L, H, T, T)
    shuffled = [mean[..., torch.randperm(cfg.block_size)] for _ in range(200)]
    of_mean, *by_chance = [products(m, m.mT) / products(m, m) for m in (mean, *shuffled)]
    chance = torch.stack(by_chance).quantile(0.95, dim=0)
    return single[0] / single[1], of_mean, chance, F.cosine_similarity(*means.flatten(2), dim=1)


def products(a, b):
    """The sum over all but layers, (L,)."""
    return (a * b).flatten(1).sum(1)


def main():
    torch.set_num_threads(1)
    prepare.make(Path("data/sympy/bytes"))
    learned = run_file("config/plans/positions.py")["arms"]["learned"]
    found = defaultdict(list)  # of a layer and a step: the numbers of each seed
    for seed in range(101, 105):
        trainer = make_trainer(load(["config/tiny.py"]), seed=seed, **learned)
        for step in 0, 50, 100, 200, 400, 800, 1600:
            while trainer.step < step:
                trainer.train_step(trainer.loader.batch("train", trainer.step))
            of_betas = symmetry_of_betas(trainer, 32)  # 4,096 sequences
            for layer, (block, *numbers) in enumerate(zip(trainer.model.blocks, *of_betas)):
                of_wqk = symmetry(wqk(block.attn.q.weight.T, block.attn.k.weight.T))
                found[layer, step].append([of_wqk, *numbers])
    print("layer  step symmetry of W_qk    in a sequence    in their mean  95 % by chance halves correlate")
    for (layer, step), of_seeds in sorted(found.items()):
        print(f"{layer:5}{step:6}", *[f"{min(x):+8.2f} to {max(x):+.2f}" for x in zip(*of_seeds)])


if __name__ == "__main__":
    main()
