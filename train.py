"""
Train the paper's encoder or decoder, and watch the symmetry and directionality of W_qk as it learns.

    python train.py                                        # config/tiny.py: an encoder on a CPU, minutes
    python train.py config/tiny_decoder.py --seed=2        # any key of --help can follow the file
    python train.py config/tiny.py --init_from=resume      # go on from out/tiny/ckpt.pt
    torchrun --nproc_per_node=8 train.py config/bert_symm.py    # the paper's experiment on eight GPUs

A training is `loop`: with every batch the model predicts tokens, and `Trainer.train_step` moves the weights against the
gradient of the loss. Now and then the loss on other text and the scores of W_qk are written down (data/runs/write.py).
It goes on from its last evaluation, or after SIGTERM its last step: bit for bit on a CPU or with --deterministic=True.
"""

import contextlib
import math
import re
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from data import keep_memory, tokens  # first: an old Python ends here, in one line
import init
from analyze import scores
from config import ConfigError, command_line, require
from config.processes import find_place, leave_processes, noted_signals
from data.atomic import locked
from data.batches import Loader, split_batch, torch_seed
from data.runs import write
from model import Transformer, stacked_qk

LOOK_EVERY = 10  # steps between two looks at the loss, because each look waits for the GPU
DRAW_EVERY = 10  # draw at most every 10 seconds: a picture takes one second
SAY_EVERY = 60  # seconds between two lines where there is no bar, as in a log file


def loop(trainer, signals):
    """Trains until max_iters, or until a process has a signal to end. All files are written here, between steps."""
    cfg = trainer.cfg
    no_bar = None if trainer.place.rank == 0 else True  # one bar for all processes; None: tqdm hides it in a log file
    with tqdm(total=cfg.max_iters, initial=trainer.step, unit="step", disable=no_bar) as bar:
        # every curve begins before the first step
        if not trainer.csv_text["log.csv"]:
            trainer.write_scores()
            trainer.write_log(trainer.evaluate())
            trainer.save()

        began = drawn_at = said_at = time.perf_counter()
        for batch in trainer.loader.train_batches(trainer.step):
            # forward, backward, update; on a GPU this only queues the work
            trainer.train_step(batch)
            bar.update()

            # most steps end here
            is_end = trainer.step == cfg.max_iters
            time_to_score = is_end or trainer.step % cfg.score_interval == 0
            time_to_evaluate = is_end or trainer.step % cfg.eval_interval == 0
            time_to_look = trainer.step % LOOK_EVERY == 0 or (signals and trainer.place.world == 1)
            if not (time_to_score or time_to_evaluate or time_to_look):
                continue

            # look at the losses. This waits for the GPU, so the clock measures finished steps
            is_stopped = trainer.read_losses(signals) and not is_end
            trainer.seconds += time.perf_counter() - began
            bar.set_postfix_str(f"loss {trainer.losses[-1]:.3f}", refresh=False)
            if bar.disable and time.perf_counter() - said_at > SAY_EVERY:
                trainer.say_speed()
                said_at = time.perf_counter()

            # write down what was learned; last ckpt.pt, because it holds the new rows, too
            if time_to_score:
                trainer.write_scores()
            if time_to_evaluate:
                trainer.write_log(trainer.evaluate())
                trainer.save()
                if trainer.place.rank == 0 and not is_end and time.perf_counter() - drawn_at > DRAW_EVERY:
                    from data.runs.curves import draw_run  # and matplotlib with it, which no step needs

                    draw_run(trainer.out)
                    drawn_at = time.perf_counter()
            if is_stopped:
                trainer.save()
                return trainer.place.say(f"stopped at step {trainer.step:,}: --init_from=resume goes on from there")
            began = time.perf_counter()  # the clock stands still during evaluations and checkpoints


class Trainer:
    """The state of a run: the model, its optimizer, the step, and the rows that it has written so far."""

    # {name in ckpt.pt: name here}, which ckpt.pt holds as they are
    SAVED = dict(step="step", scored="last_factors", rows="csv_text", lengths="all_max_iters", origin="origin")

    def __init__(self, cfg, place, corpus):
        self.cfg = cfg = split_batch(cfg, place.world)  # with the micro_batch_size that fits on one process
        self.place = place  # the device, and which of several processes this is
        self.corpus = corpus
        self.out = Path(cfg.out_dir)
        self.loader = Loader(cfg, corpus, place)
        self.model = build_model(cfg, corpus.meta["vocab_size"])

        # What identifies this run. The hashes tell its text, and its parent's weights, from others.
        data = {key: corpus.meta[key] for key in ("tokenizer", "spaced", "tokens", "sha256")}
        self.run = dict(config=asdict(cfg), data=data, parent_sha256="", parent_config=None)
        if cfg.parent:
            from data.runs.model import load_parent  # which other runs do not need

            self.run |= load_parent(self.model, cfg)

        self.model.to(place.device)
        require_known_parameters(self.model)
        self.run["n_params"] = sum(p.numel() for p in self.model.parameters())
        self.n_heads = [block.attn.n_head for block in self.model.blocks]  # of each layer, for scores and analyze.py
        self.net = self.model  # what a training step calls: the model itself, or DDP around it
        self.optimizer = make_optimizer(cfg, self.model)

        # Matrix products are computed in cfg.dtype. Weights stay float32: 16 bits would round small updates away.
        dtype = getattr(torch, cfg.dtype)
        self.autocast = torch.autocast(place.device.type, dtype, enabled=dtype != torch.float32)
        # The smallest number of float16 is 6e-8. So that small gradients do not become 0, the scaler multiplies the
        # loss by a factor, and divides the gradients by it before the update.
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=cfg.dtype == "float16")
        self.stateful = dict(model=self.model, optimizer=self.optimizer, scaler=self.scaler)  # for ckpt.pt

        self.step = 0  # batches so far. Each made one update, unless float16 skipped it
        self.unread = []  # the losses of the last steps, still on the device
        self.losses = []  # the losses since the last row of log.csv [nats/token]
        self.seconds = 0.0  # the time that these steps took
        self.csv_text = {"log.csv": "", "scores.csv": ""}  # the files as they are now
        self.last_factors = {}  # {matrix: its W_q and W_k} when scores.csv got its last rows
        self.all_max_iters = []  # every max_iters that this run has had: its learning rates ended there
        self.origin = {}  # where its steps come from, such as commit: [texts]

    def train_step(self, batch):
        """
        Updates the weights once, by the gradient of the mean loss over the whole batch.

        A large batch does not fit in memory. So it is split into micro-batches, and backward() adds the gradient of
        each to p.grad. With several processes, DDP takes the mean of p.grad over them at the end.
        """
        cfg = self.cfg
        micro_batches = self.loader.micro_batches(batch)
        n = len(micro_batches)
        batch_loss = 0.0

        # forward and backward, one micro-batch after the other
        for i, (first_row, micro_batch) in enumerate(micro_batches):
            if self.place.world > 1:  # DDP sends gradients only when the sum is complete
                self.net.require_backward_grad_sync = i == n - 1
            torch.manual_seed(torch_seed("dropout", cfg.seed, self.step, first_row))  # resuming needs no random state
            with self.autocast:
                loss = self.net(*micro_batch)  # (), the mean over predicted tokens [nats/token]
            batch_loss += loss.detach() / n
            self.scaler.scale(loss / n).backward()  # backward() sums over micro-batches, and we want the mean

        # clip the gradient: if the norm of all its entries is larger than grad_clip, scale it down to that
        self.scaler.unscale_(self.optimizer)  # now p.grad is the gradient of the loss itself
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.grad_clip)

        # update the weights
        for group in self.optimizer.param_groups:
            group["lr"] = group.get("peak", cfg.learning_rate) * cfg.schedule(self.step)
        self.scaler.step(self.optimizer)  # if float16 has overflowed, this skips the update ...
        self.scaler.update()  # ... and this halves the scale; after 2,000 good updates it doubles it
        self.model.zero_grad()  # frees the gradients: the next forward pass needs the memory

        self.unread.append(batch_loss)  # still a tensor: float(batch_loss) would wait for the GPU
        self.step += 1

    @torch.no_grad()
    def evaluate(self):
        """Returns the mean loss [nats/token] on eval_iters validation batches, which are the same for every seed."""
        self.model.eval()  # switches dropout off
        losses = []
        for i in range(self.cfg.eval_iters):
            for _, micro_batch in self.loader.micro_batches(self.loader.batch("val", i)):
                with self.autocast:
                    losses.append(self.model(*micro_batch))  # (), each a mean over the same number of tokens
        self.model.train()
        return self.place.mean(torch.stack(losses).mean()).item()  # each process has its own rows

    def read_losses(self, signals=()):
        """Copies the last losses to the host, and ends the run if it diverged. Returns whether a signal has come."""
        # all processes learn of the signal of one, so that all of them stop after the same step
        has_signal = torch.tensor(float(bool(signals)), device=self.place.device)
        *losses, share = self.place.mean(torch.stack([*self.unread, has_signal])).tolist()  # waits for the device
        for loss in losses:
            self.end_unless(math.isfinite(loss), f"the loss is {loss}")
        self.end_unless(self.scaler.get_scale() >= 1, "float16 gradients overflow at every scale of the loss down to 1")
        self.losses += losses
        self.unread = []
        return share > 0

    def end_unless(self, condition, what):
        """Ends the run before a row or a checkpoint of it is written, unless the condition is true."""
        if not condition:
            raise FloatingPointError(f"step {self.step}: {what}: choose a lower learning_rate, another start or dtype. "
                                     f"{self.out}/ckpt.pt is your last good checkpoint")

    def say_speed(self):
        """Says how far the run is, where no bar shows it."""
        mean_loss, seconds = sum(self.losses) / len(self.losses), self.seconds / len(self.losses)  # of a step
        minutes = (self.cfg.max_iters - self.step) * seconds / 60
        n_tokens = self.cfg.batch_size * self.cfg.block_size
        self.place.say(f"step {self.step:,}/{self.cfg.max_iters:,}: train_loss {mean_loss:.4f}, "
                       f"{n_tokens / seconds:,.0f} tokens/s, {minutes:,.0f} minutes left")

    def write_log(self, val_loss):
        """Adds a row to log.csv, prints it, and begins the next one. At step 0 there is no training loss yet."""
        self.end_unless(math.isfinite(val_loss), f"the validation loss is {val_loss}")
        cfg = self.cfg
        n_tokens = cfg.batch_size * cfg.block_size  # of a step
        row = dict(step=self.step, tokens=self.step * n_tokens, train_loss=math.nan, val_loss=val_loss,
                   learning_rate=math.nan, tokens_per_s=math.nan)
        line = f"step {self.step:,}/{cfg.max_iters:,}: val_loss {val_loss:.4f}"
        if self.losses:
            row["train_loss"] = sum(self.losses) / len(self.losses)
            row["learning_rate"] = cfg.learning_rate * cfg.schedule(self.step - 1)
            row["tokens_per_s"] = len(self.losses) * n_tokens / self.seconds
            line += f", train_loss {row['train_loss']:.4f}, {row['tokens_per_s']:,.0f} tokens/s"
        symmetries = scores(*stacked_qk(self.model)).symmetry.tolist()  # a number for each layer
        self.place.say(f"{line}, symmetry of layers {' '.join(f'{symmetry:.2f}' for symmetry in symmetries)}")
        self.csv_text["log.csv"] = write.add_rows(self.csv_text["log.csv"], [row], "%.7g")
        self.losses, self.seconds = [], 0.0  # a new row begins
        # For wandb, import it, and add these two lines. To resume its run, set WANDB_RUN_ID and WANDB_RESUME=allow
        #     if self.place.rank == 0:
        #         (wandb.run or wandb.init(project="symmetry", name=cfg.out_dir, config=asdict(cfg))).log(row)

    @torch.no_grad()
    def write_scores(self):
        """Adds a row for every layer and head to scores.csv."""
        matrices = dict(wqk=stacked_qk(self.model))  # copies, which the next steps do not change
        if self.cfg.positions == "untied":
            matrices["positions"] = stacked_qk(self.model, "pos_q", "pos_k")
        for matrix, factors in matrices.items():
            at_end = None
            if self.step == self.cfg.max_iters:
                from data.runs.kernel import measure_kernel  # once, because it takes as long as some steps

                at_end = measure_kernel(self, *factors)  # nothing for the matrix of untied positions
            rows = write.score_rows(self.step, matrix, self.n_heads, factors, self.last_factors.get(matrix), at_end)
            self.csv_text["scores.csv"] = write.add_rows(self.csv_text["scores.csv"], rows, "%.6f")
        self.last_factors = matrices

    def save(self):
        """Writes ckpt.pt to resume from, and the rows so far."""
        if self.place.rank == 0:
            checkpoint = self.run | dict(n_heads=self.n_heads)
            checkpoint |= {name: x.state_dict() for name, x in self.stateful.items()}
            checkpoint |= {name: getattr(self, ours) for name, ours in self.SAVED.items()}
            checkpoint |= dict(losses=self.losses, seconds=self.seconds)
            write.save_checkpoint(self.out, checkpoint)

    def begin(self):
        """Gets everything ready for the first step: resumes if it has to, wraps the model for DDP, compiles it."""
        cfg, place = self.cfg, self.place

        # 1) resume from out_dir/ckpt.pt, if it is there and we were asked to
        checkpoint = write.checkpoint_to_resume(self.out, self.run, place.device)
        if checkpoint:
            self.load(checkpoint)
        if checkpoint and cfg.parent:
            from data.runs.model import say_if_changed

            say_if_changed(place, cfg.parent, self.run["parent_sha256"])

        # 2) keep a record of what made the steps. A resumed run may have several of each, say two commits
        if self.step == 0:
            self.all_max_iters, self.origin = [], {}  # nothing is trained yet, so the record starts here
        self.all_max_iters = sorted({*self.all_max_iters, cfg.max_iters})
        now = dict(commit=write.find_commit(), torch=str(torch.__version__), device_name=place.name)
        for key, text in now.items():  # {"commit": ["1a2b3c", "4d5e6f"], ...}; the code may change while this runs
            self.origin[key] = sorted({text, *self.origin.get(key, [])})

        # 3) all processes have to agree on the run and the step, or each would train something else
        place.require_same(write.identity(self.run, self.out) | dict(step=self.step))
        place.say(f"{self.out}: {self.run['n_params'] / 1e6:.2f} M parameters, on {place.world} x {place.device} "
                  f"({cfg.dtype}); from step {self.step:,} to {cfg.max_iters:,} on {len(self.corpus.train):,} tokens")

        # 4) wrap the model into DDP: it copies the weights of process 0 to the others now, and averages gradients later
        if place.world > 1:
            self.net = DistributedDataParallel(self.model, gradient_as_bucket_view=True)

        # 5) compile the model (the one inside of DDP)
        is_compiled = cfg.compile == "on" or (cfg.compile == "auto" and place.device.type == "cuda")
        if is_compiled and self.step < cfg.max_iters:
            place.say("compiling the model ... (takes a minute)")
            self.model.compile(dynamic=False)  # shapes never change: every row has K masked tokens
            # torch compiles at the first use, so use it once here, or the clock would count it as a slow step
            _, micro_batch = self.loader.micro_batches(self.loader.batch("train", 0))[0]
            with self.autocast:
                self.net(*micro_batch).backward()
            self.model.zero_grad()

    def load(self, checkpoint):
        """Puts the state of a checkpoint back: weights, optimizer, scaler, step and rows."""
        # subtle: load_state_dict would also bring the file's learning rate, betas and weight decay, maybe older ones.
        # We want those of the code, so remember them before loading, and put them back after
        wanted = [dict(group) for group in self.optimizer.param_groups]
        for name, x in self.stateful.items():
            x.load_state_dict(checkpoint[name])
        for group, hyperparameters in zip(self.optimizer.param_groups, wanted, strict=True):
            group.update(hyperparameters)
        for name, ours in self.SAVED.items():
            setattr(self, ours, checkpoint[name])
        # a run that a signal has stopped has losses that are in no row yet
        self.losses, self.seconds = checkpoint.get("losses", []), checkpoint.get("seconds", 0.0)
        # ckpt.pt is written first. If the run was killed right after it, the CSV files are one evaluation behind
        if self.place.rank == 0:
            write.write_files(self.out, self.run | checkpoint)


# ---- the model and its optimizer ---------------------------------------------------------------------------------


def build_model(cfg, vocab_size):
    """Returns the model before its first step, drawn on the CPU, so that it is the same on every device."""
    # To start from other weights, load them here. Change modules in model.py, from which exports build the model, too
    torch.manual_seed(cfg.seed)
    model = Transformer(cfg.of_model(vocab_size))
    init.apply_(model, cfg.init, cfg.qk_std, cfg.v_std, torch_seed("start", cfg.seed))
    return model


def make_optimizer(cfg, model):
    """Returns AdamW, with weight decay for matrices alone. qk_update and muon_rate take some of them out."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]  # biases, and gains of LayerNorm, which belong near 1
    # A group with a rate of its own says its peak: dict(params=..., peak=0.02). The schedule sets "lr" at each step,
    # and resuming replaces these dicts, so keep none of them for later.
    groups = [dict(params=matrices, weight_decay=cfg.weight_decay), dict(params=vectors, weight_decay=0.0)]
    # AdamW keeps running means of the gradient g and of its square:
    #     m = 0.9 m + 0.1 g        v = beta2 v + (1 - beta2) g^2
    # A weight moves by learning_rate m / sqrt(v). This is about learning_rate, whether gradients are large or small.
    # fused=True does all of this in one pass over the weights.
    adamw = torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(0.9, cfg.beta2), fused=True)
    if cfg.qk_update == "adamw" and not cfg.muon_rate:
        return adamw
    from config.updates import hand_over  # which other runs do not need

    return hand_over(adamw, cfg, model)


def require_known_parameters(model):
    """Raises ConfigError if attention has a parameter that stacked_qk leaves out, as a fork's own may be."""
    for name, _ in model.named_parameters():
        is_known = re.search(r"\.attn\.(q|k|v|proj|pos_q|pos_k)\.(weight|bias)$", name)
        require(is_known or "attn" not in name, f"attention has a parameter {name}: add it to "
                "require_known_parameters; if it is part of W_q or W_k, and no norm, to stacked_qk and init.apply_")


# ---- a run -------------------------------------------------------------------------------------------------------


def train(place, cfg):
    """Does a run, from its corpus to its last line, or until a signal to end. Returns whether one has come."""
    if not Path(cfg.data_dir, "meta.json").exists():
        from data.sympy import prepare

        prepare.make(Path(cfg.data_dir))  # only in data/sympy; of several processes one makes it, and the others wait
    trainer = Trainer(cfg, place, tokens.load(cfg.data_dir))
    # Two runs in one folder would mix their rows. Of the processes of a run only the first one writes files.
    with locked(cfg.out_dir) if place.rank == 0 else contextlib.nullcontext(), noted_signals() as signals:
        trainer.begin()
        loop(trainer, signals)
        is_finished = trainer.step == cfg.max_iters
        if place.rank == 0 and is_finished:
            finish(trainer)
    return not is_finished


def finish(trainer):
    """Draws run.png, and prints a table of the scores."""
    from data.runs.curves import finish

    trainer.place.say(finish(trainer.out))


def main(cfg):
    """Does the run of a TrainConfig. A mistake of a user ends in one line, with the exit status 1."""
    try:
        is_stopped = train(*find_place(cfg))
    except (ConfigError, tokens.DataError, FloatingPointError, OSError) as e:
        sys.exit(f"train.py: {e}")
    finally:
        leave_processes()
    if is_stopped:  # all is saved, so end as SIGTERM would have ended us: clusters look at the exit status
        signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    keep_memory()
    main(command_line(sys.argv[1:]))
