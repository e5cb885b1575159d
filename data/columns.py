"""
Reads one column of a table: .jsonl, .json, .csv, .arrow (as datasets.save_to_disk writes it), or .parquet (of this
machine, or of the Hub: hf://datasets/...). What is in other columns does not matter, and every error names the file.
"""

import json
from pathlib import Path

import pandas
import pyarrow.parquet

from data.tokens import DataError


def read_column(path, column, kind=None):
    """The texts of a column, None for an empty cell. kind: a key of READERS, if the name does not end so."""
    number = 0
    try:
        for number, text in enumerate(READERS[kind or Path(path).suffix.lower()](str(path), column), 1):
            if not isinstance(text, str | None):
                raise DataError(f"{path}: row {number} of column {column} holds {text!r:.40}, expected text")
            yield text
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: {error} (after {number:,} rows)") from error


def require_column(column, names):
    if column not in names:
        raise ValueError(f"there is no column {column}, only {', '.join(map(str, names))}")


def read_json(path, column):
    """An object per line, or one list of objects. (pandas would refuse large numbers in the other columns.)"""
    found, row = False, {}
    with open(path, encoding="utf-8-sig") as file:
        is_list = file.read(1) == "["
        file.seek(0)
        for row in json.load(file) if is_list else (json.loads(line) for line in map(str.strip, file) if line):
            if not isinstance(row, dict):
                raise ValueError(f"{row!r:.40} is no row, expected an object of JSON")
            found = found or column in row
            yield row.get(column)  # a row may lack it, but not all of them
    if row and not found:
        require_column(column, row)


def read_csv(path, column):
    with pandas.read_csv(path, dtype=str, keep_default_na=False, index_col=False, chunksize=1000) as chunks:
        for chunk in chunks:
            require_column(column, chunk)
            yield from chunk[column]


def read_parquet(path, column):
    if path.startswith("hf://"):
        yield from read_hub(path, column)
        return
    with pyarrow.parquet.ParquetFile(path) as table:
        require_column(column, table.schema_arrow.names)
        for batch in table.iter_batches(1000, columns=[column]):
            yield from batch[column].to_pylist()


def read_hub(path, column):
    """A parquet file of the Hub. `datasets` asks again when the network fails."""
    from datasets import load_dataset

    table = load_dataset("parquet", data_files=path, split="train", streaming=True, columns=[column])
    for batch in table.iter(1000):
        yield from batch[column]


def read_arrow(path, column):
    with pyarrow.OSFile(path) as file, pyarrow.ipc.open_stream(file) as stream:
        require_column(column, stream.schema.names)
        for batch in stream:
            yield from batch[column].to_pylist()


READERS = {".jsonl": read_json, ".json": read_json, ".csv": read_csv, ".parquet": read_parquet, ".arrow": read_arrow}
