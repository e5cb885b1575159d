"""
The config of a checkpoint, which tells the layout of its weights: its config.json, or what a training script writes in
place of one.
"""

import re

from data.pretrained.files import Folder, pick, read_json, require

# The plain ViTs of timm, whose heads have 64 dimensions (its vision_transformer.py and deit.py). Others have other
# sizes: vit_base_patch16_gap_224 has 16 heads.
TIMM_VIT = re.compile(r"(vit|deit3?)_(?P<size>tiny|small|base|large)(_distilled)?_patch(?P<patch>\d\d?)(_reg4)?"
                      r"(_clip|_clip_quickgelu|_siglip|_siglip_gap|_dinov2)?(_\d+)?")
TIMM_SIZES = {"tiny": (12, 3), "small": (12, 6), "base": (12, 12), "large": (24, 16)}  # layers, heads


def read_config(folder: Folder, file: str, saved: dict) -> dict:
    """
    The config for a file of weights. saved: what torch.save has put into that file, {} if it is of safetensors.

    CheckpointError: there is none, or it does not tell the layout.
    """
    model_args = saved.get("model_args")
    of_training = saved.get("config")
    if isinstance(model_args, dict):
        return {**model_args, "model_type": "nanogpt"}
    if isinstance(of_training, dict) and "causal" in of_training:
        return {**of_training, "model_type": "train.py-checkpoint"}

    meta = re.sub(r"^model_(\d+)\.pt$", r"meta_\1.json", file)  # nanochat writes it beside model_000650.pt
    if meta != file and meta in folder.names:
        config = pick(read_json(folder, meta), "model_config", dict, {})
        n_kv_head = config.get("n_kv_head", config.get("n_head"))
        return {**config, "num_key_value_heads": n_kv_head, "model_type": "nanochat-checkpoint"}

    name = "config.json"
    if not folder.has(name):
        require("open_clip_config.json" not in folder.names, "a model of OpenCLIP, whose names and sizes are its own: "
                "give the repository of this model for transformers, which has a config.json")
        name = "../config.json"  # of accelerate, which writes step_N/model.safetensors
        require(folder.has(name), "no config.json, which tells the layout of the weights: put it beside them")
        folder.notes.append("with the config.json of the folder above")
    config = read_json(folder, name)
    if "architecture" in config and "model_type" not in config:
        return with_sizes_of_timm(config)
    return config


def with_sizes_of_timm(config: dict) -> dict:
    """The config of a checkpoint of timm, which names an architecture, and what that name stands for."""
    name = str(config["architecture"])
    found = TIMM_VIT.fullmatch(name)
    require(found and not config.get("model_args"),
            f"a timm checkpoint ({name:.60}), whose config.json does not tell the number of "
            "heads: give the version for transformers of this model, which has a model_type there")
    n_layer, n_head = TIMM_SIZES[found["size"]]
    return {**config, "model_type": "timm_vit", "num_hidden_layers": n_layer, "num_attention_heads": n_head,
            "patch_size": int(found["patch"])}
