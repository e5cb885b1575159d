"""
What train.py does once, before the first step of a run and after the last one. No step needs anything of it.
"""

import contextlib
import hashlib
import json
import platform
import subprocess
from dataclasses import replace
from pathlib import Path

import torch

from config.processes import one_line
from data import samples
from data.atomic import replacing, write_json
from data.names import fixed
from data.results.runs import describe


def find_origin(device):
    """Returns where a run comes from: {key: a text}."""
    def git(*words):
        return subprocess.run(["git", "-C", Path(__file__).parent, *words], capture_output=True).stdout.strip()

    try:
        # The hash of the commit. If a tracked file has been changed since, "-dirty" follows, and a hash of the changes.
        commit = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").decode()
        if commit.endswith("-dirty"):
            commit += f"-{hashlib.sha256(git('diff', 'HEAD')).hexdigest()[:8]}"
    except OSError:  # git is not installed
        commit = ""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return dict(commit=commit or "no repository", python=platform.python_version(), torch=torch.__version__,
                device_name=name)


def write_start(trainer):
    """Writes run.json, log.csv and scores.csv, before any training."""
    cfg = replace(trainer.cfg, init_from="scratch")  # a run is the same, resumed or not
    path = trainer.out / "run.json"
    origin = find_origin(trainer.place.device)
    if trainer.step == cfg.max_iters:  # this start makes no step
        with contextlib.suppress(OSError, LookupError, TypeError, ValueError):  # the file was lost or changed
            origin = json.loads(path.read_text())["origin"]
    write_json(path, describe(cfg, trainer.corpus.meta) | dict(origin=origin, n_params=trainer.n_params))
    for name, text in trainer.rows.items():
        with replacing(trainer.out / name) as temporary:
            temporary.write_text(text)


def describe_start(trainer):
    """Prints what begins, in a few lines."""
    cfg, place = trainer.cfg, trainer.place
    place.say(f"{trainer.out}: {'decoder' if cfg.causal else 'encoder'} of {cfg.n_layer} layers, "
              f"{trainer.n_params / 1e6:.2f} M parameters, on {place.device} ({cfg.dtype})")
    processes = f"{place.world} processes" if place.world > 1 else "one process"
    place.say(f"batches of {cfg.batch_size} sequences of {cfg.block_size} tokens, made by {processes}; "
              f"{len(trainer.corpus.train):,} training tokens"
              + (", and a token is a byte" if trainer.corpus.meta["tokenizer"] == "bytes" else ""))
    if trainer.step == cfg.max_iters:
        place.say(f"this run is at its end already, step {trainer.step:,}: a larger --max_iters goes on with it")
    elif trainer.step > 0:
        place.say(f"going on from step {trainer.step:,} of {cfg.max_iters:,}")


def finish(trainer):
    """Draws the last picture, and prints a table of the scores and three samples of text."""
    if trainer.place.rank == 0:
        trainer.place.say(trainer.draw())
        with torch.compiler.set_stance("force_eager"):  # other shapes, not worth compiling
            trainer.place.say(samples.sample(trainer.model, trainer.corpus, trainer.cfg.predicts_next))


def draw(folder, gamma):
    """Draws run.png. Returns a table of its scores, or why there is none: a picture never ends a run."""
    table = ""
    try:
        from data.results import picture, records  # here, because matplotlib takes a second

        run = records.read_run(folder)
        table = f"{table_of_ends(run)}; "
        picture.plot_run(run, folder / "run.png", gamma)
        return f"{table}picture: {folder}/run.png"
    except Exception as e:  # a full disk, a name that matplotlib cannot show, a changed log.csv, ...
        return f"{table}no picture: {one_line(e)}"


def table_of_ends(run):
    """Returns what train.py prints at its end: the first and the last scores of every layer, and the last loss."""
    scores = [score for score in ("symmetry", "heads", "directionality") if len(run.curve(f"{score}_0"))]
    lines = ["layer" + "".join(f"   {score}: start     end" for score in scores)]
    layers = range(run.layers("symmetry").shape[1])  # with scores: a fork may pass through one block several times
    for layer in layers:
        lines.append(f"{layer:5}" + "".join(start_and_end(run, score, layer) for score in scores))
    if len(run.curve("positions")):
        lines.append(f"positions' own matrix (random ones like it: {run.last('positions_chance'):.2f}; single heads: "
                     f"{run.last('positions_heads'):.2f})")
        for layer in layers:
            lines.append(f"{layer:5}" + start_and_end(run, "positions", layer, width=len("symmetry")))
    return "\n".join([*lines, f"validation loss {run.last('val_loss'):.4f} nats/token"])


def start_and_end(run, score, layer, width=None):
    """Returns the first and the last score of a layer, below a heading of so many letters (of the score)."""
    curve = run.curve(f"{score}_{layer}").to_numpy()  # (S,)
    return " " * ((width or len(score)) + 1) + f"{fixed(curve[0], 2):>8}{fixed(curve[-1], 2):>8}"
