"""What several test files share."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hub import hub  # noqa: F401, a fixture

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: tensors are tiny, and more threads only wait


def pytest_configure(config):
    mark = "bert_block: needs BERT's block, with its q and its k, which a fork may not have"
    config.addinivalue_line("markers", mark)


@pytest.fixture(autouse=True)
def seed():
    """A test draws the same random numbers whether it runs alone or after others."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, in order. None is rendered, because that takes seconds: their files are empty."""
    from matplotlib.figure import Figure

    found = []

    def savefig(self, path, **_):
        found.append(self)
        Path(path).touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


@pytest.fixture
def analysed(tmp_path, monkeypatch, capsys):
    """
    Runs analyze.py in tmp_path, with --csv=s.csv or without -> status (or the line in which it ended), table (what is
    in s.csv, and "" where a cell is empty), out, err. An s.csv that is there is removed before, unless keep=True.
    """
    import pandas

    import analyze

    monkeypatch.chdir(tmp_path)

    def analysed(*argv, csv=True, keep=False):
        if not keep:
            Path("s.csv").unlink(missing_ok=True)
        with pytest.raises(SystemExit) as e:
            analyze.main([*map(str, argv), *(["--csv=s.csv"] if csv else [])])
        is_written = Path("s.csv").exists() and Path("s.csv").stat().st_size > 0
        table = pandas.read_csv("s.csv").astype(object).fillna("") if is_written else None
        out, err = capsys.readouterr()
        return SimpleNamespace(status=e.value.code, table=table, out=out, err=err)

    return analysed


# Runs of train.py: tests/lives.py is imported where it is needed, because it takes seconds.
@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A few files of the interpreter's own library as bytes: real text, and quickly prepared."""
    from data import writer
    from data.text import prepare

    folder = tmp_path_factory.mktemp("data")
    files = [Path(os.__file__).parent / name for name in ("os.py", "ast.py", "typing.py", "random.py", "heapq.py")]
    flags = ["--tokenizer=bytes", "--val_fraction=0.2", f"--out_dir={folder}"]
    args = writer.command_line("text", "").parse_args(flags)
    writer.write(args, files, lambda path: prepare.read(path, 2800), by_file=True)
    return str(folder)


@pytest.fixture
def cfg(data_dir, tmp_path):
    """A run of twelve steps."""
    from tests.lives import small_run

    return small_run(data_dir, tmp_path / "run")


@pytest.fixture(scope="session")
def finished(data_dir, tmp_path_factory):
    """The same run, uninterrupted. It is not changed: tests copy it."""
    from tests import lives

    cfg = lives.small_run(data_dir, tmp_path_factory.mktemp("run") / "whole")
    lives.run(cfg)
    return cfg
