"""The prepare scripts: SymPy, and those that read from the network, against the stand-in of tests/hub.py."""

import gzip
import json
import pathlib
import subprocess
import sys

import pandas
import pytest

from data import tokens
from data.redpajama import prepare as redpajama
from data.sympy import prepare as sympy
from tests.test_data import ROOT, encoded, texts_in


def test_the_corpus_of_the_benchmark_is_known_and_another_sympy_makes_another(tmp_path, monkeypatch, capsys):
    folder = sympy.main([f"--out_dir={tmp_path}"])
    assert {name: tokens.digest(folder / f"{name}.bin") for name in ("train", "val")} == sympy.DIGESTS["bytes"]
    assert "not the benchmark's corpus" not in capsys.readouterr().out
    monkeypatch.setattr(sympy, "SYMPY", ROOT / "data")  # another package
    sympy.main([f"--out_dir={tmp_path / 'other'}", "--val_fraction=0.3"])
    assert "not the benchmark's corpus" in capsys.readouterr().out


def test_train_makes_a_folder_of_sympy_and_no_other(monkeypatch):
    made = []
    monkeypatch.setattr(sympy, "main", made.append)
    for name in "data/text/bytes", "data/sympy/foo", "data/sympy/gpt2/":
        sympy.make(pathlib.Path(name))
    assert made == [["--tokenizer=gpt2", "--out_dir=data/sympy/gpt2"]]


@pytest.mark.parametrize("argv, repo, commit, path, n_files, column", [
    (["wikipedia", "--snapshot=20220301.en"], "legacy-datasets/wikipedia", "97a0b052c326b45fb68593a14972d9eed884cd17",
     "data/20220301.en/train-{:05}-of-00041.parquet", 41, "text"),
    (["jigsaw"], "monology/jigsaw", "690f4aa8ee63d1c28d6088859bba26b0c8db7b6e",
     "data/train-{:05}-of-00001.parquet", 1, "comment_text")])
def test_a_corpus_of_the_hub_is_read_from_all_its_files(argv, repo, commit, path, n_files, column, hub, tmp_path):
    texts = [[f"text {i} of file {file}\n\nand more" for i in range(9)] for file in range(n_files)]
    tables = [pandas.DataFrame({"id": ["0"] * 9, column: part}) for part in texts]
    hub.add(f"datasets/{repo}", {path.format(i): table.to_parquet() for i, table in enumerate(tables)}, commit=commit)
    script, *flags = argv
    flags += ["--tokenizer=bytes", "--val_fraction=0.3", f"--out_dir={tmp_path}"]
    if n_files > 1:  # one is broken, and one is not there
        del hub.repos[f"datasets/{repo}"].files[commit][path.format(7)]
        hub.repos[f"datasets/{repo}"].files[commit][path.format(9)] = b"no table"
        texts[7] = texts[9] = []
    # In a process of its own, since the address of the Hub is read at import.
    command = [sys.executable, ROOT / "data" / script / "prepare.py", *flags]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert texts_in(tmp_path) == encoded(sum(texts, []))
    if n_files > 1:
        assert "2 of 41 files could not be read" in said.splitlines()[-1]


def test_redpajama_is_read_from_all_its_shards_that_are_whole(hub, tmp_path, monkeypatch, capsys):
    # four shards, as the listing names them
    names = [f"2023-14/{i:04d}/en_{part}" for i in range(2) for part in ("head", "middle")]
    texts = {name: [f"page {i} of {name} 😀 é\r\n" for i in range(30)] for name in names}
    files = {"listings/en-2023-14-head_middle.txt": "\n".join(names).encode() + b"\n"}
    for name, pages in texts.items():
        lines = [json.dumps(dict(raw_content=page)) for page in pages]
        files[f"documents/{name}.json.gz"] = gzip.compress("\n".join(lines).encode())

    # one has lost its end, and one is not there
    broken, missing = names[1:3]
    files[f"documents/{broken}.json.gz"] = files[f"documents/{broken}.json.gz"][:-20]
    del files[f"documents/{missing}.json.gz"]
    hub.add("datasets/org/pages", files)
    monkeypatch.setattr(redpajama, "HOST", f"{hub.url}/datasets/org/pages/resolve/main")

    # the two others are whole. How much of the broken one can be read depends on gzip
    redpajama.main(["--tokenizer=bytes", f"--out_dir={tmp_path / 'pages'}", "--val_fraction=0.05"])
    kept, of_broken = texts_in(tmp_path / "pages"), encoded(texts[broken])
    assert [text for text in kept if text not in of_broken] == encoded(texts[names[0]] + texts[names[3]])
    *_, last = capsys.readouterr().out.splitlines()
    assert "2 of 4 files could not be read" in last and (broken in last or missing in last)
