"""
Reads layouts.csv, which says for each model_type where the queries and keys of its self-attention are, and finds the
rows that a model needs. If the model is made of several parts, each part has its own.

A line was read from transformers 5.23, models/NAME/modeling_NAME.py, if its note does not say otherwise. NAME is the
model_type or, for a part such as clip_text_model, the model_type of the whole. README.md says how to add a line.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from .checkpoint import require

NUMBER = "[0-9]{1,9}"  # of a layer, in the name of a tensor
MOST = 100_000  # layers, heads, dimensions and the like: a larger number in a config.json is damage


def pick(config, kind, *keys, default=None):
    """Returns the first value of a config.json that is not null. Raises CheckpointError if it is no `kind`."""
    for key in keys:
        value = config.get(key)
        if value is not None:
            makes_sense = type(value) is kind and (kind is not int or 0 <= value < MOST)
            require(makes_sense, f"config.json: {key} is {value!r:.60}, expected {kind.__name__} (below {MOST})")
            return value
    return default


class Row(NamedTuple):
    """A line of layouts.csv. A model_type with two lines has two stacks, or two names for one."""

    model_type: str  # of config.json, or of a config inside of it
    stack: str = ""  # its name, if the model has several
    path: str = ""  # of a layer, after any prefix: a regular expression, except for "." and the number {i} of the layer
    weights: tuple = ()  # the tensors in that layer, with or without ".weight"
    mask: str = ""  # causal; or both: a token sees those on both of its sides; or unknown
    form: str = ""  # how the tensors hold q and k, a function of forms.py; or "parts": the model is made of others
    # The sizes of the class, which a config inside of another may leave out.
    n_layer: int | None = None
    n_head: int | None = None
    head_dim: int | None = None
    n_shared: int | None = None  # number of last layers that take the keys of an earlier one
    others: tuple = ()  # modules of this type that are not scored, and what lies beside q and k without changing them
    note: str = ""  # where it was read, if not in transformers, and what else a reader may ask

    def match(self, names):
        """Returns a match, with groups prefix, i and weight, for every tensor that belongs to a layer of this row."""
        path = self.path.replace(".", r"\.").replace("{i}", f"(?P<i>{NUMBER})")
        weights = "|".join(self.weights)
        pattern = re.compile(rf"(?P<prefix>(.*\.)?){path}\.(?P<weight>{weights})(\.linear)?(\.weight)?")
        return [match for match in map(pattern.fullmatch, names) if match]


def read_table():
    """Returns {model_type: its rows, in their order}."""
    table = defaultdict(list)
    with open(Path(__file__).parent / "layouts.csv", newline="") as file:
        for line in csv.DictReader(file):
            for column in "n_layer", "n_head", "head_dim", "n_shared":
                line[column] = int(line[column]) if line[column] else None
            for column in "weights", "others":
                line[column] = line[column].split()
            table[line["model_type"]].append(Row(**line))
    return dict(table)


TABLE = read_table()


# ---- the parts of a model ----------------------------------------------------------------------------------------

# Parts with a config of their own inside of config.json, such as the image tower and the text of CLIP, and how names of
# their tensors begin. The order matters, because the text has what is left. A model without parts is one part.
PARTS = {
    "vision": r"(.*\.)?(vision_tower|vision_model|vision_encoder|visual)\.",
    "audio": r"(.*\.)?audio_tower\.",
    "qformer": r"(.*\.)?qformer\.",
    "text_encoder": r"text_encoder\.",
    "encoder": r"(model\.)?encoder\.",
    "decoder": r"(model\.)?decoder\.",
    "backbone": "",
    "text": "",
}


class Part(NamedTuple):
    """A model inside of a model."""

    name: str  # "" if there is only one
    model_type: str | None
    config: dict
    names: set  # of its tensors
    rows: list  # none if the model_type is unknown


def find_parts(model_type, config, names):
    """Returns the parts of a model. model_type, config, names: of the whole."""
    rows = rows_of(model_type, config)
    if not rows or rows[0].form != "parts":
        return [Part("", model_type, config, names, rows)]
    parts = []
    left = names
    for name, start in PARTS.items():
        part_config = config_of_part(model_type, name, config)
        if part_config is not None:
            inside = {tensor for tensor in left if re.match(start, tensor)}
            left = left - inside
            its_type = part_type(model_type, name, part_config)
            its_rows = rows_of(its_type, part_config)
            parts.append(Part(name.removeprefix("text_"), its_type, part_config, inside, its_rows))
    return parts


def rows_of(model_type, config):
    """Returns the rows of the table, changed for a config that has no latent for the queries."""
    rows = TABLE.get(model_type, [])
    if rows and rows[0].form == "latent" and not pick(config, int, "q_lora_rank"):
        rows = [row._replace(weights=["q_proj", *row.weights[2:]]) for row in rows]  # instead of q_a_proj and q_b_proj
    return rows


def find_row(config, pattern):
    """Returns the row of a user's pattern, or one without weights: for the sizes of its class, and its stack."""
    rows = TABLE.get(pick(config, str, "model_type"), [Row("")])
    listed = [row for row in rows if row.weights and row.match([pattern.replace("{i}", "0")])]
    sides = re.findall("encoder|decoder", pattern)
    return listed[0] if listed else rows[0]._replace(stack=sides[-1] if sides else "")


def config_of_part(model_type, part, config):
    """Returns the config of a part, or None if the model has no such part."""
    found = pick(config, dict, f"{part}_config_dict", f"{part}_config", part)  # the first is in early files of CLIP
    if found is None and part == "text" and pick(config, int, "num_attention_heads", "n_head"):
        found = config  # GIT, and Qwen2-VL's first files
    if model_type == "paligemma" and part == "text" and found is not None:  # the image and the prompt see each other
        found = {"use_bidirectional_attention": True, **found}
    return found


def part_type(model_type, part, config):
    """Returns the model_type of a part. If its config has none that is in the table, it is clip_text or the like."""
    own = pick(config, str, "model_type", default=model_type)
    made = f"{model_type}_{part}".replace("-", "_")
    for name in own, made, f"{made}_model":
        if name in TABLE and name != model_type:
            return name
    return made if own == model_type else own  # for the message that it is not known


# How towers are called in names of tensors, if not as their configs are: vision_config, audio_config, text_config.
TOWERS = {"vision": "vision|visual|video|image|img|vit", "audio": "audio|speech|sound", "text": "text|language|llm|lm"}


def config_of_name(config, name):
    """Returns of a config.json the config of the model inside of it that a tensor belongs to by its name."""
    inner = {key.removesuffix("_config"): value for key, value in config.items() if isinstance(value, dict)
             and (key.endswith("_config") or key in PARTS) and key not in ("quantization_config", "attn_config")}
    starts = {}  # of the towers that the name speaks of
    for tower in {**inner, **TOWERS}:
        match = re.search(rf"(^|[._])({TOWERS.get(tower, re.escape(tower))})", name)
        if match:
            starts[tower] = match.start()
    first = min(starts, key=starts.get, default="text")
    if first not in inner and first != "text" and inner:
        return {}  # a tower of which config.json says nothing
    tower = first if first in inner else "text"
    return config_of_name(inner[tower], name) if tower in inner else config


# ---- what a config.json says ---------------------------------------------------------------------------------------

# The keys of config.json that can tell how many layers and heads there are, in the order in which they are tried. {} is
# the name of the stack.
LAYER_KEYS = ("{}_layers", "num_{}_layers", "{}_num_hidden_layers", "num_hidden_groups", "num_hidden_layers", "n_layer",
              "n_layers", "num_layers", "depth", "encoder_layers", "conf_num_hidden_layers")
HEAD_KEYS = ("num_attention_heads_per_layer", "{}_attention_heads", "{}_num_attention_heads", "num_attention_heads",
             "n_head", "n_heads", "num_heads", "num_query_heads", "attention_heads", "encoder_attention_heads",
             "conf_num_attention_heads")
KEY_HEAD_KEYS = "num_key_value_heads_per_layer", "num_key_value_heads", "n_kv_heads", "num_kv_heads"
DIM_KEYS = ("head_dim", "d_kv", "attention_head_size", "attention_head_dim", "d_head", "dim_head", "head_size",
            "kv_channels")
WIDTH = re.compile(r"(hidden|embed\w*|emb|model)_(size|dim)$|^(n_embd|n_embed|d_model|dim|width)$")
# The kinds of layers without a softmax: words, the letters of Nemotron-H, and the 0 of MiniMax.
NO_SOFTMAX = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "M", "-", "E", 0}


class Sizes(NamedTuple):
    n_head: int | None  # H
    n_kv_head: int | None  # Hkv; None: take it from the shape of k, or H in a fused tensor
    head_dim: int | None  # D; None: C / H


def keys_of(keys, row):
    """Returns keys of config.json with the name of the stack of a row."""
    return [key.format(row.stack) for key in keys]


def count_layers(row, config):
    """Returns the number of layers by the config or the defaults of the class; 0 if it is not told."""
    kinds = pick(config, list, "layer_types", "layers_block_type", default=[])
    return pick(config, int, *keys_of(LAYER_KEYS, row), default=row.n_layer or len(kinds))


def softmax_layers(config, n_layer):
    """Returns which of n_layer layers have a softmax; [] if the config does not tell them apart from others."""
    kinds = pick(config, list, "layer_types", "layers_block_type", "attn_type_list", default=[])
    kinds = kinds or list(pick(config, str, "hybrid_override_pattern", default=""))
    if kinds:  # it may go on with layers that predict further tokens
        return [i for i, kind in zip(range(n_layer), kinds) if kind not in NO_SOFTMAX]
    period = pick(config, int, "full_attention_interval", "attn_layer_period")  # Qwen3-Next, Jamba
    if period:
        offset = pick(config, int, "attn_layer_offset", default=period - 1)
        return [i for i in range(n_layer) if i % period == offset]
    crossing = pick(config, list, "cross_attention_layers", default=[])  # mllama
    if crossing:
        return [i for i in range(n_layer) if i not in crossing]
    from_1 = pick(pick(config, dict, "linear_attn_config", default={}), list, "full_attn_layers", default=[])  # Kimi
    return pick(config, list, "full_attn_idxs", "attn_layer_indices", default=[i - 1 for i in from_1])


def with_own_keys(config, layers, n_layer, n_shared):
    """Returns those of the layers that have keys of their own, and those that take the keys of an earlier one."""
    n_shared = pick(config, int, "num_kv_shared_layers", default=n_shared)  # the last ones: Gemma 3n and 4
    period = pick(config, int, "cla_share_factor", default=1) if config.get("use_cla") else 1  # Hunyuan
    own = [i for i in layers if i < n_layer - n_shared and i % period == 0]
    return own, [i for i in layers if i not in own]


def mask_is_causal(row, config):
    """Returns whether no token sees a later one, or None if it is not known."""
    if row.mask == "both" and not row.stack:  # BERT as a decoder, XLM
        return pick(config, bool, "is_decoder", default=False) or pick(config, bool, "causal", default=False)
    # In Gemma 4 "all", or "vision", which is of images only. LFM2 and LLaMA say it in the name of their architecture.
    both_sides = config.get("use_bidirectional_attention") in (True, "all")
    both_sides = both_sides or "Bidirectional" in str(config.get("architectures"))
    if row.mask == "causal" and (both_sides or not pick(config, bool, "is_causal", default=True)):
        return None  # it was first trained as a causal model, and then not
    return None if row.mask == "unknown" else row.mask == "causal"


def read_sizes(row, config, i):
    """Returns the sizes of the heads of layer i, from the config or the defaults of the class; None if not told."""
    config = of_layer(config, i)
    if pick(config, list, "layer_types", default=[])[i : i + 1] == ["full_attention"]:  # Gemma 4
        config["head_dim"] = pick(config, int, "global_head_dim", "head_dim")
        if pick(config, bool, "attention_k_eq_v"):
            config["num_key_value_heads"] = pick(config, int, "num_global_key_value_heads", "num_key_value_heads")
    config |= pick(pick(config, dict, "per_layer_config", default={}), dict, str(i), default={})  # as it is saved
    n_head = pick(config, int, *keys_of(HEAD_KEYS, row), default=row.n_head)
    n_kv_head = pick(config, int, *KEY_HEAD_KEYS)
    head_dim = pick(config, int, *DIM_KEYS, default=row.head_dim)
    pruned = pick(pick(config, dict, "pruned_heads", default={}), list, str(i))  # BERT, GPT-2
    if pruned:
        head_dim = pick(config, int, "hidden_size", "n_embd", "dim", default=0) // n_head
        n_head -= len(pruned)
    return Sizes(n_head, n_kv_head, head_dim)


def of_layer(config, i):
    """Returns a config with the numbers of layer i where it lists the heads of every layer (not of stages: Swin)."""
    lists = {key: value for key, value in config.items() if isinstance(value, list) and "head" in key}
    plain = {key: value for key, value in config.items() if key not in lists}
    if "depths" in config:
        return plain
    return plain | {key: value[i] for key, value in lists.items() if i < len(value)}
