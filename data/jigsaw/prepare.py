"""
Jigsaw's toxic comments, from Wikipedia's talk pages: 159,571 of them.

    python data/jigsaw/prepare.py                   # a copy, from huggingface.co/datasets/monology/jigsaw
    python data/jigsaw/prepare.py --csv=train.csv   # Kaggle's file, of jigsaw-toxic-comment-classification-challenge

HF_ENDPOINT names another host for the copy.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import split, writer

SOURCE = "monology/jigsaw@690f4aa8ee63d1c28d6088859bba26b0c8db7b6e/data/train-00000-of-00001.parquet"


def read_copy(part, note):
    return writer.read_column("parquet", part, "comment_text")


def read_csv(part, note):
    # keep_default_na=False: a comment that says "NA" or "null" is a text, and not a missing value
    return writer.read_column("csv", part, "comment_text", keep_default_na=False)


def main(argv=None):
    cli = writer.command_line("jigsaw", __doc__, argv, val_fraction=0.01)
    cli.add_argument("--csv", help="train.csv of the Kaggle competition, instead of the copy")
    args = cli.parse_args(argv)
    if args.csv:
        return writer.write(args, args.csv, [args.csv], read_csv, total=159_571, files=split.look_at([args.csv]))
    copy = f"hf://datasets/{SOURCE}"
    return writer.write(args, copy, [copy], read_copy, total=159_571)


if __name__ == "__main__":
    writer.run_script(main)
