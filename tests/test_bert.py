"""
data/bert.py: weights that are exchanged with transformers, and what is refused. Every test here needs BERT's block.
pytest tests/test_bert.py
"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

from data import bert
from data.bert import load_hf, probe_loss, to_hf
from model import Block, ModelConfig, Transformer, rows_at
from tests.test_model import CFG, POSITIONS, either, noisy, pre_norm

pytestmark = pytest.mark.bert_block


THEIRS = {False: BertForMaskedLM, True: BertLMHeadModel}  # by causal


def theirs(causal):
    config = BertConfig(vocab_size=61, max_position_embeddings=16, num_hidden_layers=2, num_attention_heads=4,
                        hidden_size=32, intermediate_size=128, is_decoder=causal, pad_token_id=None)
    return noisy(THEIRS[causal](config))


def loaded(hf):
    """Our model with the weights of theirs."""
    ours = Transformer(ModelConfig(**CFG, causal=hf.config.is_decoder)).eval()
    load_hf(ours, hf.config.to_dict(), hf.state_dict())
    return ours


def assert_same_function(ours, hf):
    idx = torch.randint(61, (3, 12))  # fewer tokens than there are positions
    out = hf(idx, output_hidden_states=True)
    torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)


@either
def test_their_weights_in_our_model_give_their_hidden_states_and_logits(causal):
    hf = theirs(causal)
    assert_same_function(loaded(hf), hf)


@either
def test_transformers_opens_our_export_and_computes_the_same(causal, tmp_path):
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    config, state = to_hf(ours)
    BertConfig(**config).save_pretrained(tmp_path)
    save_file({name: x.contiguous() for name, x in state.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    hf, info = THEIRS[causal].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_function(ours, hf.eval())


# ---- what is not exported ----------------------------------------------------------------------------------------


@either
def test_the_loss_that_tells_berts_block_from_another_is_that_of_transformers(causal, monkeypatch):
    probes, forward = [], Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda *a, **k: probes.append(a[0]) or forward(*a, **k))
    loss = probe_loss(Transformer(ModelConfig(**CFG, causal=causal)))
    config, state = to_hf(probes[0])
    hf = THEIRS[causal](BertConfig(**config)).double().eval()
    hf.load_state_dict(state, strict=False)  # the decoder is tied, and has no tensor of its own
    idx = torch.arange(bert.HF_PROBE_LENGTH) % 11
    assert loss == pytest.approx(F.cross_entropy(hf(idx[None]).logits[0], idx).item(), abs=1e-9)
    assert loss == pytest.approx(bert.HF_PROBE_LOSS[causal], abs=1e-6)


def rms_norm(cfg):
    block = Block(cfg)
    block.ln_1 = torch.nn.RMSNorm(cfg.n_embd)
    return block


def window(q, k, v, attention=F.scaled_dot_product_attention, **_):
    """Attention to the 128 tokens before and after, as some encoders have in most layers."""
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()  # (Q, T)
    return attention(q, k, v, attn_mask=distance <= 128)


FORKS = [  # what a fork puts in the place of a name, or a switch, and what to_hf says of it
    ("model.Block.forward", pre_norm, {}, "computes something else"),
    ("model.F.scaled_dot_product_attention", window, {}, "computes something else"),
    ("model.F.gelu", F.relu, {}, "computes something else"),
    ("model.Block", rms_norm, {}, "a Hugging Face BERT alone has a weight blocks.0.ln_1.bias"),
    (None, None, dict(positions="rotary"), "a Hugging Face BERT alone has a weight pos_emb.weight"),
    (None, None, dict(causal=True, qk_norm=True), "computes something else: it has no qk_norm and"),
]


@pytest.mark.parametrize("name, change, switches, words", FORKS)
def test_a_model_that_computes_something_else_is_not_exported_as_a_bert(name, change, switches, words, monkeypatch):
    if name:
        monkeypatch.setattr(name, change)
    with pytest.raises(ValueError, match=words):
        to_hf(Transformer(ModelConfig(**CFG, **switches)))


def test_a_block_may_do_without_positions_and_a_model_have_another_loss(monkeypatch):
    """As README.md says: the block returns all rows, and Transformer.hidden takes those at positions."""
    plain, forward, hidden = Transformer(ModelConfig(**CFG)).eval(), Block.forward, Transformer.hidden
    idx = torch.randint(61, (3, 16))
    expected = plain(idx), plain(idx, predict_at=POSITIONS)
    monkeypatch.setattr(Block, "forward", lambda block, x, predict_at=None: forward(block, x))
    monkeypatch.setattr(Transformer, "hidden", lambda m, idx, predict_at=None: rows_at(hidden(m, idx), predict_at))
    torch.testing.assert_close((plain(idx), plain(idx, predict_at=POSITIONS)), expected)
    logits = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda m, idx, targets=None, predict_at=None: (
        logits(m, idx, predict_at=predict_at) if targets is None else 2 * logits(m, idx, targets, predict_at)))
    to_hf(plain)


def test_an_export_leaves_the_random_state_alone():
    ours = Transformer(ModelConfig(**CFG))
    torch.manual_seed(1)
    to_hf(ours)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
