"""
Queries and keys by the user's own words, for a model that layouts.csv does not list. {i} is the number of the layer:

    --q 'blocks.{i}.attn.wq.weight' --k 'blocks.{i}.attn.wk.weight' --heads 32,8       query heads, key heads
    --qkv 'h.{i}.attn.c_attn.weight' --order qkv --transposed --heads 12               three equal parts of one tensor
"""

import re
from collections import defaultdict
from typing import NamedTuple

from data.pretrained.files import require
from data.pretrained.layout_forms import Sizes, separate

KEYS = {"q": "k", "query": "key", "Q": "K", "wq": "wk", "Wq": "Wk"}  # what a key is called where this is the query
FIRST = re.compile(r"(^|\.)\d+(?=\.)")  # number in a name
FUSED = re.compile("qkv|c_attn|pack|query_key_value|in_proj|att_proj", re.IGNORECASE)


class Hand(NamedTuple):
    """What the user says."""

    patterns: tuple[str, ...]  # of the names of q and k, or of a tensor that holds them and v
    sizes: Sizes
    order: str  # of the parts, if it is one tensor
    transposed: bool  # weights are (in, out)

    def __str__(self):  # as it stands in a CSV
        words = [*self.patterns, self.order * (len(self.patterns) == 1), "transposed" * self.transposed]
        return f"{' '.join(filter(None, words))}, {self.sizes[:2]} heads"


def read_hand(q=None, k=None, qkv=None, heads=None, order="qkv", transposed=False) -> Hand | None:
    """None: nothing was said. heads: 32, (32, 8) or "32,8". CheckpointError: it makes no sense."""
    if not (q or k or qkv):
        require(not heads and not transposed, "heads and transposed go with q and k, or with qkv")
        return None
    require(bool(q) == bool(k) != bool(qkv), "name q and k, or qkv alone")
    patterns = (qkv,) if qkv else (q, k)
    for pattern in patterns:
        require(pattern.count("{i}") == 1, f"{pattern}: {{i}} has to stand once, for the number of the layer")
    numbers = re.fullmatch(r"\(?([1-9]\d*)(?:, ?([1-9]\d*))?\)?", str(heads))
    require(numbers, f"heads = {heads}: say how many there are, as in 32,8")
    require(sorted(order) == sorted("qkv"), f"order = {order}, expected q, k and v")
    sizes = Sizes(int(numbers[1]), int(numbers[2] or numbers[1]), None)
    return Hand(patterns, sizes, order, transposed)


def by_hand(weights, sizes, hand):
    """The form of layout_forms.py for it: q (H, D, C), k (Hkv, D, C)."""
    weights = [weight.mT if hand.transposed else weight for weight in weights]  # (out, in)
    if len(weights) == 1:
        parts = dict(zip(hand.order, weights[0].unflatten(0, (3, -1))))
        weights = [parts["q"], parts["k"]]
    return separate(weights, sizes._replace(head_dim=len(weights[0]) // sizes.n_head), {})


def find_names(hand: Hand, names) -> dict[int, tuple[str, ...]]:
    """{layer: names}. CheckpointError if a pattern matches nothing, or not in all layers."""
    found = defaultdict(list)
    for pattern in hand.patterns:
        regex = re.compile(re.escape(pattern).replace(r"\{i\}", "([0-9]{1,4})"))
        matches = [match for match in map(regex.fullmatch, names) if match]
        there = ", ".join(dict.fromkeys(FIRST.sub(r"\1{i}", name, count=1) for name in names))
        require(matches, f"nothing matches {pattern}: there are {there:.300}")
        for match in matches:
            found[int(match[1])].append(match[0])
    for layer, of_layer in found.items():
        require(len(of_layer) == len(hand.patterns), f"layer {layer} has {of_layer[0]} alone")
    return {layer: tuple(found[layer]) for layer in sorted(found)}


def advice(names, shapes, heads) -> str:
    """The candidates by name and shape, and the flags that would score them."""
    shape_of = {FIRST.sub(r"\1{i}", name, count=1): shapes[name] for name in sorted(names) if len(shapes[name]) == 2}
    flags = []
    for pattern, (m, n) in shape_of.items():
        key = re.sub(r"(?<![a-zA-Z])(query|[wW]?q|Q)(?![a-zA-Z])", lambda match: KEYS[match[1]], pattern)
        if "{i}" in pattern and key != pattern and shape_of.get(key, (0, 0))[1] == n:
            flags.append(f"{(m, n)} and {shape_of[key]}: --q '{pattern}' --k '{key}'")
        if "{i}" in pattern and FUSED.search(pattern) and 3 * min(m, n) == max(m, n):
            flags.append(f"{(m, n)}: --qkv '{pattern}'{' --transposed' * (n > m)}")
    hint = "name them with --q, --k and --heads"
    if flags:
        hint = f"if its code says so, score {' or '.join(flags[:2])} --heads {heads or 'H,HKV'}"
    return f"data/pretrained/layouts.csv does not list it; {hint}"
