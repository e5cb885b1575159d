"""Planned tests, comparisons by a score, and what a run records of heads and positions. pytest tests/test_planned.py"""

import itertools
import json
import math

import pandas
import pytest

from config import planned
from data.results import compare, ends, records, runs
from tests.test_runs import FALL, ROOT, STEPS, ZEROS, printed, run, words_of, write_run


def write_csv(path, ends, changes=(), plan=(), unfinished=()):
    """A comparison of eight seeds. ends: {arm: (loss, symmetry, heads) at the end}, to which seed / 100 is added."""
    config = dict(n_layer=2, max_iters=100, causal=False, objective="auto", init="random", sha256="a b")
    lines = [f"# planned {json.dumps(plan)}"] if plan else []
    lines.append(f"# config {json.dumps(config)}")
    lines += [f"# config of {arm} {json.dumps(dict(changes).get(arm, {}))}" for arm in ends]
    lines.append("arm,seed,step,train_loss,val_loss,symmetry,directionality,heads,symmetry_0,symmetry_1")
    for arm, (loss, symmetry, heads) in ends.items():
        for seed in range(1, 9):
            more = seed / 100
            lines.append(f"{arm},{seed},0,,5,0,0,0,0,0")
            if (arm, seed) not in unfinished:
                lines.append(f"{arm},{seed},100,,{loss + more},{symmetry + more},-0.2,{heads + more},0,{symmetry / 2}")
    path.write_text("\n".join(lines) + "\n")
    return path


ENDS = dict(a=(2.0, 0.5, 0.3), b=(1.5, 0.1, 0.3), c=(2.5, 0.6, 0.0), d=(2.5, 0.1, 0.4))
PLAN = [["symmetry", "a", ">", "b"], ["symmetry_1", "a", "<", "b"], ["heads", "a", ">", "b"],
        ["symmetry", "c - d", ">", "a - b"], ["loss", "a", "<", "c"]]


def test_planned_tests_are_done_with_their_family_from_the_csv_alone_which_may_lack_newer_scores(tmp_path):
    path, again = write_csv(tmp_path / "c.text", ENDS, plan=PLAN), tmp_path / "again.csv"  # of any ending
    out = printed(path)
    lines = words_of(out)
    assert lines[1] == "a 8 2.045 0.54 0.34 -0.20".split()  # the mean seed is 4.5, so 0.045 above
    # p: all eight of one sign, 2 / 2^8 = 0.0078, and the four that are so are multiplied by 5, 4, 3 and 2.
    p = "0.039"  # 5 times 0.0078, and the others as large at least
    assert lines[6:11] == [
        f"symmetry a > b 8 +0.400 [+0.400, +0.400] {p} as predicted".split(),
        f"symmetry_1 a < b 8 +0.200 [+0.200, +0.200] {p} the other way".split(),
        "heads a > b 8 +0.000 [+0.000, +0.000] 1 not shown".split(),  # no difference in any seed
        f"symmetry c - d > a - b 8 +0.100 [+0.100, +0.100] {p} as predicted".split(),
        f"loss a < c 8 -0.500 [-0.500, -0.500] {p} as predicted".split()]
    assert "p after Holm's correction over the 5 tests of the plan" in out and "1,048,576" in out
    assert printed(path, "--csv", again) == out and again.read_text().startswith("# planned ")
    assert list(pandas.read_csv(again, comment="#")) == list(pandas.read_csv(path, comment="#"))


def test_a_test_without_runs_counts_in_the_family_and_unfinished_runs_do_not_count(tmp_path):
    plan = [["symmetry", "a", ">", "b"], ["symmetry", "a", ">", "later"], ["symmetry", "b", "<", "late"],
            ["symmetry", "a - b", ">", "b - a"]]
    unfinished = [("late", seed) for seed in range(1, 9)] + [("b", 8)]
    path = write_csv(tmp_path / "c.csv", dict(a=ENDS["a"], b=ENDS["b"], late=ENDS["c"]), plan=plan,
                     unfinished=unfinished)
    out = printed(path)
    rows = words_of(out)
    assert rows[2][:2] == ["b", "7"]
    assert rows[3] == "late 0 no finished run".split() and rows[4] == "later 0 no finished run".split()
    assert rows[6] == "symmetry a > b 7 +0.400 [+0.400, +0.400] 0.062 not shown".split()  # 4 times 2 / 2^7
    assert rows[7] == "symmetry a > later 0 no pairs 1 not shown".split()
    assert rows[8] == "symmetry b < late 0 no pairs 1 not shown".split()
    assert rows[9] == "symmetry a - b > b - a 7 +0.800 [+0.800, +0.800] 0.062 not shown".split()
    assert "late: 0 of 8 runs have finished. Only these count." in out and "nan" not in out


def test_a_plan_goes_from_its_file_into_the_csv_and_is_not_lost(tmp_path):
    plan = tmp_path / "plan.py"
    plan.write_text("base = 'config/tiny.py'\nseeds = [1]\narms = dict(a={}, b=dict(init='skew'), c=dict(beta2=0.9))\n"
                    "planned = [('symmetry', 'a', '>', 'b'), ('loss', 'b', '<', 'c')]")
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", init="skew")]
    path = tmp_path / "c.csv"
    first = printed(*folders, "--plan", plan, "--csv", path)
    assert "no finished run" in first and "over the 2 tests of the plan" in first
    assert path.read_text().startswith('# planned [["symmetry", "a", ">", "b"], ["loss", "b", "<", "c"]]\n# config {')
    before = path.read_bytes()
    assert "other planned tests, which would be lost" in run(*folders, "--csv", path) and path.read_bytes() == before
    assert printed(path) == first and "baseline" in printed(path, "--baseline", "b")


@pytest.mark.parametrize("plan, words", [
    ("data/results/csv/positions.csv", "its learned has batch_size = 128, and that of these runs 32"),
    ("config/plans/positions.py", "its learned has learning_rate = 0.006, and that of these runs 0.001"),
    ("config/plans/depth.py", "depth.py has no planned tests"),
    ("data/results/csv/depth.csv", "depth.csv has no planned tests"),
    ("mine.py", "mine.py: arms is ['learned'], expected a dict of dicts"),
])
def test_the_plan_of_a_comparison_whose_arms_are_others_of_the_same_names_is_refused(plan, words, tmp_path):
    (tmp_path / "mine.py").write_text("arms = ['learned']\nplanned = [('loss', 'learned', '<', 'rotary')]")
    path = tmp_path / plan if plan == "mine.py" else ROOT / plan
    assert words in run(ROOT / "data/results/csv/stuck.csv", "--plan", path)


@pytest.mark.parametrize("planned, words", [
    ('[("symmetry", "a", ">", "z")]', "no arm is called z: there are a, b, c"),
    ('[("symetry", "a", ">", "b")]', "there is no measure symetry: expected loss, symmetry,"),
    ('[("loss_0", "a", ">", "b")]', "there is no measure loss_0"),
    ('[("symmetry_2", "a", ">", "b")]', "a has 2 layers, and the first one is symmetry_0"),
    ('[("symmetry", "a", "=", "b")]', "the direction is '=', expected '>' or '<'"),
    ('[("symmetry", "a - b", ">", "c")]', "left and right are two arms, or two differences"),
    ('[("symmetry", "a", ">")]', "expected (measure, left, '>' or '<', right)"),
    ('("loss", "a", "<", "b")', "planned test 'loss': expected (measure, left, '>' or '<', right)"),
    ('5', "planned test 5: expected (measure, left, '>' or '<', right)"),
    ('[("positions", "a", ">", "b")]', "a has positions = 'learned', and no matrix of untied positions"),
    ('[("loss", "a", "<", "c")]', "losses of different tasks cannot be compared, and these arms differ in causal"),
])
def test_a_wrong_plan_is_refused_in_one_line(tmp_path, planned, words):
    plan = tmp_path / "plan.py"
    plan.write_text(f"arms = dict(a={{}}, b={{}}, c={{}})\nplanned = {planned}")
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", init="skew"),
               write_run(tmp_path / "c-1", causal=True)]
    assert words in (said := run(*folders, "--plan", plan, "--csv", tmp_path / "c.csv")) and "\n" not in said
    assert not (tmp_path / "c.csv").exists()


def test_arms_that_lack_a_measure_are_named_and_the_others_compared_and_the_legend_is_of_what_is_shown():
    path = ROOT / "data/results/csv/positions.csv"
    header, *lines = printed(path, "--measure", "positions_1").splitlines()
    ends = pandas.read_csv(path, comment="#").query("step == 1600").groupby("arm")["positions_1"].mean().dropna()
    assert header.split()[:2] == ["arm", "positions_1"]
    shown = {line.split()[0]: float(line.split()[1]) for line in lines[:2]}
    assert shown == pytest.approx(dict(ends), abs=5.1e-4) and shown.keys() == {"untied", "untied_causal"}
    assert "  positions_1: symmetry of the matrix that untied positions have of their own, in layer 1" in lines[2]
    assert "decoder: its runs have no positions_1." in lines and not any(line.startswith("  loss:") for line in lines)
    for measure in "positions_1", "heads_9":
        said = run(path, "--measure", measure, "--arms", "decoder", "rotary")
        assert f"no run has {measure}: there are loss, symmetry, chance, heads, directionality, and layers 0" in said
    assert "the runs of decoder have no positions_1" in run(path, "--measure", "positions_1", "--baseline", "decoder")
    few_pairs = printed(ROOT / "data/results/csv/depth.csv", "--measure", "symmetry_0")
    assert "  p: no row has one. Fewer than 6 pairs have none" in few_pairs


def test_a_key_that_nobody_named_makes_another_task_and_scores_are_compared_all_the_same(tmp_path):
    changes = dict(b=dict(of_a_fork=1), c=dict(learning_rate=1.0), d=dict(qk_std=0.5))
    path = write_csv(tmp_path / "c.csv", ENDS, changes)
    assert "b is not compared with a, because they differ in of_a_fork.\n" in printed(path)
    rows = words_of(printed(path, "--measure", "heads", "--arms", "b", "a", "c"))
    assert rows[1] == "a 0.345 baseline 0.54 -0.20".split()
    assert rows[2] == "b 0.345 +0.000 [+0.000, +0.000] 1 0.15 -0.20".split()
    assert rows[3] == "c 0.045 -0.300 [-0.300, -0.300] 0.016 0.65 -0.20".split()  # 2 / 2^8, twice
    rows = words_of(printed(path, "--measure", "heads", "--arms", "b", "a", "c", "--all"))
    assert rows[2][-2:] == ["-0.20", "8"] and rows[3][-3:] == ["8", "not", "reached"]  # b is of another task
    rows = words_of(printed(path, "--measure", "symmetry", "--baseline", "c", "--arms", "b"))
    assert rows[2] == "b 0.145 -0.500 [-0.500, -0.500] 0.0078 -0.20".split()
    assert "no run has positions" in run(path, "--measure", "positions")
    assert "there is no measure val" in run(path, "--measure", "val")
    rows = words_of(printed(write_csv(path, ENDS, changes, plan=[["symmetry", "a", ">", "b"]])))
    tasks = {arm: task for arm, _, task, *_ in rows[1:5]}
    assert tasks == dict(a="of_a_fork=None", b="of_a_fork=1", c="of_a_fork=None", d="of_a_fork=None")


@pytest.mark.parametrize("config, is_plain", [
    (dict(qk_std=0.02, v_std=0.02), True),  # of older files
    (dict(qk_std="init_std", v_std="init_std", init_std=0.02), True),
    (dict(qk_std=0.02, v_std="init_std", init_std=0.02), True),
    (dict(qk_std="init_std", v_std="init_std", init_std=0.05), False),
    (dict(qk_std="linear", v_std="init_std", init_std=0.02), False),
    (dict(qk_std=0.02, v_std=0.1), False),
])
def test_the_start_of_bert_is_known_in_older_and_newer_files(config, is_plain):
    assert compare.has_berts_start(records.with_defaults(config)) == is_plain
    assert not compare.has_berts_start(records.with_defaults(config | dict(init="skew")))


def write_positions(folder):
    """A finished run of two layers and two heads with a matrix of positions, whose scores are known."""
    write_run(folder, n_layer=2, n_head=2, positions="untied")
    rows = []
    for step, layer in itertools.product(STEPS.astype(int), range(2)):
        of_wqk, of_positions = 0.1 + 0.2 * layer, 0.5 + 0.2 * layer
        for matrix, symmetry, chance in ("wqk", of_wqk, 0.2), ("positions", of_positions, 0.03 + 0.02 * layer):
            row = ZEROS._replace(step=int(step), matrix=matrix, layer=layer, head="", symmetry=symmetry,
                                 directionality=-0.1, chance=chance)
            rows += [row, row._replace(head=0, symmetry=symmetry - 0.5), row._replace(head=1, symmetry=symmetry + 0.1)]
    (folder / "scores.csv").write_text(runs.HEADERS["scores.csv"])
    runs.append(folder / "scores.csv", rows)
    return folder


def test_a_run_records_its_heads_and_its_positions_and_every_measure_of_a_plan(tmp_path, drawn):
    folder = write_positions(tmp_path / "a-1")
    expected = dict(symmetry=0.2, symmetry_1=0.3, chance=0.2, heads=0.0, heads_0=-0.1, heads_1=0.1, positions=0.6,
                    positions_1=0.7, positions_heads=0.4, positions_chance=0.04)  # the mean of two heads is 0.2 below
    record = records.read_run(folder)
    assert {name: record.last(name) for name in expected} == pytest.approx(expected)
    of_layer_1 = [f"{name}_1" for name in planned.OF_LAYERS]
    for measure in *planned.MEASURES, *of_layer_1:
        assert not math.isnan(record.last(planned.column_of(measure))), measure
    assert [planned.split_measure(measure) for measure in of_layer_1] == [(name, 1) for name in planned.OF_LAYERS]
    lines = ends.table_of_ends(record).splitlines()
    assert lines[2].split() == ["1", "0.30", "0.30", "0.10", "0.10", "-0.10", "-0.10"]
    assert "0.04" in lines[3] and "0.40" in lines[3] and lines[5].split() == ["1", "0.70", "0.70"]
    assert not run(folder, "--csv", tmp_path / "c.csv", "--plot", tmp_path / "p.png")
    (again,), = compare.pool([tmp_path / "c.csv"])[0].values()
    assert {name: again.last(name) for name in expected} == pytest.approx(expected)
    of_positions = {axis.get_title(loc="left"): axis for axis in drawn[0].axes}["symmetry of positions"]
    assert [line.get_ydata()[-1] for line in of_positions.lines[:2]] == pytest.approx([0.5, 0.7])
    assert not run(folder, write_run(tmp_path / "b-1", FALL + 1), "--plot", tmp_path / "p.png")
    of_positions = {axis.get_title(loc="left"): axis for axis in drawn[1].axes}["symmetry of positions"]
    assert {line.get_label(): list(line.get_ydata()[-1:]) for line in of_positions.lines}["a"] == [0.6]
    assert not run(folder, write_run(tmp_path / "c-1", causal=True), "--plot", tmp_path / "p.png")
    drawn[2].draw_without_rendering()
    right_ends = [axis.get_tightbbox().x1 for axis in drawn[2].axes]
    assert max(right_ends) <= drawn[2].bbox.x1  # a title ends in the picture
    plan = tmp_path / "plan.py"
    plan.write_text("arms = dict(a={}, b={})\nplanned = [('symmetry', 'a', '>', 'b')]")
    rows = words_of(printed(folder, tmp_path / "b-1", "--plan", plan))
    assert rows[0] == "arm n loss symmetry chance heads directionality positions their chance".split()
    assert rows[1] == "a 1 2.000 0.20 0.20 0.00 -0.10 0.60 0.04".split() and rows[2][-1] == "-0.50"
