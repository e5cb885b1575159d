"""
Jigsaw's toxic comments, from Wikipedia's talk pages: 159,571 of them, from a copy on the Hub.

    python data/jigsaw/prepare.py

For Kaggle's own file use data/text/prepare.py train.csv --column=comment_text.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from data import writer
from data.column import read_column

COPY = "hf://datasets/monology/jigsaw@690f4aa8ee63d1c28d6088859bba26b0c8db7b6e/data/train-00000-of-00001.parquet"


def main(argv=None):
    args = writer.command_line("jigsaw", __doc__, val_fraction=0.01).parse_args(argv)
    return writer.write(args, [COPY], lambda path: read_column(path, "comment_text"))


if __name__ == "__main__":
    writer.run(main)
