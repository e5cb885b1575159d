"""
PyTorch's own source: the corpus of the benchmark. Everybody who runs this project has it, the same to the bit.

    python data/pytorch/prepare.py                   # a few seconds, no network -> data/pytorch/bytes
    python data/pytorch/prepare.py --tokenizer=gpt2

A document is a .py file of the installed torch, in the order of the paths. requirements.txt pins the version, and the
wheels of that version for Linux, macOS and Windows hold the same text, but for the ends of lines and torch/version.py.
Another version makes another corpus, and says so. data/README.md says what is left out, and why.
"""

import hashlib
import importlib.util
import pathlib
import sys
from importlib.metadata import version

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from data import tokens, writer

VERSION = "2.13.0"
# The SHA-256 of train.bin and of val.bin, as this version makes them.
DIGESTS = {
    "bytes": dict(train="e272b81628293160db7c9789939632de1233ca0f75b7a811cb02722bc3c3e7fc",
                  val="fd18d03591b84571c4e46442a9be33891c54aa450a326284c84a2c030225f6b2"),
    "gpt2": dict(train="cc18e75a39ed5cfd9218decd5564f082c334975eb9f88cd17ff7eaed4b8ff1ef",
                 val="fcad2a5aa990250cc962e9591ee6b9d8fd8396d02f7c2c3e77ea12c2343e024e"),
}
# Written by programs, not by people: 46 files, 1.7 MB, mostly tables of numbers and the same lines again and again.
GENERATED = (
    "_inductor/autoheuristic/artifacts/",
    "_inductor/fx_passes/serialized_patterns/",
    "_numpy/_casting_dicts.py",
    "masked/_docs.py",
    "sparse/_triton_ops_meta.py",
    "testing/_internal/generated/",
)


def find_torch():
    """Returns the folder of the installed torch. find_spec does not import it."""
    return pathlib.Path(importlib.util.find_spec("torch").origin).parent


def read(root):
    """Yields the .py files below root, in the order of their paths, without what teaches nothing."""
    seen = set()  # the digests of the texts so far
    for name in sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")):
        if name == "version.py" or name.startswith(GENERATED):  # version.py is another one in every wheel
            continue
        text = (root / name).read_bytes().replace(b"\r\n", b"\n")  # as the wheel for Windows ends its lines
        digest = hashlib.sha256(text).digest()
        if text and digest not in seen:  # of copies the first stays
            yield text.decode("utf-8", "replace")
            seen.add(digest)


def main(argv=None):
    cli = writer.command_line("pytorch", __doc__, tokenizer="bytes", val_fraction=0.05)
    cli.set_defaults(torch=version("torch").split("+")[0])  # what follows + names the build, as in 2.13.0+cpu
    args = cli.parse_args(argv)
    folder = writer.write(args, [find_torch()], read)
    if tokens.load(folder).meta["sha256"] != DIGESTS[args.tokenizer]:
        print(f"{folder}: not the benchmark's corpus, which is of torch {VERSION} and the options as they are here; "
              f"this one is of torch {args.torch}")
    return folder


def make(folder):
    """Prepares data/pytorch/bytes or data/pytorch/gpt2 if it is missing. train.py calls this, with any folder."""
    is_ours = folder.parent.name == "pytorch" and folder.name in tokens.TOKENIZERS
    if is_ours and not (folder / "meta.json").exists():
        main([f"--tokenizer={folder.name}", f"--out_dir={folder}"])


if __name__ == "__main__":
    writer.run_script(main)
