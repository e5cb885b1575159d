"""
Your own text: files, and folders with all that is in and below them.

    python data/text/prepare.py notes.txt books/
    python data/text/prepare.py posts.jsonl saved_dataset/ --column=text    # each row is a document

Otherwise a file is a document. A longer file is split into several: after 16,384 characters, at the next blank line (or
anywhere after twice as many), and sooner if this gives fewer than about 100 documents in all. So even a single file
gives documents to train and to validate on. If there are so many files that --val_fraction of them is at least one,
each goes to one split as a whole. Text is UTF-8; bytes that cannot be decoded become U+FFFD. Left out are binary files
(a NUL in the first 8,000 bytes, as for git), tables, and what is hidden in a folder, or behind a link to another one.

A table is .jsonl, .json, .csv, .parquet, or .arrow of datasets.save_to_disk.
"""

import os
import pathlib
import sys
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tables import KINDS, read_column
from data.tokens import DataError

SHORTEST, LONGEST = 100, 16_384  # characters, at which a document ends at the next blank line
FEWEST = 100  # documents in a small corpus, about
BESIDE_ARROW = "dataset_info.json", "state.json", "dataset_dict.json"  # what save_to_disk writes as well


def files_in(path):
    """Returns the file itself, or all files in and below a folder that are not hidden."""
    if os.path.isfile(path):
        return [pathlib.Path(path)]
    found = []
    for file in sorted(pathlib.Path(path).rglob("*")) if path else []:
        is_hidden = any(name.startswith(".") for name in file.relative_to(path).parts)
        if file.is_file() and not is_hidden:
            found.append(file)
    if not found:
        raise DataError(f"{path} is no file, nor a folder with files in it")
    return found


def read(path, size, undecoded):
    """Yields the documents of a file, of about so many characters if it has more. undecoded: counts U+FFFD by file."""
    lines, length = [], 0  # of the next document
    # utf-8-sig: with or without a byte-order mark, which is no text; newline="" keeps \r\n
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        while line := file.readline(2 * size):
            lines.append(line)
            length += len(line)
            if "\ufffd" in line:
                undecoded[path] += line.count("\ufffd")
            if length >= 2 * size or (length >= size and not line.strip()):
                yield "".join(lines)
                lines, length = [], 0
        if lines or not file.tell():  # an empty file is an empty document
            yield "".join(lines)


def why_not(path, column):
    """Returns the kind of a file that is left out, or "" if it is read."""
    is_table = path.suffix.lower() in KINDS
    if column:
        is_beside = path.name in BESIDE_ARROW or path.match("cache-*.arrow")
        return "" if is_table and not is_beside else "files that are no tables"
    if is_table:
        return "tables (--column=NAME reads a column of one)"
    with open(path, "rb") as file:
        is_binary = b"\0" in file.read(8000)
    return "binary files" if is_binary else ""


def main(argv=None):
    cli = writer.command_line("text", __doc__, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", metavar="FILE_OR_FOLDER")
    cli.add_argument("--column", help="the column of tables that holds the text")
    args = cli.parse_args(argv)
    by_kind = {}  # kind, "" for text -> files, each of them once
    for file in dict.fromkeys(file for path in args.paths for file in files_in(path)):
        by_kind.setdefault(why_not(file, args.column), []).append(file)
    texts = by_kind.pop("", [])
    for kind, files in by_kind.items():
        print(f"left out: {len(files):,} {kind}, such as {files[0]}")
    if not texts:
        raise DataError("nothing to read: all files are left out")
    if args.column:
        return writer.write(cli, args, texts, lambda path: read_column(path, args.column))
    size = max(SHORTEST, min(LONGEST, sum(file.stat().st_size for file in texts) // FEWEST))
    # With fewer files, one of them would be far too much to validate on.
    is_many = len(texts) * args.val_fraction >= 1
    undecoded = Counter()
    folder = writer.write(cli, args, texts, lambda path: read(path, size, undecoded), whole_files=is_many)
    if undecoded:
        print(f"{undecoded.total():,} U+FFFD where bytes cannot be decoded, in {len(undecoded):,} files such as "
              f"{next(iter(undecoded))}")
    return folder


if __name__ == "__main__":
    writer.run_script(main)
