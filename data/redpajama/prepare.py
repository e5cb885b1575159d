"""
RedPajama-V2, English: the Common Crawl snapshot 2023-14 of the paper, its head and middle by quality.

    python data/redpajama/prepare.py --max_tokens=1000000000    # all of it is terabytes

Shards that the host does not have are skipped, and broken ones are read as far as possible. Each of them is named.
"""

import gzip
import io
import json
import random
import sys
import zlib
from pathlib import Path

from huggingface_hub.utils import http_backoff  # which tries again
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))
from data import writer

HOST = "https://data.together.xyz/redpajama-data-v2/v1.0.0"


def read(url):
    """Yields the documents of a shard."""
    reply = http_backoff("GET", url, timeout=60, headers={"Accept-Encoding": "identity"})
    if reply.status_code in (403, 404):
        tqdm.write(f"missing shard: {url}")
        return
    try:
        for line in gzip.open(io.BytesIO(reply.raise_for_status().content)):
            yield json.loads(line)["raw_content"]
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError):  # the last is of no JSON
        tqdm.write(f"broken shard: {url}")


def main(argv=None):
    args = writer.command_line("redpajama", __doc__).parse_args(argv)
    listing = http_backoff("GET", f"{HOST}/listings/en-2023-14-head_middle.txt", timeout=60).raise_for_status()
    names = listing.text.split()
    random.Random(1).shuffle(names)  # so that --max_tokens takes some of all
    return writer.write(args, [f"{HOST}/documents/{name}.json.gz" for name in names], read)


if __name__ == "__main__":
    writer.run(main)
