"""model.py against transformers' modelling code, and against plain loops. pytest tests/test_model.py"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

from data import bert
from data.bert import load_hf, probe_loss, to_hf
from model import Block, ModelConfig, Transformer, rows_at

CFG = dict(vocab_size=61, block_size=16, n_layer=2, n_head=4, n_embd=32)


def noisy(model):
    """Every parameter away from its start, so that no bias or LayerNorm is at a value which hides it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model.eval()


def theirs(causal, **kwargs):
    config = BertConfig(vocab_size=61, max_position_embeddings=16, num_hidden_layers=2, num_attention_heads=4,
                        hidden_size=32, intermediate_size=128, is_decoder=causal, pad_token_id=None, **kwargs)
    return noisy((BertLMHeadModel if causal else BertForMaskedLM)(config))


def loaded(hf, old=False):
    """Our model with the weights of theirs; old: in the names that LayerNorm's had once."""
    ours = Transformer(ModelConfig(**CFG, causal=hf.config.is_decoder)).eval()
    state = hf.state_dict()
    if old:
        state = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
                 for name, x in state.items()}
    load_hf(ours, hf.config.to_dict(), state)
    return ours


def assert_same_function(ours, hf):
    idx = torch.randint(61, (3, 16))
    with torch.no_grad():
        out = hf(idx, output_hidden_states=True)
        torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)


either = pytest.mark.parametrize("causal", [False, True])


@pytest.mark.parametrize("causal, old", [(False, False), (True, False), (False, True)])
def test_their_weights_in_our_model_give_their_hidden_states_and_logits(causal, old):
    hf = theirs(causal)
    assert_same_function(loaded(hf, old), hf)


@either
def test_transformers_opens_our_export_and_computes_the_same(causal, tmp_path):
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    config, state = to_hf(ours)
    BertConfig(**config).save_pretrained(tmp_path)
    save_file({name: x.contiguous() for name, x in state.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    their_class = BertLMHeadModel if causal else BertForMaskedLM
    hf, info = their_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_function(ours, hf.eval())


def test_the_loss_at_gathered_positions_is_the_one_that_transformers_computes_with_labels():
    hf = theirs(False)
    idx, positions = torch.randint(61, (3, 16)), torch.stack([torch.randperm(16)[:5] for _ in range(3)])
    targets, labels = torch.randint(61, (3, 5)), torch.full((3, 16), -100)
    labels.scatter_(1, positions, targets)
    torch.testing.assert_close(loaded(hf)(idx, targets, positions), hf(idx, labels=labels).loss)


def test_the_loss_of_the_decoder_is_that_of_the_next_token():
    hf, idx = theirs(True), torch.randint(61, (3, 16))
    torch.testing.assert_close(loaded(hf)(idx[:, :-1], idx[:, 1:]), hf(idx, labels=idx).loss)  # it shifts the labels


def pre_norm(block, x, positions=None):
    """GPT-2's block, in the two lines that the docstring of Block has."""
    x = rows_at(x, positions) + block.drop(block.attn(block.ln_1(x), positions))
    return x + block.drop(block.mlp(block.ln_2(x)))


def torchs_encoder(ours, norm_first):
    """torch.nn.TransformerEncoder with the weights of our blocks."""
    names = {"attn.proj": "self_attn.out_proj", "ln_1": "norm1", "ln_2": "norm2",
             "mlp.fc": "linear1", "mlp.proj": "linear2"}
    layer = torch.nn.TransformerEncoderLayer(32, 4, 128, activation="gelu", layer_norm_eps=1e-12, batch_first=True,
                                             norm_first=norm_first)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for block, layer in zip(ours.blocks, encoder.layers):
        state, attn = {}, block.attn
        for part in "weight", "bias":
            state[f"self_attn.in_proj_{part}"] = torch.cat([getattr(x, part) for x in (attn.q, attn.k, attn.v)])
            for name, torchs_name in names.items():
                state[f"{torchs_name}.{part}"] = block.get_parameter(f"{name}.{part}")
        layer.load_state_dict(state)
    return encoder


@torch.no_grad()
@either
@pytest.mark.parametrize("norm_first", [pytest.param(False, marks=pytest.mark.bert_block), True])
def test_the_encoder_of_torch_with_the_same_weights_has_the_same_hidden_states(norm_first, causal, monkeypatch):
    """And the block that a fork gets by the obvious edit is torch's with norm_first."""
    if norm_first:
        monkeypatch.setattr(Block, "forward", pre_norm)
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    idx, positions = torch.randint(61, (3, 16)), torch.tensor([[0, 5, 15], [14, 2, 2], [7, 8, 1]])
    x = F.layer_norm(ours.tok_emb(idx) + ours.pos_emb.weight, (32,), ours.ln_emb.weight, ours.ln_emb.bias, 1e-12)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(16) if causal else None
    expected = torchs_encoder(ours, norm_first)(x, mask)
    torch.testing.assert_close(ours.hidden(idx), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.hidden(idx, positions), rows_at(expected, positions), atol=1e-5, rtol=1e-5)


def attention_by_hand(attn, x):
    """Every query of every head by itself, in plain loops: x (T, C) -> (T, C)."""
    D = x.shape[1] // attn.n_head
    q, k, v = attn.q(x), attn.k(x), attn.v(x)  # (T, C)
    y = torch.zeros_like(x)
    for h in range(attn.n_head):
        head = slice(h * D, (h + 1) * D)
        for i in range(len(x)):
            seen = slice(i + 1 if attn.causal else len(x))
            logits = k[seen, head] @ q[i, head] / D**0.5  # (n,)
            if attn.qk_norm:
                logits = D**0.5 * F.cosine_similarity(k[seen, head], q[i, head], dim=1)
            y[i, head] = logits.softmax(0) @ v[seen, head]
    return attn.proj(y)


@either
@pytest.mark.parametrize("qk_norm", [False, True])
def test_attention_is_what_plain_loops_over_queries_and_keys_compute(qk_norm, causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal, qk_norm=qk_norm)))
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        for block in model.blocks:
            expected = torch.stack([attention_by_hand(block.attn, row) for row in x])
            torch.testing.assert_close(block.attn(x), expected, atol=1e-4, rtol=1e-4)


@either
def test_rows_at_positions_are_those_rows_of_the_full_model(causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    idx = torch.randint(61, (3, 16))
    positions = torch.tensor([[0, 5, 15], [14, 2, 2], [7, 8, 1]])  # any order
    with torch.no_grad():
        everywhere = model(idx)  # (3, 16, V)
        some = model(idx, positions=positions)  # (3, 3, V)
    for row in range(3):
        torch.testing.assert_close(some[row], everywhere[row, positions[row]], atol=1e-4, rtol=1e-4)


# ---- what is not exported ----------------------------------------------------------------------------------------


@either
def test_the_loss_that_tells_berts_block_from_another_is_that_of_transformers(causal, monkeypatch):
    probes, forward = [], Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda *a, **k: probes.append(a[0]) or forward(*a, **k))
    loss = probe_loss(Transformer(ModelConfig(**CFG, causal=causal)))
    config, state = to_hf(probes[0])
    hf = (BertLMHeadModel if causal else BertForMaskedLM)(BertConfig(**config)).double().eval()
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
    idx, positions = torch.randint(61, (3, 16)), torch.tensor([[0, 5, 15], [14, 2, 2], [7, 8, 1]])
    expected = plain(idx), plain(idx, positions=positions)
    monkeypatch.setattr(Block, "forward", lambda block, x, positions=None: forward(block, x))
    monkeypatch.setattr(Transformer, "hidden", lambda m, idx, positions=None: rows_at(hidden(m, idx), positions))
    torch.testing.assert_close((plain(idx), plain(idx, positions=positions)), expected)
    logits = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda m, idx, targets=None, positions=None: (
        logits(m, idx, positions=positions) if targets is None else 2 * logits(m, idx, targets, positions)))
    to_hf(plain)


def test_an_export_leaves_the_random_state_alone():
    ours = Transformer(ModelConfig(**CFG))
    torch.manual_seed(1)
    to_hf(ours)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
