"""
A checkpoint from what a user writes: a name of models.csv, a local path, or an id of the Hugging Face Hub.

    with open_checkpoint(find_source("gpt2")) as checkpoint: ...
"""

import csv
import difflib
import os
import re
from pathlib import Path
from urllib.parse import unquote

from data.pretrained.checkpoint import Checkpoint
from data.pretrained.files import CheckpointError, Folder, read_json, require

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")  # of the files that can be read; all but the first by torch
FORMATS = re.compile(r"\.(safetensors|bin|gguf|h5|msgpack|onnx|ckpt|pth?|npz)\b")  # of all that may hold weights
# Files that lie beside weights begin like this.
NO_WEIGHTS = ("adapter_", "optim", "scheduler", "scaler", "rng_state", "training_args", "common.pt")


def known_models() -> list[dict[str, str]]:
    """The rows of models.csv."""
    with open(Path(__file__).parent / "models.csv", newline="") as f:
        return list(csv.DictReader(f))


# ---- what the user means -----------------------------------------------------------------------------------------


def find_source(name: str) -> str:
    """A name of models.csv, a local path, a Hub id or the address of its page -> what open_checkpoint takes."""
    name = without_address(name)
    if os.path.exists(os.path.expanduser(name)) or "/" in name:
        return name
    ids = {row["name"]: row["hub_id"] for row in known_models()}
    model, at, revision = name.partition("@")
    if model not in ids:
        near = ", ".join(difflib.get_close_matches(model, ids))
        hint = f"; the nearest names are {near}" if near else ""
        raise CheckpointError(f"no model or folder of this name{hint}; a Hub id is org/name")
    return ids[model] + at + revision


def without_address(source: str) -> str:
    """https://huggingface.co/org/name/tree/v1 -> org/name@v1. A path or an id stays, without spaces around it."""
    if os.path.exists(os.path.expanduser(source)):
        return source
    source = source.strip()
    mirror = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    hosts = [re.escape(mirror)] if mirror else []
    hosts.append(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)")
    address = re.match(f"({'|'.join(hosts)})/", source)
    if address is None:
        return source
    place = re.split("[?#]", source[address.end() :])[0]  # org/name/tree/v1/and/more, or name/tree/v1 of old models
    page = re.fullmatch(r"(?P<repo>[^/]+(/[^/]+)?)/(tree|blob|resolve|raw|blame|commits?)/(?P<revision>[^/]+).*", place)
    if page:
        return f"{page['repo']}@{unquote(page['revision'])}"
    return "/".join(place.strip("/").split("/")[:2])


def is_hub_id(repo: str) -> bool:
    """Whether it is name or org/name without -- and .., and does not end like a weight file, which is a path."""
    if not re.fullmatch(r"\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", repo, re.ASCII):
        return False
    return not re.search(r"--|\.\.", repo) and not repo.endswith(SUFFIXES)


def open_checkpoint(source: str) -> Checkpoint:
    """
    Open a folder, a weight file (safetensors, or written by torch.save), or org/name[@revision] of the Hub.

    A folder may hold what save_pretrained writes, a checkpoint of train.py, nanoGPT or nanochat, the checkpoint-N of a
    Trainer, or the 0_Transformer of sentence-transformers.
    """
    source = without_address(source)
    path = os.path.expanduser(source)
    only = ""  # this one file, and none of the others
    if os.path.exists(path):
        if not os.path.isdir(path):
            path, only = os.path.split(path)
            require(only.endswith(SUFFIXES), f"no folder, and no file of weights ({', '.join(SUFFIXES)})")
        folder = Folder(Path(path))
    else:
        repo, _, revision = source.partition("@")
        require(is_hub_id(repo), "there is no file or folder of this name, and a Hub id is org/name[@revision]")
        from data.pretrained.hub import open_repository  # here, so that local files need no Hub client
        folder = open_repository(repo, revision or None)
    if only:
        files, index = [only], None
    else:
        enter_model(folder)
        files, index = weight_files(folder)
    return Checkpoint(folder, files, index, lambda: read_config(folder, files[0]))


# ---- what is in a folder -----------------------------------------------------------------------------------------


def enter_model(folder: Folder):
    """If the folder has no weights, go into its 0_Transformer (sentence-transformers) or its newest checkpoint-N."""
    if choose_weights(folder.names):
        return
    if "0_Transformer" in folder.names:
        folder.enter("0_Transformer")
        folder.notes.append("of 0_Transformer in it")
        return
    # A Trainer of transformers writes checkpoint-N; accelerate writes step_N or epoch_N.
    matches = [re.fullmatch(r"(checkpoint|step|epoch)[-_](\d+)", name) for name in folder.names]
    steps = {int(match[2]): match[0] for match in matches if match}
    if steps:
        newest = steps[max(steps)]
        folder.enter(newest)
        folder.notes.append(f"of {newest}, the newest of {len(steps)} in it")


def choose_weights(names: list[str]) -> str | None:
    """The name of the weight file, or of the index of several weight files; None if there is neither."""
    wanted = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]
    others = [name for name in names if not name.startswith(NO_WEIGHTS)]
    wanted += lone([name for name in others if name.endswith(".safetensors")])
    wanted += ["pytorch_model_fsdp.bin", "ckpt.pt"]  # accelerate's; nanoGPT's and train.py's
    of_nanochat = [name for name in names if re.fullmatch(r"model_\d+\.pt", name)]
    if of_nanochat:
        wanted.append(max(of_nanochat))  # the last step: all names have the same number of digits
    wanted += lone([name for name in others if name.endswith((".pt", ".pth", ".ckpt"))])
    return next((name for name in wanted if name in names), None)


def lone(names: list[str]) -> list[str]:
    """A file under a name of its own is chosen only if there is no other."""
    return names if len(names) == 1 else []


def weight_files(folder: Folder) -> tuple[list[str], dict[str, str] | None]:
    """The files of the weights, and the index (tensor -> file) if they are shards of one checkpoint."""
    if "adapter_config.json" in folder.names:
        base = read_json(folder, "adapter_config.json").get("base_model_name_or_path")
        raise CheckpointError(f"an adapter of {base!s:.80}, not a model: merge the two, with PEFT by "
                              "merge_and_unload(), and save the model with save_pretrained")
    name = choose_weights(folder.names)
    require(name, what_instead(folder))
    if not name.endswith(".json"):
        return [name], None
    index = read_json(folder, name).get("weight_map")
    require(isinstance(index, dict) and index, f"{name} has no weight_map, get it again")
    files = sorted(set(index.values()))
    missing = [file for file in files if file not in folder.names]
    require(not missing, f"{', '.join(missing):.100}, which {name} names, is not there: get it again")
    return files, index


# What lies in the folders of others, and what to do with them.
OTHER_FOLDERS = [
    (r"snapshots",
     "a folder of the Hub's cache: give the id, org/name, or one of the folders in snapshots"),
    (r"latest_checkpointed_iteration\.txt|iter_\d+|mp_rank_\d+|common\.pt",
     "a checkpoint of Megatron: export it with export_ckpt of Megatron Bridge's AutoBridge, or with what trained it"),
    (r"zero_to_fp32\.py|global_step\d+|(bf16_)?zero_pp_rank_.*",
     "pieces of DeepSpeed: where zero_to_fp32.py is, run python zero_to_fp32.py . merged; put config.json into merged"),
    (r"pytorch_model_fsdp_\d+|.*\.distcp",
     "pieces of FSDP: run python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt, where "
     "FOLDER has the .distcp files; put config.json beside model.pt"),
]


def what_instead(folder: Folder) -> str:
    """What to do with a folder in which no weights can be read."""
    where = "".join(f" ({note})" for note in folder.notes)
    for pattern, advice in OTHER_FOLDERS:
        if any(re.fullmatch(pattern, name) for name in folder.names):
            return advice + where
    others = [name for name in folder.names if FORMATS.search(name)]
    found = ", ".join(others[:5]) or "no"
    config = "" if "config.json" in folder.names else "no config.json and "
    return (f"{config}no model.safetensors or pytorch_model.bin here{where}, found {found} weights: "
            "convert it with save_pretrained, or give the path of one file")


def read_config(folder: Folder, weights: str) -> dict | None:
    """config.json, or the meta_000650.json that nanochat writes beside model_000650.pt; None if neither is there."""
    step = re.fullmatch(r"model_(\d+)\.pt", weights)
    meta = f"meta_{step[1]}.json" if step else ""
    if meta in folder.names:
        config = read_json(folder, meta).get("model_config")
        require(isinstance(config, dict), f"{meta} has no model_config: get it again")
        kv_heads = config.get("n_kv_head", config.get("n_head"))
        return {**config, "num_key_value_heads": kv_heads, "model_type": "nanochat-checkpoint"}
    name = "config.json"
    if not folder.has(name):
        require("open_clip_config.json" not in folder.names, "a model of OpenCLIP, whose names and sizes are its own: "
                "give the repository of this model for transformers, which has a config.json")
        name = "../config.json"  # of accelerate, which writes step_N/model.safetensors
        if not folder.has(name):
            return None
        folder.notes.append("with the config.json of the folder above")
    config = read_json(folder, name)
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
