"""config/: every file builds its model; every mistake ends in one line that helps. pytest tests/test_config.py"""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import init
import train
from config import STARTS, ConfigError, TrainConfig, command_line, load
from model import BERT_STD, Transformer

ROOT = Path(__file__).parents[1]
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
FILES = sorted(path for path in (ROOT / "config").glob("*.py")
               if path.stem not in ("__init__", "plan", "planned", "processes"))


@pytest.fixture(autouse=True)
def in_root(monkeypatch):
    """Paths of config files are relative to the root, wherever pytest was started."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_config_file_loads_and_builds_its_model(path):
    cfg = load([str(path)])
    assert cfg.out_dir == f"out/{path.stem}"
    with torch.device("meta"):
        model = Transformer(cfg.of_model(50304))
        assert model(torch.zeros(2, cfg.block_size, dtype=torch.long)).shape == (2, cfg.block_size, 50304)


@pytest.mark.parametrize("base", ["tiny", "bert_mini", "bert", "bert_large"])
def test_variants_differ_from_their_base_in_what_they_say_and_in_nothing_else(base):
    plain = dataclasses.asdict(load([f"config/{base}.py"]))
    symm = dataclasses.asdict(load([f"config/{base}_symm.py"]))
    assert {k for k in plain if plain[k] != symm[k]} == {"out_dir", "init", "qk_std", "v_std"}
    assert symm["qk_std"] == symm["v_std"] == "linear"
    if base != "bert_large":
        decoder = dataclasses.asdict(load([f"config/{base}_decoder.py"]))
        more_logits = {"micro_batch_size"} if base != "tiny" else set()
        assert {k for k in plain if plain[k] != decoder[k]} == {"out_dir", "causal"} | more_logits


def test_the_published_recipe_is_what_the_bert_file_says():
    cfg = load([str(ROOT / "config/bert.py")])  # S2.3 and Table S1
    assert (cfg.n_layer, cfg.n_head, cfg.n_embd, cfg.block_size) == (12, 12, 768, 512)
    assert (cfg.dropout, cfg.attn_dropout) == (0.1, 0.1)
    assert (cfg.batch_size, cfg.max_iters, cfg.warmup_iters) == (32 * 8, 200_000, 200)
    assert (cfg.learning_rate, cfg.weight_decay, cfg.mlm_probability, cfg.dtype) == (5e-5, 0.01, 0.15, "auto")


@pytest.mark.bert_block
@pytest.mark.parametrize("name", ["bert_mini", "bert", "bert_large"])
def test_the_page_of_the_paper_has_the_operations_and_hours_that_torch_counts(name):
    cfg = load([str(ROOT / f"config/{name}.py")])
    operations = train.operations_per_token(cfg, 50304) * cfg.block_size * cfg.batch_size * cfg.max_iters
    page = (ROOT / "data/results/paper.md").read_text()
    mantissa, power, one, eight = re.search(rf"\| {name}, .* \| (.*)·10(..) \| (.*) \| (.*) \|", page).groups()
    hours = operations / 2e14 / 3600
    assert float(mantissa) * 10 ** int(power.translate(SUPERSCRIPTS)) == pytest.approx(operations, rel=0.05)
    assert (float(one), float(eight)) == (round(hours, 1), pytest.approx(hours / 8, rel=0.05))
    of_your_text = re.findall(rf"(\S+)(?: hours)? for {name}_symm", (ROOT / "data/README.md").read_text())
    assert of_your_text == ([] if name == "bert_large" else [one])


def test_flags_win_over_the_file_and_the_file_over_the_defaults_and_a_home_is_a_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("n_layer = 3\n_width = 32\nn_embd = 2 * _width\nlearning_rate = 1\n")
    monkeypatch.setenv("HOME", "/home/ada")
    flags = ["--n_layer=5", "--out_dir=a=b", "--init=skew", "--causal=True", "--dropout=0", "--data_dir=~/tokens"]
    cfg = load([str(tmp_path / "mine.py"), *flags])
    assert (cfg.n_layer, cfg.n_embd, cfg.out_dir, cfg.init, cfg.causal) == (5, 64, "a=b", "skew", True)
    assert (cfg.learning_rate, cfg.dropout, cfg.data_dir) == (1.0, 0.0, "/home/ada/tokens")
    assert isinstance(cfg.learning_rate, float)
    assert load(["config/tiny_symm.py", "--n_embd=512", "--qk_std=0.0255"]).qk_std == 0.0255


@pytest.mark.parametrize("argv, words", [
    (["--n_layers=4"], "unknown key n_layers"),
    (["--n_layer=True"], "n_layer = True, expected int"),
    (["--causal=true"], "causal = 'true', expected True | False"),
    (["--init=symetric"], "init = 'symetric', expected random | symmetric"),
    (["--n_embd=250", "--n_head=4"], "n_embd = 250, expected a multiple of n_head = 4"),
    (["--grad_clip=0"], "grad_clip = 0.0, expected more than 0"),  # elsewhere 0 means: no limit
    (["--learning_rate=nan"], "learning_rate = 'nan', expected float"),
    (["--dropout=1.0"], "dropout = 1.0, expected a share below 1"),
    (["--optimizer=muon"], "unknown key optimizer"),
    (["--max_iters", "100"], "--max_iters: write --key=value, without a space"),
    (["--constraint=skew"], "set both or neither"),
    (["--n_embd=36", "--n_head=4", "--positions=rotary"], "turns pairs of columns, and n_embd / n_head = 9 is odd"),
    (["--objective=next"], "every token would see the one it"), (["a.py", "b.py"], "one config file at most"),
    (["--qk_std=1e999"], "qk_std = inf, expected more than 0, and finite"),
    (["--mlm_probability=0"], "mlm_probability = 0.0, expected between 0 and 1"),
    (["--mlm_probability=1"], "mlm_probability = 1.0, expected"),
    (["--mlm_probability=0.01", "--block_size=32"], "0.01 of block_size = 32 tokens is less than half a token"),
    (["--out_dir="], "out_dir = '', expected a path"), (["--data_dir= "], "data_dir = ' ', expected a path"),
    (["--seed=18446744073709551616"], "seed = 18446744073709551616, expected 0 to 2^63 - 1"),
    (["--n_embd=1", "--n_head=1"], "n_embd = 1, expected 2 or more"),
    (["--weight_decay=1e5"], "weight_decay = 100000.0, expected 0 to 10"),
    (["--threads=100000"], "threads = 100000, expected 0 to 1000"),
    (["--qk_std=linaer"], "qk_std = 'linaer', expected float | init_std | linear"),
    (["config/nope.py"], "there is no file config/nope.py"),
    (["--mask_share=1.1"], "mask_share = 1.1, expected 0 to 1"),
    (["--mask_share=0.8", "--random_share=0.3"], "mask_share + random_share = 1.1, expected 1 at most"),
])
def test_a_mistake_is_named_with_its_value_and_what_was_expected(argv, words):
    with pytest.raises(ConfigError) as e:
        load(argv)
    assert words in str(e.value) and "\n" not in str(e.value) and len(str(e.value)) < 200


@pytest.mark.parametrize("text, words", [
    ("C = 64\nn_embd = C", "unknown key C; .* a name of a file's own begins with an underscore"),
    ("n_layers = 4", "unknown key n_layers; the nearest one is n_layer,"),
    ("n_layer = '4'", "n_layer = '4', expected int")])
def test_a_mistake_in_a_file_is_named_too(text, words, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load([str(tmp_path / "mine.py")])


def test_help_and_a_mistake_answer_without_torch_and_help_shows_what_the_command_would_use():
    for argv, status, words in [
            (["--help"], 0, "--n_embd             64 "), (["config/bert.py", "-h"], 0, "--n_embd             768 "),
            (["--seed=5", "--help"], 0, "--seed               5 "), (["--n_layers=3"], 1, "unknown key n_layers")]:
        code = (f"import runpy, sys; sys.modules['torch'] = None; sys.argv[1:] = {argv}\n"
                "runpy.run_path('train.py', run_name='__main__')")
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert found.returncode == status and words in found.stdout + found.stderr and "Traceback" not in found.stderr


def test_a_start_more_is_one_function_of_init(tmp_path, monkeypatch):
    """config reads their names in init.py, and does not import it."""
    assert STARTS == tuple(init.STARTS) and TrainConfig().init_std == BERT_STD
    shutil.copytree(ROOT / "config", tmp_path / "config")
    new = "\n\n@start\ndef mine(w_q, w_k, generator):\n    return w_k, w_q\n"
    (tmp_path / "init.py").write_text((ROOT / "init.py").read_text() + new)
    command = [sys.executable, "-c", "import config; print(config.load(['--init=mine']).init)"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout == "mine\n"
