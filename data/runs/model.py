"""The model of a run: `model, cfg = open_run("out/tiny")`. And the weights that a run takes from its parent."""

from pathlib import Path

import torch

from config import TrainConfig, as_now, require
from model import Transformer


def open_run(folder):
    """Returns the model of a run at its last checkpoint, and its TrainConfig. ConfigError: the code cannot do it."""
    path = Path(folder, "ckpt.pt")
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    cfg = TrainConfig(**as_now(checkpoint["config"], path, only_known=True))
    model = Transformer(cfg.of_model(len(checkpoint["model"]["tok_emb.weight"]))).eval()
    model.load_state_dict(checkpoint["model"])
    return model, cfg


SWITCHED = {"causal", "dropout", "attn_dropout", "init_std"}  # the keys of a model in which a child may differ


def last_weights(folder, cfg, vocab_size):
    """
    Returns the state dict at the end of the run in a folder, for a run of a TrainConfig that begins with it. Raises
    ConfigError if the run has not ended, or if its model is another one.
    """
    path = Path(folder, "ckpt.pt")
    require(path.exists(), f"parent = {folder!r}, expected the folder of a run: there is no {path}")
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    step, max_iters = checkpoint["step"], checkpoint["config"]["max_iters"]
    require(step == max_iters, f"parent = {folder!r} is at step {step} of {max_iters}: let it finish first")
    parent = TrainConfig(**as_now(checkpoint["config"], path, only_known=True))
    there = vars(parent.of_model(len(checkpoint["model"]["tok_emb.weight"])))

    # every key is compared, because heads and positions show in no shape of a weight
    for key, here in vars(cfg.of_model(vocab_size)).items():
        require(key in SWITCHED or there[key] == here, f"parent = {folder!r} has {key} = {there[key]!r}, not {here!r}")
    return checkpoint["model"]
