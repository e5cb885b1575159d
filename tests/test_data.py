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

from data import atomic, samples, tokens, writer
from data.atomic import locked, replacing
from data.text import prepare as text
from tests import lives, toy

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "data" / "text" / "prepare.py"
TIKTOKEN = pathlib.Path(os.environ.get("TIKTOKEN_CACHE_DIR", ROOT.parent / "shared" / "tiktoken"))
NASTY = ["plain", "end <|endoftext|> of text", "crlf\r\nold mac\rline\n", "nul\0in it", "é 漢字 😀 \u200d", "   ",
         " \n\n ", "x" * 300_000, "no space, then one" + "^" * 120_000 + " end", "\ufeffmark", "twice", "twice"]


@pytest.fixture
def gpt2(monkeypatch):
    if not TIKTOKEN.exists():
        pytest.skip("needs gpt2's two files of https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/ in "
                    "TIKTOKEN_CACHE_DIR (data/README.md)")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN))
    import tiktoken
    return tiktoken.get_encoding("gpt2")


def write(folder, documents, *argv, read=None):
    """`documents` is a list of parts, each a list of str."""
    cli = writer.command_line("test", "", val_fraction=0.5)
    args = cli.parse_args(["--tokenizer=bytes", f"--out_dir={folder}", *argv])
    return writer.write(cli, args, range(len(documents)), read or documents.__getitem__)


@pytest.fixture
def prepare(tmp_path):
    """Runs data/text/prepare.py -> its folder."""
    return lambda *argv: text.main([f"--out_dir={tmp_path / 'out'}", *map(str, argv)])


def refused(words):
    return pytest.raises(tokens.DataError, match=words)


def read_meta(folder):
    return json.loads((folder / "meta.json").read_text())


def change_meta(folder, **changes):
    (folder / "meta.json").write_text(json.dumps(read_meta(folder) | changes))


def as_bytes(ids):
    return ids.astype(np.uint8).tobytes()


def documents(folder, decode=as_bytes):
    """{split: its documents as bytes}, from the files alone."""
    meta, splits = read_meta(folder), {}
    for split in "train", "val":
        ids = np.fromfile(folder / f"{split}.bin", "<u2")
        ends = np.flatnonzero(ids == meta["eot_token"])
        splits[split] = [decode(piece[:-1]) for piece in np.split(ids, ends + 1)[:-1]]
        assert meta["docs"][split] == len(splits[split]) and ends[-1:] == len(ids) - 1 == meta["tokens"][split] - 1
    return splits


def texts_in(folder, decode=as_bytes):
    """The documents of both splits, sorted."""
    splits = documents(folder, decode)
    return sorted(splits["train"] + splits["val"])


def encoded(texts):
    return sorted(text.encode() for text in texts)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


# ---- what is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_documents_come_back_exactly_in_order_and_are_in_one_split_only(tokenizer, tmp_path, request):
    decode = as_bytes
    if tokenizer == "gpt2":
        gpt2 = request.getfixturevalue("gpt2")
        decode = lambda ids: gpt2.decode_bytes(ids.tolist())
    many = [f"document {i}" for i in range(200)] + NASTY
    write(tmp_path, [many, [""], many[:50]], f"--tokenizer={tokenizer}", "--val_fraction=0.2")
    in_order = [text.encode() for text in many + many[:50]]
    splits = documents(tmp_path, decode)
    for split, other in ("train", "val"), ("val", "train"):
        assert splits[split] == [text for text in in_order if text not in splits[other]]


def test_spaced_puts_a_space_between_all_characters_and_half_a_character_becomes_a_question_mark(tmp_path):
    write(tmp_path, [["ab c", "é\nx", "a\ud800b"]], "--spaced")
    assert texts_in(tmp_path) == encoded(["a b   c", "é \n x", "a ? b"])


def test_the_ids_are_those_of_tiktoken(gpt2, tmp_path):
    # The long text is cut where a word ends: gpt2 has tokens of several spaces, if these are no-break ones.
    texts = ["A text, as usual.\n\n  Don't <|endoftext|>!", ("x" + 16 * " \xa0") * 5_000]
    folder = write(tmp_path, [texts], "--tokenizer=gpt2", "--val_fraction=0.58")
    assert texts_in(folder, tuple) == sorted(tuple(gpt2.encode_ordinary(text)) for text in texts)


@pytest.mark.parametrize("limit", [2000, 2016])
def test_a_limit_stops_with_the_document_that_reaches_it(limit, tmp_path):
    texts = [f"document number {i:4}" for i in range(500)]  # 21 tokens each
    write(tmp_path, [texts], f"--max_tokens={limit}")
    assert texts_in(tmp_path) == encoded(texts[:96])


@pytest.mark.parametrize("texts, option, words", [
    (texts, "--spaced", "expected at least one of each: give more text, or another --val_fraction")
    for texts in (["twice", "twice"], [""])
] + [(["a", "b"], option, option)
     for option in ("--val_fraction=nan", "--val_fraction=1", "--max_tokens=-5", "--out_dir=")])
def test_what_makes_no_corpus_is_refused_with_what_to_do_and_leaves_no_file(texts, option, words, tmp_path):
    with refused(words):
        write(tmp_path, [texts], option)
    assert not contents(tmp_path)


def test_a_document_has_its_split_by_itself_and_the_share_comes_out_on_average_or_it_is_said(tmp_path, capsys):
    texts = [f"{i:05} " * (i % 7 + 1) for i in range(4000)]
    splits = documents(write(tmp_path / "all", [texts], "--val_fraction=0.3"))
    assert abs(len(splits["val"]) - 0.3 * 4000) < 4 * (0.3 * 0.7 * 4000) ** 0.5  # standard deviations
    few = documents(write(tmp_path / "few", [texts[100::-1], texts[:9]], "--val_fraction=0.3"))
    assert set(few["val"]) < set(splits["val"]) and set(few["train"]) < set(splits["train"])
    assert "does not come out" not in capsys.readouterr().out
    write(tmp_path / "long", [[*texts[:99], "long " * 1000]], "--val_fraction=0.1")
    assert "--val_fraction=0.1 does not come out" in capsys.readouterr().out


def test_without_the_files_of_a_tokenizer_the_writer_stops_and_a_run_says_so_in_place_of_a_sample(
        monkeypatch, tmp_path):
    def no_network(name):
        raise OSError(f"no network for {name}")
    monkeypatch.setattr("tiktoken.get_encoding", no_network)
    with refused("no network for gpt2.*data/README.md says how"):
        write(tmp_path / "out", [["a", "b"]], "--tokenizer=gpt2")
    corpus = tokens.Corpus(tokens.TOKENIZERS["gpt2"] | dict(tokenizer="p50k_base"), None, None)
    line = samples.sample(None, corpus, True)
    assert line.startswith("There is no sample of text: ") and "no network for p50k_base" in line and "\n" not in line


# ---- all or nothing ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder_of_text(tmp_path):
    files = {f"{i % 3}/{i}.txt": b"".join(b"%d %d\n\n" % (i, j) for j in range(9000)) for i in range(12)}
    return toy.folder(tmp_path / "source", files, config=None)


def test_a_run_that_is_killed_leaves_nothing_whole_and_the_next_one_ends_with_the_same_bytes(folder_of_text, tmp_path):
    argv = [str(folder_of_text), "--val_fraction=0.2"]
    killed, whole = tmp_path / "killed", text.main([*argv, f"--out_dir={tmp_path / 'whole'}"])
    # While documents are written; before each of val.bin, train.bin and meta.json gets its name.
    for call, n in ("numpy.append", 40), ("os.replace", 1), ("os.replace", 2), ("os.replace", 3):
        die = partial(lives.signal_at, call, n)
        life = lives.begin([*argv, f"--out_dir={killed}"], tmp_path / "said", die, text.main)
        assert lives.end(life)[0] == -signal.SIGKILL
        with refused("no finished token files"):
            tokens.load(killed)
    text.main([*argv, f"--out_dir={killed}"])
    assert contents(killed) == contents(whole) and len(contents(killed)) == 3


def test_a_finished_folder_is_left_as_it_is_and_other_options_are_refused_by_name(tmp_path, capsys):
    folder = write(tmp_path, [["a", "b"]])
    meta = read_meta(folder)
    del meta["max_tokens"], meta["spaced"]  # as if these options had come later: they had their defaults
    (folder / "meta.json").write_text(json.dumps(meta))
    before = contents(folder)
    write(folder, [["a", "b"]], read=lambda file: pytest.fail("read again"))
    assert "was made before, and is left as it is: delete it to make it anew" in capsys.readouterr().out
    for option, words in ("--val_fraction=0.4", "val_fraction = 0.5,"), ("--spaced", "spaced = False, not True"):
        with refused(f"was made with {words}"):
            write(folder, [["a", "b"]], option)
    assert contents(folder) == before


def test_a_full_disk_ends_in_one_line_and_leaves_room_for_a_later_run(folder_of_text, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # train.bin has more
    argv = [sys.executable, SCRIPT, folder_of_text, f"--out_dir={tmp_path / 'full'}"]
    run = subprocess.run(argv, preexec_fn=limit, stderr=subprocess.PIPE, text=True)
    last = run.stderr.splitlines()[-1]
    assert run.returncode == 1 and re.search(f"error: {tmp_path}/full/.*.bin cannot be written .File too large", last)
    assert os.listdir(tmp_path / "full") == [".lock"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # as /dev/null, where nobody but root could do it
    (tmp_path / "link").symlink_to("pipe")
    for name in "pipe", "link":
        with pytest.raises(OSError, match="pipe is no file"), replacing(tmp_path / name) as temporary:
            temporary.write_text("a table")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_an_error_that_is_not_of_the_system_keeps_its_own_words(tmp_path):
    with pytest.raises(OSError, match="^cannot write mode RGBA as JPEG$"), replacing(tmp_path / "picture.jpg"):
        raise OSError("cannot write mode RGBA as JPEG")  # as Pillow does
    assert not list(tmp_path.iterdir())


def test_a_process_waits_for_another_one_and_shows_names_that_are_not_utf8_on_any_terminal(tmp_path):
    for name in "caf\udce9.txt", "d\udce9.bin", "ε.txt":
        (tmp_path / name).write_bytes(b"\0" if "bin" in name else b"text \xff " + name.encode("utf-8", "replace"))
    folder = tmp_path / "out"
    argv = [sys.executable, SCRIPT, tmp_path, f"--out_dir={folder}", "--val_fraction=0.4"]
    with locked(folder):
        second = subprocess.Popen(argv, stdout=subprocess.PIPE, env=os.environ | dict(PYTHONIOENCODING="cp1252"))
        said = second.stdout.readline() + second.stdout.readline()
        assert b"d?.bin" in said and b"this one waits for it" in said
        assert not contents(folder)
    assert b"2 U+FFFD" in second.communicate(timeout=30)[0]
    assert second.returncode == 0 and "meta.json" in contents(folder)


@pytest.mark.parametrize("system, stays", [("/proc", False), ("/absent", True)])
def test_what_a_dead_process_left_is_deleted_if_the_system_tells_that_it_is_dead(tmp_path, monkeypatch, system, stays):
    """Without /proc, as on a Mac, every process looks dead, and one that is alive would lose what it writes."""
    monkeypatch.setattr(atomic, "PROCESSES", pathlib.Path(system))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"a.csv.unfinished-{dead.pid}.tmp"
    left.touch()
    with locked(tmp_path):
        assert left.exists() == stays


@pytest.mark.parametrize("closed", [1, 2])
def test_a_script_does_without_a_terminal_and_writes_into_a_home(folder_of_text, tmp_path, closed):
    argv = [sys.executable, SCRIPT, folder_of_text, "--out_dir=~/tokens"]
    env = os.environ | dict(HOME=str(tmp_path))
    assert subprocess.run(argv, cwd=tmp_path, env=env, preexec_fn=partial(os.close, closed)).returncode == 0
    assert "meta.json" in contents(tmp_path / "tokens")


@pytest.mark.parametrize("change, words", [
    (lambda folder: change_meta(folder, n_vocab=600), "was made with n_vocab = 600, and .* bytes has 256: "),
    (lambda folder: change_meta(folder, eot_token=3), "was made with eot_token = 3, and .* bytes has 256: "),
    *[(change, "meta.json is damaged, .* or train.bin and val.bin are not the files .*: ") for change in (
        lambda folder: (folder / "train.bin").unlink(),
        lambda folder: np.fromfile(folder / "train.bin", "<u2")[::-1].tofile(folder / "train.bin"),
        lambda folder: (folder / "meta.json").write_text(""),
        lambda folder: (folder / "meta.json").write_text("[]"),
        lambda folder: change_meta(folder, tokenizer="bert"),
        lambda folder: change_meta(folder, sha256=3))],
], ids="other-ids other-end gone reversed empty list foreign keys".split())
def test_a_folder_of_something_else_is_refused_and_left_as_it_is(change, words, tmp_path):
    texts = [[f"document {i}" for i in range(99)]]
    folder = write(tmp_path / "bytes", texts)
    change(folder)
    before = contents(folder)
    for use in tokens.load, partial(write, documents=texts):
        with refused(f"bytes:? {words}move the folder away, and prepare it again"):
            use(folder)
    assert contents(folder) == before


def test_a_tokenizer_that_is_not_known_or_makes_ids_above_its_own_is_an_error(monkeypatch, tmp_path):
    for make in tokens.make_encode, tokens.make_decode:
        with refused("^mine is no tokenizer of tiktoken: give it to make_encode and make_decode in data/tokens.py$"):
            make(dict(tokenizer="mine", eot_token=1, mask_token=2))
    for name, sizes in tokens.TOKENIZERS.items():  # its numbers fit, as far as the table tells
        assert sizes["n_vocab"] <= sizes["eot_token"] < sizes["mask_token"] < sizes["vocab_size"], name
        assert sizes["vocab_size"] <= np.iinfo(sizes["dtype"]).max, name
    monkeypatch.setitem(tokens.TOKENIZERS, "bytes", tokens.TOKENIZERS["bytes"] | dict(n_vocab=100))
    with refused("bytes has made a token 122, expected less than its n_vocab = 100 in data/tokens.py"):
        write(tmp_path, [["a", "z"]])


def test_the_token_files_of_another_program_are_not_overwritten(tmp_path):
    (tmp_path / "train.bin").write_bytes(b"of nanoGPT")
    with refused("holds .bin files that no prepare.py of ours has written"):
        write(tmp_path, [["one"], ["two"]])
    assert toy.files_of(tmp_path) == {"train.bin": b"of nanoGPT"}


# ---- your own text -----------------------------------------------------------------------------------------------


def test_text_takes_what_is_text_and_says_the_rest(tmp_path, capsys):
    source = tmp_path / "source"
    files = {"a.txt": b"crlf\r\nkept", "deep/b.md": b"latin \xe9\xff1", "deep/f": "é".encode() * 9, "empty": b"",
             ".git/c": b"hidden", "d.bin": bytes(range(256)) * 40, "package.json": b"{}",
             "m.txt": "\ufeffmark".encode()}
    toy.folder(source, files | {f"bin/{i}": b"\0" for i in range(1757)}, config=None)
    os.mkfifo(source / "pipe")
    argv = [str(source), str(source / "a.txt"), f"--out_dir={source / 'out'}", "--val_fraction=0.5"]
    assert texts_in(text.main(argv)) == encoded(["crlf\r\nkept", "latin \ufffd\ufffd1", "é" * 9, "mark"])  # a.txt once
    printed = capsys.readouterr().out
    for line in (f"left out: 1,758 binary files, such as {source}/bin/0\n",
                 f"left out: 1 tables (--column=NAME reads a column of one), such as {source}/package.json\n",
                 f"2 U+FFFD where bytes cannot be decoded, in 1 files such as {source}/deep/b.md\n"):
        assert line in printed
    text.main(argv)  # its token files are no text, or this would be refused
    for path in "nowhere", "":  # as of an unset variable of a shell, where a path of no letters would be this folder
        with refused(f"^{path} is no file, nor a folder with files in it$"):
            text.main([path])


def many_paragraphs(path, n):
    path.write_text("".join(f"{path.name} {i} " + "word " * 100 + "\r\n\r\n" for i in range(n)), newline="")
    return str(path)


def split_by_name(folder):
    """The names (first words) of the documents of each split."""
    return [{document.split()[0].decode() for document in split} for split in documents(folder).values()]


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_many_files_are_in_one_split_each_with_their_copies_and_the_share_comes_out(share, tmp_path, prepare):
    paths = [many_paragraphs(tmp_path / f"{i}", 90 + i) for i in range(19)]
    paths.append(shutil.copy(paths[7], tmp_path / "copy"))
    splits = []
    for name, order in ("in", paths), ("out", paths[::-1]):
        folder = prepare(*order, f"--out_dir={tmp_path / name}", f"--val_fraction={share}")
        splits.append(split_by_name(folder))
        assert len(documents(folder)["train"]) > 3 * len(splits[-1][0])  # each file is several documents
    (train, val), again = splits
    assert [train, val] == again and not train & val and len(train | val) == 19
    assert 20 * share - 1 <= len(val) <= 20 * share


@pytest.mark.parametrize("blank_line", ["\r\n\r\n", "\n", ""])  # paragraphs, a sentence a line, and a single line
def test_a_small_file_gives_documents_to_both_splits(blank_line, tmp_path, prepare):
    path = pathlib.Path(many_paragraphs(tmp_path / "small", 300))  # 155,000 characters
    path.write_text(path.read_text().replace("\n\n", blank_line), newline="")
    splits = documents(prepare(path))
    assert len(splits["train"]) > 40 and len(splits["val"]) > 1


def test_each_of_a_few_files_is_split_so_that_validation_has_its_share_of_both_and_nothing_is_lost(tmp_path, prepare):
    paths = [many_paragraphs(tmp_path / name, n) for name, n in (("large", 4000), ("small", 2000))]  # 120 pieces, 60
    folder = prepare(*paths)
    train, val = split_by_name(folder)
    assert train == val == {"large", "small"} and 0.025 < len(b"".join(documents(folder)["val"])) / 3.2e6 < 0.1
    pieces = sorted(texts_in(folder), key=lambda piece: (piece[:5], int(piece.split()[1])))
    assert b"".join(pieces) == b"".join(pathlib.Path(path).read_bytes() for path in paths)
    assert sum(16_384 <= len(piece) < 20_000 for piece in pieces) >= len(pieces) - 2  # the last one of each is shorter


TABLES = {"jsonl": datasets.Dataset.to_json, "csv": datasets.Dataset.to_csv, "parquet": datasets.Dataset.to_parquet,
          "json": lambda table, path: table.to_json(path, lines=False, orient="records"),
          "saved": lambda table, path: datasets.DatasetDict(one=table).save_to_disk(path, num_shards=dict(one=2))}


@pytest.mark.parametrize("kind", TABLES)
def test_of_a_table_the_column_with_the_text_is_read_and_its_name_is_no_pattern(kind, tmp_path, prepare):
    texts = ["NA", "null", "001", "a,b", "two\nlines", 'a "quote"', "é 😀", "crlf\r\ninside", "twice", "twice"]
    source, of_another = tmp_path / "source[1]", tmp_path / "source1"
    for folder, rows in (source, texts), (of_another, ["of another folder"] * 10):
        folder.mkdir()
        TABLES[kind](datasets.Dataset.from_dict(dict(id=list(range(10)), story=rows)), str(folder / f"table.{kind}"))
    (source / "README.md").write_text("not a row")
    for arrow in source.glob("*/*/*0.arrow"):  # as `map` of datasets leaves beside it
        shutil.copy(arrow, arrow.with_name("cache-f9da4c21.arrow"))
    with refused("there is no column text, only id, story"):
        prepare(source, "--column=text")
    if kind != "csv":  # which has nothing but texts
        with refused("column id holds 0, expected text"):
            prepare(source, "--column=id")
    assert texts_in(prepare(source, "--column=story")) == encoded(texts)


@pytest.mark.parametrize("name, contents, message", [
    ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "a.jsonl, row 2: Expecting ',' delimiter"),
    ("a.jsonl", b'{"text": "a"}\n\n{"story": "b"}\n', "a.jsonl, row 2: there is no column text, only story"),
    ("a.jsonl", b'{"text": "a"}\n["text"]\n', "a.jsonl, row 2: "),
    ("a.json", b'[{"text": "a"}, {"text": ["b"]}]', r"a.json, row 2: column text holds \['b'\], expected text"),
    ("a.csv", b"id,text\n1,caf\xe9\n", "a.csv, row 1: .*utf-8"),
    ("a.csv", b'id,text\n1,"closed"\n2,"open\n', "a.csv, row 2: unexpected end of data"),
    ("a.csv", b"id,text\n1,none\n2,one, of them\n", "a.csv, row 2: 3 cells for 2 names: put text that holds commas or"),
    ("a.csv", b"text,id\none line,1\ntwo\nlines,2\n", "a.csv, row 2: 1 cells for 2 names: put text"),
    ("a.csv", b"text,text,,\none,two,,\n", "a.csv, row 1: two columns are called text"),
    ("a.parquet", b"PAR1 cut", "a.parquet, row 1: .*[Pp]arquet"),
    ("a.txt", b"no table", "nothing to read: all files are left out"),
])
def test_a_row_that_cannot_be_read_or_lacks_a_cell_is_named_with_its_file(name, contents, message, tmp_path, prepare):
    (tmp_path / name).write_bytes(contents)
    with refused(message):
        prepare(tmp_path / name, "--column=text")


def test_empty_cells_and_files_are_empty_documents_which_are_counted_and_left_out(tmp_path, prepare, capsys):
    rows = [f"text {i}" for i in range(40)] + ["", None, ""]
    records = [dict(text=row) | (dict(more=[i]) if i % 2 else {}) for i, row in enumerate(rows)]  # other keys too
    files = {"a.jsonl": "".join(json.dumps(record) + "\n" for record in records).encode(),
             "b.csv": b"id,text\n1,of b\n\n2,\n", "c.txt": b"text", "d.txt": b"text too", "e.txt": b""}
    source = toy.folder(tmp_path / "source", files, config=None)
    assert texts_in(prepare(source, "--column=text", "--val_fraction=0.3")) == encoded([*filter(None, rows), "of b"])
    prepare(source, "--val_fraction=0.7", f"--out_dir={tmp_path / 'text'}")
    said = capsys.readouterr().out
    assert "out: 41 documents, " in said and "4 empty documents are left out" in said  # an empty line is no row
    assert "text: 2 documents, " in said and "1 empty documents are left out" in said
