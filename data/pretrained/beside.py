"""
What may lie beside the weights of queries and keys. The one rule: a tensor in their block of attention is the weight,
its bias or in beside.csv, or the model is refused. So no adapter, parametrization, mask of pruning or scale goes
without a word, whatever it is called.
"""

import csv
import re
from pathlib import Path

from ..names import require

# Names in a block of attention that change no query or key: of outputs, norms, positions, masks and biases.
with open(Path(__file__).parent / "beside.csv", newline="") as file:
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
CHANGED = ("lies beside a query or key and may change it: merge the two and save again (PEFT: merge_and_unload(); "
           "torch.nn.utils: prune.remove, remove_parametrizations)")


def is_of(name, modules):
    """Returns whether one of these modules is in the path of a tensor."""
    return any(f".{module}." in f".{name}." for module in modules)


def is_cross_attention(name):
    """Returns whether a tensor is of the cross-attention of a layer: by what comes after the number of the layer."""
    before, *after = re.split(r"(?:^|\.)\d+\.", name)
    return bool(after and CROSS.search(after[-1]))


def looks_like_query(name, shape):
    """Returns whether a tensor may hold the queries of a layer, alone or with the keys."""
    is_numbered = re.search(r"(^|\.)\d+\.", name) is not None
    return is_numbered and len(shape) > 1 and LIKE_QUERY.fullmatch(name) is not None


def refuse_changed(layers, names, others):
    """
    Returns the names in the blocks of attention of these layers, or, of layers that hold q and k themselves, those that
    sound like queries or keys. Raises CheckpointError if one of them may change q or k. others: modules that do not.
    """
    own = {name for layer in layers for name in layer.names}
    words_of = {}  # a block of attention -> what the weights in it are called, such as h.0.attn -> {c_attn}
    for name in own:
        require(not WRAPPED.search(name), f"{name} {CHANGED}")
        stem = re.sub(r"(\.linear)?(\.weight)?$", "", name)
        block, word = re.fullmatch(r"(?:(.*)\.)?([^.]*[^.\d][^.]*(?:\.\d+)*)", stem).groups(default="")
        words_of.setdefault(block, set()).add(word)
    inside = set()
    for name in names:
        path = name.split(".")
        for n, first in enumerate(path):
            words = words_of.get(".".join(path[:n]))
            if not words:  # no block of attention
                continue
            is_called_after = QK_WORD.search(first) or first.startswith(tuple(word.partition(".")[0] for word in words))
            if is_called_after or not is_layer(path[:n]):  # a whole layer holds other things, too
                inside.add(name)
                rest = ".".join(path[n:])
                is_harmless = name in own or is_of(rest, others) or changes_nothing(rest, words)
                require(is_harmless, f"{name} {CHANGED}")
    return inside


def is_layer(path):
    """Returns whether a module, by the parts of its name, is a whole layer, or the whole model."""
    return not path or (path[-1].isdigit() and sum(part.isdigit() for part in path) == 1)


def changes_nothing(rest, words):
    """Returns whether a tensor, by its name in the block of attention, changes no query or key."""
    for word in words:
        if rest.startswith(f"{word}."):
            return rest.removeprefix(f"{word}.") in OF_WEIGHT
    return rest.partition(".")[0] in HARMLESS
