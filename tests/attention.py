"""
Is attention uniform, and do W_q and W_k get a gradient? Measured in the checkpoints of encoders; no test.

    python train.py config/small.py --init=symmetric --eval_interval=100 --keep=99 --out_dir=out/attention/symmetric-1
    python tests/attention.py out/attention/*/ckpt-0*.pt      # any checkpoints, of --keep or of --max_iters=1

On four batches of validation text this measures, for a row of data/results/csv/attention.csv for each checkpoint:

    loss            [nats/token]
    entropy         of attention over log(T): 1 if a query attends to all T keys alike; mean over layers, heads, queries
    grad_q, grad_k  the norm of the gradient of the loss at W_q and at W_k of a layer, mean over layers
"""

import math
import sys
from pathlib import Path
from statistics import fmean

import pandas
import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script from anywhere

import train
from config import TrainConfig
from data import tokens
from data.loader import Loader
from tests.theorem import RESULTS, watch

KEYS = ["n_embd", "init", "qk_std", "seed", "step"]


def entropy(attn):
    """Of a watched layer, a share of log(T), mean over sequences, heads and queries."""
    T, D = attn.scores.shape[-1], attn.q.weight.shape[0] // attn.n_head
    weights = (attn.scores.detach() / D**0.5).softmax(-1)  # (B, H, T, T)
    return torch.special.entr(weights).sum(-1).mean().item() / math.log(T)  # entr(p) = -p log(p)


def measure(path):
    """A checkpoint of train.py -> a row of the table, {column: value}."""
    state = torch.load(path, weights_only=True)
    cfg = TrainConfig(**state["config"] | dict(init_from="scratch"))
    if cfg.causal:
        sys.exit(f"tests/attention.py: {path} is of a decoder, in which every query sees another number of keys")
    corpus = tokens.load(Path(cfg.data_dir))
    model = train.build_model(cfg, corpus.meta).eval()
    model.load_state_dict(state["model"])
    loader = Loader(cfg, corpus, 0, 1, torch.device("cpu"))  # of one process
    batch = [torch.cat(parts) for parts in zip(*(loader.val_batch(i) for i in range(4)))]  # idx, targets, positions
    layers = watch(model, batch)
    with torch.no_grad():
        loss = model(*batch).item()
    return dict(
        n_embd=cfg.n_embd,
        init=cfg.init,
        qk_std=round(cfg.qk_std, 4),
        seed=cfg.seed,
        step=state["step"],
        loss=loss,
        entropy=fmean(entropy(attn) for attn in layers),
        grad_q=fmean(attn.q.weight.grad.norm().item() for attn in layers),
        grad_k=fmean(attn.k.weight.grad.norm().item() for attn in layers),
    )


def main(paths):
    if not paths:
        sys.exit("tests/attention.py: give the checkpoints of encoders, such as out/attention/*/ckpt-0*.pt")
    rows = pandas.DataFrame(measure(path) for path in tqdm(paths, unit="checkpoint"))
    rows.sort_values(KEYS).to_csv(RESULTS / "csv" / "attention.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main(sys.argv[1:])
