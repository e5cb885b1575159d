"""score_layers: what calls itself nn.Linear, matrices of all shapes and types. pytest tests/test_own_layers.py"""

import functools
import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from transformers import AutoModel, LlamaConfig

import analyze
from analyze import score_layers
from tests.toy import model_folder

C = 16
MERGED = re.escape("give matrices, .weight.T of the merged model")


def pair(**kwargs):
    return nn.Linear(C, C, **kwargs), nn.Linear(C, C, **kwargs)


def symmetry_of(w_q, w_k):
    """By the definition, in float64, from W_q and W_k (C, r)."""
    m = w_q.detach().double() @ w_k.detach().double().T
    return ((m * m.T).sum() / m.square().sum()).item()


def scored(layers, heads=(1, 1)):
    return score_layers(layers, heads).table.symmetry.tolist()


# ---- what calls itself nn.Linear ---------------------------------------------------------------------------------


class CastedLinear(nn.Linear):
    """As nanochat and modded-nanogpt have one."""


def lora(linear):
    """kohya's: the forward of the instance is another."""
    plain, down, up = linear.forward, nn.Linear(C, 2), nn.Linear(2, C)
    linear.forward = lambda x: plain(x) + up(down(x))


CHANGES = {
    "kohya's LoRA": lora, "weight_norm": weight_norm, "spectral_norm": spectral_norm,
    "pruned": lambda linear: prune.l1_unstructured(linear, "weight", 0.5),
    "quantized, as compressed-tensors": lambda linear: linear.register_parameter("scale", nn.Parameter(torch.ones(C))),
    "the forward of another": lambda linear: setattr(linear, "forward", nn.Linear(C, C).forward),
    "a hook on its output": lambda linear: linear.register_forward_hook(lambda _, inputs, y: y + inputs[0]),
    "a hook before it": lambda linear: linear.register_forward_pre_hook(lambda module, _: module.weight.data.mul_(2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_linear_that_multiplies_by_more_than_its_weight_is_refused(change):
    q, k = pair()
    change(q)
    for layer in (q, k), (k, q):
        with pytest.raises(ValueError, match=f"^layer 1: this Linear .*{MERGED}$"):
            score_layers([pair(), layer])


@pytest.mark.parametrize("module, name", [
    (CastedLinear(C, C), "CastedLinear"), (torch.compile(nn.Linear(C, C)), "OptimizedModule"),
    (nn.utils.parametrizations.orthogonal(nn.Linear(C, C)), "ParametrizedLinear"), (nn.Embedding(C, C), "Embedding")])
def test_a_module_that_is_no_plain_linear_is_refused_with_what_to_give(module, name):
    with pytest.raises(ValueError, match=f"layer 0: this {name} .*{MERGED}"):
        score_layers([(module, module)])
    w = module.weight.T
    assert scored([(w, w.detach().numpy())]) == pytest.approx([symmetry_of(w, w)])


def with_hook_of_accelerate(linear):
    """As accelerate.hooks.add_hook_to_module leaves it."""
    linear._hf_hook, linear._old_forward = object(), linear.forward
    forward = functools.partial(lambda module, *args: module._old_forward(*args), linear)
    linear.forward = functools.update_wrapper(forward, linear._old_forward)


def test_a_plain_linear_is_scored_tied_or_compiled_or_with_a_hook_of_accelerate():
    q, k = pair(bias=False)
    expected = [symmetry_of(q.weight.T, k.weight.T)]
    assert scored([(k, k)]) == [pytest.approx(symmetry_of(k.weight.T, k.weight.T))]
    compiled = torch.compile(nn.Sequential(q, k))
    q.register_full_backward_hook(lambda *_: None)
    assert scored([(compiled.get_submodule("0"), compiled.get_submodule("1"))]) == pytest.approx(expected)
    with_hook_of_accelerate(q)
    assert scored([(q, k)]) == pytest.approx(expected)
    del q._hf_hook
    q.forward = q._old_forward  # as remove_hook_from_module leaves it
    assert scored([(q, k)]) == pytest.approx(expected)
    lora(k)
    with_hook_of_accelerate(k)
    with pytest.raises(ValueError, match=MERGED):
        score_layers([(q, k)])


# ---- matrices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_numbers_that_are_no_weights_before_they_are_multiplied_by_scales_are_refused(dtype):
    w = (10 * torch.randn(C, C)).to(dtype)
    for layer in (w, torch.randn(C, C)), (torch.randn(C, C), w):
        with pytest.raises(ValueError, match=f"layer 0: .*{dtype}: use a checkpoint in F64, .*multiply the weights by"):
            score_layers([layer])
        with pytest.raises(ValueError, match=f"^W_q is .*{dtype}.*: multiply quantized weights by their scales"):
            analyze.scores(*layer)
    for score in analyze.symmetry, analyze.directionality, analyze.directionality_eq17:
        with pytest.raises((ValueError, RuntimeError, NotImplementedError), match="point|not implemented"):
            score(w)
    linear = nn.Linear(C, C)
    linear.weight = nn.Parameter(w, requires_grad=False)
    with pytest.raises(ValueError, match=f"layer 0: .*{dtype}"):
        score_layers([(linear, linear)])


def test_tensors_without_numbers_are_refused_in_one_line(tmp_path):
    with pytest.raises(analyze.CheckpointError, match="layer 0: W_qk of this layer is zero"):
        score_layers([(torch.zeros(C, C), torch.ones(C, C))])
    with pytest.raises(ValueError, match="layer 0: .*is on the meta device: load the model without offloading it"):
        score_layers([pair(device="meta")])
    config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    with pytest.raises(analyze.CheckpointError, match="layers.0.self_attn.q_proj.weight.* is on the meta device"):
        analyze.score_model(model)


H, D = 4, 3
HEADS = torch.randn(2, H, C, D)  # W_Q and W_K of TransformerLens and ARENA
FITS = [[w.movedim(0, 1).flatten(1) for w in HEADS]]


@pytest.mark.parametrize("heads", [(1, 1), (H, H)])
def test_heads_in_three_dimensions_are_refused_with_the_line_that_makes_them_fit(heads):
    for w_q, w_k in HEADS, HEADS.numpy(), HEADS.movedim(1, 2):  # the last is Flax: (C, H, D)
        with pytest.raises(ValueError, match=r"layer 0: .*\(\d+, \d+, 3\).*\.movedim\(0, 1\)\.flatten\(1\).*Flax"):
            score_layers([(w_q, w_k)], heads)
    m = sum(q @ k.T for q, k in zip(*HEADS))
    assert scored(FITS, heads) == pytest.approx([analyze.symmetry(m).item()], abs=1e-6)


def test_heads_that_are_no_pair_and_lists_in_place_of_pairs_are_refused_with_what_was_given():
    for heads in (4, 2, 16), 4, (5, 5), (4, 3), (0, 0), ():
        with pytest.raises(ValueError, match=r"layer 0: expected W_q and W_k of \(C, H D\).*heads = \(H, Hkv\), got "
                           rf"\(16, 12\), \(16, 12\) and heads = {re.escape(str(heads))}"):
            score_layers(FITS, heads)
    [(w_q, w_k)] = FITS
    few = w_q, w_k[:, :6]  # two key heads
    for pair, heads in (few, (1, 1)), (few, (4, 1)), (few, (6, 2)), ((w_q, w_k, w_q), (1, 1)):
        with pytest.raises(ValueError, match="layer 0: expected W_q and W_k"):
            score_layers([pair], heads)
    queries, keys = list(torch.randn(3, C, 8)), list(torch.randn(3, C, 4))
    for n in 1, 2, 3:
        with pytest.raises(ValueError, match=r"layer 0: expected W_q and W_k .*zip\(queries, keys\)"):
            score_layers([queries[:n], keys[:n]], heads=(2, 1))
        assert len(score_layers(zip(queries[:n], keys[:n]), heads=(2, 1)).table) == n
    for thing in "q", None, {}, object():
        with pytest.raises(ValueError, match="layer 0: "):
            score_layers([(thing, thing)])


PAGE = (Path(analyze.__file__).parent / "data/pretrained/README.md").read_text()
G = 2  # groups, each of H / G query heads, a key head and a value head
Q, K, V = torch.randn(H * D, C), torch.randn(H * D, C), torch.randn(H * D, C)  # (out, in)
FEW_K, FEW_V = K[: G * D], V[: G * D]
OF_HEADS = [w.unflatten(0, (H, D)) for w in (Q, K, V)]
OF_GROUPS = [Q.view(G, H // G * D, C), FEW_K.view(G, D, C), FEW_V.view(G, D, C)]
CUTS = {  # how a row of the page begins: the weight, its W_q and W_k before .T, and how they come out of the cut
    "`.view(B, T, 3, H, D)`": (torch.cat([Q, K, V]), Q, K),
    "`.view(B, T, H, 3 * D)`": (torch.cat(OF_HEADS, 1).flatten(0, 1), Q, K),
    "`.split([H * D": (torch.cat([Q, FEW_K, FEW_V]), Q, FEW_K),
    "`.view(B, T, G, q_per_kv + 2, D)`": (torch.cat(OF_GROUPS, 1).flatten(0, 1), Q, FEW_K),
    '`repeat(k, "b h n d': (Q.view(G, H // G, D, C).transpose(0, 1).flatten(0, 2), Q, None),
    "TransformerLens": (OF_HEADS[0].mT, Q.T, None),
    "Flax": (OF_HEADS[0].permute(2, 0, 1), Q.T, None),
    "GPT-2's Conv1D": (torch.cat([Q, K, V]).T, Q.T, K.T),
}


@pytest.mark.parametrize("begin, weight, q, k", [(begin, *tensors) for begin, tensors in CUTS.items()], ids=CUTS)
def test_the_page_cuts_a_weight_as_its_model_does(begin, weight, q, k):
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {begin}")]
    *assigned, last = re.findall("`([^`]*)`", row.rpartition(" | ")[2])
    names = dict(w=weight, H=H, Hkv=G, D=D, C=C, G=G, q_per_kv=H // G)
    if assigned:  # `g = w...`, then a cut for q and one for k
        exec(assigned[0], names)
        found = [eval(assigned[1], names), eval(last, names)]
    else:
        found = eval(last, names)
        found = [found, None] if k is None else found[:2]
    assert torch.equal(found[0], q)
    assert k is None or torch.equal(found[1], k)


def test_the_lines_for_transformerlens_run_on_a_model_of_its_shapes(tmp_path, monkeypatch):
    block = re.search(r"## TransformerLens.*?```python\n(.*?)```", PAGE, re.DOTALL)[1]
    w_q, w_k = torch.randn(2, 8, H, C, D, requires_grad=True)  # of eight layers
    model = types.SimpleNamespace(W_Q=w_q, W_K=w_k)
    weights = {f"h.{i}.attn.c_attn.weight": torch.randn(C, 3 * C) for i in range(8)}
    path = model_folder(tmp_path / "m", weights, dict(model_type="gpt2", n_layer=8, n_head=H, n_embd=C))
    hooked_transformer = types.SimpleNamespace(from_pretrained_no_processing=lambda _: model)
    names = dict(analyze=analyze, HookedTransformer=hooked_transformer)
    exec(block.replace('"gpt2", per_head', f"{str(path)!r}, per_head"), names)
    [of_table] = names["scored"].table.query("layer == 7 and head == 3").symmetry
    assert names["scored"].wqk(7, head=3).shape == (C, C) and isinstance(names["M"], np.ndarray)
    table = score_layers(names["pairs"], names["heads"], per_head=True).table
    [of_head] = table.query("layer == 7 and head == 3").symmetry
    assert of_head == pytest.approx(analyze.symmetry(torch.from_numpy(names["M"])).item(), abs=1e-5) != of_table


# ---- W_qk of a head ----------------------------------------------------------------------------------------------


def test_w_qk_of_a_layer_and_of_a_head_which_is_of_its_own_key_head(tmp_path):
    q, k = torch.randn(2, 6, D, C), torch.randn(2, 2, D, C)  # of two layers
    weights = {f"model.layers.{i}.self_attn.{name}_proj.weight": w[i].flatten(0, 1)
               for i in range(2) for name, w in (("q", q), ("k", k))}
    config = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=D)
    model = analyze.score_model(model_folder(tmp_path / "m", weights, config), per_head=True)
    for i in range(2):
        of_heads = [q[i, h].double().T @ k[i, h // 3].double() for h in range(6)]
        rows = model.table[(model.table.layer == i) & model.table["head"].notna()]
        assert list(rows.symmetry) == pytest.approx([analyze.symmetry(m).item() for m in of_heads], abs=1e-5)
        for h, expected in enumerate(of_heads):
            torch.testing.assert_close(model.wqk(layer=i, head=h), expected)
        torch.testing.assert_close(model.wqk(i), sum(of_heads))
    with pytest.raises(analyze.CheckpointError, match="no layer 3 of stack ''"):
        model.wqk(3)
    for head in -1, 6:
        with pytest.raises(analyze.CheckpointError, match=f"no head {head}: layer 0 has heads 0 to 5"):
            model.wqk(0, head=head)
