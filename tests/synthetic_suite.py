r"""
Trains the suite of data/results/synthetic_suite.png: what the public suites promise, small enough to make here.

    python tests/synthetic_suite.py out/suite        # five minutes of one core; pytest does not collect this
    python analyze.py --suite out/suite/suite.csv --csv data/results/synthetic_suite.csv \
        --plot data/results/synthetic_suite.png
    python analyze.py --hf out/suite/encoder-64 out/suite/decoder-64 out/suite/encoder-32 out/suite/decoder-32 \
        --revisions 'step*' --plot data/results/synthetic_training.png

Encoders and decoders of two sizes from one seed, the same text in the same order, and ten checkpoints of each in
folders step0 ... step800; and the larger ones, trained on for the other objective. suite.csv lists them.
"""

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script from anywhere

import train
from data.pretrained.suites import Member
from data.results import runs
from model import to_hf

STEPS = [0, 10, 20, 50, 100, 200, 300, 400, 600, 800]
SIZES = [32, 64]  # n_embd
OTHER = {"encoder": "decoder", "decoder": "encoder"}


class Recorder(train.Trainer):
    """Keeps the checkpoints of STEPS as Hugging Face models."""

    def save(self):
        super().save()
        if self.step in STEPS:
            runs.save_hf(self.out / f"step{self.step}", *to_hf(self.model))


def run(objective, n_embd, folder, *options):
    config = "tiny.py" if objective == "encoder" else "tiny_decoder.py"
    train.main([f"config/{config}", f"--n_embd={n_embd}", f"--out_dir={folder}", f"--max_iters={STEPS[-1]}",
                "--eval_interval=10", "--eval_iters=1", *options])


def main(out):
    train.Trainer = Recorder
    members = []

    def add(kind, objective, n_embd, name, folder, revision="", partner=""):
        causal = str(int(objective == "decoder"))
        member = Member(suite="synthetic", name=name, hub_id=str(folder), revision=revision, stack="", kind=kind,
                        causal=causal, objective="clm" if objective == "decoder" else "mlm 15 %", size=str(n_embd),
                        dose="", partner=partner, source="tests/synthetic_suite.py")
        members.append(member)

    for n_embd in SIZES:
        for objective in "encoder", "decoder":
            name = f"{objective}-{n_embd}"
            run(objective, n_embd, out / name)
            add("pair", objective, n_embd, name, out / name / f"step{STEPS[-1]}")
            add("training", objective, n_embd, f"{name} in training", out / name, "step*")
    for objective in "encoder", "decoder":
        origin = f"{OTHER[objective]}-{SIZES[-1]}"
        name = f"{objective}-from-{origin}"
        run(objective, SIZES[-1], out / name, f"--init_from={out / origin / f'step{STEPS[-1]}'}")
        add("switch", objective, SIZES[-1], name, out / name / f"step{STEPS[-1]}", partner=origin)
    with runs.replacing(out / "suite.csv") as path, open(path, "w", newline="") as f:
        csv.writer(f).writerows([Member._fields, *members])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the suite is written")
    main(Path(parser.parse_args().folder))
