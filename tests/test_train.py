"""train.py: what a step sees, what a run leaves behind, and what it says. pytest tests/test_train.py"""

import json
import math
import re
from collections import namedtuple
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import analyze
import train
from config import ConfigError, load
from data import batches, tokens
from data.batches import split_batch
from data.runs import curves, write
from data.tokens import Corpus
from model import ModelConfig, Transformer, rows_at
from tests.lives import CPU, FINISH, SMALL, checkpoint, log, make_trainer, run, scores


@pytest.fixture
def corpus(data_dir):
    return tokens.load(data_dir)


def test_an_epoch_holds_every_block_once_and_the_next_one_in_another_order(cfg):
    cfg, ids = replace(cfg, causal=True), np.arange(21 * 16)  # 20 blocks of 16 tokens with a next one: 2.5 steps of 8
    steps = [batches.get_batch(cfg, Corpus({}, ids, ids), "train", step, np.arange(8)) for step in range(5)]
    idx, targets = map(torch.cat, zip(*steps))  # (40, 16) each: two epochs
    assert torch.equal(targets, idx + 1) and torch.equal(idx, idx[:, :1] + torch.arange(16))
    first, second = idx[:20, 0].tolist(), idx[20:, 0].tolist()
    assert sorted(first) == sorted(second) == list(range(0, 20 * 16, 16))
    assert first != second and first != sorted(first)


def test_a_row_depends_on_seed_step_and_its_number_alone_and_a_decoder_sees_the_same_text(cfg, corpus):
    def get(seed, step, rows, causal):
        changed = replace(cfg, seed=seed, causal=causal, mlm_probability=0.17)
        return batches.get_batch(changed, corpus, "train", step, np.array(rows))

    encoder, decoder = get(1, 7, range(8), False), get(1, 7, range(8), True)
    for causal, whole in (False, encoder), (True, decoder):
        for part in [0, 1, 2], [5], [7, 3]:
            assert all(torch.equal(x, y[part]) for x, y in zip(get(1, 7, part, causal), whole))
        for other in get(2, 7, range(8), causal), get(1, 8, range(8), causal):
            assert not any(map(torch.equal, other, whole))  # neither texts nor masks
    masked, targets, positions = encoder
    assert targets.shape == (8, 3)  # 2.7 of 16 tokens are to be masked
    assert torch.equal(masked.scatter(1, positions, targets), decoder[0])


def test_masking_is_of_a_fixed_count_in_the_shares_asked_for_and_touches_nothing_else():
    T, K, B = 64, 10, 4000
    meta = dict(mask_token=257, n_vocab=256)
    idx = torch.randint(256, (B, T))
    draws = torch.from_numpy(np.random.default_rng(0).random((B, T + 2 * K), dtype=np.float32))
    masked, targets, positions = batches.mask_tokens(idx, draws, K, meta, mask_share=0.6, random_share=0.3)
    assert all(len(set(row)) == K for row in positions.tolist())
    assert torch.equal(targets, idx.gather(1, positions))
    untouched = torch.ones(B, T, dtype=bool).scatter(1, positions, False)
    assert torch.equal(masked[untouched], idx[untouched])
    seen = masked.gather(1, positions)
    assert (seen == 257).float().mean() == pytest.approx(0.6, abs=0.01)
    assert (seen == targets).float().mean() == pytest.approx(0.1 + 0.3 / 256, abs=0.01)
    assert seen[(seen != 257) & (seen != targets)].unique().tolist() == list(range(256))
    counts = torch.zeros(T).scatter_add(0, positions.flatten(), torch.ones(B * K)) / B
    assert counts.std() < 3 * (K / T / B) ** 0.5  # every position is masked as often as any other


@pytest.mark.parametrize("keys", ["", "causal=True", "causal=True objective=masked", "causal=True positions=rotary",
                                  "causal=True objective=masked positions=untied", "tie=mirror", "positions=untied"])
def test_no_logit_sees_the_token_that_it_is_to_predict(cfg, corpus, keys):
    """In a text that differs in one target, its logit is the same. A new objective or mask is one more line of keys."""
    flags = load([f"--{key}" for key in [*keys.split(), "mask_share=1.0", "random_share=0.0"]])  # no target is shown
    cfg = replace(flags, **SMALL)
    model = Transformer(cfg.of_model(258)).double().eval()
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5)

    def predict(ids):
        idx, targets, *predict_at = batches.get_batch(cfg, Corpus(corpus.meta, ids, ids), "train", 0, np.arange(8))
        logits = model(idx)  # (B, T, V)
        return rows_at(logits, predict_at[0]) if predict_at else logits, targets

    ids = np.array(corpus.train[: 8 * 16 + 1])
    logits, targets = predict(ids)
    n_changed, n_seen = 0, 0
    for place in range(1, len(ids)):
        other = ids.copy()
        other[place] = (ids[place] + 1) % 256
        found, changed = predict(other)
        is_changed = targets != changed
        n_changed += int(is_changed.sum())
        assert torch.allclose(found[is_changed], logits[is_changed], atol=1e-9), f"the logit sees target {place}"
        n_seen += not torch.equal(found, logits)  # by other logits
    assert n_changed == (targets.numel() if cfg.predicts_next else 8 * 2) and n_seen > 30


def test_a_batch_is_split_over_processes_and_micro_batches_or_refused(cfg):
    for world, expected in (1, 4), (2, 4), (8, 1):
        assert split_batch(cfg, world) == replace(cfg, micro_batch_size=expected)
    for world, micro in (3, 4), (1, 5), (16, 4):
        with pytest.raises(ConfigError, match=f"batch_size = 8, expected a multiple of {world} processes x"):
            split_batch(replace(cfg, micro_batch_size=micro), world)


def test_a_corpus_that_is_too_small_is_refused_where_tokens_would_be_validated_on_twice(cfg, corpus):
    cfg = replace(cfg, batch_size=1, eval_iters=10, block_size=(len(corpus.val) - 1) // 10)
    batches.Loader(cfg, corpus, CPU)
    short = corpus._replace(train=corpus.train[: cfg.block_size])  # a block needs one more token as the last target
    too_long, too_late = replace(cfg, block_size=cfg.block_size + 1), replace(cfg, skip_eval_iters=1)
    for keys, of_files in (too_long, corpus), (too_late, corpus), (cfg, short):
        with pytest.raises(ConfigError, match="expected more than"):
            batches.Loader(keys, of_files, CPU)


def test_a_score_of_a_fork_has_a_name_of_its_own_and_a_number_for_each_head_and_keys_are_not_grouped(monkeypatch):
    w_q, w_k = torch.randn(2, 1, 12, 6)  # of two key heads for four query heads, as layer_factors returns them
    with pytest.raises(ConfigError, match=r"W_q or W_k is \(1, 12, 6\), expected \(L, C, C\)"):
        write.score_rows(0, "wqk", [2], (w_q, w_k), None)
    for numbers, error in (dict(symmetry=torch.ones(2), chance=torch.ones(2)), TypeError), (
            dict(symmetry=torch.ones(2), size=torch.tensor(1.0)), RuntimeError):
        of_fork = namedtuple("Scores", numbers)(**numbers)
        monkeypatch.setattr(write, "scores", lambda *_, of_fork=of_fork: of_fork)
        with pytest.raises(error):
            write.score_heads(*torch.randn(4, 2, 12, 3))


@pytest.mark.parametrize("size", [1e-5, 1])
def test_the_rows_of_a_run_are_the_definitions_of_each_head_layer_and_update(size):
    old = torch.randn(2, 2, 12, 12)  # W_q and W_k of two layers, (2, L, C, C), in float32, as a run holds them
    new = old + size * torch.randn_like(old)  # if it is small, W_qk - its old value would lose most digits
    rows = write.score_rows(5, "positions", [3, 3], new, old)
    places = list(product([5], ["positions"], [0, 1], ["", 0, 1, 2]))
    assert [(row["step"], row["matrix"], row["layer"], row["head"]) for row in rows] == places
    for row in rows:
        columns = slice(None) if row["head"] == "" else slice(4 * row["head"], 4 * row["head"] + 4)
        w_q, w_k = new.double()[:, row["layer"], :, columns]
        old_q, old_k = old.double()[:, row["layer"], :, columns]
        m, before = w_q @ w_k.T, old_q @ old_k.T
        for x, value in (m, row["symmetry"]), (m - before, row["update_symmetry"]):
            assert value == pytest.approx(((x @ x).trace() / x.square().sum()).item(), abs=1e-5)
        assert row["directionality"] == pytest.approx(analyze.directionality(m).item(), abs=1e-5)
        assert row["chance"] == pytest.approx((m @ m).norm().item() ** 2 / m.norm().item() ** 4, abs=1e-5)


def test_the_last_rows_of_a_run_have_what_95_of_100_random_matrices_stay_below(finished):
    rows = scores(finished)
    is_last = (rows.step == 12) & rows["head"].isna()
    assert rows["symmetry_95"].notna().equals(is_last) and is_last.sum() == 2
    weights = checkpoint(finished)["model"]
    for row in rows[is_last].itertuples():
        w_q, w_k = [weights[f"blocks.{row.layer}.attn.{part}.weight"].T.double() for part in "qk"]
        u, s, vt = torch.linalg.svd(w_q @ w_k.T)
        z = torch.randn(2000, 16, 16).double()
        drawn = analyze.symmetry((u * s) @ u.T @ z @ (vt.T * s) @ vt)
        assert row.symmetry_95 == pytest.approx(drawn.quantile(0.95).item(), rel=0.25)


def test_rows_are_written_by_name_and_never_under_the_columns_of_other_code():
    text = write.add_rows("", [dict(step=1, symmetry=0.5), dict(symmetry=math.nan, step=2)], "%.6f")
    assert text == "step,symmetry\n1,0.500000\n2,\n"
    for row in dict(step=3, symmetry=1.0, more=2.0), dict(step=3), dict(symmetry=1.0, step=3):
        with pytest.raises(ConfigError, match="other columns"):
            write.add_rows(text, [row], "%.6f")


@pytest.mark.bert_block
@pytest.mark.parametrize("module", ["attn", "attn.q"])
def test_a_parameter_of_attention_that_scores_would_leave_out_is_refused(module):
    """An adapter beside q, or in q, in the last block."""
    model = Transformer(ModelConfig(61, 16, 2, 2, 16))
    train.require_known_parameters(model)
    model.blocks[1].get_submodule(module).gain = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ConfigError, match=f"attention has a parameter blocks.1.{module}.gain"):
        train.require_known_parameters(model)


# ---- what a run leaves behind ------------------------------------------------------------------------------------


def test_a_run_leaves_what_the_contract_says(finished):
    out = Path(finished.out_dir)
    assert {p.name for p in out.iterdir()} == {".lock", "ckpt.pt", "run.json", "log.csv", "scores.csv"}  # and run.png
    rows = log(finished)
    assert list(rows.step) == [0, 4, 8, 12] and list(rows.tokens) == [8 * 16 * step for step in (0, 4, 8, 12)]
    assert rows.val_loss[3] < rows.val_loss[0] == pytest.approx(math.log(258), abs=0.1)
    rows = scores(finished).fillna(-1)
    assert list(zip(rows.step, rows.layer, rows["head"])) == list(product([0, 3, 6, 9, 12], [0, 1], [-1, 0, 1]))
    run_json = json.loads((out / "run.json").read_text())
    assert run_json["config"]["n_embd"] == 16 and run_json["lengths"] == [12] and all(run_json["origin"].values())


def test_rows_and_lines_have_the_mean_training_loss_and_the_speed_of_their_steps_alone(cfg, monkeypatch, capsys):
    seconds = count()  # one passes from a look at the clock to the next
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(train, "SAY_EVERY", -1)  # there is no bar here, so a line says how far the run is
    run(cfg)  # the loss is read at steps 3 and 4; 6 and 8; 9, 10 and 12
    rows = log(cfg)
    assert list(rows.tokens_per_s[1:]) == pytest.approx([4 * 8 * 16 / 2, 4 * 8 * 16 / 2, 4 * 8 * 16 / 3])
    trainer, losses = make_trainer(cfg), []
    for step in range(12):  # not trainer.loader.train_batches, which makes them ahead
        trainer.train_step(trainer.loader.batch("train", step))
        losses.append(trainer.unread[-1].item())
    np.testing.assert_allclose(rows.train_loss[1:], np.reshape(losses, (3, 4)).mean(1), atol=1e-5)
    said = capsys.readouterr().out
    symmetry = " ".join(f"{s:.2f}" for s in scores(cfg).query("step == 12 and head.isna()").symmetry)
    assert (f"step 12/12: val_loss {rows.val_loss[3]:.4f}, train_loss {rows.train_loss[3]:.4f}, 171 tokens/s, "
            f"symmetry of layers {symmetry}\n") in said
    assert f"step 3/12: train_loss {np.mean(losses[:3]):.4f}, 384 tokens/s, 0 minutes left\n" in said
    assert said.count("minutes left") == 7  # at every look


@pytest.mark.bert_block
def test_untied_positions_have_scores_of_their_own_and_a_run_is_scored_from_its_checkpoint(cfg, analysed):
    run(cfg, positions="untied", max_iters=2)
    rows, weights = scores(cfg).query("step == 2 and head.isna()"), checkpoint(cfg)["model"]
    assert rows[[*write.KERNEL]].isna().all(axis=None)
    assert list(zip(rows.matrix, rows.layer)) == [("wqk", 0), ("wqk", 1), ("positions", 0), ("positions", 1)]
    for row in rows.itertuples():
        part = f"blocks.{row.layer}.attn.{'' if row.matrix == 'wqk' else 'pos_'}"
        m = weights[f"{part}q.weight"].T @ weights[f"{part}k.weight"]
        assert row.symmetry == pytest.approx((m @ m).trace().item() / m.norm().item() ** 2, abs=1e-4)
        assert row.directionality == pytest.approx(analyze.directionality(m).item(), abs=1e-4)  # rows are of queries
    found = analysed("--hf", cfg.out_dir).table
    assert list(found.directionality) == pytest.approx(list(rows.directionality[:2]), abs=1e-5)


def test_a_run_is_drawn_while_it_runs_and_ends_with_a_table(cfg, monkeypatch, capsys):
    drawn = []  # how many rows there were
    monkeypatch.setattr(train, "finish", FINISH)
    plot = curves.plot_layers
    monkeypatch.setattr(curves, "plot_layers", lambda *words: drawn.append(len(log(cfg))) or plot(*words))
    monkeypatch.setattr(train, "DRAW_EVERY", 0)
    run(cfg)
    assert drawn == [2, 3, 4]
    assert Path(cfg.out_dir, "run.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    symmetry = scores(cfg).query("layer == 1 and head.isna()").symmetry.tolist()
    assert f"\n1 {symmetry[0]:.2f} {symmetry[-1]:.2f} " in re.sub(" +", " ", said)
    assert f"validation loss {log(cfg).val_loss[3]:.4f}" in said
