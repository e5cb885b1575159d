"""
What a config.json of any model says: values by the names they may have, and which layers have queries and keys.
"""

from collections.abc import Iterable

MAX_COUNT = 1_000_000  # more layers, heads, or dimensions of a head than any model has
MAX_LINE = 500  # characters of an error


class LayoutError(ValueError):
    """It is not certain which weights are queries and keys. The message is one line: model_type and what was found."""

    def __init__(self, message: str):
        if len(message) > MAX_LINE:  # a name in config.json can be of any length
            message = message[:MAX_LINE] + "..."
        super().__init__("".join(letter if letter.isprintable() else "?" for letter in message))


def require(condition: bool, message: str):
    if not condition:
        raise LayoutError(message)


def pick(config: dict, keys: str, kind: type, default=None):
    """
    The first value that is there. keys (words): the names of the same thing in different models, tried in this order;
    null counts as absent. LayoutError if the value is not of this kind, or if it is a number that counts nothing.
    """
    for key in keys.split():
        value = config.get(key)
        if value is not None:
            is_right = type(value) is kind and (kind is not int or 0 <= value <= MAX_COUNT)
            require(is_right, f"config.json: {key} is {value!r:.60}, which is no {KINDS[kind]}")
            return value
    return default


KINDS = {int: "count", bool: "true or false", str: "text", list: "list", dict: "object {...}"}

# ---- layers without queries and keys of their own -------------------------------------------------------------------
# Each function takes the config and the number of layers, and returns the numbers of the layers that do have their own.


def first_of_each_group(config: dict, n_layer: int) -> Iterable[int]:
    """ALBERT: the layers of a group share one set of weights."""
    return range(pick(config, "num_hidden_groups", int, 1))


def all_but_one(config: dict, n_layer: int) -> Iterable[int]:
    """Mask2Former counts the prediction before its first layer."""
    return range(n_layer - 1)


def without_cross_attention(config: dict, n_layer: int) -> Iterable[int]:
    crossed = pick(config, "cross_attention_layers", list, range(3, 39, 5))
    return [i for i in range(n_layer) if i not in crossed]


def one_in_a_period(config: dict, n_layer: int) -> Iterable[int]:
    first = pick(config, "attn_layer_offset", int, 4)
    return range(first, n_layer, pick(config, "attn_layer_period", int, 8))


def last_of_each_interval(config: dict, n_layer: int) -> Iterable[int]:
    interval = pick(config, "full_attention_interval", int, 4)
    return range(interval - 1, n_layer, interval)


def those_listed(config: dict, n_layer: int) -> Iterable[int]:
    return pick(config, "attn_layer_indices", list, [])


def those_listed_or_all(config: dict, n_layer: int) -> Iterable[int]:
    return pick(config, "full_attn_idxs", list) or range(n_layer)


def those_of_the_stage(config: dict, n_layer: int) -> Iterable[int]:
    """SAM 2 counts its layers through all stages."""
    first = pick(config, "first_layer", int, 0)
    return range(first, first + n_layer)


def not_linear(config: dict, n_layer: int) -> Iterable[int]:
    """Kimi Linear counts from 1."""
    linear_config = pick(config, "linear_attn_config", dict, {})
    return [i - 1 for i in pick(linear_config, "full_attn_layers", list, [])]


def attention_blocks(config: dict, n_layer: int) -> Iterable[int]:
    """RecurrentGemma repeats its block_types; the first files have them as _block_types."""
    block_types = pick(config, "block_types _block_types", list) or ["recurrent", "recurrent", "attention"]
    return [i for i in range(n_layer) if block_types[i % len(block_types)] == "attention"]


def shared_blocks(config: dict, n_layer: int) -> Iterable[int]:
    """Zamba: the hybrid layers share a few blocks, whose weights are in the first of these layers."""
    require(not pick(config, "use_shared_attention_adapter use_shared_attention_lora", bool),
            "zamba2: with use_shared_attention_adapter, each layer adds its own part to the shared queries and keys")
    hybrid = [i for i, layer_type in enumerate(pick(config, "layers_block_type", list, [])) if layer_type == "hybrid"]
    return hybrid[: pick(config, "num_mem_blocks", int, 1)]


def stars_of_the_pattern(config: dict, n_layer: int) -> Iterable[int]:
    """Nemotron-H: "M*-*" is Mamba, attention, MLP, attention."""
    pattern = pick(config, "hybrid_override_pattern", str, "")
    return [i for i, letter in enumerate(pattern) if letter == "*"]


# ---- what a stack sees ----------------------------------------------------------------------------------------------

IMAGES = ("vision", "image", "backbone", "high_res_vision")  # how the names of stacks, or of their parts, begin
SOUND = ("audio", "speech", "adapter", "t2u", "semantic", "coarse_acoustics", "fine_acoustics")


def find_modality(config: dict, stack: str) -> str:
    """language, vision or audio, by the name of the stack, or by a key that only configs for images or sound have."""
    for part in stack.split("."):
        if part.startswith(IMAGES):
            return "vision"
        if part.startswith(SOUND):
            return "audio"
    if stack == "encoder":  # of Parakeet
        config = config | pick(config, "encoder_config", dict, {})
    if "image_size" in config or "patch_size" in config or "num_queries" in config:
        return "vision"
    if "num_mel_bins" in config or "conv_stride" in config:
        return "audio"
    return "language"
