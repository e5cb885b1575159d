"""Readers of files that analyze.py does not open, for tests/public.py: {stack: the pairs (W_q, W_k) of its layers}."""

import itertools
import math
import re
import struct
from pathlib import Path

import numpy as np
import torch


def read_torch(path):
    """The layers of torch.nn.TransformerEncoder: in_proj_weight is (3 C, C)."""
    state = torch.load(path, weights_only=True, map_location="cpu")
    layers = [w.chunk(3) for name, w in state.items() if name.endswith("self_attn.in_proj_weight")]
    return {"": [(q.T, k.T) for q, k, _ in layers]}


def read_onnx(path):
    """Every Softmax of a product whose sides are products with weights, (C, C) each or (C, 3 C) for both. By width."""
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(path).graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    made_by = {name: node for node in graph.node if node.op_type != "Constant" for name in node.output}

    def product_before(name):
        """The nearest MatMul on the way back, along what is no constant."""
        while name in made_by and made_by[name].op_type != "MatMul":
            name = next((source for source in made_by[name].input if source in made_by), None)
        return made_by[name].input if name in made_by else []

    stacks, known = {}, []
    for node in graph.node:
        sides = product_before(node.input[0]) if node.op_type == "Softmax" else []
        names = [next((name for name in product_before(side) if name in weights), None) for side in sides]
        if None in names or not names or names in known:  # no attention, or a layer that is there already
            continue
        known.append(names)
        q, k = (torch.tensor(to_array(weights[name])) for name in names)
        C = len(q)
        stacks.setdefault(f"width {C}", []).append((q[:, :C], k[:, C : 2 * C] if names[0] == names[1] else k))
    return stacks


def read_marian(path):
    """Marian's binary file: lengths, names, shapes, data. An intgemm8 W is stored as W^T in int8, then its scale."""
    data = Path(path).read_bytes()
    n, at = struct.unpack_from("<Q", data, 8)[0], 16
    lengths = np.frombuffer(data, "<u8", 4 * n, at).reshape(n, 4).tolist()  # of name, shape and data
    at += 32 * n
    names, weights = [], {}
    for length, *_ in lengths:
        names.append(data[at : at + length - 1].decode())
        at += length
    at += 4 * sum(size for _, _, size, _ in lengths)
    at += 8 + struct.unpack_from("<Q", data, at)[0]  # padding
    for name, (_, _, _, size) in zip(names, lengths):
        if re.search("(self|context)_W[qk]$", name):
            C = math.isqrt(size - 256)  # (C, C), and 256 bytes that begin with the scale
            w = np.frombuffer(data, np.int8, C * C, at).reshape(C, C).T.astype(np.float32)
            weights[name] = torch.tensor(w / np.frombuffer(data, "<f4", 1, at + C * C))
        at += size
    found = {}
    for stack, part in ("encoder", "encoder_l{}_self_W{}"), ("cross-attention", "decoder_l{}_context_W{}"):
        layers = itertools.takewhile(lambda i: part.format(i, "q") in weights, itertools.count(1))
        found[stack] = [tuple(weights[part.format(i, letter)] for letter in "qk") for i in layers]
    return found


READERS = {".pt": read_torch, ".onnx": read_onnx, ".bin": read_marian}
