"""The script that scores models in packages (tests/public.py), on small ones. pytest tests/test_public.py"""

import struct

import numpy as np
import pandas as pd
import pytest
import torch

from data.results import figures_pretrained
from tests import public, public_files


def test_a_layer_of_torch_and_of_onnx_has_the_products_of_its_own_projections(tmp_path):
    """Of the ONNX file, whose last Softmax is of classes, and no attention."""
    onnx = pytest.importorskip("onnx")
    helper, to_tensor = onnx.helper, onnx.numpy_helper.from_array
    mha = torch.nn.MultiheadAttention(8, 1)
    torch.save({"layers.0.self_attn.in_proj_weight": mha.in_proj_weight.detach()}, tmp_path / "m.pt")
    qkv = mha.in_proj_weight.detach().T.contiguous().numpy()
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Split", ["y"], ["q", "k", "v"], axis=-1),
             helper.make_node("Transpose", ["k"], ["kt"]), helper.make_node("MatMul", ["q", "kt"], ["s"]),
             helper.make_node("Div", ["s", "root"], ["t"]), helper.make_node("Softmax", ["t"], ["a"]),
             helper.make_node("MatMul", ["a", "out"], ["b"]), helper.make_node("Softmax", ["b"], ["p"])]
    weights = [to_tensor(w, name) for w, name in ((qkv, "w"), (np.float32(3), "root"), (qkv[:, :2], "out"))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [], weights)), tmp_path / "m.onnx")
    x = torch.eye(8)
    q, k, _ = (x @ mha.in_proj_weight.T).chunk(3, -1)  # of basis vectors
    for found in public_files.read_torch(tmp_path / "m.pt")[""], public_files.read_onnx(tmp_path / "m.onnx")["width 8"]:
        (pair,) = found
        torch.testing.assert_close(pair[0] @ pair[1].T, q @ k.T)


def test_a_file_of_marian_is_read_as_its_header_says(tmp_path):
    names = [f"{part}_W{letter}" for part in ("encoder_l1_self", "decoder_l1_context") for letter in "qk"]
    stored = np.random.default_rng(0).integers(-127, 128, (4, 16, 16), dtype=np.int8)  # (out, in)
    body = [w.tobytes() + struct.pack("<f", 50) + bytes(252) for w in stored]
    head = b"".join(struct.pack("<4Q", len(name) + 1, 0x4101, 2, 512) for name in names)
    head += b"".join(name.encode() + b"\0" for name in names) + struct.pack("<8i", *[16] * 8)
    (tmp_path / "m.bin").write_bytes(struct.pack("<2Q", 1, 4) + head + struct.pack("<Q", 3) + bytes(3) + b"".join(body))
    found = public_files.read_marian(tmp_path / "m.bin")
    for stack, (q, k) in ("encoder", stored[:2]), ("cross-attention", stored[2:]):
        ((w_q, w_k),) = found[stack]
        np.testing.assert_allclose(w_q @ w_k.T, q.T.astype(float) @ k / 2500, rtol=1e-5, atol=1e-3)


def test_heads_that_are_symmetric_are_positive_or_negative_and_share_as_much_as_they_overlap():
    w = torch.randn(3, 16, 4)
    assert public.of_heads(w, w) == pytest.approx((1, 1, 1))
    assert public.of_heads(w, -w) == pytest.approx((1, 1, 0), abs=1e-6)
    q, k = torch.randn(2, 2, 16, 4).double()
    a, b = q @ k.mT
    expected = (a @ b + b @ a).trace() / (2 * a * b).sum()
    assert public.of_heads(q, k)[1] == pytest.approx(expected.item())


def test_three_of_thirteen_that_are_lowest_have_p_of_2_in_286_and_the_picture_has_every_stack(drawn, tmp_path, capsys):
    assert public.exact_p(range(10, 20), [1, 2, 3]) == pytest.approx(2 / 286)
    table = pd.read_csv(public.CSV)
    figures_pretrained.plot_public(table, tmp_path / "p.png")
    for axis, score in zip(drawn[0].axes, ("symmetry", "directionality")):
        dots = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
        assert sorted(dots) == sorted(table[score])
    assert not public.find_models(public.SOURCES[0], tmp_path) and "is skipped" in capsys.readouterr().out
