"""
Weights that are stored in eight bits (F8_E4M3) beside their scales: weight = scale * stored number.

The scale of NAME.weight is NAME.weight_scale_inv (DeepSeek V3, Qwen3-FP8, MiniMax-M2, and, one number a tensor,
Devstral-Small-2; "inv", but it multiplies: DeepSeek-V3's README_WEIGHTS.md), NAME.weight_scale (compressed-tensors, one
number a tensor or an output row) or NAME.scale (DeepSeek-V4, powers of two in F8_E8M0).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from data.pretrained.files import TensorInfo, require

SCALE_SUFFIXES = ("weight_scale_inv", "weight_scale", "scale")
SCALE_DTYPES = ("F32", "F16", "BF16", "F8_E8M0")
BLOCK = [128, 128]  # if config.json has no weight_block_size


def attach_scales(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The same tensors, but every scale is now the `scale` of its weight, and no tensor of its own."""
    scale_of = {}
    for name, info in tensors.items():
        if info.dtype == "F8_E4M3" and name.endswith(".weight"):
            for suffix in SCALE_SUFFIXES:
                scale = name.removesuffix("weight") + suffix
                if scale in tensors:
                    scale_of[name] = scale
    scales = set(scale_of.values())
    attached = {}
    for name, info in tensors.items():
        if name in scale_of:
            attached[name] = replace(info, scale=tensors[scale_of[name]])
        elif name not in scales:
            attached[name] = info
    return attached


def dequantise(weight: torch.Tensor, scale: torch.Tensor, block: list[int], name: str) -> torch.Tensor:
    """
    weight (m, n) -> float32 (m, n). scale: one number; or (m,) or (m, 1), a number for each row; or a number for each
    block of the weight. The last block in a row or column may be smaller.
    """
    weight, scale = weight.float(), scale.float()
    if scale.numel() == 1:
        return weight * scale.reshape(())
    fits = False
    if weight.ndim == 2:
        m, n = weight.shape
        rows, columns = block
        if scale.shape in ((m,), (m, 1)):
            return weight * scale.reshape(m, 1)
        fits = scale.shape == (math.ceil(m / rows), math.ceil(n / columns))
    require(fits, f"{name!r} {tuple(weight.shape)} has a scale of shape {tuple(scale.shape)}, expected one number, "
                  f"one a row, or one a block of {' x '.join(map(str, block))}")
    scale = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)  # a number for each element, and more
    return weight * scale[:m, :n]
