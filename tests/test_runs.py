"""Comparisons of runs: their statistics, their files, and what analyze.py --runs prints. pytest tests/test_runs.py"""

import contextlib
import csv
import io
import itertools
import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas
import pytest

import analyze
from config.plan import read_plan
from data.results import compare, comparison, records

ROOT = Path(analyze.__file__).parent
CSV = ROOT / "data" / "results" / "csv"
STEPS = np.arange(0, 1100, 100)
FALL = np.linspace(3, 2, 11)  # a baseline that ends at 2, and at 2.1 if it is smoothed


# ---- a loss curve in one number, and chance ----------------------------------------------------------------------


@pytest.mark.parametrize("loss, expected", [
    (FALL, 0.0),  # there at the end
    (FALL + 0.5, -math.inf),  # never: less than any, and neither 0 nor 100 %
    (np.where(STEPS < 500, 3.0, 1.0), 0.4),  # the mean of three is 2.33 at step 500 and 1.67 at 600
    (np.where(STEPS == 500, 1.0, 3.0), -math.inf),  # a single good evaluation does not count
])
def test_speed_up_is_the_share_of_training_that_was_not_needed(loss, expected):
    found = compare.speed_up(pandas.Series(loss, STEPS), pandas.Series(FALL, STEPS))
    assert found == pytest.approx(expected)


NORMAL = np.random.default_rng(0).normal(0.4, 1, 12)


@pytest.mark.parametrize("differences, most_exact", [
    (NORMAL[:5], 20), (NORMAL[:9], 20), (NORMAL, 0),  # five exclude no difference; 0: all signs are drawn
    (np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, -0.8]), 20)])  # sums are equal, but for rounding
def test_p_and_interval_are_those_of_all_signs_whether_these_are_counted_or_drawn(monkeypatch, differences, most_exact):
    monkeypatch.setattr(compare, "EXACT_PAIRS", most_exact)
    signs = np.array(list(itertools.product([-1, 1], repeat=len(differences))))  # (2^n, n)
    tried = np.linspace(-4, 4, 801)
    shifted = differences - tried[:, None]  # (801, n)
    as_far = np.abs(shifted @ signs.T) >= np.abs(shifted.sum(1, keepdims=True)) - 1e-9  # (801, 2^n)
    kept = tried[as_far.mean(1) > 0.05]
    p = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert compare.sign_flip(differences) == pytest.approx(p, abs=0 if most_exact else 4 * (p / compare.DRAWS) ** 0.5)
    assert compare.sign_flip(-1e-7 * differences) == compare.sign_flip(differences)  # neither sign nor unit matters
    found = compare.confidence_interval(differences)
    expected = (math.nan, math.nan) if len(kept) == 801 else (kept[0], kept[-1])
    np.testing.assert_allclose(found, expected, atol=0.01 if most_exact else 0.03)


def test_the_p_of_many_pairs_is_that_of_a_coin_and_counts_what_we_saw_as_one_draw():
    """Of 30 equal differences 21 are above 0: as 21 heads or more of 30 coins, or 9 or less."""
    p = 2 * sum(math.comb(30, heads) for heads in range(21, 31)) / 2**30
    assert compare.sign_flip(np.repeat([1.0, -1.0], [21, 9])) == pytest.approx(p, rel=0.05)
    assert compare.sign_flip(np.ones(60)) == 1 / compare.DRAWS


def test_holm_multiplies_by_the_tests_that_are_left():
    """Benjamini and Hochberg 1995, section 3.2: of these 15 tests three are significant after Holm's correction."""
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324,
          0.4262, 0.5719, 0.6528, 0.759, 1]
    corrected = compare.holm(ps)
    assert list(corrected[:4]) == pytest.approx([15 * 0.0001, 14 * 0.0004, 13 * 0.0019, 12 * 0.0095])
    assert (corrected < 0.05).tolist() == [True] * 3 + [False] * 12 and corrected.is_monotonic_increasing
    assert list(compare.holm([0.9, 0.2])) == [0.9, 0.4]  # in the order of the tests


# ---- folders of runs ---------------------------------------------------------------------------------------------

HEADER = "step,matrix,layer,head,symmetry,directionality,directionality_eq17,update_symmetry,chance"


def write_run(folder, loss=FALL, seed=1, steps=STEPS, n_layer=2, lengths=(), commit="c1", **changes):
    """A run with the given validation losses, whose layers have one head each. Its scores are known."""
    config = dict(max_iters=1000, n_layer=n_layer, n_head=1, seed=seed, out_dir=str(folder)) | changes
    data = dict(sha256=dict(train=changes.get("sha256", "a"), val="b"), tokenizer=changes.get("tokenizer", "bytes"))
    of_run = dict(config=config, data=data, n_params=1, origin=dict(commit=commit), lengths=list(lengths))
    log, scores = ["step,tokens,train_loss,val_loss,learning_rate,tokens_per_s"], [HEADER]
    for i, (step, val_loss) in enumerate(zip(steps, loss)):
        log.append(f"{step},0,,{val_loss:.6f},,")
        for layer in range(n_layer):
            update = 0.1 * layer if i else ""
            scores.append(f"{step},wqk,{layer},,{(i + layer**2) / 20},{-i / 20},{i / 50},{update},{0.1 + layer / 10}")
            scores.append(f"{step},wqk,{layer},0,-1.0,{-i / 20},{i / 50},{update},0.5")
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(of_run))
    (folder / "log.csv").write_text("\n".join(log) + "\n")
    (folder / "scores.csv").write_text("\n".join(scores) + "\n")
    return str(folder)


def run(*argv):
    """The line in which analyze.py --runs ends, if it is wrong."""
    with pytest.raises(SystemExit) as e:
        analyze.main(["--runs", *map(str, argv)])
    return e.value.code


def printed(*argv):
    """What it prints if nothing is wrong."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert not run(*argv)
    return out.getvalue()


def words_of(out):
    return [line.split() for line in out.splitlines()]


def run_arms(tmp_path, seeds=range(1, 7)):
    """random falls to 2 + seed / 100, fast is 0.2 below it from step 500 on, slow stays at 2.8, in every seed."""
    folders = []
    for seed in seeds:
        plain = FALL + seed / 100
        fast = np.where(STEPS < 500, plain, plain - 0.2)
        folders += [write_run(tmp_path / f"fast-{seed}", fast, seed, init="symmetric"),
                    write_run(tmp_path / f"random-{seed}", plain, seed),
                    write_run(tmp_path / f"slow-{seed}", np.maximum(plain, 2.8), seed, init="skew")]
    return folders


def test_arms_are_pooled_over_seeds_measured_against_the_baseline_of_their_seed_and_kept(tmp_path):
    argv = "--all", "--baseline", "random", "--csv", tmp_path / "c.csv"
    rows = words_of(printed(*run_arms(tmp_path), *argv))[1:4]
    scores = "0.53 0.15 -1.00 -0.50"
    assert rows == [f"fast 6 1.835 -0.200 [-0.200, -0.200] random 6 20% {scores}".split(),
                    f"random 6 2.035 baseline {scores}".split(),
                    f"slow 6 2.800 +0.765 [+0.740, +0.790] random 6 not reached {scores}".split()]
    header, *rows = words_of(printed(tmp_path / "c.csv"))
    assert header == "arm n loss difference [95 %] from symmetry chance heads directionality".split()  # and no p
    assert rows[1] == f"random 6 2.035 +0.200 [+0.200, +0.200] fast {scores}".split()  # the first is the baseline
    _, fast, slow, *legend = words_of(printed(tmp_path / "c.csv", "--arms", "slow", "--baseline", "fast"))
    assert fast[2:4] == ["1.835", "baseline"] and slow[6] == "fast" and legend[0][0] == "n:"  # no random
    # The file: what all arms share, what each has changed, and their curves.
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert '"qk_std": "init_std"' in lines[0] and '"init"' not in lines[0] and "out_dir" not in lines[0]
    assert lines[1] == '# config of fast {"init": "symmetric"}'
    rows = list(csv.DictReader(lines[4:]))
    assert len(rows) == 3 * 6 * 11
    expected = dict(arm="random", seed="1", step="100", train_loss="", val_loss="2.9100", symmetry="0.0750",
                    directionality_eq17="0.0200", update_symmetry="0.0500", symmetry_0="0.0500", symmetry_1="0.1000",
                    directionality_1="-0.0500", chance="0.1500", chance_1="0.2000", heads_1="-1.0000")
    assert expected.items() <= rows[67].items()


def test_a_difference_of_a_ten_thousandth_is_shown():
    tiny = dict(n_pairs=7, difference=-0.0001, interval=(-0.00012, -0.00008))
    assert comparison.difference_cell(tiny) == "-0.00010 [-0.00012, -0.00008]"


def test_only_pairs_of_one_seed_are_compared_and_a_file_names_every_version_that_made_an_arm(tmp_path):
    folders = [write_run(tmp_path / f"a-{seed}", FALL + seed / 10, seed, commit=f"c{seed}") for seed in (1, 2)]
    folders += [write_run(tmp_path / f"b-{seed}", FALL + seed, seed, init="skew") for seed in (2, 3)]
    path = tmp_path / "c.csv"
    of_b = words_of(printed(*folders, "--all", "--csv", path))[2]
    assert of_b[2:6] == ["4.500", "+1.800", "a", "1"]  # the difference of seed 2 alone
    assert not run(path, write_run(tmp_path / "a-3", seed=3, commit="c3"), "--csv", path)
    assert [arm.origin["commit"] for arm in comparison.pool([path]).values()] == [["c1", "c2", "c3"], ["c1"]]


def test_where_a_run_has_not_finished_all_are_compared_at_the_last_step_that_they_have(tmp_path, drawn):
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "a-2", FALL[:5], 2, STEPS[:5])]
    folders += [write_run(tmp_path / f"b-{seed}", FALL[:7] + 1, seed, STEPS[:7], init="symmetric") for seed in (1, 2)]
    said, _, *rows = words_of(printed(*folders, "--all", "--plot", tmp_path / "p.png"))
    assert " ".join(said) == "All runs are shown at step 400, because these have not finished: a 2, b 1, b 2"
    assert rows[0][:4] == ["a", "2", "2.600", "baseline"]
    assert rows[1][:7] == ["b", "2", "3.600", "+1.000", "a", "2", "not"]
    assert [len(line.get_xdata()) for line in drawn[0].axes[0].lines] == [5, 5]


def test_a_run_that_was_made_longer_is_another_one_than_a_run_of_that_length(tmp_path):
    plain, longer = write_run(tmp_path / "a-1"), write_run(tmp_path / "a-2", seed=2, lengths=[600, 1000])
    assert "two runs called a differ in lengths: [600, 1000], None" in run(plain, longer)
    out = printed(plain, write_run(tmp_path / "b-1", lengths=[600, 1000]), "--all")
    assert words_of(out)[2][2:5] == ["lengths=[600,", "100", "2.000"]  # of another task


def test_a_comparison_is_drawn_again_from_its_csv_without_the_runs(tmp_path):
    folders = run_arms(tmp_path / "runs", seeds=[1, 2])
    folders.append(write_run(tmp_path / "runs" / "null-1", n_layer=3, init="of_a_fork"))  # pandas could read it as nan
    path, again = tmp_path / "c.csv", tmp_path / "again.csv"
    first = printed(*folders, "--csv", path, "--plot", tmp_path / "a.png")
    assert ["null", "1", "2.000", "+0.190", "fast"] == words_of(first)[4][:5]
    shutil.rmtree(tmp_path / "runs")
    assert printed(path, "--csv", again, "--plot", tmp_path / "b.png") == first
    assert again.read_text() == path.read_text()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    shapes = {name: arm.layers("symmetry").shape for name, arm in comparison.pool([path]).items()}
    assert shapes["null"] == (11, 3) and shapes["random"] == (22, 2)


@pytest.mark.parametrize("argv, words", [
    ("a-1 b-1 --baseline c", "no arm is called c: there are a, b"),
    ("a-1 --measure symetry", "no run has symetry: there are loss, chance, chance_0,"),
    ("a-1 c.csv", "two runs called a have the seed 1"),
    ("other/a-2 c.csv", "two runs called a differ in of_a_fork"),
    ("a-1 --csv c.csv", "c.csv holds a run of b with the seed 1, which would be lost"),
    ("a-1 --csv notes.text", "notes.text is no comparison"),
    (".", "holds no run of train.py"),
    ("cut-1", "scores.csv ends at step 400, and log.csv at step 1000"),
])
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_lost(tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    assert not run(write_run("a-1"), write_run("b-1", init="skew"), "--csv", "c.csv")
    write_run("other/a-2", seed=2, of_a_fork=1)
    scores = Path(write_run("cut-1"), "scores.csv")
    scores.write_text(scores.read_text().partition("\n500,")[0] + "\n")
    Path("notes.text").write_text("mine\n")
    before = {path: path.read_bytes() for path in Path().glob("**/*.*")}
    assert words in (said := run(*argv.split())) and said.startswith("analyze.py: ") and "\n" not in said
    assert {path: path.read_bytes() for path in Path().glob("**/*.*")} == before


def test_runs_of_other_length_or_tokenizer_are_not_compared_and_it_is_said_why(tmp_path):
    reasons = ["max_iters=500", "tokenizer=gpt2", "objective=next", "objective=masked", "of_a_fork=1"]  # of b to f
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", FALL[:6], steps=STEPS[:6], max_iters=500),
               write_run(tmp_path / "c-1", tokenizer="gpt2", sha256="c"), write_run(tmp_path / "d-1", causal=True),
               write_run(tmp_path / "e-1", causal=True, objective="masked"), write_run(tmp_path / "f-1", of_a_fork=1),
               write_run(tmp_path / "g-1", FALL + 1, optimizer="adamw", keep=0)]  # an older run: a key that is gone
    out = printed(*folders, "--all")
    rows = out.splitlines()[1:8]
    assert ["baseline" in row for row in rows] == 6 * [True] + [False] and "+1.000" in rows[6]
    assert all(reason in row for row, reason in zip(rows[1:], reasons)) and "WITHIN_TASK in config/plan.py" in out


def test_a_score_that_a_fork_adds_is_a_measure_and_older_runs_may_lack_one(tmp_path):
    path = Path(write_run(tmp_path / "a-1"), "scores.csv")
    scores = pandas.read_csv(path).drop(columns="directionality_eq17")
    scores.assign(trace=scores["layer"] + 0.25).to_csv(path, index=False)
    for measure, end in dict(trace="0.750", trace_1="1.250", directionality="-0.500").items():
        assert words_of(printed(tmp_path / "a-1", "--measure", measure))[1][:3] == ["a", "1", end]


def test_every_comparison_that_is_kept_names_clean_commits_of_this_history_and_has_its_plan():
    if subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=CSV, capture_output=True,
                      text=True).stdout.strip() != "false":
        pytest.skip("this is no whole clone: its history is not there")
    for path in sorted(CSV.glob("*.csv")):
        if path.stem == "public":  # scores of models
            continue
        comparison.require_runs_of(read_plan(ROOT / f"config/plans/{path.stem}.py"), comparison.pool([path]))
        for arm in records.read_comparison(path):
            for commit in arm.origin["commit"]:
                is_here = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=CSV)
                assert is_here.returncode == 0, f"{path.name}: {commit}"


# ---- layers ------------------------------------------------------------------------------------------------------


def write_positions(folder):
    """A finished run of two layers and two heads with a matrix of positions, whose scores are known."""
    write_run(folder, n_layer=2, n_head=2, positions="untied")
    lines = [HEADER]
    for step, layer in itertools.product(STEPS, range(2)):
        of_wqk, of_positions = 0.1 + 0.2 * layer, 0.5 + 0.2 * layer
        for matrix, symmetry, chance in ("wqk", of_wqk, 0.2), ("positions", of_positions, 0.03 + 0.02 * layer):
            lines += [f"{step},{matrix},{layer},,{symmetry},-0.1,0,0,{chance}",
                      f"{step},{matrix},{layer},0,{symmetry - 0.5},-0.2,0,0,0.4",
                      f"{step},{matrix},{layer},1,{symmetry + 0.1},-0.4,0,0,{0.5 + layer / 10}"]
    (folder / "scores.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_run_records_its_layers_its_heads_and_its_positions(tmp_path, drawn):
    expected = dict(
        symmetry=0.2, symmetry_1=0.3, chance=0.2, chance_1=0.2, positions=0.6, positions_1=0.7, positions_chance=0.04,
        heads=0.0, heads_0=-0.1, heads_1=0.1, positions_heads=0.4,  # the mean of two heads is 0.2 below
        heads_directionality_1=-0.3, heads_chance_0=0.45, heads_chance_1=0.5,
        highest_head_0=0.2, highest_head_1=0.4, highest_head_chance_0=0.5, highest_head_chance_1=0.6, highest_head=0.3)
    printed(write_positions(tmp_path / "a-1"), "--csv", tmp_path / "c.csv", "--plot", tmp_path / "p.png")
    for arm in records.read_run(tmp_path / "a-1"), *records.read_comparison(tmp_path / "c.csv"):
        assert {name: arm.at_end(name).item() for name in expected} == pytest.approx(expected)
    panels = {axis.get_title(loc="left"): axis for axis in drawn[0].axes}
    assert len(panels) == 4
    np.testing.assert_allclose(panels["loss [nats/token]"].lines[1].get_ydata(), FALL)
    ends = [line.get_ydata()[-1] for line in panels["symmetry of positions"].lines[:4]]
    assert ends == pytest.approx([0.5, 0.03, 0.7, 0.05])  # of each layer, and its chance
    of_layer, of_chance = panels["symmetry of $W_{qk}$"].lines[:2]
    assert of_chance.get_linestyle() == ":" and of_chance.get_color() == of_layer.get_color()


def test_runs_of_one_seed_are_shown_by_layer(tmp_path):
    folders = [write_positions(tmp_path / "a-1"), write_run(tmp_path / "b-1", FALL[:8], steps=STEPS[:8], init="skew")]
    _, *lines = words_of(printed(*folders))
    assert lines[0] == ["at", "step", "700", "loss", *comparison.BY_LAYER]
    assert lines[1] == "a 0 2.300 0.10 0.20 -0.10 -0.10 0.20 0.50 0.50 0.03".split()
    assert lines[2] == "1 0.30 0.20 -0.10 0.10 0.40 0.60 0.70 0.05".split()
    assert lines[3] == "b 0 2.300 0.35 0.10 -0.35 -1.00 -1.00 0.50".split()  # a mean of steps 0 to 7 would be lower
    more = write_run(tmp_path / "b-2", FALL[:8] + 1, 2, STEPS[:8], init="skew")
    assert words_of(printed(*folders, more, "--by_layer"))[4][:4] == ["b", "0", "2.800", "0.35"]  # the mean of two


# ---- figures -----------------------------------------------------------------------------------------------------


def test_figures_hold_the_series_of_the_csv_files_with_a_band_over_seeds(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-{seed}", FALL + far * seed, seed, n_layer=3, init=name)
               for name, far in (("random", 0.04), ("skew", 0.5)) for seed in (1, 2)]
    assert not run(*folders, "--plot", tmp_path / "p.png")
    loss, *_ = axes = drawn[0].axes
    lines = [{line.get_label(): line.get_ydata() for line in axis.lines} for axis in axes]
    np.testing.assert_allclose(lines[0]["random"], FALL + 0.06)
    np.testing.assert_allclose(lines[0]["skew"], FALL + 0.75)
    assert 3 < loss.get_ylim()[1] < 4  # the first losses are cut off
    _, skew = [band.get_paths()[0].get_extents() for band in loss.collections]
    assert (skew.y0, skew.y1) == pytest.approx((2.5, 4.0))  # the end of the first seed, the start of the second
    np.testing.assert_allclose(lines[1]["random"], (np.arange(11) + 1) / 20)  # the median of 0, 1 and 4
    np.testing.assert_allclose(lines[2]["skew"], -np.arange(11) / 20)
    assert len(axes) == 4 and [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["random", "skew"]


def test_a_picture_of_several_tasks_has_no_losses_and_says_so(tmp_path, drawn):
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", causal=True)]
    assert not run(*folders, "--plot", tmp_path / "p.png")
    titles = [axis.get_title(loc="left") for axis in drawn[0].axes]
    assert titles == ["symmetry of $W_{qk}$", "directionality of $W_{qk}$", "symmetry of single heads"]
    assert "losses are not drawn" in drawn[0].legends[0].get_title().get_text()
