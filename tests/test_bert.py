"""data/export.py: a model that transformers opens, and what is not exported. Every test here needs BERT's block."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

from data.export import bert_logits, save_folder, to_hf
from model import Block, ModelConfig, Transformer, rows_at
from tests.test_model import CFG, POSITIONS, noisy, pre_norm

pytestmark = pytest.mark.bert_block

THEIRS = {False: BertForMaskedLM, True: BertLMHeadModel}  # by causal


def as_theirs(model):
    """The model as a BertForMaskedLM or BertLMHeadModel of transformers."""
    config, state = to_hf(model)
    hf = THEIRS[model.cfg.causal](BertConfig(**config))
    hf.load_state_dict(state, strict=False)  # the decoder is tied, and has no tensor of its own
    return hf


def tied(cfg):
    """A block with one matrix for q and k, which is exported as a BERT in which both are equal."""
    block = Block(cfg)
    block.attn.k = block.attn.q
    return block


def twice_as_wide(part, first):
    """Blocks whose attn or mlp is 2 C wide inside, between its layer of the name `first` and its proj."""
    def make_block(cfg):
        block = Block(cfg)
        inside = getattr(block, part)
        setattr(inside, first, torch.nn.Linear(cfg.n_embd, 2 * cfg.n_embd))
        inside.proj = torch.nn.Linear(2 * cfg.n_embd, cfg.n_embd)
        return block

    return make_block


@pytest.mark.parametrize("causal, block", [
    (False, Block), (True, Block), (False, tied), (True, twice_as_wide("mlp", "fc"))])
def test_transformers_opens_our_export_and_computes_the_same(causal, block, tmp_path, monkeypatch):
    """So does `bert_logits`, with which a fork's model is compared."""
    monkeypatch.setattr("model.Block", block)
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal, init_std=0.1)))  # a start is no other model
    save_folder(ours, tmp_path)
    hf, info = THEIRS[causal].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    idx = torch.randint(61, (3, 12))  # fewer tokens than there are positions
    out = hf.eval()(idx, output_hidden_states=True)
    torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(bert_logits(ours.state_dict(), ours.cfg, idx), out.logits, atol=1e-5, rtol=1e-5)


def gated(cfg):
    """SwiGLU in place of the MLP: the names are BERT's, and the shapes are not."""
    block = Block(cfg)
    block.mlp.fc = torch.nn.Linear(cfg.n_embd, 8 * cfg.n_embd)
    block.mlp.forward = lambda x: block.mlp.proj(F.glu(block.mlp.fc(x)))
    return block


def large_heads(cfg):
    """As many heads of 32 dimensions as there is room for: in a narrow model none."""
    block = Block(cfg)
    block.attn.n_head = cfg.n_embd // 32
    block.attn.head_dim = cfg.n_embd // block.attn.n_head
    return block


def with_functions(**changes):
    """torch.nn.functional as model.py sees it, with other functions."""
    return SimpleNamespace(**vars(F) | changes)


def window(q, k, v, **_):
    """Attention to fewer than 511 tokens before and after: one of 512 alone does not see the last one."""
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()  # (Q, T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=distance < 511)


def other_hidden(model, idx, predict_at=None, hidden=Transformer.hidden):
    """A fork that treats the end of a document (59 of 61 ids) in its own way, and so it does with the third layer."""
    return hidden(model, idx.where(idx != 59, 0), predict_at) * (2 if len(model.blocks) > 2 else 1)


OTHER = "would compute something else"
FORKS = [  # what a fork puts in the place of a name, or a switch, and what to_hf says of it
    ("model.Block.forward", pre_norm, {}, OTHER),
    ("model.F", with_functions(scaled_dot_product_attention=window), dict(block_size=512), OTHER),
    ("model.F", with_functions(gelu=F.relu), {}, OTHER),
    ("model.Block", gated, {}, OTHER),
    ("model.Block", twice_as_wide("attn", "v"), {}, OTHER),  # config.json has no number for values
    ("model.Block", large_heads, {}, OTHER),
    ("model.Transformer.hidden", other_hidden, {}, OTHER),
    ("model.Transformer.hidden", other_hidden, dict(vocab_size=59, n_layer=3), OTHER),
    (None, None, dict(positions="rotary"), "this model and a Hugging Face BERT do not both have pos_emb.weight"),
    (None, None, dict(positions="untied"), "do not both have blocks.0.attn.pos_k.bias"),
    (None, None, dict(causal=True, qk_norm=True), f"{OTHER} with these weights, because it has no qk_norm"),
]


@pytest.mark.parametrize("name, change, switches, words", FORKS)
def test_a_model_that_computes_something_else_is_not_exported_as_a_bert(name, change, switches, words, monkeypatch):
    if name:
        monkeypatch.setattr(name, change)
    model = Transformer(ModelConfig(**CFG | switches))
    torch.manual_seed(1)
    with pytest.raises(ValueError, match=words):
        to_hf(model)
    after = torch.rand(1)  # of the random state, which the comparison leaves alone
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))


def test_a_block_may_do_without_predict_at(monkeypatch):
    """As the docstring of Block says: it returns all rows, and Transformer.hidden takes those that are predicted."""
    plain, forward, hidden = Transformer(ModelConfig(**CFG)).eval(), Block.forward, Transformer.hidden
    idx = torch.randint(61, (3, 16))
    expected = plain(idx, predict_at=POSITIONS)
    monkeypatch.setattr(Block, "forward", lambda block, x, predict_at=None, p=None: forward(block, x))
    monkeypatch.setattr(Transformer, "hidden", lambda m, idx, predict_at=None: rows_at(hidden(m, idx), predict_at))
    torch.testing.assert_close(plain(idx, predict_at=POSITIONS), expected)
    to_hf(plain)
