"""The corpus of the benchmark."""

import pathlib

from data import tokens
from data.sympy import prepare
from tests.test_data import texts_in
from tests.toy import folder


def test_the_corpus_is_known(tmp_path, capsys):
    folder = prepare.main([f"--out_dir={tmp_path}"])
    assert {name: tokens.digest(folder / f"{name}.bin") for name in ("train", "val")} == prepare.DIGESTS["bytes"]
    assert "not the benchmark's corpus" not in capsys.readouterr().out


def test_another_sympy_makes_another_corpus_and_says_so(tmp_path, monkeypatch, capsys):
    files = {f"core/{i}.py": b"x = %d\n" % i for i in range(9)}
    left_out = {"core/copy.py": b"x = 1\n", "core/assumptions_generated.py": b"facts = {1: 2}\n", "core/notes.txt": b"-"}
    monkeypatch.setattr(prepare, "SYMPY", folder(tmp_path / "sympy", files | left_out, config=None))
    assert texts_in(prepare.main([f"--out_dir={tmp_path / 'out'}", "--val_fraction=0.3"])) == sorted(files.values())
    assert "not the benchmark's corpus" in capsys.readouterr().out


def test_train_makes_a_folder_of_this_corpus_and_no_other(monkeypatch):
    made = []
    monkeypatch.setattr(prepare, "main", made.append)
    for name in "data/text/bytes", "data/sympy/foo", "data/sympy/gpt2/":
        prepare.make(pathlib.Path(name))
    assert made == [["--tokenizer=gpt2", "--out_dir=data/sympy/gpt2"]]
