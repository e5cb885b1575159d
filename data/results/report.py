"""
The command line of analyze.py, and what it prints and draws once it has the scores.
"""

import argparse
import os
import sys

import torch
from tqdm import tqdm

from data.pretrained.files import printable
from data.pretrained.sources import known_models
from data.results import figures, figures_suites, tables

# ---- the command line --------------------------------------------------------------------------------------------


def parse(argv, description, gamma):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)  # flags are written out
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", metavar="NAME",
                      help="names of data/pretrained/models.csv, Hub ids (org/name@revision), local folders and files")
    what.add_argument("--paper", action="store_true", help="every model of data/pretrained/models.csv")
    what.add_argument("--suite", metavar="NAME",
                      help="a suite of data/pretrained/suites.csv, or of a file of its form")
    what.add_argument("--runs", nargs="+", metavar="DIR",
                      help="folders of runs, comparisons that --csv wrote, and the files in data/results/csv/published")
    parser.add_argument("--csv", metavar="FILE", type=os.path.expanduser,
                        help="write every score in full precision; what it has already is not scored again, unless a "
                        "local file has changed since then. With --runs: the comparison itself")
    parser.add_argument("--plot", metavar="FILE", type=picture,
                        help="several models: Figure 2; one: its layers and heads; runs: Figures 3 and S5, and, with "
                        "_layers in its name, every layer; with trajectories.csv: Figures 3, S3, S4 of both")

    models = parser.add_argument_group("models (--hf, --paper, --suite)")
    what_of_it = models.add_mutually_exclusive_group()
    what_of_it.add_argument("--per_head", action="store_true", help="score every head as well")
    what_of_it.add_argument("--published", action="store_true",
                            help="score what the authors' code scored, to audit tables")
    models.add_argument("--matrices", metavar="FILE", type=picture,
                        help="draw W_qk of each model's last layer, its symmetric and its skew part; of trainings, in "
                        "a .gif, W_qk over the steps")
    models.add_argument("--gamma", type=float, default=gamma,
                        help="threshold of directionality, in standard deviations (%(default)s)")
    models.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=device,
                        help="where to compute (%(default)s)")
    models.add_argument("--revisions", metavar="GLOB", help="with --hf: the branches and tags of each NAME, or the "
                        "folders and files in it, that match, in the order of their steps")
    models.add_argument("--stride", type=int, default=1, metavar="N", help="of a training, score every N-th")
    models.add_argument("--limit", type=int, metavar="N", help="of a training, score at most N, evenly spread")
    models.add_argument("--offline", action="store_true", help="with --paper: score nothing new, use what is in --csv. "
                        "(For models in the local cache set HF_HUB_OFFLINE=1)")

    of_runs = parser.add_argument_group("runs of train.py (--runs)")
    of_runs.add_argument("--level", type=float, default=2.5,
                         help="loss that tells when a run has left the plateau [nats/token] (%(default)s)")
    of_runs.add_argument("--baseline", metavar="ARM",
                         help="what other runs are measured against (the plain random initialisation, or the first)")
    of_runs.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all)")
    args = parser.parse_args(argv)
    if args.offline and not args.paper:
        parser.error("--offline goes with --paper; for models in the local cache set HF_HUB_OFFLINE=1")
    return args


def picture(path):
    if not path.endswith(figures.FORMATS):  # or it would be known only after the work
        raise argparse.ArgumentTypeError(f"{path} does not end in {', '.join(figures.FORMATS)}")
    return os.path.expanduser(path)


def device(name):
    try:
        torch.zeros(1, dtype=torch.float64, device=name).item()  # scores are in float64
    except (RuntimeError, AssertionError, TypeError) as e:  # built without CUDA; a device that has no float64
        raise argparse.ArgumentTypeError(f"{name} cannot be used here ({str(e).splitlines()[0]:.60}): cpu can")
    return name


# ---- pretrained models -------------------------------------------------------------------------------------------


def tell(line):
    """Print a line on stderr, above any progress bar. Names in it may hold control characters."""
    tqdm.write(printable(line), file=sys.stderr)


def report_scores(args, table, members):
    """
    What is printed and drawn depends on the question: the paper, a suite, trainings, or single models.

    table: of all that was asked for, as of tables.of_targets. members: of the suite.
    """
    trainings = tables.find_trainings(table)
    if args.paper:
        report_paper(tables.by_stack(table), args.plot)
    elif args.suite:
        report_suite(members, table, trainings, args.plot)
    elif trainings:
        tqdm.write(tables.training_table(trainings))
        if args.plot:
            figures_suites.plot_training(trainings, args.plot)
    elif len(table):
        report_models(args, table)


def report_models(args, table):
    is_one = table["model"].nunique() == 1
    if is_one or (args.per_head and not args.csv):
        tqdm.write(tables.layer_table(table))
    stacks = tables.by_stack(table)
    tqdm.write(tables.model_table(stacks))
    if args.plot and is_one:
        figures.plot_model(table, args.plot)
    elif args.plot:
        figures.plot_models(stacks, args.plot)


def report_suite(members, table, trainings, plot):
    scored, without_stack = tables.find_scored(members, table)
    for member, stacks in without_stack.items():
        has = ", ".join(map(repr, stacks))
        tell(f"analyze.py: {member.name}: has no stack {member.stack!r} but {has}, and is left out")
    if scored or trainings:
        tqdm.write(tables.suite_table(scored, trainings))
        if plot:
            figures_suites.plot_suite(scored, trainings, plot)


def report_paper(ours, plot):
    """Tables S2 and S3, Figures 2, S1 and S2: the published scores, corrected, and ours for models that have them."""
    if ours:
        tqdm.write(tables.model_table(ours))
    tqdm.write(tables.printed_tables())
    if plot:
        figures_suites.plot_pretrained(known_models(), ours, plot)
