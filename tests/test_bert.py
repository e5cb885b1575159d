"""data/export.py: a model that transformers opens, and what is not exported. Every test here needs BERT's block."""

import pathlib
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers import BertForMaskedLM, BertLMHeadModel

from data import export
from data.results.runs import open_run
from model import Block, ModelConfig, Transformer, rows_at
from tests.lives import run
from tests.test_model import CFG, POSITIONS, noisy, pre_norm

pytestmark = pytest.mark.bert_block


def tied(cfg):
    """A block with one matrix for q and k, which is exported as a BERT in which both are equal."""
    block = Block(cfg)
    block.attn.k = block.attn.q
    return block


@pytest.mark.parametrize("causal, block", [(False, Block), (True, Block), (False, tied)])
def test_transformers_opens_our_export_and_computes_the_same(causal, block, tmp_path, monkeypatch):
    monkeypatch.setattr("model.Block", block)
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal, init_std=0.1)))  # a start is no other model
    monkeypatch.setattr(export, "open_run", lambda folder: (ours, None, None))
    export.main([str(tmp_path)])
    theirs = BertLMHeadModel if causal else BertForMaskedLM
    hf, info = theirs.from_pretrained(tmp_path / "bert", output_loading_info=True)
    assert not any(info.values()), info
    idx = torch.randint(61, (3, 12))  # fewer tokens than there are positions
    out = hf.eval()(idx, output_hidden_states=True)
    torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)


def gated(cfg):
    """SwiGLU in place of the MLP: the names are BERT's, and the shapes are not."""
    block = Block(cfg)
    block.mlp.fc = torch.nn.Linear(cfg.n_embd, 8 * cfg.n_embd)
    block.mlp.forward = lambda x: block.mlp.proj(F.glu(block.mlp.fc(x)))
    return block


def rms_norm(size, eps):
    return torch.nn.RMSNorm(size)


def changed(module, **changes):
    """A module of torch as model.py sees it, with something else under a name."""
    return SimpleNamespace(**vars(module) | changes)


def window(q, k, v, **_):
    """Attention to fewer than 511 tokens before and after: one of 512 alone does not see the last one."""
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()  # (Q, T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=distance < 511)


FORKS = [  # what a fork puts in the place of a name, or a switch
    ("model.Block.forward", pre_norm, {}),
    ("model.F", changed(F, scaled_dot_product_attention=window), dict(block_size=512)),
    ("model.nn", changed(torch.nn, LayerNorm=rms_norm), {}),
    ("model.Block", gated, {}),
    (None, None, dict(positions="rotary")),
    (None, None, dict(causal=True, qk_norm=True)),
]


@pytest.mark.parametrize("name, change, switches", FORKS)
def test_what_computes_something_else_is_not_exported_as_a_bert(name, change, switches, tmp_path, monkeypatch):
    if name:
        monkeypatch.setattr(name, change)
    model = Transformer(ModelConfig(**CFG | switches)).eval()
    monkeypatch.setattr(export, "open_run", lambda folder: (model, None, None))
    with pytest.raises(SystemExit, match="is not exported: a Hugging Face BERT would compute something else"):
        export.main([str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_without_transformers_nothing_is_exported_and_with_it_the_weights_of_a_run_are(cfg, monkeypatch):
    run(cfg, max_iters=4)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)  # as if it were not installed
        with pytest.raises(SystemExit, match="is not exported: .*transformers"):
            export.main([cfg.out_dir])
    folder = pathlib.Path(cfg.out_dir, "bert")
    assert not folder.exists()
    export.main([cfg.out_dir])
    idx = torch.randint(258, (2, 16))
    model, _, _ = open_run(cfg.out_dir)
    torch.testing.assert_close(BertForMaskedLM.from_pretrained(folder).eval()(idx).logits, model(idx))


def test_a_block_may_do_without_predict_at(monkeypatch):
    """As the docstring of Block says: it returns all rows, and Transformer.hidden takes those that are predicted."""
    plain, forward, hidden = Transformer(ModelConfig(**CFG)).eval(), Block.forward, Transformer.hidden
    idx = torch.randint(61, (3, 16))
    expected = plain(idx, predict_at=POSITIONS)
    monkeypatch.setattr(Block, "forward", lambda block, x, predict_at=None, p=None: forward(block, x))
    monkeypatch.setattr(Transformer, "hidden", lambda m, idx, predict_at=None: rows_at(hidden(m, idx), predict_at))
    torch.testing.assert_close(plain(idx, predict_at=POSITIONS), expected)
    export.to_bert(plain)
