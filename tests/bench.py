"""
How fast: beside the limit of the machine, and against what people would use instead (tests/peers.py).

    python tests/bench.py                               # or one of: scores train
    python tests/bench.py train --nanogpt=../nanoGPT    # with model.py of github.com/karpathy/nanoGPT in that folder

A column "A / B" is the time of A over that of B: above 1, B is faster. The two run in turns, on the same machine with
the same threads, and the ratio compares their medians. "products" are the matrix products and attentions of ours, with
the same shapes and dtype, and nothing else. So products / ours is the share of our time that is no overhead. Where
models are trained, all of them keep freed memory, as train.py does.

It needs tests/requirements.txt, 6 GB of memory, 2 GB of disk and some minutes. On a GPU the models of train have 12
layers of 768.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from math import nan
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # so that it runs as a script from anywhere

from analyze import keep_memory, score_model
from data.export import to_hf
from model import ModelConfig, Transformer
from tests import peers

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HAS_BFLOAT16 = GPU or any("bf16" in name and has for name, has in torch.cpu.get_capabilities().items())
THREADS = torch.get_num_threads()


def seconds(f):
    begin = time.perf_counter()
    f()
    if GPU:
        torch.cuda.synchronize()  # the time of the work, and not of queueing it; before, nothing is queued
    return time.perf_counter() - begin


def in_turns(*functions, warm_up=0, turns):
    """Returns the median seconds of each function. In turns, so that a drift of the machine's speed meets all."""
    rounds = [[seconds(f) for f in functions] for _ in range(warm_up + turns)]
    return np.median(rounds[warm_up:], axis=0)


def head(*cells):
    print("\n| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|")


def row(*cells):
    texts = [cell if isinstance(cell, str) else f"{cell:.3g}".replace("nan", "–") for cell in cells]
    print("| " + " | ".join(texts) + " |", flush=True)


# ---- training ----------------------------------------------------------------------------------------------------


SIZES = dict(n_layer=12, n_head=12, n_embd=768) if GPU else dict(n_layer=4, n_head=4, n_embd=256)
N_ROWS = 32 if GPU else 8  # of 512 tokens
EAGER = dict(dtype="float32", compile=False)
COMPILED = dict(dtype="bfloat16", compile=True)
CASES = [  # name, vocab_size, causal, and how a step is computed
    ("encoder, 30,522 tokens, float32", 30522, False, EAGER),
    ("encoder, 30,522 tokens, bfloat16, compiled", 30522, False, COMPILED),
    ("encoder, bytes, bfloat16, compiled", 258, False, COMPILED),
    ("decoder, 50,304 tokens, float32", 50304, True, EAGER),
    ("decoder, 50,304 tokens, bfloat16, compiled", 50304, True, COMPILED),
]


def make_sides(vocab_size, causal, nanogpt):
    """Returns pairs of a model and a function that returns its loss: ours, transformers', and if causal nanoGPT's."""
    ours = Transformer(ModelConfig(vocab_size, 512, **SIZES, dropout=0.0, attn_dropout=0.0, causal=causal)).to(DEVICE)
    of_bert = BertConfig(**to_hf(ours)[0], use_cache=False)
    theirs = (BertLMHeadModel if causal else BertForMaskedLM)(of_bert).to(DEVICE)
    idx = torch.randint(vocab_size, (N_ROWS, 512), device=DEVICE)
    predict_at, targets, labels = None, idx.roll(-1, dims=1), idx
    if not causal:
        predict_at = torch.rand(N_ROWS, 512, device=DEVICE).topk(77).indices.sort().values  # 15 %: (N_ROWS, K)
        targets = idx.gather(1, predict_at)
        labels = torch.full_like(idx, -100).scatter(1, predict_at, targets)
    sides = [(ours, lambda: ours(idx, targets, predict_at)), (theirs, lambda: theirs(idx, labels=labels).loss)]
    if causal:
        nano = peers.nanogpt_model(nanogpt, vocab_size, **SIZES).to(DEVICE)
        sides.append((nano, lambda: nano(idx, targets)[1]))
    return sides


def training_step(model, find_loss, dtype, compile):
    """Returns a function that does one step, with the fused AdamW."""
    if compile:
        model.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step():
        with torch.autocast(DEVICE, getattr(torch, dtype), dtype != "float32"):
            loss = find_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def bench_train(nanogpt):
    # Transformers computes all rows of the last block and all logits, and ours those of targets alone. The column of
    # operations says how much of the lead over transformers is that. The rest is speed.
    keep_memory()
    head("training step", "transformers / ours", "its operations / ours", "nanoGPT / ours", "products / ours",
         "transformers [s]", "nanoGPT [s]", "ours [s]", "products [s]", "ours [GFLOP]")
    for name, vocab_size, causal, how in CASES:
        if how["dtype"] == "bfloat16" and not HAS_BFLOAT16:
            continue
        torch._dynamo.reset()
        sides = make_sides(vocab_size, causal, nanogpt)
        eager = [training_step(*side, how["dtype"], compile=False) for side in sides]
        products = peers.products_of(eager[0])
        of_ours, of_theirs, *_ = map(peers.count_operations, eager)
        steps = [training_step(*side, **how) for side in sides]
        bare, ours, theirs, *others = in_turns(products, *steps, warm_up=1, turns=4)
        nano = others[0] if causal else nan
        row(name, theirs / ours, of_theirs / of_ours, nano / ours, bare / ours, theirs, nano, ours, bare, of_ours / 1e9)
    print(f"\nnanoGPT: {'its own model.py' if nanogpt else 'an imitation'}")
    if not HAS_BFLOAT16:
        print("no rows in bfloat16: this machine has no units for it, and they would take 50 times as long")


# ---- scores ------------------------------------------------------------------------------------------------------


def bench_scores(nanogpt):
    head("LLaMA-3-8B's shape, bfloat16", "by hand / ours", "ours / products", "by hand [s]", "ours [s]", "products [s]")
    with tempfile.TemporaryDirectory() as folder:
        for name, n_layer, per_head, n, r in (("score_model, 2 layers", 2, False, 2, 1024),
                                              ("score_model, 32 heads", 1, True, 32, 128)):
            peers.make_llama(folder, n_layer)
            # Of a layer, the queries that share a key head are added before the product, so its rank is r = 1024.
            ours = partial(score_model, folder, per_head=per_head, device=DEVICE)
            by_hand = partial(peers.plain_model, folder, per_head, DEVICE)
            table = ours().table
            found = table[table["head"].notna() == per_head][["symmetry", "directionality"]]
            assert np.allclose(by_hand(), found, atol=1e-4)
            a, b, c = in_turns(by_hand, ours, peers.products_of_wqk(n, r, DEVICE), turns=2)
            row(name, a / b, b / c, a, b, c)
        peers.make_llama(folder, 32)
        command = [sys.executable, "analyze.py", "--hf", folder]
        ours = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        b, c = in_turns(ours, peers.products_of_wqk(32, 1024, DEVICE), turns=2)
        row("analyze.py --hf, 32 layers", nan, b / c, nan, b, c)


BENCHES = dict(scores=bench_scores, train=bench_train)  # scores first, by a process that does not keep its memory


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("names", nargs="*", default=BENCHES, help=f"of tables: {', '.join(BENCHES)} (all of them)")
    cli.add_argument("--nanogpt", metavar="FOLDER", type=os.path.abspath, help="of nanoGPT's model.py")
    args = cli.parse_args()
    os.chdir(ROOT)
    for name, bench in BENCHES.items():
        if name in args.names:
            bench(args.nanogpt)
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, {THREADS} threads")


if __name__ == "__main__":
    main()
