"""score_model where other programs call it: in their contexts, wrapped and sharded. pytest tests/test_contexts.py"""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModel, DeepseekV3Config, LlamaConfig

import analyze
from tests.lives import in_processes

PAGE = Path(__file__).parents[1] / "data/pretrained/README.md"
LOG_SCORES = re.search("```python\n(for row in analyze.*?)```", PAGE.read_text(), re.DOTALL)[1]
LLAMA = LlamaConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
                    num_key_value_heads=1, head_dim=16, vocab_size=50)


@pytest.fixture
def model():
    return AutoModel.from_config(LLAMA)


def symmetries(model):
    """By an explicit sum over the heads of each layer, in float64. All query heads share a key head."""
    found = []
    for layer in model.layers:
        k = layer.self_attn.k_proj.weight.double()  # (D, C)
        m = sum(q.T @ k for q in layer.self_attn.q_proj.weight.double().split(16))  # (C, C)
        found.append((torch.trace(m @ m) / m.square().sum()).item())
    return found


PAIR = torch.randn(2, 96, 8, generator=torch.Generator().manual_seed(0))  # W_q and W_k of few directions
NAMES = [*analyze.SCORES, "symmetry_chance", "directionality_95", "own_heads"]


def scores_of_pair(pair=PAIR):
    layers = analyze.score_layers([pair], heads=(4, 4), per_head=True).table
    return [score.item() for score in analyze.scores(*pair)] + layers[NAMES].iloc[0].tolist()


LATENT = DeepseekV3Config(
    hidden_size=32, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=1, vocab_size=50,
    num_attention_heads=4, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6,
    qk_rope_head_dim=4, v_head_dim=7, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_numbers_are_the_same_inside_of_autocast(dtype, model, tmp_path):
    """Of weights, of models and their files, and of latent attention, whose heads are products."""
    model.save_pretrained(tmp_path)
    latent = analyze.score_model(AutoModel.from_config(LATENT))

    def numbers():
        of_models = [analyze.score_model(source).table.symmetry.tolist() for source in (model, str(tmp_path))]
        return of_models, scores_of_pair(), latent.wqk(0).tolist()

    expected = numbers()
    assert expected[0] == 2 * [pytest.approx(symmetries(model), abs=1e-5)]
    with torch.autocast("cpu", dtype=dtype):
        assert numbers() == expected
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype  # as before


def matmul_precision():
    return [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]


def set_of_gpu(precision):
    torch.backends.cuda.matmul.fp32_precision = precision


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))])
@pytest.mark.parametrize("set_precision, precision", [
    (torch.set_float32_matmul_precision, "medium"), (torch.set_float32_matmul_precision, "high"), (set_of_gpu, "tf32")])
def test_scores_are_the_same_where_products_of_float32_may_be_rounded(set_precision, precision, device, monkeypatch):
    """Once the user has set the newer of PyTorch's two settings, the older one cannot even be read."""
    pair = PAIR.to(device)
    expected, inside = scores_of_pair(pair), []
    measure = analyze.measure_wqk
    monkeypatch.setattr(analyze, "measure_wqk", lambda *factors: inside.append(matmul_precision()) or measure(*factors))
    set_precision(precision)
    before = matmul_precision()
    try:
        assert scores_of_pair(pair) == expected
        assert inside == [["ieee", "ieee"]] and matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_wrapped_model_has_the_scores_of_the_model(model):
    expected = pytest.approx(symmetries(model), abs=1e-5)
    apply_activation_checkpointing(model, check_fn=lambda module: "DecoderLayer" in type(module).__name__)
    for wrapped in model, torch.nn.DataParallel(model), torch.compile(model):
        assert analyze.score_model(wrapped).table.symmetry.tolist() == expected


def log_scores_of_shards():
    """One of two processes, each of which holds a half of every weight."""
    init_process_group("gloo")
    torch.manual_seed(0)  # the same in both
    model = AutoModel.from_config(LLAMA)
    expected = pytest.approx(symmetries(model), abs=1e-5)
    pairs = [(layer.self_attn.q_proj, layer.self_attn.k_proj) for layer in model.layers]
    DistributedDataParallel(model)
    assert analyze.score_layers(pairs, heads=(6, 1)).table.symmetry.tolist() == expected
    for module in *model.layers, model:
        fully_shard(module)
    assert analyze.score_layers(pairs, heads=(6, 1)).table.symmetry.tolist() == expected
    logged = []
    exec(LOG_SCORES, dict(analyze=analyze, model=model, trainer=SimpleNamespace(log=logged.append)))
    assert [scores[f"symmetry/{i}"] for i, scores in enumerate(logged)] == expected
    destroy_process_group()


def test_weights_that_fsdp2_has_sharded_are_gathered():
    for status, said in in_processes(*2 * [(log_scores_of_shards,)]):
        assert status == 0, said
