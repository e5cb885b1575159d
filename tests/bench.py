"""
How fast: beside the limit of the machine, and against what people would use instead (tests/peers.py).

    python tests/bench.py                               # or some of: scores train steps waiting preparing
    python tests/bench.py train --nanogpt=../nanoGPT    # with model.py of github.com/karpathy/nanoGPT in that folder

A column "A / B" is the time of A over that of B: above 1, B is faster. The two run in turns, on the same machine with
the same threads, and the ratio compares their medians. "products" are the matrix products and attentions of ours, with
the same shapes and dtype, and nothing else. So products / ours is the share of our time that is no overhead. Where
models are trained, all of them keep freed memory, as train.py does.

It needs tests/requirements.txt, the files of gpt2 (data/README.md), 6 GB of memory, 2 GB of disk and some minutes. On a
GPU the models of train have 12 layers of 768.
"""

import argparse
import csv
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

import config
from analyze import keep_memory, score_model
from data import batches, tokens
from data.export import to_hf
from data.sympy import prepare
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


def in_turns(*functions, measure=seconds, warm_up=0, turns=3):
    """Returns the median measure of each function. In turns, so that a drift of the machine's speed meets all."""
    rounds = [[measure(f) for f in functions] for _ in range(warm_up + turns)]
    return np.median(rounds[warm_up:], axis=0)


def head(*cells):
    print("\n| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|")


def row(*cells):
    texts = [cell if isinstance(cell, str) else f"{cell:.3g}".replace("nan", "–") for cell in cells]
    print("| " + " | ".join(texts) + " |", flush=True)


def python(*words, status=0):
    """Runs a command in the folder of this repository, without its output."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr


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


# ---- whole steps of train.py -------------------------------------------------------------------------------------


def bare_step(cfg):
    """Returns a function that does the steps of a row of log.csv on one batch, and returns the seconds of one."""
    corpus = tokens.load(cfg.data_dir)
    batch = [x.to(DEVICE) for x in batches.get_batch(cfg, corpus, "train", 0, np.arange(cfg.batch_size))]
    model = Transformer(cfg.of_model(corpus.meta["vocab_size"])).to(DEVICE)
    dtype = "bfloat16" if GPU and cfg.dtype == "auto" else "float32"
    step = training_step(model, lambda: model(*batch), dtype, compile=GPU or cfg.compile == "on")
    step()  # the first one compiles
    return lambda: seconds(lambda: [step() for _ in range(cfg.eval_interval)]) / cfg.eval_interval


def step_of_train_py(cfg, *words):
    """Runs train.py. Returns the seconds of a step, as the last row of log.csv tells them."""
    with tempfile.TemporaryDirectory() as folder:
        python(*words, f"--out_dir={folder}")
        with open(Path(folder, "log.csv")) as f:
            last = list(csv.DictReader(f))[-1]
    return cfg.batch_size * cfg.block_size / float(last["tokens_per_s"])


def bench_steps(nanogpt):
    keep_memory()
    head("a step", "train.py / bare", "two processes / one", "train.py [s]", "bare [s]", "two processes [s]")
    prepare.make(Path("data/sympy/bytes"))
    small = ["config/small.py", "--max_iters=100", "--eval_interval=50"]
    mini = ["config/bert_mini.py", "--data_dir=data/sympy/bytes", "--dropout=0", "--attn_dropout=0",
            f"--batch_size={N_ROWS}", "--max_iters=10", "--eval_interval=5", "--eval_iters=1", "--threads=2"]
    two_processes = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    for flags in small, mini:
        cfg = config.load(flags)
        torch.set_num_threads(cfg.threads)
        sides = [bare_step(cfg), partial(step_of_train_py, cfg, "train.py", *flags)]
        if flags is mini and not GPU:
            sides.append(partial(step_of_train_py, cfg, *two_processes, "train.py", *flags, "--threads=1"))
        bare, ours, *others = in_turns(*sides, measure=lambda step: step())
        two = others[0] if others else nan
        row(flags[0], ours / bare, two / ours, ours, bare, two)
    torch.set_num_threads(THREADS)


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
        ours = partial(python, "analyze.py", "--hf", folder)
        b, c = in_turns(ours, peers.products_of_wqk(32, 1024, DEVICE), turns=2)
        row("analyze.py --hf, 32 layers", nan, b / c, nan, b, c)


# ---- waiting, preparing ------------------------------------------------------------------------------------------


def first_step():
    """python train.py, until it has told the loss after its first step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", "--eval_interval=1", f"--out_dir={folder}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
            next(line for line in run.stdout if line.startswith("step 1,"))
            run.kill()


def bench_waiting(nanogpt):
    prepare.make(Path("data/sympy/bytes"))
    head("waiting for", "[s]")
    for name, f in {
        "import torch, to compare with": partial(python, "-c", "import torch"),
        "train.py --help": partial(python, "train.py", "--help"),
        "train.py --n_layers=4, which is refused": partial(python, "train.py", "--n_layers=4", status=1),
        "analyze.py --help": partial(python, "analyze.py", "--help"),
        "analyze.py --limit=4, which is refused": partial(python, "analyze.py", "--limit=4", status=2),
        "train.py, the loss after its first step": first_step,
    }.items():
        row(name, *in_turns(f))


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def measured(*words):
    """Runs a command in a new folder. Returns its seconds, and the memory [GB] of the largest of its processes."""
    command = [sys.executable, "-c", MEASURE, sys.executable, *words]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        kilobytes = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin, int(kilobytes.stdout) / 1e6


def bench_preparing(nanogpt):
    head("preparing", "nanoGPT's way / ours", "nanoGPT's way [s]", "ours [s]", "ours [MB/s]", "nanoGPT's way [GB]",
         "ours [GB]")
    texts = list(prepare.read(prepare.find_sympy()))
    size = sum(len(text.encode()) for text in texts) / 1e6
    t, gb = measured(ROOT / "data/sympy/prepare.py", "--out_dir=corpus")
    row(f"{size:.0f} MB, bytes", nan, nan, t, size / t, nan, gb)
    for copies in 1, 3:
        with tempfile.TemporaryDirectory() as folder:
            for i, text in enumerate(texts):
                Path(folder, f"{i}.txt").write_text(copies * text)
            their_t, their_gb = measured("-c", peers.PREPARE, folder)
            t, gb = measured(ROOT / "data/text/prepare.py", folder, "--tokenizer=gpt2", "--out_dir=corpus")
        row(f"{copies * size:.0f} MB, gpt2", their_t / t, their_t, t, copies * size / t, their_gb, gb)


BENCHES = dict(  # in this order, because models are scored by a process that does not keep its memory
    scores=bench_scores, train=bench_train, steps=bench_steps, waiting=bench_waiting, preparing=bench_preparing)


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
