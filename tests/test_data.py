"""
The token files: what the writer writes, the reader gives back, and what both refuse. Then the prepare scripts; those
that read from the network read the stand-in of tests/hub.py. pytest tests/test_data.py
"""

import csv
import gzip
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import datasets
import numpy as np
import pandas
import pytest
import tiktoken

from data import tokens, writer
from data.redpajama import prepare as redpajama
from data.sympy import prepare as sympy
from data.text import prepare as text
from tests import toy

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIKTOKEN = pathlib.Path(os.environ.get("TIKTOKEN_CACHE_DIR", ROOT.parent / "shared" / "tiktoken"))
NASTY = ["plain", "end <|endoftext|> of text", "crlf\r\nold mac\rline\n", "nul\0in it", "é 漢字 😀 \u200d", "   ",
         " \n\n ", "x" * 300_000, "no space, then one" + "^" * 120_000 + " end", "\ufeffmark", "twice", "twice"]


def write(folder, documents, *argv):
    """Writes token files -> the folder. documents: a list of files, each a list of str."""
    cli = writer.command_line("test", "", val_fraction=0.5)
    args = cli.parse_args(["--tokenizer=bytes", f"--out_dir={folder}", *argv])
    return writer.write(args, range(len(documents)), documents.__getitem__)


@pytest.fixture
def prepare(tmp_path):
    """Runs data/text/prepare.py -> its folder."""
    return lambda *argv: text.main([f"--out_dir={tmp_path / 'out'}", *map(str, argv)])


def documents(folder, decode=lambda ids: ids.astype(np.uint8).tobytes()):
    """{split: its documents as bytes}, from the files alone."""
    meta, splits = json.loads((folder / "meta.json").read_text()), {}
    for split in "train", "val":
        ids = np.fromfile(folder / f"{split}.bin", "<u2")
        ends = np.flatnonzero(ids == meta["eot_token"])
        splits[split] = [decode(piece[:-1]) for piece in np.split(ids, ends + 1)[:-1]]
        assert ends[-1:] == len(ids) - 1 == meta["tokens"][split] - 1
    return splits


def texts_in(folder, **decode):
    """The documents of both splits, sorted."""
    return sorted(sum(documents(folder, **decode).values(), []))


def encoded(texts):
    return sorted(text.encode() for text in texts)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in ("train.bin", "val.bin", "meta.json")}


def test_documents_come_back_exactly_in_order_and_are_in_one_split_only(tmp_path):
    many = [f"document {i}" for i in range(2000)] + NASTY
    write(tmp_path, [many, [""], many[:50]], "--val_fraction=0.2")
    in_order = [text.encode() for text in many + many[:50]]
    splits = documents(tmp_path)
    for split, other in ("train", "val"), ("val", "train"):
        assert splits[split] == [text for text in in_order if text not in splits[other]]
    assert len(splits["val"]) / len(in_order) == pytest.approx(0.2, abs=0.035)  # four standard deviations


def test_spaced_puts_a_space_between_all_characters(tmp_path):
    write(tmp_path, [["ab c", "é\nx"]], "--spaced")
    assert texts_in(tmp_path) == encoded(["a b   c", "é \n x"])


def test_the_ids_are_those_of_tiktoken(tmp_path, monkeypatch):
    if not TIKTOKEN.exists():
        pytest.skip("needs gpt2's two files in TIKTOKEN_CACHE_DIR (data/README.md)")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN))
    gpt2 = tiktoken.get_encoding("gpt2")
    # The long text is cut where a word ends: gpt2 has tokens of several spaces, if these are no-break ones.
    texts = ["A text, as usual.\n\n  Don't <|endoftext|>!", ("x" + 16 * " \xa0") * 5_000]
    folder = write(tmp_path / "ids", [texts], "--tokenizer=gpt2", "--val_fraction=0.58")
    assert texts_in(folder, decode=tuple) == sorted(tuple(gpt2.encode_ordinary(text)) for text in texts)
    folder = write(tmp_path / "nasty", [NASTY], "--tokenizer=gpt2")  # too long for tiktoken in one piece
    assert texts_in(folder, decode=lambda ids: gpt2.decode_bytes(ids.tolist())) == encoded(NASTY)


def test_a_limit_stops_with_the_document_that_reaches_it(tmp_path):
    texts = [f"document number {i:4}" for i in range(500)]  # 21 tokens each, 2,016 in all of 96
    write(tmp_path, [texts], "--max_tokens=2016")
    assert texts_in(tmp_path) == encoded(texts[:96])


def test_what_makes_no_corpus_is_refused_and_files_of_another_program_are_not_overwritten(tmp_path, monkeypatch):
    with pytest.raises(tokens.DataError, match="expected some for each"):
        write(tmp_path, [["twice", "twice", ""]])
    with pytest.raises(tokens.DataError, match="no finished token files"):
        tokens.load(tmp_path)
    monkeypatch.setitem(tokens.TOKENIZERS, "bytes", tokens.TOKENIZERS["bytes"] | dict(n_vocab=2**16))
    with pytest.raises(AssertionError, match="dtype is too small for the ids"):
        write(tmp_path, [["a", "b"]])
    assert not any(tmp_path.glob("*.bin"))
    folder = toy.folder(tmp_path / "other", {"train.bin": b"of nanoGPT"}, config=None)
    with pytest.raises(tokens.DataError, match="holds .bin files that no prepare.py of ours has written"):
        write(folder, [["one"], ["two"]])
    assert (folder / "train.bin").read_bytes() == b"of nanoGPT"


def test_a_writer_that_is_killed_leaves_no_corpus_and_the_next_one_ends_with_the_same_bytes(tmp_path):
    argv = [os.__file__, f"--out_dir={tmp_path / 'killed'}"]
    script = ("import os; os.replace = lambda *_: os.kill(os.getpid(), 9); "  # before a file gets its name
              f"from data.text import prepare; prepare.main({argv})")
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -signal.SIGKILL
    with pytest.raises(tokens.DataError, match="no finished token files"):
        tokens.load(tmp_path / "killed")
    assert contents(text.main(argv)) == contents(text.main([os.__file__, f"--out_dir={tmp_path / 'whole'}"]))


def test_text_is_not_changed_under_a_program_that_reads_it(tmp_path):
    folder = write(tmp_path, [["a", "b"]])
    corpus, before = tokens.load(folder), contents(folder)
    (folder / "meta.json").unlink()
    (folder / "train.bin.999.tmp").write_bytes(b"of a killed program")
    write(folder, [["other", "text", "of", "more", "words"]])
    assert corpus.train.tobytes() == before["train.bin"] != contents(folder)["train.bin"]
    assert not any(folder.glob("*.tmp"))


def test_a_finished_folder_is_left_as_it_is_and_refused_with_other_options_or_another_description(tmp_path):
    folder = write(tmp_path, [["a", "b"]])
    before = contents(folder)
    write(folder, [["c", "d"]])
    for option, words in ("--val_fraction=0.4", "val_fraction = 0.5,"), ("--spaced", "spaced = False, not True"):
        with pytest.raises(tokens.DataError, match=f"was made with {words}"):
            write(folder, [["a", "b"]], option)
    assert contents(folder) == before
    meta = json.loads(before["meta.json"])
    for wrong in dict(eot_token=3), dict(sha256=dict(train=meta["sha256"]["val"], val=meta["sha256"]["train"])):
        (folder / "meta.json").write_text(json.dumps(meta | wrong))
        with pytest.raises(tokens.DataError, match="train.bin and val.bin are not the files"):
            tokens.load(folder)


def test_text_takes_what_is_text_once_and_says_the_rest(tmp_path, capsys, prepare):
    files = {"a.txt": b"crlf\r\nkept", "deep/b.md": b"latin \xe9\xff1", "deep/f": "é".encode() * 9, "empty": b"",
             ".git/c": b"hidden", "d.bin": bytes(range(256)) * 40, "e.csv": b"a,b", "m.txt": "\ufeffmark".encode()}
    source = toy.folder(tmp_path / "source", files, config=None)
    folder = prepare(source, source / "a.txt", "--val_fraction=0.35")
    assert texts_in(folder) == encoded(["crlf\r\nkept", "latin \ufffd\ufffd1", "é" * 9, "mark"])
    printed = capsys.readouterr().out
    assert "left out: 2 files, such as " in printed and "b.md: 2 U+FFFD where bytes are no UTF-8" in printed


def many_paragraphs(path, n):
    path.write_text("".join(f"{path.name} {i} " + "word " * 100 + "\r\n\r\n" for i in range(n)), newline="")
    return str(path)


def test_many_files_are_in_one_split_each_with_their_copies(tmp_path, prepare):
    paths = [many_paragraphs(tmp_path / f"{i}", 9 + i) for i in range(30)]
    paths += [shutil.copy(path, f"{path}_copy") for path in paths]
    splits = documents(prepare(*paths, "--val_fraction=0.3")).values()
    train, val = [{document.split()[0] for document in split} for split in splits]  # their files
    assert not train & val and len(train | val) == 30 and abs(len(val) - 30 * 0.3) < 8  # three standard deviations


def test_a_long_file_is_split_at_blank_lines_or_anywhere_and_nothing_is_lost(tmp_path, prepare):
    paragraphs, line = tmp_path / "paragraphs", tmp_path / "line"
    many_paragraphs(paragraphs, 2000)
    line.write_text(str([*range(200_000)]))
    splits = documents(prepare(paragraphs, line))
    whole, pieces = paragraphs.read_bytes() + line.read_bytes(), splits["train"] + splits["val"]
    assert sum(map(len, pieces)) == len(whole) and all(piece in whole for piece in pieces)
    assert all(piece.endswith(b"\r\n\r\n") for piece in pieces if b"word" in piece)
    assert 0.02 < sum(map(len, splits["val"])) / len(whole) < 0.1  # 5 %
    for split in splits.values():
        assert {b"word" in piece for piece in split} == {True, False}  # some of each file


TABLES = dict(jsonl=datasets.Dataset.to_json, csv=datasets.Dataset.to_csv, parquet=datasets.Dataset.to_parquet)


@pytest.mark.parametrize("kind", TABLES)
def test_of_a_table_the_column_with_the_text_is_read_and_its_name_is_no_pattern(kind, tmp_path, prepare):
    texts = ["NA", "null", "001", "a,b", "two\nlines", 'a "quote"', "é 😀", "crlf\r\ninside", "twice", None]
    source = tmp_path / "source[1]"
    source.mkdir()
    TABLES[kind](datasets.Dataset.from_dict(dict(id=list(range(10)), story=texts)), str(source / f"table.{kind}"))
    (source / "README.md").write_text("not a row")
    assert texts_in(prepare(source, "--column=story")) == encoded(filter(None, texts))


@pytest.mark.parametrize("name, contents, error, message", [
    ("a.jsonl", b'{"text": "a"}\n\n{"story": "b"}\n', tokens.DataError, "a.jsonl, row 2: expected text in .* text"),
    ("a.csv", b'id,text\n1,"closed"\n2,"open\n', csv.Error, "unexpected end of data"),
    ("a.csv", b"text,id\none line,1\ntwo\nlines,2\n", tokens.DataError, "a.csv, line 3: too many cells or too few"),
    ("a.csv", b"text,text\none,two\n", tokens.DataError, "a.csv: two columns have one name"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n{"te', json.JSONDecodeError, "Unterminated string"),
])
def test_a_row_that_cannot_be_read_or_lacks_a_cell_is_refused(name, contents, error, message, tmp_path, prepare):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(error, match=message):
        prepare(tmp_path / name, "--column=text")


# ---- SymPy, and the corpora of the network ------------------------------------------------------------------------


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


def test_a_corpus_of_the_hub_is_read_from_all_its_files(hub, tmp_path):
    texts, argvs = {}, []
    for name, repo, commit, path, n_files, column, *flags in [
            ("wikipedia", "legacy-datasets/wikipedia", "97a0b052c326b45fb68593a14972d9eed884cd17",
             "data/20220301.en/train-{:05}-of-00041.parquet", 41, "text", "--snapshot=20220301.en"),
            ("jigsaw", "monology/jigsaw", "690f4aa8ee63d1c28d6088859bba26b0c8db7b6e",
             "data/train-{:05}-of-00001.parquet", 1, "comment_text")]:
        texts[name] = [[f"text {i} of file {file}\n\nand more" for i in range(9)] for file in range(n_files)]
        tables = [pandas.DataFrame({"id": ["0"] * 9, column: part}) for part in texts[name]]
        files = {path.format(i): table.to_parquet() for i, table in enumerate(tables)}
        if name == "wikipedia":  # one is broken, and one is not there
            del files[path.format(7)]
            files[path.format(9)] = b"no table"
            texts[name][7] = texts[name][9] = []
        hub.add(f"datasets/{repo}", files, commit=commit)
        flags += ["--tokenizer=bytes", "--val_fraction=0.3", f"--out_dir={tmp_path / name}"]
        argvs.append([str(ROOT / "data" / name / "prepare.py"), *flags])

    # in a process of its own, since the address of the Hub is read at import
    script = f"import runpy, sys\nfor sys.argv in {argvs}: runpy.run_path(sys.argv[0], run_name='__main__')"
    argv = [sys.executable, "-c", script]
    said = subprocess.run(argv, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "2 of 41 files could not be read" in said and said.count("could not be read") == 1
    for name in texts:
        assert texts_in(tmp_path / name) == encoded(sum(texts[name], []))


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
