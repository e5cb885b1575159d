"""
The command line of analyze.py: its options, and a check of them before any work begins.
"""

import argparse
import math
from pathlib import Path

import torch

from data.results import figures, records, tables
from data.results.runs import RunError, require, writing

QUESTIONS = ["hf", "paper", "suite", "runs"]  # what is asked for: one of these options is given
MODELS = ["hf", "paper", "suite"]
# Options that change nothing in the answer to some of the questions: those that they go with.
GOES_WITH = dict(
    per_head=MODELS, published=MODELS, gamma=MODELS, matrices=MODELS, device=MODELS,
    revision=["hf"], revisions=["hf"], stride=["hf", "suite"], limit=["hf", "suite"],
    offline=["paper"],
    level=["runs"], baseline=["runs"], arms=["runs"],
)


def parse(argv, description, gamma):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--hf", nargs="+", metavar="NAME",
                      help="names of data/pretrained/models.csv, Hub ids, or local folders")
    what.add_argument("--paper", action="store_true",
                      help="every model of data/pretrained/models.csv; goes on where --csv stands")
    what.add_argument("--suite", metavar="NAME",
                      help="a suite of data/pretrained/suites.csv or of a file of its form; goes on where --csv stands")
    what.add_argument("--runs", nargs="+", metavar="DIR",
                      help="folders of runs, comparisons that --csv wrote, and the files in data/results/published")
    parser.add_argument("--level", type=float, default=2.5,
                        help="loss that tells when a run has left the plateau [nats/token] (%(default)s)")
    parser.add_argument("--baseline", metavar="ARM",
                        help="what other runs are measured against (the plain random start, or the first arm); "
                        "of a tuning, test every arm against it")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="compare only these arms (all)")
    parser.add_argument("--per_head", action="store_true", help="score every head as well")
    parser.add_argument("--csv", metavar="FILE",
                        help="write every score in full precision; with --runs, the comparison itself")
    parser.add_argument("--plot", metavar="FILE",
                        help="several models: Figure 2; one: its layers, heads and a W_qk; runs: Figures 3 and S5, "
                        "and, with _layers in its name, every layer; with trajectories.csv: Figures 3, S3, S4 of both; "
                        "a tuning: loss and first step over the scale of q and k")
    parser.add_argument("--matrices", metavar="FILE", help="draw W_qk of each model's layer of median symmetry, its "
                        "symmetric and its skew part")
    parser.add_argument("--offline", action="store_true", help="with --paper: score nothing new, use what is in --csv")
    parser.add_argument("--published", action="store_true",
                        help="score what the authors' code scored, to audit tables")
    parser.add_argument("--gamma", type=float, default=gamma,
                        help="threshold of directionality, in standard deviations (%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                        help="where to compute (%(default)s)")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("--revisions", metavar="GLOB", help="the branches and tags of each NAME, or the folders in it, "
                        "that match, in the order of their steps; goes on where --csv stands")
    parser.add_argument("--stride", type=int, default=1, metavar="N", help="score every N-th of them")
    parser.add_argument("--limit", type=int, metavar="N", help="score at most N of them, evenly spread")
    args = parser.parse_args(argv)
    # An option that is given its default changes nothing, so it does not count as given.
    args.given = {name for name, value in vars(args).items() if value != parser.get_default(name)}
    return args


def check(args):
    """Refuse now what would otherwise fail after the work is done, and options that would change nothing."""
    require_question(args)
    require(0 <= args.gamma < math.inf, f"--gamma={args.gamma:g}: expected a number, 0 or more")
    require(math.isfinite(args.level), f"--level={args.level:g}: expected a number [nats/token]")
    try:
        torch.zeros(1, device=args.device).item()
    except (RuntimeError, AssertionError) as e:  # torch asserts where it was built without CUDA
        raise RunError(f"--device={args.device} cannot be used here ({str(e).splitlines()[0]:.60}): cpu can") from e
    for flag in "revision", "revisions":
        require(getattr(args, flag) != "", f"--{flag} is empty: give a name")
    require(not (args.revision and args.revisions), "--revision names one, --revisions those that match: give one")
    require(not (args.matrices and args.offline), "--matrices draws what is scored now, and --offline scores nothing: "
                                                  "give one")
    require(not (args.per_head and args.published), "--per_head scores the heads of W_qk, and --published another "
                                                    "matrix, which has none: give one")
    require(args.stride > 0 and (args.limit is None or args.limit > 0), "--stride and --limit: expected 1 or more")
    for flag, path in ("plot", args.plot), ("matrices", args.matrices):
        if path:
            ending = Path(path).suffix[1:] or "png"
            formats = figures.formats()
            require(ending in formats, f"--{flag}={path}: its name ends in none of .{', .'.join(formats)}")
    flags = {}  # a path -> the option that names it
    for flag, path in ("csv", args.csv), ("plot", args.plot), ("matrices", args.matrices):
        if path is not None:
            require_writable(flag, path)
            other = flags.setdefault(Path(path).resolve(), flag)
            require(other == flag, f"--{flag}={path} is the file of --{other} as well: give another name")
    if args.csv and Path(args.csv).exists():
        mine = records.is_comparison(args.csv) if args.runs else tables.holds_scores(args.csv)
        require(mine, f"--csv={args.csv} holds something else, which would be lost: give another name")


def require_question(args):
    """RunError if an option was given that does not go with what is asked for."""
    (question,) = [name for name in QUESTIONS if name in args.given]
    for name, questions in GOES_WITH.items():
        fits = name not in args.given or question in questions
        hint = "; for models of the local cache set HF_HUB_OFFLINE=1" if name == "offline" else ""
        require(fits, f"--{name} goes with {' or '.join(f'--{each}' for each in questions)}{hint}")


def require_writable(flag, path):
    """RunError if no file can be made there."""
    require(path, f"--{flag} is empty: give the name of a file")
    path = Path(path)
    require(not path.is_dir(), f"--{flag}={path} is a folder: give the name of a file")
    trial = path.with_name(path.name + ".tmp")  # under the name that runs.replacing uses
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
