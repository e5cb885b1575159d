"""score_model where other programs call it: in their contexts, wrapped, sharded. pytest tests/test_contexts.py"""

import subprocess
import sys

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from transformers import AutoModel

import analyze
from data.pretrained.files import CheckpointError
from tests.test_analyze import LLAMA
from tests.toy import layer_symmetry


@pytest.fixture
def model():
    return AutoModel.from_config(LLAMA)


def symmetries(model):
    found = []
    for layer in model.layers:
        q = layer.self_attn.q_proj.weight.detach().unflatten(0, (-1, 16))  # (H, D, C)
        k = layer.self_attn.k_proj.weight.detach().unflatten(0, (-1, 16))
        found.append(layer_symmetry(q, k))
    return found


@pytest.mark.parametrize("context", [
    lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode, lambda: torch.device("meta")])
def test_scores_are_computed_in_float64_in_whatever_context(tmp_path, model, context):
    model.save_pretrained(tmp_path)
    expected = symmetries(model)
    with context():
        for source in model, str(tmp_path):
            assert list(analyze.score_model(source).table.symmetry) == pytest.approx(expected, abs=1e-9)


def test_autocast_is_off_on_a_gpu_too(monkeypatch, model):
    inside = set()

    def product(*heads, whole=analyze.layer_product):
        inside.add(torch.is_autocast_enabled("cuda"))
        return whole(*heads)

    monkeypatch.setattr(analyze, "layer_product", product)
    torch.set_autocast_enabled("cuda", True)
    try:
        analyze.score_model(model)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert inside == {False}


def test_a_wrapped_model_has_the_scores_of_the_model(model, monkeypatch):
    expected = symmetries(model)
    apply_activation_checkpointing(model, check_fn=lambda module: "DecoderLayer" in type(module).__name__)
    # As TransformerEngine has it.
    monkeypatch.setattr(torch.nn.Linear, "get_extra_state", lambda self: {"scales": [1]})
    for wrapped in model, torch.nn.DataParallel(model), torch.compile(model):
        assert list(analyze.score_model(wrapped).table.symmetry) == pytest.approx(expected)


def test_weights_that_are_tied_are_found_under_all_of_their_names(model):
    model.layers[1].self_attn.k_proj.weight = model.layers[0].self_attn.k_proj.weight
    words = dict(q="layers.{i}.self_attn.q_proj.weight", k="layers.{i}.self_attn.k_proj.weight", heads=(6, 2))
    for layout in {}, words:
        assert list(analyze.score_model(model, **layout).table.symmetry) == pytest.approx(symmetries(model))


SPARSE = torch.nn.Parameter(torch.ones(96, 48).to_sparse())


@pytest.mark.parametrize("change, words", [
    (lambda model: model.to("meta"), "meta device: load them"),
    (lambda model: model.add_module("new", torch.nn.LazyLinear(96)), "is not made yet: run the model once"),
    (lambda model: setattr(model.layers[0].self_attn.q_proj, "weight", SPARSE), "is sparse, use")])
def test_weights_that_are_not_there_as_a_whole_are_refused(model, change, words):
    change(model)
    with pytest.raises(CheckpointError, match=words):
        analyze.score_model(model)


SHARDED = """
import torch
from types import SimpleNamespace
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import fully_shard
from transformers import AutoModel
from tests.test_contexts import LLAMA, symmetries
from tests.test_projects import CALLBACK
exec(CALLBACK)
init_process_group("gloo")
torch.manual_seed(0)
model = AutoModel.from_config(LLAMA)
expected = symmetries(model)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
logged = []
callback = LogScores(SimpleNamespace(log=logged.append), every=1)
callback.on_step_end(None, SimpleNamespace(global_step=1), None, model=model)
found = [scores[f"symmetry/{i}"] for i, scores in enumerate(logged)]
destroy_process_group()
assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-9, (found, expected)
"""


def test_weights_that_fsdp2_has_sharded_are_gathered_by_the_callback():
    two_processes = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no_python"]
    done = subprocess.run([*two_processes, sys.executable, "-c", SHARDED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
