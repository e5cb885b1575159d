"""The model of a run: `model, cfg = open_run("out/tiny")`. And the weights that a run takes from its parent."""

import time
from pathlib import Path

import torch

from config import TrainConfig, as_now, require
from data.atomic import is_locked
from data.runs.write import digest
from model import Transformer


def read_checkpoint(folder):
    """Returns what ckpt.pt of a run holds, its TrainConfig and ModelConfig. ConfigError: the code cannot do it."""
    path = Path(folder, "ckpt.pt")
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    cfg = TrainConfig(**as_now(checkpoint["config"], path, only_known=True))
    return checkpoint, cfg, cfg.of_model(len(checkpoint["model"]["tok_emb.weight"]))


def open_run(folder):
    """Returns the model of a run at its last checkpoint, and its TrainConfig. ConfigError: the code cannot do it."""
    checkpoint, cfg, model_cfg = read_checkpoint(folder)
    model = Transformer(model_cfg).eval()
    model.load_state_dict(checkpoint["model"])
    return model, cfg


SWITCHED = {"causal", "dropout", "attn_dropout", "init_std"}  # the keys of a model in which a child may differ


def load_parent(model, cfg):
    """
    Loads the last weights of the parent of a run, a TrainConfig. Returns what the run keeps of it, {} if it resumes and
    has all in its own ckpt.pt. Raises ConfigError if the parent has not ended, or if its model is another one.
    """
    folder = cfg.parent
    if cfg.init_from == "resume" and Path(cfg.out_dir, "ckpt.pt").exists():
        return {}
    path = Path(folder, "ckpt.pt")
    require(path.exists(), f"parent = {folder!r}, expected the folder of a run: there is no {path}")

    # a parent that is being made longer has not ended; but another child may be looking at this very moment
    looks = (is_locked(folder) and not time.sleep(0.1) for _ in range(10))
    require(not all(looks), f"parent = {folder!r} is being trained now: let it finish first")
    checkpoint, _, model_cfg = read_checkpoint(folder)
    step, max_iters = checkpoint["step"], checkpoint["config"]["max_iters"]
    require(step == max_iters, f"parent = {folder!r} is at step {step} of {max_iters}: let it finish first")

    # every key is compared, because heads and positions show in no shape of a weight
    for key, here in vars(model.cfg).items():
        there = getattr(model_cfg, key)
        require(key in SWITCHED or there == here, f"parent = {folder!r} has {key} = {there!r}, not {here!r}")
    model.load_state_dict(checkpoint["model"])

    # what the parent was: its keys, its text, and what its own parent was
    parent_config = checkpoint["config"] | dict(sha256=" ".join(checkpoint["data"]["sha256"].values()))
    if checkpoint.get("parent_config"):
        parent_config["parent_config"] = checkpoint["parent_config"]
    if len(checkpoint["lengths"]) > 1:  # made longer on the way, so its learning rate had another course
        parent_config["lengths"] = checkpoint["lengths"]
    return dict(parent_sha256=digest(checkpoint["model"]), parent_config=parent_config)


def say_if_changed(place, folder, sha256):
    """Says so if the run in a folder has other weights by now than those with this SHA-256."""
    path = Path(folder, "ckpt.pt")
    if path.exists() and digest(torch.load(path, map_location="cpu", weights_only=True)["model"]) != sha256:
        place.say(f"parent = {folder!r} is another run by now: this one goes on from its own ckpt.pt")
