"""
The Python standard library of the interpreter that runs this: real code and English, on every machine, no network.

    python data/stdlib/prepare.py                   # a few seconds -> data/stdlib/bytes
    python data/stdlib/prepare.py --tokenizer=gpt2

A document is a .py or .txt file, without what pip has installed.
"""

import pathlib
import platform
import sys
import sysconfig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import tokens

ROOT = pathlib.Path(sysconfig.get_path("stdlib"))


def read(path, note):
    yield (ROOT / path).read_bytes().decode("utf-8", "replace")


def names():
    skip = {"site-packages", "dist-packages", "__pycache__"}
    files = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.suffix in (".py", ".txt")]
    return sorted(path.as_posix() for path in files if not skip & set(path.parts))


def main(argv=None):
    cli, files = tokens.command_line("stdlib", __doc__, argv, tokenizer="bytes", val_fraction=0.02), names()
    return tokens.write(cli.parse_args(argv), f"Python {platform.python_version()}", files, read, total=len(files))


if __name__ == "__main__":
    tokens.run(main)
