"""Who imports whom: data/README.md says what the rooms are for. pytest tests/test_house.py"""

import ast
import sys
from functools import cache

import pytest

from config import ROOT

PATHS = [*ROOT.glob("*.py"), *ROOT.glob("config/**/*.py"), *ROOT.glob("data/**/*.py")]
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}


class WithoutFunctions(ast.NodeTransformer):
    def visit_FunctionDef(self, node):
        return None


@cache
def imports(name, everywhere=True):
    """Returns all that a file may import, such as {"data", "data.tokens"}. everywhere: inside functions, too."""
    tree, found = ast.parse(FILES[name].read_text("utf-8")), set()
    for node in ast.walk(tree if everywhere else WithoutFunctions().visit(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            # from ..x import y, in data/runs/read.py: two levels up is data, so it is data.x, and maybe a file data.x.y
            folder = FILES[name].relative_to(ROOT).parents[node.level - 1].parts if node.level else ()
            module = ".".join([*folder, *filter(None, [node.module])])
            found |= {module, *[f"{module}.{alias.name}" for alias in node.names]}
    return found


def loads(name):
    """Returns what is loaded when a file is imported: its imports outside of functions, and theirs."""
    loaded, files = set(), [name]
    while files:
        new = imports(files.pop(), everywhere=False) - loaded
        loaded |= new
        files += new & FILES.keys()
    return loaded


def within(names, *rooms):
    return {name for name in names if any(f"{name}.".startswith(f"{room}.") for room in rooms)}


def test_the_science_imports_torch_and_nothing_else():
    modules = {name.split(".")[0] for name in imports("analyze", everywhere=False)}
    assert modules - sys.stdlib_module_names == {"torch"}


@pytest.mark.parametrize("script, may", [("train", {"data.runs.write"}), ("analyze", set())])
def test_what_reads_models_and_runs_is_loaded_inside_functions_only(script, may):
    assert within(loads(script) & FILES.keys(), "data.pretrained", "data.runs") == may


@pytest.mark.parametrize("room, others", [
    ("model", ["data", "config", "analyze", "train"]), ("init", ["data", "config", "analyze", "train"]),
    ("data.runs", ["data.pretrained"]), ("data.pretrained", ["data.runs", "config"]),
    ("analyze", ["train", "tests"]), ("config", ["train", "tests"]), ("data", ["train", "tests"]),  # nothing runs up
])
def test_no_file_in_a_room_imports_from_these_others(room, others):
    files = within(FILES, room)
    assert files and not {file for file in files if within(imports(file), *others)}


def test_no_imports_run_in_a_circle():
    assert "data.pretrained.folders" in imports("data.pretrained.checkpoint")  # relative ones are read, too
    assert not {name for name in FILES if name in loads(name)}
