"""
Reads one column of a table: .jsonl, .json, .csv, .parquet, or .arrow, as datasets.save_to_disk writes it. What is in
other columns does not matter, and every error names the file.

    for text in read_column("posts.jsonl", "text"):
        ...
"""

import codecs
import csv
import io
import itertools
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from data.tokens import DataError


def read_column(path, column, kind=None):
    """
    Yield the texts of a column, and None for an empty cell.

    path: a file, or hf://datasets/..., a parquet file of the Hub. kind: a key of READERS, if its name does not end so
    """
    path = str(path)
    try:
        for number, text in enumerate(read_cells(path, column, kind), 1):
            if not isinstance(text, str | None):
                raise DataError(f"{path}: row {number} of column {column} holds {text!r:.40}, expected text")
            yield text
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: {error}") from error


def read_cells(path, column, kind):
    if path.startswith("hf://"):
        yield from read_hub(path, column)
    else:
        with open(path, "rb") as file:
            yield from READERS[kind or Path(path).suffix.lower()](file, column)


def require_column(column, names):
    if column not in names:
        raise ValueError(f"there is no column {column}, only {', '.join(map(str, names))}")


def read_json(file, column):
    """An object per line, or one list of objects."""
    names = []
    found = False
    for row in json_rows(file):
        if not isinstance(row, dict):
            raise ValueError(f"{row!r:.40} is no row, expected an object of JSON")
        names = row
        found = found or column in row
        yield row.get(column)  # a row may lack it, but not all of them
    if names and not found:
        require_column(column, names)


def json_rows(file):
    first = file.readline()
    if first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from json.loads(first + file.read())
        return
    for number, line in enumerate(itertools.chain([first], file), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error


def read_csv(file, column):
    """The first line has the names of the columns."""
    csv.field_size_limit(2**31 - 1)  # of a cell; by itself it is 131,072 characters
    reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
    require_column(column, reader.fieldnames or [])
    try:
        for row in reader:
            yield row[column]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"after line {reader.line_num}: {error}") from error


def read_parquet(file, column):
    table = pyarrow.parquet.ParquetFile(file)
    require_column(column, table.schema_arrow.names)
    for batch in table.iter_batches(1000, columns=[column]):
        yield from batch[column].to_pylist()


def read_arrow(file, column):
    stream = pyarrow.ipc.open_stream(file)
    require_column(column, stream.schema.names)
    for batch in stream:
        yield from batch[column].to_pylist()


def read_hub(path, column):
    """A parquet file of the Hugging Face Hub. `datasets` asks again when the network fails."""
    from datasets import load_dataset

    for batch in load_dataset("parquet", data_files=path, split="train", streaming=True, columns=[column]).iter(1000):
        yield from batch[column]


READERS = {".jsonl": read_json, ".json": read_json, ".csv": read_csv, ".parquet": read_parquet, ".arrow": read_arrow}
