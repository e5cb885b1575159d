"""
Jigsaw's toxic comments, from Wikipedia's talk pages: 159,571 of them.

    python data/jigsaw/prepare.py                   # a copy, from huggingface.co/datasets/monology/jigsaw
    python data/jigsaw/prepare.py --csv=train.csv   # Kaggle's file, of jigsaw-toxic-comment-classification-challenge

HF_ENDPOINT names another host for the copy.
"""

import functools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tables import read_column

COPY = ("hf://datasets/monology/jigsaw@690f4aa8ee63d1c28d6088859bba26b0c8db7b6e/"
        "data/train-00000-of-00001.parquet")


def main(argv=None):
    cli = writer.command_line("jigsaw", __doc__, val_fraction=0.01)
    cli.add_argument("--csv", help="train.csv of the Kaggle competition, instead of the copy")
    args = cli.parse_args(argv)
    path = args.csv or COPY
    read = functools.partial(read_column, column="comment_text", kind=".csv" if args.csv else ".parquet")
    return writer.write(args, path, [path], read, total=159_571)


if __name__ == "__main__":
    writer.run_script(main)
