"""
Train the paper's encoder or decoder, and watch the symmetry and directionality of W_qk as it learns.

    python train.py                                              # config/tiny.py: an encoder on a CPU, minutes
    python train.py config/tiny_decoder.py --seed=2              # any key of --help can follow the file
    python train.py config/tiny.py --init_from=resume            # go on, exactly, from out/tiny/ckpt.pt
    torchrun --nproc_per_node=8 train.py config/bert_symm.py     # the paper's experiment on eight GPUs

Writes into out_dir: log.csv and scores.csv as it goes, ckpt.pt at every evaluation, and at the end run.png and the
model as a Hugging Face BERT (model.safetensors, config.json).
"""

import contextlib
import math
import os
import pickle
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import analyze
import init
from config import ConfigError, load
from data import tokens
from data.results import runs
from data.batches import get_batch
from data.pretrained.sources import CheckpointError, open_checkpoint
from data.stdlib import prepare
from model import ModelConfig, Transformer, load_hf, to_hf

READ_EVERY = 10  # updates between looks at the loss: the host waits for the device then, and at no other time
RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))  # by torchrun, which repeats the command line as it was


class TrainError(Exception):
    """What stopped a run, in one line."""


# ---- where: one process, or one of torchrun's --------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    rank: int
    world: int
    device: torch.device

    def mean(self, x):
        """The mean over processes of a tensor of this one."""
        if self.world > 1:
            dist.all_reduce(x)
        return x / self.world

    def say(self, text):
        if self.rank == 0:
            tqdm.write(text)


def find_place(cfg):
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    name = cfg.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and "RANK" in os.environ:  # else each rank puts something on the first GPU
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as e:  # torch asserts where it was built without CUDA
        raise ConfigError(f"device = {cfg.device!r} cannot be used: {str(e).splitlines()[0]}")
    if "RANK" not in os.environ:
        return Place(0, 1, device)
    store, rank, world = next(dist.rendezvous("env://"))
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world):  # one node: the store still has the dead's addresses
        store = dist.PrefixStore(f"start {RESTARTS}", store)
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=world,
                            device_id=device if gpu else None)
    return Place(dist.get_rank(), dist.get_world_size(), device)


def split_batch(cfg, world):
    """-> (rows of the global batch for each process, rows of a micro-batch)."""
    per_rank, rest = divmod(cfg.batch_size, world)
    micro = min(cfg.micro_batch_size, per_rank)
    if rest or per_rank % micro:
        raise ConfigError(f"batch_size = {cfg.batch_size}, expected a multiple of {world} processes x micro_batch_size "
                          f"= {cfg.micro_batch_size}")
    return per_rank, micro


def open_corpus(cfg, place):
    """The token files of cfg.data_dir; those of the standard library are made when they are missing."""
    path = Path(cfg.data_dir)
    if path.parts[-3:-1] == ("data", "stdlib") and not (path / "meta.json").exists() and place.rank == 0:
        prepare.main([f"--tokenizer={path.name}", f"--out_dir={path}"])
    if place.world > 1:
        dist.barrier()
    corpus = tokens.load(path)
    for stream, rows in (corpus.train, 1), (corpus.val, cfg.eval_iters * cfg.batch_size):
        if len(stream) <= rows * cfg.block_size:
            raise ConfigError(f"data_dir = {cfg.data_dir}: a split of {len(stream):,} tokens, expected more than "
                              f"{rows:,} x block_size = {rows * cfg.block_size:,}; lower eval_iters or prepare more")
    return corpus


# ---- what is trained ---------------------------------------------------------------------------------------------


def build_model(cfg, meta):
    """The model at its start, seeded on the CPU, so that it is the same for every device."""
    torch.manual_seed(cfg.seed)
    model = Transformer(ModelConfig(meta["vocab_size"], cfg.block_size, cfg.n_layer, cfg.n_head, cfg.n_embd,
                                    cfg.dropout, cfg.attn_dropout, cfg.causal, cfg.qk_norm, cfg.diagonal))
    if cfg.init_from in ("scratch", "resume"):
        init.apply_(model, cfg.init, cfg.qk_std, cfg.v_std, cfg.seed)
        return model
    with open_checkpoint(cfg.init_from) as checkpoint:
        (state,) = checkpoint.stream([list(checkpoint.tensors)], zeros=True)
    try:
        load_hf(model, state)
    except (KeyError, ValueError) as e:
        raise CheckpointError(f"{cfg.init_from} is not the BERT that this configuration describes: {e.args[0]}")
    return model


def make_optimizer(cfg, model):
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == m] for m in (True, False))
    groups = [dict(params=matrices, weight_decay=cfg.weight_decay), dict(params=vectors, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(0.9, cfg.beta2), fused=True)


def learning_rate(cfg, step):
    """Linear warm-up to cfg.learning_rate, then linear decay that would reach 0 at max_iters."""
    rise, fall = (step + 1) / max(1, cfg.warmup_iters), (cfg.max_iters - step) / (cfg.max_iters - cfg.warmup_iters)
    return cfg.learning_rate * min(rise, fall)


def stacked_qk(model):
    """W_q and W_k of every layer, each (L, C, C)."""
    attns = [block.attn for block in model.blocks]
    return torch.stack([a.q.weight.T for a in attns]), torch.stack([a.k.weight.T for a in attns])


def constraint(cfg, model):
    """|M|^2 / |M_s|^2, Eq. (S147), or |M|^2 / |M_n|^2, Eq. (S148), mean over layers: 2 / (1 +- s), at least 1."""
    s = analyze.scores(*stacked_qk(model)).symmetry
    return (2 / (1 + s if cfg.constraint == "symmetric" else 1 - s)).mean()


class Run:
    """All that a step touches: the model, its optimizer, and what was seen since the last row of log.csv."""

    def __init__(self, cfg, place, corpus):
        self.cfg, self.place, self.corpus, self.out = cfg, place, corpus, Path(cfg.out_dir)
        per_rank, self.micro = split_batch(cfg, place.world)
        self.rows = np.arange(place.rank * per_rank, (place.rank + 1) * per_rank)
        self.model = self.net = build_model(cfg, corpus.meta).to(place.device)
        self.optimizer = make_optimizer(cfg, self.model)
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=cfg.dtype == "float16")
        self.step, self.scored_qk = 0, None
        self.losses, self.unread, self.seconds = [], [], 0.0  # since the last row: losses read, and still on the device
        if cfg.compile == "on" or cfg.compile == "auto" and place.device.type == "cuda":
            self.compile()
        if place.world > 1:
            self.net = DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def batch(self, stream, seed, step):
        """This process's rows of a global batch, on the CPU, pinned for a GPU."""
        batch = get_batch(self.cfg, self.corpus.meta, stream, seed, step, self.rows)
        return [x.pin_memory() for x in batch] if self.place.device.type == "cuda" else batch

    def batches(self):
        """The batches of the steps to come; the next one is made and masked in another thread meanwhile."""
        with ThreadPoolExecutor(1) as thread:
            ahead = None
            for step in range(self.step, self.cfg.max_iters + 1):
                made, ahead = ahead, thread.submit(self.batch, self.corpus.train, self.cfg.seed, step)
                if made:
                    yield made.result()

    def micro_batches(self, batch):
        return list(zip(*(x.to(self.place.device, non_blocking=True).split(self.micro) for x in batch)))

    def autocast(self):
        return torch.autocast(self.place.device.type, getattr(torch, self.cfg.dtype), self.cfg.dtype != "float32")

    def compile(self):
        """Compile the model, and go on without, with one line, where there is no compiler that works."""
        self.model.compile(dynamic=False)
        try:
            with self.autocast():
                self.model(*self.micro_batches(self.batch(self.corpus.train, 0, 0))[0]).backward()
        except RuntimeError as e:  # TorchDynamoException and InvalidCxxCompiler are RuntimeErrors
            self.place.say(f"torch.compile does not work here, going on without it: {str(e).strip().splitlines()[0]}")
            torch.compiler.set_stance("force_eager")
        self.optimizer.zero_grad()

    def train_step(self, batch):
        """One update from this process's rows of the global batch."""
        cfg, total = self.cfg, 0.0
        micros = self.micro_batches(batch)
        for i, micro in enumerate(micros):
            first_row = int(self.rows[i * self.micro])  # dropout, too, is a function of (seed, step, row)
            torch.manual_seed(int(np.random.SeedSequence([cfg.seed, self.step, first_row]).generate_state(1)[0]))
            more = self.place.world > 1 and i + 1 < len(micros)
            with self.net.no_sync() if more else contextlib.nullcontext():
                with self.autocast():
                    loss = self.net(*micro)
                total += loss.detach() / len(micros)
                if cfg.constraint != "none":
                    loss = loss + cfg.constraint_weight * constraint(cfg, self.model)
                self.scaler.scale(loss / len(micros)).backward()  # backward() sums, and we want the mean
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.grad_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(cfg, self.step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.unread.append(total)
        self.step += 1

    def fail(self, step, what):
        raise TrainError(f"step {step}: {what}; lower learning_rate or use another dtype (what {self.out}/ckpt.pt "
                         "holds, if there is one, is good)")

    def read_losses(self):
        """Bring the losses of the last steps to the host; the run ends if one, or every gradient, is not finite."""
        losses = self.place.mean(torch.stack(self.unread)).tolist()
        for i, loss in enumerate(losses):
            if not math.isfinite(loss):
                self.fail(self.step - len(losses) + i + 1, f"the loss is {loss}")
        if self.scaler.get_scale() < 1:  # above float16's largest number, or nan: no lower scale would help
            self.fail(self.step, "float16 gradients overflow at every scale of the loss down to 1")
        self.losses += losses
        self.unread = []

    @torch.no_grad()
    def evaluate(self):
        """The mean loss [nats/token] over eval_iters validation batches, the same ones whatever the seed."""
        self.model.eval()
        losses = []
        for i in range(self.cfg.eval_iters):
            for micro in self.micro_batches(self.batch(self.corpus.val, 0, i)):
                with self.autocast():
                    losses.append(self.model(*micro))
        self.model.train()
        return self.place.mean(torch.stack(losses).mean()).item()

    def tokens_per_s(self):
        return len(self.losses) * self.cfg.batch_size * self.cfg.block_size / self.seconds

    def write_log(self):
        val_loss, tokens = self.evaluate(), self.step * self.cfg.batch_size * self.cfg.block_size
        row = [self.step, tokens, "", f"{val_loss:.6f}", "", ""]
        if self.losses:
            row = [self.step, tokens, f"{sum(self.losses) / len(self.losses):.6f}", f"{val_loss:.6f}",
                   f"{learning_rate(self.cfg, self.step - 1):.6g}", f"{self.tokens_per_s():.0f}"]
        if self.place.rank == 0:
            runs.append(self.out / "log.csv", runs.LOG, [row])
        self.losses, self.seconds = [], 0.0
        self.place.say(f"step {self.step}: validation loss {val_loss:.4f}")

    @torch.no_grad()
    def write_scores(self):
        if self.place.rank == 0:
            now = stacked_qk(self.model)
            rows = analyze.score_rows(self.step, self.cfg.n_head, now, self.scored_qk)
            runs.append(self.out / "scores.csv", runs.SCORES, rows)
            self.scored_qk = now

    def save(self):
        """ckpt.pt: all that resuming needs. There is no random state in it, because nothing random has one."""
        if not all(x.isfinite().all() for x in self.model.parameters()):  # losses tell a step later
            self.fail(self.step, "weights are no longer finite")
        if self.place.rank == 0:
            state = dict(config=asdict(self.cfg), data=self.corpus.meta, step=self.step, model=self.model.state_dict(),
                         optimizer=self.optimizer.state_dict(), scaler=self.scaler.state_dict(),
                         scored_qk=self.scored_qk, losses=self.losses)
            with runs.replacing(self.out / "ckpt.pt") as path, open(path, "wb") as f:
                torch.save(state, f)

    def begin(self):
        """Go on where ckpt.pt stands, or start a run in an out_dir that has none."""
        path = self.out / "ckpt.pt"
        restarts = self.place.mean(torch.tensor(float(RESTARTS), device=self.place.device))  # each node has its count
        resume = self.cfg.init_from == "resume" or restarts > 0
        if path.exists() and not resume:
            raise TrainError(f"{self.out} holds a run already: go on with --init_from=resume, or set --out_dir")
        if path.exists():
            self.resume(path)
        elif resume:
            self.place.say(f"{self.out} has no checkpoint yet: starting from the beginning")
        if self.place.rank == 0:  # rows that a killed run wrote after its last checkpoint
            for name, header in ("log.csv", runs.LOG), ("scores.csv", runs.SCORES):
                runs.cut(self.out / name, header, self.step or -1)  # those of step 0 will be written again

    def resume(self, path):
        try:
            state = torch.load(path, map_location=self.place.device, weights_only=True)
            both = (state["config"], state["data"]), (asdict(self.cfg), self.corpus.meta)
            theirs, ours = (config | {f"{k} of data_dir": meta[k] for k in ("tokenizer", "tokens", "checksum")}
                            for config, meta in both)
            free = runs.FREE - {"seed"} - ({"init_from"} if self.cfg.init_from != "resume" else set())
            for name in sorted(ours.keys() - free):
                if theirs[name] != ours[name]:
                    raise TrainError(f"{path} is of another run: {name} = {theirs[name]!r} there, {ours[name]!r} here")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            self.step, self.scored_qk, self.losses = state["step"], state["scored_qk"], state["losses"]
        except (RuntimeError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as e:
            raise TrainError(f"{path} is not a checkpoint that can be resumed: {str(e).splitlines()[0]}")

    def export(self):
        """The model as a Hugging Face BERT, a picture of the run, and a table of its last scores."""
        if self.place.rank == 0:
            try:
                runs.save_hf(self.out, *to_hf(self.model))
            except ValueError as e:
                self.place.say(f"no model.safetensors: {e}")
            print(analyze.report_run(self.out))


def loop(run, stop):
    """
    Train until max_iters -> False; or, once `stop` of any process holds a signal, until a checkpoint is made -> True.
    The clock of tokens_per_s stands still while scores, evaluations and checkpoints are made.
    """
    cfg, place, interrupted = run.cfg, run.place, False
    with tqdm(total=cfg.max_iters, initial=run.step, unit="step", disable=place.rank > 0, dynamic_ncols=True) as bar:
        if run.step == 0:
            run.write_scores()
            run.write_log()
            run.save()
        began = time.perf_counter()
        for batch in runs.traced(run.batches(), run.out / "trace.json", cfg.profile and place.rank == 0):
            run.train_step(batch)
            logs, scores = (run.step % n == 0 or run.step == cfg.max_iters
                            for n in (cfg.eval_interval, cfg.score_interval))
            if logs or scores or run.step % READ_EVERY == 0 or stop and place.world == 1:
                run.read_losses()
                run.seconds += time.perf_counter() - began
                interrupted = place.mean(torch.tensor(float(len(stop)), device=place.device)) > 0
                bar.set_postfix_str(f"loss {run.losses[-1]:.3f}, {run.tokens_per_s():,.0f} tokens/s", refresh=False)
                bar.update(run.step - bar.n)
                if scores:
                    run.write_scores()
                if logs:
                    run.write_log()
                if logs or interrupted:
                    run.save()
                if interrupted:
                    return run.step < cfg.max_iters
                began = time.perf_counter()
    return False


def train(cfg, place):
    run = Run(cfg, place, open_corpus(cfg, place))
    run.begin()
    n_params = sum(p.numel() for p in run.model.parameters())
    place.say(f"{run.out}: {'decoder' if cfg.causal else 'encoder'} of {cfg.n_layer} layers, {n_params / 1e6:.2f} M "
              f"parameters, on {place.device} ({cfg.dtype})\n"
              f"batch of {cfg.batch_size} = {place.world} processes x {len(run.rows) // run.micro} micro-batches x "
              f"{run.micro} sequences of {cfg.block_size} tokens; {len(run.corpus.train):,} training tokens")
    stop = []
    before = {s: signal.signal(s, lambda signum, _: stop.append(signum)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        interrupted = loop(run, stop)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if interrupted:
        place.say(f"stopped at step {run.step}; --init_from=resume goes on from {run.out}/ckpt.pt")
        sys.exit(128 + max(stop, default=signal.SIGTERM))
    run.export()


def main(argv):
    try:
        if not any(not a.startswith("-") for a in argv):
            argv = [str(Path(__file__).parent / "config" / "tiny.py"), *argv]
        cfg = load(argv)
        train(cfg, find_place(cfg))
    except KeyboardInterrupt:  # before training began: later ones end in a checkpoint
        sys.exit(128 + signal.SIGINT)
    except (ConfigError, TrainError, tokens.DataError, CheckpointError, runs.RunError, OSError) as e:
        sys.exit(f"train.py: {e}")
    except RuntimeError as e:
        if not isinstance(e, dist.DistError) and "gloo" not in str(e):  # Gloo raises no class of its own
            raise
        print(f"train.py: a process of this run is gone; --init_from=resume goes on from {cfg.out_dir}/ckpt.pt",
              file=sys.stderr)
        sys.stdout.flush()
        os._exit(1)  # sys.exit can wait for ever: the destructors of DDP and of Gloo's threads wait for each other
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
