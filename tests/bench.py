"""
How fast, against what people would use instead, as ratios within one run:

    python tests/bench.py                # or one of: layer train

A ratio above 1 means that ours is faster. Both sides do the same work on the same machine with the same threads, in
turns, after a warm-up, and the ratio compares the medians. It needs tests/requirements.txt and some minutes on two
cores. On a GPU the rows of train are a BERT of 12 layers, in bfloat16.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a script from anywhere

import analyze
from data.bert import to_hf
from model import ModelConfig, Transformer

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HEAD_DIM = 128  # LLaMA-3-8B's


def seconds(f):
    begin = time.perf_counter()
    f()
    if GPU:
        torch.cuda.synchronize()  # the time of the work, and not of queueing it; before, nothing is queued
    return time.perf_counter() - begin


def ratio(theirs, ours, repeats, warmup=2):
    """-> (their median / our median, theirs, ours), in turns so that a drift of the machine's speed meets both."""
    times = [(seconds(theirs), seconds(ours)) for _ in range(warmup + repeats)]
    a, b = (median(column) for column in zip(*times[warmup:]))
    return a / b, a, b


def head(*cells):
    print("\n| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|")


def row(name, *numbers):
    cells = [f"{x:.3g}" for x in numbers]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


# ---- scores ------------------------------------------------------------------------------------------------------


def plain_scores(q, k, group):
    """
    The two scores as people compute them by hand, in the authors' notebooks or from the weights that TransformerLens
    gives: repeat every key head for its group of queries, form M in float32, add its transpose, take norms. The weights
    are those of two Linear layers, q (H D, C) and k (Hkv D, C).
    """
    k = k.unflatten(0, (-1, HEAD_DIM)).repeat_interleave(group, 0).flatten(0, 1)
    m = q.float().T @ k.float()  # (C, C)
    sym, skew = (m + m.T) / 2, (m - m.T) / 2
    s = (sym.norm() ** 2 - skew.norm() ** 2) / m.norm() ** 2
    rows, columns = m.norm(dim=1), m.norm(dim=0)
    r, c = ((x - x.mean() - 2 * x.std()).clamp_min(0).sum() for x in (rows, columns))
    return float(s), float((r - c) / (r + c))


def bench_layer():
    head("scores of a layer of LLaMA-3-8B's shape, bfloat16", "by hand / ours", "by hand [s]", "ours [s]")
    q = torch.randn(4096, 4096, device=DEVICE).bfloat16()  # nn.Linear stores (out, in)
    k = torch.randn(1024, 4096, device=DEVICE).bfloat16()
    w_q = q.unflatten(0, (-1, HEAD_DIM)).mT  # (32, C, D), views as those that layouts.py finds
    w_k = k.unflatten(0, (-1, HEAD_DIM)).mT  # (8, C, D)

    def plain_layer():
        return [plain_scores(q, k, 4)]

    def plain_heads():
        return [plain_scores(w_q[h].mT, w_k[h // 4].mT, 1) for h in range(32)]

    for name, plain, score, repeats, warmup in (
            ("the layer", plain_layer, analyze.score_layer, 5, 1),
            ("its 32 heads", plain_heads, analyze.head_scores, 3, 0)):
        ours = partial(score, w_q, w_k)
        found = [[float(x) for x in scores[:2]] for scores in ours()]
        assert np.allclose(plain(), found, atol=1e-4)
        row(name, *ratio(plain, ours, repeats, warmup))


# ---- training ----------------------------------------------------------------------------------------------------


def training_step(model, loss, dtype):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step():
        with torch.autocast(DEVICE.type, getattr(torch, dtype), dtype != "float32"):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


BERT, MINI = (32, (12, 12, 768)), (8, (4, 4, 256))  # rows, (n_layer, n_head, n_embd)
CASES = [  # name, then what `sides` takes
    ("encoder, 30,522 tokens, float32", 30522, False, *MINI, "float32", False),
    ("encoder, 30,522 tokens, bfloat16, compiled", 30522, False, *MINI, "bfloat16", True),
    ("encoder, 258 tokens (bytes), bfloat16, compiled", 258, False, *MINI, "bfloat16", True),
    ("decoder, 50,304 tokens, float32", 50304, True, *MINI, "float32", False),
    ("decoder, 50,304 tokens, bfloat16, compiled", 50304, True, *MINI, "bfloat16", True),
]
CASES_ON_GPU = [
    ("encoder, BERT 12, 30,522 tokens, bfloat16, compiled", 30522, False, *BERT, "bfloat16", True),
    ("decoder, BERT 12, 50,304 tokens, bfloat16, compiled", 50304, True, *BERT, "bfloat16", True),
]


def sides(vocab_size, causal, rows, sizes, dtype, compile):
    """Their training step and ours, on the same batch, both without dropout and with the fused AdamW."""
    ours = Transformer(ModelConfig(vocab_size, 512, *sizes, dropout=0.0, attn_dropout=0.0, causal=causal)).train()
    config, _ = to_hf(ours)
    hf = (BertLMHeadModel if causal else BertForMaskedLM)(BertConfig(**config, use_cache=False)).train()
    ours, hf = ours.to(DEVICE), hf.to(DEVICE)
    idx = torch.randint(vocab_size, (rows, 512), device=DEVICE)
    labels, targets, predict_at = idx, idx.roll(-1, dims=1), None
    if not causal:
        # 15 % of the tokens are predicted: (rows, K)
        predict_at = torch.rand(rows, 512, device=DEVICE).topk(77).indices.sort().values
        targets = idx.gather(1, predict_at)
        labels = torch.full_like(idx, -100).scatter(1, predict_at, targets)
    if compile:
        ours.compile(dynamic=False)
        hf.compile()
    return (training_step(hf, lambda: hf(input_ids=idx, labels=labels).loss, dtype),
            training_step(ours, lambda: ours(idx, targets, predict_at), dtype))


class NanoGPTBlock(nn.Module):
    """The block of nanoGPT: LayerNorm before each sublayer, q, k and v in one product."""

    def __init__(self, n_head, C):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

    def forward(self, x):
        heads = self.qkv(self.ln_1(x)).unflatten(-1, (3 * self.n_head, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """A decoder as nanoGPT writes it, with all logits and F.cross_entropy."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, C):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(vocab_size, C), nn.Embedding(block_size, C)
        self.blocks = nn.Sequential(*(NanoGPTBlock(n_head, C) for _ in range(n_layer)), nn.LayerNorm(C))

    def forward(self, idx, targets):
        x = self.blocks(self.tok_emb(idx) + self.pos_emb.weight)
        return F.cross_entropy((x @ self.tok_emb.weight.T).flatten(0, 1), targets.flatten())


def sides_of_decoders(vocab_size, rows, sizes, dtype, compile):
    """The training step of nanoGPT's decoder, and ours."""
    ours = Transformer(ModelConfig(vocab_size, 512, *sizes, dropout=0.0, attn_dropout=0.0, causal=True)).to(DEVICE)
    theirs = NanoGPT(vocab_size, 512, *sizes).to(DEVICE)
    idx = torch.randint(vocab_size, (rows, 512), device=DEVICE)
    if compile:
        ours.compile(dynamic=False)
        theirs.compile(dynamic=False)
    return [training_step(model, lambda model=model: model(idx, idx.roll(-1, dims=1)), dtype)
            for model in (theirs, ours)]


def bench_train():
    head("training step against transformers", "like for like", "theirs [s]", "ours [s]")
    for name, *case in CASES_ON_GPU if GPU else CASES:
        torch._dynamo.reset()
        row(name, *ratio(*sides(*case), 7))
    head("training step of a decoder, 50,304 tokens, against nanoGPT's", "nanoGPT / ours", "nanoGPT [s]", "ours [s]")
    for dtype, compile in ("float32", False), ("bfloat16", True):
        torch._dynamo.reset()
        name = f"{dtype}, {'compiled' if compile else 'eager'}"
        row(name, *ratio(*sides_of_decoders(50304, *(BERT if GPU else MINI), dtype, compile), 7))
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads, "
          f"{torch.cuda.get_device_name() if GPU else 'CPU'}")


ROWS = dict(layer=bench_layer, train=bench_train)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", choices=ROWS, help="one of them (all)")
    args = parser.parse_args(argv)
    for name in [args.row] if args.row else ROWS:
        ROWS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
