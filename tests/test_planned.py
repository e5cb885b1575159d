"""Plans: the runs that they print, and the tests that are planned in them. pytest tests/test_planned.py"""

import itertools
import re
import runpy
import shlex

import numpy as np
import pytest

from config import ROOT, load
from config.plan import main
from data.runs.__main__ import find_plan, require_runs_of
from data.runs.kept import pool
from tests.test_runs import printed, run, write_plan, write_run


ARMS = {name: {} for name in "dcba"}  # in the order of tables


def test_the_command_prints_every_arm_and_seed_and_every_arm_once_before_any_has_two(tmp_path, capsys):
    path = str(write_plan(tmp_path / "two.py", ARMS | dict(b=dict(causal=True)), n_seeds=2))
    # Keys for all, in a folder of their own, also on Windows: whole runs do not go on from a trial's end.
    main([path, "--n_layer=1", "--data_dir=D:\\my data"])
    folder = "out/plans/two_n_layer=1_data_dir=D--my data"
    found = [load(shlex.split(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(cfg.n_layer, cfg.data_dir, cfg.causal, cfg.seed, cfg.out_dir) for cfg in found] == [
        (1, "D:\\my data", name == "b", seed, f"{folder}/{name}-{seed}")
        for seed, name in itertools.product([1, 2], "dcba")]
    main([path, "--threads=1"])  # which changes no run
    assert "--out_dir=out/plans/two/a-2" in capsys.readouterr().out


@pytest.mark.parametrize("planned, argv, words", [
    ("[]", ["--init=random"], "python -m config.plan NAME"),  # xargs would train something else
    ("[]", ["starts", "--init=random"], "its runs differ in init"),
    ("[]", ["mine.py", "--run", "--jobs=0"], "jobs = 0, expected 1 or more"),
    ("[]", ["mine.py", "--jobs=2"], "unknown key jobs"),
    ("7 * [('symmetry', 'a', '>', 'b')]", ["mine.py"], "no p can be below 0.055"),  # 7 x 2 / 256
    ("[('symmetry', 'a - b', '>', 'c')]", ["mine.py"], "a - b > c: expected"),
    ("[('loss', 'a', '<', 'c')]", ["mine.py"], "these differ in causal"),
    ("[('symetry', 'a', '>', 'b')]", ["mine.py"], "planned test of symetry, which no run has"),
    ("[('loss_0', 'a', '<', 'b')]", ["mine.py"], "planned test of loss_0, which no run has"),
    ("[('positions_loss', 'a', '<', 'b')]", ["mine.py"], "planned test of positions_loss, which no run has"),
    ("[('steps_to_1,8', 'a', '<', 'b')]", ["mine.py"], "planned test of steps_to_1,8, which no run has"),
    ("[('symmetry', 'a - b - d', '>', 'b - a - d')]", ["mine.py"], "two differences 'arm - arm'"),
    ("[('symmetry_2', 'a', '>', 'b')]", ["mine.py"], "symmetry_2, a > b: its arms have layers 0 to 1"),
    ("[('heads_1 - symmetry_2', 'a', '>', '0')]", ["mine.py"], "its arms have layers 0 to 1"),
    ("[('symmetry', 'a', '>', '0')]", ["mine.py"], "planned test of symmetry, a > 0"),
    ("[('symmetry - heads', 'a - b', '>', '0')]", ["mine.py"], "planned test of symmetry - heads, a - b > 0"),
    ("[('symmetry - hads', 'a', '>', '0')]", ["mine.py"], "planned test of symmetry - hads, which no run has"),
    ("[]; arms['a']['parent'] = 'no'", ["mine.py"], "parent of a is 'no', expected another one of d, c, b, a"),
    ("[]; arms['a']['parent'] = 'b'; arms['b']['parent'] = 'a'", ["mine.py"], "is 'b', expected another one of"),
    ("[]; arms['a']['seed'] = 3", ["mine.py"], "a has seed, which the plan itself sets"),
    *[(f"[]; arms[{name!r}] = {{}}", ["mine.py"], f"{name!r} is no name for an arm")
      for name in ("p/q", "p\\q", "a,b", "a#", "a - b", "0")],
])
def test_a_plan_that_cannot_be_done_is_refused_in_one_line_and_prints_no_run(tmp_path, capsys, planned, argv, words):
    write_plan(tmp_path / "mine.py", ARMS | dict(c=dict(causal=True)), planned)
    with pytest.raises(SystemExit) as e:
        main([str(tmp_path / word) if word == "mine.py" else word for word in argv])
    assert words in e.value.code and "\n" not in e.value.code and capsys.readouterr().out == ""


@pytest.mark.parametrize("argv, ends_well", [(["--help"], True), (["position", "--run"], False)])
def test_help_and_a_wrong_name_list_the_plans_with_their_questions(capsys, argv, ends_well):
    with pytest.raises(SystemExit) as e:
        main(argv)
    said = capsys.readouterr().out if ends_well else e.value.code
    assert (e.value.code is None) == ends_well
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ")}
    assert lines.keys() == {path.stem for path in ROOT.glob("config/plans/*.py")}
    assert re.fullmatch(r"  columns +\d+  Do columns dominate in decoders\?", lines["columns"])


def test_a_difference_of_two_measures_of_one_run_is_tested_against_0(tmp_path):
    """In arm a symmetry ends 0.2 above heads, and in b 0.2 below it, in every run."""
    plan = write_plan(tmp_path / "plan.py", ARMS, [("symmetry - heads", "a", ">", right) for right in "0b"])
    folders = write_arms(tmp_path, "ab")
    *_, first, second = [line for line in printed(*folders, "--plan", plan) if ">" in line]
    assert first == "symmetry - heads a > 0 8 +0.200 [+0.200, +0.200] 0.016 shown"
    assert second == "symmetry - heads a > b 8 +0.400 [+0.400, +0.400] 0.016 shown"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # other tests have imported them
@pytest.mark.parametrize("module", ["data.runs.front", "data.published", "tests.paper", "tests.bench",
                                    "tests.exercises.positions", "tests.exercises.draw"])
def test_help_of_a_command_without_arguments_says_what_it_does_and_does_not_do_it(module, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as e:
        runpy.run_module(f"{module}.__main__" if module == "data.published" else module, run_name="__main__")
    assert e.value.code == 0 and capsys.readouterr().out.startswith("usage: ")


def write_arms(folder, names, ends_at=1000):
    """Eight runs of each arm. Their losses, symmetries and heads end seed / 100 above these numbers."""
    ends = dict(a=(2.0, 0.5, 0.3), b=(1.5, 0.1, 0.3), c=(2.5, 0.6, 0.0), d=(2.5, 0.1, 0.4))
    folders = []
    for name, seed in itertools.product(names, range(1, 9)):
        loss, symmetry, heads = np.add(ends[name], seed / 100)

        def scores(i, layer):
            of_layer = i * (symmetry - 0.1 + 0.2 * layer)  # at the end the median is the symmetry
            return [("wqk", layer, "", of_layer, -0.2, "", "", ""), ("wqk", layer, 0, i * heads, -0.2, "", "", "")]

        steps = sorted({0, ends_at})
        folders.append(write_run(folder / f"{name}-{seed}", [5, loss], seed, steps, scores))
    return folders


def test_planned_tests_are_done_with_their_family_and_an_arm_may_stand_on_both_sides(tmp_path):
    plan = write_plan(tmp_path / "plan.py", ARMS, [
        ("symmetry", "a", ">", "b"), ("symmetry_1", "a", "<", "b"), ("heads", "a", ">", "b"),
        ("symmetry", "a - c", ">", "b - a"), ("symmetry", "a", ">", "d")])
    alone = printed(*write_arms(tmp_path / "alone", "c"), "--plan", plan)
    assert alone[3] == "symmetry a > b 0 no pairs 1 too few pairs"  # neither has runs
    kept = tmp_path / "abc.csv"  # and no runs of d
    lines = printed(*write_arms(tmp_path, "abc"), "--plan", plan, "--csv", kept)
    assert [line[0] for line in lines[1:4]] == ["c", "b", "a"]  # in the order of the plan
    assert lines[3] == "a 8 2.045 0.54 0.34 -0.20"  # the mean seed is 4.5, so 0.045 above
    p = "0.039"  # all eight of one sign: 2 / 2^8 = 0.0078, 5 times, as the test without runs counts as well
    assert lines[5:10] == [
        f"symmetry a > b 8 +0.400 [+0.400, +0.400] {p} shown",
        f"symmetry_1 a < b 8 +0.400 [+0.400, +0.400] {p} the other way",
        "heads a > b 8 +0.000 [+0.000, +0.000] 1 not shown",  # no difference in any seed
        f"symmetry a - c > b - a 8 +0.300 [+0.300, +0.300] {p} shown",  # -0.1 and -0.4
        "symmetry a > d 0 no pairs 1 too few pairs"]
    for words in "--all", "--measure symmetry", "--arms a", "--by_layer --arms c":
        others = printed(kept, "--plan", plan, *words.split())
        assert all(test in others for test in lines[5:10])  # of all arms, below the table that was asked for
    of_d = write_arms(tmp_path, "d", ends_at=0)
    for words in "", "--arms a b":
        said, *rows = printed(kept, *of_d, "--plan", plan, *words.split())
        assert said.startswith("No planned test is done, because") and not any(">" in row for row in rows)


def test_runs_that_are_not_those_of_a_plan_or_of_other_text_are_refused_and_another_folder_is_said(tmp_path):
    """The corpus was made anew in its folder before the runs of d."""
    path, kept = tmp_path / "plan.py", tmp_path / "abc.csv"
    assert not run(*write_arms(tmp_path, "abc"), "--csv", kept)
    assert "its a has n_layer = 3, not 2" in run(kept, "--plan", write_plan(path, ARMS | dict(a=dict(n_layer=3))))
    assert "has no seed 8" in run(kept, "--plan", write_plan(path, ARMS, n_seeds=7))

    moved = write_run(tmp_path / "moved/d-1", data_dir="moved")
    of_d = [write_run(tmp_path / f"d-{seed}", seed=seed, sha256="of other text") for seed in range(1, 9)]
    for measure in "symmetry", "loss":
        plan = write_plan(path, ARMS, [(measure, "d - b", "<", "b - c"), (measure, "b", "<", "c")])
        assert printed(kept, moved, "--plan", plan)[0] == f"d has data_dir = 'moved', and 'data/sympy/bytes' in {plan}"
        said = run(kept, *of_d, "--plan", plan)
        assert f"planned test of {measure}, d - b and b - c: its runs differ in sha256" in said


def test_every_comparison_that_is_kept_has_its_plan_and_clean_commits():
    for path in sorted((ROOT / "data/results/csv").glob("*.csv")):
        if path.stem != "public":  # scores of models
            arms = pool([path])
            require_runs_of(find_plan(None, [path]), arms)
            for arm in arms.values():
                assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in arm.config["commit"]), path


def test_steps_to_a_loss_lie_on_the_line_between_two_evaluations_and_are_all_steps_if_it_is_never_reached(tmp_path):
    """Losses are at the target, a third of the way from one evaluation to the next, or never. A step of a is slower."""
    plan = write_plan(tmp_path / "race.py", ARMS, [("steps_to_2.2", "a", "<", "b")])
    folders = []
    for name, seed in itertools.product("ab", range(1, 9)):
        step, after = (300, 2.2) if name == "a" else (600, 1.0)
        loss = np.where(np.arange(0, 1100, 100) < step, 2.8, after)  # 2.2 is a third of the way from 2.8 to 1.0
        if name == "b" and seed == 8:
            loss[:] = 2.3
        if name == "a" and seed == 8:
            loss[:] = 2.2  # before any step
        folders.append(write_run(tmp_path / f"{name}-{seed}", loss, seed, speed=100 if name == "a" else 200))
    _, of_b, of_a, _, test = printed(*folders, "--plan", plan)[:5]
    assert of_b == "b 8 592 1 100% 100% 100% baseline 1"  # seven times 533 1/3, and 1,000
    assert of_a == "a 8 262 0 44% 89% 200% -329 [-617, -233] 1"  # seven times 300, and 0
    assert test == "steps_to_2.2 a < b 8 -329 [-617, -233] 0.0078 shown"
