"""
Your own text: files, and folders with all that is in and below them.

    python data/text/prepare.py notes.txt books/
    python data/text/prepare.py posts.jsonl saved_dataset/ --column=text

A file is a document. A longer file is split into several: after 16,384 characters, at the next blank line (or anywhere
after 16 times as many). So even a single file gives documents to train and to validate on. If there are so many files
that --val_fraction of them is at least one, each goes to one split as a whole. Text is UTF-8, or UTF-16 if a byte-order
mark says so; bytes that cannot be decoded become U+FFFD. Binary files (one NUL in 500 bytes) and tables are left out,
and so is what is hidden in a folder, or behind a link to another folder.

With --column, a document is a row of a table: .jsonl, .json, .csv, .parquet, or .arrow, which datasets.save_to_disk
writes. What is no table is left out. Without --column, what is mostly tables is refused.
"""

import codecs
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tokens import DataError

SPLIT = 16_384  # characters
BINARY = 500  # bytes, one of which is 0
TABLES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}  # -> their reader
BESIDE_ARROW = "dataset_info.json", "state.json", "dataset_dict.json"  # what save_to_disk writes as well


def files_in(path):
    """The file itself, or all files in and below a folder that are not hidden."""
    if path.is_file():
        return [path]
    found = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            found.append(file)
    if not found:
        raise DataError(f"{path} is no file, nor a folder with files in it")
    return found


def encoding(path):
    """utf-8, or utf-16 if a byte-order mark says so (the mark itself is no text); None for a binary file."""
    with open(path, "rb") as file:
        start = file.read(65_536)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start.count(0) > 4 + len(start) / BINARY:
        return None
    return "utf-8-sig"  # UTF-8, with or without a mark


def read(path, note):
    replaced = 0
    lines, size = [], 0  # of the next document
    with open(path, encoding=encoding(path), errors="replace", newline="") as file:  # newline="" keeps \r\n
        while line := file.readline(16 * SPLIT):
            lines.append(line)
            size += len(line)
            if "\ufffd" in line:
                replaced += line.count("\ufffd")
                note("U+FFFD where bytes cannot be decoded", replaced)
            blank = not line.strip()
            if (blank and size >= SPLIT) or size >= 16 * SPLIT:
                yield "".join(lines)
                lines, size = [], 0
        yield "".join(lines)


def choose(files, column):
    """The files to read: with a column the tables, else the text. DataError if it is mostly tables, and no column."""
    tables = [file for file in files if file.suffix.lower() in TABLES]
    others = [file for file in files if file not in tables]
    if column:
        chosen = [file for file in tables if file.name not in BESIDE_ARROW]
        kind = "that are no tables"
    else:
        if n_bytes(tables) > n_bytes(others):
            raise DataError(f"tables, not text: {writer.some(tables)}; --column=NAME says which column is the text")
        chosen = [file for file in others if encoding(file) is not None]
        kind = "that are binary, or tables"
    left_out = sorted(set(files) - set(chosen))
    if left_out:
        print(f"{len(left_out):,} files left out {kind}: {writer.some(left_out)}")
    return [file for file in chosen if file.stat().st_size > 0]


def n_bytes(files):
    return sum(file.stat().st_size for file in files)


def main(argv=None):
    cli = writer.command_line("text", __doc__, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", type=pathlib.Path, metavar="FILE_OR_FOLDER")
    cli.add_argument("--column", help="the column of tables that holds the text")
    args = cli.parse_args(argv)
    out = writer.find_folder(args).resolve()  # it may lie in one of the folders, and holds no text
    found = []
    for path in args.paths:
        found += [file for file in files_in(path) if not file.resolve().is_relative_to(out)]
    parts = choose(list(dict.fromkeys(found)), args.column)  # once, of a folder and a file in it
    source = " ".join(map(str, args.paths))
    # With fewer files, one of them would be far too much to validate on. The rows of a table are not of one piece.
    whole_files = len(parts) * args.val_fraction >= 1 and not args.column
    if args.column:
        source = f"{args.column} of {source}"

    def read_part(path, note):
        if args.column:
            return writer.read_column(TABLES[path.suffix.lower()], str(path), args.column)
        return read(path, note)
    return writer.write(args, source, parts, read_part, files=parts, whole_files=whole_files)


if __name__ == "__main__":
    writer.run_script(main)
