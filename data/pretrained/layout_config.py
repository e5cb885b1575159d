"""Reading a config.json of unknown make: one key among several names for the same thing, or one clear refusal."""


class LayoutError(ValueError):
    """The query and key weights cannot be told with certainty. One line: the model_type and what was found."""


def require(condition: bool, message: str):
    if not condition:
        raise LayoutError(message)


def pick(config: dict, keys: str, default=None):
    """The value of the first of the `keys` (words) that the config has and that is not null."""
    for key in keys.split():
        if config.get(key) is not None:
            return config[key]
    return default
