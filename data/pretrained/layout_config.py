"""
Reads values from a config.json of any model, and checks their types.

`keys` is a text of several words: the names of the same thing in different models, tried in this order. null counts as
absent.
"""

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


def pick(config: dict, keys: str, default=None):
    """The first value that is there, of any type."""
    for key in keys.split():
        if config.get(key) is not None:
            return config[key]
    return default


def expect(is_right: bool, keys: str, value, expected: str):
    require(is_right, f"config.json: {' or '.join(keys.split()):.80} is {value!r:.60}, expected {expected}")


def is_count(value, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_COUNT


def pick_count(config: dict, keys: str, default: int | None = None, least: int = 1) -> int | None:
    for key in keys.split():
        value = config.get(key)
        if value is not None:
            expect(is_count(value, least), key, value, f"a whole number from {least} to {MAX_COUNT}")
            return value
    return default


def pick_counts(config: dict, keys: str, default=(), least: int = 0) -> list[int]:
    value = pick(config, keys, default=list(default))
    right = isinstance(value, list) and all(is_count(number, least) for number in value)
    expect(right, keys, value, f"a list of whole numbers from {least} to {MAX_COUNT}")
    return value


def pick_words(config: dict, keys: str) -> list[str]:
    value = pick(config, keys, default=[])
    expect(isinstance(value, list) and all(isinstance(word, str) for word in value), keys, value, "a list of text")
    return value


def pick_word(config: dict, keys: str, default: str | None = None) -> str | None:
    value = pick(config, keys, default=default)
    expect(value is None or isinstance(value, str), keys, value, "text")
    return value


def pick_flag(config: dict, keys: str, default: bool = False) -> bool:
    value = pick(config, keys, default=default)
    expect(isinstance(value, bool), keys, value, "true or false")
    return value


def pick_section(config: dict, keys: str, default: dict | None = None) -> dict | None:
    """A value that is a config itself."""
    value = pick(config, keys, default=default)
    expect(value is None or isinstance(value, dict), keys, value, "an object {...}")
    return value


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
        config = config | pick_section(config, "encoder_config", default={})
    if "image_size" in config or "patch_size" in config or "num_queries" in config:
        return "vision"
    if "num_mel_bins" in config or "conv_stride" in config:
        return "audio"
    return "language"
