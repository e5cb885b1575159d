"""The corpus of the benchmark, and its record."""

import hashlib
import pathlib

import numpy as np
import pandas
import pytest

from config import HOW, KEYS, load
from data.results import record
from data.results.runs import RunError
from data.sympy import prepare
from tests.test_data import documents
from tests.toy import folder

FILES = {  # of a small sympy
    "core/a.py": "class A:\n    pass\n",
    "core/assumptions_generated.py": "facts = {1: 2}\n",
    "core/b.py": "x = 'é'\n",
    "core/copy_of_a.py": "class A:\n    pass\n",
    "core/empty.py": "",
    "core/notes.txt": "no code\n",
    "parsing/latex/_antlr/latexlexer.py": "numbers = [1, 2]\n",
    "z.py": "z = 1\n",
}
DOCUMENTS = [FILES[name] for name in ("core/a.py", "core/b.py", "z.py")]


@pytest.mark.parametrize("ends, digests", [("\n", prepare.DIGESTS), ("\r\n", prepare.DIGESTS), ("\n", {})])
def test_another_sympy_makes_another_corpus_and_says_so_whatever_the_ends_of_lines_and_the_order_on_the_disk(
        tmp_path, monkeypatch, capsys, ends, digests):
    """And whatever the tokenizer: no digest is known of a fork's own."""
    monkeypatch.setattr(prepare, "DIGESTS", digests)
    files = {name: text.replace("\n", ends).encode() for name, text in FILES.items()}
    sympy = folder(tmp_path / "sympy", files, config=None)
    monkeypatch.setattr(prepare, "find_sympy", lambda: sympy)
    backwards = sorted(sympy.rglob("*.py"), reverse=True)
    monkeypatch.setattr(pathlib.Path, "rglob", lambda root, pattern: backwards)
    assert list(prepare.read(sympy)) == DOCUMENTS
    train, val = documents(prepare.main([f"--out_dir={tmp_path / 'out'}", "--val_fraction=0.3"])).values()
    assert sorted(train + val) == sorted(text.encode() for text in DOCUMENTS)
    assert "not the benchmark's corpus" in capsys.readouterr().out


def test_the_corpus_is_known_and_every_file_stands_in_one_split_in_the_order_of_paths(tmp_path, capsys):
    folder = prepare.main([f"--out_dir={tmp_path}"])
    digests = {name: hashlib.sha256((folder / f"{name}.bin").read_bytes()).hexdigest() for name in ("train", "val")}
    assert digests == prepare.DIGESTS["bytes"]
    assert "not the benchmark's corpus" not in capsys.readouterr().out
    texts = [text.encode() for text in prepare.read(prepare.find_sympy())]
    train, val = documents(folder).values()
    in_train = set(train)
    assert train == [text for text in texts if text in in_train]
    assert val == [text for text in texts if text not in in_train]


def test_train_makes_the_folder_of_this_corpus_if_it_is_missing_and_no_other(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(prepare, "main", made.append)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("there/sympy/bytes").mkdir(parents=True)
    pathlib.Path("there/sympy/bytes/meta.json").touch()
    for name in "data/text/bytes", "data/sympy/foo", "data/sympy/gpt2/", "there/sympy/bytes":
        prepare.make(pathlib.Path(name))
    assert made == [["--tokenizer=gpt2", "--out_dir=data/sympy/gpt2"]]


# ---- the record --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("track", record.TRACKS)
def test_the_page_has_the_tables_the_leaders_of_config_are_the_records_and_flags_make_every_entry_of_them(track):
    entries = record.read_track(track)
    text = (record.FOLDER / "README.md").read_text()
    assert record.table(track, entries) in text and record.verdict(entries) in text
    assert [entry.flags for entry in entries.values()].count("") == 1 and ": no new record." in record.verdict(entries)
    assert sorted(f"{name}.csv" for name in entries) == sorted(path.name for path in (record.FOLDER / track).iterdir())
    for name, entry in entries.items():
        made = vars(load([str(record.CONFIG / record.TRACKS[track].leader), *entry.flags.split()]))
        there = record.read_entry(record.FOLDER / track / f"{name}.csv")[0].config
        assert all(made[key] == there[key] for key in KEYS.keys() - HOW - {"seed"}), name


def test_the_updates_of_a_run_are_the_first_with_the_loss_and_all_of_them_if_none_has():
    path = record.FOLDER / "open" / "rotary.csv"
    table = pandas.read_csv(path, comment="#").set_index(["seed", "step"])["val_loss"]
    expected = []
    for seed in record.SEEDS:
        steps = [step for step, loss in table[seed].items() if loss <= 1.85]
        expected.append(min(steps, default=600))
    assert list(record.steps_of(record.read_entry(path), 1.85)) == expected and 600 in expected and min(expected) < 600


@pytest.mark.parametrize("steps, says", [([290] * 4 + [291] * 4, "a new record"), ([200] + [302] * 7, "no new record")])
def test_a_new_record_is_earlier_by_more_than_twice_the_standard_error(steps, says):
    entries = {"old": record.Entry(np.full(8, 300), "", {}), "new": record.Entry(np.array(steps), "--beta2=0.9", {})}
    assert record.verdict(entries).endswith(f": {says}.")


@pytest.mark.parametrize("old, new, said", [
    (",18,", ",19,", r"has the seeds \[11, 12, 13, 14, 15, 16, 17, 19\], expected 11 to 18"),
    ("cc380232", "00000000", "another corpus"),
    ('"batch_size": 128', '"batch_size": 256', "batch_size = 256, expected 128: only the initialization is free"),
    ('"learning_rate": 0.003', '"learning_rate": 0.03', "learning_rate = 0.03, expected 0.003"),
    ('"max_iters": 600', '"max_iters": 6000', "max_iters = 6000, expected 600 at most"),
    ('"n_params": ', '"n_params": 1', "parameters, expected 1 to 125,000"),
    ('"commit": ["', '"commit": ["0', "of no clean commit"),
    ('"qk_norm": false', '"of_a_fork": 3, "qk_norm": false', "of_a_fork = 3, expected None: only the initialization"),
    ("\nltg,14,600,", "\nltg,14,1600,", "runs that have not finished")])
def test_an_entry_that_cannot_be_compared_is_refused_in_one_line(tmp_path, old, new, said):
    text = (record.FOLDER / "start" / "ltg.csv").read_text()
    assert old in text
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "entry.csv").write_text(text.replace(old, new))
    with pytest.raises(RunError, match=said):
        record.read_entry(tmp_path / "start" / "entry.csv")


@pytest.mark.parametrize("changed, said", [
    ("max_iterz = 300", "unknown key max_iterz; the nearest one is max_iters"),
    ("max_iters = 310", "no entry of .*/open has the keys of config/record.py, the record: write one's into it")])
def test_a_leader_that_is_no_entry_is_refused_in_one_line(tmp_path, monkeypatch, changed, said):
    text = (record.CONFIG / "record.py").read_text()
    monkeypatch.setattr(record, "CONFIG", folder(tmp_path, {
        "record.py": text.replace("max_iters = 300", changed).encode(),
        "record_start.py": (record.CONFIG / "record_start.py").read_bytes()}, config=None))
    with pytest.raises(SystemExit, match=f"^record: {said}"):
        record.main([])


@pytest.mark.parametrize("row, said", [
    ("start,a|b,2026-11-26,me", r"a name has a \|, which ends a table's cell$"),
    ("start,a,2026-11-26,me, and you", "Expected 4 fields in line 3, saw 5$")])
def test_a_row_that_would_end_a_cell_of_the_table_or_has_a_cell_too_much_is_refused(tmp_path, monkeypatch, row, said):
    (tmp_path / "entries.csv").write_text(f"track,entry,date,who\nopen,b,2026-11-26,me\n{row}\n")
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=f"^record: .*{said}"):
        record.main([])
