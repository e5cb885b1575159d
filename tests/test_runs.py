"""Comparisons of runs: their statistics, their files, and what analyze.py --runs prints. pytest tests/test_runs.py"""

import contextlib
import csv
import io
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import analyze
from config import run_file
from data import chance, drawing
from data.atomic import write_json
from data.pretrained import scores_table
from data.results import compare, exact, records, runs

ROOT = Path(analyze.__file__).parent
CSV = ROOT / "data" / "results" / "csv"
STEPS = np.arange(0, 1100, 100.0)
FALL = np.linspace(3, 2, 11)  # a baseline that ends at 2, and at 2.1 if it is smoothed
ZEROS = runs.RunScore(*[0.0] * len(runs.RunScore._fields))  # a fork may have a score more


# ---- a loss curve in one number, and chance ----------------------------------------------------------------------


@pytest.mark.parametrize("loss, expected", [
    (np.full(11, 1.0), 1.0),  # there at once
    (FALL, 0.0),  # there at the end
    (FALL + 0.5, -math.inf),  # never: less than any, and neither 0 nor 100 %
    (np.where(STEPS < 500, 3.0, 1.0), 0.4),  # the mean of three is 2.33 at step 500 and 1.67 at 600
    (np.where(STEPS == 500, 0.0, 3.0), 0.5),  # a single good evaluation of 0 does count, as its mean with two of 3 is 2
    (np.where(STEPS == 500, 1.0, 3.0), -math.inf),  # one of 1 does not
])
def test_speed_up_is_the_share_of_training_that_was_not_needed(loss, expected):
    assert compare.speed_up(pandas.Series(loss, STEPS), pandas.Series(FALL, STEPS)) == pytest.approx(expected)


NORMAL = np.random.default_rng(0).normal(0.4, 1, 12)


@pytest.mark.parametrize("differences, most_exact", [
    (NORMAL[:5], 20), (NORMAL[:6], 20), (NORMAL[:9], 20), (NORMAL[:8], 0), (NORMAL, 0),  # five exclude no difference
    (np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, -0.8]), 20), (np.zeros(3), 20)])  # sums are equal, but for rounding
def test_p_and_interval_are_those_of_all_signs_whether_these_are_counted_or_drawn(monkeypatch, differences, most_exact):
    monkeypatch.setattr(exact, "EXACT_PAIRS", most_exact)
    signs = np.array(list(itertools.product([-1, 1], repeat=len(differences))))  # (2^n, n)
    tried = np.linspace(-4, 4, 801)
    shifted = differences - tried[:, None]  # (801, n)
    as_far = np.abs(shifted @ signs.T) >= np.abs(shifted.sum(1, keepdims=True)) - 1e-9  # (801, 2^n)
    kept = tried[as_far.mean(1) > 0.05]
    p = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert exact.sign_flip(differences) == pytest.approx(p, abs=0 if most_exact else 4 * (p / exact.DRAWS) ** 0.5)
    assert exact.sign_flip(-1e-7 * differences) == exact.sign_flip(differences)  # neither sign nor unit matters
    found = exact.confidence_interval(differences)
    expected = (math.nan, math.nan) if len(kept) == 801 else (kept[0], kept[-1])
    np.testing.assert_allclose(found, expected, atol=0.01 if most_exact else 0.02)


def test_the_p_of_many_pairs_counts_what_we_saw_as_one_draw():
    assert exact.sign_flip(np.ones(60)) == 1 / exact.DRAWS


def test_holm_multiplies_by_the_tests_that_are_left():
    """Benjamini and Hochberg 1995, section 3.2: of these 15 tests three are significant after Holm's correction."""
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324,
          0.4262, 0.5719, 0.6528, 0.759, 1]
    corrected = exact.holm(ps)
    assert list(corrected[:4]) == pytest.approx([15 * 0.0001, 14 * 0.0004, 13 * 0.0019, 12 * 0.0095])
    assert (corrected < 0.05).tolist() == [True] * 3 + [False] * 12 and corrected.is_monotonic_increasing
    assert exact.holm([0.2, math.nan, 0.9]).tolist()[::2] == [0.4, 0.9]  # an arm without pairs is no test


# ---- folders of runs ---------------------------------------------------------------------------------------------


def write_run(folder, loss=FALL, seed=1, steps=STEPS, n_layer=2, **changes):
    """A finished run of one head with the given validation losses. Scores are known."""
    config = dict(max_iters=1000, n_layer=n_layer, n_head=1, seed=seed, out_dir=str(folder)) | changes
    origin = {key: config.pop(key) for key in records.ORIGIN if key in config}
    data = dict(sha256=dict(train=changes.get("sha256", "a"), val="b"), tokenizer=changes.get("tokenizer", "bytes"))
    write_json(folder / "run.json", dict(config=config, data=data, origin=origin))
    for name, header in runs.HEADERS.items():
        (folder / name).write_text(header)
    for i, (step, val_loss) in enumerate(zip(steps, loss)):
        runs.append(folder / "log.csv", [runs.LogRow(int(step), 0, val_loss=val_loss)])
        for layer in range(n_layer):
            row = ZEROS._replace(step=int(step), matrix="wqk", layer=layer, head="", symmetry=(i + layer**2) / 20,
                                 directionality=-i / 20, directionality_eq17=i / 50,
                                 update_symmetry=0.1 * layer if i else math.nan)
            runs.append(folder / "scores.csv", [row, row._replace(head=0, symmetry=-1.0)])
    return str(folder)


def run(*argv):
    """The line in which analyze.py --runs ends, or 0."""
    with pytest.raises(SystemExit) as e:
        analyze.main(["--runs", *map(str, argv)])
    return e.value.code


def printed(*argv):
    """What it prints if nothing is wrong."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run(*argv) == 0
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
    whole = words_of(printed(*run_arms(tmp_path), "--all", "--csv", tmp_path / "c.csv"))[1:4]
    # p: all six pairs of one sign, 2 / 2^6, twice over for two arms
    expected = [("random 2.035 baseline 0.53 -0.50", ""),
                ("fast 1.835 -0.200 [-0.200, -0.200] 0.062 0.53 -0.50", "6 20%"),
                ("slow 2.800 +0.765 [+0.740, +0.790] 0.062 0.53 -0.50", "6 not reached")]
    assert whole == [f"{short} {more}".split() for short, more in expected]
    header, *rows = words_of(printed(tmp_path / "c.csv"))
    assert header == "arm loss difference [95 %] p symmetry directionality".split()
    assert rows[:3] == [short.split() for short, _ in expected]
    # Arms and their baseline can be chosen, and then Holm counts these.
    _, fast, slow, *legend = words_of(printed(tmp_path / "c.csv", "--arms", "slow", "fast", "--baseline", "fast"))
    assert fast[0] == "fast" and "baseline" in fast and legend[0][0] == "loss:"  # without random
    assert slow[0] == "slow" and slow[-3] == "0.031"  # 2 / 2^6, once
    # The file: what all arms share, what each has changed, and their curves.
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert '"qk_std": "init_std"' in lines[0] and '"init"' not in lines[0] and "out_dir" not in lines[0]
    assert '"data_dir": "data/sympy/bytes"' in lines[0]
    assert lines[2] == '# config of fast {"init": "symmetric"}'
    rows = list(csv.DictReader(lines[4:]))
    assert len(rows) == 3 * 6 * 11
    expected = dict(
        arm="random", seed="1", step="100", train_loss="", val_loss="2.9100", symmetry="0.0750",
        directionality="-0.0500", directionality_eq17="0.0200", update_symmetry="0.0500",
        symmetry_0="0.0500", symmetry_1="0.1000", directionality_0="-0.0500", directionality_1="-0.0500")
    assert expected.items() <= rows[1].items()


def test_only_pairs_of_one_seed_are_compared_and_what_else_differs_is_said(tmp_path):
    folders = [write_run(tmp_path / f"random-{seed}", FALL + seed / 10, seed, commit=f"c{seed}") for seed in (1, 2)]
    folders += [write_run(tmp_path / f"other-{seed}", FALL + seed, seed, init="skew", commit="c1") for seed in (2, 3)]
    out = printed(*folders, "--all", "--csv", tmp_path / "c.csv")
    assert words_of(out)[2][2:] == ["+1.800", "0.53", "-0.50", "1", "not", "reached"]  # of seed 2 alone
    assert "Fewer than 6 pairs have none" in out and "nan" not in out
    assert "The commit of these runs differs: c1, c2." in out and "torch" not in out
    # Their file names every version that made an arm, also if it is one of what is put together.
    path = tmp_path / "c.csv"
    assert printed(path, write_run(tmp_path / "random-3", seed=3, commit="c3"), "--csv", path)
    assert "The commit of these runs differs: c1, c2, c3." in printed(path, "--arms", "random")


def test_a_run_in_progress_is_left_out_where_there_are_others_and_said(tmp_path, drawn):
    write_run(tmp_path / "random-1"), write_run(tmp_path / "random-2", FALL[:5], 2, STEPS[:5])
    for seed, n in (1, 5), (2, 7):
        write_run(tmp_path / f"part-{seed}", FALL[:n], seed, STEPS[:n], init="symmetric")
    out = printed(*tmp_path.iterdir(), "--plot", tmp_path / "p.png")
    assert words_of(out)[1] == ["random", "2.000", "baseline", "0.53", "-0.50"]
    assert words_of(out)[2][:4] == ["part", "2.500", "no", "pairs"]  # at steps 400 and 600, and not at 1000
    assert "random: 1 of 2 runs have finished. Only these" in out and "part: 0 of 2 runs have finished. So all" in out
    assert "none is compared with a run that is at another step" in out
    lines = {line.get_label(): len(line.get_xdata()) for line in drawn[0].axes[0].lines}
    assert (lines["random"], lines["part"]) == (11, 5)  # the whole one, and the steps that both have
    assert drawn[0].axes[1].get_title(loc="left") == "last loss so far [nats/token]"
    arms = [write_run(tmp_path / name, FALL[:5], steps=STEPS[:5], init=name) for name in ("skew", "tilted")]
    with open(tmp_path / "skew" / "log.csv", "r+") as file:
        file.truncate(file.read().index("400,"))  # it has scores of step 400, and the loss is to come
    assert words_of(printed(*arms, "--measure", "symmetry"))[2][1:3] == ["0.225", "+0.000"]  # both at step 400
    write_run(tmp_path / "tilted", FALL[:4], steps=STEPS[:4], init="tilted")
    assert words_of(printed(*arms, "--measure", "symmetry"))[2][2:4] == ["no", "pairs"]  # both with a loss of step 300


def test_a_comparison_is_drawn_again_from_its_csv_without_the_runs(tmp_path):
    # An arm that pandas could read as nan, and that is no baseline, because its scale is not BERT's; and other code's.
    folders = [write_run(tmp_path / "runs" / "null-1", n_layer=3, qk_std=0.1)]
    folders += [write_run(tmp_path / "runs" / "c._2-1", init="of_a_fork"), *run_arms(tmp_path / "runs", seeds=[1, 2])]
    path, again = tmp_path / "c.csv", tmp_path / "again.csv"
    first = printed(*folders, "--csv", path, "--plot", tmp_path / "a.png")
    assert first.splitlines()[1].startswith("random ")
    shutil.rmtree(tmp_path / "runs")
    assert printed(path, "--csv", again, "--plot", tmp_path / "b.png") == first
    assert again.read_text() == path.read_text()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    arms, _ = compare.pool([path])
    shapes = {name: of_arm[0].layers("symmetry").shape for name, of_arm in arms.items()}
    assert shapes["null"] == (11, 3) and shapes["random"] == (11, 2)


def test_a_command_ends_without_a_word_if_nobody_reads_its_output(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does
    with open(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert run(CSV / "positions.csv") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("change, argv, words", [  # of one file: the path, a pattern, what its first match becomes
    (None, "a-1 b-1 --baseline c", "no arm is called c: there are a, b"),
    (None, "a-1 c.csv", "two runs called a have the seed 1"),
    (("c.csv", "config of a {", 'config of a {"of_a_fork": 1, '), "c.csv a-2", "two runs called a differ in of_a_fork"),
    (("c.csv", "config of a {", 'config of a {"of_a_fork": 1, '), "a-2 c.csv", "two runs called a differ in of_a_fork"),
    (None, "a-1 --csv c.csv", "c.csv holds a run of b with the seed 1, which would be lost"),
    (None, "a-1 --csv no.text", "no.text is no comparison"),
    (None, "a-1 --plan a-1/log.csv", "a-1/log.csv is no comparison"),
    (None, "nowhere", "No such file or directory: 'nowhere'"),
    (("a-1/log.csv", r"(?s)\n.*", "\n"), "a-1", "a-1 has no row in its CSV files yet"),
    (("a-1/scores.csv", "^100,wqk,0,,", "100,wqk,0,,x"), "a-1", "scores.csv is damaged"),
    (("a-1/scores.csv", "chance", "luck"), "a-1", "scores.csv is damaged ('chance')"),
    (("a-1/log.csv", r"\Z", "1000,0,,2.0,,\n"), "a-1", "log.csv or scores.csv is damaged"),
    (("a-1/log.csv", r"^(100,.*)\n", r"\1,"), "a-1", "log.csv or scores.csv is damaged"),  # two rows in one
    (("a-1/scores.csv", r"(?s)^500,.*", ""), "a-1", "scores.csv ends at step 400, and log.csv at step 1000"),
    (("a-1/run.json", r"(?s)\A.*", "{"), "a-1", "run.json cannot be read"),
    (("a-1/run.json", ": 1000", ': "many"'), "a-1", "run.json cannot be read: max_iters = 'many', expected int"),
    (("a-1/run.json", '"config": {', '"config": 5, "x": {'), "a-1", "run.json cannot be read"),
    (("c.csv", '"n_embd": 256', '"n_embd": "x"'), "c.csv", "damaged (n_embd = 'x', expected int"),
    (("a-1/log.csv", "^100,0,,[0-9.]+", "100,0,,inf"), "a-1", "log.csv or scores.csv is damaged (a loss is infinite)"),
    (None, "b {}-1 --csv new.csv", "an arm is called 'b {}': expected letters, digits"),
    (("c.csv", "^# config of a .*\n", ""), "c.csv", "c.csv is no comparison, or damaged"),
    (("c.csv", "^# config {.*\n", ""), "c.csv", "c.csv is no comparison, or damaged (it has no line # config {...})"),
    (("c.csv", r"(?s)^(arm,.*?\n).*", r"\1"), "c.csv", "c.csv is no comparison, or damaged (it has no rows)"),
    (("c.csv", r"\A", "# planned [5]\n"), "c.csv", "c.csv is no comparison, or damaged"),
    (("c.csv", r"\A", '# planned [["loss", 5]]\n'), "c.csv", "expected (measure, left, '>' or '<', right)"),
    (("c.csv", r"\A", '# planned [["loss", 5, "<", "a"]]\n'), "c.csv", "expected (measure, left, '>' or '<', right)"),
])
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_lost(tmp_path, monkeypatch, change, argv, words):
    monkeypatch.chdir(tmp_path)
    assert not run(write_run(Path("a-1")), write_run(Path("b-1"), init="skew"), "--csv", "c.csv")
    write_run(Path("a-2"), seed=2)
    Path("no.text").write_bytes(bytes(range(128, 256)))
    shutil.copytree("b-1", "b {}-1")
    if change:
        path, pattern, replacement = change
        text, n_changed = re.subn(pattern, replacement, Path(path).read_text(), count=1, flags=re.M)
        assert n_changed == 1
        Path(path).write_text(text)
    before = {path: path.read_bytes() for path in Path().glob("**/*.*")}
    assert words in (said := run(*re.split(" (?![{])", argv))) and said.startswith("analyze.py: ") and "\n" not in said
    assert {path: path.read_bytes() for path in Path().glob("**/*.*")} == before


def test_runs_of_other_length_or_tokenizer_are_not_tested_and_it_is_said_why(tmp_path):
    reasons = {"b": "max_iters", "c": "sha256, tokenizer", "d": "causal, objective", "e": "causal"}
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", FALL[:6], steps=STEPS[:6], max_iters=500),
               write_run(tmp_path / "c-1", tokenizer="gpt2", sha256="c"), write_run(tmp_path / "d-1", causal=True),
               write_run(tmp_path / "e-1", causal=True, objective="masked")]
    out = printed(*folders)
    assert [line.count("baseline") for line in out.splitlines()[1:6]] == [1] * 5
    for name, keys in reasons.items():
        assert f"{name} is not compared with a, because they differ in {keys}.\n" in out


def test_of_a_run_that_is_the_current_folder_rows_that_are_being_written_are_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "a-1"))
    with open("scores.csv", "a") as f:
        f.write("1100,wqk,0,,0.1,0.1,0.1,0.1,0.1\n")  # the first row of a step whose other rows are still to come
    for name in "log.csv", "scores.csv":
        text = Path(name).read_text()
        Path(name).write_text(text + text.splitlines()[-1][:-3])
    whole = records.read_run(".")
    assert whole.arm == "a"
    assert list(whole.curve("val_loss").index) == list(whole.curve("symmetry").index) == list(STEPS)


def test_a_run_of_before_a_fork_added_a_column_is_read_too(tmp_path):
    whole = records.read_run(write_run(tmp_path / "a-1"))
    for name, column in ("log.csv", "tokens_per_s"), ("scores.csv", "directionality_eq17"):
        path = tmp_path / "a-1" / name
        pandas.read_csv(path).drop(columns=column).to_csv(path, index=False)
    older = records.read_run(tmp_path / "a-1")
    pandas.testing.assert_frame_equal(older.table, whole.table.drop(columns="directionality_eq17"))


def test_a_score_that_a_header_lacks_is_an_error_and_no_shifted_column(monkeypatch):
    """As of a fork that adds one to analyze.Scores and to nothing else."""
    def more(scores, numbers=analyze.Scores.numbers):
        return numbers(scores) | dict(of_a_fork=numbers(scores)["symmetry"])

    monkeypatch.setattr(analyze.Scores, "numbers", more)
    with pytest.raises(TypeError, match="of_a_fork"):
        analyze.run_rows(0, "wqk", [2], torch.randn(2, 1, 8, 8), None)
    with pytest.raises(KeyError, match="of_a_fork"):
        scores_table.score_table([dict(of_a_fork=0.1)], {})


def test_every_comparison_that_is_kept_names_clean_commits_of_this_history_and_has_its_plan():
    """The plan stands in the file as it does in config/plans, so it was not changed after the runs."""
    if subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=CSV, capture_output=True,
                      text=True).stdout.strip() != "false":
        pytest.skip("this is no whole clone: its history is not there")
    for path in sorted(CSV.glob("*.csv")):
        if path.stem == "public":  # scores of models
            continue
        there, planned = records.read_comparison(path)
        in_plan = run_file(ROOT / f"config/plans/{path.stem}.py").get("planned", [])  # depth has no tests
        assert planned == [list(test) for test in in_plan]
        for record in there:
            for commit in record.origin["commit"]:
                is_here = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=CSV)
                assert is_here.returncode == 0, f"{path.name}: {commit}"


# ---- figures -----------------------------------------------------------------------------------------------------


def test_figures_hold_the_series_of_the_csv_files_and_a_band_over_seeds_for_six_arms_at_most(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-{seed}", FALL + far * seed, seed, n_layer=3, init=name)
               for name, far in (("random", 0.04), ("skew", 0.5)) for seed in (1, 2)]
    assert not run(*folders, "--plot", tmp_path / "p.png")
    loss, ends, *_ = axes = drawn[0].axes
    lines = [{line.get_label(): line.get_ydata() for line in axis.lines} for axis in axes]
    np.testing.assert_allclose(lines[0]["random"], FALL + 0.06)
    np.testing.assert_allclose(lines[0]["skew"], FALL + 0.75)
    assert 3 < loss.get_ylim()[1] < 4  # the first losses are cut off
    _, skew = [band.get_paths()[0].get_extents() for band in loss.collections]
    assert (skew.y0, skew.y1) == pytest.approx((2.5, 4.0))  # the end of the first seed, the start of the second
    assert sorted(ends.lines[0].get_xdata()) == pytest.approx([2.04, 2.08])
    assert [text.get_text() for text in ends.get_yticklabels()] == ["random", "skew"]
    np.testing.assert_allclose(lines[2]["random"], (np.arange(11) + 1) / 20)  # the median of 0, 1 and 4
    np.testing.assert_allclose(lines[3]["skew"], -np.arange(11) / 20)
    more = [write_run(tmp_path / f"an_arm_{i}-1") for i in range(5)]
    assert not run(*folders, *more, "--plot", tmp_path / "p.png")
    loss, ends, *_ = drawn[1].axes
    assert not loss.collections and len(loss.lines) == 7 and ends.get_yticklabels()[-1].get_text() == "an arm 4"


def test_a_picture_whose_name_is_an_ending_alone_is_written(tmp_path):
    with drawing.figure(tmp_path / ".png", 1, 1):
        pass
    assert (tmp_path / ".png").stat().st_size > 1000


def test_a_run_with_one_step_is_drawn_as_dots(tmp_path, drawn):
    folders = [write_run(tmp_path / "a-1", FALL[:1], steps=STEPS[:1]), write_run(tmp_path / "b-1", init="skew")]
    assert not run(folders[0], "--plot", tmp_path / "p.png") and not run(*folders, "--plot", tmp_path / "p.png")
    for figure in drawn:
        for axis in figure.axes:
            assert all(line.get_marker() == "." for line in axis.lines if len(line.get_xdata()) == 1)
    long, short = drawn[1].axes[0].lines
    assert (long.get_marker(), short.get_marker()) == (".", "None")


def test_a_loss_that_rises_far_and_falls_again_adds_no_losses_below_0_to_the_axis(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-1", np.where(STEPS == 500, 90, FALL)) for name in "ab"]
    assert not run(*folders, "--plot", tmp_path / "p.png")
    low, high = drawn[0].axes[0].get_ylim()
    assert low == 0 and 2.9 <= high < 3.1


def test_arms_whose_colours_are_those_of_others_are_in_the_legend_and_their_means_are_whole_bars(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-1") for name in "abcdefghijkl"]
    assert not run(*folders, "--plot", tmp_path / "p.png")
    _, ends, *_ = drawn[0].axes
    colours = [text.get_color() for text in ends.get_yticklabels()]
    assert len(set(colours[:10])) == 10 and colours[10:] == colours[1:3]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()][:2] == ["k", "l"]
    assert {line.get_linestyle() for line in ends.lines if not line.get_marker() == "."} == {"-"}


def test_losses_of_two_tasks_have_an_axis_each_and_the_title_says_in_what_the_runs_differ(tmp_path, drawn):
    runs = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", init="skew"),
            write_run(tmp_path / "c-1", causal=True)]
    assert not run(*runs, "--plot", tmp_path / "p.png")
    losses, others, scores, *_ = [[line.get_label() for line in axis.lines] for axis in drawn[0].axes]
    assert losses == ["a", "b"] and others == ["c"] and scores[:3] == ["a", "b", "c"]
    assert drawn[0].get_suptitle() == "Runs that differ in causal, init, objective"
    assert not run(runs[0], write_run(tmp_path / "a-2", seed=2), "--plot", tmp_path / "p.png")
    assert drawn[1].get_suptitle() == "Runs that differ in seeds alone"


def test_of_a_single_run_the_ends_are_printed_and_every_layer_is_drawn(tmp_path, drawn):
    folder = write_run(tmp_path / "a-1", init="skew", n_embd=64)
    out = printed(folder, "--plot", tmp_path / "p.png", "--csv", tmp_path / "c.csv")
    # A layer, with its start and end: symmetry, that of its single head, and directionality
    assert words_of(out)[2] == ["1", "0.05", "0.55", "-1.00", "-1.00", "0.00", "-0.50"]
    assert out.splitlines()[3:] == ["validation loss 2.0000 nats/token"]
    loss, symmetry, directionality, heads, *_, empty = drawn[0].axes
    assert [line.get_label() for line in symmetry.lines[:2]] == ["layer 0", "layer 1"]  # as in the table
    assert set(heads.lines[1].get_ydata()) == {-1} and not empty.axison
    np.testing.assert_allclose(loss.lines[1].get_ydata(), FALL)
    np.testing.assert_allclose(symmetry.lines[1].get_ydata(), (np.arange(11) + 1) / 20)
    low, high = chance.interval("directionality", 64, chance.limit_of_random(64, 2.0))
    band = directionality.patches[0].get_bbox()
    assert (band.y0, band.y1) == pytest.approx((low, high)) and directionality.patches[0].get_label() == drawing.RANDOM
    assert printed(tmp_path / "c.csv") == out
    assert words_of(printed(folder, "--measure", "symmetry_1"))[1] == "a 0.550 baseline 0.53 -0.50".split()
    assert "no run has symmetry_9" in run(folder, "--measure", "symmetry_9")


def test_a_score_that_is_rounded_to_0_has_no_minus(tmp_path):
    folders = [write_run(tmp_path / f"{name}-1") for name in "ab"]
    for folder in folders:
        path = Path(folder, "scores.csv")
        path.write_text(path.read_text().replace(",-0.500000,", ",-0.004000,"))  # directionalities at the end
    plan = tmp_path / "plan.py"
    plan.write_text('arms = dict(a={}, b={})\nplanned = [["loss", "a", ">", "b"]]\n')
    for argv in folders[:1], folders, [*folders, "--plan", plan]:
        assert "0.00" in printed(*argv).split() and "-0.00" not in printed(*argv).split()
