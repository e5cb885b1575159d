"""model.py against transformers' modelling code, and against plain loops. pytest tests/test_model.py"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

import model
from model import Block, LinearCrossEntropy, ModelConfig, Transformer, load_hf, probe_loss, rows_at, to_hf

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


@pytest.mark.parametrize("chunk", [3, 4, 8])  # of 8 rows: a rest, equal parts, one part
def test_loss_in_chunks_has_the_value_and_the_gradients_of_the_whole(chunk, monkeypatch):
    monkeypatch.setattr("model.LOSS_ROWS", chunk)
    monkeypatch.setattr("model.LOSS_CHUNKS", 8)
    x, weight, bias = (torch.randn(shape, dtype=torch.double).requires_grad_() for shape in [(8, 5), (7, 5), (7,)])
    targets = torch.randint(7, (8,))
    loss = LinearCrossEntropy.apply(x, weight, bias, targets, True)
    torch.testing.assert_close(loss, F.cross_entropy(x @ weight.T + bias, targets))
    assert torch.autograd.gradcheck(lambda *a: 3 * LinearCrossEntropy.apply(*a, targets, True), (x, weight, bias))


def test_an_evaluation_computes_no_gradients():
    """Counted in multiplications: the loss without gradients takes those of the logits and no other."""
    decoder, idx = Transformer(ModelConfig(**CFG, causal=True)).eval(), torch.randint(61, (2, 16))
    counts = []
    for batch in (idx,), (idx, idx):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            decoder(*batch)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_the_gradient_of_the_head_in_bfloat16_is_as_exact_as_that_of_autocast():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(16_384, 32), torch.randn(61, 32) / 6, torch.zeros(61)
    targets = torch.randint(61, (16_384,))

    def gradient(loss, dtype):
        w = weight.clone().to(dtype).requires_grad_()
        loss(x.to(dtype), w, bias.to(dtype)).backward()
        return w.grad.double()

    def plain(x, w, b):
        return F.cross_entropy(F.linear(x, w, b), targets)

    exact = gradient(plain, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = gradient(plain, torch.float32)
        ours = gradient(lambda x, w, b: LinearCrossEntropy.apply(x, w, b, targets, True), torch.float32)
    assert (ours - exact).norm() < 1.2 * (theirs - exact).norm() < 0.01 * exact.norm()


def test_dropout_acts_in_training_and_never_in_eval():
    model = noisy(Transformer(ModelConfig(**CFG, dropout=0.0, attn_dropout=0.5)))
    idx = torch.randint(61, (2, 16))
    assert torch.equal(model(idx), model(idx))
    model.train()
    assert not torch.equal(model(idx), model(idx))


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
            logits[i] += attn.diagonal
            y[i, head] = logits.softmax(0) @ v[seen, head]
    return attn.proj(y)


@either
@pytest.mark.parametrize("qk_norm, diagonal", [(False, 0.0), (True, 0.0), (False, 1.5), (True, -2.0)])
def test_attention_is_what_plain_loops_over_queries_and_keys_compute(qk_norm, diagonal, causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal, qk_norm=qk_norm, diagonal=diagonal)))
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        for block in model.blocks:
            expected = torch.stack([attention_by_hand(block.attn, row) for row in x])
            torch.testing.assert_close(block.attn(x, x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("diagonal", [0.0, 1.5])
@either
def test_rows_at_positions_are_those_rows_of_the_full_model(causal, diagonal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal, diagonal=diagonal)))
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
    idx = torch.arange(model.HF_PROBE_LENGTH) % 11
    assert loss == pytest.approx(F.cross_entropy(hf(idx[None]).logits[0], idx).item(), abs=1e-9)
    assert loss == pytest.approx(model.HF_PROBE_LOSS[causal], abs=1e-6)


def pre_norm(block, x, positions=None):
    x = x + block.attn(block.ln_1(x), block.ln_1(x))
    x = x + block.mlp(block.ln_2(x))
    return x if positions is None else model.rows_at(x, positions)


def rms_norm(cfg):
    block = Block(cfg)
    block.ln_1 = torch.nn.RMSNorm(cfg.n_embd)
    return block


def window(attn, q, k, positions):
    """Attention to the 128 tokens before and after, as some encoders have in most layers."""
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
    return torch.zeros(distance.shape).masked_fill(distance > 128, -torch.inf).to(q.dtype)


FORKS = [  # what a fork puts in the place of a name, or a switch, and what to_hf says of it
    ("model.Block.forward", pre_norm, {}, "computes something else"),
    ("model.SelfAttention.mask", window, {}, "computes something else"),
    ("model.F.gelu", F.relu, {}, "computes something else"),
    ("model.Block", rms_norm, {}, "a Hugging Face BERT alone has a weight blocks.0.ln_1.bias"),
    (None, None, dict(diagonal=0.01), "computes something else: it has no qk_norm, no diagonal"),
    (None, None, dict(causal=True, qk_norm=True), "computes something else: it has no qk_norm, no diagonal"),
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
