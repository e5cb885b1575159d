"""
What a config.json of any model says: values by the names they may have, and which layers have queries and keys.
"""

class LayoutError(ValueError):
    """It is not certain which weights are queries and keys. The message is one line: model_type and what was found."""


def require(condition: bool, message: str):
    if not condition:
        raise LayoutError(message)


def pick(config: dict, keys: str, kind: type, default=None):
    """
    The first value that is there. keys (words): the names of the same thing in different models, tried in this order;
    null counts as absent. LayoutError if it is of another type than kind.
    """
    for key in keys.split():
        value = config.get(key)
        if value is not None:
            require(type(value) is kind, f"config.json: {key} is {value!r:.60}, expected {kind.__name__}")
            return value
    return default


# ---- layers without queries and keys of their own -------------------------------------------------------------------


def attention_blocks(config: dict, n: int) -> list[int]:
    """RecurrentGemma repeats its block_types; the first files have them as _block_types."""
    block_types = pick(config, "block_types _block_types", list) or ["recurrent", "recurrent", "attention"]
    return [i for i in range(n) if block_types[i % len(block_types)] == "attention"]


def shared_blocks(config: dict, n: int) -> list[int]:
    """Zamba: the hybrid layers share a few blocks, whose weights are in the first of these layers."""
    require(not pick(config, "use_shared_attention_adapter use_shared_attention_lora", bool),
            "zamba2: with use_shared_attention_adapter, each layer adds its own part to the shared queries and keys")
    hybrid = [i for i, layer_type in enumerate(pick(config, "layers_block_type", list, [])) if layer_type == "hybrid"]
    return hybrid[: pick(config, "num_mem_blocks", int, 1)]


# model_type -> from the config and the number n of layers, the numbers of those that have their own
OWN = {
    "albert": lambda config, n: range(pick(config, "num_hidden_groups", int, 1)),  # a group shares one set of weights
    "mask2former": lambda config, n: range(n - 1),  # it counts the prediction before its first layer
    "mllama_text_model": lambda config, n: [
        i for i in range(n) if i not in pick(config, "cross_attention_layers", list, range(3, 39, 5))],
    "jamba": lambda config, n: range(
        pick(config, "attn_layer_offset", int, 4), n, pick(config, "attn_layer_period", int, 8)),
    "qwen3_next": lambda config, n: [
        i for i in range(n) if (i + 1) % pick(config, "full_attention_interval", int, 4) == 0],
    "bamba": lambda config, n: pick(config, "attn_layer_indices", list, []),
    "lfm2": lambda config, n: pick(config, "full_attn_idxs", list) or range(n),
    # SAM 2 counts its layers through all stages.
    "sam2_hiera_det_model": lambda config, n: range(config["first_layer"], config["first_layer"] + n),
    # Kimi Linear counts from 1.
    "kimi_linear": lambda config, n: [i - 1 for i in config["linear_attn_config"]["full_attn_layers"]],
    # Nemotron-H: "M*-*" is Mamba, attention, MLP, attention.
    "nemotron_h": lambda config, n: [
        i for i, letter in enumerate(pick(config, "hybrid_override_pattern", str, "")) if letter == "*"],
    "recurrent_gemma": attention_blocks,
    "zamba": shared_blocks,
    "zamba2": shared_blocks,
}

# ---- what a stack sees ----------------------------------------------------------------------------------------------

# How the names of stacks, or of their parts, begin.
IMAGES = ("vision", "image", "video", "backbone", "high_res_vision")
SOUND = ("audio", "speech", "adapter", "projector", "depth_decoder", "t2u", "semantic", "coarse_acoustics",
         "fine_acoustics")


def find_modality(config: dict, stack: str) -> str:
    """language, vision or audio, by the name of the stack, or by a key that only configs for images or sound have."""
    for part in stack.split("."):
        if part.startswith(IMAGES):
            return "vision"
        if part.startswith(SOUND):
            return "audio"
    if stack == "encoder" and "audio_token_index" in config:  # of Granite Speech
        return "audio"
    if stack == "encoder":  # of Parakeet
        config = config | pick(config, "encoder_config", dict, {})
    if "image_size" in config or "patch_size" in config or "num_queries" in config:
        return "vision"
    if "num_mel_bins" in config or "conv_stride" in config:
        return "audio"
    return "language"
