"""The queries and keys of a model that layouts.csv does not list, by the user's words. README.md has examples."""

import re
from typing import NamedTuple

from .beside import looks_like_query
from .checkpoint import require

# What a query is called in names of weights, and what the key beside it.
KEY_OF = {"query": "key", "q": "k", "Q": "K", "wq": "wk", "wQ": "wK", "Wq": "Wk", "WQ": "WK"}
QUERY_WORD = re.compile(rf"(?<![a-zA-Z])({'|'.join(KEY_OF)})(?![a-zA-Z])")


class Hand(NamedTuple):
    """What the user says."""

    patterns: tuple[str, ...]  # of the names of q and k, or of a tensor that holds both
    heads: tuple[int, int]  # how many there are of queries and of keys
    order: str  # of one tensor: "qkv", "qk", or "grouped", key head by key head; "kv" if that of k holds v too; else ""
    transposed: bool  # weights are (in, out)
    n_layer: int | None  # how many layers have attention; None: every one

    def __str__(self):
        """Returns it as it is written in a CSV."""
        words = [*self.patterns, self.order, f"heads {self.heads}", "transposed" if self.transposed else "",
                 f"layers {self.n_layer}" if self.n_layer else ""]
        return " ".join(word for word in words if word)


def read_hand(q=None, k=None, qkv=None, heads=None, order=None, transposed=False, layers=None):
    """Returns what the user says, or None. heads: 32, (32, 8), "32,8". Raises CheckpointError if it makes no sense."""
    if not (q or k or qkv):
        require(not (heads or order or layers or transposed), "heads, order, layers, transposed go with q, k or qkv")
        return None
    require((q and k and not qkv) or (qkv and not q and not k), "name q and k, or qkv alone")
    require(qkv or q != k, f"{q} cannot be both q and k: if it holds both, name it as qkv with order qk")
    patterns = (qkv,) if qkv else (q, k)
    require("depformer" not in patterns[0], f"{patterns[0]} holds a matrix for each step of Moshi's depformer")
    is_numbered = all(pattern.count("{i}") == 1 for pattern in patterns)
    require(is_numbered, f"{', '.join(patterns)}: {{i}} has to stand once, for the number of the layer")
    n_counted = [pattern.count("{h}") for pattern in patterns]
    require(n_counted in ([0], [0, 0], [1, 1]),
            f"{', '.join(patterns)}: {{h}} counts heads, and stands once in q and once in k")
    numbers = re.fullmatch(r"[(\[]?(?P<q>[1-9]\d*)(, ?(?P<k>[1-9]\d*))?[)\]]?", str(heads))
    require(numbers, f"heads = {heads}: say how many there are, as in 32,8")
    order = order or ("qkv" if qkv else "")
    require(order in (("qkv", "qk", "grouped") if qkv else ("", "kv")),
            f"order = {order}, expected qkv, qk or grouped with qkv, and kv or none with q and k")
    n_head = int(numbers["q"])
    n_kv_head = int(numbers["k"] or n_head)
    return Hand(patterns, (n_head, n_kv_head), order, transposed, int(layers) if layers else None)


def regex(pattern):
    """Returns the regular expression of a pattern, with groups i and h."""
    return re.sub(r"\\\{([ih])\\\}", r"(?P<\1>[0-9]{1,4})", re.escape(pattern))


def match_names(hand, names):
    """Returns of each tensor its layer, pattern, head, name. Raises CheckpointError if a pattern matches nothing."""
    found = []
    for pattern in hand.patterns:
        matches = [re.fullmatch(regex(pattern), name) for name in names]
        there = ", ".join(dict.fromkeys(map(numbered, names))) or "no tensors"
        require(any(matches), f"nothing matches {pattern}: there are {there:.300}")
        for match in filter(None, matches):
            found.append((int(match["i"]), pattern, int(match.groupdict().get("h", 0)), match[0]))
    return found


def other_chunks(hand, shapes):
    """Returns a note, in a list, if there are more chunks of layers, as blocks.1.{i} beside blocks.0.{i}; else []."""
    here = regex(hand.patterns[0])
    anywhere = re.sub(r"(^|\\\.)\d+(?=\\\.)", r"\1[0-9]+", here)
    others = [name for name, shape in shapes.items()
              if len(shape) > 1 and re.fullmatch(anywhere, name) and not re.fullmatch(here, name)]
    return [f"{len(others)} other layers, as {others[0]}, are not scored"] if others else []


def numbered(name):
    """Returns the name of a tensor with {i} in place of its first number."""
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1{i}", name, count=1)


def pair_queries(names):
    """Yields (pattern of q, pattern of k) of the weights that look like queries; k is None if q may hold the keys."""
    patterns = dict.fromkeys(map(numbered, sorted(names)))
    for pattern in patterns:
        if "{i}" in pattern and looks_like_query(pattern.replace("{i}", "0"), (1, 1)):
            key = QUERY_WORD.sub(lambda match: KEY_OF[match[1]], pattern)
            yield pattern, key if key != pattern and key in patterns else None
