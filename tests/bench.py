"""
How fast: beside the machine's limit, and for training against transformers and an imitation of nanoGPT.

    python tests/bench.py >> tests/bench.txt    # one run: both tables, and the date, machine and versions behind them

A column "A / B" is A's time divided by B's: above 1, B is faster. They run in turns, on the same machine with the same
threads, and the ratio compares their medians. "products" are our matrix products and attentions alone, with the same
shapes and dtype: products / ours is the share of our time that is no overhead.

It needs tests/requirements.txt, 6 GB of memory, 2 GB of disk and some minutes. On a GPU the models have 12 layers of
768. On a CPU without units for bfloat16 the last three rows take 50 times as long.
"""

import datetime
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # so that it runs as a script from anywhere

from data import keep_memory, take_no_arguments
from data.export import to_hf
from model import ModelConfig, Transformer

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def seconds(f):
    begin = time.perf_counter()
    f()
    if GPU:
        torch.cuda.synchronize()  # time the work, and not only how long it takes to queue it; before, nothing is queued
    return time.perf_counter() - begin


def in_turns(*functions, turns):
    """Returns the median seconds for each function. In turns, so that a drift of the machine's speed meets all."""
    rounds = [[seconds(f) for f in functions] for _ in range(1 + turns)]
    return np.median(rounds[1:], axis=0)  # the first one warms up


# ---- scores ------------------------------------------------------------------------------------------------------


def bench_scores():
    """Times the command, on a model in LLaMA-3-8B's shape. It has queries and keys alone, because no more is read."""
    # a checkpoint: 32 layers, and a key head for four query heads
    sizes = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8)
    weights = {}
    for i in range(32):
        for name, n_rows in ("q", 4096), ("k", 1024):
            weights[f"model.layers.{i}.self_attn.{name}_proj.weight"] = torch.randn(n_rows, 4096).bfloat16()

    # the products are 32 W_qk in float32, and nothing else. The queries that share a key head are added before the
    # product, so its rank is 1024
    w_q, w_k = torch.randn(2, 4096, 1024, device=DEVICE)

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(dict(model_type="llama", **sizes)))
        save_file(weights, Path(folder, "model.safetensors"))
        argv = [sys.executable, ROOT / "analyze.py", "--hf", folder]
        command = partial(subprocess.run, argv, check=True, capture_output=True)
        ours, products = in_turns(command, lambda: [w_q @ w_k.T for _ in range(32)], turns=2)
    print("\nanalyze.py --hf, LLaMA-3-8B's shape | ours / products | ours [s] | products [s]")
    print(f"bfloat16, 32 layers | {ours / products:.3g} | {ours:.3g} | {products:.3g}", flush=True)


# ---- training ----------------------------------------------------------------------------------------------------


SIZES = dict(n_layer=12, n_head=12, n_embd=768) if GPU else dict(n_layer=4, n_head=4, n_embd=256)
N_ROWS = 32 if GPU else 8  # with 512 tokens each
CASES = [  # name, vocab_size, causal, dtype
    ("encoder, 30,522 tokens, float32", 30522, False, torch.float32),
    ("decoder, 50,304 tokens, float32", 50304, True, torch.float32),
    ("encoder, 30,522 tokens, bfloat16, compiled", 30522, False, torch.bfloat16),
    ("encoder, bytes, bfloat16, compiled", 258, False, torch.bfloat16),
    ("decoder, 50,304 tokens, bfloat16, compiled", 50304, True, torch.bfloat16),
]


class Products(TorchDispatchMode):
    """Notes the matrix products and attentions of a block of code, with their arguments, to compute them again."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        call = partial(func, *args, **(kwargs or {}))
        if "scaled_dot_product" in func.__name__ or "mm" in func.__name__:  # mm, addmm, bmm
            self.calls.append(call)
        return call()

    @torch.no_grad()
    def repeat(self):
        for call in self.calls:
            call()


class ImitatedNanoGPT(nn.Module):
    """A decoder as nanoGPT writes it, but from torch's own blocks, with all logits and F.cross_entropy."""

    def __init__(self, vocab_size, n_layer, n_head, n_embd):
        super().__init__()
        # LayerNorm before each sublayer, and q, k and v in one product
        options = dict(dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        block = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, **options)
        self.tok_emb, self.pos_emb = nn.Embedding(vocab_size, n_embd), nn.Embedding(512, n_embd)
        self.blocks = nn.TransformerEncoder(block, n_layer, nn.LayerNorm(n_embd), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(512))

    def forward(self, idx, targets):
        x = self.blocks(self.tok_emb(idx) + self.pos_emb.weight, self.mask, is_causal=True)
        logits = x @ self.tok_emb.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_sides(vocab_size, causal):
    """Returns pairs of a model and a function that returns its loss: ours, transformers', and if causal nanoGPT's."""
    # two models with the same sizes
    ours = Transformer(ModelConfig(vocab_size, 512, **SIZES, dropout=0.0, attn_dropout=0.0, causal=causal)).to(DEVICE)
    theirs = (BertLMHeadModel if causal else BertForMaskedLM)(BertConfig(**to_hf(ours)[0], use_cache=False)).to(DEVICE)
    idx = torch.randint(vocab_size, (N_ROWS, 512), device=DEVICE)

    # decoders predict the next token, all of them
    if causal:
        nano, targets = ImitatedNanoGPT(vocab_size, **SIZES).to(DEVICE), idx.roll(-1, dims=1)
        return [(ours, lambda: ours(idx, targets)), (theirs, lambda: theirs(idx, labels=idx).loss),
                (nano, lambda: nano(idx, targets))]

    # encoders predict 15 % of the tokens. transformers wants labels for all, -100 where there is nothing to predict
    predict_at = torch.rand(N_ROWS, 512, device=DEVICE).topk(77).indices.sort().values  # (N_ROWS, K)
    targets = idx.gather(1, predict_at)
    labels = torch.full_like(idx, -100).scatter(1, predict_at, targets)
    return [(ours, lambda: ours(idx, targets, predict_at)), (theirs, lambda: theirs(idx, labels=labels).loss)]


def training_step(model, find_loss, dtype):
    """Returns a function that does one step, with the fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step():
        with torch.autocast(DEVICE, dtype, dtype != torch.float32):
            loss = find_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def bench_train():
    # in an encoder, transformers computes all rows of the last block and all logits, and ours those for targets alone
    keep_memory()
    print("\ntraining step | transformers / ours | nanoGPT / ours | products / ours | seconds of ours")
    for name, vocab_size, causal, dtype in CASES:
        sides = make_sides(vocab_size, causal)
        steps = [training_step(*side, dtype) for side in sides]

        # note our products, and only then compile, because a compiled model does not show them
        with Products() as products:
            steps[0]()
        if dtype == torch.bfloat16:
            torch._dynamo.reset()
            for model, _ in sides:
                model.compile(dynamic=False)

        bare, ours, *others = in_turns(products.repeat, *steps, turns=4)
        theirs, nano = others if causal else (*others, np.nan)  # there is no encoder of nanoGPT
        print(f"{name} | {theirs / ours:.3g} | {nano / ours:.3g} | {bare / ours:.3g} | {ours:.3g}", flush=True)


def machine():
    """Returns in one line what machine this is."""
    if GPU:
        return torch.cuda.get_device_name()
    cpu_info = Path("/proc/cpuinfo")  # where Linux has the name of the processor
    names = re.findall("model name.*: (.*)", cpu_info.read_text("utf-8")) if cpu_info.exists() else []
    return f"{torch.get_num_threads()} threads of {(names or [platform.processor()])[0]}"


if __name__ == "__main__":
    take_no_arguments(__doc__)
    print(f"\n{datetime.date.today()}, {machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}")
    bench_scores()  # first, by a process that does not keep its memory
    bench_train()
