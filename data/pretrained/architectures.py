"""
Reads layouts.csv, which says for each model_type where the queries and keys of its self-attention are, finds the rows
that a model and each of its parts need, and reads sizes from config.json. README.md says how to add a row.
"""

import re
from collections import defaultdict
from typing import NamedTuple

from . import read_table, require


def pick(config, kind, *keys, default=None):
    """Returns the first value of a config.json that is not null. Raises CheckpointError if it is no `kind`."""
    for key in keys:
        value = config.get(key)
        if value is not None:
            require(type(value) is kind, f"config.json: {key} is {value!r:.60}, expected {kind.__name__}")
            return value
    return default


class Row(NamedTuple):
    """A line of layouts.csv. A model_type with two lines has two stacks, or two names for one."""

    model_type: str  # in config.json, or in a config inside of it
    stack: str  # its name, if the model has several
    path: str  # where a layer is, after any prefix: a regular expression, but "." is a dot, and {i} its number
    weights: list  # the tensors in that layer, with or without ".weight"
    mask: str  # causal; or both: a token sees those on both of its sides; or unknown
    form: str  # how the tensors hold q and k, a function of forms.py; or "parts": the model is made of others
    # The sizes of the class, which a config inside of another may leave out.
    n_layer: int | None
    n_head: int | None
    head_dim: int | None
    n_shared: int | None  # number of last layers that take the keys of an earlier one
    unscored: list  # modules of this type that are not scored, and what lies beside q and k without changing them
    note: str  # where it was read, if not in transformers 5.23, and what else a reader may ask

    def match(self, names):
        """Finds the tensors that hold q and k in the layers of this row: matches with a prefix, i and a weight."""
        # by h.{i}.attn and c_attn, transformer.h.3.attn.c_attn.weight has the prefix "transformer." and i = 3,
        # and h.3.attn.c_attn.bias, h.3.crossattention.c_attn and h.3.attn.c_attn_2 do not match
        path = self.path.replace(".", r"\.").replace("{i}", r"(?P<i>\d+)")
        weight = "|".join(self.weights)
        pattern = rf"(?P<prefix>(.*\.)?){path}\.(?P<weight>{weight})(\.linear)?(\.weight)?"
        matches = [re.fullmatch(pattern, name) for name in names]
        return [match for match in matches if match]


TABLE = defaultdict(list)  # {model_type: its rows, in their order}
for line in read_table("layouts.csv"):
    for column in "n_layer", "n_head", "head_dim", "n_shared":
        line[column] = int(line[column]) if line[column] else None
    for column in "weights", "unscored":
        line[column] = line[column].split()
    TABLE[line["model_type"]].append(Row(**line))


# Parts that have a config of their own inside of config.json, such as the image tower and the text of CLIP.
PARTS = "vision", "audio", "qformer", "text_encoder", "encoder", "decoder", "backbone", "text"
# How they are called in names of tensors, if not as their configs are: vision_config, audio_config, text_config.
TOWERS = {"vision": "vision|visual|video|image|img|vit", "audio": "audio|speech|sound", "text": "text|language|llm|lm"}


class Part(NamedTuple):  # with a config of its own: the vision or the text of a CLIP. A BERT is one part
    name: str  # "" if there is only one
    model_type: str | None
    config: dict
    names: set  # what its tensors are called

    @property
    def rows(self):
        """The rows of the table for this type, none if it is unknown."""
        rows = TABLE.get(self.model_type, [])
        if rows and rows[0].form == "latent" and not pick(self.config, int, "q_lora_rank"):
            # DeepSeek-V2-Lite has a latent for keys, but none for queries: q_proj instead of q_a_proj and q_b_proj
            return [rows[0]._replace(weights=["q_proj", *rows[0].weights[2:]])]
        return rows


def find_parts(config, names):
    """Returns the parts of a model, from its config.json and the names of its tensors."""
    model_type = pick(config, str, "model_type")
    whole = Part("", model_type, config, names)
    if not whole.rows or whole.rows[0].form != "parts":
        return [whole]

    # the others have a config for each part: vision_config, text_config, or a plain decoder
    inner = {}  # {part: its config}
    # subtle: early files of CLIP have a vision_config_dict, too, which counts. It is sorted behind vision_config
    for key, value in sorted(config.items()):
        part = re.sub("_config(_dict)?$", "", key)
        if part in PARTS and isinstance(value, dict):
            inner[part] = value
    # GIT, and Qwen2-VL's first files, have the sizes of their text at the top
    if "text" not in inner and pick(config, int, "num_attention_heads", "n_head"):
        inner["text"] = config
    # in PaliGemma the image and the prompt see each other, even if no key says so
    if model_type == "paligemma":
        inner["text"] = {"use_bidirectional_attention": True, **inner.get("text", {})}

    # deal out the tensors. One belongs to the part that its name mentions first: vision_tower.text_proj and
    # model.visual.blocks.0.attn.qkv to vision; or else to the text: lm_head, model.layers.0.self_attn.q_proj,
    # supervision.weight (no word in it begins with vision). Those of a part without a config go nowhere
    words = [f"(?P<{part}>{TOWERS.get(part, part)})" for part in {**inner, **TOWERS}]
    names_of = defaultdict(set)  # {part: the names of its tensors}
    for name in names:
        match = re.search(rf"(?:^|[._])(?:{'|'.join(words)})", name)
        names_of[match.lastgroup if match else "text"].add(name)

    # the type of a part is the one in its config, if the table has it, or else clip_text_model, say
    parts = []
    for part in sorted(inner, key=PARTS.index):
        made = f"{model_type}_{part}".replace("-", "_")
        types = pick(inner[part], str, "model_type"), made, f"{made}_model"
        known = [name for name in types if name in TABLE and name != model_type]
        its_type = known[0] if known else made  # for the message that it is not known
        parts.append(Part(part.removeprefix("text_"), its_type, inner[part], names_of[part]))
    return parts


# The keys of config.json that can tell a size, in the order in which they are tried. {} is the name of the stack.
KEYS = dict(
    n_layer="""{}_layers num_{}_layers {}_num_hidden_layers num_hidden_groups num_hidden_layers n_layer n_layers
        num_layers depth encoder_layers conf_num_hidden_layers""",
    n_head="""num_attention_heads_per_layer {}_attention_heads {}_num_attention_heads num_attention_heads n_head n_heads
        num_heads num_query_heads attention_heads encoder_attention_heads conf_num_attention_heads""",
    n_kv_head="num_key_value_heads_per_layer num_key_value_heads n_kv_heads num_kv_heads",
    head_dim="head_dim d_kv attention_head_size attention_head_dim d_head dim_head head_size kv_channels",
    n_shared="num_kv_shared_layers")
KINDS_OF_LAYERS = "layer_types", "layers_block_type", "attn_type_list"
# The kinds of layers without a softmax: words, the letters of Nemotron-H, and the 0 of MiniMax.
NO_SOFTMAX = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "M", "-", "E", 0}


class Sizes(NamedTuple):
    n_head: int | None  # H
    n_kv_head: int | None  # Hkv; None: take it from the shape of k, or H in a fused tensor
    head_dim: int | None  # D; None: C / H
    config: dict  # where a few forms find more of them


def read_size(name, row, config):
    """Returns a size by the config, or by the defaults of the class; None if neither tells it."""
    keys = [key.format(row.stack) for key in KEYS[name].split()]  # encoder_layers, num_encoder_layers, ...
    return pick(config, int, *keys, default=getattr(row, name, None))


def softmax_layers(config, n_layer):
    """Returns which layers have attention with a softmax, or None if only their weights can tell."""
    every = list(range(n_layer))
    # a kind per layer: ["mamba", "attention", ...], or "M-M*" in Nemotron-H. Those for layers that predict may follow
    kinds = pick(config, list, *KINDS_OF_LAYERS) or pick(config, str, "hybrid_override_pattern")
    if kinds:
        require(len(kinds) >= n_layer, f"config.json: fewer kinds than layers, {len(kinds)} for {n_layer}: correct it")
        return [i for i in every if kinds[i] not in NO_SOFTMAX]
    # Qwen3-Next: an interval of 4 means layers 3, 7, ...
    interval = pick(config, int, "full_attention_interval")
    if interval:
        return every[interval - 1 :: interval]
    # Jamba: a period of 4 and an offset of 1 mean layers 1, 5, ...
    period = pick(config, int, "attn_layer_period")
    if period:
        return every[pick(config, int, "attn_layer_offset", default=4) :: period]
    # Kimi: [4, 8] means layers 3 and 7
    kimi = pick(config, dict, "linear_attn_config")
    if kimi:
        counted_from_1 = pick(kimi, list, "full_attn_layers")
        return counted_from_1 and [i - 1 for i in counted_from_1]
    # LFM2 and Bamba list them. Mllama lists its layers with cross-attention instead. In most models it is every layer
    cross = pick(config, list, "cross_attention_layers", default=[])
    return pick(config, list, "full_attn_idxs", "attn_layer_indices") or [i for i in every if i not in cross]


def mask_is_causal(row, config):
    """Returns whether no token sees a later one, or None if it is not known."""
    if row.mask == "both" and not row.stack:  # BERT as a decoder, XLM
        return any(pick(config, bool, key) for key in ("is_decoder", "causal"))
    if row.mask != "causal":
        return None if row.mask == "unknown" else False
    # a causal model may be trained on without its mask: then it is neither, and says so in one of many ways. In Gemma 4
    # it is "all", and "vision" is about images only. LFM2 and LLaMA say it by their class: LlamaBiModel or
    # LlamaEncoderModel, but not LlamaBigModel or EncoderDecoderModel. Beside llama, is_decoder = False is the default
    is_changed = (config.get("use_bidirectional_attention") in (True, "all")
                  or re.search(r"Bi[A-Z]|Bidirectional|Encoder(?!Decoder)", str(config.get("architectures")))
                  or pick(config, bool, "bidirectional")
                  or pick(config, bool, "is_causal") is False
                  or row.model_type == "llama" and pick(config, bool, "is_decoder") is False)
    return None if is_changed else True


def read_sizes(row, config, i):
    """Returns the Sizes of layer i, from the config or the defaults of the class; None where neither says it."""
    of_layer = {}  # the config of this layer: if num_attention_heads = [8, 4], layer 1 has 4
    for key, value in config.items():
        if not isinstance(value, list) or "head" not in key:
            of_layer[key] = value
        elif i < len(value) and "depths" not in config:  # a number for each layer, and not for each stage: Swin
            of_layer[key] = value[i]
    if pick(config, list, "layer_types", default=[])[i : i + 1] == ["full_attention"]:  # Gemma 4
        of_layer["head_dim"] = pick(of_layer, int, "global_head_dim", "head_dim")
        if pick(config, bool, "attention_k_eq_v"):
            of_layer["num_key_value_heads"] = pick(of_layer, int, "num_global_key_value_heads", "num_key_value_heads")
    of_layer |= pick(pick(config, dict, "per_layer_config", default={}), dict, str(i), default={})  # as it is saved
    sizes = [read_size(name, row, of_layer) for name in ("n_head", "n_kv_head", "head_dim")]
    return Sizes(*sizes, config)
