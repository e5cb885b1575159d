"""Where the symmetric part of W_qk is, and what attention uses of it (data/runs/kernel.py). pytest tests/test_kernel.py"""

import math
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import train
from config import ConfigError
from config.updates import MatrixAdamW
from data.batches import get_batch
from data.runs.kernel import loss_with, main_directions, measure_kernel, within
from data.runs.model import open_run
from data.runs.write import KERNEL
from model import rows_at
from tests.lives import make_trainer, scores


def test_a_symmetric_kernel_over_positions_is_found_among_their_directions_and_not_among_others():
    """W = V S V^T + R, with S symmetric in the directions V of positions, and R skew in others."""
    C, n = 24, 4
    basis = torch.linalg.qr(torch.randn(C, C, dtype=torch.float64)).Q
    positions, others = basis[:, :n], basis[:, n:12]
    s, r = torch.randn(n, n).double(), torch.randn(8, 8).double()
    w = positions @ (s + s.T) @ positions.T + others @ (r - r.T) @ others.T
    x = torch.randn(100, n).double() @ positions.T
    found = main_directions(x.T @ x)
    assert found.shape == (C, n)  # not the 8 that were asked for: it has no others
    trace, energy = within(w, found)
    assert trace == pytest.approx((s + s.T).norm().item() ** 2) == pytest.approx(energy.item())
    trace, energy = within(w, others)
    assert trace == pytest.approx(-(r - r.T).norm().item() ** 2) == pytest.approx(-energy.item())
    nothing = main_directions(torch.zeros(6, 6))  # of no positions
    assert nothing.shape == (6, 0) and within(torch.randn(6, 6), nothing) == (0, 0)


def test_attention_over_x_itself_by_its_own_matrices_has_the_loss_of_the_model(cfg):
    """With the biases of q and of k, in an encoder, which predicts few rows, and in a decoder."""
    for causal in False, True:
        trainer = make_trainer(cfg, causal=causal)
        for block in trainer.model.blocks:
            for part in block.attn.q, block.attn.k, block.attn.v, block.attn.proj:
                torch.nn.init.normal_(part.weight)
                torch.nn.init.normal_(part.bias)
            w_q, w_k = [part.weight.T.unflatten(1, (2, -1)).movedim(1, 0) for part in (block.attn.q, block.attn.k)]
            with torch.no_grad():
                plain, itself = trainer.evaluate(), loss_with(trainer, block.attn, w_q @ w_k.mT, w_k)
                turned = loss_with(trainer, block.attn, w_k @ w_q.mT, w_k)
            assert itself == pytest.approx(plain, abs=1e-5) and turned != pytest.approx(plain, abs=1e-4)


def by_hand(cfg):
    """The columns of the second of two layers of a run by its checkpoint, with explicit attention, text by text."""
    model = open_run(cfg.out_dir)[0].double()
    first, block = model.blocks
    attn, D, loader = block.attn, cfg.n_embd // cfg.n_head, make_trainer(cfg).loader
    texts = [loader.batch("val", i) for i in range(16)]

    def read(idx):
        return first(model.ln_emb(model.tok_emb(idx) + model.pos_emb.weight))  # (B, T, C)

    def projection(rows):
        V = torch.linalg.svd(rows, full_matrices=False).Vh[:8]  # (8, C)
        return V.T @ V

    x = torch.cat([read(idx) for idx, *_ in texts[:8]])  # (N, T, C)
    p = x.mean(0)
    P, P_t = projection(p - p.mean(0)), projection((x - p).flatten(0, 1))
    W = attn.q.weight.T @ attn.k.weight
    size = W.square().sum()
    PWP = P @ W @ P
    kernel = torch.trace(PWP @ PWP) / size
    later = torch.cat([read(idx) for idx, *_ in texts[8:]])
    logits, of_p = [m - m.mean(-1, keepdim=True) for m in (later @ W @ later.mT, p @ W @ p.T)]

    def loss(change):
        losses = []
        for idx, targets, predict_at in texts[: cfg.eval_iters]:
            x, heads = read(idx), []
            for q, k, v, b in zip(*[w.split(D) for w in (attn.q.weight, attn.k.weight, attn.v.weight, attn.q.bias)]):
                scores = (x @ change(q.T @ k) + b @ k) @ x.mT / D**0.5
                heads.append(scores.softmax(-1) @ (x @ v.T))
            y = attn.proj(torch.cat(heads, -1) + attn.v.bias)  # rows of alpha sum to 1
            x = block.ln_1(x + y)
            x = model.head(block.ln_2(x + block.mlp(x)))
            found = F.linear(x, model.tok_emb.weight, model.head.bias)
            chosen = found.take_along_dim(predict_at[:, :, None], 1)
            losses.append(F.cross_entropy(chosen.flatten(0, 1), targets.flatten()))
        return torch.stack(losses).mean()

    numbers = [kernel, torch.trace(P_t @ W @ P_t @ P_t @ W @ P_t) / size, torch.trace(W @ W) / size - kernel,
               torch.trace(PWP @ PWP) / PWP.square().sum(), PWP.square().sum() / size,
               1 - (logits - of_p).square().sum() / logits.square().sum(),
               loss(lambda m: P @ m @ P), loss(lambda m: m - P @ m @ P), loss(lambda m: 0 * m)]
    return dict(zip(KERNEL, [number.item() for number in numbers], strict=True))


@pytest.mark.bert_block
def test_the_last_rows_of_a_run_have_the_numbers_of_other_code_and_earlier_ones_none(finished):
    rows = scores(finished)
    has_kernel = rows[[*KERNEL]].notna().all(axis=1)
    assert has_kernel.equals((rows.step == 12) & rows["head"].isna())
    with torch.no_grad():
        expected = by_hand(finished)
    found = rows[has_kernel & (rows.layer == 1)].iloc[0]
    for name in KERNEL:
        assert found[name] == pytest.approx(expected[name], abs=2e-5), name


def test_a_block_of_a_fork_and_other_positions_than_learned_ones_are_not_measured_as_what_they_are_not(cfg):
    def measured(trainer):
        return measure_kernel(trainer, *train.stacked_qk(trainer.model))

    for positions in "rotary", "untied":
        assert measured(make_trainer(cfg, positions=positions)) == [{}, {}]
    trainer = make_trainer(cfg)
    attn = trainer.model.blocks[1].attn
    attn.forward = lambda x, predict_at=None, pos=None: attn.v(rows_at(x, predict_at))  # it calls no queries_and_keys
    of_first, of_fork = measured(trainer)
    assert of_fork == {} and list(of_first) == [*KERNEL]
    assert all(map(math.isfinite, of_first.values()))


# ---- how q and k are updated -------------------------------------------------------------------------------------


def test_one_v_for_a_matrix_is_the_mean_of_what_adam_has_for_its_entries():
    """By hand for two steps; and where all entries of the gradient have one size, it is AdamW itself."""
    ours, theirs = [torch.nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1))) for _ in "ab"]
    keys = dict(lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    optimizers = MatrixAdamW([ours], **keys), torch.optim.AdamW([theirs], **keys)
    for _ in range(3):
        ours.grad = theirs.grad = 0.3 * torch.randn(4, 4).sign()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-6)

    before, g = ours.detach().clone(), torch.randn(4, 4)
    fresh = MatrixAdamW([ours], **keys)
    ours.grad = g
    fresh.step()
    assert torch.allclose(ours, before * (1 - 0.1 * 0.1) - 0.1 * g / g.square().mean().sqrt(), atol=1e-5)


def test_updates_by_one_v_or_by_muon_turn_with_the_coordinates_and_those_of_adam_do_not():
    Q = torch.linalg.qr(torch.randn(8, 8)).Q
    gradients = torch.randn(3, 8, 8)

    def moved(make, turn):
        w = torch.nn.Parameter(torch.zeros(8, 8))
        optimizer = make([w])
        for g in gradients:
            w.grad = g @ turn
            optimizer.step()
        return w.detach()

    for make, turns in [(lambda w: MatrixAdamW(w, 0.1, (0.9, 0.95), 0.0), True),
                        (lambda w: torch.optim.Muon(w, 0.1, 0.0), True),
                        (lambda w: torch.optim.AdamW(w, 0.1, weight_decay=0.0), False)]:
        error = (moved(make, Q) - moved(make, torch.eye(8)) @ Q).norm() / moved(make, Q).norm()
        assert (error < 0.05) == turns  # Muon rounds to 8 bits


OF_QK = r"blocks\.\d\.attn\.[qk]\.weight"
OF_BLOCKS = r"blocks\.\d\.(attn\.([qkv]|proj)|mlp\.(fc|proj))\.weight"


@pytest.mark.parametrize("keys, others", [(dict(qk_update="matrix"), OF_QK), (dict(qk_update="muon"), OF_QK),
                                          (dict(muon_rate=0.03), OF_BLOCKS)])
def test_a_step_with_another_update_of_some_matrices_moves_the_rest_as_adamw(cfg, keys, others):
    trainers = [make_trainer(cfg), make_trainer(cfg, **keys)]
    for trainer in trainers:
        weights = sum([group["params"] for group in trainer.optimizer.param_groups], [])
        assert sorted(map(id, weights)) == sorted(map(id, trainer.model.parameters()))  # each is in one group
        trainer.train_step(trainer.loader.batch("train", 0))
    first, second = [dict(trainer.model.named_parameters()) for trainer in trainers]
    differing = {name for name in first if not torch.equal(first[name], second[name])}
    assert differing == {name for name in first if re.fullmatch(others, name)}


def test_rates_fall_to_a_tenth_by_decay_iters_each_from_its_own_peak(cfg):
    cfg = replace(cfg, warmup_iters=2, max_iters=40, decay_iters=10, muon_rate=0.03)
    trainer = make_trainer(cfg)
    rates = []
    for step in 0, 1, 6, 9, 30:
        trainer.step = step
        trainer.train_step(trainer.loader.batch("train", step))
        matrices, _, of_blocks = trainer.optimizer.param_groups
        assert matrices["lr"] / cfg.learning_rate == pytest.approx(of_blocks["lr"] / 0.03)
        rates.append(of_blocks["lr"] / 0.03)
    assert rates == pytest.approx([1 / 2, 1, 4 / 8, 1 / 8, 1 / 10])
    with pytest.raises(ConfigError, match="Muon updates q.weight"):
        replace(cfg, tie="same")


def test_adamw_and_no_skipped_steps_are_what_runs_did_before(cfg):
    trainer = make_trainer(cfg)
    assert type(trainer.optimizer) is torch.optim.AdamW
    plain, later = trainer.loader, make_trainer(cfg, skip_iters=5).loader
    tuned = make_trainer(cfg, skip_eval_iters=cfg.eval_iters).loader  # does not see the batches of the score
    assert all(map(torch.equal, plain.batch("train", 3), get_batch(cfg, trainer.corpus, "train", 3, plain.rows)))
    for loader, split, step in (later, "train", 3 + 5), (later, "val", 3), (tuned, "train", 3), (tuned, "val", 3 + 2):
        assert all(map(torch.equal, loader.batch(split, 3), plain.batch(split, step)))
