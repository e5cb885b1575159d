"""Reads one column of a table: .csv, .jsonl or .parquet."""

import csv
import glob
import json
from pathlib import Path

from data.tokens import DataError

KINDS = ".csv", ".jsonl", ".parquet"


def read_column(path, column):
    """Yields the texts of a column, "" for an empty cell. path: a file, or a URL of the Hub. Or raises DataError."""
    for n, row in enumerate(read_rows(str(path)), 1):
        text = row.get(column, 0)  # no column: no text
        if not isinstance(text, str | None):
            raise DataError(f"{path}, row {n}: expected text in a column {column}, found {row!r:.99}")
        yield text or ""


def read_rows(path):
    """Yields each row of a table, a dict."""
    kind = Path(path).suffix.lower()
    if kind == ".csv":
        csv.field_size_limit(2**31 - 1)  # characters of a cell
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            if len(set(rows.fieldnames or [])) < len(rows.fieldnames or []):  # the last one would win
                raise DataError(f"{path}: two columns have one name")
            for row in rows:
                if None in row or None in row.values():  # a cell more than there are names, or one less
                    raise DataError(f"{path}, line {rows.line_num}: too many cells or too few: put text that holds "
                                    "commas or line breaks in quotes")
                yield row
    elif kind == ".jsonl":
        with open(path, encoding="utf-8") as file:
            yield from map(json.loads, filter(str.strip, file))  # no empty lines
    else:
        import datasets  # here, because it takes a second

        files = path if "://" in path else glob.escape(path)  # brackets would be a pattern
        yield from datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)  # no copy
