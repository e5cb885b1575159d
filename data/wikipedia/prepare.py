"""
English Wikipedia, 6.4 million articles, 20 GB of text.

    python data/wikipedia/prepare.py                        # all of it: 12 GB are read, not kept
    python data/wikipedia/prepare.py --max_tokens=100000000
    python data/wikipedia/prepare.py --snapshot=20220301.en   # the paper's snapshot
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from data import writer
from data.column import read_column

SNAPSHOTS = {  # name -> where its files are
    "20231101.en": "wikimedia/wikipedia@b04c8d1ceb2f5cd4588862100d08de323dccfbaa",
    "20220301.en": "legacy-datasets/wikipedia@97a0b052c326b45fb68593a14972d9eed884cd17/data",
}


def main(argv=None):
    cli = writer.command_line("wikipedia", __doc__)
    cli.add_argument("--snapshot", choices=SNAPSHOTS, default="20231101.en", help="(%(default)s)")
    args = cli.parse_args(argv)
    folder = f"hf://datasets/{SNAPSHOTS[args.snapshot]}/{args.snapshot}"
    files = [f"{folder}/train-{i:05d}-of-00041.parquet" for i in range(41)]
    random.Random(1).shuffle(files)  # so that --max_tokens does not take the oldest articles
    return writer.write(args, files, lambda path: read_column(path, "text"), of_host=True)


if __name__ == "__main__":
    writer.run(main)
