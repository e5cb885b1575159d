"""train.py: what a step sees, what a run leaves behind, and what it says. pytest tests/test_train.py"""

import json
import math
import re
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

import analyze
import train
from config import ConfigError, processes
from config.processes import Place
from data import batches, tokens
from data.batches import count_targets, split_batch
from data.chance import SCORES
from data.results import ends, records
from data.tokens import Corpus
from model import Block, ModelConfig, Transformer
from tests.lives import (DRAW, argv, begin, begin_ranks, checkpoint, compile_quickly, draw_as_ever, end, log,
                         make_trainer, refusal, run)


@pytest.fixture
def corpus(data_dir):
    return tokens.load(data_dir)


def scores(cfg):
    """scores.csv of a run, a DataFrame, in which the rows of whole layers have no head."""
    return pandas.read_csv(Path(cfg.out_dir, "scores.csv"))


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


@pytest.mark.parametrize("eval_iters", [1, 10])  # of other tokens each
def test_a_corpus_that_is_too_small_says_how_large_it_must_be(cfg, corpus, eval_iters):
    n, n_all = len(corpus.val), eval_iters * (len(corpus.train) + len(corpus.val))
    cfg = replace(cfg, batch_size=1, eval_iters=eval_iters)
    batches.open_corpus(replace(cfg, block_size=(n - 1) // eval_iters))
    with pytest.raises(ConfigError) as e:
        batches.open_corpus(replace(cfg, block_size=n))
    said = str(e.value).replace(",", "")
    needed, in_all, megabytes = re.search(r"= (\d+)\. Prepare (\d+) .* about ([\d.]+) MB", said).groups()
    assert int(needed) == eval_iters * n and int(in_all) == pytest.approx(n_all, abs=99)
    assert float(megabytes) == pytest.approx(n_all / 1e6, abs=0.06)  # a token is a byte


def test_the_rows_of_a_run_are_the_definitions_of_each_head_layer_and_small_update():
    old = torch.randn(2, 2, 12, 12)  # W_q and W_k of two layers, (2, L, C, C), in float32, as a run holds them
    new = old + 1e-5 * torch.randn_like(old)  # W_qk - its old value would lose most digits
    rows = analyze.run_rows(5, "positions", [3, 3], new, old)
    assert [tuple(row[:4]) for row in rows] == [(5, "positions", l, h) for l in range(2) for h in ("", 0, 1, 2)]
    for row in rows:
        columns = slice(None) if row.head == "" else slice(4 * row.head, 4 * row.head + 4)
        w_q, w_k = new.double()[:, row.layer, :, columns]
        old_q, old_k = old.double()[:, row.layer, :, columns]
        m, before = w_q @ w_k.T, old_q @ old_k.T
        for x, value in (m, row.symmetry), (m - before, row.update_symmetry):
            assert float(value) == pytest.approx(((x @ x).trace() / x.square().sum()).item(), abs=1e-5)
        assert float(row.directionality) == pytest.approx(analyze.directionality(m).item(), abs=1e-5)


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
@pytest.mark.parametrize("name", ["attn.q_a", "attn.q.a", "attn_2.q"])
def test_a_matrix_that_scores_would_leave_out_ends_a_run_before_it_begins(cfg, monkeypatch, name):
    """An adapter beside q or in q, of the last block alone; another attention. A vector is left out as biases are."""
    def adapted(cfg, number=count()):
        block = Block(cfg)
        block.attn.register_parameter("gain", torch.nn.Parameter(torch.ones(2)))
        block.attn_2 = torch.nn.Module()
        if next(number) == cfg.n_layer - 1:
            block.set_submodule(name, torch.nn.Linear(cfg.n_embd, 2))
        return block

    monkeypatch.setattr("model.Block", adapted)
    assert f"attention has a matrix blocks.1.{name}.weight" in refusal(cfg) and not Path(cfg.out_dir).exists()


# ---- what a run leaves behind ------------------------------------------------------------------------------------


@pytest.mark.bert_block
def test_a_run_leaves_what_the_contract_says(finished):
    out = Path(finished.out_dir)
    model = {"ckpt.pt", "model.safetensors", "config.json"}
    assert {p.name for p in out.iterdir()} == model | {".lock", "run.json", "log.csv", "scores.csv", "run.png"}
    rows = log(finished)
    assert list(rows.step) == [0, 4, 8, 12] and list(rows.tokens) == [8 * 16 * step for step in (0, 4, 8, 12)]
    assert rows.val_loss[3] < rows.val_loss[0] == pytest.approx(math.log(258), abs=0.1)
    rows = scores(finished).fillna(-1)
    assert list(zip(rows.step, rows.layer, rows["head"])) == list(product([0, 3, 6, 9, 12], [0, 1], [-1, 0, 1]))
    origin = json.loads((out / "run.json").read_text())["origin"]
    assert set(origin) == {"commit", "python", "torch", "device_name"} and all(origin.values())


def test_the_rows_have_the_mean_training_loss_and_the_speed_of_their_steps_alone(cfg, monkeypatch):
    seconds = count()  # one passes from a look at the clock to the next
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: next(seconds), monotonic=lambda: 0))
    run(cfg)  # the loss is read at steps 1, 3 and 4; 6 and 8; 9 and 12
    assert list(log(cfg).tokens_per_s[1:]) == [round(4 * 8 * 16 / 3), 4 * 8 * 16 / 2, 4 * 8 * 16 / 2]
    trainer, losses = make_trainer(cfg), []
    for step in range(12):  # not trainer.loader.train_batches, which makes them ahead
        trainer.train_step(trainer.loader.batch("train", step))
        losses.append(trainer.unread[-1].item())
    np.testing.assert_allclose(log(cfg).train_loss[1:], np.reshape(losses, (3, 4)).mean(1), atol=1e-5)


@pytest.mark.bert_block
@pytest.mark.parametrize("qk_norm, file", [(True, ""), (False, "ckpt-00000002.pt")])
def test_a_run_is_scored_from_its_checkpoint_also_if_no_bert_can_hold_it_and_then_it_says_so(
        cfg, analysed, capsys, qk_norm, file):
    run(cfg, max_iters=2, causal=True, qk_norm=qk_norm, keep=1)
    told = "writes no model.safetensors (analyze.py scores its ckpt.pt): " in capsys.readouterr().out
    assert told == qk_norm != Path(cfg.out_dir, "model.safetensors").exists()
    of_layers = scores(cfg).query("step == 2 and head.isna()")
    found = analysed("--hf", Path(cfg.out_dir, file))  # also beside the config.json of the export, with other names
    assert not found.status and found.table.causal.all()
    for score in SCORES:  # directionality tells queries from keys
        assert list(found.table[score]) == pytest.approx(list(of_layers[score]), abs=1e-5)


def of_heads(cfg, counter=count()):
    """Blocks with two heads and with four, in turns."""
    block = Block(cfg)
    block.attn.n_head = (2, 4)[next(counter) % 2]
    return block


@pytest.mark.bert_block
def test_every_layer_may_have_its_own_number_of_heads(cfg, monkeypatch, analysed):
    monkeypatch.setattr("model.Block", of_heads)
    run(cfg, max_iters=3)
    rows, weights = scores(cfg).query("step == 3 and head.notna()"), checkpoint(cfg)["model"]
    assert list(zip(rows.layer, rows["head"])) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    found = analysed("--hf", cfg.out_dir, "--per_head").table.query("head != ''")
    for row, of_checkpoint in zip(rows.itertuples(), found.itertuples()):
        n_head = (2, 4)[row.layer]
        q, k = [weights[f"blocks.{row.layer}.attn.{part}.weight"].chunk(n_head)[int(row.head)] for part in "qk"]
        m = q.T @ k
        expected = (m @ m).trace().item() / m.square().sum().item()
        assert [row.symmetry, of_checkpoint.symmetry] == pytest.approx([expected, expected], abs=1e-5)
    assert len(records.read_run(cfg.out_dir).curve("heads_1")) == 2


def test_a_run_whose_model_has_fewer_blocks_than_layers_is_read_too(cfg, monkeypatch):
    """As one that passes through one block several times."""
    def build_model(*args, build_model=train.build_model):
        model = build_model(*args)
        model.blocks = model.blocks[:1]
        return model

    monkeypatch.setattr(train, "build_model", build_model)
    run(cfg, max_iters=3)
    table = ends.table_of_ends(records.read_run(cfg.out_dir))
    assert [line.split()[0] for line in table.splitlines()] == ["layer", "0", "validation"]


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


def test_a_picture_never_ends_a_run(cfg, tmp_path):
    """matplotlib is first imported in the middle of a run, and does not know this backend."""
    status, said = end(begin(argv(cfg), tmp_path / "life", draw_as_ever, MPLBACKEND="nonsense"))
    assert status == 0 and "no picture: " in said and "nonsense" in said and "validation text" in said, said


def test_the_end_of_a_run_takes_any_name_and_a_sequence_of_one_token(cfg, monkeypatch):
    """Dollars are a formula to matplotlib, and \\xe9 is no UTF-8."""
    monkeypatch.setattr(train.Trainer, "draw", DRAW)
    monkeypatch.setattr(train, "DRAW_EVERY", 0)  # in the middle of the run too
    cfg = replace(cfg, max_iters=2, causal=True, block_size=1, out_dir=cfg.out_dir + "_$5_$10_\udce9")
    run(cfg)
    assert Path(cfg.out_dir, "run.png").read_bytes().startswith(b"\x89PNG")


PAGES = """
import analyze, resource, torch

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**25)  # 128 MB, which are freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

new_pages()
analyze.keep_memory()
print([new_pages() for _ in range(40)][-1])  # the first ones leave holes that are a few bytes too small
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
def test_memory_that_a_step_frees_is_there_for_the_next_one():
    """Otherwise the system gives 32,768 new pages to every tensor of this size, or some hundred large ones."""
    root = Path(train.__file__).parent
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, cwd=root)
    assert int(done.stdout) < 20


def test_a_run_keeps_its_memory_from_the_first_step_on(cfg, monkeypatch):
    called = []
    monkeypatch.setattr(analyze, "keep_memory", lambda: called.append(Path(cfg.out_dir, "ckpt.pt").exists()))
    run(cfg)
    assert called == [False]


# ---- several processes, compiler ---------------------------------------------------------------------------------


def test_two_processes_give_the_losses_of_one_that_does_not_compile(cfg, tmp_path):
    """
    Dropout is on: it is a function of the row, and the micro-batches are the same. To compile splits the graph of the
    backward pass at DDP's buckets, and every gradient is still sent once and complete.
    """
    new = dict(positions="untied", optimizer="muon", mask_share=0.2, random_share=0.4, init_std=0.1, qk_std="linear")
    cfg = replace(cfg, compile="on", n_layer=1, max_iters=8, micro_batch_size=2, **new)  # two for each process
    two = replace(cfg, out_dir=cfg.out_dir + "_two")
    other_node = argv(two, threads=1)  # which may have its own device and paths
    (status, output), other = map(end, begin_ranks(argv(two), tmp_path / "rank", other_node, compile_quickly))
    assert status == other[0] == 0 and "loss" not in other[1], (output, other)  # but torch may warn of a Python
    assert "made by 2 processes" in output and "torch.compile" not in output
    run(cfg, compile="off")
    for name in "step", "tokens", "val_loss", "train_loss":
        np.testing.assert_allclose(log(cfg)[name], log(two)[name], atol=2e-5)
    np.testing.assert_allclose(scores(cfg).symmetry, scores(two).symmetry, atol=2e-4)


def test_without_a_compiler_the_run_says_so_in_one_line_and_goes_on(cfg, capsys):
    no_compiler = {"cpp.cxx": (None, "no-such-compiler"), "compile_threads": 1, "force_disable_caches": True}
    with torch._inductor.config.patch(no_compiler), torch.compiler.set_stance("default"):
        run(cfg, compile="on", n_layer=1, max_iters=4)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "torch.compile" in line]
    assert "torch.compile does not work here, so this run is not compiled" in line and checkpoint(cfg)["step"] == 4


@pytest.mark.parametrize("is_new, dtype", [(True, "bfloat16"), (False, "float16")])
def test_a_gpu_decides_how_products_are_computed_and_how_processes_talk(cfg, monkeypatch, is_new, dtype):
    """torch's "high" is TF32. The device is a name here, and is not used."""
    found = []
    monkeypatch.setattr(processes, "find_device", lambda name, local_rank: torch.device(f"cuda:{local_rank}"))
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: is_new)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    monkeypatch.setattr(processes.dist, "init_process_group", lambda backend, **_: found.append(backend))
    monkeypatch.setattr(processes.dist, "get_rank", lambda: 3)
    monkeypatch.setattr(processes.dist, "get_world_size", lambda: 4)
    ranks = dict(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_ADDR="here", MASTER_PORT="5")
    gpu = torch.device("cuda:0")
    for missing in ranks:  # a cluster may have left the others: these four make no group
        for name in ranks.keys() - {missing}:
            monkeypatch.setenv(name, ranks[name])
        monkeypatch.delenv(missing, raising=False)
        assert processes.find_place(cfg) == (Place(0, 1, gpu), cfg) and found.pop() == "high" and not found
    monkeypatch.setenv(missing, ranks[missing])
    gpu = torch.device("cuda:1")
    assert processes.find_place(replace(cfg, dtype="auto")) == (Place(3, 4, gpu), replace(cfg, dtype=dtype))
    assert found == ["high", gpu, "nccl"]


@pytest.mark.parametrize("changes, words", [
    (dict(RANK="a"), "invalid literal for int"), (dict(MASTER_PORT="a"), "invalid literal for int"),
    (dict(MASTER_PORT="{taken}"), "address already in use"), (dict(WORLD_SIZE="0"), "world size cannot be 0")])
def test_what_says_which_process_this_is_makes_a_group_or_the_run_is_refused(cfg, monkeypatch, changes, words):
    ranks = dict(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for name, text in (ranks | changes).items():
            monkeypatch.setenv(name, text.format(taken=taken.getsockname()[1]))
        said = refusal(cfg)
    assert "LOCAL_RANK, MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE make no group" in said and words in said
