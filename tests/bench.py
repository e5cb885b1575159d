"""
How fast, against what people would use instead, as ratios within one run:

    python tests/bench.py                # or one of: layer train

A ratio above 1 means that ours is faster. Both sides do the same work on the same machine with the same threads, in
turns, after a warm-up, and the ratio compares the medians. It needs tests/requirements.txt and some minutes on two
cores. On a GPU the models of train have 12 layers of 768.
"""

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


def head(*cells):
    print("\n| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|")


def row(name, theirs, ours):
    """Prints the medians of both and their ratio. They run in turns, so a drift of the machine's speed meets both."""
    times = [(seconds(theirs), seconds(ours)) for _ in range(2 + 7)]
    of_theirs, of_ours = zip(*times[2:])  # without the two of the warm-up
    a, b = median(of_theirs), median(of_ours)
    print(f"| {name} | {a / b:.3g} | {a:.3g} | {b:.3g} |", flush=True)


# ---- scores ------------------------------------------------------------------------------------------------------


def plain_scores(q, k, group):
    """
    The two scores as people compute them by hand, in the authors' notebooks or from the weights that TransformerLens
    gives: repeat every key head for its group of queries, form M in float32, add its transpose, take norms. The weights
    are those of two Linear layers, q (H D, C) and k (Hkv D, C).
    """
    k = k.unflatten(0, (-1, HEAD_DIM)).repeat_interleave(group, 0).flatten(0, 1)
    m = q.float().T @ k.float()  # (C, C)
    symmetric, skew = (m + m.T) / 2, (m - m.T) / 2
    s = (symmetric.norm() ** 2 - skew.norm() ** 2) / m.norm() ** 2
    rows, columns = m.norm(dim=1), m.norm(dim=0)
    r = (rows - rows.mean() - 2 * rows.std()).clamp_min(0).sum()
    c = (columns - columns.mean() - 2 * columns.std()).clamp_min(0).sum()
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

    def our_layer():
        return [analyze.scores(*analyze.layer_factors(w_q, w_k))]

    for name, plain, ours in (("the layer", plain_layer, our_layer),
                              ("its 32 heads", plain_heads, partial(analyze.head_scores, w_q, w_k))):
        found = [[float(x) for x in scores[:2]] for scores in ours()]
        assert np.allclose(plain(), found, atol=1e-4)
        row(name, plain, ours)


# ---- training ----------------------------------------------------------------------------------------------------


SIZES = dict(n_layer=12, n_head=12, n_embd=768) if GPU else dict(n_layer=4, n_head=4, n_embd=256)
N_ROWS = 32 if GPU else 8  # of 512 tokens
EAGER = dict(dtype="float32", compile=False)
COMPILED = dict(dtype="bfloat16", compile=True)
CASES = [  # vocab_size, causal, and how a step is computed
    (30522, False, EAGER),
    (30522, False, COMPILED),
    (258, False, COMPILED),  # bytes
    (50304, True, EAGER),
    (50304, True, COMPILED),
]


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

    def __init__(self, vocab_size, n_layer, n_head, n_embd):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(vocab_size, n_embd), nn.Embedding(512, n_embd)
        self.blocks = nn.Sequential(*(NanoGPTBlock(n_head, n_embd) for _ in range(n_layer)), nn.LayerNorm(n_embd))

    def forward(self, idx, targets):
        x = self.blocks(self.tok_emb(idx) + self.pos_emb.weight)
        return F.cross_entropy((x @ self.tok_emb.weight.T).flatten(0, 1), targets.flatten())


def our_model(vocab_size, causal):
    return Transformer(ModelConfig(vocab_size, 512, **SIZES, dropout=0.0, attn_dropout=0.0, causal=causal)).to(DEVICE)


def training_step(model, arguments, dtype, compile):
    """A function that does one step, with the fused AdamW. arguments: of the model, which returns the loss."""
    if compile:
        model.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step():
        with torch.autocast(DEVICE.type, getattr(torch, dtype), dtype != "float32"):
            loss = model(**arguments)
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss  # transformers returns more
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def bench_train():
    head("training step against transformers", "like for like", "theirs [s]", "ours [s]")
    for vocab_size, causal, how in CASES:
        torch._dynamo.reset()
        ours = our_model(vocab_size, causal)
        config, _ = to_hf(ours)
        theirs = (BertLMHeadModel if causal else BertForMaskedLM)(BertConfig(**config, use_cache=False)).to(DEVICE)
        idx = torch.randint(vocab_size, (N_ROWS, 512), device=DEVICE)
        for_us, for_them = dict(idx=idx, targets=idx.roll(-1, dims=1)), dict(input_ids=idx, labels=idx)
        if not causal:
            predict_at = torch.rand(N_ROWS, 512, device=DEVICE).topk(77).indices.sort().values  # 15 %: (N_ROWS, K)
            targets = idx.gather(1, predict_at)
            for_us |= dict(targets=targets, predict_at=predict_at)
            for_them |= dict(labels=torch.full_like(idx, -100).scatter(1, predict_at, targets))
        kind = "decoder" if causal else "encoder"
        suffix = ", compiled" if how["compile"] else ""
        name = f"{kind}, {vocab_size:,} tokens, {how['dtype']}{suffix}"
        row(name, training_step(theirs, for_them, **how), training_step(ours, for_us, **how))
    head("training step of a decoder, 50,304 tokens, against nanoGPT's", "nanoGPT / ours", "nanoGPT [s]", "ours [s]")
    idx = torch.randint(50304, (N_ROWS, 512), device=DEVICE)
    arguments = dict(idx=idx, targets=idx.roll(-1, dims=1))
    for name, how in ("float32, eager", EAGER), ("bfloat16, compiled", COMPILED):
        torch._dynamo.reset()
        theirs, ours = NanoGPT(50304, **SIZES).to(DEVICE), our_model(50304, causal=True)
        row(name, training_step(theirs, arguments, **how), training_step(ours, arguments, **how))
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["layer", "train"]:
        dict(layer=bench_layer, train=bench_train)[name]()
