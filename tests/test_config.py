"""config/: every file builds its model; every mistake ends in one line that helps. pytest tests/test_config.py"""

import dataclasses
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from config import STARTS as NAMES
from config import ConfigError, TrainConfig, command_line, load, prepare_streams
from config.plan import main
from data.batches import count_targets
from init import STARTS
from model import BERT_STD, Transformer

ROOT = Path(__file__).parents[1]
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
FILES = sorted(path for path in (ROOT / "config").glob("*.py") if path.stem not in ("__init__", "planned", "processes"))


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
        assert {k for k in plain if plain[k] != decoder[k]} == {"out_dir", "causal"}


def test_the_published_recipe_is_what_the_bert_file_says():
    cfg = load([str(ROOT / "config/bert.py")])  # S2.3 and Table S1
    assert (cfg.n_layer, cfg.n_head, cfg.n_embd, cfg.block_size) == (12, 12, 768, 512)
    assert (cfg.dropout, cfg.attn_dropout) == (0.1, 0.1)
    assert (cfg.batch_size, cfg.micro_batch_size, cfg.max_iters, cfg.warmup_iters) == (32 * 8, 32, 200_000, 200)
    assert (cfg.learning_rate, cfg.weight_decay, cfg.mlm_probability, cfg.dtype) == (5e-5, 0.01, 0.15, "auto")


@pytest.mark.bert_block
@pytest.mark.parametrize("name", ["bert_mini", "bert", "bert_large"])
def test_the_page_of_the_paper_has_the_operations_and_hours_that_torch_counts(name):
    """On tensors without values, for the batches that a run of this config has."""
    cfg = load([str(ROOT / f"config/{name}.py")])
    idx = torch.zeros(2, cfg.block_size, dtype=torch.long, device="meta")
    predicted = idx[:, : count_targets(cfg)]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Transformer(cfg.of_model(50304))(idx, predicted, predicted).backward()
    operations = counter.get_total_flops() / 2 * cfg.batch_size * cfg.max_iters
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
    ("n_embd = 2 * width", "mine.py cannot be read as plain key = value Python: NameError name 'width'"),
    ("n_embd = (64", "SyntaxError .* line 1")])
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


@pytest.mark.parametrize("name", ["train.py", "analyze.py"])
def test_help_ends_without_a_word_if_nobody_reads_it(name):
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does
    found = subprocess.run([sys.executable, ROOT / name, "-h"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert not found.stderr


@pytest.mark.parametrize("name", ["train.py", "analyze.py"])
def test_an_isolated_python_finds_the_files_beside_a_script(name, tmp_path):
    found = subprocess.run([sys.executable, "-I", ROOT / name, "-h"], cwd=tmp_path, capture_output=True)
    assert found.returncode == 0 and not found.stderr


@pytest.mark.parametrize("command", ["train.py", "analyze.py --hf gpt2"])
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_torch_is_imported_ends_the_program_without_a_traceback_unless_it_is_ignored(
        command, ignored, tmp_path):
    (tmp_path / "torch.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nraise SystemExit('later')")
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts with &
    found = subprocess.run([sys.executable, *command.split()], env=os.environ | dict(PYTHONPATH=str(tmp_path)),
                           capture_output=True, text=True, preexec_fn=ignore if ignored else None)
    assert (found.returncode, found.stderr) == ((1, "later\n") if ignored else (-signal.SIGINT, ""))


def test_what_config_repeats_of_init_and_model_is_the_same_there():
    assert NAMES == tuple(STARTS) and TrainConfig().init_std == BERT_STD
    assert vars(command_line([])) == vars(load(["config/tiny.py"]))


ARMS = "dict(a=dict(keep=2), b=dict(causal=True))"
PLAN = f"base = 'config/tiny.py'\nseeds = [3, 4]\narms = {ARMS}"


def test_the_command_prints_every_arm_and_seed_and_every_arm_once_before_any_has_two(tmp_path, capsys):
    (tmp_path / "two.py").write_text(PLAN)
    main([str(tmp_path / "two.py"), "--n_layer=1"])  # a key for all of them
    found = [load(shlex.split(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(cfg.n_layer, cfg.causal, cfg.seed, cfg.out_dir) for cfg in found] == [
        (1, False, 3, "out/plans/two/a-3"), (1, True, 3, "out/plans/two/b-3"),
        (1, False, 4, "out/plans/two/a-4"), (1, True, 4, "out/plans/two/b-4")]
    main([str(tmp_path / "two.py"), "--max_iters=40"])
    shorter = [load(shlex.split(line)).out_dir for line in capsys.readouterr().out.splitlines()]
    assert not {cfg.out_dir for cfg in found} & set(shorter)  # or the whole runs would go on from the end of a trial
    (tmp_path / "named.py").write_text(PLAN.replace(ARMS, "{1: {}, 2: dict(init='skew')}")
                                       + "\nplanned = [('symmetry', '1', '>', '2')]")
    main([str(tmp_path / "named.py")])  # a name may be a number
    assert [line.split()[-2] for line in capsys.readouterr().out.splitlines()[:2]] == [
        "--out_dir=out/plans/named/1-3", "--out_dir=out/plans/named/2-3"]
    main(["positions"])
    main(["config/plans/positions"])  # as a shell completes it
    lines = capsys.readouterr().out.splitlines()
    assert lines[:64] == lines[64:]


@pytest.mark.parametrize("plan, argv, said", [
    (PLAN, [], "expected a comparison, such as positions"),  # xargs would train something else
    (PLAN, ["data/results/csv/starts.csv"], "there is no file .*starts.csv.py"),
    (PLAN, ["positions", "--seed=3"], "positions.py: its runs differ in seed, so --seed=3 is not for all of them"),
    (PLAN, ["positions", "--causal=True"], "its runs differ in causal, so --causal=True is not for all of them"),
    (PLAN.replace("causal", "caussal"), ["{}"], "unknown key caussal"),  # of its second arm
    (PLAN.replace("[3, 4]", "3"), ["{}"], "it must set base, a file; arms, a dict of dicts; and seeds, a list"),
    (PLAN.replace(ARMS, "['a']"), ["{}"], "it must set base, a file; arms, a dict of dicts; and seeds, a list"),
    (PLAN.replace(ARMS, "{}"), ["{}"], "mine.py: expected one arm and one seed at least, and no seed twice"),
    (PLAN.replace("[3, 4]", "[3, 3]"), ["{}"], "mine.py: expected one arm and one seed at least, and no seed twice"),
    (PLAN.replace("[3, 4]", "[[3], [4]]"), ["{}"], r"seed = \[3\], expected int"),
    (PLAN.replace(ARMS, "{1: dict(caussal=True)}"), ["{}"], "unknown key caussal"),  # an arm called 1 is fine
    (PLAN.replace(ARMS, "{'b/c': {}}"), ["{}"], "an arm is called 'b/c': expected letters, digits"),
    (PLAN.replace("causal=True", "seed=5"), ["{}"], "mine.py: b sets seed, which every run sets by itself"),
    (PLAN + "\nplanned = ('loss', 'a', '<', 'b')", ["{}"], "mine.py: planned test 'loss': expected .measure, left"),
    (PLAN + "\nplanned = [('loss', 'a', '<', 'b')]", ["{}"], "losses of different tasks .* differ in causal"),
])
def test_a_mistake_prints_no_run(tmp_path, plan, argv, said, capsys):
    (tmp_path / "mine.py").write_text(plan)
    with pytest.raises(SystemExit, match=said):
        main([word.format(tmp_path / "mine.py") for word in argv])
    assert capsys.readouterr().out == ""


def test_what_is_printed_may_be_shown_in_a_notebook(monkeypatch):
    """There stdout is a stream of text without a terminal behind it."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    prepare_streams()
    print("step 0")
    assert sys.stdout.getvalue() == "step 0\n"
