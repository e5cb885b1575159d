"""The pages show what commands print: every block that begins with `$ python analyze.py`. pytest tests/test_pages.py"""

import re
import shlex
from pathlib import Path

import pandas
import pytest

import analyze
from tests.test_runs import printed, words_of

ROOT = Path(analyze.__file__).parent
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


def test_medians_by_positions_are_those_of_the_published_models_that_were_scored_by_wqk():
    models = pandas.read_csv(ROOT / "data/pretrained/models.csv").query("modality == 'language' and matrix == 'wqk'")
    page = (ROOT / "data/pretrained/README.md").read_text()
    rows = dict(learned="learned", bias="a bias for each distance", relative="relative, in DeBERTa-v2", rotary="rotary")
    for positions, words in rows.items():
        cells = re.search(rf"^\| {words} \| (.*) \| (.*)\|$", page, re.MULTILINE).groups()
        for causal, cell in enumerate(cells):
            found = models[(models["positions"] == positions) & (models["causal"] == causal)]["symmetry"]
            expected = f"{found.median():.2f} ({len(found)})" if len(found) else ""
            assert cell.strip().replace("no model", "") == expected, (words, causal)


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
            expected[cells[0]] = cells[4:8]  # loss, symmetry, heads, directionality
    rows = re.findall(r"^\| .* \(`(\w+)`\) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 5
    for arm, cells in rows:
        symmetry, heads, directionality, masks, next_token = [cell.strip() for cell in cells.split("|")]
        assert [masks + next_token, symmetry, heads, directionality] == expected[arm], arm
        assert bool(next_token) == arm.startswith("decoder")


def test_the_layers_of_depth_end_as_the_table_of_results_says():
    ends = pandas.read_csv(ROOT / "data/results/csv/depth.csv", comment="#").query("step == 3600").groupby("arm").mean()
    page = (ROOT / "data/results/README.md").read_text()
    table = page.partition("| layer 0 | layer 1 |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    assert [arm for arm, _ in rows] == list(ends.index)
    for arm, cells in rows:
        assert cells.split(" | ") == [f"{ends.loc[arm, f'symmetry_{layer}']:.2f}" for layer in range(4)], arm
