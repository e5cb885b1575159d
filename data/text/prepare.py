"""
Your own text: files, and folders with all that is in and below them.

    python data/text/prepare.py notes.txt books/

A document is a file. One of more than 16,384 characters is split, after each so many at the next blank line (after 16
times as many anywhere), so that even a single file gives documents to train and to validate on. Bytes that are not
UTF-8 become U+FFFD. Left out: binary files, which one NUL in 500 bytes gives away, and in folders what is hidden.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tokens import DataError

SPLIT = 16_384  # characters
BINARY = 500  # bytes, one of which is 0


def files_in(path):
    """The file itself, or all that is in and below a folder and not hidden."""
    if path.is_file():
        return [str(path)]
    found = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            found.append(str(file))
    if not found:
        raise DataError(f"{path} is no file, nor a folder with files in it")
    return found


def read(path, note):
    with open(path, "rb") as file:
        start = file.read(65_536)
    if start.count(0) > 4 + len(start) / BINARY:
        note("binary files left out", 1)
        return
    replaced = 0
    lines, size = [], 0  # of the document to come
    with open(path, encoding="utf-8", errors="replace", newline="") as file:  # newline="": ends of lines stay
        while line := file.readline(16 * SPLIT):
            lines.append(line)
            size += len(line)
            if "\ufffd" in line:
                replaced += line.count("\ufffd")
                note("U+FFFD where bytes are not UTF-8", replaced)
            blank = not line.strip()
            if (blank and size >= SPLIT) or size >= 16 * SPLIT:
                yield "".join(lines)
                lines, size = [], 0
        yield "".join(lines)


def main(argv=None):
    cli = writer.command_line("text", __doc__, argv, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", type=pathlib.Path, metavar="FILE_OR_FOLDER")
    args = cli.parse_args(argv)
    files = [file for path in args.paths for file in files_in(path)]
    return writer.write(args, " ".join(map(str, args.paths)), files, read)


if __name__ == "__main__":
    writer.run_script(main)
