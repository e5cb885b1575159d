"""
Scores W_qk = W_q W_k^T in every layer of models: symmetry and directionality, and beside them what chance gives.
Prints a table of layers, or of several models a line for each. data/pretrained/README.md says what its columns are.

    python analyze.py --hf out/tiny --plot scores.png                     # a run of train.py
    python analyze.py --hf bert-base gpt2 llama3-8b --csv scores.csv      # models on the Hub
    python analyze.py --hf gpt2 --per_head --matrices wqk.png             # every head, and a picture of W_qk
"""

import argparse
import sys
from pathlib import Path

import torch

import analyze

from .. import expand, keep_memory, printable
from . import CheckpointError, require, tables
from .scoring import score_model


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hf", nargs="+", action="extend", required=True, metavar="NAME",
                        help="models: a run's folder or another one, a file, a Hub id, or a name of models.csv")
    parser.add_argument("--csv", metavar="FILE", help="write the scores to a new FILE, after every model")
    parser.add_argument("--plot", metavar="FILE.png", help="draw scores by layer; of more than 4 models, by "
                        "size; of checkpoint-100, checkpoint-200, ..., by this number")
    parser.add_argument("--per_head", action="store_true", help="score every head, and not only every layer")
    parser.add_argument("--matrices", metavar="FILE.png", help="draw W_qk of the last layer of each model")
    parser.add_argument("--gamma", type=float, default=analyze.GAMMA,
                        help="standard deviations from which a norm counts (2)")
    args = parser.parse_args(argv)

    # what cannot be drawn is refused now, and not after the work
    for path in filter(None, (args.plot, args.matrices)):
        if not path.endswith((".png", ".pdf", ".svg", ".jpg")):
            parser.error(f"{path} does not end in .png, .pdf, .svg or .jpg")

    keep_memory()
    try:
        for path in filter(None, (args.csv, args.plot, args.matrices)):
            require(Path(path).parent.is_dir(), f"{path}: there is no folder {Path(path).parent}: make it first")
        with tables.new_file(args.csv):
            has_failed = report_models(args)
    except (CheckpointError, OSError) as e:  # OSError: a file cannot be read or written
        sys.exit(f"analyze.py: {e}")
    sys.exit(has_failed)


def report_models(args):
    """Scores the models, prints and draws them. Returns True if a model could not be scored."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scored, has_failed = {}, False  # {path or id: ScoredModel}
    for name in expand(args.hf):
        # score it, or say why not, and go on with the others
        try:
            source = tables.known_as(name)
            if source in scored:  # it was named twice
                continue
            scored[source] = score_model(name, args.gamma, args.per_head, device)
        except CheckpointError as e:
            print(printable(f"analyze.py: {name}: {e}"), file=sys.stderr)
            has_failed = True
            continue
        print(printable(f"{name}: {scored[source].note}"), file=sys.stderr)
        # write it at once, so that nothing is lost if this is stopped
        if args.csv:
            tables.write_scores(args.csv, scored.values())

    if scored:
        tables.show_scores([model.table for model in scored.values()], args)
        if args.plot or args.matrices:
            from . import pictures  # and matplotlib with it

            pictures.draw([*scored.values()], args)
    return has_failed
