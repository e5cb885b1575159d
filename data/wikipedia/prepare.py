"""
English Wikipedia, 6.4 million articles, 20 GB of text.

    python data/wikipedia/prepare.py                        # all of it: 12 GB are read, not kept
    python data/wikipedia/prepare.py --max_tokens=100000000
    python data/wikipedia/prepare.py --snapshot=20220301.en   # the paper's snapshot

wikimedia/wikipedia, which is still maintained, does not have the paper's snapshot. legacy-datasets/wikipedia has it as
parquet files, which are read directly. HF_ENDPOINT names another host than huggingface.co.
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer
from data.tables import read_column

FILES = 41  # of each snapshot
SNAPSHOTS = {  # name -> where its files are, and how many articles it has
    "20231101.en": ("wikimedia/wikipedia@b04c8d1ceb2f5cd4588862100d08de323dccfbaa", 6_407_814),
    "20220301.en": ("legacy-datasets/wikipedia@97a0b052c326b45fb68593a14972d9eed884cd17/data", 6_458_670),
}


def main(argv=None):
    cli = writer.command_line("wikipedia", __doc__)
    cli.add_argument("--snapshot", choices=SNAPSHOTS, default="20231101.en", help="(%(default)s)")
    args = cli.parse_args(argv)
    where, n_articles = SNAPSHOTS[args.snapshot]
    files = [f"hf://datasets/{where}/{args.snapshot}/train-{i:05d}-of-{FILES:05d}.parquet" for i in range(FILES)]
    random.Random(1).shuffle(files)  # so that --max_tokens does not take the oldest articles
    return writer.write(cli, args, files, lambda path: read_column(path, "text"), total=n_articles)


if __name__ == "__main__":
    writer.run_script(main)
