"""micro.py and positions.py: the gradients are right, and what they print comes in the order that README.md tells."""

import re
import socket
from pathlib import Path

import numpy as np
import pytest

from tests.exercises import micro, positions

HERE = Path(micro.__file__).parent
PAGE = (HERE / "README.md").read_text()
CHANGES = re.findall(r"```diff\n(.*?)```", PAGE, re.S)  # no positions, no [MASK]


@pytest.mark.parametrize("causal", [False, True])
def test_every_entry_of_every_gradient_of_micro_equals_a_finite_difference(monkeypatch, causal):
    for name, value in dict(B=2, T=6, C=4, K=2, V=9, MASK=8).items():
        monkeypatch.setattr(micro, name, value)
    rng = np.random.default_rng(0)
    w = {name: rng.normal(0, 0.5, x.shape) for name, x in micro.new_weights(rng).items()}  # float64
    batch = micro.get_batch(rng.integers(0, 8, 99), rng)
    _, gradients = micro.loss_and_gradients(w, *batch, causal)
    assert gradients.keys() == w.keys()
    for name, x in w.items():
        for place in np.ndindex(x.shape):
            kept, losses = x[place], []
            for change in 1e-6, -1e-6:
                x[place] = kept + change
                losses.append(micro.loss_and_gradients(w, *batch, causal)[0])
            x[place] = kept
            assert gradients[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7), name


def test_micro_needs_numpy_alone_and_reads_its_text_from_this_interpreter(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    text = micro.read_text()
    assert len(text) > 1e6 and b"def " in bytes(text[:10_000].astype(np.uint8)) and text.max() < micro.MASK
    imports = re.findall(r"^(?:import|from) (\w+)", (HERE / "micro.py").read_text(), re.M)
    assert imports == ["os", "sys", "pathlib", "numpy"]


def last_symmetry(capsys, *argv, change=""):
    """Of 100 steps of micro.py, in which a student makes a change of README.md."""
    source = (HERE / "micro.py").read_text()
    for old, new in re.findall(r"^-(.*)\n\+(.*)\n", change, re.M):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    changed = dict(__name__="changed")
    exec(compile(source, "micro.py", "exec"), changed)
    changed["STEPS"] = 100
    changed["main"](argv)
    return float(capsys.readouterr().out.split()[-1])


def test_micro_becomes_symmetric_with_positions_and_both_sides_with_or_without_masks(capsys):
    no_positions, no_mask = CHANGES
    encoder = last_symmetry(capsys)
    assert encoder > 0.4 and last_symmetry(capsys, change=no_mask) > 0.4
    assert last_symmetry(capsys, "causal") < 0.25
    assert last_symmetry(capsys, change=no_positions) < 0.15


def test_a_head_that_sees_positions_only_prints_what_the_page_shows(capsys):
    positions.main()
    shown = re.findall(r"symmetry of P ([\d.]+)", PAGE)
    printed = re.findall(r"symmetry of P ([\d.]+)", capsys.readouterr().out)
    assert list(map(float, printed)) == pytest.approx(list(map(float, shown)), abs=0.011)
    assert float(printed[0]) > 0.8 and float(printed[1]) == 0
