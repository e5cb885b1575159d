"""
tests/exercises/play.html computes what tests/exercises/micro.py does: its loss, all gradients, and five steps of Adam.
pytest tests/test_play.py
"""

import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.exercises import micro

racer = pytest.importorskip("py_mini_racer", reason="needs pip install mini-racer, a JavaScript engine")
PAGE = Path(__file__).parent / "exercises/play.html"
CORE = re.search('<script id="core">(.*?)</script>', PAGE.read_text("utf-8"), re.DOTALL)[1]
SMALL = dict(B=2, T=6, C=4, K=2, V=9, MASK=8)


@pytest.mark.parametrize("causal", [False, True])
def test_the_page_has_the_loss_the_gradients_and_five_steps_of_micro(causal):
    with mock.patch.multiple(micro, **SMALL):
        rng = np.random.default_rng(0)
        w = {name: rng.normal(0, 0.5, x.shape) for name, x in micro.new_weights(rng).items()}
        start = {name: x.ravel().tolist() for name, x in w.items()}
        batches = [micro.get_batch(rng.integers(0, 8, 99), rng) for _ in range(5)]
        loss, g = micro.loss_and_gradients(w, *batches[0], causal)
        mean, square = [{name: np.zeros_like(x) for name, x in w.items()} for _ in range(2)]
        for batch in batches:  # as in micro.main
            for name, x in micro.loss_and_gradients(w, *batch, causal)[1].items():
                mean[name] += 0.1 * (x - mean[name])
                square[name] += 0.01 * (x**2 - square[name])
                w[name] -= micro.LEARNING_RATE * mean[name] / (np.sqrt(square[name]) + 1e-8)
        symmetry = micro.symmetry(w["M"])
    rows = np.arange(2)[:, None] * 6  # the page counts places over the whole batch
    given = [dict(idx=idx.ravel().tolist(), at=(rows + at).ravel().tolist(), targets=targets.ravel().tolist())
             for idx, at, targets in batches]
    core = re.sub(r"const B = .*", f"const [B, T, C, K, V, MASK] = {list(SMALL.values())};", CORE, count=1)
    found = json.loads(racer.MiniRacer().eval(core + f"""
        const arrays = (w, type) => Object.fromEntries(Object.entries(w).map(([name, x]) => [name, type.from(x)]));
        const w = arrays({json.dumps(start)}, Float64Array), adam = new_adam(w), batches = {json.dumps(given)};
        for (const batch of batches) batch.idx = Int32Array.from(batch.idx);
        const first = loss_and_gradients(w, batches[0], {json.dumps(causal)});
        for (const batch of batches) update(w, loss_and_gradients(w, batch, {json.dumps(causal)}).g, adam);
        JSON.stringify({{ loss: first.loss, g: arrays(first.g, Array), w: arrays(w, Array), symmetry: symmetry(w.M) }})"""))
    assert found["loss"] == pytest.approx(loss, rel=1e-12)
    assert found["symmetry"] == pytest.approx(symmetry, rel=1e-9)
    for name in w:
        np.testing.assert_allclose(found["g"][name], g[name].ravel(), rtol=1e-9, atol=1e-14, err_msg=name)
        np.testing.assert_allclose(found["w"][name], w[name].ravel(), rtol=1e-9, atol=1e-12, err_msg=name)
