"""
The standard library of the Python that runs this script: real code and English, on every machine, without network.

    python data/stdlib/prepare.py                   # a few seconds -> data/stdlib/bytes
    python data/stdlib/prepare.py --tokenizer=gpt2

A document is a .py or .txt file. Packages that pip has installed are left out.
"""

import pathlib
import platform
import sys
import sysconfig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import tokens, writer

ROOT = pathlib.Path(sysconfig.get_path("stdlib"))


def names():
    """The files below ROOT, as paths relative to it."""
    skip = {"site-packages", "dist-packages", "__pycache__"}
    found = []
    for path in ROOT.rglob("*"):
        name = path.relative_to(ROOT)
        if path.suffix in (".py", ".txt") and not skip & set(name.parts):
            found.append(name.as_posix())
    return sorted(found)


def read(name):
    yield (ROOT / name).read_bytes().decode("utf-8", "replace")


def main(argv=None):
    args = writer.command_line("stdlib", __doc__, tokenizer="bytes", val_fraction=0.02).parse_args(argv)
    parts = names()
    files = [ROOT / name for name in parts]
    return writer.write(args, f"Python {platform.python_version()}", parts, read, total=len(parts), files=files)


def make(folder):
    """
    Prepare data/stdlib/bytes or data/stdlib/gpt2 if it is missing. train.py calls this, with any folder. If two
    processes come here at once, the second waits until the first is done.
    """
    is_ours = folder.parent.name == "stdlib" and folder.name in tokens.TOKENIZERS
    if is_ours and not (folder / "meta.json").exists():
        main([f"--tokenizer={folder.name}", f"--out_dir={folder}"])


if __name__ == "__main__":
    writer.run_script(main)
