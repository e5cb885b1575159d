"""train.py: what a step sees, that nothing is lost, and what a run leaves behind. pytest tests/test_train.py"""

import functools
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from safetensors.torch import load_file
from torch._dynamo.backends.common import aot_autograd
from transformers import BertForMaskedLM, BertLMHeadModel

import analyze
import train
from config._place import Place
from config import ConfigError, TrainConfig, _place
from data import batches, samples, tokens
from data.loader import AHEAD, Loader, split_batch
from data.results import compare, figures_runs, runs
from data.text import prepare
from tests import bench
from tests.lives import begin, begin_ranks, draw_nothing, end

ROOT = Path(__file__).parents[1]
SMALL = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, batch_size=8, micro_batch_size=4, max_iters=12,
             warmup_iters=3, learning_rate=1e-2, eval_interval=4, eval_iters=2, score_interval=3)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A few files of the interpreter's own library as bytes: real text, and quickly prepared."""
    folder = tmp_path_factory.mktemp("data")
    files = [str(Path(os.__file__).parent / name) for name in ("os.py", "ast.py", "typing.py", "random.py", "heapq.py")]
    prepare.main([*files, "--tokenizer=bytes", "--val_fraction=0.2", f"--out_dir={folder}"])
    return str(folder)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """A picture takes longer than all steps of these runs. The run of `finished` draws one."""
    monkeypatch.setattr(figures_runs, "plot_run", draw_nothing)


@pytest.fixture
def cfg(data_dir, tmp_path):
    return TrainConfig(**SMALL, data_dir=data_dir, out_dir=str(tmp_path / "run"))


def argv(cfg, **changes):
    """The command line of a TrainConfig, with every key in it."""
    base = Path(cfg.out_dir).parent / "base.py"  # without a file it would be config/tiny.py
    base.write_text("seed = 1\n")
    return [str(base), *(f"--{name}={value}" for name, value in (vars(cfg) | changes).items())]


def refusal(args):
    """The one line in which train.py ends."""
    with pytest.raises(SystemExit) as e:
        train.main(args)
    assert isinstance(e.value.code, str) and "\n" not in e.value.code, e.value.code
    return e.value.code


def start(args, torchrun=0, max_restarts=0, **env):
    command = [sys.executable]
    if torchrun:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={torchrun}",
                    f"--max-restarts={max_restarts}"]
    return subprocess.Popen([*command, str(ROOT / "train.py"), *args], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS="1", **env))


def result(out_dir):
    """Everything of a run that has to be the same bit for bit: weights and rows, all but the speed."""
    log = [row[:-1] for row in map(lambda row: list(row.values()), runs.read(out_dir + "/log.csv", runs.LOG_COLUMNS))]
    return Path(out_dir, "model.safetensors").read_bytes(), Path(out_dir, "scores.csv").read_bytes(), log


# ---- what a step sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 5000])
def test_shuffled_is_a_permutation_that_moves_things(n):
    a, b = (batches.shuffled(np.arange(n), n, [seed, 0]) for seed in (1, 2))
    assert sorted(a) == sorted(b) == list(range(n))
    if n >= 100:  # a random permutation: few fixed points, no correlation between the place before and after
        assert (a == np.arange(n)).mean() < 0.05 and (a == b).mean() < 0.05
        assert all(abs(np.corrcoef(x, y)[0, 1]) < 4 / n**0.5 for x, y in ((a, np.arange(n)), (a, b), (a[1:], a[:-1])))


def test_an_epoch_holds_every_block_once_and_the_next_one_in_another_order(cfg):
    corpus = tokens.load(cfg.data_dir)
    cfg = replace(cfg, causal=True)
    n_blocks = (len(corpus.train) - 1) // cfg.block_size
    all_rows = np.arange(2 * n_blocks)
    idx, targets = batches.get_batch(cfg, corpus.meta, corpus.train, 1, 0, all_rows)  # two epochs as one large batch
    blocks = corpus.train.rows(np.arange(n_blocks) * cfg.block_size, cfg.block_size + 1)
    first, second = idx[:n_blocks].numpy(), idx[n_blocks:].numpy()
    for epoch in first, second:
        assert np.array_equal(epoch[np.lexsort(epoch.T)], blocks[:, :-1][np.lexsort(blocks[:, :-1].T)])
    assert not np.array_equal(first, second)
    assert torch.equal(idx[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_depends_on_seed_step_and_its_number_alone(cfg, causal):
    corpus, cfg = tokens.load(cfg.data_dir), replace(cfg, causal=causal)
    get = lambda seed, step, rows: batches.get_batch(cfg, corpus.meta, corpus.train, seed, step, np.array(rows))
    whole = get(1, 7, range(8))
    for part in [0, 1, 2], [5], [7, 3]:
        assert all(torch.equal(x, y[part]) for x, y in zip(get(1, 7, part), whole))
    for other in get(2, 7, range(8)), get(1, 8, range(8)):
        assert not torch.equal(other[0], whole[0])


@pytest.mark.parametrize("first_step", [0, 1, 7, 29])
def test_batches_that_are_made_ahead_are_those_of_their_steps_to_the_end_and_over_an_epochs_end(cfg, first_step):
    corpus = tokens.load(cfg.data_dir)
    cfg = replace(cfg, block_size=len(corpus.train) // 200, max_iters=30)  # 200 blocks: an epoch ends within step 24
    made = []

    class Counted(Loader):
        def train_batch(self, step):
            made.append(step)
            return super().train_batch(step)

    loader = Counted(cfg, corpus, 1, 2, torch.device("cpu"))  # the second of two processes
    for step, batch in enumerate(loader.train_batches(first_step), first_step):
        expected = batches.get_batch(cfg, corpus.meta, corpus.train, cfg.seed, step, np.arange(4, 8))
        assert all(map(torch.equal, batch, expected))
        assert len(made) <= step - first_step + 1 + AHEAD
    assert made == list(range(first_step, 30)) and step == 29


def test_encoder_and_decoder_see_the_same_text_in_the_same_order(cfg):
    corpus, rows = tokens.load(cfg.data_dir), np.arange(8)
    masked, targets, positions = batches.get_batch(cfg, corpus.meta, corpus.train, 1, 3, rows)
    idx, _ = batches.get_batch(replace(cfg, causal=True), corpus.meta, corpus.train, 1, 3, rows)
    assert torch.equal(masked.scatter(1, positions, targets), idx)


def test_masking_is_berts_80_10_10_of_a_fixed_count_and_touches_nothing_else():
    T, K, B = 64, 10, 4000
    meta = dict(mask_token=257, n_vocab=256)
    idx = torch.randint(256, (B, T))
    draws = torch.from_numpy(np.random.default_rng(0).random((B, T + 2 * K), dtype=np.float32))
    masked, targets, positions = batches.mask_tokens(idx, draws, K, meta)
    assert all(len(set(row)) == K for row in positions.tolist())
    assert torch.equal(targets, idx.gather(1, positions))
    untouched = torch.ones(B, T, dtype=bool).scatter(1, positions, False)
    assert torch.equal(masked[untouched], idx[untouched])
    seen = masked.gather(1, positions)
    assert (seen == 257).float().mean() == pytest.approx(0.8, abs=0.01)
    assert (seen == targets).float().mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.01)
    assert seen[seen != 257].max() < 256
    counts = torch.zeros(T).scatter_add(0, positions.flatten(), torch.ones(B * K)) / B
    assert counts.std() < 3 * (K / T / B) ** 0.5  # every position is masked as often as any other


def test_evaluation_batches_do_not_depend_on_the_seed(cfg):
    place = Place(0, 1, torch.device("cpu"))
    a, b = (train.Trainer(replace(cfg, seed=s), place, tokens.load(cfg.data_dir)) for s in (1, 2))
    b.model.load_state_dict(a.model.state_dict())
    assert a.evaluate() == b.evaluate() != train.Trainer(replace(cfg, seed=2), place, a.corpus).evaluate()


def test_learning_rate_rises_for_the_warm_up_and_falls_to_zero():
    cfg = TrainConfig(max_iters=1000, warmup_iters=100, learning_rate=1.0)
    rates = [train.learning_rate(cfg, step) for step in range(1001)]
    assert rates[0] == 0.01 and rates[99] == max(rates) == 1.0 and rates[1000] == 0.0
    assert rates[550] == pytest.approx(0.5) and all(np.diff(rates[:100]) > 0) and all(np.diff(rates[100:]) < 0)


@pytest.mark.parametrize("world, micro, expected", [(1, 4, (8, 4)), (2, 4, (4, 4)), (4, 4, (2, 2)), (8, 4, (1, 1))])
def test_the_global_batch_is_split_over_processes_and_micro_batches(cfg, world, micro, expected):
    assert split_batch(replace(cfg, micro_batch_size=micro), world) == expected


@pytest.mark.parametrize("world, micro", [(3, 4), (1, 5), (16, 4)])
def test_a_batch_that_does_not_divide_is_refused(cfg, world, micro):
    with pytest.raises(ConfigError, match=f"batch_size = 8, expected a multiple of {world} processes x micro_batch"):
        split_batch(replace(cfg, micro_batch_size=micro), world)


# ---- scores and constraint ---------------------------------------------------------------------------------------


def test_score_rows_are_the_definitions_of_each_head_layer_and_update():
    torch.manual_seed(0)
    old, new = (tuple(torch.randn(2, 12, 12) for _ in "qk") for _ in "ab")  # (L, C, C)
    rows = analyze.score_rows(5, 3, new, old)
    assert [tuple(row[:3]) for row in rows] == [(5, l, h) for l in range(2) for h in ("", 0, 1, 2)]
    for _, layer, head, s, d, eq17, u in rows:
        cols = slice(None) if head == "" else slice(4 * head, 4 * head + 4)
        before, m = ((q[layer][:, cols].double() @ k[layer][:, cols].double().T).numpy() for q, k in (old, new))
        for x, value in (m, s), (m - before, u):
            assert float(value) == pytest.approx(np.trace(x @ x) / (x**2).sum(), abs=1e-5)
        norms = np.linalg.norm(m, axis=1), np.linalg.norm(m, axis=0)
        r, c = (np.maximum(0, n - n.mean() - 2 * n.std(ddof=1)).sum() for n in norms)
        assert float(d) == pytest.approx((r - c) / (r + c) if r + c else 0, abs=1e-5)
        r, c = (n[n > n.mean() + 2 * n.std()].sum() for n in norms)
        assert float(eq17) == pytest.approx((r - c) / (r + c) if r + c else 0, abs=1e-5)


def test_a_small_update_is_scored_without_cancellation():
    torch.manual_seed(0)
    old = tuple(torch.randn(1, 64, 64, dtype=torch.float64) for _ in "qk")
    new = tuple(w + 1e-4 * torch.randn_like(w) for w in old)
    old, new = (tuple(w.float() for w in ws) for ws in (old, new))  # what a run holds
    change = new[0][0].double() @ new[1][0].double().T - old[0][0].double() @ old[1][0].double().T
    expected = (change * change.T).sum() / change.square().sum()
    assert float(analyze.score_rows(1, 1, new, old)[0].update_symmetry) == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("kind, sign", [("symmetric", 1), ("skew", -1)])
def test_constraint_is_the_ratio_of_norms_and_pulls_the_symmetry_to_its_end(cfg, kind, sign):
    cfg = replace(cfg, constraint=kind, constraint_weight=1.0, max_iters=60)
    run = train.Trainer(cfg, Place(0, 1, torch.device("cpu")), tokens.load(cfg.data_dir))
    ratios = []
    for block in run.model.blocks:
        m = (block.attn.q.weight.T @ block.attn.k.weight).detach()
        part = (m + sign * m.T) / 2
        ratios.append(m.square().sum() / part.square().sum())
    torch.testing.assert_close(train.constraint(cfg, run.model).detach(), torch.stack(ratios).mean())
    for batch in run.loader.train_batches(0):
        run.train_step(batch)
    for row in analyze.score_rows(60, 2, train.stacked_qk(run.model), None):
        assert sign * float(row.symmetry) > 0.5 or row.head != ""


# ---- a run, whole, stopped and gone on with ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    """An uninterrupted encoder run, made in this process."""
    cfg = TrainConfig(**SMALL, data_dir=data_dir, out_dir=str(tmp_path_factory.mktemp("run") / "whole"))
    train.main(argv(cfg))
    return cfg


def test_a_run_leaves_what_the_contract_says(finished):
    out = Path(finished.out_dir)
    files = {".lock", "run.json", "log.csv", "scores.csv", "ckpt.pt", "model.safetensors", "config.json", "run.png"}
    assert {p.name for p in out.iterdir()} == files
    assert (out / "run.png").read_bytes().startswith(b"\x89PNG")
    log, scores = runs.read(out / "log.csv", runs.LOG_COLUMNS), runs.read(out / "scores.csv", runs.SCORES_COLUMNS)
    assert [row["step"] for row in log] == ["0", "4", "8", "12"]
    assert [row["tokens"] for row in log] == [str(8 * 16 * step) for step in (0, 4, 8, 12)]
    assert float(log[-1]["val_loss"]) < float(log[0]["val_loss"]) == pytest.approx(math.log(258), abs=0.1)
    assert [(r["step"], r["layer"], r["head"]) for r in scores] == \
        [(str(s), str(l), h) for s in (0, 3, 6, 9, 12) for l in range(2) for h in ("", "0", "1")]
    state = torch.load(out / "ckpt.pt", weights_only=True)
    assert state["step"] == 12 and state["config"]["n_embd"] == 16


def test_the_first_rows_are_the_mean_training_loss_of_their_steps(finished):
    run = train.Trainer(finished, Place(0, 1, torch.device("cpu")), tokens.load(finished.data_dir))
    losses = []
    for batch in run.loader.train_batches(0):
        run.train_step(batch)
        losses.append(run.unread[-1].item())
    log = runs.read(finished.out_dir + "/log.csv", runs.LOG_COLUMNS)
    for i, row in enumerate(log[1:]):
        assert float(row["train_loss"]) == pytest.approx(np.mean(losses[4 * i : 4 * i + 4]), abs=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_transformers_opens_the_finished_model_and_finds_the_loss_of_the_log(finished, causal, cfg):
    if causal:
        finished = replace(cfg, causal=True, max_iters=4)
        train.main(argv(finished))
    corpus = tokens.load(finished.data_dir)
    hf = (BertLMHeadModel if causal else BertForMaskedLM).from_pretrained(finished.out_dir).eval()
    losses = []
    for i in range(finished.eval_iters):
        idx, targets, *positions = batches.get_batch(finished, corpus.meta, corpus.val, 0, i, np.arange(8))
        with torch.no_grad():
            logits = hf(idx).logits
        if not causal:
            logits = logits[torch.arange(8)[:, None], positions[0]]
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())
    last = runs.read(finished.out_dir + "/log.csv", runs.LOG_COLUMNS)[-1]
    assert float(last["val_loss"]) == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_run_ends_by_showing_what_the_model_makes_of_unseen_text(finished, causal, cfg, capsys):
    if causal:
        finished = replace(cfg, causal=True, max_iters=4)
        train.main(argv(finished))
    else:
        train.main(argv(finished, init_from="resume"))
    lines = [line[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")][-6:]
    corpus = tokens.load(finished.data_dir)
    hf = (BertLMHeadModel if causal else BertForMaskedLM).from_pretrained(finished.out_dir).eval()
    decode = samples.make_decode(corpus.meta)
    for start, before, after in zip(np.linspace(0, len(corpus.val) - 16, 3).astype(int), lines[::2], lines[1::2]):
        text = torch.from_numpy(corpus.val.rows(np.array([start]), 16))  # (1, 16)
        seen = text[:, :8] if causal else text.index_fill(1, torch.tensor([3, 10]), 257)
        assert before == decode(seen[0].tolist())
        if causal:
            expected = seen
            for _ in range(8):
                expected = torch.cat([expected, hf(expected).logits[:, -1:, :256].argmax(-1)], 1)
        else:
            expected = torch.where(seen == 257, hf(seen).logits[..., :256].argmax(-1), text)
        assert after == decode(expected[0].tolist())


def test_one_token_of_a_very_short_row_is_masked_in_what_a_run_shows():
    meta = dict(mask_token=257, n_vocab=256)
    rows = torch.full((3, 2), 65)
    seen, completed = samples.fill_in(lambda idx: torch.nn.functional.one_hot(idx, 258), rows, meta)
    assert (seen == 257).sum(1).tolist() == [1, 1, 1] and (completed[seen != 257] == 65).all()


def test_a_run_starts_from_the_folder_of_a_hugging_face_bert(finished, cfg, capsys):
    train.main(argv(cfg, init_from=finished.out_dir, init="symmetric"))
    first, last = (runs.read(c.out_dir + "/log.csv", runs.LOG_COLUMNS)[i] for c, i in ((cfg, 0), (finished, -1)))
    assert first["val_loss"] == last["val_loss"]
    assert f"the weights are those of {finished.out_dir}: init, qk_std and v_std do not" in capsys.readouterr().out


@pytest.mark.parametrize("key, value", [("qk_norm", True), ("diagonal", 0.5)])
def test_of_a_run_that_no_bert_can_hold_it_is_said_where_its_scores_are(cfg, key, value, capsys):
    train.main(argv(cfg, max_iters=2, **{key: value}))
    with pytest.raises(SystemExit):
        analyze.main(["--hf", cfg.out_dir])
    told = capsys.readouterr().err
    assert "a run of train.py that wrote no model" in told and key in told and "--runs" in told


def test_a_model_that_is_no_bert_is_refused_by_its_kind(finished, tmp_path, cfg):
    shutil.copytree(finished.out_dir, tmp_path / "gpt2")
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(dict(model_type="gpt2", n_head=4)))
    said = refusal(argv(cfg, init_from=tmp_path / "gpt2"))
    assert "is not the BERT that this configuration describes: it is a model of type gpt2" in said


def test_a_run_that_is_too_short_to_decay_is_not_said_to_decay_when_it_is_made_longer(cfg, capsys):
    short = replace(cfg, max_iters=2, warmup_iters=100)
    train.main(argv(short))
    train.main(argv(short, max_iters=4, init_from="resume"))
    said = capsys.readouterr().out
    assert "max_iters was 2 so far" in said and "falls to 0" not in said


def test_a_bert_of_an_older_transformers_also_holds_the_numbers_of_its_positions(finished, tmp_path, cfg, capsys):
    config = json.loads(Path(finished.out_dir, "config.json").read_text())
    state = load_file(Path(finished.out_dir, "model.safetensors"))
    (tmp_path / "bert").mkdir()
    positions = {"bert.embeddings.position_ids": torch.arange(16)[None]}
    runs.save_hf(tmp_path / "bert", config, state | positions)
    train.main(argv(cfg, init_from=tmp_path / "bert"))
    first, last = (runs.read(c.out_dir + "/log.csv", runs.LOG_COLUMNS)[i] for c, i in ((cfg, 0), (finished, -1)))
    assert first["val_loss"] == last["val_loss"]


def test_a_bert_of_another_shape_is_refused_with_the_tensor(finished, cfg, capsys):
    with pytest.raises(SystemExit) as e:
        train.main(argv(cfg, init_from=finished.out_dir, n_embd=32))
    assert "is not the BERT that this configuration describes" in e.value.code
    assert "blocks.0.attn.k.bias is (16,) there and (32,) here" in e.value.code


@pytest.mark.parametrize("key, value", [("num_attention_heads", 4), ("hidden_act", "relu"), ("layer_norm_eps", 1e-5),
                                        ("is_decoder", True), ("position_embedding_type", "relative_key")])
def test_a_bert_whose_config_says_another_model_is_refused_with_the_key(finished, cfg, tmp_path, key, value):
    shutil.copytree(finished.out_dir, tmp_path / "bert")
    path = tmp_path / "bert" / "config.json"
    ours = json.loads(path.read_text())
    path.write_text(json.dumps(ours | {key: value}))
    said = refusal(argv(cfg, init_from=tmp_path / "bert"))
    assert f"is not the BERT that this configuration describes: {key} is {value} there and {ours[key]} here" in said


QUERY = "bert.encoder.layer.1.attention.self.query."
TYPES = "bert.embeddings.token_type_embeddings.weight"


@pytest.mark.parametrize("lost, more, words", [
    ([QUERY + "weight"], {}, "blocks.1.attn.q.weight is missing there and (16, 16) here"),
    ([QUERY + "weight", QUERY + "bias"], {}, f"it has no tensor {QUERY}*"),
    ([], {QUERY + "scale": torch.ones(16)}, "blocks.1.attn.q.scale is (16,) there and missing here"),
    ([], {QUERY.replace("query", "rotary") + "bias": torch.ones(16)}, "self.rotary.bias, for which this model has no"),
    ([], {QUERY.replace("1", "2") + "bias": torch.ones(16)}, "it has no tensor bert.encoder.layer.2."),
    ([], {TYPES: torch.ones(2, 8)}, f"{TYPES} is (2, 8) there"),
    ([], {TYPES: torch.ones(16)}, f"{TYPES} is (16,) there"),
    ([], {QUERY + "weight": torch.full((16, 16), torch.nan)}, f"'{QUERY}weight' holds NaN or infinity"),
])
def test_a_bert_with_other_tensors_is_refused_with_the_tensor(finished, tmp_path, cfg, lost, more, words):
    config = json.loads(Path(finished.out_dir, "config.json").read_text())
    state = load_file(Path(finished.out_dir, "model.safetensors")) | more
    (tmp_path / "bert").mkdir()
    runs.save_hf(tmp_path / "bert", config, {name: state[name] for name in state if name not in lost})
    assert words in refusal(argv(cfg, init_from=tmp_path / "bert"))


def test_a_decoder_that_predicts_masked_tokens_runs(cfg):
    train.main(argv(cfg, causal=True, objective="masked", max_iters=4))
    assert [row["step"] for row in runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)] == ["0", "4"]


@pytest.mark.parametrize("steps", [2, 4, 7])
def test_a_run_that_was_killed_and_resumed_ends_bit_for_bit_as_the_whole_one(finished, cfg, steps, monkeypatch):
    """Dropout is on. The kill comes right after a step, before its rows; then again, after rows without checkpoint."""
    class Killed(BaseException):
        pass

    def killed_at(name, step):
        whole = getattr(train.Trainer, name)

        def until(run, *args):
            if run.step == step:
                raise Killed
            return whole(run, *args)
        return until

    for name, step in ("train_step", steps), ("save", 8):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(train.Trainer, name, killed_at(name, step))
            train.main(argv(cfg, init_from="resume"))
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg.out_dir) == result(finished.out_dir)


@pytest.fixture(scope="module")
def whole_of_100_steps(data_dir, tmp_path_factory):
    """An uninterrupted run that is long enough to be hit by a signal."""
    changes = dict(max_iters=100, eval_interval=25, score_interval=30, n_layer=1)
    cfg = TrainConfig(**SMALL | changes, data_dir=data_dir, out_dir=str(tmp_path_factory.mktemp("run") / "whole"))
    train.main(argv(cfg))
    return cfg


@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129),
                                          (signal.SIGKILL, -9)])
def test_a_signal_loses_nothing(whole_of_100_steps, cfg, tmp_path, signum, code):
    whole = whole_of_100_steps
    cfg = replace(whole, out_dir=cfg.out_dir)
    life = begin(argv(cfg), tmp_path / "life.txt")
    while not Path(cfg.out_dir, "ckpt.pt").exists():  # of step 0
        time.sleep(0.02)
    time.sleep(0.05)
    os.kill(life.pid, signum)
    status, output = end(life)
    assert status == code, output
    assert "Traceback" not in output and (code < 0 or "--init_from=resume goes on" in output)
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg.out_dir) == result(whole.out_dir)


def test_a_run_under_nohup_goes_on_when_the_terminal_is_closed(finished, cfg, monkeypatch):
    train_step = train.Trainer.train_step

    def step(run, batch):
        os.kill(os.getpid(), signal.SIGHUP)
        train_step(run, batch)
    monkeypatch.setattr(train.Trainer, "train_step", step)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        train.main(argv(cfg))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result(cfg.out_dir) == result(finished.out_dir)


def test_a_finished_run_is_neither_overwritten_nor_changed_by_resuming(finished):
    before = result(finished.out_dir)
    with pytest.raises(SystemExit) as e:
        train.main(argv(finished))
    assert "holds a run already" in e.value.code
    train.main(argv(finished, init_from="resume"))
    assert result(finished.out_dir) == before


def test_a_run_that_was_killed_before_its_last_model_was_written_resumes_to_that_model(finished, cfg):
    shutil.copytree(finished.out_dir, cfg.out_dir)
    Path(cfg.out_dir, "model.safetensors").write_bytes(b"of an earlier evaluation")
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg.out_dir) == result(finished.out_dir)
    assert Path(cfg.out_dir, "model.safetensors").read_bytes() == Path(finished.out_dir, "model.safetensors").read_bytes()


def test_where_the_weights_of_a_run_came_from_stays_known(finished, cfg, tmp_path):
    model = str(tmp_path / "to_resume")
    shutil.copytree(finished.out_dir, model)
    train.main(argv(cfg, init_from=model))
    train.main(argv(cfg, init_from="resume", max_iters=14))
    assert runs.read_run(cfg.out_dir).config["init_from"] == model
    assert not compare.is_plain(compare.PLAIN | dict(init_from=model))
    for name in "ckpt.pt", "log.csv", "scores.csv":  # as if it had been killed before its first checkpoint
        Path(cfg.out_dir, name).unlink()
    said = refusal(argv(cfg, init_from="resume"))
    assert f"began from {model}: begin again with --init_from={model}" in said
    train.main(argv(cfg, init_from=model))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_model_of_no_run_is_not_overwritten(cfg, name):
    path = Path(cfg.out_dir, name)
    path.parent.mkdir()
    path.write_bytes(b"somebody's")
    for init_from in "scratch", "resume":
        assert f"holds a {name} that is of no run" in refusal(argv(cfg, init_from=init_from))
    assert path.read_bytes() == b"somebody's"


def test_logs_whose_checkpoint_was_deleted_are_kept_and_can_still_be_read(finished, cfg):
    shutil.copytree(finished.out_dir, cfg.out_dir)
    Path(cfg.out_dir, "ckpt.pt").unlink()
    before = result(cfg.out_dir)
    for init_from in "scratch", "resume":
        assert "holds the log.csv of a run, and no ckpt.pt to go on from" in refusal(argv(cfg, init_from=init_from))
    assert result(cfg.out_dir) == before
    Path(cfg.out_dir, "log.csv").rename(cfg.out_dir + "/elsewhere.csv")
    assert "holds the scores.csv of a run, and no ckpt.pt to go on from" in refusal(argv(cfg))
    Path(cfg.out_dir, "elsewhere.csv").rename(cfg.out_dir + "/log.csv")
    assert result(cfg.out_dir) == before
    run = runs.read_run(cfg.out_dir)
    assert run.config["n_embd"] == 16 and run.config["checksum"] == tokens.load(cfg.data_dir).meta["checksum"]


def test_a_run_can_be_extended_and_looked_at_more_often_and_its_past_stays(finished, cfg):
    shutil.copytree(finished.out_dir, cfg.out_dir)
    before = result(cfg.out_dir)
    assert "max_iters = 12 there, 11 here" in refusal(argv(cfg, init_from="resume", max_iters=11))
    assert "eval_iters = 2 there, 3 here" in refusal(argv(cfg, init_from="resume", eval_iters=3))
    train.main(argv(cfg, init_from="resume", max_iters=18, eval_interval=2, score_interval=6))
    _, scores, log = result(cfg.out_dir)
    assert [row[0] for row in log] == ["0", "4", "8", "12", "14", "16", "18"] and log[:4] == before[2]
    assert scores.startswith(before[1])
    for row in log[4:]:  # the schedule is that of a run of 18 steps
        assert float(row[4]) == pytest.approx(1e-2 * (18 - (int(row[0]) - 1)) / (18 - 3), rel=1e-5)


def test_numbered_checkpoints_and_the_best_one_are_kept_and_other_files_left_alone(finished, cfg):
    out = Path(cfg.out_dir)
    others = {"ckpt-0-mine.pt", "ckpt-9.pt", "ckpt-99999999-mine.pt"}
    out.mkdir()
    for name in others:
        (out / name).write_bytes(b"of somebody")
    train.main(argv(cfg, keep=2))
    assert {path.name for path in out.glob("ckpt*")} - others == {"ckpt.pt", "ckpt-00000008.pt", "ckpt-00000012.pt",
                                                                  "ckpt-best.pt"}
    assert all((out / name).read_bytes() == b"of somebody" for name in others)
    log = runs.read(out / "log.csv", runs.LOG_COLUMNS)
    best = min(log, key=lambda row: float(row["val_loss"]))
    assert torch.load(out / "ckpt-best.pt", weights_only=True)["step"] == int(best["step"])
    shutil.copy(out / "ckpt-00000008.pt", out / "ckpt.pt")  # and go on from there, to the same end
    train.main(argv(cfg, init_from="resume"))
    assert result(cfg.out_dir) == result(finished.out_dir)


def test_a_checkpoint_that_lacks_a_newer_key_goes_on_with_its_default(finished, cfg):
    shutil.copytree(finished.out_dir, cfg.out_dir)
    path = Path(cfg.out_dir, "ckpt.pt")
    state = torch.load(path, weights_only=True)
    for key in "objective", "qk_norm", "diagonal":
        del state["config"][key]
    torch.save(state, path)
    Path(cfg.out_dir, "run.json").unlink()  # older than this, too
    assert runs.read_run(cfg.out_dir).config["diagonal"] == 0.0
    assert "diagonal = 0.0 there, 1.0 here" in refusal(argv(cfg, init_from="resume", diagonal=1.0))
    train.main(argv(cfg, init_from="resume", max_iters=14))


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_one_lasts(cfg):
    with runs.locked(cfg.out_dir):
        assert "another process is writing a run there" in refusal(argv(cfg))
        assert {path.name for path in Path(cfg.out_dir).iterdir()} == {".lock"}
    train.main(argv(cfg, max_iters=4))


def test_a_run_that_is_shorter_than_its_warm_up_is_all_warm_up(cfg, capsys):
    train.main(argv(cfg, max_iters=4, warmup_iters=200))
    assert "warmup_iters = 200 is shortened to the run" in capsys.readouterr().out
    assert runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)[-1]["learning_rate"] == "0.01"


def test_a_stopped_run_can_be_analyzed_and_has_its_picture(cfg, monkeypatch):
    class Stopped(BaseException):
        pass

    def stop(run):
        raise Stopped

    monkeypatch.setattr(train, "DRAW_EVERY", 0)
    monkeypatch.setattr(train.Trainer, "read_losses", stop)
    with pytest.raises(Stopped):
        train.main(argv(cfg))
    assert Path(cfg.out_dir, "run.png").exists()
    with pytest.raises(SystemExit) as e:
        analyze.main(["--hf", cfg.out_dir])
    assert not e.value.code


def test_redirected_output_is_a_line_per_evaluation_and_no_bar(cfg, capsys):
    train.main(argv(cfg))
    said, bar = capsys.readouterr()
    lines = [line for line in said.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in lines] == ["step 0", "step 4", "step 8", "step 12"]
    log = runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)
    for line, row in zip(lines[1:], log[1:]):
        assert f"validation loss {float(row['val_loss']):.4f}, training loss {float(row['train_loss']):.4f}" in line
        assert f"learning rate {float(row['learning_rate']):.3g}, {int(row['tokens_per_s']):,} tokens/s" in line
    assert " left" in lines[1] and "step/s" not in bar


def test_on_a_gpu_a_line_has_the_share_of_its_matrix_rate(cfg, monkeypatch, capsys):
    """No GPU is needed: only its rate is given, and the operations are those that train.py counts in a second."""
    monkeypatch.setattr(train, "matrix_rate", lambda device, dtype: 1e9)
    train.main(argv(cfg, max_iters=4))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 4:")]
    tokens_per_s = float(runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)[-1]["tokens_per_s"])
    idx, targets, positions = batches.get_batch(cfg, tokens.load(cfg.data_dir).meta, tokens.load(cfg.data_dir).train,
                                                1, 0, np.arange(1))
    flops = train.count_flops(train.ModelConfig(258, 16, 2, 2, 16), targets.numel())
    assert f", {tokens_per_s * flops / 16 / 1e9:.0%} of the GPU's matrix rate" in line


def test_a_number_format_that_the_device_emulates_is_named_at_the_start(cfg, monkeypatch, capsys):
    """As on a CPU without AVX-512. Nothing is timed here: the seconds of a product are given."""
    seconds = dict(float32=1.0, bfloat16=10.0)
    monkeypatch.setattr(_place, "product_seconds", lambda n, device, dtype: seconds[dtype])
    train.main(argv(cfg, max_iters=4, dtype="bfloat16"))
    line = "matrix products take 10 times as long in bfloat16 as in float32 on this device: --dtype=float32 is faster"
    assert line in capsys.readouterr().out
    seconds["bfloat16"] = 0.5
    train.main(argv(cfg, max_iters=4, dtype="bfloat16", out_dir=cfg.out_dir + "2"))
    assert "times as long" not in capsys.readouterr().out


def test_a_checkpoint_of_another_run_or_cut_short_is_refused_by_name(finished, cfg, tmp_path):
    out = Path(cfg.out_dir)
    out.mkdir()
    whole = Path(finished.out_dir, "ckpt.pt").read_bytes()
    (out / "ckpt.pt").write_bytes(whole)
    for change, words in (dict(n_embd=32), "n_embd = 16 there, 32 here"), (dict(seed=9), "seed = 1 there, 9 here"):
        with pytest.raises(SystemExit) as e:
            train.main(argv(cfg, init_from="resume", **change))
        assert "is of another run: " + words in e.value.code
    rng = np.random.default_rng(0)
    damaged = [b"", whole[: len(whole) // 2], rng.bytes(1000), b"PK\3\4" + rng.bytes(1000)]
    for position in rng.integers(0, 2000, 20):  # where the pickle stands that says what the tensors are
        damaged.append(whole[:position] + rng.bytes(20) + whole[position + 20 :])
    for data in damaged:
        (out / "ckpt.pt").write_bytes(data)
        said = refusal(argv(cfg, init_from="resume"))
        assert "ckpt.pt is not a checkpoint that can be resumed" in said or "is of another run" in said


@pytest.mark.parametrize("name, text", [
    ("log.csv", "step,tokens,train_loss,val_loss,learning_rate,tokens_per_s\n0,0,,five,,\n"),
    ("log.csv", "step,tokens,train_loss,val_loss,learning_rate,tokens_per_s\n,0,,5,,\n"),
    ("scores.csv", "step,layer,head,symmetry,directionality,update_symmetry\n0,0\n"),
    ("scores.csv", "step,layer,head,symmetry,directionality,update_symmetry\n0,1.5,,0,0,0\n"),
    ("scores.csv", "\0\x01\n"),
    ("run.json", '{"config": {"n_layer": "two"}, "data": {}}'),
    ("run.json", "[]"),
    ("run.json", ""),
])
def test_a_damaged_file_of_a_run_is_named_in_one_line(finished, cfg, name, text):
    shutil.copytree(finished.out_dir, cfg.out_dir)
    Path(cfg.out_dir, name).write_text(text)
    with pytest.raises(runs.RunError, match=name) as e:
        runs.read_run(cfg.out_dir)
    assert "\n" not in str(e.value)
    if name != "run.json":  # which is written again
        assert name in refusal(argv(cfg, init_from="resume"))


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_one_token_train_and_are_shown(cfg, causal):
    train.main(argv(cfg, block_size=1, causal=causal, max_iters=2))


@pytest.mark.parametrize("name", ["log.csv", "scores.csv"])
def test_a_run_whose_rows_were_lost_does_not_go_on_as_if_it_had_none(finished, cfg, name):
    shutil.copytree(finished.out_dir, cfg.out_dir)
    path = Path(cfg.out_dir, name)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    middle = "".join(lines[:2] + lines[3:])
    older = "".join(lines[:-1])  # a copy from before the last row
    for text in None, "", "step,tok", lines[0], middle, older, whole + lines[-1]:
        path.unlink()
        if text is not None:
            path.write_text(text)
        said = refusal(argv(cfg, init_from="resume", max_iters=14))
        assert f"{path} has " in said and f"rows up to step 12, where ckpt.pt stands, and not {len(lines) - 1}" in said
        assert not path.exists() or path.read_text() == text
        path.touch()


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(cfg, tmp_path):
    class Bad:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    Path(cfg.out_dir).mkdir()
    torch.save(dict(config=Bad()), cfg.out_dir + "/ckpt.pt")
    with pytest.raises(SystemExit, match="not a checkpoint that can be resumed"):
        train.main(argv(cfg, init_from="resume"))
    assert not (tmp_path / "ran").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(cfg):
    with pytest.raises(SystemExit) as e:
        train.main(argv(cfg, learning_rate=1e30, warmup_iters=6, grad_clip=1e30, dropout=0.0))
    assert "the loss is nan" in e.value.code and "step " in e.value.code
    state = torch.load(cfg.out_dir + "/ckpt.pt", weights_only=True)
    assert all(x.isfinite().all() for x in state["model"].values())


def test_a_validation_loss_that_is_not_finite_stops_the_run_before_it_is_written(cfg, monkeypatch):
    evaluate = train.Trainer.evaluate
    forward = train.Transformer.forward

    def diverged(run):
        if run.step == 8:
            monkeypatch.setattr(train.Transformer, "forward", lambda *args: math.nan * forward(*args))
        return evaluate(run)

    monkeypatch.setattr(train.Trainer, "evaluate", diverged)
    assert "step 8: the validation loss is nan" in refusal(argv(cfg))
    assert torch.load(cfg.out_dir + "/ckpt.pt", weights_only=True)["step"] == 4
    assert [row["step"] for row in runs.read(Path(cfg.out_dir, "log.csv"), runs.LOG_COLUMNS)] == ["0", "4"]


@pytest.mark.parametrize("changes, words", [
    (dict(n_layers=3), "unknown key n_layers = 3; the nearest one is n_layer"),
    (dict(data_dir="/nowhere"), "/nowhere has no finished token files"),
    (dict(data_dir="data/stdlib/foo"), "data/stdlib/foo has no finished token files"),
    (dict(data_dir="/"), "/ has no token files"),
    (dict(device="tpu9"), "device = 'tpu9' cannot be used"),
    (dict(device="meta"), "device = 'meta' cannot be used"),
    (dict(device="hpu"), "device = 'hpu' cannot be used"),
    (dict(device="xla"), "device = 'xla' cannot be used"),  # torch names all of its backends
    (dict(threads=100_000), "threads = 100000, expected at most"),
    (dict(init_from="/nowhere"), "init_from = '/nowhere', expected scratch, resume, or a folder"),
    (dict(init_from="resum"), "init_from = 'resum', expected scratch, resume, or a folder"),
    (dict(n_layer=100_000_000), "M parameters take"),
    (dict(n_embd=1_000_000), "M parameters take"),
    (dict(out_dir="/dev/null/run"), "/dev/null/run cannot be written (Not a directory)"),
])
def test_a_mistake_ends_in_one_line(cfg, changes, words):
    args = argv(cfg) + [f"--{name}={value}" for name, value in changes.items()]
    said = refusal(args)
    assert words in said and said.startswith("train.py: ") and len(said) < 300


def test_a_mistake_on_the_command_line_has_status_1(tmp_path):
    status, output = end(begin(["--max_iters", "100"], tmp_path / "life.txt"))
    assert status == 1
    assert output == "train.py: --max_iters: write --key=value, without a space\n"


def test_the_bench_names_its_rows_if_there_is_none_of_a_name():
    with pytest.raises(SystemExit, match="^tests/bench.py: no row is called layers: there are score, train, .*layer"):
        bench.main(["layer", "layers"])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what is being imported is seen in /proc")
def test_ctrl_c_during_the_imports_ends_without_a_traceback(cfg):
    process = start(argv(cfg))
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT and output == ""


def test_a_reader_that_goes_away_does_not_end_a_run(cfg, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    life = begin(argv(cfg), tmp_path / "pipe")
    with open(tmp_path / "pipe") as pipe:
        pipe.readline()  # and then close it, as `| head -1` does
    life.join(300)
    assert life.exitcode == 0
    assert runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)[-1]["step"] == "12"


def test_output_that_cannot_hold_a_letter_shows_another(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    _place.open_streams()
    print("é and ж")
    stream.flush()
    assert stream.buffer.getvalue() == "é and ?\n".encode("latin-1")


def test_a_run_whose_output_was_closed_goes_on(cfg, monkeypatch):
    """As after `>&- 2>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    train.main(argv(cfg, max_iters=4))
    assert runs.read(cfg.out_dir + "/log.csv", runs.LOG_COLUMNS)[-1]["step"] == "4"


@pytest.mark.parametrize("name, precision", [("cpu", "highest"), ("cuda", "high")])
def test_float32_products_are_in_tf32_on_a_gpu_and_exact_elsewhere(cfg, monkeypatch, name, precision):
    """torch's "high" is TF32, and reaches GPUs alone. The device is a name here, and is not used."""
    monkeypatch.setattr(_place, "find_device", lambda *_: torch.device(name))
    before = torch.get_float32_matmul_precision()
    try:
        _place.find_place(cfg)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("env, words", [
    (dict(RANK="0"), "LOCAL_RANK = ''"),
    (dict(RANK="a", LOCAL_RANK="0", WORLD_SIZE="2"), "RANK = 'a'"),
    (dict(RANK="0", LOCAL_RANK="0"), "WORLD_SIZE = ''"),
    (dict(RANK="2", LOCAL_RANK="0", WORLD_SIZE="2"), "RANK = 2, but WORLD_SIZE = 2"),
    (dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"), "cannot meet at None:None"),
    (dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="no.such.host", MASTER_PORT="1"),
     "cannot meet at no.such.host:1"),
])
def test_a_wrong_environment_of_torchrun_ends_in_one_line(cfg, monkeypatch, env, words):
    monkeypatch.setattr(_place, "MEET", 1)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert words in refusal(argv(cfg))


# ---- several processes, compiler ---------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_two_processes_give_the_losses_of_one(cfg, tmp_path, causal):
    """Dropout is on: it is a function of the row, and the micro-batches are the same."""
    cfg = replace(cfg, causal=causal, max_iters=8)
    two = replace(cfg, out_dir=cfg.out_dir + "_two")
    (status, output), other = [end(life) for life in begin_ranks(argv(two), tmp_path / "rank")]
    assert status == 0 and other == (0, ""), (output, other)
    assert "2 processes x 1 micro-batches x 4 sequences" in output and output.count("holds") == 0
    train.main(argv(cfg))
    a, b = (runs.read(c.out_dir + "/log.csv", runs.LOG_COLUMNS) for c in (cfg, two))
    assert len(a) == len(b) == 3
    for x, y in zip(a, b):
        for name in "step", "tokens", "val_loss", "train_loss":
            assert float(x[name] or 0) == pytest.approx(float(y[name] or 0), abs=2e-5), name
    one_process, two_processes = (runs.read(c.out_dir + "/scores.csv", runs.SCORES_COLUMNS) for c in (cfg, two))
    np.testing.assert_allclose([float(row["symmetry"]) for row in one_process],
                               [float(row["symmetry"]) for row in two_processes], atol=2e-4)


def test_without_a_compiler_the_run_says_so_in_one_line_and_goes_on(cfg, tmp_path):
    env = dict(CXX="no-such-compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    status, output = end(begin(argv(cfg, compile="on", n_layer=1, max_iters=4), tmp_path / "life.txt", **env))
    assert status == 0, output
    (line,) = [line for line in output.splitlines() if "torch.compile" in line]
    assert "torch.compile does not work here, going on without it" in line and "Traceback" not in output
    assert Path(cfg.out_dir, "model.safetensors").exists()


@pytest.mark.parametrize("folder, why", [("/dev/null/cache", "Not a directory"), ("/proc/self", "No such file")])
def test_a_cache_that_cannot_be_written_does_not_end_a_run(cfg, monkeypatch, capsys, folder, why):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
    train.main(argv(cfg, max_iters=4))
    assert f"TORCHINDUCTOR_CACHE_DIR = {folder} cannot be written ({why}" in capsys.readouterr().out
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_refusal_comes_before_any_compiling(finished, cfg, monkeypatch):
    monkeypatch.setattr(train.Trainer, "compile", lambda trainer: pytest.fail("compiled"))
    assert "holds a run already" in refusal(argv(finished, compile="on"))


def test_gradients_are_sent_while_the_backward_pass_of_a_compiled_model_goes_on(cfg, monkeypatch):
    """DDP splits what is compiled at the buckets of gradients, if it is there when that happens."""
    events = []

    def compile_forward(graph, inputs):
        return make_boxed_func(graph.forward)

    def compile_backward(graph, inputs):
        def run(*args):
            events.append("backward")
            return graph.forward(*args)
        return make_boxed_func(run)

    def send(_, bucket):
        events.append("sent")
        sent = torch.futures.Future()
        sent.set_result(bucket.buffer())
        return sent

    backend = aot_autograd(fw_compiler=compile_forward, bw_compiler=compile_backward)
    compile = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **kwargs: compile(model, backend=backend, **kwargs))
    ddp = functools.partial(train.DistributedDataParallel, bucket_cap_mb=5_000 / 2**20)  # for so small a model
    monkeypatch.setattr(train, "DistributedDataParallel", ddp)
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 5_000)
    torch._dynamo.reset()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        cpu = torch.device("cpu")
        trainer = train.Trainer(replace(cfg, compile="on", n_layer=1), Place(0, 2, cpu), tokens.load(cfg.data_dir))
        trainer.prepare_net()
        trainer.net.register_comm_hook(None, send)
        trainer.train_step(trainer.loader.train_batch(0))  # DDP makes its buckets in the first step
        events.clear()
        trainer.train_step(trainer.loader.train_batch(1))
    finally:
        dist.destroy_process_group()
    assert events.count("backward") > 1 and events.count("sent") > 1
    assert events.index("sent") < len(events) - 1 - events[::-1].index("backward"), events
