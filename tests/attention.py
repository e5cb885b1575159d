"""
Is attention uniform, and do W_q and W_k get a gradient? Measured in the checkpoints of encoders: pytest does not collect
this.

    python train.py config/small.py --init=symmetric --eval_interval=100 --keep=99 --out_dir=out/attention/symmetric-1
    python tests/attention.py out/attention/*/ckpt-0*.pt      # any checkpoints, of --keep or of --max_iters=1

On four batches of validation text this writes a row for each checkpoint into data/results/csv/attention.csv:

    loss            [nats/token]
    entropy         of attention over log(T): 1 if a query attends to all T keys alike; mean over layers, heads, queries
    grad_q, grad_k  the norm of the gradient of the loss at W_q and at W_k of a layer, mean over layers
"""

import csv
import math
import sys
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script from anywhere

import train
from config import TrainConfig
from config._place import Place
from data import tokens
from data.loader import Loader
from tests.theorem import watch

TABLE = Path(train.__file__).parent / "data" / "results" / "csv" / "attention.csv"
CPU = torch.device("cpu")


class Row(NamedTuple):
    n_embd: int
    init: str
    qk_std: str
    seed: int
    step: int
    loss: str
    entropy: str
    grad_q: str
    grad_k: str


def entropy(attn):
    """Of a watched layer, a share of log(T), mean over sequences, heads and queries."""
    T, D = attn.scores.shape[-1], attn.q.weight.shape[0] // attn.n_head
    weights = (attn.scores.detach() / D**0.5).softmax(-1)  # (B, H, T, T)
    return torch.special.entr(weights).sum(-1).mean().item() / math.log(T)  # entr(p) = -p log(p)


def mean(numbers):
    return sum(numbers) / len(numbers)


def measure(path):
    """A checkpoint of train.py -> its Row."""
    state = torch.load(path, weights_only=True)
    cfg = TrainConfig(**state["config"] | dict(init_from="scratch"))
    if cfg.causal:
        sys.exit(f"tests/attention.py: {path} is of a decoder, in which every query sees another number of keys")
    corpus = tokens.load(Path(cfg.data_dir))
    model = train.build_model(cfg, corpus.meta).eval()
    model.load_state_dict(state["model"])
    loader = Loader(cfg, corpus, 0, 1, CPU)
    batch = [torch.cat(parts) for parts in zip(*(loader.val_batch(i) for i in range(4)))]  # idx, targets, positions
    layers = watch(model, batch)
    with torch.no_grad():
        loss = model(*batch).item()
    values = [loss, mean([entropy(attn) for attn in layers]), mean([attn.q.weight.grad.norm().item() for attn in layers]),
              mean([attn.k.weight.grad.norm().item() for attn in layers])]
    return Row(cfg.n_embd, cfg.init, f"{cfg.qk_std:.4f}", cfg.seed, state["step"], *(f"{x:.4g}" for x in values))


def main(paths):
    if not paths or "--help" in paths:
        sys.exit(__doc__)
    rows = sorted(measure(path) for path in paths)
    TABLE.parent.mkdir(exist_ok=True)
    with open(TABLE, "w", newline="") as f:
        csv.writer(f).writerows([Row._fields, *rows])


if __name__ == "__main__":
    main(sys.argv[1:])
