"""The corpus of the benchmark."""

import pathlib

from data import tokens
from data.sympy import prepare
from tests.test_data import documents
from tests.toy import folder

FILES = {  # of a small sympy
    "core/a.py": b"class A:\n    pass\n", "core/b.py": "x = 'é'\n".encode(), "z.py": b"z = 1\n",
    "core/assumptions_generated.py": b"facts = {1: 2}\n", "parsing/latex/_antlr/latexlexer.py": b"numbers = [1, 2]\n",
    "core/copy_of_a.py": b"class A:\n    pass\n", "core/empty.py": b"", "core/notes.txt": b"no code\n",
}
DOCUMENTS = [FILES[name] for name in ("core/a.py", "core/b.py", "z.py")]


def test_another_sympy_makes_another_corpus_and_says_so_whatever_the_order_on_the_disk(tmp_path, monkeypatch, capsys):
    sympy = folder(tmp_path / "sympy", FILES, config=None)
    monkeypatch.setattr(prepare, "SYMPY", sympy)
    backwards = sorted(sympy.rglob("*.py"), reverse=True)
    monkeypatch.setattr(pathlib.Path, "rglob", lambda root, pattern: backwards)
    assert [text.encode() for text in prepare.read(sympy)] == DOCUMENTS
    train, val = documents(prepare.main([f"--out_dir={tmp_path / 'out'}", "--val_fraction=0.3"])).values()
    assert sorted(train + val) == sorted(DOCUMENTS)
    assert "not the benchmark's corpus" in capsys.readouterr().out


def test_the_corpus_is_known_and_every_file_stands_in_one_split_in_the_order_of_paths(tmp_path, capsys):
    folder = prepare.main([f"--out_dir={tmp_path}"])
    assert {name: tokens.digest(folder / f"{name}.bin") for name in ("train", "val")} == prepare.DIGESTS["bytes"]
    assert "not the benchmark's corpus" not in capsys.readouterr().out
    texts = [text.encode() for text in prepare.read(prepare.SYMPY)]
    train, val = documents(folder).values()
    in_train = set(train)
    assert train == [text for text in texts if text in in_train]
    assert val == [text for text in texts if text not in in_train]


def test_train_makes_a_folder_of_this_corpus_and_no_other(monkeypatch):
    made = []
    monkeypatch.setattr(prepare, "main", made.append)
    for name in "data/text/bytes", "data/sympy/foo", "data/sympy/gpt2/":
        prepare.make(pathlib.Path(name))
    assert made == [["--tokenizer=gpt2", "--out_dir=data/sympy/gpt2"]]
