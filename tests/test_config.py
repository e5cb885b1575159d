"""config/: every file builds its model; every mistake ends in one line that helps. pytest tests/test_config.py"""

import pytest
import torch

from config import KEYS, ROOT, command_line, load
from model import Transformer

CODE = "__init__", "launch", "plan", "processes", "race", "updates"
FILES = sorted(path for path in (ROOT / "config").glob("*.py") if path.stem not in CODE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_config_file_loads_and_builds_its_model(path):
    cfg = load([str(path)])
    assert cfg.out_dir == f"out/{path.stem}"
    with torch.device("meta"):
        assert len(Transformer(cfg.of_model(50304)).blocks) == cfg.n_layer


def test_help_has_every_key_once_below_one_of_four_headings(capsys):
    with pytest.raises(SystemExit, match="^$"):
        command_line(["config/bert.py", "--help"])
    first, *lines = capsys.readouterr().out.splitlines()[1:]
    keys = [line.split()[0].removeprefix("--") for line in lines if line.startswith("  --")]
    headings = [line for line in lines if not line.startswith("  --")]
    assert keys == list(KEYS) and len(headings) == 4 and lines[0] == headings[0]


def test_the_published_recipe_is_what_the_bert_file_says():
    expected = dict(n_layer=12, n_head=12, n_embd=768, block_size=512, dropout=0.1, attn_dropout=0.1, dtype="auto",
                    batch_size=32 * 8, max_iters=200_000, warmup_iters=200, learning_rate=5e-5, weight_decay=0.01,
                    mlm_probability=0.15)
    assert expected.items() <= vars(load(["config/bert.py"])).items()  # S2.3 and Table S1


def test_flags_win_over_the_file_and_the_file_over_the_defaults_and_a_home_is_a_folder(tmp_path, monkeypatch):
    mine = tmp_path / "mine.py"
    mine.write_text("n_layer = 3\n_width = 32\nn_embd = 2 * _width\nlearning_rate = 1\n")
    monkeypatch.setenv("HOME", "/home/ada")
    flags = ["--n_layer=5", "--out_dir=a=b", "--init=skew", "--causal=True", "--qk_std=0.0255", "--data_dir=~/tokens"]
    cfg = load([str(mine), *flags])
    assert (cfg.n_layer, cfg.n_embd, cfg.out_dir, cfg.init, cfg.causal) == (5, 64, "a=b", "skew", True)
    assert (cfg.learning_rate, cfg.qk_std, cfg.data_dir) == (1.0, 0.0255, "/home/ada/tokens")
    assert isinstance(cfg.learning_rate, float)


@pytest.mark.parametrize("argv, words", [
    (["--n_layers=4"], "unknown key n_layers: --help lists all keys, a file's own names begin with an underscore, "
     "and a fork's key is a line of TrainConfig in config/__init__.py: n_layers: int = key(...)"),
    (["--n_layer=True"], "n_layer = True, expected int"),
    (["--init=symetric"], "init = 'symetric', expected str: random | symmetric"),
    (["--n_embd=250", "--n_head=4"], "n_embd = 250, expected a multiple of n_head = 4"),
    (["--grad_clip=0"], "grad_clip = 0.0, expected float: more than 0"),
    (["--dropout=1"], "dropout = 1.0, expected float: 0 to below 1"),
    (["--learning_rate=nan"], "learning_rate = 'nan', expected float"),
    (["--max_iters", "100"], "--max_iters: write --key=value, without a space"),
    (["--positions=rotary", "--n_embd=12", "--n_head=4"], "expected an even n_embd / n_head"),
    (["README.md"], "README.md is no file of keys: expected one that ends in .py"),
    (["--objective=next"], "every token would see the one it"),
    (["--mlm_probability=0.01", "--block_size=32"], "masks no token of a sequence"),
    (["--tie=same", "--qk_update=muon"], "tied keys have no k.weight"),
    (["--mask_share=0.8", "--random_share=0.3"], "mask_share + random_share is more than 1"),
])
def test_a_mistake_ends_in_one_line_with_its_value_and_what_was_expected(argv, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as e:
        command_line(argv)
    assert e.value.code.startswith("train.py: ") and words in e.value.code and "\n" not in e.value.code
