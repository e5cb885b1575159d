"""model.py against transformers' modelling code, and against what a causal mask means. pytest tests/test_model.py"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

import model
from model import LinearCrossEntropy, ModelConfig, Transformer, count_flops, from_hf, to_hf

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


def assert_same_function(ours, hf, idx):
    with torch.no_grad():
        out = hf(idx, output_hidden_states=True)
        torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_their_weights_in_our_model_give_their_hidden_states_and_logits(causal):
    hf = theirs(causal)
    ours = Transformer(ModelConfig(**CFG, causal=causal)).eval()
    ours.load_state_dict(from_hf(hf.state_dict()))
    assert_same_function(ours, hf, torch.randint(61, (3, 16)))


@pytest.mark.parametrize("causal", [False, True])
def test_transformers_opens_our_export_and_computes_the_same(causal, tmp_path):
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    config, state = to_hf(ours)
    BertConfig(**config).save_pretrained(tmp_path)
    save_file({name: x.contiguous() for name, x in state.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    hf, info = (BertLMHeadModel if causal else BertForMaskedLM).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_function(ours, hf.eval(), torch.randint(61, (3, 16)))


def test_import_of_an_export_is_the_same_model_bit_for_bit(tmp_path):
    ours = noisy(Transformer(ModelConfig(**CFG)))
    save_file({name: x.contiguous() for name, x in to_hf(ours)[1].items()}, tmp_path / "m.safetensors")
    back = from_hf(load_file(tmp_path / "m.safetensors"))
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[name], x) for name, x in ours.state_dict().items())


def test_old_checkpoints_with_gamma_and_beta_are_read():
    state = theirs(False).state_dict()
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
           for n, x in state.items()}
    assert any(n.endswith("gamma") for n in old)
    assert all(torch.equal(x, from_hf(old)[n]) for n, x in from_hf(state).items())


def test_a_checkpoint_without_the_head_is_refused_by_name():
    state = {n: x for n, x in theirs(False).state_dict().items() if not n.startswith("cls.")}
    with pytest.raises(ValueError, match="cls.predictions"):
        from_hf(state)


def test_loss_at_gathered_positions_is_the_loss_transformers_computes_with_labels():
    hf = theirs(False)
    ours = Transformer(ModelConfig(**CFG)).eval()
    ours.load_state_dict(from_hf(hf.state_dict()))
    idx, positions = torch.randint(61, (3, 16)), torch.stack([torch.randperm(16)[:5] for _ in range(3)])
    targets, labels = torch.randint(61, (3, 5)), torch.full((3, 16), -100)
    labels.scatter_(1, positions, targets)
    torch.testing.assert_close(ours(idx, targets, positions), hf(idx, labels=labels).loss)


def test_loss_of_the_decoder_is_that_of_the_next_token():
    hf = theirs(True)
    ours = Transformer(ModelConfig(**CFG, causal=True)).eval()
    ours.load_state_dict(from_hf(hf.state_dict()))
    idx = torch.randint(61, (3, 16))
    torch.testing.assert_close(ours(idx[:, :-1], idx[:, 1:]), hf(idx, labels=idx).loss)  # it shifts the labels itself


@pytest.mark.parametrize("chunk", [3, 4, 8])  # of 8 rows: a rest, equal parts, one part
def test_loss_in_chunks_has_the_value_and_the_gradients_of_the_whole(chunk, monkeypatch):
    monkeypatch.setattr("model.LOSS_ROWS", chunk)
    monkeypatch.setattr("model.LOSS_CHUNKS", 8)
    x, weight, bias = (torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in [(8, 5), (7, 5), (7,)])
    targets = torch.randint(7, (8,))
    loss = LinearCrossEntropy.apply(x, weight, bias, targets, True)
    torch.testing.assert_close(loss, F.cross_entropy(x @ weight.T + bias, targets))
    assert torch.autograd.gradcheck(lambda *a: 3 * LinearCrossEntropy.apply(*a, targets, True), (x, weight, bias))


def test_the_loss_is_made_in_a_few_chunks_however_many_rows_there_are(monkeypatch):
    """torch.compile unrolls their loop."""
    calls, linear = [], F.linear
    monkeypatch.setattr(model.F, "linear", lambda *args: calls.append(1) or linear(*args))
    x, weight, bias = torch.randn(40_000, 4), torch.randn(7, 4), torch.randn(7)
    loss = LinearCrossEntropy.apply(x, weight, bias, torch.arange(40_000) % 7, True)
    assert len(calls) <= model.LOSS_CHUNKS
    torch.testing.assert_close(loss, F.cross_entropy(x @ weight.T + bias, torch.arange(40_000) % 7))


def test_an_evaluation_computes_no_gradients():
    """Counted in multiplications: the loss without gradients takes those of the logits and no other."""
    decoder = Transformer(ModelConfig(**CFG, causal=True)).eval()
    idx = torch.randint(61, (2, 16))
    counts = []
    for batch in (idx,), (idx, idx):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            decoder(*batch)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("causal, K", [(False, 3), (True, 16), (True, 3)])
def test_the_count_of_operations_is_that_of_torchs_counter(causal, K):
    """Of the products of one training step, with attention in plain products, which is what the counter sees."""
    cfg = ModelConfig(**CFG, causal=causal)
    idx, targets, positions = torch.randint(61, (1, 16)), torch.randint(61, (1, K)), torch.arange(K)[None]
    batch = (idx, targets) if K == 16 else (idx, targets, positions)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Transformer(cfg)(*batch).backward()
    assert count_flops(cfg, K) == counter.get_total_flops()


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


@pytest.mark.parametrize("causal", [False, True])
def test_changing_a_token_changes_earlier_logits_of_an_encoder_only(causal):
    ours = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    idx = torch.randint(61, (1, 16))
    other = idx.clone()
    other[0, 9] = (idx[0, 9] + 1) % 61
    changed = (ours(idx) - ours(other)).abs().amax(-1)[0] > 1e-6  # (T,)
    assert changed[9:].all() and changed[:9].all() == (not causal) and changed[:9].any() == (not causal)


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
            logits = []
            for j in range(i + 1 if attn.causal else len(x)):
                logit = q[i, head] @ k[j, head] / D**0.5
                if attn.qk_norm:
                    logit = D**0.5 * F.cosine_similarity(q[i, head], k[j, head], dim=0)
                if i == j:
                    logit = logit + attn.diagonal
                logits.append(logit)
            alpha = torch.stack(logits).softmax(0)
            y[i, head] = alpha @ v[: len(alpha), head]
    return attn.proj(y)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("qk_norm, diagonal", [(False, 0.0), (True, 0.0), (False, 1.5), (True, -2.0)])
def test_attention_is_what_plain_loops_over_queries_and_keys_compute(qk_norm, diagonal, causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal, qk_norm=qk_norm, diagonal=diagonal)))
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        for block in model.blocks:
            expected = torch.stack([attention_by_hand(block.attn, row) for row in x])
            torch.testing.assert_close(block.attn(x, x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("diagonal", [0.0, 1.5])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_at_positions_are_those_rows_of_the_full_model(causal, diagonal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal, diagonal=diagonal)))
    idx = torch.randint(61, (3, 16))
    positions = torch.tensor([[0, 5, 15], [14, 2, 2], [7, 8, 1]])  # any order
    with torch.no_grad():
        everywhere = model(idx)  # (3, 16, V)
        some = model(idx, positions=positions)  # (3, 3, V)
    for row in range(3):
        torch.testing.assert_close(some[row], everywhere[row, positions[row]], atol=1e-4, rtol=1e-4)


def test_queries_and_keys_of_another_size_make_no_difference_under_qk_norm():
    model = noisy(Transformer(ModelConfig(**CFG, qk_norm=True)))
    idx = torch.randint(61, (2, 16))
    before = model(idx)
    with torch.no_grad():
        for block in model.blocks:
            for p in [*block.attn.q.parameters(), *block.attn.k.parameters()]:
                p.mul_(7)
    torch.testing.assert_close(model(idx), before, atol=1e-4, rtol=1e-4)


def test_a_weight_that_bert_has_no_name_for_is_not_exported():
    model = Transformer(ModelConfig(**CFG))
    model.ln_f = torch.nn.LayerNorm(32)
    with pytest.raises(ValueError, match="ln_f.weight"):
        to_hf(model)


@pytest.mark.parametrize("key, value", [("qk_norm", True), ("diagonal", 0.5)])
def test_attention_that_bert_does_not_know_is_not_exported(key, value):
    with pytest.raises(ValueError, match=f"a Hugging Face BERT has no {key} = {value}$"):
        to_hf(Transformer(ModelConfig(**CFG, **{key: value})))


def test_one_batch_can_be_learnt_by_heart():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**CFG, dropout=0.0, attn_dropout=0.0, causal=True))
    idx, optimizer = torch.randint(61, (2, 17)), torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        loss = model(idx[:, :-1], idx[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
