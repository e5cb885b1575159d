"""The corpus of the benchmark, and its record."""

import hashlib
import pathlib

import numpy as np
import pytest
import torch

from data import tokens
from data.pytorch import prepare as pytorch

FILES = {  # of a small torch
    "version.py": "__version__ = '0'\n",  # another one in every wheel
    "nn/a.py": "class A:\n    pass\n",
    "nn/b.py": "x = 'é'\n",
    "nn/copy_of_a.py": "class A:\n    pass\n",
    "nn/empty.py": "",
    "nn/notes.txt": "no code\n",
    "sparse/_triton_ops_meta.py": "meta = {1: 2}\n",
    "z.py": "z = 1\n",
}


def write_tree(root, ends="\n"):
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("\n", ends).encode())


def digests(folder):
    return {split: hashlib.sha256((folder / f"{split}.bin").read_bytes()).hexdigest() for split in ("train", "val")}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_the_corpus_is_the_same_whatever_the_ends_of_lines(tmp_path, monkeypatch, ends):
    write_tree(tmp_path / "torch", ends)
    monkeypatch.setattr(pytorch, "find_torch", lambda: tmp_path / "torch")
    folder = pytorch.main([f"--out_dir={tmp_path / 'out'}"])
    corpus = tokens.load(folder)
    written = np.concatenate([corpus.train, corpus.val])
    texts = written.astype("<u2").tobytes().split(b"\0\1")  # 256, the end of text, after every document
    texts = sorted(bytes(np.frombuffer(text, "<u2").astype(np.uint8)).decode() for text in texts)
    assert texts == sorted(["", FILES["nn/a.py"], FILES["nn/b.py"], FILES["z.py"]])


def test_the_corpus_of_the_pinned_torch_has_the_digests_that_the_script_knows(tmp_path, capsys):
    if not torch.__version__.startswith(pytorch.VERSION):
        pytest.skip(f"this is torch {torch.__version__}")
    folder = pytorch.main([f"--out_dir={tmp_path}"])
    assert digests(folder) == pytorch.DIGESTS["bytes"]
    assert "not the benchmark's corpus" not in capsys.readouterr().out


def test_no_file_stands_in_both_splits_and_the_order_is_that_of_the_paths(tmp_path):
    folder = pytorch.main([f"--out_dir={tmp_path}"])
    texts = [text.encode() for text in pytorch.read_files(pytorch.find_torch()).values()]
    corpus = tokens.load(folder)
    splits = [split.tobytes() for split in (corpus.train, corpus.val)]
    places = [[], []]  # where each text begins in each split
    for text in texts:
        ids = np.array([*text, 256], "<u2").tobytes()
        found = [split.find(ids, here[-1] if here else 0) for split, here in zip(splits, places)]
        is_train, is_val = (place >= 0 for place in found)
        assert is_train != is_val
        places[is_val].append(found[is_val])
    assert all(sorted(here) == here for here in places)
    assert sum(len(text) + 1 for text in texts) == len(corpus.train) + len(corpus.val)


def test_another_torch_makes_another_corpus_and_says_so(tmp_path, monkeypatch, capsys):
    write_tree(tmp_path / "torch")
    monkeypatch.setattr(pytorch, "find_torch", lambda: tmp_path / "torch")
    pytorch.main([f"--out_dir={tmp_path / 'out'}"])
    assert "not the benchmark's corpus" in capsys.readouterr().out


def test_train_makes_the_folder_of_this_corpus_if_it_is_missing_and_no_other(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(pytorch, "main", made.append)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("there/pytorch/bytes").mkdir(parents=True)
    pathlib.Path("there/pytorch/bytes/meta.json").touch()
    for name in "data/text/bytes", "data/pytorch/foo", "data/pytorch/gpt2/", "there/pytorch/bytes":
        pytorch.make(pathlib.Path(name))
    assert made == [["--tokenizer=gpt2", "--out_dir=data/pytorch/gpt2"]]
