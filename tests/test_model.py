"""model.py against plain loops. tests/test_bert.py compares it with BERT. pytest tests/test_model.py"""

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from model import ModelConfig, Transformer, rows_at

CFG = dict(vocab_size=61, block_size=16, n_layer=2, n_head=4, n_embd=32)
POSITIONS = torch.tensor([[0, 5, 15], [14, 2, 2], [7, 8, 1]])  # of three sequences; any order
either = pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])


def noisy(model):
    """Every parameter away from its start, so that no bias or LayerNorm is at a value which hides it."""
    generator = torch.Generator().manual_seed(0)
    for p in model.requires_grad_(False).parameters():
        p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("options, std", [({}, BertConfig().initializer_range), (dict(init_std=0.3), 0.3)])
def test_a_new_model_is_drawn_as_a_new_bert_of_transformers_or_with_the_standard_deviation_asked_for(options, std):
    """Every matrix from a normal distribution: of a uniform one, no number is above 1.73 standard deviations."""
    for name, p in Transformer(ModelConfig(61, 16, 2, 4, 128, **options)).named_parameters():
        if p.ndim == 1:
            assert (p == name.endswith("weight")).all(), name  # gains 1, biases 0
        else:
            assert p.std().item() == pytest.approx(std, rel=0.05) and p.abs().max() > 3 * std, name


def turned_by_llama(q, k, n_head):
    """Queries and keys (T, C) with the rotary positions that transformers gives LLaMA's."""
    config = LlamaConfig(hidden_size=q.shape[1], num_attention_heads=n_head)
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(len(q))[None])  # (1, T, D) each
    of_heads = [w.view(1, len(w), n_head, -1).transpose(1, 2) for w in (q, k)]  # (1, H, T, D)
    return [w.transpose(1, 2).reshape(q.shape) for w in apply_rotary_pos_emb(*of_heads, cos, sin)]


def attention_by_hand(attn, x, pos=None):
    """Every query of every head by itself, in plain loops: x (T, C), pos (T, C) of untied positions -> (T, C)."""
    D = x.shape[1] // attn.n_head
    q, k, v = attn.q(x), attn.k(x), attn.v(x)  # (T, C)
    if attn.rotary:
        q, k = turned_by_llama(q, k, attn.n_head)
    y = torch.zeros_like(x)
    for h in range(attn.n_head):
        head = slice(h * D, (h + 1) * D)
        for i in range(len(x)):
            seen = slice(i + 1 if attn.causal else len(x))
            logits = k[seen, head] @ q[i, head] / D**0.5  # (n,)
            if pos is not None:
                logits = logits + attn.pos_k(pos)[seen, head] @ attn.pos_q(pos)[i, head] / D**0.5
            y[i, head] = logits.softmax(0) @ v[seen, head]
    return attn.proj(y)


@pytest.mark.bert_block
@either
@pytest.mark.parametrize("options", [{}, dict(positions="rotary"), dict(positions="untied")], ids=str)
def test_attention_is_what_plain_loops_over_queries_and_keys_compute(options, causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal, **options)))
    x = torch.randn(3, 16, 32)
    pos = torch.randn(16, 32) if options.get("positions") == "untied" else None
    for block in model.blocks:
        expected = torch.stack([attention_by_hand(block.attn, row, pos) for row in x])
        torch.testing.assert_close(block.attn(x, None, pos), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(block.attn(x, POSITIONS, pos), rows_at(expected, POSITIONS), atol=1e-4, rtol=1e-4)


@pytest.mark.bert_block
@either
def test_every_layer_sees_the_same_untied_positions_normalised_from_the_first_on(causal):
    model, seen = noisy(Transformer(ModelConfig(**CFG, positions="untied", causal=causal))), []
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2]))
    model(torch.randint(60, (2, 12)))  # fewer tokens than there are positions
    expected = F.layer_norm(model.pos_emb.weight, (32,), model.ln_pos.weight, model.ln_pos.bias, 1e-12)[:12]
    assert len(seen) == 2 and all(torch.allclose(pos, expected, atol=1e-6) for pos in seen)


@either
def test_a_decoder_sees_no_later_token_and_an_encoder_sees_all(causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    idx = torch.randint(60, (1, 16))
    changed = idx.index_fill(1, torch.tensor([9]), 60)  # another token at position 9
    differs = (model(idx) - model(changed)).abs().amax(2)[0] > 1e-6  # (T,)
    assert differs.tolist() == [not causal or i >= 9 for i in range(16)]


@either
def test_logits_at_positions_are_those_rows_of_all_logits_and_a_loss_is_their_mean_cross_entropy(causal):
    model = noisy(Transformer(ModelConfig(**CFG, causal=causal)))
    idx, targets = torch.randint(61, (2, 3, 16))
    logits = model(idx)  # (3, 16, V)
    expected = logits.logsumexp(-1) - logits.take_along_dim(targets[:, :, None], 2)[:, :, 0]  # (3, 16)
    predicted = torch.arange(3)[:, None], POSITIONS
    torch.testing.assert_close(model(idx, predict_at=POSITIONS), logits[predicted], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(idx, targets), expected.mean())
    loss = model(idx, targets[predicted], POSITIONS)
    torch.testing.assert_close(loss, expected[predicted].mean(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options, words", [
    (dict(positions="rotray"), "positions = 'rotray', expected learned, rotary or untied"),
    (dict(tie="mirror", n_head=1), "tie = 'mirror', n_head = 1, expected .* pairs of heads")])
def test_a_wrong_word_and_a_head_without_a_pair_are_refused_without_a_config_file_either(options, words):
    with pytest.raises(ValueError, match=words):
        Transformer(ModelConfig(**CFG | options))


def pre_norm(block, x, predict_at=None, pos=None):
    """GPT-2's block, in the two lines that the docstring of Block has."""
    x = rows_at(x, predict_at) + block.drop(block.attn(block.ln_1(x), predict_at, pos))
    return x + block.drop(block.mlp(block.ln_2(x)))
