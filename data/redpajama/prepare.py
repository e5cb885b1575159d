"""
RedPajama-V2, English: the Common Crawl snapshot 2023-14 of the paper, its head and middle by quality.

    python data/redpajama/prepare.py --max_tokens=1000000000    # all of it is terabytes
"""

import gzip
import io
import json
import random
import sys
from pathlib import Path

import httpx2
from huggingface_hub.utils import http_backoff  # it tries again

sys.path.insert(0, str(Path(__file__).parents[2]))
from data import writer

HOST = "https://data.together.xyz/redpajama-data-v2/v1.0.0"


def fetch(name):
    try:
        reply = http_backoff("GET", f"{HOST}/{name}", timeout=60, headers={"Accept-Encoding": "identity"})
        return reply.raise_for_status().content
    except httpx2.HTTPError as error:  # its message does not always name the host
        raise OSError(f"{HOST}/{name}: {error}") from None


def read(name):
    for line in gzip.open(io.BytesIO(fetch(f"documents/{name}.json.gz"))):
        yield json.loads(line)["raw_content"]


def main(argv=None):
    args = writer.command_line("redpajama", __doc__).parse_args(argv)
    names = fetch("listings/en-2023-14-head_middle.txt").decode().split()
    random.Random(1).shuffle(names)  # so that --max_tokens takes a random part of it
    return writer.write(args, names, read, of_host=True)


if __name__ == "__main__":
    writer.run(main)
