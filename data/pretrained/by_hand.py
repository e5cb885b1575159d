"""
Queries and keys of a model that layouts.csv does not list, by the user's own words: --q, --k, --qkv and --heads of
analyze.py. README.md has examples.
"""

import re
from collections import defaultdict
from typing import NamedTuple

from data.pretrained.files import require
from data.pretrained.formats import WRAPPERS

QUERY = re.compile(r"(?<![a-zA-Z])(query|[wW]?[qQ])(?![a-zA-Z])")  # in a name
FIRST = re.compile(r"(^|\.)\d+(?=\.)")  # number in a name
# One tensor that is usually q, then k, then v; and one in which the queries of a key head usually lie beside it.
FUSED = re.compile(r"(^|[._])(qkv(_proj)?|c_attn|W_?pack|[Ww]qkv|in_proj(_weight)?|att_proj)(\.weight)?$")
IN_GROUPS = re.compile(r"(^|[._])(query_key_value|linear_qkv|attn\.attn)(\.weight)?$")
OTHER_ORDER = {"codegen"}  # model_types with an order that no flag describes
# The ends of names that LoRA, pruning and parametrizations give to the weight of a layer.
ENDS = re.compile(r"(\.base_layer)?(\.weight(_orig)?)?$|\.parametrizations\..*$")
# Numbers in a config.json, under whatever name.
N_LAYER = re.compile(r"(^|_)(layers?|depths?|num_blocks)$")
N_HEAD = re.compile(r"attention_heads$|^(n|num)_heads?$")


class Hand(NamedTuple):
    """What the user says."""

    patterns: tuple[str, ...]  # of the names of q and k, or of a tensor that holds them and v
    heads: tuple[int, int]  # how many there are of queries and of keys
    order: str  # if it is one tensor: of its parts, or "grouped"; else ""
    transposed: bool  # weights are (in, out)

    def __str__(self):  # as it is written in a CSV
        words = *self.patterns, self.order, f"heads {self.heads}", "transposed" * self.transposed
        return " ".join(filter(None, words))


def read_hand(q=None, k=None, qkv=None, heads=None, order="qkv", transposed=False) -> Hand | None:
    """None: nothing was said. heads: 32, (32, 8) or "32,8". CheckpointError: it makes no sense."""
    if not (q or k or qkv):
        require(not heads and not transposed, "heads and transposed go with q and k, or with qkv")
        return None
    require(bool(q) == bool(k) != bool(qkv), "name q and k, or qkv alone")
    patterns = (qkv,) if qkv else (q, k)
    patterns = tuple(WRAPPERS.sub("", pattern) for pattern in patterns)
    is_numbered = all(pattern.count("{i}") == 1 for pattern in patterns)
    require(is_numbered, f"{', '.join(patterns)}: {{i}} has to stand once, for the number of the layer")
    numbers = re.fullmatch(r"\(?([1-9]\d*)(?:, ?([1-9]\d*))?\)?", str(heads))
    require(numbers, f"heads = {heads}: say how many there are, as in 32,8")
    require(order == "grouped" or sorted(order) == sorted("qkv"), f"order = {order}, expected q, k and v, or grouped")
    n_head, n_kv_head = numbers.groups(numbers[1])
    return Hand(patterns, (int(n_head), int(n_kv_head)), order if qkv else "", transposed)


def regex(pattern: str, number="([0-9]{1,4})") -> str:
    return re.escape(pattern).replace(r"\{i\}", number)


def beside(hand: Hand) -> re.Pattern:
    """Matches the names of tensors that belong to a query or key; rest: the end of the name."""
    layers = "|".join(regex(ENDS.sub("", pattern), "[0-9]+") for pattern in hand.patterns)
    return re.compile(rf"({layers})(\.|_(?=lora|orig|mask|scale))(?P<rest>.+)")


def find_names(hand: Hand, names, config: dict, softmax: list[int] | None) -> dict[int, tuple[str, ...]]:
    """
    {layer: names}. softmax: the layers that have queries and keys, if the config says so.

    CheckpointError: a pattern matches nothing, or not in all layers, or the config has other numbers.
    """
    found = defaultdict(list)
    for pattern in hand.patterns:
        matches = [match for match in (re.fullmatch(regex(pattern), name) for name in names) if match]
        there = dict.fromkeys(FIRST.sub(r"\1{i}", name, count=1) for name in names)
        require(matches, f"nothing matches {pattern}: there are {', '.join(there):.300}")
        for match in matches:
            found[int(match[1])].append(match[0])
    alone = [of_layer[0] for of_layer in found.values() if len(of_layer) < len(hand.patterns)]
    require(not alone, f"the layers of {', '.join(alone):.200} have no other")
    expected = softmax or range(min(1, *found), max(found) + 1)
    missing = [str(i) for i in expected if i not in found]
    require(not missing, f"{hand.patterns[0]} matches nothing in layers {', '.join(missing):.60}: get all files of the "
            "model. If these layers have no softmax, list the kinds of all layers as layer_types in a config.json")
    for word, said, key in ("layers", len(found), N_LAYER), ("heads", hand.heads[0], N_HEAD):
        told = sorted(numbers_of(config, key))
        require(not told or said in told or (softmax and key is N_LAYER),
                f"{said} {word} by your words, and {' or '.join(map(str, told))} in config.json: a pattern has to "
                "match all layers, and --heads is the number of heads of q, without a gate")
    return {layer: tuple(found[layer]) for layer in sorted(found)}


def numbers_of(config: dict, key: re.Pattern) -> set[int]:
    """The numbers under all names in a config that match, at any depth."""
    found = set()
    for name, value in config.items():
        if isinstance(value, dict):
            found |= numbers_of(value, key)
        elif key.search(name):
            found |= {n for n in (value if isinstance(value, list) else [value]) if type(n) is int}
    return found


def left_out(hand: Hand, names) -> list[str]:
    """What the user should know: of several chunks of layers, as blocks.0.{i} and blocks.1.{i}, one was named."""
    here = regex(hand.patterns[0])
    anywhere = re.sub(r"(^|\\\.)\d+(?=\\\.)", r"\1[0-9]+", here)
    others = [name for name in names if re.fullmatch(anywhere, name) and not re.fullmatch(here, name)]
    return [f"{len(others)} other layers, as {others[0]}, are not scored"] if others else []


def advice(model_type: str | None, names, shapes, heads: str, in_python: bool) -> str:
    """The candidates by name and shape, and the flags that would score them, or the arguments of score_model."""
    shape_of = {}
    for name in sorted(names):
        if len(shapes[name]) in (2, 3):
            shape_of[FIRST.sub(r"\1{i}", name, count=1)] = tuple(shapes[name])
    ways = []
    for pattern, (*_, m, n) in shape_of.items():
        is_3d = len(shape_of[pattern]) == 3
        turned = {"transposed": True} if (m > n if is_3d else n > m) else {}
        key = QUERY.sub(lambda match: match[1].replace("query", "key").replace("q", "k").replace("Q", "K"), pattern)
        if "{i}" not in pattern or model_type in OTHER_ORDER:
            continue
        if key != pattern and shape_of.get(key, (0,))[-1] == n:
            words = dict(q=pattern, k=key) | (turned if is_3d else {})
            ways.append((f"{shape_of[pattern]} and {shape_of[key]}", words))
        elif FUSED.search(pattern) and m != n:
            ways.append((shape_of[pattern], dict(qkv=pattern) | turned))
        elif IN_GROUPS.search(pattern) and m != n:
            ways.append((shape_of[pattern], dict(qkv=pattern, order="grouped") | turned))
    found = "name them with --q, --k and --heads H,HKV"
    if ways:
        found = "if its code says so, score " + " or ".join(
            f"{shape}: {written(words | dict(heads=heads or 'H,HKV'), in_python)}" for shape, words in ways[:2])
    return f"data/pretrained/layouts.csv does not list it; {found}"


def written(words: dict, in_python: bool) -> str:
    """The words as flags, or as arguments of score_model."""
    if in_python:
        return "score_model(model, " + ", ".join(f"{word}={value!r}" for word, value in words.items()) + ")"
    flags = [f"--{word}" if value is True else f"--{word} {value if word == 'heads' else repr(value)}"
             for word, value in words.items()]
    return " ".join(flags)
