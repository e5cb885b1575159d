"""
Queries and keys of a model that layouts.csv does not list, by the user's own words: --q, --k, --qkv and --heads of
analyze.py. README.md has examples.
"""

import re
from collections import defaultdict
from typing import NamedTuple

from data.pretrained.files import require

QUERY = re.compile(r"(?<![a-zA-Z])(query|[wW]?[qQ])(?![a-zA-Z])")  # in a name
FIRST = re.compile(r"(^|\.)\d+(?=\.)")  # number in a name
FUSED = re.compile("qkv|c_attn|pack|query_key_value|in_proj|att_proj", re.IGNORECASE)


class Hand(NamedTuple):
    """What the user says."""

    patterns: tuple[str, ...]  # of the names of q and k, or of a tensor that holds them and v
    heads: tuple[int, int]  # how many there are of queries and of keys
    order: str  # of the parts, if it is one tensor; else ""
    transposed: bool  # weights are (in, out)

    def __str__(self):  # as it stands in a CSV
        words = *self.patterns, self.order, f"heads {self.heads}", "transposed" * self.transposed
        return " ".join(filter(None, words))


def read_hand(q=None, k=None, qkv=None, heads=None, order="qkv", transposed=False) -> Hand | None:
    """None: nothing was said. heads: 32, (32, 8) or "32,8". CheckpointError: it makes no sense."""
    if not (q or k or qkv):
        require(not heads and not transposed, "heads and transposed go with q and k, or with qkv")
        return None
    require(bool(q) == bool(k) != bool(qkv), "name q and k, or qkv alone")
    patterns = (qkv,) if qkv else (q, k)
    is_numbered = all(pattern.count("{i}") == 1 for pattern in patterns)
    require(is_numbered, f"{', '.join(patterns)}: {{i}} has to stand once, for the number of the layer")
    numbers = re.fullmatch(r"\(?([1-9]\d*)(?:, ?([1-9]\d*))?\)?", str(heads))
    require(numbers, f"heads = {heads}: say how many there are, as in 32,8")
    require(sorted(order) == sorted("qkv"), f"order = {order}, expected q, k and v")
    n_head, n_kv_head = numbers.groups(numbers[1])
    return Hand(patterns, (int(n_head), int(n_kv_head)), order if qkv else "", transposed)


def find_names(hand: Hand, names) -> dict[int, tuple[str, ...]]:
    """{layer: names}. CheckpointError if a pattern matches nothing, or not in all layers."""
    found = defaultdict(list)
    for pattern in hand.patterns:
        regex = re.compile(re.escape(pattern).replace(r"\{i\}", "([0-9]{1,4})"))
        matches = [match for match in map(regex.fullmatch, names) if match]
        there = dict.fromkeys(FIRST.sub(r"\1{i}", name, count=1) for name in names)
        require(matches, f"nothing matches {pattern}: there are {', '.join(there):.300}")
        for match in matches:
            found[int(match[1])].append(match[0])
    alone = [of_layer[0] for of_layer in found.values() if len(of_layer) < len(hand.patterns)]
    require(not alone, f"the layers of {', '.join(alone):.200} have no other")
    return {layer: tuple(found[layer]) for layer in sorted(found)}


def advice(names, shapes, heads) -> str:
    """The candidates by name and shape, and the flags that would score them."""
    shape_of = {}
    for name in sorted(names):
        if len(shapes[name]) == 2:
            shape_of[FIRST.sub(r"\1{i}", name, count=1)] = shapes[name]
    flags = []
    for pattern, (m, n) in shape_of.items():
        key = QUERY.sub(lambda match: match[1].replace("query", "key").replace("q", "k").replace("Q", "K"), pattern)
        if "{i}" in pattern and key != pattern and shape_of.get(key, (0, 0))[1] == n:
            flags.append(f"{(m, n)} and {shape_of[key]}: --q '{pattern}' --k '{key}'")
        if "{i}" in pattern and FUSED.search(pattern) and 3 * min(m, n) == max(m, n):
            flags.append(f"{(m, n)}: --qkv '{pattern}'{' --transposed' * (n > m)}")
    found = "name them with --q, --k and"
    if flags:
        found = f"if its code says so, score {' or '.join(flags[:2])}"
    return f"data/pretrained/layouts.csv does not list it; {found} --heads {heads or 'H,HKV'}"
