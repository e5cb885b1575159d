"""The queries and keys of a model that layouts.csv does not list, by the user's words. README.md has examples."""

import re

from ..names import require
from .beside import QK_WORD, is_cross_attention
from .architectures import Row, Sizes, part_of, pick, read_sizes

# What a query is called in names of weights, and what the key beside it.
KEY_OF = {"query": "key", "q": "k", "Q": "K", "wq": "wk", "wQ": "wK", "Wq": "Wk", "WQ": "WK"}
SHOWN = 6  # patterns in an advice


def read_hand(q=None, k=None, qkv=None, heads=None, order=None, unscored=None):
    """
    Returns a Row by the user's words, or None. q, k, qkv: patterns of names. heads: H, or H, Hkv, or H, Hkv, D.
    order: how the tensors hold q and k, a function of forms.py, if they are not a Linear each. unscored: names of
    modules, with commas between, that change no query or key.

    q = blocks.{i}.wq.weight, k = blocks.{i}.wk.weight and heads = 8,2 are the layers of blocks.0.wq.weight,
    blocks.1.wq.weight and so on, with 8 heads of queries and 2 of keys.
    """
    if not (q or k or qkv):
        require(not (heads or order or unscored), "heads, order and unscored go with q, k or qkv")
        return None
    require((q and k and not qkv) or (qkv and not q and not k), "name q and k, or qkv alone")
    require(q is None or q != k, f"{q} cannot be both q and k: if it holds both, name it as qkv with order halves")
    patterns = (qkv,) if qkv else (q, k)
    is_numbered = all(pattern.count("{i}") == 1 for pattern in patterns)
    require(is_numbered, f"{', '.join(patterns)}: {{i}} has to stand once, for the number of the layer")
    refuse_swapped(q, k)
    match = re.fullmatch(r"[(\[]?(\d+)(?:, ?(\d+))?(?:, ?(\d+))?[)\]]?", str(heads))
    require(match, f"heads = {heads}: say how many there are, as in 32,8")
    n_head, n_kv_head, head_dim = [number and int(number) for number in match.groups()]
    expected = ("listed",) if "{h}" in patterns[0] else ("separate", "kv", "kernels")  # listed: a tensor for each head
    if qkv:  # nothing but the code of the model tells which
        expected = "blocks", "halves", "grouped", "conv1d"
    elif order is None:
        order = expected[0]
    require(order in expected, f"order = {order}, expected one of {', '.join(expected)}")
    is_kernel = any(pattern.endswith("kernel") for pattern in patterns)  # of Flax and Keras, which store (in, out)
    require(not is_kernel or order in ("kernels", "conv1d"), f"{patterns[0]} is a kernel, so (in, out): give order "
            "kernels, or conv1d of qkv")
    unscored = tuple(filter(None, str(unscored or "").split(",")))
    sizes = Sizes(n_head, n_kv_head or n_head, head_dim)
    return Row("", weights=patterns, form=order, sizes=sizes, unscored=unscored)


def refuse_swapped(q, k):
    """Raises CheckpointError if q is called a key, or k a query, by the last such word of its name: h.{i}.attn.w_k."""
    for pattern, side, wrong in (q, "q", {*KEY_OF.values()}), (k, "k", {*KEY_OF}):
        words = QK_WORD.findall(pattern or "")
        is_swapped = words != [] and words[-1] in wrong
        require(not is_swapped, f"{side} = {pattern}, whose word {words[-1:]} is one of the other side")


def compare_heads(hand, config):
    """Raises CheckpointError if the config, or the one of the text in it, has other heads than the user says."""
    if part_of(hand.weights[0], {}) != "text":  # a tower, whose heads are elsewhere
        return
    witness = config | pick(config, dict, "text_config", default={})
    keys = dict(n_head="num_attention_heads", n_kv_head="num_key_value_heads", head_dim="head_dim")
    for size, key in keys.items():
        said, by_config = getattr(hand.sizes, size), witness.get(key)
        is_same = said == by_config or said is None or not isinstance(by_config, int)
        require(is_same, f"heads say {size} = {said}, and config.json says {key} = {by_config}: correct one of them")


def numbered(name):
    """Returns the name of a tensor with {i} in place of its first number."""
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1{i}", name, count=1)


def advice(config, queries, names):
    """
    Returns what to do with a model that layouts.csv does not list: flags to try, if its config says the heads.
    queries: those of the names that look like queries.
    """
    patterns = {numbered(name) for name in names}
    # nn.TransformerDecoderLayer calls its cross-attention multihead_attn, and has a self_attn beside it.
    like_queries = set()
    for name in queries:
        is_beside = ".multihead_attn." in name and name.replace("multihead_attn", "self_attn") in names
        if not is_cross_attention(name) and not is_beside:
            like_queries.add(numbered(name))
    like_queries = sorted(like_queries)[:SHOWN]
    sizes = read_sizes(Row(""), config, 0)
    heads = ",".join(str(n) for n in (sizes.n_head, sizes.n_kv_head or sizes.n_head, sizes.head_dim) if n)
    ways = []
    for q in like_queries:
        k = QK_WORD.sub(lambda match: KEY_OF.get(match[1], match[1]), q)
        if sizes.n_head and k != q and k in patterns:
            ways.append(f"--q '{q}' --k '{k}' --heads {heads}")
    if ways:
        return f"if its code says so, score it with {', or with '.join(ways)}"
    return (f"name its weights ({', '.join(like_queries)}) with --q and --k, or --qkv and --order, and --heads H,HKV, "
            "or score a layer in Python: scores(q.weight.T, k.weight.T)")
