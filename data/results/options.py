"""The command line of analyze.py."""

import argparse
import math
import os

import torch


def parse(argv, description, gamma):
    """What the words of a command line ask for. gamma: its value if they say nothing."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", metavar="NAME", help="names of models.csv, Hub ids, paths")
    what.add_argument("--paper", action="store_true", help="every model of data/pretrained/models.csv")
    what.add_argument("--runs", nargs="+", metavar="DIR", help="folders of runs, files that --csv wrote")
    parser.add_argument("--csv", metavar="FILE", type=os.path.expanduser,
                        help="keep every score. What is already in FILE is not scored again, even if the checkpoint "
                             "has changed: delete its rows for that. With --runs: keep the comparison")
    parser.add_argument("--plot", metavar="FILE", type=picture,
                        help="several models: Figure 2; one: its layers and heads; runs: Figures 3 and S5")

    models = parser.add_argument_group("models (--hf, --paper)")
    models.add_argument("--per_head", action="store_true", help="score every head as well")
    models.add_argument("--matrices", metavar="FILE", type=picture, help="draw last layers; a .gif: over steps")
    models.add_argument("--gamma", type=at_least(0, float), default=gamma, help="in deviations (%(default)s)")
    models.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=device,
                        help="where to compute (%(default)s)")
    models.add_argument("--revisions", metavar="GLOB", help="branches, tags or files of NAME: a training")
    models.add_argument("--stride", type=at_least(1, int), metavar="N", help="of a training, score every N-th")
    models.add_argument("--limit", type=at_least(1, int), metavar="N", help="of a training, score N, evenly spread")
    models.add_argument("--offline", action="store_true", help="with --paper: score nothing new")

    hand = parser.add_argument_group("a layout that is not known ({i} is the number of the layer)")
    hand.add_argument("--q", metavar="PATTERN", help="the names of its query weights")
    hand.add_argument("--k", metavar="PATTERN", help="the names of its key weights")
    hand.add_argument("--qkv", metavar="PATTERN", help="or of weights that are q, k and v in one")
    hand.add_argument("--order", default="qkv", help="of the three (%(default)s); grouped: key head by key head")
    hand.add_argument("--heads", metavar="H[,HKV]", help="how many there are of queries, and of keys")
    hand.add_argument("--transposed", action="store_true", help="they are (in, out), as of GPT-2's Conv1D")

    of_runs = parser.add_argument_group("runs of train.py (--runs)")
    of_runs.add_argument("--baseline", metavar="ARM", help="what others are measured against (the plain start)")
    of_runs.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all)")
    of_runs.add_argument("--all", action="store_true", help="all columns: pairs, speed-up, scores")
    args = parser.parse_args(argv)
    if args.offline and not args.paper:
        parser.error("--offline goes with --paper; for models in the local cache set HF_HUB_OFFLINE=1")
    of_hf = [args.revisions, args.stride, args.limit, args.q, args.k, args.qkv, args.heads]
    if args.revisions and len(args.hf or []) > 1:
        parser.error("--revisions is of one NAME")
    if args.revisions == "" or (any(of_hf) and not args.hf):
        parser.error("--revisions 'step*', --stride, --limit, --q, --k, --qkv and --heads go with --hf")
    if args.runs and (args.matrices or args.per_head):
        parser.error("--matrices and --per_head are of models, not of runs")
    return args


def at_least(low, kind):
    """A function that reads a number, which has to be finite and not below low."""
    def number(text):
        value = kind(text)
        if not low <= value < math.inf:
            raise ValueError
        return value
    return number


def picture(path):
    """The path of a picture, if it can be written in the format that the path ends in."""
    from data.results import figures

    if not path.endswith(figures.FORMATS):  # or it would be known only after the work
        raise argparse.ArgumentTypeError(f"{path} does not end in {', '.join(figures.FORMATS)}")
    return os.path.expanduser(path)


def device(name):
    """The name of a device, if it computes in float64."""
    try:
        torch.zeros(1, dtype=torch.float64, device=name).item()  # scores are in float64
    except (RuntimeError, AssertionError, TypeError) as e:  # built without CUDA; no float64
        raise argparse.ArgumentTypeError(f"{name} cannot be used here ({str(e).splitlines()[0]:.60}): cpu can")
    return name
