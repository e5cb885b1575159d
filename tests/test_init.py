"""init.py: what each start does to every head, and what it leaves alone. pytest tests/test_init.py"""

import pytest
import torch

import init
from analyze import symmetry, wqk
from model import ModelConfig, Transformer

C, H = 64, 4
KINDS = ["random", "symmetric", "negative", "indefinite", "skew"]


def start(kind, **kwargs):
    torch.manual_seed(5)
    model = Transformer(ModelConfig(vocab_size=50, block_size=8, n_layer=3, n_head=H, n_embd=C))
    init.apply_(model, kind, **kwargs)
    return model


def head_matrices(model):
    """W_qk of every head by its definition, one product per head: (L, H, C, C)."""
    return torch.stack([torch.stack([wqk(b.attn.q.weight[rows].T, b.attn.k.weight[rows].T)
                                     for rows in torch.arange(C).split(C // H)]) for b in model.blocks]).detach()


@pytest.mark.parametrize("kind, expected, tolerance", [
    ("symmetric", 1.0, 1e-6), ("negative", 1.0, 1e-6), ("indefinite", 1.0, 1e-6), ("skew", -1.0, 1e-6),
    ("random", 0.0, 0.1)])
def test_every_head_and_layer_has_the_symmetry_of_its_start(kind, expected, tolerance):
    m = head_matrices(start(kind))
    assert (symmetry(m) - expected).abs().max() < tolerance
    assert (symmetry(m.sum(1)) - expected).abs().max() < tolerance


@pytest.mark.parametrize("kind", KINDS[1:])
def test_matrices_equal_plus_or_minus_their_transpose(kind):
    m = head_matrices(start(kind))
    torch.testing.assert_close(m.mT, -m if kind == "skew" else m, atol=1e-7, rtol=0)


@pytest.mark.parametrize("kind, signs", [("symmetric", {1}), ("negative", {-1}), ("indefinite", {1, -1})])
def test_the_symmetric_starts_differ_in_the_signs_of_their_eigenvalues(kind, signs):
    for m in head_matrices(start(kind)).flatten(0, 1):
        eigenvalues = torch.linalg.eigvalsh(m)
        assert set(eigenvalues[eigenvalues.abs() > 1e-6].sign().int().tolist()) == signs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qk_std, v_std", [(0.02, 0.02), ((3 * C) ** -0.5, 0.02), (0.02, (3 * C) ** -0.5)])
def test_scale_is_what_was_asked_for_in_every_start(kind, qk_std, v_std):
    for block in start(kind, qk_std=qk_std, v_std=v_std).blocks:
        for linear, std in (block.attn.q, qk_std), (block.attn.k, qk_std), (block.attn.v, v_std):
            assert linear.weight.std().item() == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_keys_have_the_norm_of_their_queries_head_by_head(kind):
    for block in start(kind).blocks:
        q, k = (w.weight.unflatten(0, (H, -1)).norm(dim=(1, 2)) for w in (block.attn.q, block.attn.k))
        torch.testing.assert_close(q, k)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_only_the_weights_of_k_differ_from_the_random_start(kind):
    random, other = start("random").state_dict(), start(kind).state_dict()
    changed = {name for name in random if not torch.equal(random[name], other[name])}
    assert changed == {f"blocks.{i}.attn.k.weight" for i in range(3)}


def test_scale_changes_the_size_of_q_k_and_v_and_not_their_directions():
    plain, scaled = start("random").state_dict(), start("random", qk_std=0.06, v_std=0.01).state_dict()
    for name, x in plain.items():
        factor = 3.0 if ".q.weight" in name or ".k.weight" in name else 0.5 if ".v.weight" in name else 1.0
        torch.testing.assert_close(scaled[name], x * factor)


def test_q_and_k_are_two_parameters_that_part_in_training():
    model = start("symmetric")
    idx = torch.randint(50, (2, 8))
    model(idx, idx).backward()
    attn = model.blocks[0].attn
    assert attn.q.weight.data_ptr() != attn.k.weight.data_ptr()
    assert not torch.allclose(attn.q.weight.grad, attn.k.weight.grad)


def test_the_same_seed_gives_the_same_start_and_another_seed_another():
    a, b, c = (start("skew", seed=s).state_dict()["blocks.1.attn.k.weight"] for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_an_unknown_start_is_refused():
    with pytest.raises(ValueError, match="symetric"):
        start("symetric")


@pytest.mark.parametrize("n_embd, n_head, std", [(64, 2, 0.02), (256, 4, 0.02), (256, 4, (3 * 256) ** -0.5)])
def test_attention_starts_as_sharp_as_the_scale_says_and_on_the_token_itself_where_w_k_is_w_q(n_embd, n_head, std):
    """Logits deviate by C std^2, or a little more where W_k = W_q; there a token and itself have sqrt(D) times it."""
    x = torch.nn.functional.layer_norm(torch.randn(128, n_embd, generator=torch.Generator().manual_seed(0)), (n_embd,))
    for kind, itself, spread in ("random", 0, 1), ("symmetric", (n_embd / n_head) ** 0.5, (1 + 1 / n_head) ** 0.5):
        torch.manual_seed(5)
        model = Transformer(ModelConfig(vocab_size=50, block_size=8, n_layer=1, n_head=n_head, n_embd=n_embd))
        init.apply_(model, kind, qk_std=std)
        attn = model.blocks[0].attn
        q, k = (f(x).unflatten(-1, (n_head, -1)).transpose(0, 1) for f in (attn.q, attn.k))
        logits = (q @ k.mT / (n_embd / n_head) ** 0.5 / (n_embd * std**2)).detach()  # (H, T, T), in units of C std^2
        assert logits[:, ~torch.eye(128, dtype=bool)].std().item() == pytest.approx(spread, rel=0.1)
        assert logits.diagonal(dim1=1, dim2=2).mean().item() == pytest.approx(itself, rel=0.1, abs=0.5)
