"""
Reads one column of a table with Hugging Face's `datasets`: .jsonl, .json, .csv, .parquet, or the .arrow files that
datasets.save_to_disk writes.
"""

import csv
import glob
import sys
from pathlib import Path

from data.tokens import DataError

KINDS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}


def read_column(path, column, kind=None):
    """
    Yields the texts of a column, and None for an empty cell. kind: a key of KINDS, if the name does not end so.

    Raises DataError, which names the file, if it cannot be read, has no such column, or if the column holds no text.
    """
    import datasets  # here, because it takes a second

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it would log is in the DataError
    kind = KINDS[kind or Path(path).suffix.lower()]
    files = path if "://" in str(path) else glob.escape(str(path))  # brackets would be a pattern
    number, options = 0, {}
    try:
        if kind == "csv":
            require_names(path)
            # Every cell of the column is text: NA is not nothing, and 001 is no number.
            options = dict(converters={column: str}, keep_default_na=False)
        # streaming: nothing is copied, and only so much is read as is used
        rows = datasets.load_dataset(kind, data_files=files, split="train", streaming=True, **options)
        for number, row in enumerate(rows, 1):
            yield text_of(row, column, number)
    except Exception as error:  # each of the libraries below has its own
        said = str(error).strip() or type(error).__name__
        raise DataError(f"{path}: {said.splitlines()[0]} (after {number:,} rows)") from error


def require_names(path):
    """Raises ValueError if a .csv has more cells than names. pandas would take the first cells for an index."""
    csv.field_size_limit(sys.maxsize)  # a text may be long
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = filter(None, csv.reader(file))  # those that are not empty
        names, cells = next(lines, []), next(lines, [])
    if len(cells) > len(names):
        raise ValueError(f"a row has {len(cells)} cells, and the first line {len(names)} names: put text that holds "
                         "commas in quotes")


def text_of(row, column, number):
    """The text of a row, a dict. Raises ValueError if there is none."""
    if column not in row:
        raise ValueError(f"there is no column {column}, only {', '.join(row)}")
    if not isinstance(row[column], str | None):
        raise ValueError(f"row {number} of column {column} holds {row[column]!r:.40}, expected text")
    return row[column]
