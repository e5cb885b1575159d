"""init.py: what each start does to every head, and what it leaves alone. pytest tests/test_init.py"""

import pytest
import torch

import init
from analyze import symmetry, wqk
from data.export import to_bert, to_hf
from model import ModelConfig, Transformer

L, C, H = 3, 64, 4
D = C // H


def start(kind, **kwargs):
    """q, k and v of L layers with this start; the same seed, and so the same draws below it, every time."""
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.ModuleDict({part: torch.nn.Linear(C, C) for part in "qkv"}) for _ in range(L))
    for layer in layers:
        for linear in layer.values():
            torch.nn.init.normal_(linear.weight, std=0.02)
        if kind != "as drawn":
            init.apply_to_layer_(layer.q, layer.k, layer.v, H, kind, generator=generator, **kwargs)
    return layers


def head_matrices(layers):
    """W_qk of every head by its definition, one product per head: (L, H, C, C)."""
    heads = []
    for layer in layers:
        heads += [wqk(layer.q.weight[rows].T, layer.k.weight[rows].T) for rows in torch.arange(C).split(D)]
    return torch.stack(heads).detach().unflatten(0, (L, H))


def head_norms(weight):
    """|W| of every head, (H,)."""
    return weight.detach().unflatten(0, (H, D)).norm(dim=(1, 2))


@pytest.mark.parametrize("kind, expected, tolerance, signs", [
    ("symmetric", 1.0, 1e-6, {1}), ("negative", 1.0, 1e-6, {-1}), ("indefinite", 1.0, 1e-6, {1, -1}),
    ("skew", -1.0, 1e-6, {0}), ("random", 0.0, 0.1, {1, -1})])
def test_every_head_and_layer_has_the_symmetry_and_signs_of_its_start(kind, expected, tolerance, signs):
    """Signs of the eigenvalues of the symmetric part."""
    heads = head_matrices(start(kind))  # (L, H, C, C)
    assert (symmetry(heads) - expected).abs().max() < tolerance
    assert (symmetry(heads.sum(1)) - expected).abs().max() < tolerance
    for m in heads.flatten(0, 1):
        eigenvalues = torch.linalg.eigvalsh((m + m.T) / 2)
        signs_found = eigenvalues[eigenvalues.abs() > 1e-6].sign().int().tolist()
        assert set(signs_found or [0]) == signs


def test_every_tilted_head_has_symmetry_0_their_sum_a_little_more_and_a_token_likes_what_it_likes_in_symmetric():
    """The symmetric parts of two heads overlap, tr(P_1 P_2) > 0, and their skew parts do not: (H - 1) / (3 H + 1)."""
    tilted, symmetric = head_matrices(start("tilted")), head_matrices(start("symmetric"))  # (L, H, C, C)
    assert symmetry(tilted).abs().max() < 1e-5
    assert symmetry(tilted.sum(1)).mean().item() == pytest.approx((H - 1) / (3 * H + 1), rel=0.1)
    torch.testing.assert_close((tilted + tilted.mT) / 2, symmetric)  # so x^T W_qk x is the same for every x


@pytest.mark.bert_block
def test_linear_is_the_standard_deviation_of_a_new_linear_layer_whatever_the_others_have():
    torchs = torch.nn.Linear(128, 4096).weight.std().item()
    model = Transformer(ModelConfig(50, 8, 1, 2, 128, positions="untied", init_std=0.3))
    init.apply_(model, "random", "linear", "linear")
    for name, p in model.blocks[0].attn.named_parameters():
        if p.ndim > 1:
            assert p.std().item() == pytest.approx(0.3 if name == "proj.weight" else torchs, rel=0.02), name
    init.apply_(model, "symmetric")  # whose scale stays as it is: init_std, by its default
    assert model.blocks[0].attn.q.weight.std().item() == pytest.approx(torchs, rel=0.02)


@pytest.mark.parametrize("stds, of_qk, of_v", [({}, 1, 1), (dict(qk_std=0.07, v_std=0.04), 3.5, 2)])
@pytest.mark.parametrize("kind", ["random", "symmetric", "tilted", "indefinite", "negative", "skew"])
def test_a_start_scales_as_asked_and_changes_keys_alone_to_the_norm_of_their_queries(kind, stds, of_qk, of_v):
    for drawn, layer in zip(start("as drawn"), start(kind, **stds)):  # with a standard deviation of 0.02
        q, k = layer.q.weight, layer.k.weight
        torch.testing.assert_close(q, of_qk * drawn.q.weight)
        torch.testing.assert_close(layer.v.weight, of_v * drawn.v.weight)
        assert all(torch.equal(layer[part].bias, drawn[part].bias) for part in "qkv")
        if kind == "random":
            torch.testing.assert_close(k, of_qk * drawn.k.weight)
        # In every head. The keys of tilted have W_q, and a part at right angles to it of sqrt(1 + D / C) |W_q|.
        factor = (2 + D / C) ** 0.5 if kind == "tilted" else 1
        rtol = 0.1 if kind in ("random", "tilted") else 1e-5
        torch.testing.assert_close(head_norms(k), factor * head_norms(q), rtol=rtol, atol=0)
        assert q.data_ptr() != k.data_ptr()  # they may part in training


@pytest.mark.parametrize("kind", ["indefinite", "skew", "tilted"])
def test_every_head_and_layer_draws_apart_the_same_for_a_seed_and_otherwise_for_another(kind):
    w = torch.randn(C, D).expand(H, C, D)  # the same below every head

    def keys(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.cat([init.STARTS[kind](w, w, generator)[1] for _ in range(L)])  # (L H, C, D)

    assert len(keys(1).unique(dim=0)) == L * H
    assert torch.equal(keys(1), keys(1)) and not torch.equal(keys(1), keys(2))


@pytest.mark.bert_block
def test_one_matrix_for_q_and_k_and_one_attention_for_all_layers_are_scaled_once():
    model = Transformer(ModelConfig(50, 8, L, H, C))
    attn = model.blocks[0].attn
    attn.k = attn.q
    for block in model.blocks:
        block.attn = attn
    init.apply_(model, qk_std=0.1)
    assert attn.q.weight.std().item() == pytest.approx(0.1, rel=0.06)
    for tied in model, Transformer(ModelConfig(50, 8, L, H, C, tie="mirror")):
        with pytest.raises(ValueError, match="k has no weights of its own, or fewer than q, so init = 'symmetric'"):
            init.apply_(tied, "symmetric")


@pytest.mark.bert_block
def test_a_bert_of_transformers_gets_the_start_that_our_model_with_its_weights_gets():
    ours = Transformer(ModelConfig(vocab_size=50, block_size=8, n_layer=L, n_head=H, n_embd=C))
    bert, generator = to_bert(ours), torch.Generator().manual_seed(3)
    for layer in bert.bert.encoder.layer:
        attn = layer.attention.self
        init.apply_to_layer_(attn.query, attn.key, attn.value, attn.num_attention_heads, "tilted", 0.05, 0.1, generator)
    init.apply_(ours, "tilted", 0.05, 0.1, seed=3)
    theirs = bert.state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in to_hf(ours)[1].items())
