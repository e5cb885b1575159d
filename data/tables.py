"""Reads one column of a table: .csv, .jsonl, .json, .parquet, or .arrow as datasets.save_to_disk writes it."""

import csv
import glob
import json
from pathlib import Path

from data.tokens import DataError

KINDS = ".csv", ".jsonl", ".json", ".parquet", ".arrow"


def read_column(path, column):
    """
    Yields the texts of a column; that of an empty cell is "". path: of a file, or a URL of the Hub.

    Raises DataError, which names the file and the row, if it cannot be read, has no such column, or holds no text.
    """
    n_rows = 0
    try:
        for row in read_rows(str(path), column):
            if column not in row:
                raise ValueError(f"there is no column {column}, only {', '.join(row)}")
            text = "" if row[column] is None else row[column]
            if not isinstance(text, str):
                raise ValueError(f"column {column} holds {text!r:.40}, expected text")
            yield text
            n_rows += 1
    except Exception as error:  # each of the libraries below has its own
        raise DataError(f"{path}, row {n_rows + 1}: {error}".splitlines()[0]) from error


def read_rows(path, column):
    """Yields each row of a table, a dict."""
    kind = Path(path).suffix.lower()
    if kind == ".csv":
        csv.field_size_limit(2**31 - 1)  # characters of a cell
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            if (rows.fieldnames or []).count(column) > 1:
                raise ValueError(f"two columns are called {column}")
            for row in rows:
                if None in row or None in row.values():  # a cell more than there are names, or one less
                    raise ValueError("too many cells or too few: put text that holds commas or line breaks in quotes")
                yield row
    elif kind in (".json", ".jsonl"):
        with open(path, encoding="utf-8-sig") as file:
            is_list = file.read(1000).lstrip().startswith("[")  # or lines of one record each
            file.seek(0)
            yield from json.load(file) if is_list else map(json.loads, filter(str.strip, file))  # no empty lines
    else:
        import datasets  # here, because it takes a second

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it would log is in the DataError
        files = path if "://" in path else glob.escape(path)  # brackets would be a pattern
        # streaming: nothing is copied, and only so much is read as is used
        yield from datasets.load_dataset(kind[1:], data_files=files, split="train", streaming=True)
