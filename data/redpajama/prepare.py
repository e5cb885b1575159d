"""
RedPajama-V2, English: the Common Crawl snapshot 2023-14 of the paper, its head and middle by quality.

    python data/redpajama/prepare.py --max_tokens=1000000000    # from data.together.xyz; all of it is terabytes
    python data/redpajama/prepare.py --sample                   # 20 shards of snapshot 2023-06, from huggingface.co

Shards that the host does not have (403, 404) are skipped, and broken shards are read as far as possible. Each of them
is named. --base_url names another host, and HF_ENDPOINT does so for the sample.
"""

import gzip
import io
import json
import pathlib
import sys
import zlib

from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import writer

HOST = "https://data.together.xyz/redpajama-data-v2/v1.0.0"
LISTING = "listings/en-2023-14-head_middle.txt"
SAMPLE = "datasets/togethercomputer/RedPajama-Data-V2/resolve/a6472f517d2cf7541afb695fa2bbe7c8474256e5/sample"


def fetch(url):
    """The reply, after a few tries if needed. (`datasets` would need aiohttp to read from http.)"""
    from huggingface_hub.utils import http_backoff

    return http_backoff("GET", url, timeout=60, headers={"Accept-Encoding": "identity"})


def read(url):
    reply = fetch(url)
    if reply.status_code in (403, 404):
        tqdm.write(f"missing shard: {url}")
        return
    reply.raise_for_status()
    try:
        for line in gzip.open(io.BytesIO(reply.content)):
            yield json.loads(line)["raw_content"]
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError):  # the last is of a line that is no JSON
        tqdm.write(f"broken shard: {url}")


def main(argv=None):
    cli = writer.command_line("redpajama", __doc__)
    cli.add_argument("--sample", action="store_true", help="the 20 shards of the sample")
    cli.add_argument("--base_url", default=HOST, help="(%(default)s)")
    args = cli.parse_args(argv)
    if args.sample:
        from huggingface_hub.constants import ENDPOINT

        source = SAMPLE
        base = f"{ENDPOINT}/{SAMPLE}"
        names = [f"2023-06/{i:04d}/en_{part}" for i in range(10) for part in ("head", "middle")]
    else:
        source = f"{args.base_url}/{LISTING}"
        base = args.base_url
        names = fetch(source).raise_for_status().text.split()
    return writer.write(args, source, [f"{base}/documents/{name}.json.gz" for name in names], read)


if __name__ == "__main__":
    writer.run_script(main)
