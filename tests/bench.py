"""
How fast, against what people would use instead, as ratios within one run:

    python tests/bench.py                # or some of: score train memory data write processes
    python tests/bench.py layer          # of score alone: layer updates checkpoint bin
    python tests/bench.py --cpu train    # the CPU time of one thread, on a machine that does other work as well

A ratio above 1 means that ours is faster, or smaller. Both sides do the same work on the same machine with the same
threads, in turns, after a warm-up; the ratio is that of the medians. Needs tests/requirements.txt. About ten minutes on
two cores; on a GPU the train rows are BERT of 12 layers, in bfloat16.
"""

import contextlib
import io
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import analyze
import train
from config._place import Place
from config import load
from data import tokens, writer
from data.batches import get_batch
from data.pretrained.layouts import find_stacks
from data.pretrained.sources import open_checkpoint
from data.stdlib import prepare
from model import ModelConfig, Transformer, count_flops

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
CPU_TIME = "--cpu" in sys.argv
HEAD_DIM = 128  # LLaMA-3-8B's


def seconds(f):
    if GPU:
        torch.cuda.synchronize()
    clock = time.process_time if CPU_TIME else time.perf_counter
    begin = clock()
    f()
    if GPU:
        torch.cuda.synchronize()
    return clock() - begin


def ratio(theirs, ours, repeats, warmup=2):
    """-> (their median / our median, theirs, ours), in turns so that a drift of the machine's speed meets both."""
    for _ in range(warmup):
        theirs(), ours()
    times = [(seconds(theirs), seconds(ours)) for _ in range(repeats)]
    a, b = (median(column) for column in zip(*times))
    return a / b, a, b


def peak_resident():
    """The most memory [bytes] that this process has had (Linux). ru_maxrss would begin with that of its parent."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def head(*cells):
    print("\n| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|")


def row(name, *cells):
    print(f"| {name} | " + " | ".join(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells) + " |", flush=True)


# ---- scores ------------------------------------------------------------------------------------------------------


def plain_scores(q, k, group):
    """
    What one would write first, from the weights of two Linear layers, q (H D, C) and k (Hkv D, C): repeat every key
    head for the group of queries that meets it, form M in float32, add its transpose, take norms.
    """
    k = k.unflatten(0, (-1, HEAD_DIM)).repeat_interleave(group, 0).flatten(0, 1)
    m = q.float().T @ k.float()  # (C, C)
    sym, skew = (m + m.T) / 2, (m - m.T) / 2
    s = (sym.norm() ** 2 - skew.norm() ** 2) / m.norm() ** 2
    rows, columns = m.norm(dim=1), m.norm(dim=0)
    r, c = ((x - x.mean() - 2 * x.std()).clamp_min(0).sum() for x in (rows, columns))
    printed_r, printed_c = (x[x > x.mean() + 2 * x.std(correction=0)].sum() for x in (rows, columns))
    return float(s), float((r - c) / (r + c)), float((printed_r - printed_c) / (printed_r + printed_c))


def bench_score():
    bench_layer()
    bench_updates()
    bench_checkpoint()
    bench_bin()


def bench_layer():
    head("scores of a layer of LLaMA-3-8B's shape, bfloat16", "plain / ours", "plain [s]", "ours [s]")
    q = torch.randn(4096, 4096, device=DEVICE).bfloat16()  # nn.Linear stores (out, in)
    k = torch.randn(1024, 4096, device=DEVICE).bfloat16()
    w_q = q.unflatten(0, (-1, HEAD_DIM)).mT  # (32, C, D), views as those that layouts.py finds
    w_k = k.unflatten(0, (-1, HEAD_DIM)).mT  # (8, C, D)

    def plain():
        return plain_scores(q, k, 4)

    def ours():
        return analyze.scores(*analyze.layer_factors(w_q, w_k))

    def plain_heads():
        return [plain_scores(w_q[h].mT, w_k[h // 4].mT, 1) for h in range(32)]

    def our_heads():
        return analyze.head_scores(w_q, w_k)

    # Not the third score: a norm at the threshold may pass or not, and counts whole.
    assert np.allclose(plain()[:2], [float(x) for x in ours()[:2]], atol=1e-4)
    row("the layer", *ratio(plain, ours, 5, 1))
    assert np.allclose(np.array(plain_heads())[:, :2], np.array(our_heads())[:, :2], atol=1e-4)
    row("its 32 heads", *ratio(plain_heads, our_heads, 3, 0))


def bench_updates():
    """What train.py computes between two steps, to write scores.csv."""
    head("scores during training", "step / scores", "step [s]", "scores [s]")
    model = Transformer(ModelConfig(1000, 512, 12, 12, 768)).to(DEVICE)
    factors = [w.detach() for w in train.stacked_qk(model)]
    before = [w + 1e-3 * torch.randn_like(w) for w in factors]
    idx, targets, positions = batch(1000, False, 2)
    step = training_step(model, lambda: model(idx, targets, positions), "float32")
    row("every layer and head of BERT 12, and their updates; a step of 2 x 512",
        *ratio(step, lambda: analyze.score_rows(0, 12, factors, before), 3, 1))


def bench_checkpoint():
    """Files of LLaMA-3-8B's shape, of 8 layers for the time, of all 32 for the bytes and the memory."""
    with tempfile.TemporaryDirectory() as folder:
        fake_llama(folder, 8)

        def plain():
            with safe_open(Path(folder, "model.safetensors"), "pt") as file:
                for i in range(8):
                    name = f"model.layers.{i}.self_attn."
                    plain_scores(file.get_tensor(name + "q_proj.weight"), file.get_tensor(name + "k_proj.weight"), 4)

        def ours():
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                with contextlib.suppress(SystemExit):  # with status 0, as a command ends
                    analyze.main(["--hf", folder])

        head("8 layers of a checkpoint of LLaMA-3-8B's shape", "plain / ours", "safetensors, plain [s]",
             "analyze.py --hf [s]")
        row("from the file to the table", *ratio(plain, ours, 3, 1))
    with tempfile.TemporaryDirectory() as folder:
        fake_llama(folder, 32)
        code = f"import analyze\ntry: analyze.main(['--hf', {folder!r}])\nexcept SystemExit: pass\n" \
               "from tests import bench; print(bench.peak_resident() / 1e9)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    took = next(line for line in done.stderr.replace("\r", "\n").splitlines() if ": read" in line).split(": ")[1]
    resident = float(done.stdout.split()[-1])
    print(f"\nA checkpoint of LLaMA-3-8B's shape: {took}, largest resident size {resident:.2f} GB")


def bench_bin():
    head("the queries and keys of a pytorch_model.bin", "whole / ours", "whole [bytes]", "ours [bytes]")
    row("BERT 12 with its head, float32", *bytes_of_a_bin(BertForMaskedLM(BertConfig())))


def bytes_of_a_bin(model):
    """-> whole / ours, bytes of the file, bytes that are read of it; as many as would travel from the Hub."""
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), Path(folder, "pytorch_model.bin"))
        with open_checkpoint(folder) as checkpoint:
            shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
            layers = [layer for stack in find_stacks(checkpoint.config, shapes) for layer in stack.layers]
            for _ in checkpoint.stream([layer.names for layer in layers]):
                pass
            return checkpoint.size / checkpoint.bytes_read, checkpoint.size, checkpoint.bytes_read


def fake_llama(folder, n_layer):
    """A sparse model.safetensors, 16 GB at 32 layers, in which only the queries and keys take room on the disk."""
    config = dict(model_type="llama", num_hidden_layers=n_layer, num_attention_heads=32, num_key_value_heads=8)
    shapes = {"model.embed_tokens.weight": (128256, 4096), "lm_head.weight": (128256, 4096)}
    for i in range(n_layer):
        shapes |= {f"model.layers.{i}.self_attn.{n}_proj.weight": (4096 if n in "qo" else 1024, 4096) for n in "qkvo"}
        shapes |= {f"model.layers.{i}.mlp.{n}_proj.weight": (14336, 4096) for n in ("gate", "up", "down")}
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[end, end := end + 2 * shape[0] * shape[1]])
    head = json.dumps(header).encode()
    Path(folder, "config.json").write_text(json.dumps(config))
    with open(Path(folder, "model.safetensors"), "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        f.truncate(8 + len(head) + end)
        for name, entry in header.items():
            if "q_proj" in name or "k_proj" in name:
                f.seek(8 + len(head) + entry["data_offsets"][0])
                f.write(torch.randn(entry["shape"]).bfloat16().view(torch.uint8).numpy().tobytes())


# ---- training ----------------------------------------------------------------------------------------------------


class RandomTokens(int):
    """A stream of 10^9 of them, below the number that it is."""

    def __len__(self):
        return 10**9

    def rows(self, starts, length):
        return np.random.default_rng(0).integers(0, self, (len(starts), length))


def batch(vocab_size, causal, rows, block_size=512):
    cfg = SimpleNamespace(block_size=block_size, batch_size=rows, predicts_next=causal, mlm_probability=0.15)
    meta = dict(n_vocab=vocab_size, mask_token=vocab_size - 1)
    found = get_batch(cfg, meta, RandomTokens(vocab_size), 0, 0, np.arange(rows))
    return (*(x.to(DEVICE) for x in found), *([None] if causal else []))


def training_step(model, loss, dtype, fused=True):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fused)

    def step():
        with torch.autocast(DEVICE.type, getattr(torch, dtype), dtype != "float32"):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def sides(vocab_size, causal, rows, sizes, dtype, compile, as_it_comes=False):
    """
    Their training step and ours, on the same batch. Like for like: no dropout, fused AdamW. As it comes: theirs eager,
    with BERT's dropout and torch's default AdamW; ours as the configs for CPUs are.
    """
    n_layer, n_head, n_embd = sizes
    dropout = 0.1 * as_it_comes
    config = BertConfig(vocab_size=vocab_size, hidden_size=n_embd, num_hidden_layers=n_layer,
                        num_attention_heads=n_head, intermediate_size=4 * n_embd, is_decoder=causal, use_cache=False,
                        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    hf = (BertLMHeadModel if causal else BertForMaskedLM)(config).to(DEVICE).train()
    ours = Transformer(ModelConfig(vocab_size, 512, n_layer, n_head, n_embd, 0.0, 0.0, causal)).to(DEVICE).train()
    idx, targets, positions = batch(vocab_size, causal, rows)
    labels = idx if causal else torch.full_like(idx, -100).scatter(1, positions, targets)
    if compile:
        ours.compile(dynamic=False)
        if not as_it_comes:
            hf.compile()
    return (training_step(hf, lambda: hf(input_ids=idx, labels=labels).loss, dtype, fused=not as_it_comes),
            training_step(ours, lambda: ours(idx, targets, positions), dtype))


def cases():
    if GPU:
        yield "encoder, BERT 12, 30,522 tokens, bfloat16, compiled", 30522, False, 32, (12, 12, 768), "bfloat16", True
        yield "decoder, BERT 12, 50,304 tokens, bfloat16, compiled", 50304, True, 32, (12, 12, 768), "bfloat16", True
    else:
        mini = 8, (4, 4, 256)
        yield "encoder, 30,522 tokens, float32", 30522, False, *mini, "float32", False
        yield "encoder, 30,522 tokens, bfloat16, compiled", 30522, False, *mini, "bfloat16", True
        yield "encoder, 258 tokens (bytes), bfloat16, compiled", 258, False, *mini, "bfloat16", True
        yield "decoder, 50,304 tokens, float32", 50304, True, *mini, "float32", False
        yield "decoder, 50,304 tokens, bfloat16, compiled", 50304, True, *mini, "bfloat16", True


def matrix_rate(dtype, n=8192 if GPU else 2048):
    """What one large matrix product gets here [operations/s]."""
    x = torch.randn(n, n, device=DEVICE, dtype=getattr(torch, dtype))
    x @ x
    return 2 * n**3 / median(seconds(lambda: x @ x) for _ in range(9))


def bench_train():
    """The share counts the products of our step as train.py does, those of attention as if there were no mask."""
    head("training step against transformers", "like for like", "theirs [s]", "ours [s]", "as each comes",
         "ours: share of the rate of matrix products")
    for name, *case in cases():
        torch._dynamo.reset()
        alike = ratio(*sides(*case), 7)
        torch._dynamo.reset()
        vocab_size, causal, rows, sizes, dtype, _ = case
        n_targets = batch(vocab_size, causal, rows)[1].shape[1]
        flops = rows * count_flops(ModelConfig(vocab_size, 512, *sizes, causal=causal), n_targets)
        share = flops / alike[2] / matrix_rate(dtype)
        row(name, *alike, ratio(*sides(*case, as_it_comes=True), 4)[0], share)
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads, "
          f"{torch.cuda.get_device_name() if GPU else 'CPU'}{', CPU time' if CPU_TIME else ''}")


def peak(name, side, case):
    """Peak memory of three steps of one side [GB] over what it takes without a step, in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests import bench\n" \
           f"bench.report_peak({side}, {case!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def report_peak(side, case):
    step = sides(*case)[side]
    before = torch.cuda.memory_allocated() if GPU else peak_resident()
    for _ in range(3):
        step()
    print(((torch.cuda.max_memory_allocated() if GPU else peak_resident()) - before) / 1e9)


def bench_memory():
    head("peak memory of training steps", "theirs / ours", "theirs [GB]", "ours [GB]")
    for name, *case in cases():
        theirs, ours = (peak(name, side, tuple(case)) for side in (0, 1))
        row(name, theirs / ours, theirs, ours)


def corpus_and_config(folder):
    prepare.main(["--tokenizer=bytes", f"--out_dir={folder}"])
    return tokens.load(folder), load([str(ROOT / "config" / "tiny.py")])


def bench_data():
    """The loader alone against training, both of config/tiny.py."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, cfg = corpus_and_config(folder)
        run, step = train.Trainer(cfg, Place(0, 1, torch.device("cpu")), corpus), itertools.count()
        ready = run.loader.train_batch(0)
        head("data", "step / batch", "training step [s]", "making its batch [s]")
        row("config/tiny.py", *ratio(lambda: run.train_step(ready), lambda: run.loader.train_batch(next(step)), 40))


def bench_write():
    """The writer of all prepare scripts, shards on disk included, against tiktoken's batches of the same documents."""
    import tiktoken

    gpt2, threads, out = tiktoken.get_encoding("gpt2"), torch.get_num_threads(), itertools.count()
    texts = [text for name in prepare.names() for text in prepare.read(name, None)]
    with tempfile.TemporaryDirectory() as folder:
        def ours(tokenizer):
            argv = [f"--tokenizer={tokenizer}", f"--num_proc={threads}", f"--out_dir={folder}/{next(out)}"]
            args = writer.command_line("stdlib", "", argv).parse_args(argv)
            writer.write(args, "memory", [0], lambda part, note: texts)

        head("gpt2 tokens of the standard library", "tiktoken / ours", "tiktoken [s]", "ours [s]")
        row("encode_ordinary_batch", *ratio(lambda: gpt2.encode_ordinary_batch(texts, num_threads=threads),
                                            lambda: ours("gpt2"), 5, 1))
        size = sum(len(text.encode()) for text in texts)
        print(f"\nbytes: {size / median(seconds(lambda: ours('bytes')) for _ in range(5)) / 1e6:.0f} MB/s")


def bench_processes():
    """Two processes of one thread against one of two, tokens/s of the last row of log.csv, three runs of each."""
    rates, torchrun = {}, ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    fixed = """--max_iters=60 --warmup_iters=10 --n_layer=4 --n_head=4 --n_embd=256 --block_size=128 --batch_size=32
        --micro_batch_size=32 --eval_interval=30 --eval_iters=1 --score_interval=60""".split()
    with tempfile.TemporaryDirectory() as folder:
        corpus_and_config(folder)
        for i in range(3):
            for n, threads in (2, 1), (1, 2):
                out = Path(folder, f"{n}-{i}")
                flags = [f"--data_dir={folder}", f"--out_dir={out}", f"--threads={threads}", *fixed]
                command = [sys.executable, *(torchrun if n == 2 else []), str(ROOT / "train.py"), *flags]
                subprocess.run(command, check=True, capture_output=True)
                rates.setdefault(n, []).append(float((out / "log.csv").read_text().split(",")[-1]))
    head("processes", "ratio", "one process of two threads [tokens/s]", "two of one thread [tokens/s]")
    row("BERT-mini, bytes, batch of 32 x 128", median(rates[2]) / median(rates[1]), median(rates[1]), median(rates[2]))


ROWS = dict(score=bench_score, train=bench_train, memory=bench_memory, data=bench_data, write=bench_write,
            processes=bench_processes)
ROWS_OF_SCORE = dict(layer=bench_layer, updates=bench_updates, checkpoint=bench_checkpoint, bin=bench_bin)


def main(argv):
    rows = ROWS | ROWS_OF_SCORE
    names = [word for word in argv if word != "--cpu"]
    for name in names:
        if name not in rows:
            sys.exit(f"tests/bench.py: no row is called {name}: there are {', '.join(rows)}")
    if CPU_TIME:
        torch.set_num_threads(1)
    for name in names or ROWS:
        rows[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
