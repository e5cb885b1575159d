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
from tests.test_runs import run as compare


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


def test_a_run_without_a_parent_gets_none_when_it_goes_on_also_from_an_older_checkpoint(finished, cfg):
    run(cfg, max_iters=8)
    for key in "", "parent_sha256":
        state = checkpoint(cfg)
        state.pop(key, None)
        torch.save(state, Path(cfg.out_dir, "ckpt.pt"))
        said = refusal(cfg, init_from="resume", parent=finished.out_dir)
        assert "is of another run: it began without a parent" in said


def test_children_of_grandparents_of_two_settings_or_texts_are_not_of_one_setting(finished, cfg, tmp_path):
    folders = []
    for seed, learning_rate in (1, 1e-2), (2, 1e-2), (3, 2e-2):
        old, child, grandchild = [str(tmp_path / f"{seed}/{name}-{seed}") for name in ("old", "child", "grandchild")]
        run(cfg, out_dir=old, learning_rate=learning_rate, seed=seed)
        run(cfg, out_dir=child, parent=old, seed=seed)
        run(cfg, out_dir=grandchild, parent=child, seed=seed, learning_rate=3e-2)
        folders.append(grandchild)
    assert list(pool(folders[:2])["grandchild"].seeds()) == [1, 2]
    with pytest.raises(ConfigError, match="two runs called grandchild differ in parent_config"):
        pool(folders[1:])
    run_json = Path(folders[1], "run.json")
    values = json.loads(run_json.read_text())
    values["parent_config"]["sha256"] = "of another text"
    run_json.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="two runs called grandchild differ in parent_config"):
        pool(folders[:2])


def of_parent(folder, parent_seed, learning_rate=6e-3, **keys):
    """A run of test_runs whose parent had this seed and rate, and a folder called `both`."""
    write_run(folder, parent=f"out/both-{parent_seed}", **keys)
    run_json = json.loads((folder / "run.json").read_text())
    parent = run_json["config"] | dict(parent="", seed=parent_seed, learning_rate=learning_rate,
                                         causal=False, objective="auto")
    (folder / "run.json").write_text(json.dumps(run_json | dict(parent_config=parent)))
    return folder


def test_parents_of_two_settings_in_folders_of_one_name_are_told_apart(tmp_path):
    first = of_parent(tmp_path / "u/a-1", 1)
    again = of_parent(tmp_path / "u/a-2", 2, seed=2)
    other = of_parent(tmp_path / "v/a-3", 3, learning_rate=0.5, seed=3)
    assert list(pool([first, again])["a"].seeds()) == [1, 2]
    with pytest.raises(ConfigError, match="two runs called a differ in parent_config"):
        pool([first, other])


def test_a_parent_that_was_made_longer_is_not_one_that_was_trained_at_once(finished, cfg, tmp_path):
    """Their learning rates had another course."""
    folders = []
    for seed in 1, 2:
        parent, child = tmp_path / f"old-{seed}", str(tmp_path / f"child-{seed}")
        run(cfg, out_dir=str(parent), seed=seed, max_iters=10 + 2 * seed)
        resume(cfg, out_dir=str(parent), seed=seed, max_iters=14)
        run(cfg, out_dir=child, parent=str(parent), seed=seed)
        folders.append(child)
    with pytest.raises(ConfigError, match="two runs called child differ in parent_config"):
        pool(folders)


@pytest.mark.parametrize("parents, words", [("one", "7 runs of one parent"), ("other", "parents of other seeds"),
                                            ("own", "")])
def test_children_of_one_parent_or_of_differing_ones_are_no_pairs(tmp_path, parents, words):
    folders = []
    for seed in range(1, 8):
        of_a, of_b = dict(one=(1, 1), other=(seed, 8 - seed), own=(seed, seed))[parents]
        folders.append(of_parent(tmp_path / f"a-{seed}", of_a, seed=seed))
        folders.append(of_parent(tmp_path / f"b-{seed}", of_b, seed=seed, loss=FALL + 0.1, causal=True,
                                 objective="masked"))
    plan = tmp_path / "plan.py"
    keys = dict(n_head=1, max_iters=1000)
    child = keys | dict(parent="both")
    arms = dict(both=keys, a=child, b=child | dict(causal=True, objective="masked"))
    plan.write_text(f"base = 'config/tiny.py'\nseeds = range(1, 8)\narms = {arms}\n"
                    "planned = [('symmetry', 'b', '>', 'a')]")
    *_, test = [" ".join(line) for line in printed(*folders, "--plan", plan) if ">" in line]
    table = " ".join(printed(*folders, "--measure", "symmetry")[2])
    if words:
        assert test.endswith(f"({words}) 1 not tested") and f"({words})" in table
    else:
        assert test.endswith("not shown") and "[+0.000, +0.000]" in table


def test_a_child_of_older_code_may_have_had_the_parent_of_the_others(tmp_path):
    """It does not say what its parent was. The others may have one of their own setting, or of another."""
    older = write_run(tmp_path / "older/a-3", seed=3, parent="both-3")
    for name, learning_rate in ("same", 6e-3), ("other", 0.5):
        newer = [of_parent(tmp_path / name / f"a-{seed}", seed, learning_rate, seed=seed) for seed in (1, 2)]
        kept = tmp_path / f"{name}.csv"
        assert not compare(older, "--csv", kept) and not compare(older, *newer, "--csv", kept)
        assert list(pool([kept])["a"].seeds()) == [3, 1, 2]
    for runs in [older, tmp_path / "same/a-1", tmp_path / "other/a-2"], [kept, of_parent(tmp_path / "a-4", 4, seed=4)]:
        assert "two runs called a differ in parent_config" in compare(*runs)
    newer = [of_parent(tmp_path / "again" / f"a-{seed}", seed, 0.25, seed=seed) for seed in (1, 2, 3)]
    assert "has runs of a with another parent_config: give another --csv" in compare(*newer, "--csv", kept)


def test_a_parent_of_older_code_had_the_default_of_a_newer_key(tmp_path):
    folders = []
    for seed in 1, 2:
        folders.append(of_parent(tmp_path / f"a-{seed}", seed, seed=seed, skip_iters=1000))
        values = json.loads((folders[-1] / "run.json").read_text())
        values["parent_config"]["skip_iters"] = 0
        if seed == 1:
            del values["parent_config"]["skip_iters"]
        (folders[-1] / "run.json").write_text(json.dumps(values))
    assert list(pool(folders)["a"].seeds()) == [1, 2]


def test_children_whose_parent_is_not_that_of_the_plan_are_refused(tmp_path):
    plan, keys = tmp_path / "plan.py", dict(n_head=1, max_iters=1000)
    arms = dict(both=keys | dict(learning_rate=6e-3), a=keys | dict(parent="both"))
    plan.write_text(f"base = 'config/tiny.py'\nseeds = range(1, 8)\narms = {arms}")
    assert not compare(of_parent(tmp_path / "a-1", 1), "--plan", plan)
    other = of_parent(tmp_path / "a-2", 2, 0.5, seed=2)
    assert "the parent of its a had another learning_rate" in compare(other, "--plan", plan)
