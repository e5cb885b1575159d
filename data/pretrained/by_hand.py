"""The queries and keys of a model that layouts.csv does not list, by the user's words. README.md has examples."""

import re
from typing import NamedTuple

from .beside import QK_WORD, is_cross_attention, looks_like_query
from .checkpoint import require
from .layout_table import TABLE, WIDTH, Part, Row, Sizes, config_of_name, pick, read_sizes

# What a query is called in names of weights, and what the key beside it.
KEY_OF = {"query": "key", "q": "k", "Q": "K", "wq": "wk", "wQ": "wK", "Wq": "Wk", "WQ": "WK"}


class Hand(NamedTuple):
    patterns: tuple[str, ...]  # of the names of q and k, or of a tensor that holds both
    heads: tuple[int, int]  # how many there are of queries and of keys
    order: str  # of one tensor: "qkv", "qk", or "grouped", key head by key head; "kv" if that of k holds v too; else ""
    transposed: bool  # weights are (in, out)
    n_layer: int | None  # how many layers have attention; None: every one


def read_hand(q=None, k=None, qkv=None, heads=None, order=None, transposed=False, layers=None):
    """Returns what the user says, or None. heads: 32, (32, 8) or "32,8"."""
    if not (q or k or qkv):
        require(not (heads or order or layers or transposed), "heads, order, layers, transposed go with q, k or qkv")
        return None
    require((q and k and not qkv) or (qkv and not q and not k), "name q and k, or qkv alone")
    require(qkv or q != k, f"{q} cannot be both q and k: if it holds both, name it as qkv with order qk")
    patterns = (qkv,) if qkv else (q, k)
    require("depformer" not in patterns[0], f"{patterns[0]} holds a matrix for each step of Moshi's depformer")
    is_numbered = all(pattern.count("{i}") == 1 for pattern in patterns)
    require(is_numbered, f"{', '.join(patterns)}: {{i}} has to stand once, for the number of the layer")
    numbers = re.fullmatch(r"[(\[]?(?P<q>[1-9]\d*)(, ?(?P<k>[1-9]\d*))?[)\]]?", str(heads))
    require(numbers, f"heads = {heads}: say how many there are, as in 32,8")
    order = order or ("qkv" if qkv else "")
    expected = ("qkv", "qk", "grouped") if qkv else ("", "kv")
    require(order in expected, f"order = {order}, expected one of {expected}")
    n_head = int(numbers["q"])
    n_kv_head = int(numbers["k"] or n_head)
    return Hand(patterns, (n_head, n_kv_head), order, transposed, int(layers) if layers else None)


def part_by_hand(hand, config, names):
    """Returns the part of a model that the user names, with a row of the user's patterns."""
    pattern = hand.patterns[0]
    config = config_of_name(config, pattern)
    rows = TABLE.get(pick(config, str, "model_type"), [Row("")])
    listed = [row for row in rows if row.match([pattern.replace("{i}", "0")])]  # the sizes of its class, and its stack
    sides = re.findall("encoder|decoder", pattern)
    row = listed[0] if listed else rows[0]._replace(stack=sides[-1] if sides else "")
    row = row._replace(weights=hand.patterns, mask="unknown", form="given", hand=hand)
    matched = {weight for weight, _ in row.match(names)}
    missing = [pattern for pattern in hand.patterns if pattern not in matched]
    there = ", ".join(sorted({*map(numbered, names)}))
    require(not missing, f"nothing matches {' or '.join(missing)}: there are {there:.300}")
    return Part("", row.model_type, config, names, [row])


def sizes_by_hand(told, hand):
    """Returns {layer: its Sizes}, as the user says, or as config.json lists them. told: by config.json."""
    n_heads = {sizes.n_head for sizes in told.values()} - {None}
    require(not n_heads or hand.heads[0] in n_heads, f"{hand.heads[0]} heads by your words, and {n_heads} in "
            "config.json: --heads is the number of heads of q, without a gate")
    if len({sizes[:2] for sizes in told.values()}) == 1:
        return {i: Sizes(*hand.heads, sizes.head_dim) for i, sizes in told.items()}
    return told


def compare_dims(fits, n_sizes, config):
    """
    Raises CheckpointError if heads have another size than config.json says, or than those of another layer.
    fits: {Sizes by the shapes of the tensors: a layer}. n_sizes: how many Sizes there are by the user's words.
    """
    widths = [value for key, value in config.items() if WIDTH.search(key) and type(value) is int]
    for (n_head, _, head_dim), layer in fits.items():
        told = {layer.sizes.head_dim} - {None} or {width // n_head for width in widths}
        require(not told or head_dim in told, f"{head_dim} dimensions of a head by your words, and {told} in "
                "config.json: a tensor that holds more than q is named with --qkv and its --order")
    require(len(fits) <= n_sizes, f"{' and '.join(layer.names[0] for layer in fits.values()):.150} have different "
            "shapes, and config.json does not list the heads of each layer")


def numbered(name):
    """Returns the name of a tensor with {i} in place of its first number."""
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1{i}", name, count=1)


def advice(config, names, shapes):
    """Returns what to do with a model that layouts.csv does not list: flags to try, if config.json says the heads."""
    patterns = {numbered(name) for name in names}
    queries = [name for name in names if looks_like_query(name, shapes[name]) and not is_cross_attention(name)]
    ways = []
    for q in sorted({*map(numbered, queries)}):
        k = QK_WORD.sub(lambda match: KEY_OF.get(match[1], match[1]), q)
        sizes = read_sizes(Row(""), config_of_name(config, q), 0)
        if k == q or k not in patterns:
            ways.append(f"{q} holds more than queries, in an order that its code says (--qkv with --order)")
        elif sizes.n_head:
            ways.append(f"if its code says so, score it with --q '{q}' --k '{k}' "
                        f"--heads {sizes.n_head},{sizes.n_kv_head or sizes.n_head}")
    return "; ".join(ways[:3]) or ("name its weights with --q, --k and --heads H,HKV, or score a layer in Python: "
                                   "scores(q.weight.T, k.weight.T)")
