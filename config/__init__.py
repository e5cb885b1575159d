"""
The keys of a training run, their defaults, and how they are read from a file and from the command line.

A config file is plain Python of the form `key = value`. It overrides the defaults below, and `--key=value` on the
command line overrides the file. A file may start from another one with `from config.bert import *`, and may compute.
Names that begin with an underscore are not keys. A wrong key or value is a ConfigError: one line with the key, its
value, and what was expected.
"""

import ast
import contextlib
import dataclasses
import difflib
import math
import os
import runpy
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple


class ConfigError(ValueError):
    """A mistake in a configuration, in one line."""


class Numbers(NamedTuple):
    """Which numbers a key may have."""

    words: str
    allows: Callable  # the number -> bool


POSITIVE = Numbers("more than 0, and finite", lambda x: 0 < x < math.inf)
FROM_ZERO = Numbers("0 or more, and finite", lambda x: 0 <= x < math.inf)
SHARE = Numbers("a share below 1", lambda x: 0 <= x < 1)
PART = Numbers("0 to 1", lambda x: 0 <= x <= 1)
# Nothing is imported here that needs torch, so that --help and a mistake answer at once.
STARTS = "random", "symmetric", "tilted", "mimetic", "indefinite", "negative", "skew"  # those of init.py
STDS = "init_std", "linear"  # the words of init.find_std
PATHS = "data_dir", "out_dir"  # keys that may begin with ~


def key(default, text, numbers=POSITIVE, words=()):
    """Returns a field of TrainConfig: its default, its line in --help, and which numbers or words it may be, if any."""
    return dataclasses.field(default=default, metadata=dict(help=text, numbers=numbers, words=words))


@dataclass(frozen=True)
class TrainConfig:
    """The defaults are the paper's (S2.3 and BERT-Mini of Table S1) where it gives a value."""

    data_dir: str = key("data/sympy/bytes", "token files: the folder that a data/*/prepare.py wrote")
    causal: bool = key(False, "False: encoder, every token sees all; True: decoder, none sees a later one")
    objective: Literal["auto", "masked", "next"] = key("auto", "tokens to predict; auto: next if causal, else masked")
    n_layer: int = key(4, "blocks")
    n_head: int = key(4, "attention heads")
    n_embd: int = key(256, "embedding size; the MLP is four times as wide", Numbers("2 or more", lambda x: x >= 2))
    block_size: int = key(512, "tokens in a sequence")
    dropout: float = key(0.1, "on embeddings and sublayers", SHARE)
    attn_dropout: float = key(0.1, "on attention weights (0 lets CPUs take the fast attention)", SHARE)
    positions: Literal["learned", "rotary", "untied"] = key(
        "learned", "vectors added to tokens, turns of q and k, or vectors with a W_q and a W_k of their own")
    qk_norm: bool = key(False, "queries and keys of a head at norm sqrt(D): their scale is gone")
    init: Literal[STARTS] = key("random", "of W_q and W_k (init.py)")
    init_std: float = key(0.02, "standard deviation of the entries of every matrix at the start")
    qk_std: float = key("init_std", "the same of q and k; linear: 1 / sqrt(3 C), that of a new nn.Linear", words=STDS)
    v_std: float = key("init_std", "the same of v", words=STDS)
    init_from: Literal["scratch", "resume"] = key("scratch", "resume: go on from out_dir/ckpt.pt, if it is there")
    mlm_probability: float = key(0.15, "share of the tokens that are masked",
                                 Numbers("between 0 and 1", lambda x: 0 < x < 1))
    mask_share: float = key(0.8, "share of these that the model sees as the mask token", PART)
    random_share: float = key(0.1, "share of these that it sees as a random token; it sees the rest as they are", PART)
    constraint: Literal["none", "symmetric", "skew"] = key("none", "loss constraint on W_qk, Eq. (S146-S148)")
    constraint_weight: float = key(0.0, "its weight in the loss, Eq. (S146)", FROM_ZERO)
    batch_size: int = key(256, "sequences in a step, over all processes")
    micro_batch_size: int = key(32, "sequences at a time on one process, at most; a run with dropout keeps it")
    max_iters: int = key(200_000, "steps; each updates the weights once")
    warmup_iters: int = key(200, "steps of linear warm-up, before linear decay to 0", FROM_ZERO)
    learning_rate: float = key(5e-5, "at its peak, after the warm-up")
    qkv_rate: float = key(1.0, "that of the weights of q, k and v, as a share of it")
    optimizer: Literal["adamw", "muon"] = key("adamw", "muon: for the matrices of the blocks, AdamW for the rest")
    weight_decay: float = key(0.01, "of matrices only", Numbers("0 to 10", lambda x: 0 <= x <= 10))
    beta2: float = key(0.999, "AdamW's", SHARE)
    grad_clip: float = key(1.0, "largest norm of the gradient")
    eval_interval: int = key(2000, "steps between evaluations; each ends in a checkpoint")
    eval_iters: int = key(4, "batches in an evaluation, the same ones every time")
    score_interval: int = key(500, "steps between rows of scores.csv")
    out_dir: str = key("out/run", "where the run is written; out/NAME of the config file")
    seed: int = key(1, "of weights, data order, masks and dropout",
                    Numbers("0 to 2^63 - 1", lambda x: 0 <= x < 2**63))
    device: str = key("auto", "auto (a GPU if there is one, or cpu) or a name of torch's")
    threads: int = key(0, "of the CPU, per process; 0: torch's choice", Numbers("0 to 1000", lambda x: 0 <= x <= 1000))
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = key(
        "float32", "of matrix products; auto: bfloat16 (old GPUs float16), float32 on a CPU; weights are float32")
    compile: Literal["auto", "on", "off"] = key("auto", "torch.compile; auto: on a GPU")
    keep: int = key(0, "numbered checkpoints to keep beside ckpt.pt", FROM_ZERO)

    def __post_init__(self):
        if self.n_embd % self.n_head:
            raise ConfigError(f"n_embd = {self.n_embd}, expected a multiple of n_head = {self.n_head}")
        if self.positions == "rotary" and self.n_embd // self.n_head % 2:
            raise ConfigError(f"positions = 'rotary' turns pairs of columns, and n_embd / n_head = "
                              f"{self.n_embd // self.n_head} is odd")
        if self.objective == "next" and not self.causal:
            raise ConfigError("objective = 'next' with causal = False: every token would see the one it predicts")
        if (self.constraint == "none") != (self.constraint_weight == 0):
            raise ConfigError(f"constraint = {self.constraint!r} with constraint_weight = {self.constraint_weight}: "
                              "set both or neither")
        if self.mask_share + self.random_share > 1:
            raise ConfigError(f"mask_share + random_share = {self.mask_share + self.random_share}, expected 1 at most")
        if not self.predicts_next and self.mlm_probability * self.block_size < 0.5:
            raise ConfigError(f"mlm_probability = {self.mlm_probability} of block_size = {self.block_size} tokens is "
                              "less than half a token in a sequence")

    @property
    def predicts_next(self):
        """True if the model predicts the next token at every position, and False if it predicts masked tokens."""
        if self.objective == "auto":
            return self.causal
        return self.objective == "next"

    def of_model(self, vocab_size):
        """Returns the ModelConfig of this run."""
        from model import ModelConfig  # and torch with it

        names = {field.name for field in dataclasses.fields(ModelConfig)} - {"vocab_size"}
        return ModelConfig(vocab_size, **{name: getattr(self, name) for name in names})


KEYS = {field.name: field for field in dataclasses.fields(TrainConfig)}  # of files and of the command line
# These keys say where and how a run runs, and not what it computes.
HOW = {"out_dir", "init_from", "device", "threads", "compile", "keep", "micro_batch_size"}
TINY = Path(__file__).parent / "tiny.py"  # without a file on the command line


def command_line(argv):
    """Returns the TrainConfig of `python train.py ...`. --help, or a mistake, ends the program."""
    if all(word.startswith("-") for word in argv):  # no file
        argv = [str(TINY), *argv]
    words = [word for word in argv if word not in ("-h", "--help")]
    try:
        cfg = load(words)
    except ConfigError as e:
        sys.exit(last_line(e))
    if len(words) < len(argv):
        print_help(cfg)
        sys.exit(0)
    return cfg


def prepare_streams():
    """Lets text go nowhere if stdout or stderr is closed, and prints ? for what the terminal has no character for."""
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    sys.stdout.reconfigure(errors="replace")


def last_line(reason):
    """Returns the line in which a run ends that cannot go on."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return f"train.py: torchrun says below only that this process has ended. The reason is: {reason}"
    return f"train.py: {reason}"


def load(argv):
    """Returns the TrainConfig of a command line: at most one file, and any number of --key=value, which override it."""
    flags = [word for word in argv if word.startswith("-")]
    files = [word for word in argv if not word.startswith("-")]
    given = read_flags(flags)  # first, because in `--max_iters 100` the 100 looks like a file
    if len(files) > 1:
        raise ConfigError(f"expected one config file at most, got {' '.join(files)}")
    in_file = {}
    if files:
        in_file = dict(out_dir=f"out/{Path(files[0]).stem}") | read_file(files[0])
    return TrainConfig(**(in_file | given))


def read_flags(flags):
    """Returns the keys that words --key=value set: {name: value}."""
    values = {}
    for flag in flags:
        if not flag.startswith("--") or "=" not in flag:
            raise ConfigError(f"{flag}: write --key=value, without a space")
        name, text = flag.removeprefix("--").split("=", 1)
        values[name] = checked(name, parse(name, text))
    return values


def read_file(path):
    """Returns the keys that a config file sets: {name: value}."""
    values = {}
    for name, value in run_file(path).items():
        if not name.startswith("_") and not isinstance(value, ModuleType):  # such as math
            values[name] = checked(name, value)
    return values


def run_file(path):
    """Runs a config file, and returns its variables: {name: value}."""
    try:
        return runpy.run_path(path)
    except Exception as e:  # it is the user's code, which may raise whatever it likes
        raise ConfigError(f"{path} cannot be read as plain key = value Python: {type(e).__name__} {e}")


def parse(name, text):
    """Returns the value of a flag: a Python literal if its key takes a number or a bool, and else the text."""
    if name in KEYS and KEYS[name].type in (int, float, bool):
        with contextlib.suppress(ValueError, SyntaxError):  # no literal: `checked` refuses it, and names the key
            return ast.literal_eval(text)
    return text


def checked(name, value):
    """Returns the value. Raises ConfigError if there is no such key, or if it may not have this value."""
    if name not in KEYS:
        near = difflib.get_close_matches(name, KEYS, n=1)
        hint = f"the nearest one is {near[0]}" if near else "python train.py --help lists all keys"
        raise ConfigError(f"unknown key {name}; {hint}, and a name of a file's own begins with an underscore")
    kind = KEYS[name].type
    if value in KEYS[name].metadata["words"]:
        return value
    if kind is float and type(value) is int:  # such as --dropout=0
        value = float(value)
    choices = typing.get_args(kind)
    fits = value in choices if choices else type(value) is kind  # not isinstance, to which True is an int
    if not fits:
        raise ConfigError(f"{name} = {value!r:.80}, expected {describe(KEYS[name])}")
    numbers = KEYS[name].metadata["numbers"]
    if kind in (int, float) and not numbers.allows(value):
        raise ConfigError(f"{name} = {value}, expected {numbers.words}")
    if name in PATHS and not value.strip():
        raise ConfigError(f"{name} = {value!r}, expected a path")
    return os.path.expanduser(value) if name in PATHS else value


def describe(field):
    kinds = typing.get_args(field.type) or (field.type.__name__, *field.metadata["words"])
    if field.type is bool:
        kinds = "True", "False"
    return " | ".join(kinds)


def print_help(cfg):
    """Prints all keys, with the values that they have in cfg."""
    lines = ["python train.py [config/NAME.py] [--key=value ...]\n",
             "Without a file it is config/tiny.py. This command without --help would use these values:\n"]
    for name, field in KEYS.items():
        lines.append(f"  --{name:18} {getattr(cfg, name)!s:18} {field.metadata['help']} [{describe(field)}]")
    print("\n".join(lines))
