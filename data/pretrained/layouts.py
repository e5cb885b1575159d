"""
Finds the query and key weights of the self-attention layers in a pretrained Transformer.

    stacks = find_stacks(config, shapes)     # from config.json, and from the names and shapes of all tensors
    w_q, w_k = stacks[0].layers[0].heads(tensors)  # (H, C, D), (Hkv, C, D), from the tensors of this layer

What is not certain is refused, because a fused tensor cut in the wrong order has the right shape and the wrong score.

nn.Linear stores (out, in), so W_q of head h is D rows of the query weight, transposed. Query head h meets key head
h // (n_head // n_kv_head). These are the raw weights: biases, RoPE, scaling, and the norms of queries, keys and latents
are left out.

layout_table.py says where each model has these weights, and layout_forms.py how a tensor holds them. Both are proven
against transformers in tests/test_layouts.py.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from data.pretrained.files import CheckpointError, pick, require
from data.pretrained.layout_forms import FORMS, Sizes
from data.pretrained.layout_table import (COMPOSITES, CONFIG_DICT, KNOWN, NOT_READ, OWN, PARTS, ROWS, STAGES, USUAL,
                                          Row, Usual, shared_blocks)

# ---- what is found --------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """One self-attention layer: its number in the model, the tensors to read, and how they hold q and k."""

    index: int
    names: tuple[str, ...]
    model_type: str
    form: str  # key of FORMS
    sizes: Sizes
    config: dict

    def heads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """
        -> w_q (n_head, C, D), w_k (n_kv_head, C, D) in the dtype of the checkpoint, as views if possible (products
        are float32).

        CheckpointError if the shapes do not fit the config, or the dtype is not a float of at least 16 bits.
        """
        weights = [tensors[name] for name in self.names]
        n_head = self.sizes.n_head
        try:
            q, k = FORMS[self.form](weights, self.sizes, self.config)
            fits = (all(weight.is_floating_point() and weight.itemsize > 1 and weight.numel() > 0 for weight in weights)
                    and q.ndim == k.ndim == 3 and q.shape[1:] == k.shape[1:]
                    and len(q) == n_head and n_head % len(k) == 0)
        except RuntimeError:
            fits = False
        if not fits:
            found = ", ".join(f"{name} {tuple(weight.shape)} {weight.dtype}"
                              for name, weight in zip(self.names, weights))
            raise CheckpointError(f"{self.model_type}: {found} do not fit n_head, n_kv_head, head_dim = "
                              f"{tuple(self.sizes)}")
        return q.mT, k.mT


class Stack(NamedTuple):
    """Layers on top of each other. name: "" if the model has one stack. causal: None if the mask is not known."""

    name: str
    causal: bool | None
    layers: tuple[Layer, ...]


class Part(NamedTuple):
    """A model inside of a model. name: "" if there is only one. names: the names of its tensors."""

    name: str
    model_type: str
    config: dict
    names: set[str]


def find_stacks(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> list[Stack]:
    """
    The stacks of self-attention layers in a checkpoint, from its config.json and the shapes of its tensors by name.

    CheckpointError: an unknown model_type, missing layers, tensors that look like q or k but have no known place,
    shapes that do not fit the config, quantised weights, adapters beside the weights, or a config that makes no sense.
    """
    try:
        return stacks_of(config, shapes)
    except CheckpointError:
        raise
    except Exception as error:  # a config.json can hold anything: a list where a number belongs, or a period of 0
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise CheckpointError(f"{config.get('model_type')}: config.json or the shapes make no sense ({why})") from error


def stacks_of(config: dict, shapes: Mapping[str, tuple[int, ...]]) -> list[Stack]:
    model_type = pick(config, "model_type", str)
    refuse_changed(config, shapes)
    candidates = {name for name, shape in shapes.items() if len(shape) > 1 and not UNSCORED.search(name)}

    stacks, accounted_for = [], set()
    for part in find_parts(model_type, config, candidates):
        if part.names:
            refuse_unknown(part.model_type)
        found = []
        for row in rows_of(part.model_type):
            matches = match_layers(row, part)
            if matches:
                layers, unscored = find_layers(row, part, matches)
                found.append((row, layers))
                accounted_for |= unscored
        for row, layers in found:
            for layer in layers:
                layer.heads({name: torch.empty(shapes[name], device="meta") for name in layer.names})  # or refused
                accounted_for.update(layer.names)
            name = stack_name(part, row, alone=len(found) == 1)
            stacks.append(Stack(name, is_causal(row, part.config), layers))

    for name in sorted(candidates - accounted_for):
        require(not LOOKS_LIKE_QK.search(name), f"{model_type}: no known place for {name}")
    require(stacks, f"{model_type}: no q and k weights")
    return stacks


def missing_stacks(config: dict, stacks: Sequence[Stack]) -> list[str]:
    """The stacks that are in config.json and not in the file, such as the decoder of an encoder-decoder."""
    names = [stack.name for stack in stacks]
    missing = []
    for part in find_parts(pick(config, "model_type", str), config, set()):
        if part.model_type not in KNOWN:  # a backbone, not scored
            continue
        if part.name:
            part_name = shown(part.name)
            is_there = any(name == part_name or name.startswith(f"{part_name}.") for name in names)
            if not is_there:
                missing.append(part_name)
        else:
            halves = [row.stack for row in rows_of(part.model_type) if row.stack in ("encoder", "decoder")]
            missing += [half for half in halves if half not in names]
    return missing


# ---- refusals -------------------------------------------------------------------------------------------------------

# Tensors with such names are of no layer of self-attention. (Position projections have other names.)
UNSCORED = re.compile("|".join((
    r"cross|encoder_attn|EncDecAttention|encoder_decoder_attention|\.x_attn|second_sub_layer",  # cross-attention
    r"visual_attention",  # LXMERT: between words and regions
    r"resampler|head\.attention|\bhead\.[qk]_proj|\battn_pool|multi_modal_projector|image_pooling_2d|"
    r"projector\.query$",  # pooling
    r"vit_merger|(layerwise|spatial)_projectors",  # single layers between an image tower and the text
    r"\bmtp\.",  # prediction of further tokens
    r"indexer\.|compressor\.",  # which keys are used: DeepSeek-V3.2 and V4
    r"channel_attn",  # Florence-2: among channels, not tokens
    r"char_encoder",  # CANINE: among letters, before the tokens
    r"\bmit\.|prompts_generator",  # X-CLIP: among frames, and from frames to text
    r"downsample\.",  # GroupViT: from groups to patches
    r"memory_attention|mask_decoder",  # SAM, SAM 2
    r"vqmodel|token2wav|code2wav|coder_transformer\.",  # codes of images, sound from codes
    # Detectors: the backbone, what mixes in the text, and what makes boxes and masks.
    r"pixel_level|timm_model|conv_encoder|text_backbone|text_enhancer|bbox_attention",
    r"detr_encoder|detr_decoder|geometry_encoder|dot_product_scoring",  # SAM 3
)))
# The names of queries and keys in the table. (In DeBERTa in_proj is one, in Mamba it is another thing.)
QK = "|".join({weight for row in ROWS for weight in row.weights.split()} - {"in_proj"})
LOOKS_LIKE_QK = re.compile(rf"(^|\.)({QK}|to_k|to_qkv|linear_qkv)(\.weight)?$|attn\.in_proj\.weight$")
# A tensor that lies beside the weight of a query or key and belongs to it; rest: the end of its name.
BESIDE = re.compile(rf"(^|\.)({QK}|in_proj)(\.linear)?(\.|_lora)(?P<rest>.+)")
HARMLESS = {"weight", "bias", "input_scale", "output_scale", "activation_scale", "k_scale",  # of activations
            "input_min", "input_max", "output_min", "output_max",  # of activations too, in Gemma 4
            "weight_integer", "bias_integer", "fc_scaling_factor"}  # of I-BERT, which rounds the weight when it runs
QUANTISED = re.compile(r"qweight|weight_(scale|packed)|weight\.|scales|SCB")


def refuse_changed(config: dict, names: Iterable[str]):
    """CheckpointError if queries or keys are stored in fewer bits, or something beside them changes them."""
    model_type = config.get("model_type")
    for name in names:
        beside = BESIDE.search(name)
        if beside and beside["rest"] not in HARMLESS and not UNSCORED.search(name):
            require(not QUANTISED.match(beside["rest"]), f"{model_type}: quantised weights ({name})")
            raise CheckpointError(f"{model_type}: {name} lies beside a query or key and may change it: merge the two, "
                                  "LoRA and the like with PEFT's model.merge_and_unload(), and save the model again")
    how = pick(config, "quantization_config compression_config quantization", dict, {})
    spared = pick(how, "modules_to_not_convert ignore", list, [])
    attention_is_spared = any("attn" in pattern for pattern in spared)  # as in gpt-oss
    # checkpoint.py multiplies FP8 weights by their scales, so they are ordinary weights here.
    scaled_fp8 = how.get("quant_method") == "fp8" or how.get("format") == "float-quantized"
    require(not how or attention_is_spared or scaled_fp8,
            f"{model_type}: quantised weights ({how.get('quant_method', how)!s:.60})")


def refuse_unknown(model_type: str | None):
    hint = "data/pretrained/layout_table.py lists those that are"
    if model_type is None:
        hint = "config.json names none; write the one that the weights are of into it, such as \"model_type\": \"bert\""
    require(model_type in KNOWN, f"model_type {model_type!r} is not known ({hint})")


# ---- the parts of a model -------------------------------------------------------------------------------------------


def rows_of(model_type: str) -> list[Row]:
    return [row for row in ROWS if model_type in row.types.split()]


def find_parts(model_type: str, config: dict, names: set[str]) -> list[Part]:
    """The parts of a composite model, each with its config and its tensors. Any other model is one part."""
    if model_type in STAGES:
        return find_stages(model_type, config, names)
    if model_type not in COMPOSITES:
        return [Part("", model_type, config, names)]
    if model_type == "video_llava":  # two towers of one kind
        tower = pick(config, "vision_config", dict)
        config = config | dict(vision_config=None, image_config=tower, video_config=tower)
    parts, left = [], names
    for name, start in PARTS.items():
        part_config = pick(config, f"{name}_config {name}", dict)
        if model_type in CONFIG_DICT:
            part_config = pick(config, f"{name}_config_dict", dict, part_config)
        if part_config is None and name == "text" and pick(config, N_HEAD.format(""), int):
            part_config = config  # GIT, and Qwen2-VL's first files
        if model_type == "molmo2" and name == "vision" and "vit_config" in config:  # and without its last layers
            n = config["vit_config"]["num_hidden_layers"]
            deepest = max(layer % n for layer in config["adapter_config"]["vit_layers"])
            part_config = config["vit_config"] | {"num_hidden_layers": deepest + 1}
        if part_config is None or (model_type, name) in NOT_READ:
            continue
        inside = {tensor for tensor in left if re.match(start, tensor)}
        left = left - inside
        if model_type == "paligemma" and name == "text":  # the image and the prompt see each other
            part_config = {"use_bidirectional_attention": True, **part_config}
        for part in find_parts(part_type(model_type, name, part_config), part_config, inside):
            parts.append(part._replace(name=".".join(filter(None, [name, part.name]))))
    return parts


def part_type(model_type: str, part: str, config: dict) -> str:
    """The model_type of a part. If its config has none that is in the table (CLIP), it is clip_text or the like."""
    own = pick(config, "model_type", str, model_type)
    if own != model_type and own in KNOWN | COMPOSITES:
        return own
    guess = f"{model_type}_{part}".replace("-", "_")
    for known in (guess, f"{guess}_model"):
        if known in KNOWN | COMPOSITES:
            return known
    return guess if own == model_type else own


def find_stages(model_type: str, config: dict, names: set[str]) -> list[Part]:
    """
    The stages of a model such as Swin, each with its own numbers of layers and of heads. Where the layers are numbered
    through all stages, those of a stage begin at `first`.
    """
    stages = STAGES[model_type]
    n_layers = pick(config, stages.n_layer, list, stages.default_n_layer)
    n_heads = config.get(stages.n_head)
    if isinstance(n_heads, int):
        n_heads = len(n_layers) * [n_heads]
    parts = []
    left = names
    first = 0
    for i, (n_layer, n_head) in enumerate(zip(n_layers, n_heads or stages.default_n_head)):
        layers = range(first, first + n_layer)
        path = stages.path.replace("{i}", str(i)).replace("{layer}", rf"(?P<layer>{NUMBER})")
        inside = set()
        for name in left:
            found = re.match(rf"(.*\.)?{path}", name)
            if found and int(found.groupdict().get("layer", first)) in layers:
                inside.add(name)
        left = left - inside
        stage_config = dict(num_hidden_layers=n_layer, num_attention_heads=n_head, first_layer=first)
        parts.append(Part(f"stage {i}", model_type, stage_config, inside))
        first += n_layer
    n_layer = pick(config, "decoder_depth", int)  # of Hiera as it is trained, by masked images
    if n_layer:
        decoder_config = dict(num_hidden_layers=n_layer, num_attention_heads=pick(config, "decoder_num_heads", int))
        parts.append(Part("", model_type, decoder_config, left))
    return parts


def stack_name(part: Part, row: Row, alone: bool) -> str:
    """For example "vision"; "vision.global" if the part has several stacks; "encoder" if there are no parts."""
    if part.name and alone:
        return shown(part.name)
    return shown(".".join(filter(None, [part.name, row.stack])))


def shown(name: str) -> str:
    """The name of a part, as it is shown: MusicGen's text_encoder is "encoder", Qwen-Omni's thinker is left out."""
    for word in "text_", "thinker.", "vlm.", "detector.":
        name = name.removeprefix(word)
    return name.replace("vision.backbone", "vision")


# ---- the layers of a part -------------------------------------------------------------------------------------------

NUMBER = "[0-9]{1,9}"  # of a layer, in the name of a tensor
# Keys of config.json, which are tried in this order. {0} is the name of the stack.
N_LAYER = """{0}_layers num_{0}_layers {0}_num_hidden_layers num_hidden_layers n_layer n_layers num_layers depth
    encoder_layers conf_num_hidden_layers layers num_blocks num_transformer_layers"""
N_HEAD = """{0}_attention_heads {0}_num_attention_heads num_{0}_attention_heads num_attention_heads n_head n_heads
    num_heads attention_heads speech_encoder_attention_heads encoder_attention_heads conf_num_attention_heads"""
N_KV_HEAD = "{0}_num_key_value_heads num_key_value_heads n_kv_heads num_attention_groups"
# The layer_types with a softmax. Others, such as "linear_attention", "conv" and "mamba", have none.
SOFTMAX = {"attention", "full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "hybrid",
           "compressed_sparse_attention", "heavily_compressed_attention"}


def match_layers(row: Row, part: Part) -> list[re.Match]:
    """A match, with groups prefix, i and weight, for every tensor of the part that belongs to a layer of the row."""
    path = row.path.replace(".", r"\.").replace("{i}", rf"(?P<i>{NUMBER})")
    weights = "|".join(weights_of(row, part.config))
    pattern = re.compile(rf"(?P<prefix>(.*\.)?){path}\.(?P<weight>{weights})(\.linear)?(\.weight)?")
    matches = [pattern.fullmatch(name) for name in part.names]
    return [match for match in matches if match]


def weights_of(row: Row, config: dict) -> list[str]:
    weights = row.weights.split()
    if row.form == "latent" and not pick(config, "q_lora_rank", int):  # no latent for the queries
        return ["q_proj", *weights[2:]]
    return weights


def read_sizes(row: Row, part: Part) -> tuple[int, Sizes]:
    """-> the number of layers and the sizes of the heads, from the config or the defaults of the class."""
    config = part.config
    usual = USUAL.get(part.model_type, Usual())
    layer_types = pick(config, "layer_types layers_block_type", list, [])
    counted = row.stack.partition(".")[0]  # LXMERT's l.text are its l_layers
    n_layer = pick(config, N_LAYER.format(counted), int, usual.n_layer or len(layer_types))
    n_head = pick(config, N_HEAD.format(row.stack), int, usual.n_head)
    if part.model_type == "openelm":  # of the first layer
        n_head = pick(config, "num_query_heads", list)[0]
    if part.model_type == "bridgetower_vision_model":
        n_head = pick(config, "hidden_size", int, 768) // usual.head_dim
    require(n_layer and n_head, f"{part.model_type}: config.json has no number of layers or of heads")
    attn_config = pick(config, "attn_config", dict, {})  # DBRX
    n_kv_head = pick(config, N_KV_HEAD.format(row.stack), int, pick(attn_config, "kv_n_heads", int))
    head_dim = pick(config, "head_dim d_kv d_head attention_head_size", int, usual.head_dim)
    if part.model_type == "mimo_v2_flash":  # twice as many key heads where there is a window: as many as there are
        n_kv_head = None
    if part.model_type == "d_fine" and row.stack == "encoder":  # head_dim is of the decoder
        head_dim = None
    if part.model_type == "convbert":  # convolutions take the place of the other heads
        head_dim = pick(config, "hidden_size", int, 768) // n_head
        n_head = n_head // pick(config, "head_ratio", int, 2)
    return n_layer, Sizes(n_head, n_kv_head, head_dim)


def sizes_of_layer(sizes: Sizes, config: dict, i: int) -> Sizes:
    """The sizes of layer i. In Gemma 4 and Step 3.5, heads are others in layers that attend to everything."""
    if "num_query_heads" in config:  # OpenELM
        return Sizes(config["num_query_heads"][i], config["num_kv_heads"][i], sizes.head_dim)
    layer_types = pick(config, "layer_types", list, [])
    of_layers = pick(config, "per_layer_config", dict, {})  # as transformers saves them
    of_layer = pick(of_layers, str(i), dict, {})
    head_dim, n_kv_head = pick(of_layer, "head_dim", int), pick(of_layer, "num_key_value_heads", int)
    n_head = pick(of_layer, "num_attention_heads", int)
    if not of_layers and i < len(layer_types) and layer_types[i] == "full_attention":
        head_dim = pick(config, "global_head_dim", int)
        if pick(config, "attention_k_eq_v", bool):
            n_kv_head = pick(config, "num_global_key_value_heads", int)
    if not of_layers and i < len(layer_types) and layer_types[i] == "sliding_attention":
        n_head = pick(pick(config, "attention_other_setting", dict, {}), "num_attention_heads", int)
    return Sizes(n_head or sizes.n_head, n_kv_head or sizes.n_kv_head, head_dim or sizes.head_dim)


def scored_layers(model_type: str, config: dict, n_layer: int) -> tuple[list[int], range]:
    """-> the layers with a softmax and queries and keys of their own; and the last ones, whose tensors are not read."""
    # The last ones use the keys of an earlier layer (Gemma 3n and 4), or predict further tokens (DeepSeek-V3).
    n_shared = pick(config, "num_kv_shared_layers", int, USUAL.get(model_type, Usual()).n_shared)
    n_own = max(0, n_layer - n_shared)
    last = range(n_own, n_layer + pick(config, "num_nextn_predict_layers", int, 0))
    own = OWN.get(model_type)
    layer_types = pick(config, "layer_types layers_block_type", list, [])
    if layer_types and own is not shared_blocks:
        return [i for i, layer_type in enumerate(layer_types[:n_own]) if layer_type in SOFTMAX], last
    if own:
        return list(own(config, n_layer)), last
    return list(range(n_own)), last


def find_layers(row: Row, part: Part, matches: list[re.Match]) -> tuple[tuple[Layer, ...], set[str]]:
    """
    -> the layers of one stack, and the names of the tensors in its layers that are not scored. CheckpointError if they
    are not exactly the layers of the config.
    """
    n_layer, sizes = read_sizes(row, part)
    scored, last = scored_layers(part.model_type, part.config, n_layer)
    names = defaultdict(dict)  # layer -> weight -> name of the tensor
    for match in matches:
        if int(match["i"]) not in last:
            names[int(match["i"])][match["weight"]] = match[0]

    require(scored, f"{part.model_type}: by its config.json no layer has queries and keys of its own")
    told = f"{part.model_type}: {len(scored)} attention layers in config.json"
    weights = weights_of(row, part.config)
    for i in scored:
        for weight in weights:
            require(weight in names[i], f"{told}, {weight} of layer {i} missing")
    # Some of the weights may be in other layers too: those of Kimi Linear without a softmax have a q_proj.
    whole = [i for i in names if len(names[i]) == len(weights)]
    prefixes = {match["prefix"] for match in matches}
    require(len(whole) == len(scored) and len(prefixes) == 1,
            f"{told}, {len(whole)} found under {' and '.join(sorted(prefixes))!r}")

    layers = []
    for i in scored:
        of_layer = sizes_of_layer(sizes, part.config, i)
        layers.append(Layer(i, tuple(names[i][weight] for weight in weights), part.model_type, row.form, of_layer,
                            part.config))
    unscored = {*range(n_layer), *last} - {*scored}
    numbers = {name: re.search(rf"(^|\.)layers\.({NUMBER})\.", name) for name in part.names}
    return tuple(layers), {name for name, number in numbers.items() if number and int(number[2]) in unscored}


def is_causal(row: Row, config: dict) -> bool | None:
    """Whether no token sees a later one. None: it is not known, as in a decoder that learnt to see both sides."""
    if row.causal is False and not row.stack:  # BERT as a decoder, XLM
        return pick(config, "is_decoder", bool, False) or pick(config, "causal", bool, False)
    both_sides = config.get("use_bidirectional_attention")  # Gemma 4: "all", or "vision", which is of images only
    if row.causal and (both_sides in (True, "all") or not pick(config, "is_causal", bool, True)):
        return None  # it was first trained as a causal model, and then not
    return row.causal
