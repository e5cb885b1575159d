"""
Your own text: files, and folders with all that is in and below them.

    python data/text/prepare.py notes.txt books/
    python data/text/prepare.py posts.jsonl tables/ --column=text    # each row of a table is a document

Otherwise a file is a document, and a longer one is split at blank lines. If --val_fraction of the files is at least
five, each goes to one split as a whole. Left out are binary files, tables without --column, and hidden files.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from data import writer
from data.column import KINDS, read_column
from data.tokens import DataError

SHORTEST, LONGEST = 100, 16_384  # characters; a longer document ends at its next blank line
FEWEST = 100  # about so many documents are made of a small corpus


def files_in(path):
    """Returns the file itself, or all files in and below a folder that are not hidden."""
    if path.is_file():
        return [path]
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and "/." not in f"/{file.relative_to(path)}"]
    if not files:
        raise DataError(f"{path} is no file, nor a folder with files in it")
    return files


def is_text(path):
    """Returns whether a file is no table, and begins without a NUL, as git tells text from binary files."""
    with open(path, "rb") as file:
        return path.suffix.lower() not in KINDS and b"\0" not in file.read(8000)


def read(path, size):
    """Yields the documents in a file. A file with more than `size` characters is cut at blank lines, or anywhere."""
    text, n_undecoded = "", 0
    # utf-8-sig: with or without a byte-order mark, which is no text; newline="" keeps \r\n
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        while line := file.readline(2 * size):
            text += line
            n_undecoded += line.count("\ufffd")
            if len(text) >= 2 * size or (len(text) >= size and not line.strip()):
                yield text
                text = ""
    yield text
    if n_undecoded:
        print(f"{path}: {n_undecoded:,} U+FFFD where bytes are no UTF-8")


def main(argv=None):
    cli = writer.command_line("text", __doc__, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", metavar="FILE_OR_FOLDER")
    cli.add_argument("--column", help="the column of tables that holds the text")
    args = cli.parse_args(argv)

    # find the files. A key is where a file is, behind links, so one that is named twice is read once
    paths = {}
    for path in args.paths:
        paths |= {file.resolve(): file for file in files_in(Path(path))}

    # take the tables if a column is named, and otherwise the text
    files = [file for file in paths.values() if (file.suffix.lower() in KINDS if args.column else is_text(file))]
    if others := set(paths.values()).difference(files):
        print(f"left out: {len(others):,} files, such as {min(others)} (binary ones; tables need --column)")

    if args.column:
        return writer.write(args, files, lambda path: read_column(path, args.column))
    size = max(SHORTEST, min(LONGEST, sum(file.stat().st_size for file in files) // FEWEST))
    is_many = len(files) * args.val_fraction >= 5  # with fewer, one file may be far too much to validate on
    return writer.write(args, files, lambda path: read(path, size), by_file=is_many)


if __name__ == "__main__":
    writer.run(main)
