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
from tests.test_runs import edit, printed, write_plan, write_run
from tests.test_runs import run as compare


def test_a_child_begins_with_the_last_weights_of_its_parent_and_with_nothing_else_of_it(finished, cfg):
    child = make_trainer(cfg, parent=finished.out_dir, seed=5, causal=True, objective="masked")
    last = checkpoint(finished)["model"]
    assert all(torch.equal(weight, last[name]) for name, weight in child.model.state_dict().items())
    assert child.step == 0 and not child.optimizer.state and child.model.cfg.causal
    run(cfg, parent=finished.out_dir, seed=5)
    assert log(cfg).val_loss[0] == log(finished).val_loss.iloc[-1]  # all runs are validated on the same batches
    assert log(cfg).learning_rate[1] == log(finished).learning_rate[1]  # a schedule of its own


def test_a_child_that_was_killed_goes_on_bit_for_bit_whatever_its_parent_is_by_now(finished, cfg, tmp_path, capsys):
    parent, moved = tmp_path / "parent", str(tmp_path / "moved")
    shutil.copytree(finished.out_dir, parent)
    cfg = replace(cfg, parent=str(parent), seed=5)
    whole = replace(cfg, out_dir=f"{cfg.out_dir}_whole")
    run(whole)
    ((status, said),) = in_processes((killed, cfg, TRAIN_STEP, 7))
    assert status == -signal.SIGKILL, said
    assert "parent_sha256 = " in refusal(cfg, init_from="resume", parent="")

    def go_on(name, **keys):
        """Of a copy -> what it says, and its run.json."""
        copy = replace(cfg, out_dir=f"{cfg.out_dir}_{name}", **keys)
        shutil.copytree(cfg.out_dir, copy.out_dir)
        capsys.readouterr()
        resume(copy)
        assert result(copy) == result(whole)
        return capsys.readouterr().out, json.loads(Path(copy.out_dir, "run.json").read_text())

    is_other = "is another run by now: this one goes on from its own ckpt.pt"
    assert is_other not in go_on("as_it_was")[0]
    parent.rename(moved)
    assert is_other not in go_on("deleted")[0]
    _, run_json = go_on("moved", parent=moved)
    assert run_json["config"]["parent"] == moved and len(run_json["parent_sha256"]) == 64
    assert run_json["parent_config"]["seed"] == finished.seed and run_json["parent_config"]["max_iters"] == 12
    run(replace(cfg, parent="", out_dir=str(parent), seed=8, max_iters=2))
    assert is_other in go_on("trained_again")[0]


def test_a_parent_that_is_being_made_longer_is_not_finished(finished, cfg):
    with atomic.locked(finished.out_dir):
        assert "is being trained now: let it finish first" in refusal(cfg, parent=finished.out_dir)


def test_what_is_no_parent_is_refused(finished, cfg, tmp_path):
    half = shutil.copytree(finished.out_dir, tmp_path / "half")
    state = checkpoint(finished)
    torch.save(state | dict(step=8), half / "ckpt.pt")
    for keys, words in [(dict(parent=str(half)), "at step 8 of 12"), (dict(parent=str(tmp_path)), "there is no"),
                        (dict(n_layer=1), "has n_layer = 2, not 1"), (dict(positions="rotary"), "= 'learned', not"),
                        (dict(n_head=4), "has n_head = 2")]:  # of the same shapes
        assert words in refusal(cfg, **dict(parent=finished.out_dir) | keys)
    assert not Path(cfg.out_dir, "log.csv").exists()

    # nor does a run get one when it goes on, also from an older checkpoint
    for key in "", "parent_sha256":
        state.pop(key, None)
        torch.save(state, half / "ckpt.pt")
        said = refusal(cfg, out_dir=str(half), init_from="resume", parent=finished.out_dir)
        assert "is of another run: it began without a parent" in said


def test_a_plan_prints_all_parents_before_the_first_child_and_names_their_folders(tmp_path, capsys):
    arms = dict(grandchild=dict(parent="child"), child=dict(parent="old", causal=True), old={})
    main([str(write_plan(tmp_path / "family.py", arms, n_seeds=2)), "--max_iters=40"])
    cfgs = [load(shlex.split(line)) for line in capsys.readouterr().out.splitlines()]
    folder = "out/plans/family_max_iters=40"
    assert [(cfg.out_dir, cfg.parent) for cfg in cfgs] == [
        (f"{folder}/{arm}-{seed}", parent and f"{folder}/{parent}-{seed}")
        for arm, parent in (("old", ""), ("child", "old"), ("grandchild", "child")) for seed in (1, 2)]


def test_runs_whose_parents_or_their_parents_are_of_two_settings_or_texts_are_not_of_one_setting(cfg, tmp_path):
    """The old run of seed 3 has another rate. That of seed 4 was made longer, so its rates had another course."""
    cfg = replace(cfg, init_from="resume", n_layer=1, eval_iters=1, positions="rotary")
    children, grandchildren = [], []
    for seed, rate, ends in (1, 1e-2, [2]), (2, 1e-2, [2]), (3, 2e-2, [2]), (4, 1e-2, [1, 2]):
        old, child, grandchild = [str(tmp_path / f"{seed}/{name}-{seed}") for name in ("old", "child", "grandchild")]
        for max_iters in ends:
            run(cfg, out_dir=old, seed=seed, learning_rate=rate, max_iters=max_iters)
        run(cfg, out_dir=child, seed=seed, parent=old, max_iters=2, skip_iters=2)
        run(cfg, out_dir=grandchild, seed=seed, parent=child, max_iters=2, learning_rate=3e-2)
        children.append(Path(child))
        grandchildren.append(Path(grandchild))

    edit(children[1], "parent_config", skip_iters=None)  # by older code: it has the default
    for name, (first, again, *others) in dict(child=children, grandchild=grandchildren).items():
        assert list(pool([first, again])[name].seeds()) == [1, 2]
        for other in [*others, edit(again, "parent_config", sha256="of another text")]:
            with pytest.raises(ConfigError, match=f"two runs called {name} differ in parent_config"):
                pool([first, other])


def of_parent(folder, parent_seed, learning_rate=6e-3, **keys):
    """A run of test_runs whose parent had this seed and rate, and a folder called `both`."""
    write_run(folder, parent=f"out/both-{parent_seed}", **keys)
    of_parent = vars(load([])) | dict(max_iters=1000, n_head=1, seed=parent_seed, learning_rate=learning_rate)
    return edit(folder, parent_config=of_parent)


@pytest.mark.parametrize("parents, words", [
    (lambda seed: (1, 1), "7 runs of one parent"), (lambda seed: (seed, 8 - seed), "parents of other seeds"),
    (lambda seed: (seed, seed), "")])
def test_children_of_one_parent_or_of_differing_ones_are_no_pairs(tmp_path, parents, words):
    of_b = dict(causal=True, objective="masked")
    arms = dict(both={}, a=dict(parent="both"), b=dict(parent="both") | of_b)
    plan = write_plan(tmp_path / "plan.py", arms, [("symmetry", "b", ">", "a")], n_seeds=7)
    folders = []
    for seed in range(1, 8):
        parent_of_a, parent_of_b = parents(seed)
        folders.append(of_parent(tmp_path / f"a-{seed}", parent_of_a, seed=seed))
        folders.append(of_parent(tmp_path / f"b-{seed}", parent_of_b, seed=seed, **of_b))
    kept = tmp_path / "ab.csv"
    *_, test = [line for line in printed(*folders, "--plan", plan, "--csv", kept) if ">" in line]
    table = printed(kept, "--measure", "symmetry")[2]
    if words:
        assert test.endswith(f"({words}) 1 not tested") and f"({words})" in table
    else:
        assert test.endswith("not shown") and "[+0.000, +0.000]" in table


def test_a_child_of_older_code_may_have_had_the_parent_of_the_others(tmp_path):
    """It does not say what its parent was. The others may have one of their own setting, or of another."""
    older = write_run(tmp_path / "older/a-3", seed=3, parent="both-3")
    other = write_run(tmp_path / "a-5", seed=5, parent="causal-5")
    assert compare(older, other).endswith("two runs called a differ in parent")
    for name, learning_rate in ("same", 6e-3), ("other", 0.5):
        newer = [of_parent(tmp_path / name / f"a-{seed}", seed, learning_rate, seed=seed) for seed in (1, 2)]
        kept = tmp_path / f"{name}.csv"
        assert not compare(older, "--csv", kept) and not compare(older, *newer, "--csv", kept)
        assert list(pool([kept])["a"].seeds()) == [3, 1, 2]
    for runs in [older, tmp_path / "same/a-1", tmp_path / "other/a-2"], [kept, of_parent(tmp_path / "a-4", 4, seed=4)]:
        assert "two runs called a differ in parent_config" in compare(*runs)
    newer = [of_parent(tmp_path / "again" / f"a-{seed}", seed, 0.25, seed=seed) for seed in (1, 2, 3)]
    assert "has runs of a with another parent_config: give another --csv" in compare(*newer, "--csv", kept)


def test_children_whose_parent_is_not_that_of_the_plan_are_refused(tmp_path):
    arms = dict(both=dict(learning_rate=6e-3), a=dict(parent="both"))
    plan = write_plan(tmp_path / "plan.py", arms)
    assert not compare(of_parent(tmp_path / "a-1", 1), "--plan", plan)
    other = of_parent(tmp_path / "a-2", 2, 0.5, seed=2)
    assert "the parent of its a had another learning_rate" in compare(other, "--plan", plan)
