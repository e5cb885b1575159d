"""Reads one column of a table: .csv, .jsonl, .json, .parquet, or .arrow as datasets.save_to_disk writes it."""

import csv
import glob
from pathlib import Path

from data.tokens import DataError

KINDS = {".csv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


def read_column(path, column):
    """
    Yields the texts of a column, and None for an empty cell. path: of a file, or a URL.

    Raises DataError, which names the file, if it cannot be read, has no such column, or if the column holds no text.
    """
    try:
        for row in read_rows(str(path)):
            if None in row:  # cells of a .csv that have no name
                raise ValueError("a row has more cells than names: put text that holds commas in quotes")
            if column not in row:
                raise ValueError(f"there is no column {column}, only {', '.join(row)}")
            if not isinstance(row[column], str | None):
                raise ValueError(f"column {column} holds {row[column]!r:.40}, expected text")
            yield row[column]
    except Exception as error:  # each of the libraries below has its own
        raise DataError(f"{path}: {error}".splitlines()[0]) from error


def read_rows(path):
    """Yields each row of a table, a dict."""
    kind = KINDS[Path(path).suffix.lower()]
    if kind == "csv":  # by hand, because pandas loses text behind an unquoted comma
        csv.field_size_limit(2**31 - 1)  # characters of a cell
        with open(path, newline="", encoding="utf-8-sig") as file:
            yield from csv.DictReader(file, strict=True)
    else:
        import datasets  # here, because it takes a second

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it would log is in the DataError
        files = path if "://" in path else glob.escape(path)  # brackets would be a pattern
        # streaming: nothing is copied, and only so much is read as is used
        yield from datasets.load_dataset(kind, data_files=files, split="train", streaming=True)
