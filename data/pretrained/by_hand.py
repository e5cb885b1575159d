"""
Finds the queries and keys of a model that layouts.csv does not list, by the user's own words: --q, --k, --qkv and
--heads of analyze.py. README.md has examples.
"""

import re
from collections import defaultdict
from typing import NamedTuple

from .files import require

FIRST_NUMBER = re.compile(r"(^|\.)\d+(?=\.)")  # in a name
# What a query is called in names of weights, and what the key beside it.
KEY_OF = {"query": "key", "q": "k", "Q": "K", "wq": "wk", "wQ": "wK", "Wq": "Wk", "WQ": "WK"}
QUERY = re.compile(rf"(?<![a-zA-Z])({'|'.join(KEY_OF)})(?![a-zA-Z])")
# Names of a weight that usually is q, then k, then v, or (grouped) has each key head beside its queries.
FUSED = re.compile(r"(^|[._])((qkv(_proj)?|c_attn|W_?pack|[Ww]qkv|in_proj(_weight)?|att_proj)|"
                   r"(?P<grouped>query_key_value|linear_qkv|attn\.attn))(\.weight)?$")
# The ends of names that LoRA, pruning and parametrizations give to the weight of a layer.
ENDS = re.compile(r"(\.base_layer)?(\.weight(_orig)?)?$|\.parametrizations\..*$")
# The numbers of layers and heads in a config.json, under whatever name.
N_LAYER = re.compile(r"(^|_)(layers?|depths?|num_blocks)$")
N_HEAD = re.compile(r"attention_heads$|^(n|num)_heads?$")


class Hand(NamedTuple):
    """What the user says."""

    patterns: tuple[str, ...]  # of the names of q and k, or of a tensor that holds them and v
    heads: tuple[int, int]  # how many there are of queries and of keys
    order: str  # of one tensor: "qkv", or "grouped", key head by key head; else ""
    transposed: bool  # weights are (in, out)

    def __str__(self):
        """Returns it as it is written in a CSV."""
        transposed = "transposed" if self.transposed else ""
        words = [*self.patterns, self.order, f"heads {self.heads}", transposed]
        return " ".join(word for word in words if word)


def read_hand(q=None, k=None, qkv=None, heads=None, order="qkv", transposed=False) -> Hand | None:
    """Returns what the user says, or None. heads: 32, (32, 8), "32,8". Raises CheckpointError if it makes no sense."""
    if not (q or k or qkv):
        require(not heads and not transposed, "heads and transposed go with q and k, or with qkv")
        return None
    require((q and k and not qkv) or (qkv and not q and not k), "name q and k, or qkv alone")
    patterns = (qkv,) if qkv else (q, k)
    is_numbered = all(pattern.count("{i}") == 1 for pattern in patterns)
    require(is_numbered, f"{', '.join(patterns)}: {{i}} has to stand once, for the number of the layer")
    numbers = re.fullmatch(r"\(?(?P<q>[1-9]\d*)(, ?(?P<k>[1-9]\d*))?\)?", str(heads))
    require(numbers, f"heads = {heads}: say how many there are, as in 32,8")
    require(order in ("qkv", "grouped"), f"order = {order}, expected qkv or grouped")
    n_head = int(numbers["q"])
    n_kv_head = int(numbers["k"] or n_head)
    return Hand(patterns, (n_head, n_kv_head), order if qkv else "", transposed)


def regex(pattern: str, number="([0-9]{1,4})") -> str:
    """Returns the regular expression of a pattern, with `number` in the place of {i}."""
    return re.escape(pattern).replace(r"\{i\}", number)


def beside(hand: Hand) -> re.Pattern:
    """Returns what matches the names of tensors beside a query or key. Its group rest is the end of the name."""
    layers = "|".join(regex(ENDS.sub("", pattern), "[0-9]+") for pattern in hand.patterns)
    return re.compile(rf"({layers})(\.|_(?=lora|orig|mask|scale))(?P<rest>.+)")


def match_names(hand: Hand, names) -> dict[int, dict[str, str]]:
    """Returns {layer: {pattern: the tensor}}. Raises CheckpointError if a pattern matches nothing."""
    found = defaultdict(dict)
    for pattern in hand.patterns:
        matches = [re.fullmatch(regex(pattern), name) for name in names]
        there = ", ".join(dict.fromkeys(map(with_i, names)))
        require(any(matches), f"nothing matches {pattern}: there are {there:.300}")
        for match in filter(None, matches):
            found[int(match[1])][pattern] = match[0]
    return found


def compare_numbers(hand: Hand, n_layer: int | None, config: dict):
    """Raises CheckpointError if a config has other numbers of layers or heads. n_layer: None if it is not compared."""
    for word, said, key in ("layers", n_layer, N_LAYER), ("heads", hand.heads[0], N_HEAD):
        told = sorted(numbers_of(config, key))
        require(not told or said is None or said in told,
                f"{said} {word} by your words, and {' or '.join(map(str, told))} in config.json: a pattern has to "
                "match all layers, and --heads is the number of heads of q, without a gate")


def with_i(name: str) -> str:
    """Returns the name with {i} in place of its first number."""
    return FIRST_NUMBER.sub(r"\1{i}", name, count=1)


def numbers_of(config: dict, key: re.Pattern) -> set[int]:
    """Returns the numbers under all names in a config that match, at any depth."""
    found = set()
    for name, value in config.items():
        if isinstance(value, dict):
            found |= numbers_of(value, key)
        elif key.search(str(name)) and type(value) is int:
            found.add(value)
    return found


def left_out(hand: Hand, names) -> list[str]:
    """Returns a note, in a list, if there are more chunks of layers, as blocks.1.{i} beside blocks.0.{i}; else []."""
    here = regex(hand.patterns[0])
    anywhere = re.sub(r"(^|\\\.)\d+(?=\\\.)", r"\1[0-9]+", here)
    others = [name for name in names if re.fullmatch(anywhere, name) and not re.fullmatch(here, name)]
    return [f"{len(others)} other layers, as {others[0]}, are not scored"] if others else []


def advice(model_type: str | None, names, shapes) -> str:
    """Returns the flags that would score a model that layouts.csv does not list, with the names of its weights."""
    shape_of = {}  # pattern -> shape
    for name in sorted(names):
        if FIRST_NUMBER.search(name) and len(shapes[name]) == 2:
            shape_of[with_i(name)] = shapes[name]
    found = [flags_for(pattern, shape_of) for pattern in shape_of]
    ways = [f"{flags} --heads H,HKV" for flags in found if flags][:2]  # there may be an encoder and a decoder
    if not ways or model_type == "codegen":  # which holds q, v and k in four parts
        return "name its weights with --q, --k and --heads H,HKV"
    return f"if its code says so, score it with {' or with '.join(ways)} (score_model takes the same as arguments)"


def flags_for(pattern: str, shape_of: dict) -> str:
    """Returns the flags for weights of this name if they look like queries, or like q, k and v in one; else ""."""
    key = QUERY.sub(lambda match: KEY_OF[match[1]], pattern)
    if key != pattern and key in shape_of:
        return f"--q '{pattern}' --k '{key}'"
    fused = FUSED.search(pattern)
    n_out, n_in = shape_of[pattern]
    if not fused or n_out == n_in:
        return ""
    order = " --order grouped" if fused["grouped"] else ""
    transposed = " --transposed" if n_out < n_in else ""
    return f"--qkv '{pattern}'{order}{transposed}"
