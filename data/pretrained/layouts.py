"""
The query and key weights of the self-attention layers in a pretrained Transformer.

find_stacks takes a checkpoint's config.json and the names and shapes of its tensors, Layer.heads the tensors of one
layer. What is not certain is refused: a fused tensor cut in the wrong order has the right shape and the wrong score.

nn.Linear stores (out, in), so W_q,h is D rows of the query weight, transposed; query head h meets key head
h // (n_head // n_kv_head). These are the raw projections: biases, RoPE, scaling and the norms of queries, keys and
latents stay outside, nothing is folded in.

Which model keeps them where is in layout_table.py, proven against transformers in tests/test_layouts.py.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from data.pretrained.layout_config import LayoutError, pick, require
from data.pretrained.layout_table import COMPOSITES, KNOWN, PARTS, ROWS, Row

# ---- how tensors hold the heads -------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    n_head: int  # H
    n_kv_head: int | None  # Hkv; None: as the shape of k says, or H in a fused tensor
    head_dim: int | None  # D; None: C / H


# Each form takes the tensors of a layer and returns q (H, D, C) and k (Hkv, D, C), views where it can. A RuntimeError
# or KeyError says that the tensors or the config do not have the form.


def separate(weights, sizes, config):
    """q (H D, C) and k (Hkv D, C)."""
    q, k = weights
    head_dim = sizes.head_dim or q.shape[1] // sizes.n_head
    n_kv_head = sizes.n_kv_head or -1  # -1: as many as there are
    return q.unflatten(0, (sizes.n_head, head_dim)), k.unflatten(0, (n_kv_head, head_dim))


def gated(weights, sizes, config):
    """q and the gate of the output, head by head (2 H D, C), and k (Hkv D, C)."""
    q_and_gate, k = weights
    head_dim = sizes.head_dim or q_and_gate.shape[1] // sizes.n_head
    q = q_and_gate.unflatten(0, (sizes.n_head, 2, head_dim))[:, 0]
    return q, k.unflatten(0, (sizes.n_kv_head or -1, head_dim))


def blocks(weights, sizes, config):
    """[q; k; v] ((H + 2 Hkv) D, C): all queries, all keys, all values."""
    [qkv] = weights
    n_head = sizes.n_head
    n_kv_head = sizes.n_kv_head or n_head
    head_dim = sizes.head_dim or qkv.shape[1] // n_head
    heads = qkv.unflatten(0, (n_head + 2 * n_kv_head, head_dim))
    return heads[:n_head], heads[n_head : n_head + n_kv_head]


def conv1d(weights, sizes, config):
    """[q, k, v] (C, 3 H D): GPT-2's Conv1D stores (in, out)."""
    return blocks([weights[0].mT], sizes, config)


def grouped(weights, sizes, config):
    """[q_1; ...; q_G; k; v] of each key head (Hkv (G + 2) D, C), G = H / Hkv: [q; k; v] head by head where G = 1."""
    [qkv] = weights
    n_kv_head = sizes.n_kv_head or sizes.n_head
    group = sizes.n_head // n_kv_head
    head_dim = sizes.head_dim or qkv.shape[1] // sizes.n_head
    heads = qkv.unflatten(0, (n_kv_head, group + 2, head_dim))
    return heads[:, :group].flatten(0, 1), heads[:, group]


def multi_query(weights, sizes, config):
    """Falcon and GPTBigCode: one key head, as many as queries, or some; the config says it in a way of its own."""
    if config.get("new_decoder_architecture"):  # num_kv_heads counts here only: falcon-7b says 71 and has one
        return grouped(weights, sizes._replace(n_kv_head=config.get("num_kv_heads")), config)
    if config.get("multi_query", True):
        return blocks(weights, sizes._replace(n_kv_head=1), config)
    return grouped(weights, sizes._replace(n_kv_head=sizes.n_head), config)


def codegen(weights, sizes, config):
    """4 blocks of [q; v; k] (3 H D, C), each of H / 4 heads."""
    [qvk] = weights
    head_dim = sizes.head_dim or qvk.shape[1] // sizes.n_head
    heads = qvk.unflatten(0, (4, 3, sizes.n_head // 4, head_dim))
    return heads[:, 0].flatten(0, 1), heads[:, 2].flatten(0, 1)


def xlnet(weights, sizes, config):
    """q and k (C, H, D)."""
    q, k = weights
    return q.permute(1, 2, 0), k.permute(1, 2, 0)


def latent(weights, sizes, config):
    """
    Multi-head latent attention, as in DeepSeek-V2, in float32. Head h has, with A, R, Q_a the same for all heads:

    W_q,h = Q_b,h Q_a, or Q_h where the queries have no latent; its rows are [nope; rope]
    W_k,h = [K_b,h A; R]
    """
    *q_weights, kv_a, kv_b = [weight.float() for weight in weights]
    nope, rope, v = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]

    q = q_weights[0]  # (H (nope + rope), C); or Q_a (r_q, C)
    if len(q_weights) == 2:
        q = q_weights[1] @ q_weights[0]  # Q_b (H (nope + rope), r_q)
    q = q.unflatten(0, (sizes.n_head, nope + rope))

    a, r = kv_a.split([config["kv_lora_rank"], rope])  # (r_kv, C), (rope, C)
    k_b = kv_b.unflatten(0, (sizes.n_head, nope + v))[:, :nope]  # (H, nope, r_kv)
    k = torch.cat([k_b @ a, r.expand(sizes.n_head, -1, -1)], 1)  # (H, nope + rope, C)
    return q, k


FORMS = {form.__name__: form for form in (
    separate, gated, blocks, conv1d, grouped, multi_query, codegen, xlnet, latent)}

# ---- what is found --------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    model_type: str
    form: str  # key of FORMS
    sizes: Sizes
    config: dict


@dataclass(frozen=True)
class Layer:
    """One self-attention layer: its number in the model, and the tensors to read."""

    index: int
    names: tuple[str, ...]
    layout: Layout = field(repr=False, compare=False)

    def heads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        -> w_q (n_head, C, D), w_k (n_kv_head, C, D) in the checkpoint's dtype, views where the form allows it.

        LayoutError if the shapes do not fit the config, or the dtype is not a float of 16 bits or more.
        """
        weights = [tensors[name] for name in self.names]
        n_head = self.layout.sizes.n_head
        try:
            q, k = FORMS[self.layout.form](weights, self.layout.sizes, self.layout.config)
            fits = len(q) == n_head and n_head % len(k) == 0 and q.shape[1:] == k.shape[1:]
        except (RuntimeError, KeyError):
            fits = False
        floats = all(weight.is_floating_point() and weight.itemsize > 1 for weight in weights)
        if not fits or not floats:
            found = ", ".join(f"{name} {tuple(weight.shape)} {weight.dtype}"
                              for name, weight in zip(self.names, weights))
            raise LayoutError(f"{self.layout.model_type}: {found} do not fit n_head, n_kv_head, head_dim = "
                              f"{tuple(self.layout.sizes)}")
        return q.mT, k.mT


@dataclass(frozen=True)
class Stack:
    """Layers on top of each other. name: "" if the model has one stack; causal: None where the mask cannot be told."""

    name: str
    causal: bool | None
    layers: tuple[Layer, ...]


# ---- refusals -------------------------------------------------------------------------------------------------------

# Not layers: cross-attention, pooling, backbones, prediction of further tokens. Position projections have other names.
UNSCORED = re.compile(r"cross|encoder_attn|EncDecAttention|resampler|head\.attention|mask_decoder|pixel_level|\bmtp\.")
QK = (r"(^|\.)([qk]|W?qkv|w[qk]|query|key|query_key_value|c_attn|att_proj|(q|k|qkv|query|key)_(proj|lin)|"
      r"(linear|to)_(q|k|qkv)|q_[ab]_proj)")
LOOKS_LIKE_QK = re.compile(QK + r"(\.weight)?$|in_proj_weight$")
QUANTISED = re.compile(QK + r"\.(qweight|weight_(scale|packed)|weight\.|scales|SCB)")


def refuse_quantised(config: dict, names: Sequence[str]):
    """LayoutError if queries or keys are stored in fewer bits, by their names or by the config."""
    for name in names:
        require(not QUANTISED.search(name), f"{config.get('model_type')}: quantised weights ({name})")
    how = pick(config, "quantization_config compression_config quantization", default={})
    spared = pick(how, "modules_to_not_convert ignore", default=[])
    attention_is_spared = any("attn" in pattern for pattern in spared)  # as in gpt-oss
    require(not how or attention_is_spared,
            f"{config.get('model_type')}: quantised weights ({how.get('quant_method', how)})")


def refuse_unknown(model_type: str, names: set[str]):
    """LayoutError if one of the names, of tensors that belong to no layer, may be a query or a key."""
    for name in sorted(names):
        require(not LOOKS_LIKE_QK.search(name), f"{model_type}: no known place for {name}")


# ---- from names to stacks -------------------------------------------------------------------------------------------


def find_stacks(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> list[Stack]:
    """
    The stacks of self-attention layers in a checkpoint, from its config.json and the shapes of its tensors by name.

    LayoutError: an unknown model_type, missing layers, tensors that look like q or k and have no known place, shapes
    that do not fit the config, quantised weights.
    """
    model_type = config.get("model_type")
    refuse_quantised(config, list(shapes))
    candidates = {name for name, shape in shapes.items() if len(shape) > 1 and not UNSCORED.search(name)}

    stacks, accounted_for = [], set()
    for part in find_parts(model_type, config, candidates):
        require(part.model_type in KNOWN or not part.names,
                f"{model_type}: model_type {part.model_type!r} is not known")
        found = []
        for row in ROWS:
            matches = match_layers(row, part) if part.model_type in row.types.split() else []
            if matches:
                found.append((row, find_layers(row, part, matches)))
                accounted_for |= unscored_names(row, part)
        for row, layers in found:
            for layer in layers:
                layer.heads({name: torch.empty(shapes[name], device="meta") for name in layer.names})  # do they fit?
                accounted_for.update(layer.names)
            name = stack_name(part, row, alone=len(found) == 1)
            stacks.append(Stack(name, is_causal(row, part.config), layers))

    refuse_unknown(model_type, candidates - accounted_for)
    require(stacks, f"{model_type}: no q and k weights")
    return stacks


class Part(NamedTuple):
    """A model inside of a model. name: "" where there is one; names: of its tensors."""

    name: str
    model_type: str
    config: dict
    names: set[str]


def find_parts(model_type: str, config: dict, names: set[str]) -> list[Part]:
    """The parts of a composite model, each with its config and its tensors; any other model is one part."""
    if model_type == "swin":
        return find_stages(config, names)
    if model_type not in COMPOSITES:
        return [Part("", model_type, config, names)]
    parts, left = [], names
    for name, start in PARTS.items():
        part_config = pick(config, f"{name}_config {name} {name}_config_dict")
        if part_config is None and name == "text" and pick(config, N_HEAD.format("")):
            part_config = config  # GIT, and Qwen2-VL's first files
        if part_config is None:
            continue
        inside = {tensor for tensor in left if re.match(start, tensor)}
        left = left - inside
        if model_type == "paligemma" and name == "text":  # the image and the prompt see each other
            part_config = {"use_bidirectional_attention": True, **part_config}
        parts.append(Part(name, part_type(model_type, name, part_config), part_config, inside))
    return parts


def find_stages(config: dict, names: set[str]) -> list[Part]:
    """Swin has a stack for each stage, of its own width and number of heads."""
    parts = []
    depths = config.get("depths", [2, 2, 6, 2])
    n_heads = config.get("num_heads", [3, 6, 12, 24])
    for i, (n_layer, n_head) in enumerate(zip(depths, n_heads)):
        inside = {name for name in names if re.match(rf"(.*\.)?layers\.{i}\.blocks\.", name)}
        parts.append(Part(f"stage {i}", "swin", dict(num_hidden_layers=n_layer, num_attention_heads=n_head), inside))
    return parts


def part_type(model_type: str, part: str, config: dict) -> str:
    """The model_type of a part; where its config names none, as in CLIP's files, that of the model with the part's."""
    own = config.get("model_type", model_type)
    if own != model_type:
        return own
    guess = f"{model_type}_{part}".replace("-", "_")
    return guess if guess in KNOWN else f"{guess}_model"


# Keys of config.json, tried in this order; {0} is the name of the stack.
N_LAYER = """{0}_layers num_{0}_layers {0}_num_hidden_layers num_hidden_layers n_layer n_layers num_layers depth
    encoder_layers"""
N_HEAD = """{0}_attention_heads {0}_num_attention_heads num_attention_heads n_head n_heads num_heads attention_heads
    encoder_attention_heads"""
SOFTMAX = {"attention", "full_attention", "sliding_attention", "chunked_attention", "hybrid"}  # of those in layer_types


def match_layers(row: Row, part: Part) -> list[re.Match]:
    """A match, with groups prefix, i and weight, for every tensor of the part that is in a layer of the row."""
    path = row.path.replace(".", r"\.").replace("{i}", r"(?P<i>\d+)")
    weights = "|".join(weights_of(row, part.config))
    pattern = re.compile(rf"(?P<prefix>(.*\.)?){path}\.(?P<weight>{weights})(\.weight)?")
    matches = [pattern.fullmatch(name) for name in part.names]
    return [match for match in matches if match]


def weights_of(row: Row, config: dict) -> list[str]:
    weights = row.weights.split()
    if row.form == "latent" and not config.get("q_lora_rank"):  # no latent for the queries
        return ["q_proj", *weights[2:]]
    return weights


def read_sizes(row: Row, part: Part) -> tuple[int, Sizes]:
    """-> the number of layers and the sizes of the heads, from the config or the defaults of the class."""
    config = part.config
    layer_types = pick(config, "layer_types layers_block_type", default=[])
    n_layer = pick(config, N_LAYER.format(row.stack), default=row.n_layer or len(layer_types))
    n_head = pick(config, N_HEAD.format(row.stack), default=row.n_head)
    require(n_layer and n_head, f"{part.model_type}: config.json has no number of layers or of heads")
    attn_config = config.get("attn_config") or {}  # DBRX
    n_kv_head = pick(config, "num_key_value_heads", default=attn_config.get("kv_n_heads"))
    head_dim = pick(config, "head_dim d_kv d_head attention_head_size", default=row.head_dim)
    return n_layer, Sizes(n_head, n_kv_head, head_dim)


def scored_layers(row: Row, config: dict, n_layer: int) -> list[int]:
    """The numbers of the layers with queries and keys of their own for a softmax."""
    layer_types = pick(config, "layer_types layers_block_type", default=[])
    if layer_types:
        return [i for i, layer_type in enumerate(layer_types[:n_layer]) if layer_type in SOFTMAX]
    if row.own:
        return list(row.own(config, n_layer))
    return list(range(n_layer))


def further_layers(config: dict, n_layer: int) -> range:
    """Those that predict further tokens, in DeepSeek-V3 and others: after the last, and no part of the stack."""
    return range(n_layer, n_layer + (config.get("num_nextn_predict_layers") or 0))


def find_layers(row: Row, part: Part, matches: list[re.Match]) -> tuple[Layer, ...]:
    """The layers of one stack. LayoutError if they are not exactly those that the config tells of."""
    n_layer, sizes = read_sizes(row, part)
    scored = scored_layers(row, part.config, n_layer)
    further = further_layers(part.config, n_layer)
    names = defaultdict(dict)  # layer -> weight -> name of the tensor
    for match in matches:
        if int(match["i"]) not in further:
            names[int(match["i"])][match["weight"]] = match[0]

    told = f"{part.model_type}: {len(scored)} attention layers in config.json"
    weights = weights_of(row, part.config)
    for i in scored:
        for weight in weights:
            require(weight in names[i], f"{told}, {row.path.replace('{i}', str(i))}.{weight} missing")
    prefixes = {match["prefix"] for match in matches}
    require(len(names) == len(scored) and len(prefixes) == 1,
            f"{told}, {len(names)} found under {' and '.join(sorted(prefixes))!r}")
    layout = Layout(part.model_type, row.form, sizes, part.config)
    return tuple(Layer(i, tuple(names[i][weight] for weight in weights), layout) for i in scored)


def unscored_names(row: Row, part: Part) -> set[str]:
    """The tensors of layers without a softmax attention of their own, or that predict further tokens."""
    n_layer, _ = read_sizes(row, part)
    scored = scored_layers(row, part.config, n_layer)
    unscored = {*range(n_layer), *further_layers(part.config, n_layer)} - {*scored}
    found = set()
    for name in part.names:
        layer = re.search(r"(^|\.)layers\.(\d+)\.", name)
        if layer and int(layer[2]) in unscored:
            found.add(name)
    return found


def stack_name(part: Part, row: Row, alone: bool) -> str:
    """"vision"; "vision.global" if the part has several stacks; "encoder" if there are no parts."""
    if part.name and alone:
        name = part.name
    else:
        name = ".".join(filter(None, [part.name, row.stack]))
    return name.removeprefix("text_")  # MusicGen's text_encoder


def is_causal(row: Row, config: dict) -> bool | None:
    if row.causal is False and not row.stack:  # BERT as a decoder, XLM
        return bool(config.get("is_decoder") or config.get("causal"))
    if row.causal and (config.get("use_bidirectional_attention") or config.get("is_causal") is False):
        return None  # by its first training, and not by its last
    return row.causal
