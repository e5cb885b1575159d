"""
data/pretrained/layouts.py against transformers: for a tiny random model of every family (tests/tiny_models.py), saved
and read back, W_q and W_k of find_stacks must give the products of queries and keys that the model's own attention
computes from basis vectors.

    python -m pytest tests/test_layouts.py -k MODEL_TYPE
"""

import re
from collections import defaultdict

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from data.pretrained.architectures import NO_SOFTMAX, TABLE
from data.pretrained.layouts import find_stacks
from data.pretrained.checkpoint import open_checkpoint
from tests.tiny_models import (CASES, NOT_RUN, build, configuration_auto, inputs, saved, shapes, small_config,
                               transformers)
from tests.toy import layers_of

aten = torch.ops.aten
# Attention that is no layer of a stack.
NOT_SELF = re.compile(r"cross|encoder_attn|EncDec|head\.attention|(^|\.)head$|resampler|mask_decoder|pixel_level|"
                      r"^mit\.|vit_merger|vqmodel")
# Outside of W_qk: replaced by the identity.
NORMS = re.compile(r"(q|k|kv|query|key)_([ab]_)?(layer)?norm$|attn\.pre_norm$")

# ---- the model's own attention ------------------------------------------------------------------------------------

# What an attention module is told of positions.
POSITIONS = {"position_embeddings", "freqs_ci"}


def at_position_0(value):
    """The same as at position 0 for all: RoPE turns nothing, nothing is added."""
    if isinstance(value, (tuple, list)):
        return torch.ones_like(value[0]), torch.zeros_like(value[1])  # cos, sin
    return torch.ones_like(value) if value.is_complex() else torch.zeros_like(value)


class Probe(TorchDispatchMode):
    """Gives basis vectors to every self-attention module of a model and keeps what it multiplies."""

    def __init__(self, model):
        super().__init__()
        self.names = attention_modules(model)
        self.heads = defaultdict(list)  # name -> pairs q, k (H, C, D) of all basis vectors, less those of 0: the biases
        self.causal = {}  # name -> position 0 does without position 1; found in a second run, with basis = False
        self.basis = True
        self.module = None  # the one that runs
        for module in self.names:
            module.register_forward_pre_hook(self.enter, with_kwargs=True)
            module.register_forward_hook(self.leave, with_kwargs=True)

    def enter(self, module, args, kwargs):
        """0, e_1, ..., e_C, 0, ... instead of the hidden states, all at position 0."""
        if not self.basis:
            return None
        hidden = hidden_states(args, kwargs)
        self.module = module
        self.width = hidden.shape[-1]  # C
        self.rows = hidden.numel() // self.width  # B T
        assert self.rows > self.width, f"{self.names[module]}: fewer positions than basis vectors"
        rows = torch.cat([torch.zeros(1, self.width), torch.eye(self.rows - 1, self.width)])
        kwargs = dict(kwargs)
        for key in POSITIONS & kwargs.keys():
            if kwargs[key] is not None:
                kwargs[key] = at_position_0(kwargs[key])
        return with_hidden_states(args, kwargs, rows.view(hidden.shape))

    def leave(self, module, args, kwargs, out):
        self.module = None
        if self.basis:
            return
        changed = hidden_states(args, kwargs).clone()
        axis = -2 if changed.shape[-2] > 1 else 0  # in Mask2Former they are (T, B, C), and B = 1
        changed.select(axis, 1).add_(1)
        no_cache = {key: None for key in ("cache", "past_key_values") if key in kwargs}
        args, kwargs = with_hidden_states(args, kwargs | no_cache, changed)
        before, after = first(out).select(axis, 0), first(module.forward(*args, **kwargs)).select(axis, 0)
        self.causal[self.names[module]] = torch.equal(before, after)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = self.names.get(self.module)
        if name and self.basis and func in PRODUCTS:
            place = PRODUCTS[func]
            self.keep(name, args[place], args[place + 1].mT)
        return func(*args, **(kwargs or {}))

    def keep(self, name, q, k):
        """q, k (B H, T, D), or the factors of another product, such as a projection."""
        batch = self.rows // q.shape[1]
        if k.shape != q.shape or batch * q.shape[1] != self.rows or q.shape[0] % batch:
            return
        rows = [x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(0, 1) for x in (q, k)]  # (B T, H, D)
        self.heads[name].append([(x[1 : self.width + 1] - x[0]).transpose(0, 1) for x in rows])  # (H, C, D)


PRODUCTS = {aten.bmm.default: 0, aten.baddbmm.default: 1}  # and which argument the first factor is


def attention_modules(model):
    """-> module: name, of the self-attention modules that have queries and keys of their own."""
    modules = {name: module for name, module in model.named_modules()
               if re.search("Attention|MLA$", type(module).__name__)}
    found = {}
    for name, module in modules.items():
        has_weights = next(module.parameters(), None) is not None
        wraps_another = any(other.startswith(name + ".") for other in modules)
        is_other = NOT_SELF.search(name) or re.search("(?<!Kimi)Linear|Lightning|Delta", type(module).__name__)
        takes_keys = getattr(module, "is_kv_shared_layer", False)
        if has_weights and not (wraps_another or is_other or takes_keys):
            found[module] = name
    return found


def hidden_states(args, kwargs):
    return kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]


def with_hidden_states(args, kwargs, new):
    """The arguments with new hidden states; also where they are given several times, as in MobileBERT."""
    old = hidden_states(args, kwargs)
    args = tuple(new if arg is old else arg for arg in args)
    return args, {name: new if arg is old else arg for name, arg in kwargs.items()}


def first(out):
    return out if torch.is_tensor(out) else first(out[0])


def wqk_of_heads(w_q, w_k):
    """w_q (H, C, D), w_k (Hkv, C, D) -> (H, C, C)."""
    return w_q @ w_k.repeat_interleave(len(w_q) // len(w_k), 0).mT


def agree(q, k, w_q, w_k):
    """Whether q_h(e_i) . k_h(e_j) is (W_q,h W_k,g^T)_ij in every head, up to the one scale of the attention."""
    if q.shape != w_q.shape:
        return False
    found, expected = q @ k.mT, wqk_of_heads(w_q, w_k)  # (H, C, C)
    scale = (found * expected).sum() / expected.square().sum()
    return scale > 0 and torch.allclose(found, scale * expected, rtol=0, atol=1e-5 * found.abs().max())


def run(model, attention, reads, n, t):
    """Run a model, or those parts of it that have the attention modules: the innermost whose inputs are known."""
    if callable(reads):
        reads(model, n, t)
        return
    parts = {path: module for path, module in model.named_modules()
             if isinstance(module, transformers.PreTrainedModel) and inputs(module, reads, n, t)}
    around = {name: [path for path in parts if not path or name.startswith(path + ".")] for name in attention}
    for path in {max(paths, key=len) for paths in around.values()}:
        parts[path](**inputs(parts[path], reads, n, t))


@pytest.mark.parametrize("kind, config, reads, name", CASES)
def test_heads_are_those_of_the_models_own_attention(kind, config, reads, name, tmp_path):
    model = build(kind, config, name)
    config, tensors = saved(model, tmp_path)
    found, _ = find_stacks(config, shapes(tensors))
    layers = {(layer.stack, layer.index): layer.heads(tensors) for layer in found}
    for path in [path for path, _ in model.named_modules() if NORMS.search(path)]:
        model.set_submodule(path, torch.nn.Identity())
    probe = Probe(model)
    require_same(found, tensors, find_stacks(on_the_hub(config), shapes(tensors))[0], tensors)
    if kind in OTHERS:
        require_same(found, tensors, *with_other_names(kind, config, tensors))
    in_memory = open_checkpoint(model)
    loaded = {name: info.read() for name, info in in_memory.tensors.items()}
    require_same(found, tensors, layers_of(in_memory), loaded)
    if kind in NOT_RUN:
        assert len(layers) == len(probe.names)
        return
    with torch.no_grad(), probe:
        run(model, probe.names.values(), reads, 70, 1)
        probe.basis = False
        run(model, probe.names.values(), reads, 2, 4)
    matches = {}  # name of the module -> the layers that are it
    for module, pairs in probe.heads.items():
        matches[module] = [key for key, weights in layers.items() if any(agree(*pair, *weights) for pair in pairs)]
    assert matches.keys() == {*probe.names.values()}
    assert sorted(key for keys in matches.values() for key in keys) == sorted(layers)
    causal = {layer.stack: layer.causal for layer in found}
    for module, [(stack, index)] in matches.items():
        assert str(index) in module.split(".")
        assert causal[stack] == (None if (kind, stack) == ("paligemma", "text") else probe.causal[module])


OTHER_KEYS = "hidden_size num_hidden_layers num_attention_heads attention_head_dim n_embed".split()


def on_the_hub(config):
    """A config as older files have it: without what transformers 5 works out, and with the other names of its keys."""
    if not isinstance(config, dict):
        return config
    kind = config.get("model_type")
    known = configuration_auto.CONFIG_MAPPING[kind] if kind in configuration_auto.CONFIG_MAPPING else None
    others = {name: other for other, name in getattr(known, "attribute_map", {}).items()
              if other in OTHER_KEYS and not name.startswith(("encoder", "decoder"))}
    kinds = {"layer_types", "layers_block_type"}
    is_told = "gemma" in str(kind) or any(NO_SOFTMAX.intersection(config.get(key) or []) for key in kinds)
    worked_out = set() if is_told else kinds
    return {others.get(key, key): on_the_hub(value) for key, value in config.items() if key not in worked_out}


def require_same(found, tensors, also, others):
    """The same layers, and the same W_qk in each head, whose rows some files hold in another order."""
    assert [layer[:3] for layer in found] == [layer[:3] for layer in also]  # stack, causal and index
    for one, two in zip(found, also):
        torch.testing.assert_close(wqk_of_heads(*one.heads(tensors)), wqk_of_heads(*two.heads(others)))


OTHERS = {  # model_type -> another one, or an older file, and what is called otherwise there: pattern, replacement
    "gpt2": ("gpt2", r"^transformer\.", ""),
    "vit_mae": ("vit_mae", r"decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
    "llava_next": ("llava_next", r"^language_model\.model\.", "model.language_model."),
    "deepseek_v3": ("kimi_k2", "", ""), "gte": ("new", r"^gte\.", "new."), "eurobert": ("sl_model", "", ""),
    "exaone4": ("exaone4_5_text", "", ""),
}


def with_other_names(kind, config, tensors):
    other, pattern, replacement = OTHERS[kind]
    others = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    assert others.keys() != tensors.keys() or other != kind
    also, _ = find_stacks(config | {"model_type": other}, shapes(others))
    if other == "sl_model":  # it is not told whether it has a mask
        also = [layer._replace(causal=False) for layer in also]
    return also, others


def model_types(config):
    """Every model_type in a config, at any depth."""
    if not isinstance(config, dict):
        return set()
    return {config.get("model_type")}.union(*map(model_types, config.values()))


def test_every_model_type_of_the_table_is_proven():
    # Some share the config of git and so on; some are other names of a T5Gemma's sides; some are in test_checkpoint.py.
    proven = {"git_text", "cohere_asr_text", "idefics_text", "t5gemma_encoder", "t5gemma_decoder", "nanogpt",
              "train.py-checkpoint"}
    proven |= {kind for kind, *_ in OTHERS.values()}
    for kind, config, *_ in (param.values for param in CASES):
        proven |= {kind, *model_types(small_config(kind, config).to_dict())}
    for *_, config in FUSED:
        proven |= model_types(config)
    # Not built here: they hold q and k in two Linear layers, or they are made of proven parts.
    others = {kind: TABLE[kind][0].form for kind in TABLE.keys() - proven}
    assert set(others.values()) <= {"separate", "shared", "parts"}
    assert others.keys() == {"mobilellm", "Dream", "llada", "minicpm", "gemma3n", "fast_vlm", "perception_lm"}


@pytest.mark.parametrize("kind", [kind for kind, rows in TABLE.items() if rows[0].n_layer])
def test_usual_sizes_are_those_of_the_class(kind):
    config = configuration_auto.CONFIG_MAPPING[kind]()
    sizes = config.to_dict()
    n_head = sizes.get("num_heads") or config.num_attention_heads
    row = TABLE[kind][0]
    assert (row.n_layer, row.n_head) == (config.num_hidden_layers, n_head)
    assert (row.n_shared or 0) == sizes.get("num_kv_shared_layers", 0)
    width = config.hidden_size // n_head
    assert (row.head_dim or width) == (sizes.get("d_kv") or sizes.get("head_dim") or width)


# ---- code that is not in transformers -----------------------------------------------------------------------------


def halved(qk, n_head, n_kv_head):
    """LTG-BERT: (T, [H D, H D])."""
    return [half.unflatten(-1, (n_head, -1)) for half in qk.chunk(2, -1)]


def in_sizes(qkv, n_head, n_kv_head):
    """nanoGPT, Qwen, ChatGLM, OLMo's own code, Ling and more: (T, [H D, Hkv D, Hkv D])."""
    heads = qkv.unflatten(-1, (n_head + 2 * n_kv_head, -1))
    q, k, _ = heads.split([n_head, n_kv_head, n_kv_head], 1)
    return q, k


def rearranged(qkv, n_head, n_kv_head):
    """InternLM 2: (T, Hkv, [a group of queries, key, value], D). NeoBERT, ChatGLM: the same with groups of one."""
    group = n_head // n_kv_head
    heads = qkv.view(len(qkv), n_kv_head, 2 + group, -1)
    return heads[..., :group, :].flatten(1, 2), heads[..., -2, :]


CHATGLM = "encoder.layers.0.self_attention.query_key_value.weight"
MOONVIT = dict(model_type="moonvit", num_hidden_layers=1, num_attention_heads=8)
FUSED = [  # the weight of layer 0, its projection as in that code, the number of key heads, and the config
    ("transformer_encoder.0.qkv.weight", rearranged, 8, dict(model_type="neobert")),
    ("transformer.layers.0.attention.in_proj_qk.weight", halved, 4, dict(model_type="ltgbert")),
    ("layer.0.attention.self.qkv_linear.weight", in_sizes, 8, dict(model_type="layoutlmv2")),  # needs detectron2
    ("h.0.attn.c_attn.weight", in_sizes, 8, dict(model_type="qwen")),
    ("layers.0.self_attn.W_pack.weight", in_sizes, 8, dict(model_type="baichuan")),
    ("layers.0.attention.wqkv.weight", rearranged, 4, dict(model_type="internlm2", num_key_value_heads=4)),
    (CHATGLM, in_sizes, 2, dict(model_type="chatglm", multi_query_attention=True, multi_query_group_num=2)),
    (CHATGLM, rearranged, 8, dict(model_type="chatglm", multi_query_attention=False, multi_query_group_num=2)),
    ("blocks.0.att_proj.weight", in_sizes, 2, dict(model_type="hf_olmo", n_kv_heads=2)),
    ("layers.0.attention.query_key_value.weight", in_sizes, 2, dict(model_type="bailing_moe", num_key_value_heads=2)),
    ("vision_tower.blocks.0.wqkv.weight", in_sizes, 8, dict(
        model_type="kimi_vl", text_config={}, vision_config=MOONVIT)),
]


@pytest.mark.parametrize("name, project, n_kv_head, config", FUSED)
def test_a_fused_weight_is_cut_as_a_models_own_code_cuts_it(name, project, n_kv_head, config):
    weight = torch.randn(4 * (8 + 2 * n_kv_head), 32)
    q, k = project(weight.T, 8, n_kv_head)  # x = 1: basis vectors; (C, H, D), (C, Hkv, D)
    [layer], _ = find_stacks(dict(num_hidden_layers=1, num_attention_heads=8) | config, {name: weight.shape})
    w_q, w_k = layer.heads({name: weight})
    assert torch.equal(w_q, q.transpose(0, 1)) and torch.equal(w_k, k.transpose(0, 1))
