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
    what.add_argument("--hf", nargs="+", metavar="NAME",
                      help="score these models: names of data/pretrained/models.csv, Hub ids, folders or files")
    what.add_argument("--paper", action="store_true", help="score every model of data/pretrained/models.csv")
    what.add_argument("--runs", nargs="+", metavar="DIR",
                      help="compare runs of train.py: their folders, or a file that --csv has written")
    parser.add_argument("--csv", metavar="FILE", type=os.path.expanduser,
                        help="write every score to FILE. A model that FILE has already is not scored again, even if it "
                             "has changed, until its rows are deleted. With --runs, write the comparison to FILE")
    parser.add_argument("--plot", metavar="FILE", type=picture,
                        help="draw the scores: of several models against their sizes, of one model by layer, of runs "
                             "over the steps of training")

    models = parser.add_argument_group("models (--hf, --paper)")
    models.add_argument("--per_head", action="store_true", help="score every head, and not only every layer")
    models.add_argument("--matrices", metavar="FILE", type=picture,
                        help="draw W_qk of the last layer; in a .gif, over training")
    models.add_argument("--gamma", type=at_least(0, float), default=gamma,
                        help="a row or column counts from so many standard deviations above the mean (%(default)s)")
    models.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=device,
                        help="the device to compute on (%(default)s)")
    models.add_argument("--revisions", metavar="GLOB", help="score all branches, tags or files of each NAME that match "
                        "GLOB, as checkpoints of a training")
    models.add_argument("--stride", type=at_least(1, int), metavar="N", help="score every N-th of these checkpoints")
    models.add_argument("--limit", type=at_least(1, int), metavar="N", help="score N of these, evenly spread")
    models.add_argument("--offline", action="store_true", help="with --paper, print what was published")

    hand = parser.add_argument_group("models of an unknown layout. In a PATTERN {i} is the number of a layer")
    hand.add_argument("--q", metavar="PATTERN", help="how the query weights are named")
    hand.add_argument("--k", metavar="PATTERN", help="how the key weights are named")
    hand.add_argument("--qkv", metavar="PATTERN", help="how the weights are named that hold q, k and v in one")
    hand.add_argument("--order", default="qkv", choices=["qkv", "grouped"],
                      help="q, then k, then v in them (%(default)s), or grouped: key head by key head")
    hand.add_argument("--heads", metavar="H[,HKV]", help="the number of query heads, and of key heads")
    hand.add_argument("--transposed", action="store_true", help="the weights are (in, out), as in GPT-2's Conv1D")

    of_runs = parser.add_argument_group("runs of train.py (--runs)")
    of_runs.add_argument("--baseline", metavar="ARM", help="the arm to compare with (the random start)")
    of_runs.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all of them)")
    of_runs.add_argument("--all", action="store_true", help="print more columns: pairs, speed-up and scores")
    args = parser.parse_args(argv)
    if args.offline and not args.paper:
        parser.error("--offline needs --paper. For models in the local cache set HF_HUB_OFFLINE=1")
    of_hf = [args.revisions, args.stride, args.limit, args.q, args.k, args.qkv, args.heads]
    if args.revisions == "" or (any(of_hf) and not args.hf):
        parser.error("--revisions 'step*', --stride, --limit, --q, --k, --qkv and --heads need --hf")
    if args.runs and (args.matrices or args.per_head):
        parser.error("--matrices and --per_head are for models, and not for runs")
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
