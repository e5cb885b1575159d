"""
What may lie beside the weights of queries and keys. The one rule: a tensor in their block of attention is the weight,
its bias or in beside.csv, or the model is refused. So no adapter, parametrization, pruning mask or scale goes
unnoticed, whatever it is called.
"""

import re

from . import read_table, require

# Names in a block of attention that change no query or key: outputs, norms, positions, masks and biases.
HARMLESS = {line["name"] for line in read_table("beside.csv")}
# Names in the module of a weight: its bias, Gemma's ranges of clipped activations, what TransformerEngine saves.
OF_WEIGHT = {"bias", "linear.bias", "input_min", "input_max", "output_min", "output_max", "_extra_state"}
# What weights are called that hold queries, alone or with keys.
QUERY = r"query|q|Q|wq|wQ|Wq|WQ|qk|qkv|QKV|c_attn|W_?pack|[wW]qkv|att_proj|query_key_value"
# Any word for queries or keys: in q_delta, attn_q, key_norm, kv_a and q2, but not in queries, faq, monkey and rank.
QK_WORD = re.compile(rf"(?<![a-zA-Z])({QUERY}|key|k|K|wk|wK|Wk|WK|kv)(?![a-zA-Z])")
# The whole name of a weight that may hold queries, after any path:
#     h.0.attn.c_attn, self.query.weight, attn.to_q, q_a_proj, query_3, Wqkv, self_attn.in_proj_weight    match
#     c_attn.bias, q_norm.weight, k_proj.weight, faq_proj, and mamba.in_proj, which is no attention       do not
LIKE_QUERY = re.compile(rf"(.*[._])?({QUERY}|attn\.attn|(attn|attention|mha)(\.self)?\.in_proj)(_?\d+)?"
                        r"(_?(proj|lin|linear|net|layer|weight|a_proj|b_proj))?(\.linear)?(\.weight)?")
# The number of a layer: h.0.attn.c_attn has one. pooler.query.weight has none, so it lies in no layer.
IN_LAYER = re.compile(r"(^|\.)\d+\.")
# Words of cross-attention after the last of such numbers: decoder.layers.0.encoder_attn.q_proj.weight has one, and
# cross_encoder.layers.0.self_attn.q_proj.weight has not.
CROSS = re.compile(r"(^|\.)\d+\.(?!.*\.\d+\.).*"
                   r"(cross|encoder_attn|EncDecAttention|second_sub_layer|encoder_decoder_attention)")
PREDICTING = "mtp", "mtp_block", "mtp_layers"  # modules that predict further tokens, in any model
# What to do about a tensor that may change a query or key: the first whose pattern is in its name. The last always is.
REMEDIES = {
    "merge the adapter and save again (PEFT: merge_and_unload())": r"lora|adapter|base_layer",
    "merge the two and save again (prune.remove, remove_parametrizations)": r"parametrizations|_orig\b|mask",
    "if the weights are quantised, multiply them by their scales and save again": r"scale|qweight|qzeros|g_idx",
    "if it does not, score the layers in Python with score_layers": "",
}


def is_of(name, modules):
    """Returns whether one of these modules is in the path of a tensor, as tower is in model.tower.0.q.weight."""
    return any(f".{module}." in f".{name}." for module in modules)


def refuse_changed(layers, names, unscored):
    """
    Returns q, k and all tensors that lie beside them. Raises CheckpointError if one of them may change q or k.
    unscored: modules that do not. Example: q and k are h.0.attn.q.weight and h.0.attn.k.weight, in the block h.0.attn
        h.0.attn.q.bias, h.0.attn.out.weight     are harmless, by OF_WEIGHT and by beside.csv
        h.0.attn.q_delta                         is refused
    """
    # in which blocks of attention do q and k lie, and what are they called there?
    scored = set().union(*[layer.names for layer in layers])
    words_of = {}  # {block: its words}
    for name in scored:
        block, _, word = re.sub(r"(\.linear)?(\.weight)?$", "", name).rpartition(".")  # h.0.attn and q
        words_of.setdefault(block, set()).add(word)

    inside = set()
    for block, words in words_of.items():
        start = f"{block}."
        *above, last = block.split(".")
        is_layer = last.isdigit() and not any(word.isdigit() for word in above)  # h.0, and not h.0.expert.3
        for name in names:
            if not name.startswith(start):
                continue

            # a layer that holds q and k itself has other things, too: only what is called like q or k is beside them
            first, _, rest = name.removeprefix(start).partition(".")
            if is_layer and not QK_WORD.search(first) and not first.startswith(tuple(words)):
                continue

            # what lies beside them is one of them, or has to be known: in the module of a weight, or as another one
            inside.add(name)
            is_harmless = rest in OF_WEIGHT if first in words else first in HARMLESS
            require(is_harmless or name in scored or is_of(name, unscored), why_refused(name))
    return inside


def why_refused(name):
    """Returns why a tensor is refused, and what to do about it."""
    remedy = next(remedy for remedy, pattern in REMEDIES.items() if re.search(pattern, name))
    return f"{name} lies beside a query or key and may change it: {remedy}"
