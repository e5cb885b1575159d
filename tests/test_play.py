"""tests/exercises/play.html computes what micro.py does. Its page was tried by hand, in Chromium and in Firefox."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import analyze
from tests.exercises import micro

PAGE = (Path(micro.__file__).parent / "play.html").read_text("utf-8")
CORE, DRAWING = re.findall("<script.*?>(.*?)</script>", PAGE, re.DOTALL)
STEPS = 5


def run(code):
    """Returns what an expression in JavaScript gives, once the page's core is there."""
    racer = pytest.importorskip("py_mini_racer", reason="needs JavaScript: pip install mini-racer")
    with racer.mini_racer() as engine:  # if it were not closed, its thread would keep Python from ending
        engine.eval(CORE)
        return json.loads(engine.eval(f"JSON.stringify({code})"))


@pytest.mark.parametrize("causal", [False, True])
def test_the_page_has_the_loss_and_the_gradients_of_micro_and_the_same_weights_after_five_steps(causal, monkeypatch):
    monkeypatch.setattr(micro, "B", 3)
    rng = np.random.default_rng(0)
    text = rng.integers(0, 256, 999)
    batches = [micro.get_batch(text, rng) for _ in range(STEPS)]
    w = {name: x.astype(float) for name, x in micro.new_weights(rng).items()}
    w["M"] *= 20  # so that attention is not nearly even

    # the page's part: at is counted through all sequences, and arrays are flat
    first = np.arange(3)[:, None] * micro.T
    given = [dict(idx=idx.ravel().tolist(), at=(first + at).ravel().tolist(), targets=targets.ravel().tolist())
             for idx, at, targets in batches]
    flat = {name: x.ravel().tolist() for name, x in w.items()}
    found = run(f"""(() => {{
        const arrays = (w, type) => Object.fromEntries(Object.entries(w).map(([name, x]) => [name, type.from(x)]));
        const w = arrays({json.dumps(flat)}, Float64Array), mean = {{}}, square = {{}}, steps = [];
        for (const batch of {json.dumps(given)}) {{
            const {{ loss, g }} = loss_and_gradients(w, batch, {json.dumps(causal)});
            steps.push({{ loss, g: arrays(g, Array) }});
            update(w, g, mean, square);
        }}
        return {{ steps, w: arrays(w, Array) }};
    }})()""")

    # micro.py's part, with Adam as in micro.main
    mean = {name: np.zeros_like(x) for name, x in w.items()}
    square = {name: np.zeros_like(x) for name, x in w.items()}
    for batch, step in zip(batches, found["steps"], strict=True):
        loss, g = micro.loss_and_gradients(w, *batch, causal)
        assert step["loss"] == pytest.approx(loss, rel=1e-9)
        for name in w:
            np.testing.assert_allclose(step["g"][name], g[name].ravel(), rtol=1e-9, atol=1e-12, err_msg=name)
            mean[name] += 0.1 * (g[name] - mean[name])
            square[name] += 0.01 * (g[name] ** 2 - square[name])
            w[name] -= micro.LEARNING_RATE * mean[name] / (np.sqrt(square[name]) + 1e-8)
    for name in w:
        np.testing.assert_allclose(found["w"][name], w[name].ravel(), rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_page_starts_as_micro_does_and_masks_as_many_different_places():
    assert run("[T, C, K, V, MASK, LEARNING_RATE]") == [getattr(micro, name) for name in
                                                        ("T", "C", "K", "V", "MASK", "LEARNING_RATE")]
    stds = run("Object.entries(new_weights(random_numbers(1))).map(([name, x]) => [name, x.length, size(x)])")
    expected = micro.new_weights(np.random.default_rng(0))
    assert {name: (n, pytest.approx((s / n) ** 0.5, rel=0.06)) for name, n, s in stds} == {
        name: (x.size, x.std()) for name, x in expected.items()}

    # a text that counts up tells where each sequence begins
    batch = run("get_batch(Uint8Array.from({ length: 200 }, (_, i) => i), random_numbers(1))")
    idx = np.array(list(batch["idx"].values())).reshape(-1, micro.T)
    at, targets = [np.array(batch[name]).reshape(len(idx), micro.K) for name in ("at", "targets")]
    at -= np.arange(len(idx))[:, None] * micro.T
    seen = idx != micro.MASK
    starts = (idx - np.arange(micro.T))[seen].reshape(len(idx), micro.T - micro.K)  # K of each sequence are masked
    assert (starts == starts[:, :1]).all() and len(np.unique(starts)) > 16
    assert (targets == starts[:, :1] + at).all() and not np.take_along_axis(seen, at, 1).any()


def test_the_scores_that_the_page_draws_are_those_of_analyze_and_its_bars_are_means_of_diagonals():
    rng = np.random.default_rng(0)
    m, p = rng.normal(size=(64, 64)) * np.linspace(1, 9, 64), rng.normal(size=(32, 64))
    code = f"M = {json.dumps(m.ravel().tolist())}, p = {json.dumps(p.ravel().tolist())}"
    found = run(f"""(({code}) => {{
        const w = {{ M: Float64Array.from(M), pos_emb: Float64Array.from(p) }};
        return [symmetry(w.M), chance(w.M), ...kernel(between_positions(w))];
    }})()""")
    product = analyze.multiply(torch.tensor(m), torch.eye(64, dtype=torch.float64))
    expected = [analyze.symmetry(torch.tensor(m)).item(), product.mean_symmetry().item()]
    assert found[:2] == pytest.approx(expected, rel=1e-6)  # analyze.py takes chance in float32
    diagonals = [(p @ m @ p.T).diagonal(d).mean() for d in range(-31, 32)]
    assert found[2:] == pytest.approx(diagonals, rel=1e-9)


def test_the_page_is_one_file_that_needs_no_network_and_its_program_can_be_read():
    assert not re.search(r"https?:|\bsrc=|\bhref=|url\(|import\b|fetch\(", PAGE)
    assert len(PAGE.splitlines()) <= 400
    used = set(re.findall(r'(?:\$|canvas|draw_curves)\("(\w+)"', DRAWING))
    assert used == set(re.findall(r'\bid="(\w+)"', PAGE)) - {"core"}
    assert run(f"typeof new Function({json.dumps(DRAWING)})") == "function"
