"""Runs that begin with the last weights of another run. pytest tests/test_parent.py"""

import json
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config import ConfigError, load
from config.plan import main
from data import atomic
from data.runs.kept import pool
from tests.lives import TRAIN_STEP, checkpoint, in_processes, killed, log, make_trainer, refusal, result, resume, run
from tests.test_runs import FALL, printed, write_run


def test_a_child_begins_with_the_last_weights_of_its_parent_and_with_nothing_else_of_it(finished, cfg):
    child = make_trainer(cfg, parent=finished.out_dir, seed=5, causal=True, objective="masked")
    last = checkpoint(finished)["model"]
    assert all(torch.equal(weight, last[name]) for name, weight in child.model.state_dict().items())
    assert child.step == 0 and not child.optimizer.state and child.model.cfg.causal
    run(cfg, parent=finished.out_dir, seed=5)
    assert log(cfg).val_loss[0] == log(finished).val_loss.iloc[-1]  # all runs are validated on the same batches
    assert log(cfg).learning_rate[1] == log(finished).learning_rate[1]  # a schedule of its own


def test_a_child_that_was_killed_goes_on_bit_for_bit_also_if_its_parent_was_moved(finished, cfg, tmp_path):
    cfg = replace(cfg, parent=finished.out_dir, seed=5)
    whole = replace(cfg, out_dir=f"{cfg.out_dir}_whole")
    run(whole)
    ((status, said),) = in_processes((killed, cfg, TRAIN_STEP, 7))
    assert status == -signal.SIGKILL, said
    shutil.copytree(finished.out_dir, tmp_path / "moved")
    resume(cfg, parent=str(tmp_path / "moved"))
    assert result(cfg) == result(whole)
    run_json = json.loads(Path(cfg.out_dir, "run.json").read_text())
    assert run_json["config"]["parent"] == str(tmp_path / "moved") and len(run_json["parent_sha256"]) == 64
    assert run_json["parent_config"]["seed"] == finished.seed and run_json["parent_config"]["max_iters"] == 12
    assert "parent_sha256 = " in refusal(cfg, init_from="resume", parent="")


@pytest.mark.parametrize("change, is_said", [("deleted", False), ("trained again", True), ("as it was", False)])
def test_a_child_goes_on_from_its_own_checkpoint_whatever_its_parent_is_by_now(finished, cfg, tmp_path, capsys, change,
                                                                               is_said):
    parent = tmp_path / "parent"
    shutil.copytree(finished.out_dir, parent)
    cfg = replace(cfg, parent=str(parent), seed=5)
    whole = replace(cfg, out_dir=f"{cfg.out_dir}_whole")
    run(whole)
    in_processes((killed, cfg, TRAIN_STEP, 7))
    if change != "as it was":
        shutil.rmtree(parent)
    if change == "trained again":
        run(replace(cfg, parent="", out_dir=str(parent), seed=8, max_iters=2))
    resume(cfg)
    assert result(cfg) == result(whole)
    assert ("is another run by now: this one goes on from its own ckpt.pt" in capsys.readouterr().out) == is_said


def test_a_parent_that_is_being_made_longer_is_not_finished(finished, cfg):
    with atomic.locked(finished.out_dir):
        assert "is being trained now: let it finish first" in refusal(cfg, parent=finished.out_dir)


def test_what_is_no_parent_is_refused(finished, cfg, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(finished.out_dir, half)
    state = checkpoint(finished)
    torch.save(state | dict(step=8), half / "ckpt.pt")
    for keys, words in [(dict(parent=str(half)), "at step 8 of 12"), (dict(parent=str(tmp_path)), "there is no"),
                        (dict(parent=finished.out_dir, n_layer=1), "has n_layer = 2, not 1"),
                        (dict(parent=finished.out_dir, positions="rotary"), "has positions = 'learned'"),
                        (dict(parent=finished.out_dir, n_head=4), "has n_head = 2")]:  # of the same shapes
        assert words in refusal(cfg, **keys)
    assert not Path(cfg.out_dir, "log.csv").exists()


def test_a_plan_prints_all_parents_before_the_first_child_and_names_their_folders(tmp_path, capsys):
    path = tmp_path / "family.py"
    arms = dict(grandchild=dict(parent="child"), child=dict(parent="old", causal=True), old={})
    text = f"base = 'config/tiny.py'\nseeds = [1, 2]\narms = {arms}\n"
    path.write_text(text)
    main([str(path), "--max_iters=40"])
    cfgs = [load(shlex.split(line)) for line in capsys.readouterr().out.splitlines()]
    folder = "out/plans/family_max_iters=40"
    assert [(cfg.out_dir, cfg.parent) for cfg in cfgs] == [
        (f"{folder}/{arm}-{seed}", parent and f"{folder}/{parent}-{seed}")
        for arm, parent in (("old", ""), ("child", "old"), ("grandchild", "child")) for seed in (1, 2)]
    for wrong, words in (("['parent'] = 'child'", "expected another one of"), ("['parent'] = 'no'", "expected another"),
                         ("['seed'] = 3", "old has seed, which the plan itself sets")):
        path.write_text(f"{text}arms['old']{wrong}")
        with pytest.raises(SystemExit, match=words):
            main([str(path)])


def test_runs_whose_parents_are_of_two_settings_are_not_one_setting(tmp_path):
    first = write_run(tmp_path / "child-1", parent="out/both-1")
    again = write_run(tmp_path / "child-2", seed=2, parent="elsewhere/both-2")
    other = write_run(tmp_path / "child-3", seed=3, parent="out/causal-3")
    assert list(pool([first, again])["child"].seeds()) == [1, 2]
    with pytest.raises(ConfigError, match="two runs called child differ in parent"):
        pool([first, other])


def of_parent(folder, parent_seed, learning_rate=6e-3, **keys):
    """A run of test_runs whose parent had this seed and rate, and a folder called `both`."""
    write_run(folder, parent=f"out/both-{parent_seed}", **keys)
    run_json = json.loads((folder / "run.json").read_text())
    parent = run_json["config"] | dict(parent="", seed=parent_seed, learning_rate=learning_rate)
    (folder / "run.json").write_text(json.dumps(run_json | dict(parent_config=parent)))
    return folder


def test_parents_of_two_settings_in_folders_of_one_name_are_told_apart(tmp_path):
    first = of_parent(tmp_path / "u/a-1", 1)
    again = of_parent(tmp_path / "u/a-2", 2, seed=2)
    other = of_parent(tmp_path / "v/a-3", 3, learning_rate=0.5, seed=3)
    assert list(pool([first, again])["a"].seeds()) == [1, 2]
    with pytest.raises(ConfigError, match="two runs called a differ in parent_config"):
        pool([first, other])


@pytest.mark.parametrize("is_one", [True, False])
def test_children_of_one_parent_are_no_pairs(tmp_path, is_one):
    folders = []
    for seed in range(1, 8):
        parent_seed = 1 if is_one else seed
        folders.append(of_parent(tmp_path / f"a-{seed}", parent_seed, seed=seed))
        folders.append(of_parent(tmp_path / f"b-{seed}", parent_seed, seed=seed, loss=FALL + 0.1, causal=True,
                                 objective="masked"))
    plan = tmp_path / "plan.py"
    arms = dict(both={}, a=dict(parent="both", n_head=1, max_iters=1000), b=dict(parent="both", causal=True, n_head=1,
                                                                                objective="masked", max_iters=1000))
    plan.write_text(f"base = 'config/tiny.py'\nseeds = range(1, 8)\narms = {arms}\n"
                    "planned = [('symmetry', 'b', '>', 'a')]")
    *_, test = [" ".join(line) for line in printed(*folders, "--plan", plan) if ">" in line]
    table = " ".join(printed(*folders, "--measure", "symmetry")[2])
    if is_one:
        assert test.endswith("(7 runs of 1 parent) 1 not tested") and "(7 runs of 1 parent)" in table
    else:
        assert test.endswith("not shown") and "[+0.000, +0.000]" in table
