"""One thread for every test and what it starts: tensors are tiny, and a second thread only waits for its core."""

import os
import signal
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

# A process that ignores a signal, as under nohup, has children that ignore it too; tests send these to children.
for signum in signal.SIGHUP, signal.SIGINT:
    if signal.getsignal(signum) == signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, in order. None is rendered, because that takes seconds: their files are empty."""
    from matplotlib import figure, pyplot as plt

    found = []
    close = plt.close
    monkeypatch.setattr(plt, "close", found.append)
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **_: Path(path).touch())
    yield found
    close("all")
