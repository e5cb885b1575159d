"""analyze.py in projects with modules of the same names as ours, each in a process. pytest tests/test_projects.py"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import analyze
from tests.test_analyze import bert, symmetry_of
from tests.toy import folder

ROOT = Path(analyze.__file__).parent
CALLBACK = re.search("```python\n(.*?LogScores.*?)```", (ROOT / "data/pretrained/README.md").read_text(), re.DOTALL)[1]
NAMES = ["model", "config", "data", "train", "init", "utils"]
MODULES = [f"{name}.py" for name in NAMES]
PACKAGES = [f"{name}/__init__.py" for name in NAMES]
NANOGPT = ["model.py", "train.py", "config/train_gpt2.py", "data/shakespeare/prepare.py"]  # folders without __init__.py
PROGRAM = """
import importlib, sys
from types import SimpleNamespace
folder, before, after = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
theirs = [importlib.import_module(name) for name in before]
sys.path.append({root!r})
{callback}
logged = []
callback = LogScores(SimpleNamespace(log=logged.append), every=1)
callback.on_step_end(None, SimpleNamespace(global_step=1), None, model=folder)
assert logged[2]["directionality/2"] == score_model(folder).table.directionality[2]
print(*(scores[f"symmetry/{{i}}"] for i, scores in enumerate(logged)))
theirs += [importlib.import_module(name) for name in after]
assert [module.MINE for module in theirs] == before + after
assert all(importlib.import_module(module.MINE) is module for module in theirs)
""".format(root=str(ROOT), callback=CALLBACK)


@pytest.mark.parametrize("files, before, after", [  # files, and which of them are imported before ours, and which after
    (MODULES, [], NAMES), (PACKAGES, NAMES, []), (NANOGPT, ["model"], ["train"])])
def test_scores_and_the_callback_work_in_a_project_with_modules_of_our_names_and_theirs_stay(
        tmp_path, monkeypatch, files, before, after):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    mine = {file: f"MINE = {file.partition('/')[0].removesuffix('.py')!r}\n".encode() for file in files}
    folder(tmp_path, mine | {"transformers.py": b"TrainerCallback = object", "main.py": PROGRAM.encode()}, config=None)
    argv = [sys.executable, "main.py", bert(tmp_path / "scored", 0.5), " ".join(before), " ".join(after)]
    run = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert list(map(float, run.stdout.split())) == pytest.approx(symmetry_of(tmp_path / "scored"), abs=1e-6)


def test_scoring_a_folder_reads_nothing_of_runs_or_of_training(tmp_path):
    """At most 18 files of ours, with 2,700 lines."""
    code = ("import runpy, sys\n"
            "try: runpy.run_path('analyze.py', run_name='__main__')\n"
            "except SystemExit as e: assert e.code == 0, e.code\n"
            "print('LOADED', *{m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)})")
    argv = [sys.executable, "-c", code, "--hf", bert(tmp_path / "m", 0.5)]
    out = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True).stdout
    files = [Path(word) for word in out.partition("LOADED ")[2].split()]
    # An environment of packages may lie in the clone too, as README makes it.
    ours = [file.relative_to(ROOT) for file in files if file.is_relative_to(ROOT) and "site-packages" not in file.parts]
    assert len(ours) + 1 <= 18 and not [file for file in ours if file.parts[:2] == ("data", "results")]
    assert {file.parts[0] for file in ours} == {"data"}
    assert sum(len((ROOT / file).read_text().splitlines()) for file in [*ours, "analyze.py"]) <= 2700
