"""What a step of train.py does, against transformers' BERT in a plain loop of torch. pytest tests/test_recipe.py"""

from functools import partial

import pytest
import torch

import init
from data.batches import torch_seed
from data.export import to_bert, to_hf
from model import ModelConfig, Transformer
from tests.lives import make_trainer
from tests.test_model import either


@pytest.fixture
def trainer(cfg):
    """Makes the Trainer of a small run: two micro-batches a step; without dropout unless a test asks for it."""
    return partial(make_trainer, cfg, dropout=0.0, attn_dropout=0.0)


def test_a_run_begins_with_the_model_that_its_keys_describe(trainer):
    of_model = dict(causal=True, dropout=0.3, attn_dropout=0.2, positions="untied", init_std=0.04)
    ours = trainer(seed=3, init="skew", qk_std="linear", v_std=0.1, **of_model)
    torch.manual_seed(3)
    expected = Transformer(ModelConfig(258, 16, 2, 2, 16, **of_model))
    init.apply_(expected, "skew", qk_std=(3 * 16) ** -0.5, v_std=0.1, seed=torch_seed("start", 3))
    assert ours.model.cfg == expected.cfg
    assert all(map(torch.equal, ours.model.parameters(), expected.parameters()))


def plain_loop(hf, cfg, batches):
    """What one would write with torch and transformers alone -> the loss of every step."""
    hf.bert.embeddings.token_type_embeddings.requires_grad_(False)  # a vector that ours does not have
    matrices, others = [], []
    for name, p in hf.named_parameters():
        (others if name.endswith("bias") or "LayerNorm" in name else matrices).append(p)
    optimizer = torch.optim.AdamW([
        dict(params=matrices, weight_decay=cfg.weight_decay),
        dict(params=others, weight_decay=0.0),
    ], lr=cfg.learning_rate, betas=(0.9, cfg.beta2))
    rise, end = cfg.warmup_iters, cfg.max_iters
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / rise, (end - t) / (end - rise)))
    losses = []
    for idx, targets, *positions in batches:
        labels = targets
        if not cfg.causal:
            labels = torch.full_like(idx, -100).scatter(1, positions[0], targets)
        logits = hf(idx).logits  # of the whole batch, which the trainer splits into two
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), cfg.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        losses.append(loss.item())
    return losses


@pytest.mark.bert_block
@either
def test_fifty_steps_are_those_of_transformers_in_a_plain_loop(trainer, causal):
    """The loss of every step, and the weights at the end. The clip is active, and weight decay large."""
    ours = trainer(causal=causal, max_iters=50, warmup_iters=10, grad_clip=0.1, beta2=0.9, weight_decay=0.5)
    batches = list(ours.loader.train_batches(0))
    hf = to_bert(ours.model)
    expected = plain_loop(hf, ours.cfg, batches)
    losses = []
    for batch in batches:
        ours.train_step(batch)
        losses.append(ours.unread[-1].item())
    assert losses == pytest.approx(expected, abs=1e-5) and losses[-1] < losses[0] - 0.5
    theirs = hf.state_dict()
    for name, weight in to_hf(ours.model)[1].items():
        if not name.endswith("key.bias"):  # which the softmax does not see: rounding alone moves it
            torch.testing.assert_close(weight, theirs[name], atol=1e-4, rtol=1e-4, msg=lambda m: f"{name}: {m}")


@pytest.mark.bert_block
@either
def test_dropout_is_where_transformers_has_it_and_as_much(trainer, causal):
    """After the embeddings, on the attention weights, after attention, after the MLP: with the same random numbers,
    drawn in this order, both models are the same."""
    ours = trainer(causal=causal, dropout=0.3, attn_dropout=0.2)
    hf, idx = to_bert(ours.model).train(), ours.loader.batch("train", 0)[0]
    torch.manual_seed(0)
    expected = hf(idx).logits
    torch.manual_seed(0)
    torch.testing.assert_close(ours.model(idx), expected)


def test_every_micro_batch_of_every_step_and_seed_has_other_dropout(trainer):
    """The loss of the same four sequences, with the same weights, which do not move."""
    weights, batch = trainer().model.state_dict(), [x[:4].repeat(2, 1) for x in trainer().loader.batch("train", 0)]
    losses = set()
    for seed in 1, 2:
        ours = trainer(learning_rate=1e-30, seed=seed, dropout=0.3)
        ours.model.load_state_dict(weights)
        ours.model.double()  # in float32 two losses may be the same by chance
        ours.model.register_forward_hook(lambda model, args, loss: losses.add(loss.item()))
        for _ in range(3):
            ours.train_step(batch)
    assert len(losses) == 2 * 3 * 2


def test_float16_clips_gradients_at_their_own_size_and_skips_an_update_that_overflows(trainer):
    norms = []
    for dtype in "float32", "float16":
        ours = trainer(dtype=dtype, grad_clip=10.0)  # which the gradient of the scaled loss would reach
        ours.optimizer.register_step_pre_hook(lambda *_, ours=ours: norms.append(
            torch.nn.utils.get_total_norm([p.grad for p in ours.model.parameters()]).item()))
        ours.train_step(ours.loader.batch("train", 0))
    assert norms[1] == pytest.approx(norms[0], rel=0.01) and norms[1] != norms[0] < 5
    w, scale = ours.model.tok_emb.weight, ours.scaler.get_scale()
    before = w.detach().clone()
    w.register_hook(lambda grad: torch.full_like(grad, torch.inf))
    ours.train_step(ours.loader.batch("train", 1))
    assert torch.equal(w, before) and ours.scaler.get_scale() == scale / 2
