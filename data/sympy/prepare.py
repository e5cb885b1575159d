"""
SymPy's own source: the corpus of the benchmark. Everybody who runs this project has it, the same to the bit, because
torch needs sympy, and requirements.txt pins its version. A document is a .py file, in the order of the paths.

    python data/sympy/prepare.py    # a few seconds, no network -> data/sympy/bytes
"""

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from data import tokens, writer

# The SHA-256 of both files, made from sympy 1.14.0.
DIGESTS = {
    "bytes": dict(train="cc38023209c67acfb9a0f0c277af969abc690166a68503014ff2963dfe09b862",
                  val="bd48c5d4c6739c8ae6517a14eae3ec582a892ae98e7a5fa3db4f64f0b39662d2"),
    "gpt2": dict(train="9f2b81e9ff09b96375aa9fca6ab9dc1a2bf188e6a82d0dd6c13e70322a36f57b",
                 val="864229814e70978118efa8b99d33ab15c8f2cfa696445987b2bb1d7842bec384"),
}
# Written by programs, not by people, or mostly digits: 30 files, 1.0 MB.
GENERATED = tuple("""assumptions/ask_generated.py core/assumptions_generated.py core/tests/test_complex.py
    ntheory/tests/test_bbp_pi.py parsing/autolev/_antlr/ parsing/autolev/test-examples/ parsing/latex/_antlr/
    polys/benchmarks/bench_solvers.py polys/numberfields/resolvent_lookup.py polys/polyquinticconst.py""".split())
SYMPY = Path(importlib.util.find_spec("sympy").origin).parent  # find_spec does not import it


def read(root):
    """Returns the .py files below root, in the order of their paths, without empty files, and without second copies."""
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    texts = [(root / name).read_text("utf-8", "replace") for name in names if not name.startswith(GENERATED)]
    return filter(None, dict.fromkeys(texts))


def main(argv=None):
    cli = writer.command_line("sympy", __doc__, tokenizer="bytes", val_fraction=0.05, sympy=version("sympy"))
    args = cli.parse_args(argv)
    folder = writer.write(args, [SYMPY], read)
    if tokens.load(folder).meta["sha256"] != DIGESTS.get(args.tokenizer):
        print(f"{folder}: not the benchmark's corpus: it is of sympy {args.sympy}, expected that of requirements.txt, "
              "or it is of other options")
    return folder


def make(folder):
    """Prepares data/sympy/bytes or data/sympy/gpt2. train.py calls this, with any folder that is missing."""
    if folder.parent.name == "sympy" and folder.name in tokens.TOKENIZERS:
        main([f"--tokenizer={folder.name}", f"--out_dir={folder}"])


if __name__ == "__main__":
    writer.run(main)
