"""
Train the paper's encoder or decoder, and watch the symmetry and directionality of W_qk as it learns.

    python train.py                                              # config/tiny.py: an encoder on a CPU, minutes
    python train.py config/tiny_decoder.py --seed=2              # any key of --help can follow the file
    python train.py config/tiny.py --init_from=resume            # go on, exactly, from out/tiny/ckpt.pt
    torchrun --nproc_per_node=8 train.py config/bert_symm.py     # the paper's experiment on eight GPUs

Writes into out_dir: run.json at once, log.csv and scores.csv as it goes, and at every evaluation ckpt.pt, the model as
a Hugging Face BERT (model.safetensors, config.json) and run.png. data/results/runs.py says what these hold. Ctrl-C,
SIGTERM and SIGHUP end in a checkpoint, and in status 130, 143 or 129; torchrun makes 1 of each.

Several nodes: on each, with its own --node_rank, and with out_dir and data_dir on a file system that all of them see,

    torchrun --nnodes=2 --node_rank=0 --master_addr=HOST --master_port=29500 --nproc_per_node=8 train.py ...

Where nodes hang at the start, try NCCL_IB_DISABLE=1, or name the network with NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME on
CPUs). Several jobs on one machine: torchrun --standalone. With --max-restarts=3 a run that loses a process goes on from
its last checkpoint by itself.
"""

import contextlib
import math
import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until training begins, Ctrl-C ends quietly: imports take seconds

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import analyze
import init
from config import ConfigError, load
from config._place import RESTARTS, find_place, first_line, is_lost_process, is_out_of_memory, require_memory
from data import tokens
from data.loader import Loader, open_corpus
from data.pretrained.sources import CheckpointError, open_checkpoint
from data.results import figures, runs, samples
from data.results.report import report_run
from model import ModelConfig, Transformer, load_hf, to_hf

READ_EVERY = 10  # updates between looks at the loss: the host waits for the device then, and at no other time
DRAW_EVERY = 10  # seconds between two pictures of a run, at least: drawing one takes about as long as 20 small steps


class TrainError(Exception):
    """What stopped a run, in one line."""


# ---- the model and its start -------------------------------------------------------------------------------------


def build_model(cfg, meta):
    """The model at its start, drawn on the CPU, so that it is the same for every device."""
    torch.manual_seed(cfg.seed)
    model = Transformer(ModelConfig(
        vocab_size=meta["vocab_size"],
        block_size=cfg.block_size,
        n_layer=cfg.n_layer,
        n_head=cfg.n_head,
        n_embd=cfg.n_embd,
        dropout=cfg.dropout,
        attn_dropout=cfg.attn_dropout,
        causal=cfg.causal,
        qk_norm=cfg.qk_norm,
        diagonal=cfg.diagonal,
    ))
    if cfg.init_from in ("scratch", "resume"):  # the weights of a checkpoint come later, in Trainer.begin
        init.apply_(model, cfg.init, cfg.qk_std, cfg.v_std, cfg.seed)
        return model
    if not Path(cfg.init_from).is_dir():
        raise ConfigError(f"init_from = {cfg.init_from!r}, expected scratch, resume, or a folder with a model")
    with open_checkpoint(cfg.init_from) as checkpoint:
        (state,) = checkpoint.stream([list(checkpoint.tensors)], zeros=True)  # one group of tensors: all of them
    try:
        load_hf(model, checkpoint.config, state)
    except (KeyError, ValueError) as e:
        raise CheckpointError(f"it is not the BERT that this configuration describes: {e.args[0]}")
    return model


# ---- the optimiser -----------------------------------------------------------------------------------------------


def make_optimizer(cfg, model):
    """AdamW. Weight decay pulls towards 0: right for matrices, and wrong for LayerNorm's gains, which start at 1."""
    decay = [p for p in model.parameters() if p.ndim > 1]  # matrices and embeddings
    no_decay = [p for p in model.parameters() if p.ndim <= 1]  # biases and LayerNorm
    groups = [dict(params=decay, weight_decay=cfg.weight_decay), dict(params=no_decay, weight_decay=0.0)]
    # m = 0.9 m + 0.1 g and v = beta2 v + (1 - beta2) g^2 are running means of the gradient and of its square; a weight
    # moves by learning_rate m / sqrt(v), so by about learning_rate, however large or small its gradient is.
    # fused: one pass over the weights instead of one per operation.
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(0.9, cfg.beta2), fused=True)


def learning_rate(cfg, step):
    """Linear warm-up to cfg.learning_rate, then linear decay that would reach 0 at max_iters."""
    warmup_iters = min(cfg.warmup_iters, cfg.max_iters)  # a run that is shorter than its warm-up is all warm-up
    if step < warmup_iters:
        return cfg.learning_rate * ((step + 1) / warmup_iters)  # step + 1: at 0 the first update would be lost
    return cfg.learning_rate * ((cfg.max_iters - step) / (cfg.max_iters - warmup_iters))


# ---- what a step does --------------------------------------------------------------------------------------------


def stacked_qk(model):
    """W_q and W_k of every layer, each (L, C, C); nn.Linear stores (out, in), so the weight is transposed."""
    w_q = torch.stack([block.attn.q.weight for block in model.blocks])  # (L, C, C)
    w_k = torch.stack([block.attn.k.weight for block in model.blocks])  # (L, C, C)
    return w_q.mT, w_k.mT


def constraint(cfg, model):
    """
    What the loss adds to pull W_qk = M towards its symmetric part M_s or its skew part M_n: the mean over layers of
    |M|^2 / |M_s|^2, Eq. (S147), or |M|^2 / |M_n|^2, Eq. (S148), which is at least 1.
    """
    s = analyze.scores(*stacked_qk(model)).symmetry  # (L,), (|M_s|^2 - |M_n|^2) / |M|^2, and the parts sum to |M|^2
    if cfg.constraint == "symmetric":
        return (2 / (1 + s)).mean()  # |M_s|^2 = (1 + s) / 2 |M|^2
    return (2 / (1 - s)).mean()  # |M_n|^2 = (1 - s) / 2 |M|^2


class Trainer:
    """The model, its optimizer, and what was seen since the last row of log.csv."""

    def __init__(self, cfg, place, corpus):
        self.cfg, self.place, self.corpus = cfg, place, corpus
        self.out = Path(cfg.out_dir)
        self.loader = Loader(cfg, corpus, place.rank, place.world, place.device)  # its part of every batch
        require_memory(cfg, corpus.meta["vocab_size"], place.device)
        self.model = build_model(cfg, corpus.meta).to(place.device)
        self.net = self.model  # what a training step calls: the model, or DDP around it
        self.optimizer = make_optimizer(cfg, self.model)
        # float16 has no numbers below 6e-8: the loss is scaled up so that small gradients survive, and they down again
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=cfg.dtype == "float16")
        self.step = 0  # updates made
        self.scored_qk = None  # W_q and W_k at the last rows of scores.csv
        self.unread = []  # losses of the last updates, still on the device
        self.losses = []  # and on the host, since the last row of log.csv [nats/token]
        self.seconds = 0.0  # that these took
        self.drawn_at = time.monotonic()  # the last picture

    # the step

    def autocast(self):
        """Matrix products in cfg.dtype; the weights stay in float32, or small updates would be rounded away."""
        dtype = getattr(torch, self.cfg.dtype)
        return torch.autocast(self.place.device.type, dtype, enabled=dtype != torch.float32)

    def train_step(self, batch):
        """
        One update of the weights by the gradient of the mean loss over the global batch.

        The batch is more than fits in memory, so its gradient is a sum over micro-batches, which hold one part each:
        backward() adds to p.grad, and with the last one DDP takes the mean of p.grad over processes.
        """
        cfg = self.cfg
        micro_batches = self.loader.micro_batches(batch)
        n = len(micro_batches)
        batch_loss = 0.0
        for i, (first_row, micro_batch) in enumerate(micro_batches):
            is_last = i == n - 1
            if self.place.world > 1:
                self.net.require_backward_grad_sync = is_last  # DDP sends gradients once they are complete
            self.seed_dropout(first_row)
            with self.autocast():
                loss = self.net(*micro_batch)  # (), mean over the predicted tokens [nats/token]
            batch_loss += loss.detach() / n
            if cfg.constraint != "none":
                loss = loss + cfg.constraint_weight * constraint(cfg, self.model)  # Eq. (S146)
            self.scaler.scale(loss / n).backward()  # backward() sums, and we want the mean
        self.scaler.unscale_(self.optimizer)  # p.grad is now that of the loss itself
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.grad_clip)  # of all weights as one vector
        for group in self.optimizer.param_groups:  # decay and no_decay
            group["lr"] = learning_rate(cfg, self.step)
        self.scaler.step(self.optimizer)  # skips the update if float16 overflowed ...
        self.scaler.update()  # ... and halves the scale
        self.optimizer.zero_grad()  # frees the gradients: the next forward pass needs the memory
        self.unread.append(batch_loss)  # a tensor: to look at it now would be to wait for the GPU
        self.step += 1

    def seed_dropout(self, first_row):
        """Dropout is a function of (seed, step, row), as batches are: a run that goes on needs no state of it."""
        (seed,) = np.random.SeedSequence([self.cfg.seed, self.step, first_row]).generate_state(1)
        torch.manual_seed(int(seed))

    def read_losses(self):
        """Bring the losses of the last updates to the host; the run ends if one, or every gradient, is not finite."""
        losses = self.place.mean(torch.stack(self.unread)).tolist()  # the one wait for the device
        first = self.step - len(losses) + 1
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                self.fail(step, f"the loss is {loss}")
        if self.scaler.get_scale() < 1:  # above float16's largest number, or nan: no lower scale would help
            self.fail(self.step, "float16 gradients overflow at every scale of the loss down to 1")
        self.losses += losses
        self.unread = []

    def fail(self, step, what):
        raise TrainError(f"step {step}: {what}; lower learning_rate or use another dtype (what {self.out}/ckpt.pt "
                         "holds, if there is one, is good)")

    @torch.no_grad()
    def evaluate(self):
        """The mean loss [nats/token] over eval_iters validation batches, the same ones whatever the seed."""
        self.model.eval()  # no dropout
        losses = []
        for i in range(self.cfg.eval_iters):
            for _, micro_batch in self.loader.micro_batches(self.loader.val_batch(i)):
                with self.autocast():
                    losses.append(self.model(*micro_batch))
        self.model.train()
        return self.place.mean(torch.stack(losses).mean()).item()  # every process has evaluated its rows

    # before the first step

    def begin(self):
        """Go on where ckpt.pt of out_dir stands, or begin a run in an out_dir that has none."""
        # torchrun starts a run that lost a process again, with the same command; every node counts its own restarts.
        restarted = self.place.any(RESTARTS > 0)
        resume = restarted or self.cfg.init_from == "resume"
        state = runs.find_checkpoint(self.out, self.cfg, self.corpus.meta, resume, self.place.device)
        if state is not None:
            self.load(state)
        elif resume:
            self.place.say(f"{self.out} has no checkpoint yet: starting from the beginning")
        if not self.place.all_equal(self.step):
            raise TrainError(f"the processes of this run find different checkpoints in {self.out}: it must be on a "
                             "file system that all of them see")
        if self.place.rank == 0:  # files are written by one process
            runs.begin(self.out, self.cfg, self.corpus.meta, self.step)

    def load(self, state):
        """state: as in `save`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        self.scored_qk = state["scored_qk"]
        self.losses = state["losses"]  # a stop falls between two rows of log.csv
        self.seconds = state.get("seconds", 0.0)  # what older checkpoints lack
        before = state["config"]["max_iters"]
        if before < self.cfg.max_iters:
            self.place.say(f"max_iters was {before:,} so far: from here on the learning rate falls to 0 at "
                           f"{self.cfg.max_iters:,}")

    def prepare_net(self):
        """Share the training step among processes, and compile it."""
        if self.place.world > 1:
            # The same model in every process; DDP also copies the weights of process 0 to the others here.
            self.net = DistributedDataParallel(self.model, gradient_as_bucket_view=True)  # gradients are stored once
        on_gpu = self.place.device.type == "cuda"
        if self.cfg.compile == "on" or (self.cfg.compile == "auto" and on_gpu):
            self.compile()

    def compile(self):
        """
        Compile the model, and go on without, with one line, where there is no compiler that works.

        Within DDP, which then splits the graph of the backward pass where a bucket of gradients is complete: one bucket
        is on its way to the other processes while the next is computed.
        """
        if self.place.world > 1:
            self.net.require_backward_grad_sync = False  # this is no step: nothing to share
        try:
            self.model.compile(dynamic=False)  # shapes are static: batches are whole, every row has K masked tokens
            # The compiler is used, and fails if it does, when the model is used first.
            _, micro_batch = self.loader.micro_batches(self.loader.train_batch(0))[0]
            with self.autocast():
                self.net(*micro_batch).backward()
        except (RuntimeError, OSError) as e:  # dynamo's and inductor's own errors are RuntimeErrors
            if is_out_of_memory(e):
                raise
            self.place.say(f"torch.compile does not work here, going on without it: {first_line(e)}")
            torch.compiler.set_stance("force_eager")  # from here on compile() has not happened
        self.optimizer.zero_grad()

    # what is written

    def tokens_per_s(self):
        return len(self.losses) * self.cfg.batch_size * self.cfg.block_size / self.seconds

    def write_log(self):
        """Evaluate, append a row to log.csv and say it; at step 0 there is nothing yet to say of training."""
        n_tokens = self.step * self.cfg.batch_size * self.cfg.block_size
        row = runs.LogRow(self.step, n_tokens, val_loss=f"{self.evaluate():.6f}")
        left = ""
        if self.losses:
            row = row._replace(
                train_loss=f"{sum(self.losses) / len(self.losses):.6f}",
                learning_rate=f"{learning_rate(self.cfg, self.step - 1):.6g}",
                tokens_per_s=f"{self.tokens_per_s():.0f}",
            )
            updates_left = self.cfg.max_iters - self.step  # evaluations to come are not counted
            left = f", {tqdm.format_interval(updates_left * self.seconds / len(self.losses))} left"
        if self.place.rank == 0:  # the loss is the mean over processes, so one of them speaks for all
            runs.append(self.out / "log.csv", runs.LOG, [row])
        self.losses, self.seconds = [], 0.0  # a new row begins
        self.place.say(runs.describe_row(row) + left)

    @torch.no_grad()
    def write_scores(self):
        """Append the scores of every layer and head to scores.csv, and of what W_qk gained since the rows before."""
        if self.place.rank == 0:
            now = stacked_qk(self.model)  # copies: training changes the weights themselves
            rows = analyze.score_rows(self.step, self.cfg.n_head, now, self.scored_qk)
            runs.append(self.out / "scores.csv", runs.SCORES, rows)
            self.scored_qk = now

    def save(self):
        """Write ckpt.pt, all that resuming needs; and the model and a picture, for whoever looks at the run."""
        if not all(p.isfinite().all() for p in self.model.parameters()):  # losses would tell a step later
            self.fail(self.step, "weights are no longer finite")
        self.corpus.check()  # or what was learned since the checkpoint before may be of other text
        if self.place.rank == 0:
            state = dict(step=self.step, model=self.model.state_dict(), optimizer=self.optimizer.state_dict(),
                         scaler=self.scaler.state_dict(), scored_qk=self.scored_qk, losses=self.losses,
                         seconds=self.seconds)
            runs.save_checkpoint(self.out, self.cfg, self.corpus.meta, state)
            self.export()
            if time.monotonic() - self.drawn_at > DRAW_EVERY:  # and once more when the run ends
                figures.plot_run(runs.read_run(self.out), self.out / "run.png")
                self.drawn_at = time.monotonic()

    def export(self):
        """Write the model as a Hugging Face BERT, which analyze.py and transformers open at any time."""
        try:
            config, state = to_hf(self.model)
        except ValueError as e:  # a model that no BERT is
            if self.step == 0:
                self.place.say(f"this run writes no model.safetensors: {e}")
            return
        runs.save_hf(self.out, config, state)


# ---- the loop ----------------------------------------------------------------------------------------------------


def loop(trainer, stop):
    """
    Train until max_iters. `stop` holds the signals that this process got: once one of any process does, the run ends in
    a checkpoint. -> whether it ended so, before max_iters.

    The clock of tokens_per_s stands still while scores, evaluations and checkpoints are made.
    """
    cfg, place = trainer.cfg, trainer.place
    hidden = True if place.rank > 0 else None  # None: where stderr is no terminal, a line per evaluation will do
    bar = tqdm(total=cfg.max_iters, initial=trainer.step, unit="step", disable=hidden, dynamic_ncols=True)
    batches = trainer.loader.train_batches(trainer.step)
    if cfg.profile and place.rank == 0:
        batches = runs.traced(batches, trainer.out / "trace.json")
    with bar:
        if trainer.step == 0:  # what a run starts from is part of its story
            trainer.write_scores()
            trainer.write_log()
            trainer.save()
        began = time.perf_counter()
        for batch in batches:
            trainer.train_step(batch)  # a GPU only gets the work here, and goes on with it while we do
            bar.update()

            # Is there a reason to stop and look?
            is_end = trainer.step == cfg.max_iters
            time_to_score = is_end or trainer.step % cfg.score_interval == 0
            time_to_evaluate = is_end or trainer.step % cfg.eval_interval == 0
            # Processes must come to the same step to agree that one was told to stop; alone, one stops at once.
            time_to_look = trainer.step % READ_EVERY == 0 or (place.world == 1 and len(stop) > 0)
            if not (time_to_score or time_to_evaluate or time_to_look):
                continue
            trainer.read_losses()  # waits until the device has done all steps so far, so the clock is right
            trainer.seconds += time.perf_counter() - began
            told_to_stop = place.any(len(stop) > 0)  # all processes stop, or none
            bar.set_postfix_str(f"loss {trainer.losses[-1]:.3f}, {trainer.tokens_per_s():,.0f} tokens/s", refresh=False)
            if time_to_score:
                trainer.write_scores()
            if time_to_evaluate:
                trainer.write_log()
            if time_to_evaluate or told_to_stop:
                trainer.save()  # after the rows: a checkpoint never misses one that belongs to it
            if told_to_stop:
                return not is_end
            began = time.perf_counter()
    return False


def describe(trainer):
    """What is about to run, in a few lines."""
    cfg, place = trainer.cfg, trainer.place
    kind = "decoder" if cfg.causal else "encoder"
    n_params = sum(p.numel() for p in trainer.model.parameters())
    micro = trainer.loader.micro_batch_size
    n_micro = len(trainer.loader.rows) // micro
    precision = cfg.dtype
    if cfg.dtype == "float32" and place.device.type == "cuda":
        precision = "float32, products in TF32"
    lines = [
        f"{trainer.out}: {kind} of {cfg.n_layer} layers, {n_params / 1e6:.2f} M parameters, on {place.device} "
        f"({precision})",
        f"batch of {cfg.batch_size} = {place.world} processes x {n_micro} micro-batches x {micro} sequences of "
        f"{cfg.block_size} tokens; {len(trainer.corpus.train):,} training tokens",
    ]
    if cfg.warmup_iters > cfg.max_iters:
        lines.append(f"warmup_iters = {cfg.warmup_iters} is shortened to the run, {cfg.max_iters}: no decay follows")
    return "\n".join(lines)


def train(cfg, place):
    trainer = Trainer(cfg, place, open_corpus(cfg, place))
    trainer.begin()  # refuses, if it does, before anything is compiled
    trainer.prepare_net()
    place.say(describe(trainer))
    # A signal comes at any moment, in the middle of a step too: it is noted here, and acted upon between two steps.
    stop = []
    before = {}
    for signum in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:  # the last one when a terminal or ssh is closed
        before[signum] = signal.signal(signum, lambda signum, frame: stop.append(signum))
    try:
        interrupted = loop(trainer, stop)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if interrupted:
        place.say(f"stopped at step {trainer.step}; --init_from=resume goes on from {trainer.out}/ckpt.pt")
        sys.exit(128 + max(stop, default=signal.SIGTERM))  # another process may have been the one that was told
    if place.rank == 0:
        place.say(report_run(trainer.out))
        with torch.compiler.set_stance("force_eager"):  # for three rows of another shape no compiling is worth it
            place.say(samples.sample(trainer.model, trainer.corpus, cfg.predicts_next))


def main(argv):
    has_file = any(not word.startswith("-") for word in argv)
    if not has_file:  # a plain `python train.py` shall show something within minutes
        argv = [str(Path(__file__).parent / "config" / "tiny.py"), *argv]
    try:
        cfg = load(argv)
        place = find_place(cfg)
        lock = runs.locked(cfg.out_dir) if place.rank == 0 else contextlib.nullcontext()
        with lock:  # two runs in one folder would write over each other
            train(cfg, place)
    except CheckpointError as e:
        sys.exit(f"train.py: init_from = {cfg.init_from}: {e}")
    except (ConfigError, TrainError, tokens.DataError, runs.RunError, OSError) as e:
        sys.exit(f"train.py: {e}")
    except (RuntimeError, MemoryError) as e:
        if is_out_of_memory(e):
            told = f"out of memory ({first_line(e)}): lower micro_batch_size = {cfg.micro_batch_size}"
        elif is_lost_process(e):
            told = (f"another process of this run does not answer ({first_line(e)}); --init_from=resume goes on from "
                    f"the last checkpoint in {cfg.out_dir}")
        else:
            raise  # a mistake of ours: the traceback is wanted
        if not dist.is_initialized():  # alone
            sys.exit(f"train.py: {told}")
        print(f"train.py: {told}", file=sys.stderr)
        sys.stdout.flush()
        os._exit(1)  # sys.exit can wait for ever: the destructors of DDP and of Gloo's threads wait for each other
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
