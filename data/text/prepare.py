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
from data import tokens

SPLIT = 16_384


def files(path):
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    found = [str(file) for file in found if file.is_file() and
             not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not found:
        raise tokens.DataError(f"{path} is no file, nor a folder with files in it")
    return found


def read(path, note):
    replaced, lines, size = 0, [], 0
    with open(path, "rb") as file:
        start = file.read(65_536)
    if start.count(0) > 4 + len(start) / 500:
        return note("binary files left out", 1)
    with open(path, encoding="utf-8", errors="replace", newline="") as file:  # newline="": ends of lines stay
        while line := file.readline(16 * SPLIT):
            lines.append(line)
            size += len(line)
            if "\ufffd" in line:
                replaced += line.count("\ufffd")
                note("U+FFFD where bytes are not UTF-8", replaced)
            if size >= (16 * SPLIT if line.strip() else SPLIT):
                yield "".join(lines)
                lines, size = [], 0
        yield "".join(lines)


def main(argv=None):
    cli = tokens.command_line("text", __doc__, argv, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", type=pathlib.Path, metavar="FILE_OR_FOLDER")
    args = cli.parse_args(argv)
    return tokens.write(args, " ".join(map(str, args.paths)), sum(map(files, args.paths), []), read)


if __name__ == "__main__":
    tokens.run(main)
