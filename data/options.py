"""Reads the command line of analyze.py."""

import argparse
import os
import signal

PAPER = "data/results/csv/paper.csv"  # --csv of --paper
FORMATS = (".png", ".pdf", ".svg", ".jpg", ".gif")  # of pictures, by the end of their names


def parse(argv, description, gamma):
    """Returns what the words of a command line ask for. gamma: its value if they say nothing."""
    if {"-h", "--help"} & {*argv} and hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # if nobody reads on, as after `| head`, end without a traceback
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", action="extend", metavar="NAME",
                      help="score these models: names of data/pretrained/models.csv, Hub ids, folders or files")
    what.add_argument("--paper", action="store_true", help="score every model of data/pretrained/models.csv")
    what.add_argument("--runs", nargs="+", action="extend", metavar="DIR",
                      help="compare runs of train.py: their folders, or a file that --csv has written")
    parser.add_argument("--csv", metavar="FILE", type=os.path.expanduser,
                        help="write every score to FILE. A model that FILE has already is not scored again, even if it "
                             "has changed, until its rows are deleted. With --runs, write the comparison to FILE. With "
                             f"--paper, FILE is {PAPER} if you do not say it")
    parser.add_argument("--plot", metavar="FILE", type=picture,
                        help="draw the scores: of several models against their sizes, of one model by layer, of runs "
                             "over the steps of training")

    models = parser.add_argument_group("models (--hf, --paper)")
    models.add_argument("--per_head", action="store_true", help="score every head, and not only every layer")
    models.add_argument("--matrices", metavar="FILE", type=picture,
                        help="draw W_qk of the last layer; in a .gif, over training")
    models.add_argument("--gamma", type=float, default=gamma,
                        help="a row or column counts from so many standard deviations above the mean (%(default)s)")
    models.add_argument("--device", choices=["cuda", "cpu"], help="the device to compute on (a GPU, if there is one)")
    models.add_argument("--revisions", metavar="GLOB", help="score all branches, tags, folders or files of each NAME "
                        "that match GLOB, as checkpoints of a training")
    models.add_argument("--limit", type=count, metavar="N", help="score N of these checkpoints, evenly spread")
    models.add_argument("--offline", action="store_true", help="with --paper, print what was published")

    hand = parser.add_argument_group("models of an unknown layout. In a PATTERN {i} is the number of a layer, "
                                      "and {h} that of a head")
    hand.add_argument("--q", metavar="PATTERN", help="how the query weights are named")
    hand.add_argument("--k", metavar="PATTERN", help="how the key weights are named")
    hand.add_argument("--qkv", metavar="PATTERN", help="how the weights are named that hold q, k and v in one")
    hand.add_argument("--order", choices=["qkv", "qk", "grouped", "kv"],
                      help="what lies in them: q, then k, then v (qkv), or no v (qk), or grouped, key head by key "
                           "head; or, beside --q, k and then v in those of --k (kv)")
    hand.add_argument("--heads", metavar="H[,HKV]", help="the number of query heads, and of key heads")
    hand.add_argument("--layers", type=count, metavar="N", help="how many layers have attention, if not all have it")
    hand.add_argument("--transposed", action="store_true", help="the weights are (in, out), as in GPT-2's Conv1D")

    of_runs = parser.add_argument_group("runs of train.py (--runs)")
    of_runs.add_argument("--baseline", metavar="ARM", help="the arm to compare with (the random start)")
    of_runs.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all of them)")
    of_runs.add_argument("--all", action="store_true", help="print more columns: pairs and speed-up")
    of_runs.add_argument("--measure", metavar="NAME", help="compare arms with the baseline by the loss, or by a score: "
                         "symmetry, symmetry_0 (of a layer), heads, directionality, positions, positions_heads")
    of_runs.add_argument("--plan", metavar="FILE", help="do the tests that this file of config/plans has planned; --csv "
                         "keeps them. They are not shown with --arms, --baseline, --all or --measure")
    args = parser.parse_args(argv)
    require_partners(parser, args)
    if args.paper:
        args.csv = args.csv or PAPER
    args.layout = {word: getattr(args, word) for word in ("q", "k", "qkv", "heads", "order", "transposed", "layers")}
    return args


def require_partners(parser, args):
    """Ends the program if an option is given without the one that it belongs to."""
    if args.offline and not args.paper:
        parser.error("--offline needs --paper. For models in the local cache set HF_HUB_OFFLINE=1")
    of_hf = [args.revisions, args.limit, args.q, args.k, args.qkv, args.heads, args.layers]
    if args.revisions == "" or (any(of_hf) and not args.hf):
        parser.error("--revisions 'step*', --limit, --q, --k, --qkv, --heads and --layers need --hf")
    if args.limit and not args.revisions:
        parser.error("--limit needs --revisions")
    files = [os.path.abspath(path) for path in (args.csv, args.plot, args.matrices) if path]
    if len(set(files)) < len(files):  # or the last one would be written over the others
        parser.error("--csv, --plot and --matrices need a file each")
    if args.runs and (args.matrices or args.per_head or args.gamma != parser.get_default("gamma")):
        parser.error("--matrices, --per_head and --gamma are for models, and not for runs")
    if not args.runs and (args.baseline or args.arms or args.all or args.measure or args.plan):
        parser.error("--baseline, --arms, --all, --measure and --plan need --runs")


def count(text):
    """Returns a number from 1 on. Raises ValueError if it is none, which argparse reports."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def picture(path):
    """Returns the path of a picture, if it can be written in the format that the path ends in."""
    if not path.endswith(FORMATS):  # or it would be known only after the work
        raise argparse.ArgumentTypeError(f"{path} does not end in {', '.join(FORMATS)}")
    return os.path.expanduser(path)
