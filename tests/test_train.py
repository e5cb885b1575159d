"""train.py: what a step sees, what a run leaves behind, and what it says. pytest tests/test_train.py"""

import json
import math
import os
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import analyze
import train
from config import ConfigError, load, processes
from config.processes import Place
from data import batches, tokens
from data.batches import count_targets, split_batch
from data.results import records, runs
from data.tokens import Corpus
from model import Block, ModelConfig, Transformer
from tests.lives import (FINISH, argv, begin_ranks, checkpoint, compile_quickly, end, log, make_trainer, refusal, run,
                         scores)


@pytest.fixture
def corpus(data_dir):
    return tokens.load(data_dir)


# ---- what a step sees --------------------------------------------------------------------------------------------


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
        return batches.get_batch(replace(cfg, seed=seed, causal=causal), corpus, "train", step, np.array(rows))

    encoder, decoder = get(1, 7, range(8), False), get(1, 7, range(8), True)
    for causal, whole in (False, encoder), (True, decoder):
        for part in [0, 1, 2], [5], [7, 3]:
            assert all(torch.equal(x, y[part]) for x, y in zip(get(1, 7, part, causal), whole))
        for other in get(2, 7, range(8), causal), get(1, 8, range(8), causal):
            assert not any(map(torch.equal, other, whole))  # neither texts nor masks
    masked, targets, positions = encoder
    assert torch.equal(masked.scatter(1, positions, targets), decoder[0])


def test_no_two_purposes_have_the_same_random_numbers(cfg, monkeypatch):
    """Orders, masks, the same two of validation, a start and dropout: a run draws each from a stream of its own."""
    drawn, seed_of = {}, batches.seed_of

    def watched(stream, *numbers):
        seed = seed_of(stream, *numbers)
        drawn.setdefault(stream, set()).add(tuple(seed.generate_state(2)))
        return seed

    monkeypatch.setattr(batches, "seed_of", watched)
    batches.block_order.cache_clear()
    run(cfg, seed=0, max_iters=3)  # validation has the seed 0 too
    assert set(drawn) == set(batches.STREAMS)
    assert len(set().union(*drawn.values())) == sum(map(len, drawn.values()))


def test_as_many_tokens_are_masked_as_are_nearest_to_the_share_that_was_asked_for(cfg):
    shares = (16, 0.15), (18, 0.15), (16, 0.04)  # 2.4 tokens, 2.7 and 0.64
    assert [count_targets(replace(cfg, block_size=T, mlm_probability=p)) for T, p in shares] == [2, 3, 1]


@pytest.mark.parametrize("mask_share, random_share", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.5)])
def test_masking_is_of_a_fixed_count_in_the_shares_asked_for_and_touches_nothing_else(mask_share, random_share):
    T, K, B = 64, 10, 4000
    meta = dict(mask_token=257, n_vocab=256)
    idx = torch.randint(256, (B, T))
    draws = torch.from_numpy(np.random.default_rng(0).random((B, T + 2 * K), dtype=np.float32))
    masked, targets, positions = batches.mask_tokens(idx, draws, K, meta, mask_share, random_share)
    assert all(len(set(row)) == K for row in positions.tolist())
    assert torch.equal(targets, idx.gather(1, positions))
    untouched = torch.ones(B, T, dtype=bool).scatter(1, positions, False)
    assert torch.equal(masked[untouched], idx[untouched])
    seen = masked.gather(1, positions)
    assert (seen == 257).float().mean() == pytest.approx(mask_share, abs=0.01)
    stays = 1 - mask_share - random_share
    assert (seen == targets).float().mean() == pytest.approx(stays + random_share / 256, abs=0.01)
    others = seen[(seen != 257) & (seen != targets)].unique().tolist()
    assert others == (list(range(256)) if random_share else [])
    of_first = masked[:, 0][positions[:, 0] == 0]  # what becomes of a token does not depend on where it stands
    assert (of_first == 257).float().mean() == pytest.approx(mask_share, abs=0.06)
    counts = torch.zeros(T).scatter_add(0, positions.flatten(), torch.ones(B * K)) / B
    assert counts.std() < 3 * (K / T / B) ** 0.5  # every position is masked as often as any other


def test_a_batch_is_split_over_processes_and_micro_batches_or_refused(cfg):
    for world, expected in (1, 4), (2, 4), (8, 1):
        assert split_batch(cfg, world) == replace(cfg, micro_batch_size=expected)
    for world, micro in (3, 4), (1, 5), (16, 4):
        with pytest.raises(ConfigError, match=f"batch_size = 8, expected a multiple of {world} processes x"):
            split_batch(replace(cfg, micro_batch_size=micro), world)


def test_a_corpus_that_is_too_small_is_refused_where_tokens_would_be_validated_on_twice(cfg, corpus):
    n = len(corpus.val)
    for eval_iters in 1, 10:  # of other tokens each
        cfg = replace(cfg, batch_size=1, eval_iters=eval_iters, block_size=(n - 1) // eval_iters)
        batches.open_corpus(cfg)
        with pytest.raises(ConfigError, match="expected more than"):
            batches.open_corpus(replace(cfg, block_size=cfg.block_size + 1))


def test_the_rows_of_a_run_are_the_definitions_of_each_head_layer_and_small_update():
    old = torch.randn(2, 2, 12, 12)  # W_q and W_k of two layers, (2, L, C, C), in float32, as a run holds them
    new = old + 1e-5 * torch.randn_like(old)  # W_qk - its old value would lose most digits
    rows = runs.score_rows(5, "positions", [3, 3], new, old, analyze.scores)
    assert [tuple(row.values())[:4] for row in rows] == [
        (5, "positions", layer, head) for layer in range(2) for head in ("", 0, 1, 2)]
    for row in rows:
        columns = slice(None) if row["head"] == "" else slice(4 * row["head"], 4 * row["head"] + 4)
        w_q, w_k = new.double()[:, row["layer"], :, columns]
        old_q, old_k = old.double()[:, row["layer"], :, columns]
        m, before = w_q @ w_k.T, old_q @ old_k.T
        for x, value in (m, row["symmetry"]), (m - before, row["update_symmetry"]):
            assert value == pytest.approx(((x @ x).trace() / x.square().sum()).item(), abs=1e-5)
        assert row["directionality"] == pytest.approx(analyze.directionality(m).item(), abs=1e-5)
        assert row["chance"] == pytest.approx((m @ m).norm().item() ** 2 / m.norm().item() ** 4, abs=1e-5)


def test_rows_are_written_by_name_and_never_under_the_columns_of_other_code():
    text = runs.add_rows("", [dict(step=1, symmetry=0.5), dict(step=2, symmetry=math.nan)])
    assert text == "step,symmetry\n1,0.500000\n2,\n"
    for row in dict(step=3, symmetry=1.0, more=2.0), dict(step=3), dict(symmetry=1.0, step=3):
        with pytest.raises(runs.RunError, match="other columns"):
            runs.add_rows(text, [row])
    with pytest.raises(ValueError, match="more"):
        runs.add_rows("", [dict(step=1), dict(step=2, more=2.0)])


def test_attention_compares_tokens_by_the_matrix_that_is_scored(monkeypatch):
    """A fork that fails here changes stacked_qk, unless only positions or norms are between W_qk and the logits."""
    compared = []  # q k^T, summed over heads (B, T, T)

    def watched(q, k, *args, attention=torch.nn.functional.scaled_dot_product_attention, **kwargs):
        compared.append((q @ k.mT).sum(1))
        return attention(q, k, *args, **kwargs)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", watched)
    model = Transformer(ModelConfig(61, 16, 3, 4, 32, init_std=0.2)).eval()  # whose biases are 0
    x = torch.randn(2, 16, 32)
    for block, w_q, w_k in zip(model.blocks, *train.stacked_qk(model)):
        compared.clear()
        block.attn(x)
        torch.testing.assert_close(sum(compared), x @ (w_q @ w_k.T) @ x.mT, atol=1e-4, rtol=1e-4)


@pytest.mark.bert_block
@pytest.mark.parametrize("name", ["attn.q_a.weight", "attn.q.a.weight", "attn_2.q.weight", "attn.gain", "attn.q.gain"])
def test_a_parameter_that_scores_would_leave_out_ends_a_run_before_it_begins(cfg, monkeypatch, name):
    """An adapter beside q or in q; another attention; the gain of a norm of queries and keys. In the last block."""
    def adapted(cfg, number=count()):
        block = Block(cfg)
        block.attn_2 = torch.nn.Module()
        block.attn_2.q, block.attn.q_a, block.attn.q.a = [torch.nn.Module() for _ in range(3)]
        if next(number) % 2 == 1:
            module, _, parameter = name.rpartition(".")
            block.get_submodule(module).register_parameter(parameter, torch.nn.Parameter(torch.ones(2)))
        return block

    monkeypatch.setattr("model.Block", adapted)
    assert f"attention has a parameter blocks.1.{name}" in refusal(cfg) and not Path(cfg.out_dir).exists()


# ---- what a run leaves behind ------------------------------------------------------------------------------------


def test_a_run_leaves_what_the_contract_says(finished):
    out = Path(finished.out_dir)
    assert {p.name for p in out.iterdir()} == {".lock", "ckpt.pt", "run.json", "log.csv", "scores.csv", "run.png"}
    rows = log(finished)
    assert list(rows.step) == [0, 4, 8, 12] and list(rows.tokens) == [8 * 16 * step for step in (0, 4, 8, 12)]
    assert rows.val_loss[3] < rows.val_loss[0] == pytest.approx(math.log(258), abs=0.1)
    rows = scores(finished).fillna(-1)
    assert list(zip(rows.step, rows.layer, rows["head"])) == list(product([0, 3, 6, 9, 12], [0, 1], [-1, 0, 1]))
    assert list(rows) == ["step", "matrix", "layer", "head", "symmetry", "directionality", "directionality_eq17",
                          "update_symmetry", "chance"]
    run_json = json.loads((out / "run.json").read_text())
    assert set(run_json) == {"config", "data", "n_params", "lengths", "origin"} and run_json["lengths"] == [12]
    assert set(run_json["origin"]) == {"commit", "torch", "device_name"} and all(run_json["origin"].values())
    assert run_json["config"]["n_embd"] == 16 and "out_dir" not in run_json["config"]


def test_the_rows_have_the_mean_training_loss_and_the_speed_of_their_steps_alone(cfg, monkeypatch):
    seconds = count()  # one passes from a look at the clock to the next
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    run(cfg)  # the loss is read at steps 3 and 4; 6 and 8; 9, 10 and 12
    assert list(log(cfg).tokens_per_s[1:]) == [4 * 8 * 16 / 2, 4 * 8 * 16 / 2, round(4 * 8 * 16 / 3)]
    trainer, losses = make_trainer(cfg), []
    for step in range(12):  # not trainer.loader.train_batches, which makes them ahead
        trainer.train_step(trainer.loader.batch("train", step))
        losses.append(trainer.unread[-1].item())
    np.testing.assert_allclose(log(cfg).train_loss[1:], np.reshape(losses, (3, 4)).mean(1), atol=1e-5)


def test_every_line_of_the_log_has_the_symmetry_of_each_layer_or_of_many_layers_their_range(cfg, capsys):
    run(cfg, max_iters=4, score_interval=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    for step, line in zip((0, 4), lines, strict=True):
        found = scores(cfg).query(f"step == {step} and head.isna()").symmetry
        assert [float(word) for word in line.split("symmetry ")[1].split()] == [round(x, 2) for x in found]
    row = runs.LogRow(200_000, 10**9, 10.123456, 10.123456, 1e-5, 12_345_678.0)
    line = runs.log_line(row, 200_000, [-0.5, *11 * [0.25], 0.987], 0.414)
    assert "symmetry -0.50 to 0.99, median 0.25" in line and "41% of the card" in line and len(line) <= 150
    assert len(runs.log_line(row, 200_000, 6 * [-0.25], 0.414)) <= 150


def test_on_a_known_card_the_log_says_which_share_of_its_operations_a_run_uses(cfg, capsys, monkeypatch):
    monkeypatch.setitem(processes.PEAKS, "cpu", 1e9)
    run(cfg, max_iters=4, causal=True)
    T, C, L, V = cfg.block_size, cfg.n_embd, cfg.n_layer, 258
    n_weights = L * 12 * C * C + C * C + V * C  # of matrices; each costs 2 operations, and 4 more in the backward pass
    per_token = 6 * n_weights + 12 * L * C * T  # as in nanoGPT
    share = log(cfg).tokens_per_s[1] * per_token / 1e9
    assert f"{share:.0%} of the card" in capsys.readouterr().out
    masked = load(["config/bert.py"])
    assert 0.8 < train.operations_per_token(masked, 50304) / (6 * 12 * 12 * 768**2) < 1.3  # of the blocks alone


@pytest.mark.bert_block
def test_a_run_is_scored_from_its_checkpoint(cfg, analysed):
    run(cfg, max_iters=2, causal=True, qk_norm=True)
    of_layers = scores(cfg).query("step == 2 and head.isna()")
    found = analysed("--hf", cfg.out_dir)
    assert not found.status and found.table.causal.all()
    for score in "symmetry", "directionality":  # which tells queries from keys
        assert list(found.table[score]) == pytest.approx(list(of_layers[score]), abs=1e-5)


@pytest.mark.bert_block
def test_every_layer_may_have_its_own_number_of_heads(cfg, monkeypatch):
    def of_heads(cfg, number=count()):
        block = Block(cfg)
        block.attn.n_head = (2, 4)[next(number) % 2]
        return block

    monkeypatch.setattr("model.Block", of_heads)
    run(cfg, max_iters=3)
    rows, weights = scores(cfg).query("step == 3 and head.notna()"), checkpoint(cfg)["model"]
    assert list(zip(rows.layer, rows["head"])) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    for row in rows.itertuples():
        w_q, w_k = [weights[f"blocks.{row.layer}.attn.{part}.weight"].chunk((2, 4)[row.layer]) for part in "qk"]
        m = w_q[int(row.head)].T @ w_k[int(row.head)]
        assert row.symmetry == pytest.approx((m @ m).trace().item() / m.square().sum().item(), abs=1e-5)


@pytest.mark.bert_block
def test_untied_positions_have_scores_of_their_own_beside_those_of_wqk(cfg):
    run(cfg, positions="untied", max_iters=2)
    rows, weights = scores(cfg).query("step == 2 and head.isna()"), checkpoint(cfg)["model"]
    assert list(zip(rows.matrix, rows.layer)) == [("wqk", 0), ("wqk", 1), ("positions", 0), ("positions", 1)]
    for row in rows.itertuples():
        part = f"blocks.{row.layer}.attn.{'' if row.matrix == 'wqk' else 'pos_'}"
        m = weights[f"{part}q.weight"].T @ weights[f"{part}k.weight"]
        assert row.symmetry == pytest.approx((m @ m).trace().item() / m.norm().item() ** 2, abs=1e-4)
        assert row.directionality == pytest.approx(analyze.directionality(m).item(), abs=1e-4)  # rows are of queries
        assert row.chance == pytest.approx((m @ m).norm().item() ** 2 / m.norm().item() ** 4, abs=1e-4)


def test_a_run_ends_with_a_table_a_picture_and_samples_also_if_its_name_is_a_formula_to_matplotlib(
        cfg, monkeypatch, capsys):
    monkeypatch.setattr(train, "finish", FINISH)
    cfg = replace(cfg, max_iters=2, causal=True, block_size=1, out_dir=cfg.out_dir + "_$5_$10")
    run(cfg)
    said = capsys.readouterr().out
    assert Path(cfg.out_dir, "run.png").read_bytes().startswith(b"\x89PNG") and "validation text" in said
    first, last = scores(cfg).query("layer == 1 and head.isna()").symmetry  # at steps 0 and 2
    (line,) = [line.split() for line in said.splitlines() if line.startswith("    1  ")]
    assert line[1:3] == [f"{first:.2f}", f"{last:.2f}"] and f"validation loss {log(cfg).val_loss[1]:.4f}" in said


def test_memory_is_kept_by_the_program_and_not_in_a_notebook_that_trains(cfg, monkeypatch):
    monkeypatch.setattr(analyze, "keep_memory", lambda: pytest.fail("a notebook keeps its memory as it likes"))
    run(cfg, max_iters=1)
    assert Path(train.__file__).read_text().endswith("    analyze.keep_memory()\n    main(CONFIG)\n")


# ---- several processes, devices ----------------------------------------------------------------------------------


def test_two_processes_give_the_losses_of_one_that_does_not_compile(cfg, tmp_path):
    """
    Dropout is on: it is a function of the row, and the micro-batches are the same. To compile splits the graph of the
    backward pass at DDP's buckets, and every gradient is still sent once and complete.
    """
    new = dict(positions="untied", mask_share=0.2, random_share=0.4, init_std=0.1, qk_std="linear")
    cfg = replace(cfg, compile="on", n_layer=1, max_iters=8, micro_batch_size=2, **new)  # two for each process
    two = replace(cfg, out_dir=cfg.out_dir + "_two")
    other_node = argv(two, threads=1)  # which may have its own device and paths
    (status, output), other = map(end, begin_ranks(argv(two), tmp_path / "rank", other_node, compile_quickly))
    assert status == other[0] == 0 and "loss" not in other[1], (output, other)  # but torch may warn of a Python
    assert "on 2 x cpu" in output
    run(cfg, compile="off")
    for name in "step", "tokens", "val_loss", "train_loss":
        np.testing.assert_allclose(log(cfg)[name], log(two)[name], atol=2e-5)
    np.testing.assert_allclose(scores(cfg).symmetry, scores(two).symmetry, atol=2e-4)


@pytest.mark.parametrize("is_new, dtype", [(True, "bfloat16"), (False, "float16")])
def test_a_gpu_decides_how_products_are_computed_and_how_processes_talk(cfg, monkeypatch, is_new, dtype):
    """torch's "high" is TF32. The device is a name here, and is not used."""
    found = []
    monkeypatch.setattr(processes, "find_device", lambda name, local_rank: torch.device(f"cuda:{local_rank}"))
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: is_new)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", found.append)
    monkeypatch.setattr(processes.dist, "init_process_group", lambda backend, **_: found.append(backend))
    monkeypatch.setattr(processes.dist, "get_rank", lambda: 3)
    monkeypatch.setattr(processes.dist, "get_world_size", lambda: 4)
    for name, text in dict(RANK="3", WORLD_SIZE="4", MASTER_ADDR="here", MASTER_PORT="5").items():
        monkeypatch.setenv(name, text)
    assert processes.find_place(cfg) == (Place(0, 1, torch.device("cuda:0")), cfg)  # a cluster's, and no LOCAL_RANK
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    cfg, gpu = replace(cfg, dtype="auto", deterministic=True), torch.device("cuda:1")
    assert processes.find_place(cfg) == (Place(3, 4, gpu), replace(cfg, dtype=dtype))
    assert found == ["high", True, "high", gpu, "nccl"] and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
