"""
Train the paper's encoder or decoder, and watch the symmetry and directionality of W_qk as it learns.

    python train.py                                        # config/tiny.py: an encoder on a CPU, minutes
    python train.py config/tiny_decoder.py --seed=2        # any key of --help can follow the file
    python train.py config/tiny.py --init_from=resume      # go on, exactly, from out/tiny/ckpt.pt
    torchrun --nproc_per_node=8 train.py config/bert_symm.py    # the paper's experiment on eight GPUs

Read `loop` first, then `Trainer.train_step`, which is one step, and `train` at the end. data/results/runs.py describes
the files in out_dir, and config/processes.py says how to train on several nodes. Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and
SIGUSR2 save a checkpoint before the run ends, with the exit status 128 + the number of the signal (with torchrun 1).
"""

import contextlib
import math
import signal
import sys
import time
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # `python -P` and `python -I` leave this folder out
    from config import command_line

    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # except in `loop`, Ctrl-C ends the program at once
    CONFIG = command_line(sys.argv[1:])  # before torch is imported, which takes seconds

import torch
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import analyze
import init
from config import ConfigError, last_line
from config.processes import find_place, leave_processes, noted_signals, one_line
from data.atomic import locked
from data.batches import Loader, open_corpus, split_batch, torch_seed
from data.results import runs
from data.tokens import DataError
from model import Transformer

MISTAKES = ConfigError, DataError, runs.RunError, OSError  # what a user can mend ends in one line
READ_EVERY = 10  # the most steps between two looks at the loss, because each look waits for the GPU
READ_SECONDS = 5  # the most seconds: torchrun kills a run 30 seconds after it has told it to stop
DRAW_EVERY = 10  # the fewest seconds between two pictures, because one costs as much as many small steps


# ---- the model, its initialisation, the optimizer ------------------------------------------------------------------


def build_model(cfg, vocab_size):
    """Returns the model before its first step, drawn on the CPU, so that it is the same on every device."""
    # Load weights here, by a key of their own. Change no modules here: exports and samples use those of model.py.
    torch.manual_seed(cfg.seed)
    model = Transformer(cfg.of_model(vocab_size))
    init.apply_(model, cfg.init, cfg.qk_std, cfg.v_std, torch_seed("start", cfg.seed))
    return model


def make_optimizers(cfg, model):
    """Returns {"adamw": AdamW}, or {"muon": Muon, "adamw": AdamW}: Muon for the matrices of the blocks alone."""
    # Weight decay is on matrices only. share: of the learning rate, because q, k and v may learn faster or slower.
    qkv, blocks, matrices, vectors = [], [], [], []
    for name, p in model.named_parameters():
        if p.ndim <= 1:  # biases, and gains of LayerNorm, which belong near 1: weight decay pulls to 0
            vectors.append(p)
        elif ".attn" in name and ".proj." not in name:  # also those of untied positions, and of a fork
            qkv.append(p)
        elif name.startswith("blocks."):
            blocks.append(p)
        else:
            matrices.append(p)
    of_blocks = [dict(params=qkv, weight_decay=cfg.weight_decay, share=cfg.qkv_rate),
                 dict(params=blocks, weight_decay=cfg.weight_decay, share=1.0)]
    others = [dict(params=matrices, weight_decay=cfg.weight_decay, share=1.0),
              dict(params=vectors, weight_decay=0.0, share=1.0)]
    # AdamW keeps running means of the gradient g and of its square:
    #     m = 0.9 m + 0.1 g        v = beta2 v + (1 - beta2) g^2
    # A weight moves by learning_rate m / sqrt(v). This is about learning_rate, whether gradients are large or small.
    # fused=True does all of this in one pass over the weights.
    adamw = partial(torch.optim.AdamW, lr=cfg.learning_rate, betas=(0.9, cfg.beta2), fused=True)
    if cfg.optimizer == "adamw":
        return dict(adamw=adamw(of_blocks + others))
    # Muon (Jordan et al. 2024) moves a matrix by the nearest orthogonal one to its momentum, so that all directions
    # learn alike. match_rms_adamw: its steps are as long as AdamW's, so that both have the same learning rate.
    muon = torch.optim.Muon(of_blocks, lr=cfg.learning_rate, adjust_lr_fn="match_rms_adamw")
    return dict(muon=muon, adamw=adamw(others))


def learning_rate(cfg, step):
    """Returns the rate of a step. It rises to cfg.learning_rate, and then falls so that it would be 0 at max_iters."""
    warmup_iters = min(cfg.warmup_iters, cfg.max_iters)  # a very short run is all warm-up
    if step < warmup_iters:
        return cfg.learning_rate * ((step + 1) / warmup_iters)  # step + 1: a rate of 0 would waste an update
    return cfg.learning_rate * ((cfg.max_iters - step) / (cfg.max_iters - warmup_iters))


# ---- the loop ----------------------------------------------------------------------------------------------------


def loop(trainer, signals):
    """Trains until max_iters, or until a process gets a signal. Returns True if a signal ended it."""
    cfg = trainer.cfg
    watch = Watch(trainer, signals)
    hidden = True if trainer.place.rank > 0 else None  # one bar for all processes; None: tqdm hides it in a log file
    with tqdm(total=cfg.max_iters, initial=trainer.step, unit="step", disable=hidden) as bar:
        if trainer.rows == runs.HEADERS:  # nothing is written yet, and the start belongs to every curve
            trainer.write_scores()
            trainer.write_log(trainer.evaluate())
            trainer.save()
        watch.start_clock()
        for batch in trainer.loader.train_batches(trainer.step):
            trainer.train_step(batch)  # forward, backward, update; on a GPU this only queues the work
            bar.update()
            is_end = trainer.step == cfg.max_iters
            time_to_score = is_end or trainer.step % cfg.score_interval == 0
            time_to_evaluate = is_end or trainer.step % cfg.eval_interval == 0
            if not (time_to_score or time_to_evaluate or watch.is_time()):
                continue
            told_to_stop = watch.look()
            bar.set_postfix_str(f"loss {trainer.losses[-1]:.3f}", refresh=False)
            if time_to_score:
                trainer.write_scores()
            if time_to_evaluate:
                trainer.write_log(trainer.evaluate())
            if time_to_evaluate or told_to_stop:
                trainer.save()  # after the rows, which it holds
            if told_to_stop and not is_end:
                return True
            watch.start_clock()
    return False


class Watch:
    """Says when the loop should look at the losses, and whether the run was told to stop."""

    def __init__(self, trainer, signals):
        self.trainer = trainer
        self.signals = signals  # a list of those that this process has received so far
        self.next_look = trainer.step + 1

    def start_clock(self):
        """The clock of tokens_per_s stands still during evaluations and checkpoints."""
        self.began = time.perf_counter()

    def is_time(self):
        """Returns whether to look now. Several processes stop together, so their signals wait for the next look."""
        told_alone = self.trainer.place.world == 1 and len(self.signals) > 0
        return self.trainer.step >= self.next_look or told_alone

    def look(self):
        """Reads the losses, and stops the clock. Returns whether any process has received a signal."""
        trainer, place = self.trainer, self.trainer.place
        n_steps = len(trainer.unread)  # those since the last look
        trainer.read_losses()  # waits for the device, so that the clock measures finished steps
        seconds = time.perf_counter() - self.began
        trainer.seconds += seconds
        mine = torch.tensor([float(len(self.signals) > 0), seconds / n_steps], device=place.device)
        share_told, per_step = place.mean(mine).tolist()  # the same in all processes
        self.next_look = trainer.step + max(1, min(READ_EVERY, int(READ_SECONDS / per_step)))
        return share_told > 0


# ---- what a step does --------------------------------------------------------------------------------------------


def stacked_qk(model, q="q", k="k"):
    """Returns copies of W_q and W_k of every layer, (L, C, C). nn.Linear stores (out, in), so W_q = q.weight.T."""
    # In their places W_ov = W_v W_o has W_v = v.weight.T, and the transpose of W_o, which is proj.weight as it is.
    w_q = torch.stack([getattr(block.attn, q).weight for block in model.blocks]).mT
    w_k = torch.stack([getattr(block.attn, k).weight for block in model.blocks]).mT
    return w_q, w_k


def require_known_matrices(model):
    """Raises ConfigError if attention has a matrix that stacked_qk leaves out, as a fork's own may be."""
    for name, p in model.named_parameters():
        matrix = name.split(".", 2)[-1].removeprefix("attn.").removesuffix(".weight")  # such as q, or attn_2.q
        if "attn" in name and p.ndim > 1 and matrix not in ("q", "k", "v", "proj", "pos_q", "pos_k"):
            raise ConfigError(f"attention has a matrix {name}: add it to stacked_qk if it changes W_q or W_k, to "
                              "init.apply_ if it starts as they do, and to the names in require_known_matrices")


def constraint(cfg, model):
    """
    Returns a term of the loss that makes every W_qk = M more symmetric, or more skew. It is the mean over layers of
    |M|^2 / |M_s|^2, Eq. (S147), or of |M|^2 / |M_n|^2, Eq. (S148), with the symmetric part M_s and the skew part M_n.
    """
    w_q, w_k = stacked_qk(model)
    m = w_q @ w_k.mT  # (L, C, C)
    mirrored = m.mT if cfg.constraint == "symmetric" else -m.mT
    wanted = (m + mirrored) / 2  # (L, C, C), M_s or M_n
    ratios = m.square().sum((1, 2)) / wanted.square().sum((1, 2))  # (L,)
    return ratios.mean()


class Trainer:
    """The state of a run: the model, its optimizer, the step, and the losses since the last row of log.csv."""

    SAVED = "step", "scored", "losses", "seconds", "rows"  # ckpt.pt holds these as they are

    def __init__(self, cfg, place, corpus):
        self.place = place  # the device, and which of several processes this is
        self.corpus = corpus
        self.out = Path(cfg.out_dir)
        self.cfg = split_batch(cfg, place.world)  # with the micro_batch_size that fits on one process
        self.loader = Loader(self.cfg, corpus, place)
        self.model = build_model(cfg, corpus.meta["vocab_size"]).to(place.device)
        require_known_matrices(self.model)
        self.n_heads = [block.attn.n_head for block in self.model.blocks]  # of each layer, for scores and analyze.py
        self.n_params = sum(p.numel() for p in self.model.parameters())
        self.net = self.model  # what a training step calls: the model itself, or DDP around it
        self.optimizers = make_optimizers(cfg, self.model)
        # The smallest number of float16 is 6e-8. So that small gradients do not become 0, the scaler multiplies the
        # loss by a factor, and divides the gradients by it before the update.
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=cfg.dtype == "float16")
        self.step = 0  # the number of batches so far: of each an update, except where float16 skips it
        self.stateful = dict(model=self.model, scaler=self.scaler) | self.optimizers  # ckpt.pt holds their state_dict()
        self.scored = {}  # {matrix: its W_q and W_k} when scores.csv was last written
        self.unread = []  # the losses of the last steps, still on the device
        self.losses = []  # the losses since the last row of log.csv [nats/token]
        self.seconds = 0.0  # the time that these steps took
        self.rows = dict(runs.HEADERS)  # what this run has written into log.csv and scores.csv
        self.drawn_at = time.monotonic()  # when the last picture was drawn, or the run began

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
        for i, (first_row, micro_batch) in enumerate(micro_batches):
            if self.place.world > 1:  # DDP sends gradients only when the sum is complete
                self.net.require_backward_grad_sync = i == n - 1
            torch.manual_seed(torch_seed("dropout", cfg.seed, self.step, first_row))  # resuming needs no random state
            with self.autocast():
                loss = self.net(*micro_batch)  # (), the mean over predicted tokens [nats/token]
            batch_loss += loss.detach() / n  # log.csv has the loss of the task, without the constraint
            if cfg.constraint != "none":
                loss = loss + cfg.constraint_weight * constraint(cfg, self.model)  # Eq. (S146)
            self.scaler.scale(loss / n).backward()  # backward() sums over micro-batches, and we want the mean
        for optimizer in self.optimizers.values():
            self.scaler.unscale_(optimizer)  # now p.grad is the gradient of the loss itself
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.grad_clip)  # of all gradients together
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["share"] * learning_rate(cfg, self.step)
            self.scaler.step(optimizer)  # if float16 has overflowed, this skips the update ...
        self.scaler.update()  # ... and this halves the scale; after 2,000 good updates it doubles it
        self.model.zero_grad()  # frees the gradients: the next forward pass needs the memory
        self.unread.append(batch_loss)  # still a tensor: float(batch_loss) would wait for the GPU
        self.step += 1

    def autocast(self):
        """Computes matrix products in cfg.dtype. Weights stay float32: 16 bits would round small updates away."""
        dtype = getattr(torch, self.cfg.dtype)
        return torch.autocast(self.place.device.type, dtype, enabled=dtype != torch.float32)

    def read_losses(self):
        """Copies the losses of the last steps to the host. Ends the run if training has diverged."""
        losses = self.place.mean(torch.stack(self.unread)).tolist()  # waits for the device
        for loss in losses:
            if not math.isfinite(loss):
                self.fail(f"the loss is {loss}")
        if self.scaler.get_scale() < 1:  # gradients are nan, or too large for float16
            self.fail("float16 gradients overflow at every scale of the loss down to 1")
        self.losses += losses
        self.unread = []

    def fail(self, what):
        advice = f"lower learning_rate, or use another dtype. Your last good checkpoint is {self.out}/ckpt.pt"
        if self.step == 0:
            advice = "this is the start, so choose another init, qk_std or v_std"
        raise FloatingPointError(f"step {self.step}: {what}; {advice}")

    @torch.no_grad()
    def evaluate(self):
        """Returns the mean loss [nats/token] on eval_iters validation batches, which are the same for every seed."""
        self.model.eval()  # switches dropout off
        losses = []
        for i in range(self.cfg.eval_iters):
            for _, micro_batch in self.loader.micro_batches(self.loader.batch("val", i)):
                with self.autocast():
                    losses.append(self.model(*micro_batch))  # (), each a mean over the same number of tokens
        self.model.train()
        loss = self.place.mean(torch.stack(losses).mean()).item()  # each process has its own rows
        if not math.isfinite(loss):  # before a row or a checkpoint of it is written
            self.fail(f"the validation loss is {loss}")
        return loss

    def begin(self):
        """Loads out_dir/ckpt.pt if this run resumes. Nothing is written yet, because the run may be refused."""
        from data.results import checkpoints  # imported here, because no training step needs it

        cfg, say = self.cfg, self.place.say
        with checkpoints.checkpoint_to_resume(self.out, cfg, self.corpus.meta, self.place.device) as state:
            if state:
                for name, x in self.stateful.items():
                    x.load_state_dict(state[name])
                for name in self.SAVED:
                    setattr(self, name, state[name])
        if state and state["config"]["max_iters"] < cfg.max_iters:
            say(f"max_iters has grown: the learning rate is now that of {cfg.max_iters:,} steps")
        elif not state and cfg.init_from == "resume":
            say(f"{self.out} has no checkpoint yet: starting from the beginning")
        if self.step == 0 and cfg.constraint != "none":
            term = cfg.constraint_weight * constraint(cfg, self.model).item()
            if not term < 1e6:  # nan or inf: W_qk of this start has no such part, and 1 / 0 is inf
                raise ConfigError(f"constraint = {cfg.constraint!r} adds {term:.3g} to the loss at the start: choose "
                                  f"another constraint than at init = {cfg.init!r}, or a lower constraint_weight")

    def prepare_net(self):
        """Prepares the network for several processes, and compiles it."""
        if self.place.world > 1:
            # Every process has a copy of the model. DDP keeps the copies equal: it copies the weights of process 0 to
            # the others now, and takes the mean of their gradients in every step.
            self.net = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        if self.cfg.compile == "off" or (self.cfg.compile == "auto" and self.place.device.type != "cuda"):
            return
        self.place.say("compiling, about a minute")
        # The model inside of DDP, which then sends gradients while others are computed. dynamic=False: shapes never
        # change, as every row has K masked tokens.
        self.model.compile(dynamic=False)
        if self.place.world > 1:  # this is no training step: there is nothing to send
            self.net.require_backward_grad_sync = False
        _, micro_batch = self.loader.micro_batches(self.loader.batch("train", 0))[0]
        try:
            with self.autocast():
                self.net(*micro_batch).backward()  # torch compiles a model when it is first used
        except (RuntimeError, OSError) as e:  # there is no compiler, or it fails
            self.place.say(f"torch.compile does not work here, so this run is not compiled: {one_line(e)}")
            torch.compiler.set_stance("force_eager")  # from now on it runs as if not compiled
        self.model.zero_grad()

    def write_log(self, val_loss):
        """Appends a row to log.csv, prints it, and begins the next one. At step 0 there is no training loss yet."""
        n = len(self.losses)
        tokens_per_step = self.cfg.batch_size * self.cfg.block_size
        row = runs.LogRow(self.step, self.step * tokens_per_step, val_loss=val_loss)
        if n > 0:
            row = row._replace(
                train_loss=sum(self.losses) / n,
                learning_rate=learning_rate(self.cfg, self.step - 1),
                tokens_per_s=n * tokens_per_step / self.seconds,
            )
        if self.place.rank == 0:  # losses are means over processes: all have the same row
            self.rows["log.csv"] += runs.append(self.out / "log.csv", [row])
        told = [f"{name} {text}" for name, text in runs.cells(row).items() if text != ""]
        self.place.say(", ".join(told))
        self.losses = []  # a new row begins
        self.seconds = 0.0

    @torch.no_grad()
    def write_scores(self):
        """Appends a row for every layer and head to scores.csv."""
        if self.place.rank == 0:
            now = dict(wqk=stacked_qk(self.model))  # copies, which the next steps do not change
            if self.cfg.positions == "untied":
                now |= dict(positions=stacked_qk(self.model, "pos_q", "pos_k"))
            for matrix, factors in now.items():
                rows = analyze.run_rows(self.step, matrix, self.n_heads, factors, self.scored.get(matrix))
                self.rows["scores.csv"] += runs.append(self.out / "scores.csv", rows)
            self.scored = now

    def save(self):
        """Writes the model as a Hugging Face BERT, ckpt.pt to resume from, and now and then run.png."""
        if not all(p.isfinite().all() for p in self.model.parameters()):  # the next loss would show it
            self.fail("weights are no longer finite")
        if self.place.rank == 0:
            from data import export

            why_not = export.save_folder(self.model, self.out)  # before ckpt.pt: a run killed in between comes here again
            if why_not and self.step == 0:
                self.place.say(f"this run writes no model.safetensors (analyze.py scores its ckpt.pt): {why_not}")
            state = {name: x.state_dict() for name, x in self.stateful.items()}
            state |= {name: getattr(self, name) for name in self.SAVED} | dict(n_heads=self.n_heads)
            runs.save_checkpoint(self.out, self.cfg, self.corpus.meta, state)
            if time.monotonic() - self.drawn_at > DRAW_EVERY:
                self.draw()

    def draw(self):
        """Draws run.png. Returns a table of the scores, and where the picture is."""
        from data.results import ends

        self.drawn_at = time.monotonic()
        return ends.draw(self.out, analyze.GAMMA)


# ---- a run -------------------------------------------------------------------------------------------------------


def train(cfg, place):
    """Does a run, from its corpus to its last line. Exits with 128 + the signal if it was told to stop."""
    from data.results import checkpoints, ends

    # A block of `together` ends when all processes have done it, so that a mistake in one of them ends all.
    with contextlib.ExitStack() as whole_run:
        with place.together(MISTAKES):
            if place.rank == 0 and not Path(cfg.data_dir, "meta.json").exists():  # the others wait for the files
                from data.sympy import prepare

                prepare.make(Path(cfg.data_dir))  # a folder of data/sympy that is missing
        with place.together(MISTAKES):
            trainer = Trainer(cfg, place, open_corpus(cfg))
            trainer.begin()
            if place.rank == 0:  # two runs in one folder would overwrite each other
                whole_run.enter_context(locked(cfg.out_dir))
        with place.together(MISTAKES):
            mine = checkpoints.identity(runs.describe(trainer.cfg, trainer.corpus.meta))
            place.require_same(mine | dict(step=trainer.step))
            if place.rank == 0:  # only one process writes files
                ends.write_start(trainer)
        ends.describe_start(trainer)
        analyze.keep_memory()
        if trainer.step < cfg.max_iters:
            trainer.prepare_net()
        with noted_signals() as signals:
            interrupted = loop(trainer, signals)
        if interrupted:
            place.say(f"stopped at step {trainer.step}; --init_from=resume goes on from {trainer.out}/ckpt.pt")
            sys.exit(128 + max(signals, default=signal.SIGTERM))  # no signals: another process got one
        ends.finish(trainer)


def main(cfg):
    """Does the run of a TrainConfig. What a user can mend ends in one line, with the exit status 1."""
    try:
        place, cfg = find_place(cfg)
        train(cfg, place)
    except (*MISTAKES, FloatingPointError) as e:
        sys.exit(last_line(e))
    except RuntimeError as e:
        if "out of memory" in str(e) or "can't allocate memory" in str(e):  # of a GPU, of a CPU
            sys.exit(last_line(f"{one_line(e)}: lower micro_batch_size, or the sizes of the model"))
        if torch.distributed.is_initialized():
            print("train.py: if another process has ended before, it says why. --init_from=resume goes on from the "
                  "last checkpoint. The error here:", file=sys.stderr)
        raise
    finally:
        leave_processes()


if __name__ == "__main__":
    main(CONFIG)
