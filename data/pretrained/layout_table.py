"""
Reads layouts.csv: for each model_type, where the queries and keys of its self-attention are.

The lines were read from transformers 5.23, models/NAME/modeling_NAME.py, where NAME is the model_type, for
clip_text_model and other parts that of the whole, if the note does not say otherwise. README.md says how to add one.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

NUMBER = "[0-9]{1,9}"  # of a layer, in the name of a tensor
MASKS = {"causal": True, "both": False, "unknown": None, "": None}  # both: a token sees those on both of its sides


class Row(NamedTuple):
    """
    A line of layouts.csv, which has the column mask in place of causal. A model_type with two lines has two stacks, or
    two names for the tensors of one.
    """

    model_type: str  # of config.json, or of a config inside of it
    stack: str  # its name, if the model has several
    # Of a layer, after any prefix: a regular expression but for "." and two numbers, {i} of the layer and {stage} of
    # the stage, in models whose width grows from stage to stage.
    path: str
    weights: list[str]  # the tensors in that layer, with or without ".weight"
    causal: bool | None  # whether the mask is; None where it cannot be told
    form: str  # how the tensors hold q and k, a function of layout_forms.py; or "parts": the model is made of others
    # The sizes of the class, which a config inside of another may leave out. Several numbers: of each stage.
    n_layer: int | tuple[int, ...] | None
    n_head: int | tuple[int, ...] | None
    head_dim: int | None
    n_shared: int | None  # number of last layers that take the keys of an earlier one
    note: str  # where it was read, if not in transformers, and what else a reader may ask

    def match(self, names: set[str]) -> list[re.Match]:
        """A match, with groups prefix, i and weight, for every tensor that belongs to a layer of this row."""
        path = self.path.replace(".", r"\.").replace("{i}", f"(?P<i>{NUMBER})")
        weights = "|".join(self.weights)
        pattern = re.compile(rf"(?P<prefix>(.*\.)?){path}\.(?P<weight>{weights})(\.linear)?(\.weight)?")
        matches = [pattern.fullmatch(name) for name in names]
        return [match for match in matches if match]


def read_table() -> dict[str, list[Row]]:
    """-> model_type: its rows, in their order."""
    table = defaultdict(list)
    with open(Path(__file__).parent / "layouts.csv", newline="") as file:
        for line in csv.DictReader(file):
            causal = MASKS[line.pop("mask")]
            for column in "n_layer", "n_head", "head_dim", "n_shared":
                line[column] = read_numbers(line[column])
            line["weights"] = line["weights"].split()
            table[line["model_type"]].append(Row(causal=causal, **line))
    return dict(table)


def read_numbers(text: str) -> int | tuple[int, ...] | None:
    numbers = tuple(map(int, text.split()))
    if len(numbers) > 1:
        return numbers
    return numbers[0] if numbers else None


TABLE = read_table()
