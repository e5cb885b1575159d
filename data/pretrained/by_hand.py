"""The queries and keys of a model that layouts.csv does not list, by the user's words. README.md has examples."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .files import require

# What a query is called in names of weights, and what the key beside it.
KEY_OF = {"query": "key", "q": "k", "Q": "K", "wq": "wk", "wQ": "wK", "Wq": "Wk", "WQ": "WK"}
QUERY = re.compile(rf"(?<![a-zA-Z])({'|'.join(KEY_OF)})(?![a-zA-Z])")
# Names of a weight that usually is q, then k, then v; or q, then k; or (grouped) has each key head beside its queries.
FUSED = re.compile(r"(^|[._])((qkv(_proj)?|c_attn|W_?pack|[Ww]qkv|attn\.in_proj(_weight)?|att_proj)|"
                   r"(?P<qk>(in_proj_)?[Ww]?qk(_proj)?)|"
                   r"(?P<grouped>query_key_value|linear_qkv|attn\.attn))(\.weight)?$")
FIRST_NUMBER = re.compile(r"(^|\.)\d+(?=\.)")  # in a name
HEAD_NUMBER = re.compile(rf"(^|[._])(heads?|{'|'.join(KEY_OF)}|{'|'.join(KEY_OF.values())})\.\d+(?=\.|$)")
SELF = re.compile("self|attn1")  # of two kinds of attention in a layer, the other one is to another stack
# The numbers of layers, of heads, and of dimensions of a head and of the model in a config.json, under whatever name.
N_LAYER = re.compile(r"(^|_)(layers?|depths?|num_blocks)$")
N_HEAD = re.compile(r"attention_heads$|^(n|num)_heads?$")
HEAD_DIM = re.compile(r"head_(dim|size|width)$|dim_head$|^d_(kv|head)$|channels$|size_per_head$")
WIDTH = re.compile(r"(hidden|embed\w*|emb|model)_(size|dim)$|^(n_embd|d_model|dim|width)$")


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


def read_hand(q=None, k=None, qkv=None, heads=None, order=None, transposed=False, layers=None) -> Hand | None:
    """Returns what the user says, or None. heads: 32, (32, 8), "32,8". Raises CheckpointError if it makes no sense."""
    if not (q or k or qkv):
        require(not (heads or order or layers or transposed), "heads, order, layers, transposed go with q, k or qkv")
        return None
    require((q and k and not qkv) or (qkv and not q and not k), "name q and k, or qkv alone")
    require(qkv or q != k, f"{q} cannot be both q and k: if it holds both, name it as qkv with order qk")
    patterns = (qkv,) if qkv else (q, k)
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


def regex(pattern: str) -> str:
    """Returns the regular expression of a pattern, with groups i and h."""
    return re.sub(r"\\\{([ih])\\\}", r"(?P<\1>[0-9]{1,4})", re.escape(pattern))


def match_names(hand: Hand, names: Iterable[str]) -> list[tuple[int, str, int, str]]:
    """Returns of each tensor its layer, pattern, head, name. Raises CheckpointError if a pattern matches nothing."""
    found = []
    for pattern in hand.patterns:
        matches = [re.fullmatch(regex(pattern), name) for name in names]
        there = ", ".join(dict.fromkeys(map(with_numbers, names))) or "no tensors"
        require(any(matches), f"nothing matches {pattern}: there are {there:.300}")
        for match in filter(None, matches):
            found.append((int(match["i"]), pattern, int(match.groupdict().get("h", 0)), match[0]))
    return found


def compare_numbers(config: dict, n_layer: int | None, n_head: int, head_dim: int):
    """Raises CheckpointError if a config has other numbers than the user's words. n_layer: None: it is not compared."""
    head_dims = numbers_of(config, HEAD_DIM) or {width // n_head for width in numbers_of(config, WIDTH)}
    for word, said, told in (("layers", n_layer, numbers_of(config, N_LAYER)),
                             ("heads", n_head, numbers_of(config, N_HEAD)),
                             ("dimensions of a head", head_dim, head_dims)):
        require(not told or said is None or said in told,
                f"{said} {word} by your words, and {' or '.join(map(str, sorted(told)))} in config.json: a pattern has "
                "to match all layers, --heads is the number of heads of q, without a gate, and a tensor that holds "
                "more than q is named with --qkv and its --order")


def numbers_of(config: dict, key: re.Pattern) -> set[int]:
    """Returns the numbers under all names in a config that match, at any depth."""
    found = set()
    for name, value in config.items():
        if isinstance(value, dict):
            found |= numbers_of(value, key)
        elif key.search(str(name)) and type(value) is int:
            found.add(value)
    return found


def other_chunks(hand: Hand, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Returns a note, in a list, if there are more chunks of layers, as blocks.1.{i} beside blocks.0.{i}; else []."""
    here = regex(hand.patterns[0])
    anywhere = re.sub(r"(^|\\\.)\d+(?=\\\.)", r"\1[0-9]+", here)
    others = [name for name, shape in shapes.items()
              if len(shape) > 1 and re.fullmatch(anywhere, name) and not re.fullmatch(here, name)]
    return [f"{len(others)} other layers, as {others[0]}, are not scored"] if others else []


# ---- which words to try ------------------------------------------------------------------------------------------


def with_numbers(name: str) -> str:
    """Returns the name of a tensor with {h} in place of the number of a head, and {i} in place of its first number."""
    return FIRST_NUMBER.sub(r"\1{i}", HEAD_NUMBER.sub(r"\1\2.{h}", name, count=1), count=1)


def advice(model_type: str | None, names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Returns the flags that would score a model that layouts.csv does not list, with the names of its weights."""
    ways = [f"{flags} --heads H,HKV" for pattern, flags in find_flags(names, shapes).items() if "{i}" in pattern]
    if not ways or model_type == "codegen":  # which holds q, v and k in four parts
        return ("name its weights with --q, --k and --heads H,HKV, or score a layer in Python: "
                "scores(q.weight.T, k.weight.T)")
    return f"if its code says so, score it with {' or with '.join(ways)} (score_model takes the same as arguments)"


def find_flags(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Returns {pattern: flags} of the weights that look like queries and keys of self-attention."""
    shape_of = {}  # pattern -> shape
    for name in sorted(names):
        if len(shapes[name]) > 1 and set(shapes[name][2:]) <= {1}:
            shape_of[with_numbers(name)] = shapes[name][:2]
    found = {pattern: flags_for(pattern, shape_of) for pattern in shape_of}
    found = {pattern: flags for pattern, flags in found.items() if flags}
    layers_with_self = {pattern.partition("{i}")[0] for pattern in found if SELF.search(pattern)}
    return {pattern: flags for pattern, flags in found.items()
            if SELF.search(pattern) or pattern.partition("{i}")[0] not in layers_with_self}


def flags_for(pattern: str, shape_of: Mapping[str, tuple[int, int]]) -> str:
    """Returns the flags for weights of this name if they look like queries, or like q, k and v in one; else ""."""
    n_out, n_in = shape_of[pattern]
    key = QUERY.sub(lambda match: KEY_OF[match[1]], pattern)
    key_value = QUERY.sub(lambda match: KEY_OF[match[1]] + ("_value" if match[1] == "query" else "v"), pattern)
    for other, order in (key, ""), (key_value, " --order kv"):
        if other != pattern and other in shape_of and shape_of[other][1] == n_in:  # else it is of another stack
            return f"--q '{pattern}' --k '{other}'{order}"
    fused = FUSED.search(pattern)
    if not fused or n_out == n_in:
        return ""
    order = " --order grouped" if fused["grouped"] else " --order qk" if fused["qk"] else ""
    transposed = " --transposed" if n_out < n_in else ""
    return f"--qkv '{pattern}'{order}{transposed}"
