"""
Your own text: files, and folders with all that is in and below them.

    python data/text/prepare.py notes.txt books/

A file is a document. A longer file is split into several: after 16,384 characters, at the next blank line (or anywhere
after 16 times as many). So even a single file gives documents to train and to validate on. Of several files, each goes
to one split as a whole. Text is UTF-8, or what a byte-order mark says; bytes that cannot be decoded become U+FFFD.
Binary files (one NUL in 500 bytes) are left out, and so is what is hidden in a folder.
"""

import codecs
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import split, writer
from data.tokens import DataError

SPLIT = 16_384  # characters
BINARY = 500  # bytes, one of which is 0


def files_in(path):
    """The file itself, or all files in and below a folder that are not hidden."""
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


def encoding(path):
    """utf-8, or what a byte-order mark says (the mark itself is no text); None for a binary file."""
    with open(path, "rb") as file:
        start = file.read(65_536)
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # before UTF-16, whose mark begins the same way
        return "utf-32"
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


def main(argv=None):
    cli = writer.command_line("text", __doc__, argv, tokenizer="bytes", val_fraction=0.05)
    cli.add_argument("paths", nargs="+", type=pathlib.Path, metavar="FILE_OR_FOLDER")
    args = cli.parse_args(argv)
    out = writer.find_folder(args).resolve()  # it may lie in one of the folders, and holds no text
    found = []
    for path in args.paths:
        found += [file for file in files_in(path) if not pathlib.Path(file).resolve().is_relative_to(out)]
    binary, text = [], []
    for file in dict.fromkeys(found):  # once, of a folder and a file in it
        if encoding(file) is None:
            binary.append(file)
        elif pathlib.Path(file).stat().st_size > 0:
            text.append(file)
    if binary:
        print(f"{len(binary):,} binary files left out: {writer.some(binary)}")
    files = split.look_at(text)
    source = " ".join(map(str, args.paths))
    return writer.write(args, source, text, read, files=files, whole_files=len(text) > 1)


if __name__ == "__main__":
    writer.run_script(main)
