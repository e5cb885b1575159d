"""
The commands of README.md run, one after the other in a folder of their own, as far as they need neither a network nor
a GPU: pytest tests/test_readme.py
"""

import os
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import analyze
import train
from config import command_line
from data.text import prepare

pytestmark = pytest.mark.bert_block  # analyze.py finds its q and its k in a checkpoint
ROOT = Path(analyze.__file__).parent
TEXT = (ROOT / "README.md").read_text()
SHORT = ["--max_iters=2", "--eval_interval=2", "--eval_iters=1", "--score_interval=2", "--compile=off"]
NOT_HERE = {  # how a line begins: why it is not run here
    "python3 -m venv .venv && . .venv/bin/activate": "it installs, which .ci/run does",
    "pip install -r requirements.txt && python train.py": "the same",
    "pytest": "it is this very program",
    "python analyze.py --hf bert-base": "from the Hub",
    "python analyze.py --hf llama3-8b": "the same",
    "python data/wikipedia/prepare.py": "the same",
    "python -m data.results.csv.published.draw": "test_published.py does it",
    "python train.py config/bert_mini.py": "it needs the corpus of the line before",
    "for name in bert": "the same, and eight GPUs",
}
PROGRAMS = {"train.py": lambda words: train.main(command_line([*words, *SHORT])), "analyze.py": analyze.main,
            "data/text/prepare.py": lambda words: prepare.main([*words, "--out_dir=data/text/bytes"])}


def test_every_command_of_readme_runs_or_is_known_to_need_more(data_dir, tmp_path, monkeypatch, drawn):
    monkeypatch.chdir(tmp_path)
    for name in "data/sympy", "my_run", "mine", "books":
        Path(name).mkdir(parents=True)
    for name, target in {"config": ROOT / "config", "data/results": ROOT / "data/results", "data/sympy/bytes": data_dir,
                         "notes.txt": torch.__file__, "books/one.txt": os.__file__,
                         "my_run/checkpoint-1": tmp_path / "out/tiny"}.items():
        Path(name).symlink_to(target)
    matrices = {f"blocks.{i}.w{x}.weight": torch.randn(8 * n, 64) for i in (0, 1) for x, n in (("q", 8), ("k", 2))}
    save_file(matrices, "mine/model.safetensors")
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    lines = ["python train.py", *"".join(blocks).splitlines(), *re.findall(r"`((?:python|pytest) [^`]*)`", TEXT)]
    n_run = 0
    for line in lines:
        if line.startswith(tuple(NOT_HERE)):
            continue
        _, program, *words = shlex.split(line, comments=True)
        try:
            PROGRAMS[program](words)
        except SystemExit as e:
            assert not e.code, line
        n_run += 1
    assert n_run > 10 and all(any(line.startswith(known) for line in lines) for known in NOT_HERE)


def test_the_lines_for_a_project_of_ones_own_score_a_run_and_two_layers(finished):
    lines = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1].replace("/path/to/this/clone", str(ROOT))
    lines, n = re.subn(r"^(score.*?)  .*$", r"found.append(\1)", lines, flags=re.MULTILINE)
    query, key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    block = torch.nn.ModuleDict(dict(wq=query, wk=key))
    mine = torch.nn.ModuleDict(dict(blocks=torch.nn.ModuleList([block, block])))
    found = []
    exec(lines, dict(model=finished.out_dir, mine=mine, query=query, key=key, found=found))
    table, of_mine, of_layers = found
    expected = analyze.symmetry(query.weight.T @ key.weight).item()
    assert n == 3 and list(table.layer) == [0, 1]
    assert [*of_mine.symmetry, of_layers.symmetry.item()] == pytest.approx([expected] * 3, abs=1e-6)
