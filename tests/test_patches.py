"""The patches beside the results: each still applies to this code, and what it adds can be trained."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from tests.lives import argv, run

ROOT = Path(__file__).parents[1]
CSV = ROOT / "data/results/csv"
UNDER_MASK = dict(causal=True, objective="masked")
# What a run has without the patch, and what it has more with it.
KEYS = {"diagonal": (dict(), dict(diagonal=0.8)), "positions": (UNDER_MASK, dict(positions="bias")),
        "doses": (UNDER_MASK, dict(prefix=0.5))}


def test_every_patch_is_tried():
    assert {path.stem for path in CSV.glob("*.patch")} == KEYS.keys()


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@pytest.mark.parametrize("name", KEYS)
def test_a_patched_copy_of_the_code_trains_for_two_steps(cfg, tmp_path, name):
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("*.png", "*.bin", "record", "published")
    for part in "config", "data":
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    for script in ROOT.glob("*.py"):
        shutil.copy(script, copy)
    subprocess.run(["git", "apply", CSV / f"{name}.patch"], cwd=copy, check=True)
    keys, more = KEYS[name]
    words = argv(cfg, out_dir=tmp_path / "patched", max_iters=2, **keys, **more)
    subprocess.run([sys.executable, "train.py", *words], cwd=copy, check=True)
    run(cfg, out_dir=tmp_path / "plain", max_iters=2, **keys)  # without the patch
    patched, plain = [pandas.read_csv(tmp_path / out / "log.csv") for out in ("patched", "plain")]
    assert len(patched) == len(plain) and (patched["val_loss"] != plain["val_loss"]).all()
