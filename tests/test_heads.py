"""What the symmetry of a layer is made of: heads that share or mirror, tied heads. pytest tests/test_heads.py"""

import dataclasses

import pytest
import torch

import analyze
from config import ConfigError, load
from data.export import to_bert
from analyze import parts_of_symmetry
from model import ModelConfig, Transformer
from tests.lives import checkpoint, run, scores

C, D = 12, 3


def split(a):
    """Returns the symmetric and the skew part of a matrix."""
    return (a + a.mT) / 2, (a - a.mT) / 2


def factors(*heads):
    """Returns W_q and W_k (H, C, C) of heads whose W_qk are these matrices (C, C)."""
    return torch.stack(heads), torch.eye(C, dtype=torch.float64).expand(len(heads), C, C)


@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_two_heads_that_are_transposes_of_each_other_mirror_and_two_equal_symmetric_ones_share(size):
    symmetric, skew = split(size * torch.randn(C, C, dtype=torch.float64))
    only_skew = parts_of_symmetry(*factors(symmetric + skew, symmetric - skew))
    energy = 4 * symmetric.norm() ** 2  # of their sum, 2 S
    expected = dict(own_heads=2 * (symmetric.norm() ** 2 - skew.norm() ** 2) / energy, shared=0.5,
                    mirror=2 * skew.norm() ** 2 / energy)
    assert only_skew == pytest.approx({name: float(part) for name, part in expected.items()})
    assert parts_of_symmetry(*factors(symmetric, symmetric)) == pytest.approx(dict(own_heads=0.5, shared=0.5, mirror=0))
    assert parts_of_symmetry(*factors(skew, skew)) == pytest.approx(dict(own_heads=-0.5, shared=0, mirror=-0.5))


def test_the_parts_of_grouped_keys_are_those_of_their_matrices_and_add_up_to_the_symmetry():
    w_q, w_k = torch.randn(6, C, D, dtype=torch.float64), torch.randn(2, C, D, dtype=torch.float64)
    found = parts_of_symmetry(w_q, w_k.repeat_interleave(3, 0))
    heads = [w_q[h] @ w_k[h // 3].mT for h in range(6)]
    whole = sum(heads)
    parts = [split(m) for m in heads]
    pairs = [(h, g) for h in range(6) for g in range(6) if h != g]
    shared = sum((parts[h][0] * parts[g][0]).sum() for h, g in pairs) / whole.norm() ** 2
    mirror = -sum((parts[h][1] * parts[g][1]).sum() for h, g in pairs) / whole.norm() ** 2
    assert (found["shared"], found["mirror"]) == pytest.approx((shared.item(), mirror.item()))
    assert sum(found.values()) == pytest.approx(analyze.symmetry(whole).item())


def tied(tie, causal=False):
    torch.manual_seed(1)
    model = Transformer(ModelConfig(60, 16, 2, 4, 32, 0.0, 0.0, causal, tie=tie)).eval()
    for p in model.parameters():
        p.data.normal_(std=0.3)  # biases, too
    return model


@pytest.mark.bert_block
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tie", ["same", "mirror"])
def test_tied_keys_are_those_of_a_bert_whose_key_weights_are_the_query_weights_of_the_partner(tie, causal):
    """By the modelling code of transformers, to which to_bert gives both matrices."""
    model = tied(tie, causal)
    bert = to_bert(model)  # refuses other logits
    for ours, theirs in zip(model.blocks, bert.bert.encoder.layer):
        q, k = theirs.attention.self.query, theirs.attention.self.key
        for w_q, w_k in (q.weight, k.weight), (q.bias, k.bias):
            of_heads = w_q.detach().split(8)
            partners = of_heads if tie == "same" else [of_heads[h] for h in (1, 0, 3, 2)]
            assert torch.equal(w_k, torch.cat(list(partners)))
        wqk = q.weight.T @ k.weight
        torch.testing.assert_close(wqk, wqk.mT)
        of_head = q.weight[:8].T @ k.weight[:8]
        assert (analyze.symmetry(of_head) > 0.999) == (tie == "same")
    untied = sum(p.numel() for p in tied("none").parameters())
    assert untied - sum(p.numel() for p in model.parameters()) == 2 * (32 * 32 + 32)  # no second matrix, no second bias


def test_a_tied_run_is_scored_as_it_attends_and_goes_on(cfg, analysed):
    run(cfg, tie="mirror", max_iters=2)
    run(cfg, tie="mirror", max_iters=4, init_from="resume")
    rows = scores(cfg).query("step == 4")
    of_layers = rows[rows["head"].isna()]
    assert list(of_layers.symmetry) == pytest.approx([1, 1], abs=1e-5)
    assert (of_layers.own_heads + of_layers.shared + of_layers.mirror).tolist() == pytest.approx([1, 1], abs=1e-5)
    assert rows[rows["head"].notna()].mirror.isna().all()
    assert "blocks.0.attn.k.weight" in checkpoint(cfg)["model"]
    assert list(analysed("--hf", cfg.out_dir).table.symmetry) == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("keys, words", [
    (dict(tie="mirror", n_head=1), "pairs of heads"), (dict(tie="same", positions="untied"), "not tied"),
    (dict(tie="mirror", init="tilted"), "no matrix to initialize")])
def test_what_cannot_be_tied_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(load([]), **keys)
