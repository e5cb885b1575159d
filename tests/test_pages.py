"""
The pages show what commands print: every block that begins with `$ python -m data.runs`. And the commands of README.md
run, one after the other in a folder of their own, as far as they need neither a network nor a GPU.
"""

import csv
import itertools
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import analyze
import train
from config import ROOT, command_line, run_file
from data import fill
from data.published import __main__ as published
from data.runs import __main__ as runs
from data.runs import front
from data.runs.kept import pool
from data.sympy.prepare import SYMPY
from data.text import prepare

README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "data/results/README.md").read_text()
PRETRAINED = (ROOT / "data/pretrained/README.md").read_text()
BERT_TINY = ROOT.parent / "shared/weights/bert-tiny-sst2-qk"
BLOCKS = re.findall(r"^```\n\$ python -m data\.runs ([^\n]*)\n(.*?)^```$", RESULTS, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command, shown", BLOCKS, ids=[command for command, _ in BLOCKS])
def test_the_page_of_results_shows_what_its_commands_print(command, shown, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    runs.main(shlex.split(command))
    assert len(BLOCKS) >= 6
    assert shown.strip("\n") in "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


TABLE_1 = {  # Table 1: last loss, with symmetric start, speed-up; there 0 % where the loss was not reached
    "bert_small--encoder--jigsaw": (2.782, 2.758, 0.26), "bert_small--encoder--wikipedia": (0.984, 0.812, 0.73),
    "bert_small--encoder--red_pajama": (1.106, 0.907, 0.69), "bert--encoder--jigsaw": (1.419, 1.430, -np.inf),
    "bert--encoder--wikipedia": (0.256, 0.247, 0.20), "bert--encoder--red_pajama": (0.297, 0.274, 0.35),
}


def test_the_authors_files_give_table_1_and_the_models_of_figure_2_and_18_rows_are_of_no_wqk(tmp_path, capsys, drawn):
    """models.csv has six Pythias more with figure 2, which the authors scored, and which no figure draws."""
    published.main(tmp_path)
    said, _, of_runs = capsys.readouterr().out.partition("The authors' runs")

    # Tables S2 and S3, and Table 1
    assert "Tables S2 and S3: 52 of 70 rows are of W_qk, and 18 are of another matrix." in said
    rows = [line.split() for line in of_runs.splitlines() if line.startswith("bert")]
    found = {name: list(map(float, cells)) for name, *cells in rows[:12]}
    for name, (plain, symmetric, saved) in TABLE_1.items():
        assert found[name][:2] == pytest.approx([plain, symmetric], abs=0.0011)
        assert found[name][2] == pytest.approx(saved, abs=0.0051)

    # Figure 2, and its pairs of an encoder and a decoder
    said = " ".join(said.split())
    with open(published.HERE / "models.csv", newline="") as file:
        models = [row for row in csv.DictReader(file) if row["figure"] == "2" and row["drawn_as"]]
    assert len(models) == 63 and not any("pythia" in row["name"] for row in models)
    [axis] = drawn[0].axes
    hollow = [bar for bar in axis.containers if bar.lines[0].get_markerfacecolor() == "white"]
    assert (len(axis.containers), len(hollow)) == (63, 21)  # a bar for each model
    for words, chosen in ("of W_qk alone", [row for row in models if row["matrix"] == "wqk"]), ("all rows", models):
        sides = [[row for row in chosen if row["causal"] == causal] for causal in "01"]
        shares = []
        for score in "symmetry", "directionality":
            pairs = [float(one[score]) > float(other[score]) for one, other in itertools.product(*sides)]
            shares.append(f"{score} {np.mean(pairs):.1%}")
        assert f"{words} ({len(sides[0])} x {len(sides[1])}): {', '.join(shares)}" in said
    assert f"Figure 2: {sum(row['matrix'] == 'wqk' for row in models)} of 63 models are scored on W_qk" in said


@pytest.mark.skipif(not BERT_TINY.exists(), reason="needs the BERT-tiny of https://github.com/narger-ef/FHE-BERT-Tiny")
def test_the_pages_show_what_is_printed_of_a_bert_tiny_which_scores_as_the_published_base_model(capsys):
    with pytest.raises(SystemExit):
        analyze.main(["--hf", str(BERT_TINY)])
    header, *layers = capsys.readouterr().out.splitlines()[1:4]
    assert [float(layer.split()[1]) for layer in layers] == pytest.approx([0.620, 0.917], abs=0.01)
    assert header in PRETRAINED and all(f"\n{layer}\n" in PRETRAINED for layer in layers)


@pytest.mark.parametrize("name", "benchmark depth long masks positions starts stuck switch".split())
def test_a_picture_of_results_has_the_plans_finding_as_title_and_a_name_at_each_line(name, tmp_path, drawn, capsys):
    runs.main([str(ROOT / f"data/results/csv/{name}.csv"), "--plot", str(tmp_path / "p.png")])
    [figure] = drawn
    assert figure.get_suptitle() == run_file(ROOT / f"config/plans/{name}.py")["picture"]["title"]
    for axis in figure.axes:
        labels = [line.get_label() for line in axis.lines if not line.get_label().startswith("_")]
        texts = [text.get_text().strip() for text in axis.texts]
        assert len(labels) > 1 and all(texts.count(label) == 1 for label in labels)
    assert any("1.80" in text for text in texts) == (name == "benchmark")


def test_the_picture_of_readme_has_a_line_for_each_seed_and_heads_between_layers_and_chance(tmp_path, drawn):
    front.draw_front(pool([ROOT / "data/results/csv/columns.csv"]), tmp_path / "front.png")
    [figure] = drawn
    n_lines = [len(axis.lines) for axis in figure.axes]  # the zero, 8 seeds and their mean of both, chance, heads
    assert n_lines == [1 + 18 + 3, 1 + 18 + 1, 1 + 18, 1 + 18]
    names = [{text.get_text().strip(): text.xy[1] for text in axis.texts} for axis in figure.axes]
    assert all(of_axis["encoder"] > of_axis["decoder"] for of_axis in names)
    first = names[0]
    assert first["encoder"] > first["its single heads"] > 1.5 * first["chance"] > first["heads' chance"]


SHORT = ["--max_iters=2", "--eval_interval=2", "--eval_iters=1", "--score_interval=2", "--compile=off"]
NOT_HERE = (  # how lines begin that need a network, its corpus or a GPU, or that another test runs
    "git clone", "python train.py config/bert_mini.py", "python analyze.py --hf llama3-8b", "torchrun",
    "python data/wikipedia/prepare.py", "python -m data.runs out/plans", "pip install",
    "python tests/exercises/micro.py", "python -m config.plan")
PROGRAMS = {"train.py": lambda words: train.main(command_line([*words, *SHORT])), "analyze.py": analyze.main,
            "data.runs": runs.main, "data.fill": fill.main,
            "data/text/prepare.py": lambda words: prepare.main([*words, "--out_dir=data/text/bytes"])}


@pytest.mark.bert_block  # analyze.py finds its q and its k in a checkpoint
def test_every_command_of_readme_runs_or_is_known_to_need_more(data_dir, tmp_path, monkeypatch, drawn):
    monkeypatch.chdir(tmp_path)
    for name in "data/sympy", "books":
        Path(name).mkdir(parents=True)
    for name, target in {"config": ROOT / "config", "data/results": ROOT / "data/results", "data/sympy/bytes": data_dir,
                         "notes.txt": SYMPY / "polys/polytools.py", "books/one.txt": SYMPY / "core/expr.py"}.items():
        Path(name).symlink_to(target)
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    inline = re.findall(r"`((?:python|pytest) [^`]*)`", README)
    lines = dict.fromkeys([*"".join(blocks).splitlines(), *inline])
    n_run = 0
    for line in lines:
        if line.startswith(NOT_HERE):
            continue
        program, *words = shlex.split(line.replace("python -m ", "python ").removeprefix("python "), comments=True)
        try:
            PROGRAMS[program](words)
        except SystemExit as e:
            assert not e.code, line
        n_run += 1
    assert n_run >= 9 and all(any(line.startswith(known) for line in lines) for known in NOT_HERE)


@pytest.mark.bert_block
def test_the_lines_of_python_score_a_run_and_layers_of_ones_own_code(finished):
    lines = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    lines, n = re.subn(r"^(score.*?)  .*$", r"found.append(\1)", lines, flags=re.MULTILINE)
    blocks = [SimpleNamespace(wq=torch.nn.Linear(32, 32), wk=torch.nn.Linear(32, 8))]  # eight heads, and two
    found = []
    exec(lines.replace("out/tiny", finished.out_dir), dict(blocks=blocks, found=found))
    table, model = found
    assert n == 2 and list(table.layer) == [0, 1] and list(model.table.layer) == [0]
