"""
Your own text: files, and folders with all that is in and below them.

    python data/text/prepare.py notes.txt books/
    python data/text/prepare.py posts.jsonl saved_dataset/ --column=text

A file is a document. A longer file is split into several: after 16,384 characters, at the next blank line (or anywhere
after 16 times as many). So even a single file gives documents to train and to validate on. If there are so many files
that --val_fraction of them is at least one, each goes to one split as a whole. Text is UTF-8; bytes that cannot be
decoded become U+FFFD. Binary files (a NUL in the first 8,000 bytes, as for git) and tables are left out, and so is what
is hidden in a folder, or behind a link to another folder.

With --column, a document is a row of a table: .jsonl, .json, .csv, .parquet, or .arrow, which datasets.save_to_disk
writes. What is no table is left out.
"""

import pathlib
import sys

from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tokens import DataError

SPLIT = 16_384  # characters
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


def is_binary(path):
    with open(path, "rb") as file:
        return b"\0" in file.read(8000)


def read(path):
    replaced = 0
    lines, size = [], 0  # of the next document
    # utf-8-sig: with or without a byte-order mark, which is no text; newline="" keeps \r\n
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        while line := file.readline(16 * SPLIT):
            lines.append(line)
            size += len(line)
            replaced += line.count("\ufffd")
            blank = not line.strip()
            if (blank and size >= SPLIT) or size >= 16 * SPLIT:
                yield "".join(lines)
                lines, size = [], 0
        yield "".join(lines)
    if replaced:
        tqdm.write(f"{path}: {replaced:,} U+FFFD where bytes cannot be decoded")


def choose(files, column):
    """The files to read: with a column the tables, else the text."""
    if column:
        chosen = [file for file in files if file.suffix.lower() in TABLES and file.name not in BESIDE_ARROW]
        kind = "that are no tables"
    else:
        chosen = [file for file in files if file.suffix.lower() not in TABLES and not is_binary(file)]
        kind = "that are binary, or tables (--column=NAME reads these)"
    left_out = set(files) - set(chosen)
    if left_out:
        print(f"{len(left_out):,} files left out {kind}, such as {min(left_out)}")
    return [file for file in chosen if file.stat().st_size > 0]


def main(argv=None):
    cli = writer.command_line("text", __doc__, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", type=pathlib.Path, metavar="FILE_OR_FOLDER")
    cli.add_argument("--column", help="the column of tables that holds the text")
    args = cli.parse_args(argv)
    found = []
    for path in args.paths:
        found += files_in(path)
    parts = choose(found, args.column)
    source = " ".join(map(str, args.paths))
    # With fewer files, one of them would be far too much to validate on. The rows of a table are not of one piece.
    whole_files = len(parts) * args.val_fraction >= 1 and not args.column
    if args.column:
        source = f"{args.column} of {source}"

    def read_part(path):
        if args.column:
            return writer.read_column(TABLES[path.suffix.lower()], str(path), args.column)
        return read(path)
    return writer.write(args, source, parts, read_part, files=parts, whole_files=whole_files)


if __name__ == "__main__":
    writer.run_script(main)
