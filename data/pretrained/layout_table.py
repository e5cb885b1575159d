"""
layouts.csv, which says for each model_type where the queries and keys of its self-attention are, and which of its rows
a model needs: those of its parts, if it is made of several.

The lines were read from transformers 5.23, models/NAME/modeling_NAME.py, where NAME is the model_type, for
clip_text_model and other parts that of the whole, if the note does not say otherwise. README.md says how to add one.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from data.pretrained.files import pick

NUMBER = "[0-9]{1,9}"  # of a layer, in the name of a tensor


class Row(NamedTuple):
    """A line of layouts.csv. A model_type with two lines has two stacks, or two names for one."""

    model_type: str  # of config.json, or of a config inside of it
    stack: str  # its name, if the model has several
    path: str  # of a layer, after any prefix: a regular expression, except for "." and the number {i} of the layer
    weights: list[str]  # the tensors in that layer, with or without ".weight"
    mask: str  # causal; or both: a token sees those on both of its sides; or unknown
    form: str  # how the tensors hold q and k, a function of forms.py; or "parts": the model is made of others
    layers: str  # "some": if config.json has no layer_types, layers without these weights are of another kind; else ""
    # The sizes of the class, which a config inside of another may leave out.
    n_layer: int | None
    n_head: int | None
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
            for column in "n_layer", "n_head", "head_dim", "n_shared":
                line[column] = int(line[column]) if line[column] else None
            line["weights"] = line["weights"].split()
            table[line["model_type"]].append(Row(**line))
    return dict(table)


TABLE = read_table()


# ---- the parts of a model -------------------------------------------------------------------------------------------

# Parts with a config of their own inside of config.json, such as the image tower and the text of CLIP, and how names of
# their tensors begin. In this order: the text has what is left. A model without parts is one part.
PARTS = {
    "vision": r"(.*\.)?(vision_tower|vision_model|vision_encoder|visual)\.",
    "audio": r"(.*\.)?audio_tower\.",
    "qformer": r"(.*\.)?qformer\.",
    "text_encoder": r"text_encoder\.",
    "encoder": r"(model\.)?encoder\.",
    "decoder": r"(model\.)?decoder\.",
    "backbone": "",
    "text": "",
}


class Part(NamedTuple):
    """A model inside of a model. name: "" if there is only one. names: of its tensors. rows: none if it is unknown."""

    name: str
    model_type: str | None
    config: dict
    names: set[str]
    rows: list[Row]


def find_parts(model_type: str | None, config: dict, names: set[str]) -> list[Part]:
    """The parts of a model, each with its config, its tensors, and the rows that say where its layers are."""
    rows = rows_of(model_type, config)
    if not rows or rows[0].form != "parts":
        return [Part("", model_type, config, names, rows)]
    parts, left = [], names
    for name, start in PARTS.items():
        part_config = config_of_part(model_type, name, config)
        if part_config is not None:
            inside = {tensor for tensor in left if re.match(start, tensor)}
            left = left - inside
            its_type = part_type(model_type, name, part_config)
            rows = rows_of(its_type, part_config)
            parts.append(Part(name.removeprefix("text_"), its_type, part_config, inside, rows))
    return parts


def rows_of(model_type: str | None, config: dict) -> list[Row]:
    """The rows of the table, without a latent for the queries where the config has none."""
    rows = TABLE.get(model_type, [])
    if rows and rows[0].form == "latent" and not pick(config, "q_lora_rank", int):
        rows = [row._replace(weights=["q_proj", *row.weights[2:]]) for row in rows]
    return rows


def config_of_part(model_type: str, part: str, config: dict) -> dict | None:
    """The config of a part; None: the model has no such part."""
    found = pick(config, f"{part}_config_dict {part}_config {part}", dict)  # the first is in early files of CLIP
    if found is None and part == "text" and pick(config, "num_attention_heads n_head", int):
        found = config  # GIT, and Qwen2-VL's first files
    if model_type == "paligemma" and part == "text" and found is not None:  # the image and the prompt see each other
        found = {"use_bidirectional_attention": True, **found}
    return found


def part_type(model_type: str, part: str, config: dict) -> str:
    """The model_type of a part. If its config has none that is in the table (CLIP), it is clip_text or the like."""
    own = pick(config, "model_type", str, model_type)
    guess = f"{model_type}_{part}".replace("-", "_")
    known = [kind for kind in (own, guess, f"{guess}_model") if kind in TABLE and kind != model_type]
    return [*known, guess if own == model_type else own][0]
