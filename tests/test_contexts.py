"""
score_model where other programs call it: in their contexts, wrapped, sharded, and in projects with modules of the same
names as ours. pytest tests/test_contexts.py
"""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard
from transformers import AutoModel, LlamaConfig

import analyze
from tests.lives import in_processes
from tests.toy import CheckpointError, folder, layer_symmetry

ROOT = Path(analyze.__file__).parent
CALLBACK = re.search("```python\n(.*?LogScores.*?)```", (ROOT / "data/pretrained/README.md").read_text(), re.DOTALL)[1]
LLAMA = LlamaConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
                    num_key_value_heads=2, head_dim=16, vocab_size=50)


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
def test_scores_have_their_digits_in_whatever_context(tmp_path, model, context):
    model.save_pretrained(tmp_path)
    expected = symmetries(model)
    with context():
        for source in model, str(tmp_path):
            assert list(analyze.score_model(source).table.symmetry) == pytest.approx(expected, abs=1e-5)


def test_a_wrapped_model_has_the_scores_of_the_model(model, monkeypatch):
    expected = symmetries(model)
    apply_activation_checkpointing(model, check_fn=lambda module: "DecoderLayer" in type(module).__name__)
    # As TransformerEngine has it.
    monkeypatch.setattr(torch.nn.Linear, "get_extra_state", lambda self: {"scales": [1]})
    for wrapped in model, torch.nn.DataParallel(model), torch.compile(model):
        assert list(analyze.score_model(wrapped).table.symmetry) == pytest.approx(expected, abs=1e-5)


def test_weights_that_are_tied_are_found_under_all_of_their_names(model):
    model.layers[1].self_attn.k_proj.weight = model.layers[0].self_attn.k_proj.weight
    words = dict(q="layers.{i}.self_attn.q_proj.weight", k="layers.{i}.self_attn.k_proj.weight", heads=(6, 2))
    for layout in {}, words:
        assert list(analyze.score_model(model, **layout).table.symmetry) == pytest.approx(symmetries(model), abs=1e-5)


SPARSE = torch.nn.Parameter(torch.ones(96, 48).to_sparse())


@pytest.mark.parametrize("change", [
    lambda model: model.to("meta"), lambda model: model.add_module("new", torch.nn.LazyLinear(96)),
    lambda model: setattr(model.layers[0].self_attn.q_proj, "weight", SPARSE)])
def test_weights_that_are_not_there_as_a_whole_are_refused(model, change):
    change(model)
    with pytest.raises(CheckpointError, match="cannot be read"):
        analyze.score_model(model)


def log_scores_of_shards():
    """One of two processes, each of which holds a half of every weight."""
    init_process_group("gloo")
    torch.manual_seed(0)  # the same in both
    model = AutoModel.from_config(LLAMA)
    expected = symmetries(model)
    for module in *model.layers, model:
        fully_shard(module)
    logged, readme = [], {}
    exec(CALLBACK, readme)
    callback = readme["LogScores"](SimpleNamespace(log=logged.append), every=1)
    callback.on_step_end(None, SimpleNamespace(global_step=1), None, model=model)
    assert [scores[f"symmetry/{i}"] for i, scores in enumerate(logged)] == pytest.approx(expected, abs=1e-5)
    destroy_process_group()


def test_weights_that_fsdp2_has_sharded_are_gathered_by_the_callback():
    for status, said in in_processes(*2 * [(log_scores_of_shards,)]):
        assert status == 0, said


# ---- projects with modules of our names, each in a process -------------------------------------------------------


NAMES = ["model", "config", "data", "train", "init", "utils"]
MODULES = [f"{name}.py" for name in NAMES]
PACKAGES = [f"{name}/__init__.py" for name in NAMES]
NANOGPT = ["model.py", "train.py", "config/train_gpt2.py", "data/shakespeare/prepare.py"]  # folders without __init__.py
PROGRAM = """
import importlib, sys
from types import SimpleNamespace
folder, before, after = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
theirs = [importlib.import_module(name) for name in before]
sys.path.append({root!r})
{callback}
logged = []
callback = LogScores(SimpleNamespace(log=logged.append), every=1)
callback.on_step_end(None, SimpleNamespace(global_step=1), None, model=folder)
assert logged[2]["directionality/2"] == score_model(folder).table.directionality[2]
print(*(scores[f"symmetry/{{i}}"] for i, scores in enumerate(logged)))
theirs += [importlib.import_module(name) for name in after]
assert [module.MINE for module in theirs] == before + after
assert all(importlib.import_module(module.MINE) is module for module in theirs)
""".format(root=str(ROOT), callback=CALLBACK)


@pytest.mark.parametrize("files, before, after", [  # files, and which of them are imported before ours, and which after
    (MODULES, [], NAMES), (PACKAGES, NAMES, []), (NANOGPT, ["model"], ["train"])])
def test_scores_and_the_callback_work_in_a_project_with_modules_of_our_names_and_theirs_stay(
        tmp_path, monkeypatch, model, files, before, after):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    mine = {file: f"MINE = {file.partition('/')[0].removesuffix('.py')!r}\n".encode() for file in files}
    folder(tmp_path, mine | {"transformers.py": b"TrainerCallback = object", "main.py": PROGRAM.encode()}, config=None)
    model.save_pretrained(tmp_path / "scored")
    argv = [sys.executable, "main.py", "scored", " ".join(before), " ".join(after)]
    run = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert list(map(float, run.stdout.split())) == pytest.approx(symmetries(model), abs=1e-5)


def test_scoring_a_folder_imports_nothing_of_runs_or_of_training(tmp_path, model):
    model.save_pretrained(tmp_path)
    argv = [sys.executable, "-X", "importtime", "analyze.py", "--hf", str(tmp_path)]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert run.returncode == 0 and "analyze.data.pretrained.checkpoint" in imported
    assert not imported & {"train", "init", "model", "config", "data.results", "analyze.data.results"}
