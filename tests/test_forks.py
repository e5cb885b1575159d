"""The worked forks of tests/forks: each still fits the code, and trains as it says. pytest tests/test_forks.py"""

import re
import shutil
import subprocess
import sys

import pytest

from config import ROOT

SHORT = ["--max_iters=2", "--eval_interval=2", "--eval_iters=1", "--score_interval=2", "--device=cpu"]


@pytest.mark.parametrize("path", sorted(ROOT.glob("tests/forks/*.diff")), ids=lambda path: path.stem)
def test_a_worked_fork_fits_the_code_and_its_command_trains(path, data_dir, tmp_path):
    for name in "config", "data":
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("bytes", "gpt2", "csv", "png"))
    for file in [*ROOT.glob("*.py"), ROOT / "tests/test_train.py"]:
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    subprocess.run(["git", "apply", path], cwd=tmp_path, check=True)
    words = re.search("python train.py ([^&\n]*)", path.read_text())[1].split()
    subprocess.run([sys.executable, "train.py", *words, f"--data_dir={data_dir}", *SHORT], cwd=tmp_path, check=True)
    [scores] = tmp_path.glob("out/*/scores.csv")
    assert ("largest_column" in scores.read_text()) == (path.stem == "score")
