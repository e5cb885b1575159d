"""The worked forks of tests/forks: each still fits the code, and trains as it says. pytest tests/test_forks.py"""

import re
import shutil
import subprocess
import sys

from config import ROOT

SHORT = ["--max_iters=2", "--eval_interval=2", "--eval_iters=1", "--score_interval=2", "--device=cpu"]


def test_the_worked_forks_fit_the_code_and_their_commands_train(data_dir, tmp_path):
    """Each fits by itself, and then all of them are trained in one run."""
    for name in "config", "data":
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("bytes", "gpt2", "csv", "png"))
    for file in [*ROOT.glob("*.py"), ROOT / "tests/test_train.py"]:
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    paths = sorted(ROOT.glob("tests/forks/*.diff"))
    for words in ["--check"], []:
        for path in paths:
            subprocess.run(["git", "apply", *words, path], cwd=tmp_path, check=True)
    argv = []
    for path in paths:
        argv += re.search("python train.py ([^&\n]*)", path.read_text())[1].split()
    subprocess.run([sys.executable, "train.py", *argv, f"--data_dir={data_dir}", *SHORT], cwd=tmp_path, check=True)
    [scores] = tmp_path.glob("out/*/scores.csv")
    assert "largest_column" in scores.read_text()
