"""Weights in FP8 are read with their scales: against transformers' own dequantisation, and loops written out here."""

import json

import pytest
import torch
from safetensors.torch import save
from transformers import LlamaConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from data.pretrained.files import CheckpointError
from data.pretrained.layouts import find_stacks
from data.pretrained.sources import open_checkpoint
from tests.toy import folder, refusal

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def eight_bits(m: int, n: int) -> torch.Tensor:
    torch.manual_seed(m + n)
    return (100 * torch.randn(m, n)).to(torch.float8_e4m3fn)


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape) / 100 + 0.001


def written_out(weight: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Element by element: that of row i and column j has the scale of block i // rows, j // columns."""
    right = torch.empty(weight.shape)
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            right[i, j] = float(weight[i, j].float()) * float(scale[i // rows, j // columns].float())
    return right


def write(path, weights: dict[str, torch.Tensor], **quantization):
    config = json.dumps({"model_type": "toy", "quantization_config": FP8 | quantization}).encode()
    return folder(path, {"model.safetensors": save(weights)}, config)


def read_one(path, name="q.weight") -> torch.Tensor:
    with open_checkpoint(str(path)) as opened:
        assert list(opened.tensors) == [name]  # scales are not shown
        return next(opened.stream([[name]]))[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_for_each_block_gives_what_transformers_makes_of_it(tmp_path, dtype):
    weight, scale = eight_bits(256, 384), scales(2, 3).to(dtype)
    got = read_one(write(tmp_path / "toy", {"q.weight": weight, "q.weight_scale_inv": scale}))
    assert got.dtype == torch.float32
    assert torch.equal(got, Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32))


@pytest.mark.parametrize("m, n, block", [(130, 300, None), (1, 129, None), (127, 128, None), (12, 10, [4, 3])])
def test_the_last_blocks_may_be_smaller_and_config_json_says_how_large_the_others_are(tmp_path, m, n, block):
    rows, columns = block or (128, 128)
    weight, scale = eight_bits(m, n), scales(-(-m // rows), -(-n // columns))
    toy = write(tmp_path / "toy", {"q.weight": weight, "q.weight_scale_inv": scale}, weight_block_size=block)
    assert torch.equal(read_one(toy), written_out(weight, scale, rows, columns))


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (12,), (12, 1)])
def test_a_scale_is_one_number_or_one_for_each_row(tmp_path, suffix, shape):
    weight, scale = eight_bits(12, 10), scales(*shape)
    got = read_one(write(tmp_path / "toy", {"q.weight": weight, f"q.{suffix}": scale}, weight_block_size=None))
    rows = 1 if scale.numel() == 12 else 12
    assert torch.equal(got, written_out(weight, scale.reshape(-1, 1), rows, 10))


def save_powers_of_two(tensors: dict[str, torch.Tensor]) -> bytes:
    """A file in which the tensors of uint8 are F8_E8M0: a byte b stands for 2^(b - 127). safetensors writes no such."""
    file = save(tensors)
    start = 8 + int.from_bytes(file[:8], "little")  # of the data
    header = file[8:start].replace(b'"U8"', b'"F8_E8M0"')
    return len(header).to_bytes(8, "little") + header + file[start:]


def test_deepseek_v4_is_read_under_the_names_and_with_the_scales_of_its_own_files(tmp_path):
    """Two heads of 4 on a latent of 6, one key head, scales of 4 x 4; a compressor, an indexer and an mtp beside it."""
    config = dict(model_type="deepseek_v4", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                  head_dim=4, q_lora_rank=6, num_nextn_predict_layers=1, compress_ratios=[4],
                  quantization_config=FP8 | {"weight_block_size": [4, 4], "scale_fmt": "ue8m0"})
    shapes = {"wq_a": (6, 10), "wq_b": (8, 6), "wkv": (4, 10), "indexer.wq_b": (8, 6)}
    state, right = {}, {}
    for layer in "layers.0", "mtp.0":
        state[f"{layer}.attn.compressor.wkv.weight"] = torch.ones(8, 10, dtype=torch.bfloat16)
        for name, (m, n) in shapes.items():
            exponents = torch.randint(118, 125, (-(-m // 4), -(-n // 4)), dtype=torch.uint8)
            state[f"{layer}.attn.{name}.weight"], state[f"{layer}.attn.{name}.scale"] = eight_bits(m, n), exponents
            if layer == "layers.0":
                right[name] = written_out(eight_bits(m, n), 2.0 ** (exponents.float() - 127), 4, 4)
    toy = folder(tmp_path / "toy", {"model.safetensors": save_powers_of_two(state)}, json.dumps(config).encode())
    with open_checkpoint(str(toy)) as opened:
        (stack,) = find_stacks(opened.config, {name: info.shape for name, info in opened.tensors.items()})
        (layer,) = stack.layers
        w_q, w_k = layer.heads(next(opened.stream([layer.names])))
    assert (stack.causal, w_q.shape, w_k.shape) == (True, (2, 10, 4), (1, 10, 4))
    x, y = torch.randn(10), torch.randn(10)
    queries = right["wq_b"] @ (right["wq_a"] @ x)  # of both heads
    for head in range(2):
        expected = queries[4 * head : 4 * head + 4] @ (right["wkv"] @ y)
        torch.testing.assert_close(x @ w_q[head] @ w_k[0].T @ y, expected)


@pytest.mark.parametrize("quantization, shape", [
    (FP8, (2, 2)), ({"quant_method": "fp8", "weight_block_size": None}, ()),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, (160, 1))])
def test_a_model_in_fp8_has_the_heads_of_its_dequantised_weights(tmp_path, quantization, shape):
    config = LlamaConfig(hidden_size=160, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4).to_dict()
    weight, scale = eight_bits(160, 160), scales(*shape)
    suffix = "_scale" if "format" in quantization else "_scale_inv"
    state = {}
    for x in "qk":
        name = f"layers.0.self_attn.{x}_proj.weight"
        state |= {name: weight.clone(), name + suffix: scale.clone()}
    toy = folder(tmp_path / "toy", {"model.safetensors": save(state)},
                 json.dumps(config | {"quantization_config": quantization}, default=str).encode())
    with open_checkpoint(str(toy)) as opened:
        (stack,) = find_stacks(opened.config, {name: info.shape for name, info in opened.tensors.items()})
        (layer,) = stack.layers
        heads = layer.heads(next(opened.stream([layer.names])))
    rows, columns = {(2, 2): (128, 128), (): (160, 160), (160, 1): (1, 160)}[shape]
    right = written_out(weight, scale.reshape(shape or (1, 1)), rows, columns)
    for of_heads in heads:
        assert torch.equal(of_heads, right.reshape(4, 40, 160).mT)


def test_scales_that_do_not_fit_are_refused(tmp_path):
    weight = eight_bits(256, 256)
    for shape in (3,), (2, 3), (256, 256), (1, 256):
        pair = {"q.weight": weight, "q.weight_scale_inv": scales(*shape)}
        told = refusal(write(tmp_path / "toy", pair), [["q.weight"]])
        assert "'q.weight'" in told and "128 x 128" in told
    three = {"q.weight": torch.stack([weight, weight]), "q.weight_scale_inv": scales(2, 2)}
    assert "(2, 256, 256)" in refusal(write(tmp_path / "toy", three), [["q.weight"]])
    told = refusal(write(tmp_path / "toy", {"q.weight": weight}), [["q.weight"]])
    assert "'q.weight'" in told and "F8_E4M3" in told and "scale" in told
    pair["q.weight_scale_inv"] = torch.tensor([[1.0, float("nan")], [1.0, 1.0]])
    assert "NaN" in refusal(write(tmp_path / "toy", pair), [["q.weight"]])


def test_other_ways_to_store_fewer_bits_are_refused_by_name(tmp_path):
    """int8 with a scale a row, as of compressed-tensors, and 4 bits in a byte with FP8 scales, as of NVFP4."""
    config = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32).to_dict()
    integers = {"weight": torch.ones(32, 32, dtype=torch.int8), "weight_scale": scales(32, 1)}
    packed = {"weight": torch.ones(32, 16, dtype=torch.uint8), "weight_scale_2": scales(),
              "weight_scale": torch.ones(32, 2).to(torch.float8_e4m3fn)}
    for parts in integers, packed:
        state = {f"layers.0.self_attn.{x}_proj.{part}": tensor.clone()
                 for x in "qk" for part, tensor in parts.items()}
        toy = folder(tmp_path / "toy", {"model.safetensors": save(state)}, json.dumps(config, default=str).encode())
        with open_checkpoint(str(toy)) as opened, pytest.raises(CheckpointError, match="quantised weights .*_scale"):
            find_stacks(opened.config, {name: info.shape for name, info in opened.tensors.items()})
