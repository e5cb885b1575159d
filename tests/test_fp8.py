"""Weights in FP8 are read with their scales: against transformers' own dequantisation, and loops written out here."""

import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from data.pretrained.files import CheckpointError
from data.pretrained.sources import open_checkpoint
from tests.toy import model_folder, stacks_of

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
WHOLE = FP8 | {"weight_block_size": None}
FLOAT_QUANTIZED = {"quant_method": "compressed-tensors", "format": "float-quantized"}


def eight_bits(m: int, n: int) -> torch.Tensor:
    torch.manual_seed(m + n)
    return (100 * torch.randn(m, n)).to(torch.float8_e4m3fn)


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape) / 100 + 0.001


def written_out(weight: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The number in row i and column j has the scale of block i // rows, j // columns."""
    m, n = weight.shape
    scale = scale.reshape(-(-m // rows), -(-n // columns))
    return weight.float() * torch.kron(scale, torch.ones(rows, columns))[:m, :n]


def read_llama(path, quantization: dict, **parts: torch.Tensor) -> torch.Tensor:
    """q_proj (H D, C) of a layer of two heads whose q_proj and k_proj have these parts: weight, weight_scale, ..."""
    config = dict(model_type="llama", num_hidden_layers=1, num_attention_heads=2, head_dim=len(parts["weight"]) // 2,
                  quantization_config=quantization)
    state = {f"layers.0.self_attn.{x}_proj.{part}": tensor for x in "qk" for part, tensor in parts.items()}
    opened = open_checkpoint(model_folder(path, state, config))
    [stack] = stacks_of(opened)
    assert not [name for name in opened.tensors if "scale" in name]
    w_q, w_k = stack.layers[0].heads(next(opened.stream([stack.layers[0].names])))  # (H, C, D) each
    assert torch.equal(w_q, w_k)
    return w_q.mT.flatten(0, 1)


def test_a_scale_for_each_block_gives_what_transformers_makes_of_it(tmp_path):
    weight, scale = eight_bits(256, 384), scales(2, 3).to(torch.bfloat16)
    got = read_llama(tmp_path / "toy", FP8, weight=weight, weight_scale_inv=scale)
    assert torch.equal(got, Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32))


KINDS = (WHOLE, "weight_scale_inv"), (FLOAT_QUANTIZED, "weight_scale"), ({"quant_method": "another"}, "weight_scale")


@pytest.mark.parametrize("quantization, suffix, size, shape, block", [
    (WHOLE, "weight_scale_inv", (130, 140), (2, 2), (128, 128)),  # the last blocks are smaller
    (FP8 | {"weight_block_size": [4, 3]}, "weight_scale_inv", (12, 10), (3, 4), (4, 3)),
    *[(*kind, (12, 10), (), (12, 10)) for kind in KINDS],
    *[(*kind, (12, 10), shape, (1, 10)) for kind in KINDS for shape in ((12,), (12, 1))],
])
def test_a_scale_is_of_the_whole_weight_of_a_row_or_of_a_block(tmp_path, quantization, suffix, size, shape, block):
    weight, scale = eight_bits(*size), scales(*shape)
    got = read_llama(tmp_path / "toy", quantization, weight=weight, **{suffix: scale})
    assert torch.equal(got, written_out(weight, scale, *block))


@pytest.mark.parametrize("parts, words", [
    (dict(weight=eight_bits(256, 256), weight_scale_inv=scales(2, 3)), r"q_proj\.weight' .*128 x 128"),
    (dict(weight=eight_bits(256, 256)), r"q_proj\.weight' is .*float8_e4m3fn, .*scale"),
    (dict(weight=torch.ones(32, 32, dtype=torch.int8), weight_scale=scales(32, 1)), "quantised weights .*weight_scale"),
    *[(dict(weight=eight_bits(12, 10), weight_scale=torch.ones(12, 1).to(kind)), "has a scale of")
      for kind in (torch.uint8, torch.int32)],
])
def test_scales_that_do_not_fit_and_other_ways_to_store_fewer_bits_are_refused(tmp_path, parts, words):
    with pytest.raises(CheckpointError, match=words):
        read_llama(tmp_path / "toy", FP8, **parts)
