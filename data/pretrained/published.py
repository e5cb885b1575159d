"""The tables that the authors of the paper printed (analyze.py --paper). README.md explains what was published."""

from pathlib import Path

import pandas

from ..chance import SCORES
from . import sources
from .tables import in_columns

PRINTED_TABLES = Path(__file__).parent / "printed_tables.csv"
# What was scored, if it is not W_qk: the column `matrix` of models.csv and of printed_tables.csv.
MATRICES = dict(wqk="", tiled_kv="queries with the wrong keys", head_space="W_q^T W_k instead of W_q W_k^T",
                cross_attention="attention to another stack", random_init="an untrained model")


def separation():
    """Returns how well each score tells the encoders of Figure 2 from its decoders, with and without other matrices."""
    models = pandas.DataFrame(sources.known_models()).query("figure == '2'")
    models[SCORES] = models[SCORES].astype(float)
    lines = ["Pairs of an encoder and a decoder of Figure 2 in which the encoder has the higher score:"]
    for words, chosen in ("of W_qk alone", models[models["matrix"] == "wqk"]), ("all rows", models):
        encoders, decoders = chosen[chosen["causal"] == "0"], chosen[chosen["causal"] == "1"]
        shares = []
        for score in SCORES:
            higher = encoders[score].to_numpy()[:, None] > decoders[score].to_numpy()  # (encoders, decoders)
            shares.append(f"{score} {higher.mean():.1%}")
        lines.append(f"  {words} ({len(encoders)} x {len(decoders)}): {', '.join(shares)}")
    return "\n".join(lines)


def printed_tables():
    """Returns Tables S2 and S3, left halves and then right ones, what each row is, and how many are of W_qk."""
    rows = pandas.read_csv(PRINTED_TABLES, dtype=str, keep_default_na=False)
    repeats = rows["repeats"].where(rows["repeats"] == "", "row " + rows["repeats"] + " again")
    cells = pandas.DataFrame({"printed as": rows["printed_as"]})
    for score in SCORES:
        cells[score] = rows[score].replace("", "-")  # Table S3 lacks two rows
    remarks = ["; ".join(filter(None, row)) for row in zip(rows["matrix"].map(MATRICES), rows["remark"], repeats)]
    cells["what it is"] = [remark.ljust(max(map(len, remarks))) for remark in remarks]  # text begins at the left
    n_wqk = (rows["matrix"] == "wqk").sum()
    return (f"Tables S2 and S3 of the paper, medians over layers:\n{in_columns(cells, rows['row'], 'row')}\n"
            f"Of {len(rows)} rows {n_wqk} are of W_qk, and {len(rows) - n_wqk} are not.")
