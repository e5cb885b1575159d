"""
What may lie beside the weights of queries and keys. The one rule: a tensor in their block of attention is the weight,
its bias or in beside.csv, or the model is refused. So no adapter, parametrization, mask of pruning or scale goes
without a word, whatever it is called.
"""

import csv
import re
from pathlib import Path

from . import require

# Names in a block of attention that change no query or key: of outputs, norms, positions, masks and biases.
with open(Path(__file__).parent / "beside.csv", encoding="utf-8", newline="") as file:
    HARMLESS = {line["name"] for line in csv.DictReader(file)}
# In the module of a weight: its bias, how far activations go in Gemma's clipped layers, what TransformerEngine saves.
OF_WEIGHT = {"bias", "linear.bias", "input_min", "input_max", "output_min", "output_max", "_extra_state"}
# What queries, and both, are called in names of weights; and any word for queries or keys.
QUERY = r"query|q|Q|wq|wQ|Wq|WQ|qk|qkv|QKV|c_attn|W_?pack|[wW]qkv|att_proj|query_key_value"
QK_WORD = re.compile(rf"(?<![a-zA-Z])({QUERY}|key|k|K|wk|wK|Wk|WK|kv)(?![a-zA-Z])")
# The name of such a weight; in_proj is one if it is that of an attention. Those of other modules are of mixers.
LIKE_QUERY = re.compile(rf"(.*[._])?({QUERY}|attn\.attn|(attn|attention|mha)(\.self)?\.in_proj)(_?\d+)?"
                        r"(_?(proj|lin|linear|net|layer|weight|a_proj|b_proj))?(\.linear)?(\.weight)?")
CROSS = re.compile(r"cross|encoder_attn|EncDecAttention|second_sub_layer|encoder_decoder_attention")
WRAPPED = re.compile(r"parametrizations|base_layer|_orig\b")
PREDICTING = "mtp", "mtp_block", "mtp_layers"  # modules that predict further tokens, in any model
# What to do about a tensor that may change a query or key, by a word of its name.
REMEDIES = {
    "merge the adapter and save again (PEFT: merge_and_unload())": r"lora|adapter|base_layer",
    "merge the two and save again (prune.remove, remove_parametrizations)": r"parametrizations|_orig\b|mask",
    "if the weights are quantised, multiply them by their scales and save again": r"scale|qweight|qzeros|g_idx",
}
OTHERWISE = "if it does not, score the layers in Python with score_layers"


def is_of(name, modules):
    """Returns whether one of these modules is in the path of a tensor, as tower is in model.tower.0.q.weight."""
    return any(f".{module}." in f".{name}." for module in modules)


def is_cross_attention(name):
    """
    Returns whether a tensor is of the cross-attention of a layer: by what comes after the number of the layer, as in
    decoder.layers.0.encoder_attn.q_proj.weight, and not in cross_encoder.layers.0.self_attn.q_proj.weight.
    """
    _, *after = re.split(r"(?:^|\.)\d+\.", name)
    return bool(after and CROSS.search(after[-1]))


def looks_like_query(name, shape):
    """
    Returns whether a tensor may hold the queries of a layer, alone or with the keys, as h.0.attn.c_attn.weight (3 C, C)
    may. h.0.attn.c_attn.bias (3 C) and pooler.query.weight, of no layer, do not.
    """
    is_numbered = re.search(r"(^|\.)\d+\.", name) is not None
    return is_numbered and len(shape) > 1 and LIKE_QUERY.fullmatch(name) is not None


def refuse_changed(layers, shapes, unscored):
    """
    Returns the names in the blocks of attention of these layers, or, of layers that hold q and k themselves, those that
    sound like queries or keys. Raises CheckpointError if one of them may change q or k. shapes: of all tensors.
    unscored: modules that do not.
    Of h.0.attn.q.weight and h.0.attn.k.weight the block is h.0.attn, and the words are q and k. Then h.0.attn.q.bias is
    harmless (OF_WEIGHT), h.0.attn.out.weight too (beside.csv), and h.0.attn.q_delta is refused.
    """
    scored = set().union(*[layer.names for layer in layers])
    words_of = {}  # {block: its words}
    for name in scored:
        require(not WRAPPED.search(name), why_refused(name))
        block, word = split_name(name)
        words_of.setdefault(block, set()).add(word)
    inside = set()
    for name in shapes:
        path = name.split(".")
        for n, first in enumerate(path):
            block = ".".join(path[:n])
            words = words_of.get(block)
            if not words:
                continue
            is_called_after = QK_WORD.search(first) or first.startswith(tuple(words))
            if is_layer(path[:n]) and not is_called_after:  # a whole layer holds other things, too
                continue
            inside.add(name)
            rest = ".".join(path[n:])
            is_harmless = name in scored or is_of(name, unscored) or changes_nothing(rest, words)
            require(is_harmless, why_refused(name))
    return inside


def why_refused(name):
    """Returns why a tensor is refused, and what to do about it."""
    remedies = [remedy for remedy, signs in REMEDIES.items() if re.search(signs, name)]
    return f"{name} lies beside a query or key and may change it: {[*remedies, OTHERWISE][0]}"


def split_name(name):
    """Returns the block of attention that a weight is in, and its word: h.0.attn and q of h.0.attn.q.weight."""
    block, _, word = re.sub(r"(\.linear)?(\.weight)?$", "", name).rpartition(".")
    return block, word


def is_layer(path):
    """Returns whether a module, by the parts of its name, is a whole layer, or the whole model."""
    return not path or (path[-1].isdigit() and sum(part.isdigit() for part in path) == 1)


def changes_nothing(rest, words):
    """Returns whether a tensor, by its name in the block of attention, changes no query or key."""
    for word in words:
        if rest.startswith(f"{word}."):
            return rest.removeprefix(f"{word}.") in OF_WEIGHT
    return rest.partition(".")[0] in HARMLESS
