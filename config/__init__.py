"""
The keys of a training run, their defaults, and how they are read from a file and from the command line.

A config file is plain Python of the form `key = value`. It overrides the defaults below, and `--key=value` on the
command line overrides the file. A file may start from another one with `from config.bert import *`, and may compute.
Names that begin with an underscore are not keys. A wrong key or value is a ConfigError: one line with the key, its
value, and what was expected.
"""

from __future__ import annotations  # the type of a field is a text, such as "float | str"

import ast
import dataclasses
import math
import os
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path

from init import STARTS
from model import ModelConfig

ROOT = Path(__file__).resolve().parents[1]


class ConfigError(ValueError):
    """A mistake in a configuration or with the files of a run, in one line."""


def require(condition, message):
    """Raises ConfigError with this message unless the condition is true."""
    if not condition:
        raise ConfigError(message)


# What a key may be, if it has the right type: in words and as a function.
POSITIVE = "more than 0", lambda x: 0 < x < math.inf  # nan is neither
FROM_ZERO = "0 or more", lambda x: 0 <= x < math.inf
SHARE = "0 to 1", lambda x: 0 <= x <= 1
BELOW_1 = "0 to below 1", lambda x: 0 <= x < 1
SEED = "0 to 2^63 - 1", lambda x: 0 <= x < 2**63
BOOL = "True | False", lambda x: True
ANY = "any text", lambda x: True
NAME = "not empty", lambda x: x.strip() != ""
STD = "more than 0 | init_std | linear", lambda x: x in ("init_std", "linear") or type(x) is float and 0 < x < math.inf


def one_of(*words):
    """Returns the same pair, for a key that must be one of these words."""
    return " | ".join(words), lambda x: x in words


# Two runs differ in a key. What may they still have in common?
#     how        they compute the same: the key only says where and how a run runs
#     run        one may go on from the checkpoint of the other
#     setting    they may be two runs of one setting, as two seeds are
#     task       their losses mean the same
# So max_iters has none of these words, and seed has two. A new key of a fork has none: add varies="task" if it may.
WHERE = "how run setting task"


def key(default, text, allowed=POSITIVE, varies=""):
    """Returns a field of TrainConfig: its default, its line in --help, what it may be, and within what it may vary."""
    return dataclasses.field(default=default, metadata=dict(help=text, allowed=allowed, varies=varies))


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """
    The defaults are the paper's (S2.3 and BERT-Mini of Table S1) where it gives a value. A new key has as its default
    what the code did without it, because older runs have no such key.
    """

    data_dir: str = key("data/sympy/bytes", "token files: the folder that a data/*/prepare.py wrote", NAME,
                        varies="run setting task")  # the folder may differ, and the SHA-256 of its files may not
    causal: bool = key(False, "False: encoder, every token sees all; True: decoder, none sees a later one", BOOL)
    objective: str = key("auto", "what to predict; auto: next if causal, else masked", one_of("auto", "masked", "next"))
    n_layer: int = key(4, "blocks", varies="task")
    n_head: int = key(4, "attention heads", varies="task")
    n_embd: int = key(256, "embedding size; the MLP is four times as wide", varies="task")
    block_size: int = key(512, "tokens in a sequence")
    dropout: float = key(0.1, "on embeddings and sublayers", BELOW_1, varies="task")
    attn_dropout: float = key(0.1, "on attention weights (0 lets CPUs take the fast attention)", BELOW_1, varies="task")
    positions: str = key("learned", "how a token knows its place (model.py)",
                         one_of("learned", "rotary", "untied"), varies="task")
    init: str = key("random", "how W_q and W_k start (init.py)", one_of(*STARTS), varies="task")
    tie: str = key("none", "same: W_k = W_q for good; mirror: of two heads each has the other's W_q (model.py)",
                   one_of("none", "same", "mirror"), varies="task")
    init_std: float = key(0.02, "standard deviation of the entries of every matrix at the start", varies="task")
    qk_std: float | str = key("init_std", "the same for q and k; linear: 1 / sqrt(3 C), as in a new nn.Linear", STD,
                              varies="task")
    v_std: float | str = key("init_std", "the same for v", STD, varies="task")
    init_from: str = key("scratch", "resume: go on from out_dir/ckpt.pt, if it is there",
                         one_of("scratch", "resume"), varies=WHERE)
    parent: str = key("", "a finished run whose last weights this one begins with; empty: random ones", ANY,
                      varies="run task")  # the folder may differ, and not the SHA-256 of its weights
    skip_iters: int = key(0, "batches begin after so many steps: a child reads on where its parent ended", FROM_ZERO,
                          varies="task")
    mlm_probability: float = key(0.15, "share of the tokens that are masked", SHARE)
    mask_share: float = key(0.8, "share of these that the model sees as the mask token", SHARE)
    random_share: float = key(0.1, "share of these seen as a random token; the rest are seen as they are", SHARE)
    batch_size: int = key(256, "sequences in a step, over all processes")
    micro_batch_size: int = key(32, "sequences at a time on one process, at most; a run keeps it",
                                varies="how setting task")  # each micro-batch draws its own random numbers
    max_iters: int = key(200_000, "steps; each updates the weights once")
    warmup_iters: int = key(200, "steps of linear warm-up, all of a shorter run, before linear decay to 0", FROM_ZERO,
                            varies="task")
    learning_rate: float = key(5e-5, "at its peak, after the warm-up", varies="task")
    qk_update: str = key("adamw", "how q.weight and k.weight are updated, all else by AdamW (config/updates.py)",
                         one_of("adamw", "matrix", "muon"), varies="task")
    muon_rate: float = key(0.0, "Muon updates the matrices of all blocks, with this rate at its peak; 0: it does not",
                           FROM_ZERO, varies="task")
    decay_iters: int = key(0, "the rate falls until this step, to a tenth at the lowest; 0: to 0, until max_iters",
                           FROM_ZERO, varies="task")
    weight_decay: float = key(0.01, "of matrices only", FROM_ZERO, varies="task")
    beta2: float = key(0.999, "AdamW's", BELOW_1, varies="task")
    grad_clip: float = key(1.0, "largest norm of the gradient", varies="task")
    eval_interval: int = key(2000, "steps between evaluations; each ends in a checkpoint", varies="run")
    eval_iters: int = key(4, "batches in an evaluation, the same ones every time")
    skip_eval_iters: int = key(0, "these begin after so many: who tunes may not see those of the score", FROM_ZERO)
    score_interval: int = key(500, "steps between rows of scores.csv", varies="run task")
    out_dir: str = key("out/run", "where the run is written; out/NAME of the config file", NAME, varies=WHERE)
    seed: int = key(1, "of weights, data order, masks and dropout", SEED, varies="setting task")
    device: str = key("auto", "auto: a GPU if there is one, or cpu",
                      one_of("auto", "cpu", "cuda", "mps", "xpu"), varies=WHERE)
    threads: int = key(0, "of the CPU, per process; 0: torch's choice", FROM_ZERO, varies=WHERE)
    dtype: str = key("float32", "of products; auto: 16 bits on a GPU",
                     one_of("auto", "float32", "bfloat16", "float16"), varies="task")
    compile: str = key("auto", "torch.compile; auto: on a GPU", one_of("auto", "on", "off"), varies=WHERE)
    deterministic: bool = key(False, "on a GPU, the same run twice is the same bit for bit, and slower", BOOL,
                              varies=WHERE)

    def __post_init__(self):
        # sizes that fit each other
        require(self.n_embd % self.n_head == 0,
                f"n_embd = {self.n_embd}, expected a multiple of n_head = {self.n_head}")
        require(self.positions != "rotary" or self.n_embd // self.n_head % 2 == 0,
                "rotary positions turn pairs of dimensions: expected an even n_embd / n_head")

        # something to predict, which the model does not see
        require(self.causal or self.objective != "next",
                "objective = 'next' with causal = False: every token would see the one it predicts")
        require(self.mask_share + self.random_share <= 1, "mask_share + random_share is more than 1")
        require(self.predicts_next or round(self.mlm_probability * self.block_size) > 0,
                f"mlm_probability = {self.mlm_probability} masks no token of a sequence")

        # options that exclude each other
        require(self.tie != "mirror" or self.n_head % 2 == 0,
                f"tie = 'mirror' with n_head = {self.n_head}, expected pairs of heads")
        require(self.tie == "none" or self.positions != "untied", "tie: W_q and W_k of untied positions are not tied")
        require(self.tie == "none" or self.init == "random", "tie and init: tied keys have no matrix to initialize")
        require(self.qk_update == "adamw" or self.tie == "none", "qk_update and tie: tied keys have no k.weight")
        require(self.muon_rate == 0 or (self.qk_update, self.tie) == ("adamw", "none"),
                "muon_rate and qk_update or tie: Muon updates q.weight and k.weight, too")
        require(not self.parent or (self.init, self.qk_std, self.v_std) == ("random", "init_std", "init_std"),
                "parent and init, qk_std or v_std: the weights are those of the parent")

    @property
    def predicts_next(self):
        """True if the model predicts the next token at every position, and False if it predicts masked tokens."""
        return self.causal if self.objective == "auto" else self.objective == "next"

    def schedule(self, step):
        """
        Returns the learning rate of a step as a share of its peak. It rises to 1, and would be 0 at max_iters. With
        decay_iters it falls faster, and stays at 0.1 from there on.
        """
        warmup_iters = min(self.warmup_iters, self.max_iters)  # a very short run is all warm-up
        if step < warmup_iters:
            return (step + 1) / warmup_iters  # step + 1: a rate of 0 would waste an update
        if self.decay_iters > 0:
            return max(0.1, (self.decay_iters - step) / max(1, self.decay_iters - warmup_iters))
        return (self.max_iters - step) / (self.max_iters - warmup_iters)

    def of_model(self, vocab_size):
        """Returns the ModelConfig of this run."""
        names = {field.name for field in dataclasses.fields(ModelConfig)} - {"vocab_size"}
        return ModelConfig(vocab_size, **{name: getattr(self, name) for name in names})


# Headings of --help, each above its first key.
HEADINGS = {"data_dir": "The text, and what to predict", "n_layer": "The model, and how it starts",
            "init_from": "Training", "eval_interval": "What is written, and where it runs"}
KEYS = {field.name: field for field in dataclasses.fields(TrainConfig)}  # of files and of the command line

# What else is known of a run (its corpus, its size, what made its steps), and within what it may vary, as above.
FACTS = {"tokenizer": "", "sha256": "", "parent_config": "task", "n_params": "task", "lengths": "",
         "commit": "setting task", "python": "setting task", "torch": "setting task", "device_name": "setting task",
         "made_with": "setting task"}


def may_differ(name, respect):
    """Returns whether two runs that differ in a key, or in one of FACTS, may still have this in common."""
    varies = KEYS[name].metadata["varies"] if name in KEYS else FACTS.get(name, "")
    return respect in varies.split()


def differing_keys(configs):
    """Returns the keys on which these dicts disagree."""
    differing = set()
    for config in configs:
        differing |= {name for name in {*config, *configs[0]} if config.get(name) != configs[0].get(name)}
    return sorted(differing)


def as_now(config, path, only_known=False):
    """
    Translates the config of an older run to today's keys: {"seed": 3} -> {"data_dir": ..., "seed": 3, "device": ...}

    With only_known, raises ConfigError if it has a key that this code does not know (an older one, or a fork's): the
    code would compute something else. Runs may have such a key where they are only compared. path: for the message.
    """
    if only_known:
        for name in config:
            require(name in KEYS,
                    f"{path} has {name} = {config[name]!r}, a key that this code does not know: "
                    "use the commit of its run.json")
    return vars(TrainConfig()) | config


def end_with_pipe():
    """Lets a program end without a word if nobody reads what it prints any more, as in `... | head`."""
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def command_line(argv):
    """Returns the TrainConfig of `python train.py ...`. --help, or a mistake, ends the program."""
    try:
        cfg = load([word for word in argv if word not in ("-h", "--help")])
    except ConfigError as e:
        sys.exit(f"train.py: {e}")
    if "-h" in argv or "--help" in argv:
        print("python train.py [config/NAME.py, or else config/tiny.py] [--key=value ...] would use these values:\n")
        for name, field in KEYS.items():
            if name in HEADINGS:
                print(HEADINGS[name])
            expected, _ = field.metadata["allowed"]
            print(f"  --{name:18} {getattr(cfg, name)!s:18} {field.metadata['help']} [{field.type}: {expected}]")
        sys.exit()
    return cfg


def load(argv):
    """Returns the TrainConfig of a file, or of config/tiny.py without one, and of --key=value, which override it."""
    flags = read_flags([word for word in argv if word.startswith("-")])
    files = [word for word in argv if not word.startswith("-")] or [str(ROOT / "config/tiny.py")]
    require(len(files) == 1, f"expected one config file at most, got {' '.join(files)}")
    values = {name: value for name, value in run_file(files[0]).items() if not name.startswith("_")}
    values = dict(out_dir=f"out/{Path(files[0]).stem}") | values | flags
    return TrainConfig(**{name: checked(name, value) for name, value in values.items()})


def read_flags(flags):
    """Returns the keys that words --key=value set: {name: value}."""
    values = {}
    for flag in flags:
        require(flag.startswith("--") and "=" in flag, f"{flag}: write --key=value, without a space")
        name, value = flag.removeprefix("--").split("=", 1)
        if name in KEYS and KEYS[name].type != "str":
            with suppress(ValueError, SyntaxError):  # no number: a word, or `checked` refuses it
                value = ast.literal_eval(value)
        values[name] = value
    return values


def run_file(path):
    """Runs a config file, and returns its variables: {name: value}."""
    require(os.path.exists(path), f"there is no file {path}")
    require(str(path).endswith(".py"), f"{path} is no file of keys: expected one that ends in .py")
    return runpy.run_path(path)


def checked(name, value):
    """Returns the value. Raises ConfigError if there is no such key, or if it may not have this value."""
    require(name in KEYS, f"unknown key {name}: --help lists all keys, a file's own names begin with an underscore, "
            f"and a fork's key is a line of TrainConfig in config/__init__.py: {name}: int = key(...)")
    field = KEYS[name]
    kinds = field.type.split(" | ")
    expected, allows = field.metadata["allowed"]
    if type(value) is int and "float" in kinds:  # such as --dropout=0
        value = float(value)
    is_allowed = type(value).__name__ in kinds and allows(value)  # not isinstance, to which True is an int
    require(is_allowed, f"{name} = {value!r:.80}, expected {field.type}: {expected}")
    return os.path.expanduser(value) if type(value) is str else value
