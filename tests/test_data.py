"""The token files: what the writer writes, the reader gives back, and what both refuse."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial

import datasets
import numpy as np
import pytest

from data import samples, tokens, writer
from data.text import prepare as text
from tests import lives, toy

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "data" / "text" / "prepare.py"
TIKTOKEN = ROOT.parent / "shared" / "tiktoken"
NASTY = ["plain", "end <|endoftext|> of text", "crlf\r\nold mac\rline\n", "nul\0in it", "é 漢字 😀 \u200d", "   ",
         " \n\n ", "x" * 300_000, "no space, then one" + "^" * 120_000 + " end", "\ufeffmark", "twice", "twice"]


@pytest.fixture
def gpt2(monkeypatch):
    if not TIKTOKEN.exists():
        pytest.skip("the vocabulary of gpt2 is not in ../shared/tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN))
    import tiktoken
    return tiktoken.get_encoding("gpt2")


def write(folder, documents, *argv, read=None):
    """`documents` is a list of parts, each a list of str."""
    args = writer.command_line("test", "").parse_args(["--tokenizer=bytes", f"--out_dir={folder}", *argv])
    return writer.write(args, "memory", range(len(documents)), read or documents.__getitem__)


def refused(words):
    return pytest.raises(tokens.DataError, match=words)


def as_bytes(ids):
    return ids.astype(np.uint8).tobytes()


def documents(folder, decode=as_bytes):
    """{split: its documents as bytes}, from the files alone."""
    meta, splits = json.loads((folder / "meta.json").read_text()), {}
    for split in "train", "val":
        ids = np.fromfile(folder / f"{split}.bin", "<u2")
        ends = np.flatnonzero(ids == meta["eot_token"])
        splits[split] = [decode(piece[:-1]) for piece in np.split(ids, ends + 1)[:-1]]
        assert meta["docs"][split] == len(splits[split]) and ends[-1:] == len(ids) - 1
    return splits


def texts_in(folder, decode=as_bytes):
    """The documents of both splits, sorted."""
    splits = documents(folder, decode)
    return sorted(splits["train"] + splits["val"])


def encoded(texts):
    return sorted(text.encode() for text in texts)


def contents(folder):
    """{name: bytes}; the times of meta.json are left out."""
    found = {path.name: path.read_bytes() for path in folder.glob("[!.]*")}
    if "meta.json" in found:
        found["meta.json"] = re.sub(rb'"mtime_ns": \d+', b"", found["meta.json"])
    return found


# ---- what is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_documents_come_back_exactly_and_are_in_one_split_only(tokenizer, tmp_path, request):
    decode = as_bytes
    if tokenizer == "gpt2":
        gpt2 = request.getfixturevalue("gpt2")
        decode = lambda ids: gpt2.decode_bytes(ids.tolist())
    many = NASTY + [f"document {i}" for i in range(200)]
    write(tmp_path, [many, [""], many[:50]], f"--tokenizer={tokenizer}", "--val_fraction=0.2")
    splits = documents(tmp_path, decode)
    assert sorted(splits["train"] + splits["val"]) == encoded(many + many[:50])
    assert not set(splits["train"]) & set(splits["val"])


def test_spaced_puts_a_space_between_all_characters_and_half_a_character_becomes_a_question_mark(tmp_path):
    write(tmp_path, [["ab c", "é\nx", "a\ud800b"]], "--spaced")
    assert texts_in(tmp_path) == encoded(["a b   c", "é \n x", "a ? b"])


def test_documents_are_shuffled_and_the_seed_decides(tmp_path):
    texts = [[f"{i:03}" for i in range(300)]]
    zero, one = (documents(write(tmp_path / n, texts, f"--seed={n}", "--val_fraction=0.2")) for n in "01")
    both = set(zero["train"]) & set(one["train"])
    orders = [sorted(both), *([text for text in splits["train"] if text in both] for splits in (zero, one))]
    assert len(set(map(tuple, orders))) == 3 and set(zero["val"]) != set(one["val"])
    parts = [[text] for text in texts[0]]
    first = documents(write(tmp_path / "parts", parts, "--chunk_size=40"))["train"][:10]  # of the first chunks
    assert max(first) > sorted(zero["train"])[100]


def test_the_ids_are_those_of_tiktoken_for_any_number_of_threads(gpt2, tmp_path):
    texts = [f"Text number {i}, as {'usual' * i}.\n\n  Don't <|endoftext|>!" for i in range(300)]
    # A long text, which is cut where a word ends: gpt2 has tokens of several spaces, if these are no-break ones.
    texts.append(("x" + 16 * " \xa0") * 5_000)
    options = ["--tokenizer=gpt2", "--chunk_size=20000"]
    one, three = (write(tmp_path / n, [texts], *options, f"--num_proc={n}") for n in "13")
    assert texts_in(one, tuple) == sorted(tuple(gpt2.encode_ordinary(text)) for text in texts)
    assert contents(one) == contents(three) and sum(map(len, texts)) > 5 * 20_000


def test_a_limit_stops_with_the_document_that_reaches_it(tmp_path):
    texts = [f"document number {i:4}" for i in range(500)]  # 21 tokens each
    write(tmp_path, [texts], "--max_tokens=2000", "--chunk_size=700")
    assert texts_in(tmp_path) == encoded(texts[:96])


@pytest.mark.parametrize("texts", [["twice", "twice"], [""]])
def test_what_makes_no_corpus_is_refused_with_what_to_do_and_leaves_no_file(texts, tmp_path):
    with refused("expected at least one of each: give more text, or raise --max_tokens"):
        write(tmp_path, [texts])
    assert not contents(tmp_path)


@pytest.mark.parametrize("option", ["val_fraction=nan", "val_fraction=1", "seed=-1", "num_proc=0", "chunk_size=x"])
def test_a_number_that_an_option_cannot_be_is_named_in_one_line(option, tmp_path):
    name, value = option.split("=")
    with pytest.raises(SystemExit, match=f"^error: argument --{name}: .*{value}.*$"):
        write(tmp_path, [["a", "b"]], f"--{option}")


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("chunk_size", [10, 10_000, 20_000, 10**8])
def test_the_share_to_validate_on_comes_out_within_a_document_for_every_size_of_chunk(chunk_size, share, tmp_path):
    texts = [f"{i:05} " * (1000 + 10 * i) for i in range(101)]  # the longest has 12,001 tokens
    write(tmp_path, [texts], f"--val_fraction={share}", f"--chunk_size={chunk_size}")
    sizes = {split: sum(len(text) + 1 for text in found) for split, found in documents(tmp_path).items()}
    assert abs(sizes["val"] - share * (sizes["train"] + sizes["val"])) <= 12_001


def test_a_share_that_cannot_come_out_is_said(tmp_path, capsys):
    for i, texts in enumerate([["short", "long " * 100], ["a", "b", "c"]]):
        write(tmp_path / f"{i}", [texts], "--val_fraction=0.1")
        assert "--val_fraction=0.1 does not come out" in capsys.readouterr().out


def test_without_the_files_of_gpt2_the_writer_stops_and_a_run_says_so_in_place_of_a_sample(monkeypatch, tmp_path):
    def no_network(name):
        raise OSError("no network")
    monkeypatch.setattr("tiktoken.get_encoding", no_network)
    with refused("no network.*data/README.md says how"):
        write(tmp_path / "out", [["a", "b"]], "--tokenizer=gpt2")
    corpus = tokens.Corpus(tokens.TOKENIZERS["gpt2"] | dict(tokenizer="gpt2"), None, None)
    line = samples.sample(None, corpus, True)
    assert line.startswith("There is no sample of text: tiktoken cannot fetch") and "\n" not in line


# ---- all or nothing ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder_of_text(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "source" / f"{i % 3}" / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{i} " + " ".join(map(str, rng.integers(1000, size=20))) + "\n\n" for _ in range(200 * (1 + i % 4))]
        path.write_text("".join(lines))
    return tmp_path / "source"


def test_a_run_that_is_killed_leaves_nothing_whole_and_the_next_one_ends_with_the_same_bytes(folder_of_text, tmp_path):
    argv = [str(folder_of_text), "--chunk_size=50000", "--val_fraction=0.2"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in killed, whole:
        folder.mkdir()
        (folder / "thesis.unfinished-2b.tmp").write_text("not of this program")
    text.main([*argv, f"--out_dir={whole}"])
    # In the second chunk; before each of train.bin, val.bin and meta.json gets its name.
    for call, n in ("data.tokens.writing", 7), ("os.replace", 1), ("os.replace", 2), ("os.replace", 3):
        die = partial(lives.signal_at, call, n)
        life = lives.begin([*argv, f"--out_dir={killed}"], tmp_path / "said", die, text.main)
        assert lives.end(life)[0] == -signal.SIGKILL
        with refused("no finished token files"):
            tokens.load(killed)
    text.main([*argv, f"--out_dir={killed}"])
    assert contents(killed) == contents(whole) and len(contents(killed)) == 4


def test_a_finished_folder_and_a_copy_are_left_as_they_are_and_other_options_are_refused_by_name(tmp_path, capsys):
    whole = write(tmp_path / "whole", [["a", "b"]])
    copy = shutil.copytree(whole, tmp_path / "copy", copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(".*"))
    os.utime(copy / "train.bin", (1, 1))
    for folder in whole, copy:
        before = (folder / "train.bin").stat().st_mtime_ns
        write(folder, [["a", "b"]], read=lambda part: pytest.fail("read again"))
        assert (folder / "train.bin").stat().st_mtime_ns == before
        assert "was made before, and is left as it is: delete it to make it anew" in capsys.readouterr().out
    for option in "--seed=1", "--val_fraction=0.5", "--spaced", "--max_tokens=1":
        with refused(option[2:].split("=")[0]):
            write(whole, [["a", "b"]], option)


def test_a_full_disk_ends_in_one_line_and_leaves_room_for_a_later_run(folder_of_text, tmp_path):
    (folder_of_text / "large.txt").write_text("one line of very many characters " * 7000)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # train.bin has more
    argv = [sys.executable, SCRIPT, folder_of_text, "--chunk_size=50000", f"--out_dir={tmp_path / 'full'}"]
    run = subprocess.run(argv, preexec_fn=limit, stderr=subprocess.PIPE, text=True)
    last = run.stderr.splitlines()[-1]
    assert run.returncode == 1 and re.search(f"error: {tmp_path}/full/.*.bin cannot be written .File too large", last)
    assert os.listdir(tmp_path / "full") == [".lock"]


def test_a_process_waits_for_another_one_that_makes_the_same_folder(tmp_path):
    folder = tmp_path / "out"
    argv = [sys.executable, SCRIPT, *ROOT.glob("*.py"), f"--out_dir={folder}"]
    with tokens.locked(folder):
        second = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert "this one waits for it" in second.stdout.readline()
        assert not contents(folder)
    second.communicate(timeout=30)
    assert second.returncode == 0 and "meta.json" in contents(folder)


OTHER = "train.bin is not the file that meta.json describes: delete .* and run data/test/prepare.py again"
DAMAGED = "meta.json is damaged, or of another version or program: move .*bytes away"


@pytest.mark.parametrize("change, reader_says, writer_says", [
    (lambda folder: os.truncate(folder / "train.bin", 100), OTHER, OTHER),
    (lambda folder: (folder / "train.bin").unlink(), OTHER, OTHER),
    (lambda folder: np.fromfile(folder / "train.bin", "<u2")[::-1].tofile(folder / "train.bin"), OTHER, OTHER),
    *[(lambda folder, text=text: (folder / "meta.json").write_text(text), DAMAGED, DAMAGED)
      for text in ("", "[]", '{"tokenizer": "bert"}', '{"tokenizer": "bytes", "files": 3}')],
    (lambda folder: [(folder / name).unlink() for name in ("meta.json", ".lock")],
     "has no finished token files: one of data/",
     "holds .bin files that data/test/prepare.py has not written: move them away, or choose another --out_dir"),
], ids="cut gone reversed empty list foreign keys alone".split())
def test_a_folder_of_something_else_is_refused_and_left_as_it_is(change, reader_says, writer_says, tmp_path):
    texts = [[f"document {i}" for i in range(99)]]
    folder = write(tmp_path / "text" / "bytes", texts)
    change(folder)
    before = contents(folder)
    with refused(reader_says):
        tokens.load(folder)
    for _ in "12":
        with refused(writer_says):
            write(folder, texts)
    assert contents(folder) == before


def test_text_takes_what_is_text_and_counts_the_rest(tmp_path, capsys):
    source = tmp_path / "source"
    files = {"a.txt": b"crlf\r\nkept", "deep/b.md": b"latin \xe9\xff1", "deep/f": "é".encode() * 9, "empty": b"",
             ".git/c": b"hidden", "d.bin": bytes(range(256)) * 40, "u.txt": "two bytes a letter".encode("utf-16"),
             "package.json": b"{}", "m.txt": "\ufeffmark".encode()}
    toy.folder(source, files, config=None)
    os.mkfifo(source / "pipe")
    argv = [str(source), f"--out_dir={source / 'out'}"]
    assert texts_in(text.main(argv)) == encoded(["crlf\r\nkept", "latin \ufffd\ufffd1", "é" * 9, "mark"])
    printed = capsys.readouterr().out
    for why in "u.txt is UTF-16: iconv", "d.bin is binary", "package.json is a table: --column", "b.md: 2 U+FFFD":
        assert why in printed
    text.main(argv)  # its token files are no text, or this would be refused
    with refused("^nowhere is no file, nor a folder with files in it$"):
        text.main(["nowhere"])
    with refused("a.txt would be read 2 times: name each file or folder once"):
        text.main([str(source), str(source / "a.txt")])


def many_paragraphs(path, n):
    path.write_text("".join(f"{path.name} {i} " + "word " * 100 + "\r\n\r\n" for i in range(n)), newline="")
    return str(path)


def split_by_name(folder):
    """The names (first words) of the documents of each split."""
    return [{document.split()[0].decode() for document in split} for split in documents(folder).values()]


def test_all_pieces_of_one_of_many_files_are_in_the_same_split(tmp_path):
    files = [many_paragraphs(tmp_path / f"{i}", 50 + i * 10) for i in range(30)]  # up to 11 pieces
    shutil.copy(tmp_path / "7", tmp_path / "copy")
    argv = [*files, str(tmp_path / "copy"), "--val_fraction=0.2", "--chunk_size=50000"]
    folder = text.main([*argv, f"--out_dir={tmp_path / 'out'}"])
    train, val = split_by_name(folder)
    assert len(documents(folder)["train"]) > 3 * len(train)
    assert not train & val and len(train | val) == 30 and len(val) > 2


def test_each_of_a_few_files_is_split_so_that_validation_has_its_share_of_both_and_nothing_is_lost(tmp_path):
    paths = [many_paragraphs(tmp_path / name, n) for name, n in (("large", 4000), ("small", 2000))]  # 120 pieces, 60
    folder = text.main([*paths, f"--out_dir={tmp_path / 'out'}"])
    train, val = split_by_name(folder)
    assert train == val == {"large", "small"} and 0.025 < len(b"".join(documents(folder)["val"])) / 3.2e6 < 0.1
    pieces = sorted(texts_in(folder), key=lambda piece: (piece[:5], int(piece.split()[1])))
    assert b"".join(pieces) == b"".join(pathlib.Path(path).read_bytes() for path in paths)
    assert sum(16_384 <= len(piece) < 20_000 for piece in pieces) >= len(pieces) - 2  # the last one of each is shorter


TABLES = {"jsonl": datasets.Dataset.to_json, "csv": datasets.Dataset.to_csv, "parquet": datasets.Dataset.to_parquet,
          "json": lambda table, path: table.to_json(path, lines=False, orient="records"),
          "saved": lambda table, path: datasets.DatasetDict(one=table).save_to_disk(path, num_shards=dict(one=2))}


@pytest.mark.parametrize("kind", TABLES)
def test_of_a_table_the_column_with_the_text_is_read(kind, tmp_path):
    texts = ["NA", "null", "001", "a,b", "two\nlines", 'a "quote"', "é 😀", "crlf\r\ninside", "twice", "twice"]
    path = tmp_path / "source" / f"table.{kind}"
    path.parent.mkdir()
    TABLES[kind](datasets.Dataset.from_dict(dict(id=list(range(10)), story=texts)), str(path))
    (tmp_path / "source" / "README.md").write_text("not a row")
    argv = [str(path.parent), f"--out_dir={tmp_path / 'out'}"]
    with refused("there is no column text, only id, story"):
        text.main([*argv, "--column=text"])
    if kind != "csv":  # which has nothing but texts
        with refused("row 1 of column id holds 0, expected text"):
            text.main([*argv, "--column=id"])
    assert texts_in(text.main([*argv, "--column=story"])) == encoded(texts)


@pytest.mark.parametrize("name, contents, message", [
    ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', r"a.jsonl: JSON parse error: .* in row 1 \(after 0 rows\)"),
    ("a.csv", b"id,text\n1,caf\xe9\n", "a.csv: .*utf-8"),
    ("a.csv", b'id,text\n1,"open\n', "a.csv: .*EOF inside string starting at row 1"),
    ("a.csv", b"id,text\n1,all, of it\n2,has, commas\n", "a.csv: a row has 3 cells, and the first line 2 names: put"),
    ("a.csv", b"id,text\n1,one of them\n2,has, commas\n", "a.csv: .*Expected 2 fields in line 3, saw 3"),
    ("a.parquet", b"PAR1 cut", "a.parquet: .*[Pp]arquet"),
    ("a.arrow", b"cut", "a.arrow: "),
    ("a.txt", "two bytes a letter".encode("utf-16"), "nothing to read: .*a.txt is UTF-16: iconv -f UTF-16 -t UTF-8"),
])
def test_a_file_that_cannot_be_read_is_named(name, contents, message, tmp_path):
    (tmp_path / name).write_bytes(contents)
    with refused(message):
        text.main([str(tmp_path / name), f"--out_dir={tmp_path}", *["--column=text"][: name != "a.txt"]])


def test_a_name_is_no_pattern_and_other_columns_do_not_matter(tmp_path):
    rows = [dict(text=f"mine {i}") for i in range(9)]
    rows += [dict(text="other keys", more=1), dict(text=None), dict(more=["a", 2])]
    (tmp_path / "posts[1].jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "posts1.jsonl").write_text('{"text": "of another file"}\n')
    argv = [str(tmp_path / "posts[1].jsonl"), "--column=text", f"--out_dir={tmp_path / 'out'}"]
    assert texts_in(text.main(argv)) == encoded([f"mine {i}" for i in range(9)] + ["other keys"])


def test_names_that_are_not_utf8_block_nothing_and_can_be_shown_on_any_terminal(tmp_path):
    for name in "caf\udce9.txt", "d\udce9.bin", "ε.txt":
        (tmp_path / name).write_bytes(b"\0" if "bin" in name else b"text \xff " + name.encode("utf-8", "replace"))
    run = subprocess.run([sys.executable, SCRIPT, tmp_path, f"--out_dir={tmp_path / 'out'}"], capture_output=True,
                         env=os.environ | dict(PYTHONIOENCODING="cp1252"))
    assert run.returncode == 0 and b"1 U+FFFD" in run.stdout, run.stderr
