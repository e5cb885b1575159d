"""
Reads layouts.csv, which says for each model_type where the queries and keys of its self-attention are, and finds the
rows that a model needs. If the model is made of several parts, each part has its own.

A line was read from transformers 5.23, models/NAME/modeling_NAME.py, if its note does not say otherwise. NAME is the
model_type or, for a part such as clip_text_model, the model_type of the whole. README.md says how to add a line.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from .files import pick

NUMBER = "[0-9]{1,9}"  # of a layer, in the name of a tensor


class Row(NamedTuple):
    """A line of layouts.csv. A model_type with two lines has two stacks, or two names for one."""

    model_type: str  # of config.json, or of a config inside of it
    stack: str  # its name, if the model has several
    path: str  # of a layer, after any prefix: a regular expression, except for "." and the number {i} of the layer
    weights: list[str]  # the tensors in that layer, with or without ".weight"
    mask: str  # causal; or both: a token sees those on both of its sides; or unknown
    form: str  # how the tensors hold q and k, a function of forms.py; or "parts": the model is made of others
    # The sizes of the class, which a config inside of another may leave out.
    n_layer: int | None
    n_head: int | None
    head_dim: int | None
    n_shared: int | None  # number of last layers that take the keys of an earlier one
    note: str  # where it was read, if not in transformers, and what else a reader may ask

    def match(self, names: set[str]) -> list[re.Match]:
        """Returns a match, with groups prefix, i and weight, for every tensor that belongs to a layer of this row."""
        path = self.path.replace(".", r"\.").replace("{i}", f"(?P<i>{NUMBER})")
        weights = "|".join(self.weights)
        pattern = re.compile(rf"(?P<prefix>(.*\.)?){path}\.(?P<weight>{weights})(\.linear)?(\.weight)?")
        return [match for match in map(pattern.fullmatch, names) if match]


def read_table() -> dict[str, list[Row]]:
    """Returns {model_type: its rows, in their order}."""
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
# their tensors begin. The order matters, because the text has what is left. A model without parts is one part.
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
    """A model inside of a model."""

    name: str  # "" if there is only one
    model_type: str | None
    config: dict
    names: set[str]  # of its tensors
    rows: list[Row]  # none if the model_type is unknown


def find_parts(model_type: str | None, config: dict, names: set[str]) -> list[Part]:
    """Returns the parts of a model. model_type, config, names: of the whole."""
    rows = rows_of(model_type, config)
    if not rows or rows[0].form != "parts":
        return [Part("", model_type, config, names, rows)]
    parts = []
    left = names
    for name, start in PARTS.items():
        part_config = config_of_part(model_type, name, config)
        if part_config is not None:
            inside = {tensor for tensor in left if re.match(start, tensor)}
            left = left - inside
            its_type = part_type(model_type, name, part_config)
            its_rows = rows_of(its_type, part_config)
            parts.append(Part(name.removeprefix("text_"), its_type, part_config, inside, its_rows))
    return parts


def rows_of(model_type: str | None, config: dict) -> list[Row]:
    """Returns the rows of the table, changed for a config that has no latent for the queries."""
    rows = TABLE.get(model_type, [])
    if rows and rows[0].form == "latent" and not pick(config, int, "q_lora_rank"):
        rows = [row._replace(weights=["q_proj", *row.weights[2:]]) for row in rows]  # instead of q_a_proj and q_b_proj
    return rows


def config_of_part(model_type: str, part: str, config: dict) -> dict | None:
    """Returns the config of a part, or None if the model has no such part."""
    found = pick(config, dict, f"{part}_config_dict", f"{part}_config", part)  # the first is in early files of CLIP
    if found is None and part == "text" and pick(config, int, "num_attention_heads", "n_head"):
        found = config  # GIT, and Qwen2-VL's first files
    if model_type == "paligemma" and part == "text" and found is not None:  # the image and the prompt see each other
        found = {"use_bidirectional_attention": True, **found}
    return found


def part_type(model_type: str, part: str, config: dict) -> str:
    """Returns the model_type of a part. If its config has none that is in the table, it is clip_text or the like."""
    own = pick(config, str, "model_type", default=model_type)
    made = f"{model_type}_{part}".replace("-", "_")
    for name in own, made, f"{made}_model":
        if name in TABLE and name != model_type:
            return name
    return made if own == model_type else own  # for the message that it is not known
