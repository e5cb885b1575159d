"""What is in a folder: the files of the weights, the config, or an inner folder that holds the model."""

import re

from data.pretrained.files import CheckpointError, Folder, read_json, require

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")  # of the files that can be read; all but the first by torch
FORMATS = re.compile(r"\.(safetensors|bin|gguf|h5|msgpack|onnx|ckpt|pth?|npz)\b")  # of all that may hold weights


def enter_model(folder: Folder):
    """If the folder has no weights, go into its 0_Transformer (sentence-transformers) or its newest checkpoint-N."""
    if choose_weights(folder.names):
        return
    inner = folder.subfolders()
    steps = [int(name.removeprefix("checkpoint-")) for name in inner if re.fullmatch(r"checkpoint-\d{1,18}", name)]
    if "0_Transformer" in inner:
        folder.enter("0_Transformer")
        folder.notes.append("of 0_Transformer in it")
    elif steps:  # of a Trainer of transformers
        newest = f"checkpoint-{max(steps)}"
        folder.enter(newest)
        folder.notes.append(f"of {newest}, the newest of {len(steps)} in it")


def choose_weights(names: list[str]) -> str | None:
    """The name of the weight file, or of the index of several weight files; None if there is neither."""
    wanted = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]
    lone = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    if len(lone) == 1:  # under a name of its own
        wanted += lone
    wanted.append("ckpt.pt")  # nanoGPT's
    of_nanochat = [name for name in names if re.fullmatch(r"model_\d+\.pt", name)]
    if of_nanochat:
        wanted.append(max(of_nanochat))  # the last step: all names have the same number of digits
    return next((name for name in wanted if name in names), None)


def weight_files(folder: Folder) -> tuple[list[str], dict[str, str] | None]:
    """The files of the weights, and the index (tensor -> file) if they are shards of one checkpoint."""
    if "adapter_config.json" in folder.names:
        base = read_json(folder, "adapter_config.json").get("base_model_name_or_path")
        raise CheckpointError(f"an adapter of {base!s:.80}, not a model: merge the two, with PEFT by "
                              "merge_and_unload(), and save the model with save_pretrained")
    name = choose_weights(folder.names)
    if name is None:
        others = [name for name in folder.names if FORMATS.search(name)]
        found = ", ".join(others[:5]) or "no"
        config = "" if "config.json" in folder.names else "no config.json and "
        where = "".join(f" ({note})" for note in folder.notes)
        raise CheckpointError(f"{config}no model.safetensors or pytorch_model.bin here{where}, found {found} weights: "
                              "convert it with save_pretrained, or give the path of one file")
    if name == "ckpt.pt" and "run.json" in folder.names:
        raise CheckpointError("a run of train.py that wrote no model, as with qk_norm or diagonal, which a Hugging Face "
                              "BERT does not have: --runs reads its scores")
    if not name.endswith(".json"):
        return [name], None
    index = read_json(folder, name).get("weight_map")
    require(isinstance(index, dict) and index and all(isinstance(file, str) for file in index.values()),
            f"{name} has no weight_map, get it again")
    files = sorted(set(index.values()))
    missing = [file for file in files if file not in folder.names]
    require(not missing, f"{', '.join(missing):.100}, which {name} names, is not there: get it again")
    return files, index


def read_config(folder: Folder, weights: str) -> dict | None:
    """config.json, or the meta_000650.json that nanochat writes beside model_000650.pt; None if neither is there."""
    step = re.fullmatch(r"model_(\d+)\.pt", weights)
    meta = f"meta_{step[1]}.json" if step else ""
    if meta in folder.names:
        config = read_json(folder, meta).get("model_config")
        require(isinstance(config, dict), f"{meta} has no model_config: get it again")
        kv_heads = config.get("n_kv_head", config.get("n_head"))
        return {**config, "num_key_value_heads": kv_heads, "model_type": "nanochat-checkpoint"}
    if "config.json" not in folder.names:
        return None
    config = read_json(folder, "config.json")
    if "architecture" in config and "model_type" not in config:
        return with_sizes_of_timm(config)
    return config


# The plain ViTs of timm, whose heads have 64 dimensions (its vision_transformer.py and deit.py). Others have other
# sizes: vit_base_patch16_gap_224 has 16 heads.
TIMM_VIT = re.compile(r"(vit|deit3?)_(?P<size>tiny|small|base|large)(_distilled)?_patch(?P<patch>\d\d?)(_reg4)?"
                      r"(_clip|_clip_quickgelu|_siglip|_siglip_gap|_dinov2)?(_\d+)?")
TIMM_SIZES = {"tiny": (12, 3), "small": (12, 6), "base": (12, 12), "large": (24, 16)}  # layers, heads


def with_sizes_of_timm(config: dict) -> dict:
    """The config of a checkpoint of timm, which names an architecture, and what that name stands for."""
    name = config["architecture"]
    found = TIMM_VIT.fullmatch(name) if isinstance(name, str) else None
    require(found and not config.get("model_args"),
            f"a timm checkpoint ({name!s:.60}), whose config.json does not tell the number of "
            "heads: give the version for transformers of this model, which has a model_type there")
    n_layer, n_head = TIMM_SIZES[found["size"]]
    return {**config, "model_type": "timm_vit", "num_hidden_layers": n_layer, "num_attention_heads": n_head,
            "patch_size": int(found["patch"])}
