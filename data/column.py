"""Reads one column of a table: .csv, .jsonl or .parquet."""

import csv
import glob
import json
from pathlib import Path

from data.tokens import DataError

KINDS = ".csv", ".jsonl", ".parquet"


def read_column(path, column):
    """Yields a column's texts, "" for an empty cell. path: a file, or a URL of the Hub. Or raises DataError."""
    for n, row in enumerate(read_rows(str(path)), 1):
        text = row.get(column, 0)  # 0 is no text, so a missing column is refused below
        if not isinstance(text, str | None):
            raise DataError(f"{path}, row {n}: expected text in a column {column}, found {row!r:.99}")
        yield text or ""


def read_rows(path):
    """Yields the rows of a table, a dict each. Raises DataError if a row of a .csv does not fit its header."""
    kind = Path(path).suffix.lower()
    if kind == ".csv":
        # Python's reader goes on where a file is wrong, and text would be lost without a word, so look at every row
        csv.field_size_limit(2**31 - 1)  # characters in a cell; a longer one than 131,072 is an error otherwise
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            names = rows.fieldnames or []  # None if the file is empty
            if len(set(names)) < len(names):  # the last one would win
                raise DataError(f"{path}: two columns have one name")
            for row in rows:
                # DictReader gives a cell without a name the key None, and a name without a cell the value None
                if None in row or None in row.values():
                    raise DataError(f"{path}, line {rows.line_num}: too many cells or too few: put text that holds "
                                    "commas or line breaks in quotes")
                yield row
    elif kind == ".jsonl":
        # a row is a line, and lines may be empty, such as the last one
        with open(path, encoding="utf-8") as file:
            yield from map(json.loads, filter(str.strip, file))
    else:
        import datasets  # here, because it takes a second

        # streaming reads the file from where it is, and keeps no copy. Brackets in a local name would be a pattern
        files = path if "://" in path else glob.escape(path)
        yield from datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
