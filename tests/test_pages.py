"""
The pages show what commands print: every block that begins with `$ python analyze.py`. And the commands of README.md
run, one after the other in a folder of their own, as far as they need neither a network nor a GPU.
"""

import os
import re
import shlex
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import save_file

import analyze
import train
from config import command_line
from data.chance import SCORES
from data.text import prepare
from tests.test_runs import printed, words_of

ROOT = Path(analyze.__file__).parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "data").rglob("*.md"))]
BLOCK = re.compile(r"^```\n\$ python analyze\.py (--(?:runs|paper)[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [pytest.param(*found, id=f"{page.relative_to(ROOT)}: {found[0]}")
         for page in PAGES for found in BLOCK.findall(page.read_text())]


def test_every_command_that_a_page_shows_with_its_output_is_among_those_below():
    """Without a network: scores of a folder need a trained model."""
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    commands = [line for line in lines if line.startswith("$ python analyze.py") and "--hf" not in line]
    assert len(SHOWN) == len(commands) >= 4


@pytest.mark.parametrize("command, lines", SHOWN)
def test_a_page_shows_what_its_command_prints(command, lines, analysed, monkeypatch):
    """All of it, or pieces between lines of dots."""
    monkeypatch.chdir(ROOT)
    found = analysed(*shlex.split(command), csv=False)
    assert found.status == 0
    text = "\n".join(line.rstrip() for line in found.out.splitlines())
    for piece in re.split(r"^\.\.\.\n", lines, flags=re.MULTILINE):
        assert piece.strip("\n") in text, piece


def test_medians_by_positions_and_shares_are_those_of_the_published_models_that_were_scored_by_wqk():
    models = pandas.read_csv(ROOT / "data/pretrained/models.csv").query("modality == 'language' and matrix == 'wqk'")
    page = (ROOT / "data/pretrained/README.md").read_text()
    rows = dict(learned="learned", bias="a bias for each distance", relative="relative, in DeBERTa-v2", rotary="rotary")
    for positions, words in rows.items():
        cells = re.search(rf"^\| {words} \| (.*) \| (.*)\|$", page, re.MULTILINE).groups()
        for causal, cell in enumerate(cells):
            found = models[(models["positions"] == positions) & (models["causal"] == causal)]["symmetry"]
            expected = f"{found.median():.2f} ({len(found)})" if len(found) else ""
            assert cell.strip().replace("no model", "") == expected, (words, causal)
    both = [models[models["causal"] == causal] for causal in (0, 1)]
    pairs = both[0].merge(both[1], "cross", suffixes=("", "_of_decoder"))
    shares = [f"{100 * (pairs[score] > pairs[f'{score}_of_decoder']).mean():.1f} %" for score in SCORES]
    assert f"({len(both[0])} x {len(both[1])}) it is {' and '.join(shares)}" in page


def test_the_table_of_matrices_counts_the_rows_of_both_files():
    page = (ROOT / "data/pretrained/README.md").read_text()
    expected = pandas.DataFrame({name: pandas.read_csv(ROOT / f"data/pretrained/{name}.csv")["matrix"].value_counts()
                                 for name in ("models", "printed_tables")}).fillna(0)
    for matrix, *counts in expected.itertuples():
        cells = re.search(rf"^\| {matrix} \| (\d+) \| (\d+) \|", page, re.MULTILINE)
        assert cells and [int(cell) for cell in cells.groups()] == counts, matrix


def test_the_table_of_readme_is_what_its_comparison_prints():
    """Losses of the two tasks stand in columns of their own."""
    expected = {}
    for cells in words_of(printed(ROOT / "data/results/csv/positions.csv")):
        if len(cells) > 7 and cells[2].startswith("causal="):
            expected[cells[0]] = cells[4:9]  # loss, symmetry, chance, heads, directionality
    rows = re.findall(r"^\| .* \(`(\w+)`\) \| (.*) \|$", README, re.MULTILINE)
    assert len(rows) == 5
    for arm, cells in rows:
        *scores, masks, next_token = [cell.strip() for cell in cells.split("|")]
        assert [masks + next_token, *scores] == expected[arm], arm
        assert bool(next_token) == arm.startswith("decoder")


def test_the_layers_of_depth_end_as_the_table_of_results_says():
    ends = pandas.read_csv(ROOT / "data/results/csv/depth.csv", comment="#").query("step == 3600").groupby("arm").mean()
    page = (ROOT / "data/results/README.md").read_text()
    table = page.partition("| layer 0 | layer 1 |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    assert [arm for arm, _ in rows] == list(ends.index)
    for arm, cells in rows:
        assert cells.split(" | ") == [f"{ends.loc[arm, f'symmetry_{layer}']:.2f}" for layer in range(4)], arm


def test_the_encoders_in_which_beta_was_measured_are_the_runs_of_positions():
    """At each step the page of the tests has the range that the symmetry of W_qk has in the file, over four seeds."""
    runs = pandas.read_csv(ROOT / "data/results/csv/positions.csv", comment="#")
    runs = runs.query("arm == 'learned' and seed < 105")
    page = (ROOT / "tests/README.md").read_text()
    rows = re.findall(r"^ +(\d) +(\d+) +(\S+) to (\S+) ", page, re.MULTILINE)
    assert len(rows) == 14
    for layer, step, *ends in rows:
        found = runs[runs["step"] == int(step)][f"symmetry_{layer}"]
        assert ends == [f"{found.min():+.2f}", f"{found.max():+.2f}"], (layer, step)


# ---- the commands of README.md -----------------------------------------------------------------------------------


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


@pytest.mark.bert_block  # analyze.py finds its q and its k in a checkpoint
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
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = ["python train.py", *"".join(blocks).splitlines(), *re.findall(r"`((?:python|pytest) [^`]*)`", README)]
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


@pytest.mark.bert_block
def test_the_lines_for_a_project_of_ones_own_score_a_run_and_two_layers(finished):
    lines = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1].replace("/path/to/this/clone", str(ROOT))
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
