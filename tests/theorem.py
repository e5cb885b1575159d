"""
Why does symmetry emerge? Theorem 2.4 measured through whole runs: pytest does not collect this, it takes minutes.

    python tests/theorem.py config/tiny.py config/tiny_decoder.py

The gradient of W_qk of a head is G = sum beta_ij x_i x_j^T (Prop. 2.2). Theorem 2.4 says that G is symmetric where
beta_ij = beta_ji, and that training bidirectionally makes them alike. Every 50 updates of three seeds, on the same rows
of validation text, this writes for each layer, as the mean over its heads, the symmetry

    w       of W_qk itself
    beta    of beta, over pairs i != j: sum beta_ij beta_ji / sum beta_ij^2
    g       of G
    update  of what one AdamW step adds to W_qk

to data/results/csv/theorem.csv, and draws data/results/png/theorem.png from it. With no config: only the picture.
"""

import copy
import sys
from pathlib import Path

import pandas
import torch
import torch.nn.functional as F
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script from anywhere

import config
import train
from analyze import symmetry, wqk
from data.results import figures
from model import SelfAttention, rows_at

RESULTS = Path(train.__file__).parent / "data" / "results"
SEEDS = [1, 2, 3]
EVERY = 50  # updates between two looks
QUANTITIES = {"w": "W_qk", "beta": "beta", "g": "gradient of W_qk", "update": "AdamW step of W_qk"}


class WatchedAttention(SelfAttention):
    """The same attention with its comparisons in sight: after backward(), beta is self.scores.grad."""

    def forward(self, x, context, positions=None):  # x is the context: every row is computed
        H, D = self.n_head, x.shape[-1] // self.n_head
        q, k, v = [part(x).unflatten(-1, (H, D)).transpose(1, 2) for part in (self.q, self.k, self.v)]  # (B, H, T, D)
        self.x = x.detach()
        self.scores = q @ k.mT  # (B, H, T, T), x_i^T W_qk x_j
        self.scores.retain_grad()
        logits = self.scores / D**0.5
        if self.causal:
            logits = logits + torch.full_like(logits[0, 0], -torch.inf).triu(1)  # no token sees a later one
        y = logits.softmax(-1) @ v  # (B, H, T, D)
        return self.proj(y.transpose(1, 2).flatten(2))


def head_factors(attn):
    """W_q and W_k of every head of a layer, (H, C, D) each."""
    return [part.weight.unflatten(0, (attn.n_head, -1)).mT for part in (attn.q, attn.k)]


def watch(model, batch):
    """
    The backward pass of the model's own loss -> the attention layers of a copy of it, with their comparisons in sight:
    x_i is attn.x (B, T, C), beta_ij is attn.scores.grad (B, H, T, T).
    """
    idx, targets, *positions = batch
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.attn.__class__ = WatchedAttention  # the same weights, another forward
    x = model.hidden(idx)  # (B, T, C): every row, where the model itself leaves out those that nothing predicts
    if positions:
        x = rows_at(x, positions[0])  # (B, K, C)
    logits = F.linear(model.head(x), model.tok_emb.weight, model.head.bias)  # (B, T or K, V)
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return [block.attn for block in model.blocks]


def pair_sum(attn):
    """Of a watched layer, sum beta_ij x_i x_j^T of every head, (H, C, C): the gradient of its W_qk."""
    return torch.einsum("bhij,bic,bjd->hcd", attn.scores.grad, attn.x, attn.x)


def beta_symmetry(beta):
    """beta (B, H, T, T) -> (H,), over pairs of different tokens."""
    off = beta * (1 - torch.eye(beta.shape[-1]))
    return (off * off.mT).sum((0, 2, 3)) / off.square().sum((0, 2, 3))


def measure(path, seed):
    """Train as train.py does, and look on -> rows."""
    cfg = config.load([path, f"--seed={seed}", "--compile=off"])
    place = train.find_place(cfg)
    trainer = train.Trainer(cfg, place, train.open_corpus(cfg, place))
    probe = trainer.loader.val_batch(0)
    rows = []
    for step, batch in enumerate(tqdm(trainer.loader.train_batches(0), total=cfg.max_iters, unit="step")):
        layers = [] if step % EVERY else watch(trainer.model, probe)  # copies: the step does not change them
        trainer.train_step(batch)
        for layer, attn in enumerate(layers):
            before, after = [wqk(*head_factors(its)) for its in (attn, trainer.model.blocks[layer].attn)]  # (H, C, C)
            values = dict(w=symmetry(before), beta=beta_symmetry(attn.scores.grad), g=symmetry(pair_sum(attn)),
                          update=symmetry(after - before))  # (H,) each
            means = {quantity: x.mean().item() for quantity, x in values.items()}
            rows.append(dict(model=Path(path).stem, seed=seed, step=step, layer=layer, **means))
    return rows


def plot(table, path):
    """A column for each quantity, a row for each model; a thin line per seed, a thick one for their mean."""
    models = table.model.unique()
    titles = []
    with figures.figure(path, [1] * len(QUANTITIES), rows=len(models)) as axes:
        for row_of_axes, model in zip(axes, models):
            causal = "decoder" in model
            for axis, (quantity, title) in zip(row_of_axes, QUANTITIES.items()):
                draw_quantity(axis, table[table.model == model], quantity, figures.COLOURS[causal])
                titles.append(f"{title}, {figures.KINDS[causal]}")
            row_of_axes[0].set_ylabel("symmetry, mean over heads")
            row_of_axes[0].legend(frameon=False, fontsize=8, loc="upper left")
        figures.put_titles(axes.flat, titles)


def draw_quantity(axis, table, quantity, colour):
    """table: of one model. The last layer is a solid line, those below it are dashed."""
    for layer, of_layer in table.groupby("layer"):
        dash = "-" if layer == table.layer.max() else "--"
        curves = of_layer.pivot(index="step", columns="seed", values=quantity)  # a column for each seed
        axis.plot(curves, dash, color=colour, lw=0.5, alpha=0.35)
        axis.plot(curves.mean(axis=1), dash, color=colour, lw=1.8, label=f"layer {layer}")
    figures.put_zero(axis)
    axis.set(ylim=(-0.4, 1.0), xlabel="step")


def main(configs):
    file = RESULTS / "csv" / "theorem.csv"
    rows = []
    for path in configs:
        for seed in SEEDS:
            rows += measure(path, seed)
            pandas.DataFrame(rows).to_csv(file, index=False, float_format="%.4f")
    plot(pandas.read_csv(file), RESULTS / "png" / "theorem.png")


if __name__ == "__main__":
    main(sys.argv[1:])
