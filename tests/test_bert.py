"""data/export.py: a model that transformers opens, and what is not exported. Every test here needs BERT's block."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers import BertForMaskedLM, BertLMHeadModel

from data import export
from data.results.runs import RunError, open_run
from model import Block, ModelConfig, Transformer, rows_at
from tests.lives import run
from tests.test_model import CFG, POSITIONS, pre_norm

pytestmark = pytest.mark.bert_block


def tied(cfg):
    """A block with one matrix for q and k, which is exported as a BERT in which both are equal."""
    block = Block(cfg)
    block.attn.k = block.attn.q
    return block


@pytest.mark.parametrize("causal, block", [(False, Block), (True, Block), (False, tied)])
def test_transformers_opens_our_export_and_computes_the_same(causal, block, cfg, monkeypatch):
    monkeypatch.setattr("model.Block", block)
    run(cfg, causal=causal, init_std=0.1)  # a start is no other model
    export.main([cfg.out_dir])
    ours, _, _ = open_run(cfg.out_dir)
    theirs = BertLMHeadModel if causal else BertForMaskedLM
    hf, info = theirs.from_pretrained(f"{cfg.out_dir}/bert", output_loading_info=True)
    assert not any(info.values()), info
    idx = torch.randint(258, (3, 12))  # fewer tokens than there are positions
    out = hf.eval()(idx, output_hidden_states=True)
    torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)


def window(q, k, v, **_):
    """Attention to fewer than 511 tokens before and after: one of 512 alone does not see the last one."""
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()  # (Q, T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=distance < 511)


@pytest.mark.parametrize("name, change, switches", [  # what a fork puts in the place of a name, or a switch
    ("model.Block.forward", pre_norm, {}),
    ("model.F", SimpleNamespace(**vars(F) | dict(scaled_dot_product_attention=window)), dict(block_size=512)),
    (None, None, dict(positions="rotary")), (None, None, dict(causal=True, qk_norm=True))])
def test_what_computes_something_else_is_not_exported_as_a_bert(name, change, switches, monkeypatch):
    if name:
        monkeypatch.setattr(name, change)
    with pytest.raises(RunError, match="a Hugging Face BERT would compute something else"):
        export.to_bert(Transformer(ModelConfig(**CFG | switches)))


def test_without_transformers_nothing_is_exported(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(SystemExit, match="is not exported: .*transformers"):
        export.main([finished.out_dir])
    assert not Path(finished.out_dir, "bert").exists()


def test_a_block_may_do_without_predict_at(monkeypatch):
    """As the docstring of Block says: it returns all rows, and Transformer.hidden takes those that are predicted."""
    plain, forward, hidden = Transformer(ModelConfig(**CFG)).eval(), Block.forward, Transformer.hidden
    idx = torch.randint(61, (3, 16))
    expected = plain(idx, predict_at=POSITIONS)
    monkeypatch.setattr(Block, "forward", lambda block, x, predict_at=None, p=None: forward(block, x))
    monkeypatch.setattr(Transformer, "hidden", lambda m, idx, predict_at=None: rows_at(hidden(m, idx), predict_at))
    torch.testing.assert_close(plain(idx, predict_at=POSITIONS), expected)
    export.to_bert(plain)
