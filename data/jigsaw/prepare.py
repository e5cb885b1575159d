"""
Jigsaw's toxic comments, from Wikipedia's talk pages: 159,571 of them.

    python data/jigsaw/prepare.py    # a copy, from huggingface.co/datasets/monology/jigsaw

HF_ENDPOINT names another host. For Kaggle's own file use data/text/prepare.py train.csv --column=comment_text.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tables import read_column

COPY = "hf://datasets/monology/jigsaw@690f4aa8ee63d1c28d6088859bba26b0c8db7b6e/data/train-00000-of-00001.parquet"


def main(argv=None):
    cli = writer.command_line("jigsaw", __doc__, val_fraction=0.01)
    args = cli.parse_args(argv)
    return writer.write(cli, args, [COPY], lambda path: read_column(path, "comment_text"), total=159_571)


if __name__ == "__main__":
    writer.run_script(main)
