"""analyze.py in projects with modules of the same names as ours, each in a process. pytest tests/test_projects.py"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import analyze
from tests.test_analyze import bert, symmetry_of

ROOT = Path(analyze.__file__).parent
CALLBACK = re.search("```python\n(.*?LogScores.*?)```", (ROOT / "data/pretrained/README.md").read_text(), re.DOTALL)[1]
NAMES = ["model", "config", "data", "train", "init", "utils"]
MODULES = [f"{name}.py" for name in NAMES]
PACKAGES = [f"{name}/__init__.py" for name in NAMES]
NANOGPT = ["model.py", "train.py", "config/train_gpt2.py", "data/shakespeare/prepare.py"]  # folders without __init__.py
KINDS = {  # files, and which of their modules are imported before ours, and which after
    "modules, before": (MODULES, NAMES, []), "modules, after": (MODULES, [], NAMES),
    "packages, before": (PACKAGES, NAMES, []), "packages, after": (PACKAGES, [], NAMES),
    "nanoGPT": (NANOGPT, ["model"], ["train"]),
}
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


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """All of them at once, because each takes seconds to import torch."""
    started = {}
    for kind, (files, before, after) in KINDS.items():
        project = tmp_path_factory.mktemp("project")
        for file in [*files, "transformers.py"]:
            (project / file).parent.mkdir(parents=True, exist_ok=True)
            name = file.partition("/")[0].removesuffix(".py")
            (project / file).write_text(f"MINE = {name!r}\nTrainerCallback = object\n")
        (project / "main.py").write_text(PROGRAM)
        argv = [sys.executable, "main.py", bert(project / "scored", 0.5), " ".join(before), " ".join(after)]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started[kind] = project / "scored", subprocess.Popen(argv, cwd=project, env=env, **pipes)
    yield started
    for _, process in started.values():
        process.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_the_callback_work_in_a_project_with_modules_of_our_names_and_theirs_stay(processes, kind):
    scored, process = processes[kind]
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert list(map(float, out.split())) == pytest.approx(symmetry_of(scored), abs=1e-6)


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
