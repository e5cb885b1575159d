"""data/results/compare.py and analyze.py --runs, on curves and numbers made by hand. pytest tests/test_runs.py"""

import csv
import math
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import analyze
from data.results import compare, figures_runs, records, report, runs

ROOT = Path(__file__).parents[1]
STEPS = np.arange(0, 1100, 100.0)
FALL = np.linspace(3, 2, 11)  # a baseline that ends at 2


# ---- a loss curve in one number ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss, expected", [
    (np.full(11, 1.0), 1.0),  # there at once
    (FALL, 0.0),  # there at the end
    (FALL + 0.5, -math.inf),  # never: less than any, and neither 0 nor 100 %
    (np.where(STEPS < 500, 3.0, 1.0), 0.4),  # the mean of three is 2.33 at step 500 and 1.67 at 600
    (np.where(STEPS == 500, 0.0, 3.0), 0.5),  # a single good evaluation of 0 does count, as its mean with two of 3 is 2
    (np.where(STEPS == 500, 1.0, 3.0), -math.inf),  # one of 1 does not
])
def test_speed_up_is_the_share_of_training_that_was_not_needed(loss, expected):
    assert compare.smooth(FALL)[-1] == pytest.approx(2.1)
    assert compare.speed_up(STEPS, loss, FALL) == pytest.approx(expected)


def test_of_a_level_never_reached_and_of_no_training_at_all_nothing_is_said():
    assert compare.first_step(STEPS, FALL, 2.75) == 300 and compare.first_step(STEPS, FALL, 1.9) == math.inf
    assert math.isnan(compare.speed_up(STEPS[:1], FALL[:1], FALL[:1]))


# ---- chance ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differences, p", [
    ([1.0, 2.0, 3.0, 4.0, 5.0], 2 / 32),  # all of one sign: only they and their opposite are as far from 0
    ([-1.0, 2.0, 3.0, 4.0, 5.0], 4 / 32),  # sum 13: one more way is as far, 15, and both turned around
    ([1.0, -2.0, 3.0, 4.0, 5.0], 6 / 32),  # sum 11: so far come 15, 13 (the 1 turned), 11 (the 2)
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2 / 256),
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0], (2 + 2 * 8) / 256),  # one of the eight the other way: 8 ways
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0], (2 + 2 * 8 + 2 * 28) / 256),  # two of eight: 28 ways
    ([0.1, 0.2, -0.3], 1.0),  # nothing is nearer to 0
    ([0.0, 0.0, 0.0], 1.0),
    ([7.0], 1.0)])
def test_sign_flips_are_counted_as_by_hand(differences, p):
    assert compare.sign_flip(np.array(differences)) == p
    assert compare.sign_flip(-1e-7 * np.array(differences)) == p  # neither sign nor unit matters


def test_a_run_that_never_gets_there_is_later_than_any_and_it_does_not_matter_by_how_much():
    never = math.inf
    assert compare.sign_flip_of_ranks([100, 200, 300, 400, 500], [600, 700, 800, 900, never]) == 2 / 32
    assert compare.sign_flip_of_ranks([100, 200, 300, 400, 500], [never] * 5) == 2 / 32
    assert compare.sign_flip_of_ranks([never] * 5, [never] * 5) == 1.0
    # ranks 1, 2 | 3, 4.5 and 4.5 for two that never do: differences -2, -2.5; with 900 for one of them the same order
    assert compare.sign_flip_of_ranks([1, 2, never], [3, never, never]) == 0.5  # two pairs count, the third is even
    assert compare.sign_flip_of_ranks([100, never], [never, 100]) == 1.0


@pytest.mark.parametrize("n", [6, 7, 9])
def test_the_interval_has_the_differences_that_sign_flips_do_not_reject(n):
    differences = np.random.default_rng(n).normal(0.3, 1, n)
    low, high = compare.interval(differences)
    tried = np.linspace(low - 1, high + 1, 801)
    kept = [d for d in tried if compare.sign_flip(differences - d) > 0.05]
    inside = [d for d in tried if low <= d <= high]
    assert 0 < len(kept) < len(tried)
    assert kept == inside


def test_five_pairs_exclude_no_difference():
    assert np.isnan(compare.interval(np.ones(5))).all()
    assert compare.interval(np.arange(6.0)) == (0, 5)  # six pairs: the smallest and the largest


def test_sign_flips_are_right_in_95_of_100_when_there_is_nothing():
    draws = np.random.default_rng(0).standard_t(2, size=(2000, 9))
    ps = np.array([compare.sign_flip(draw) for draw in draws])
    assert (ps <= 0.05).mean() == pytest.approx(0.05, abs=0.015) and ps.min() == 2 / 2**9


def test_holm_is_that_of_a_worked_example():
    corrected = compare.holm([0.01, 0.04, 0.03, 0.005])  # 4 x 0.005, 3 x 0.01, 2 x 0.03, then no less than that
    np.testing.assert_allclose(corrected, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(compare.holm([0.6, 0.7, math.nan]), [1.0, 1.0, math.nan])  # a baseline has none
    assert len(compare.holm([])) == 0


# ---- folders of runs ---------------------------------------------------------------------------------------------


def write_run(folder, loss=FALL, seed=1, steps=STEPS, n_layer=2, n_head=2, without=(), **changes):
    """A finished run with the given validation losses. Scores are known; symmetries of heads are 0.2 apart."""
    config = dict(max_iters=1000, batch_size=8, block_size=16, eval_interval=100, eval_iters=2, mlm_probability=0.15,
                  n_layer=n_layer, n_head=n_head, causal=False, init="random", qk_std=0.02, v_std=0.02,
                  constraint="none", seed=seed, out_dir=str(folder)) | changes
    config = {key: value for key, value in config.items() if key not in without}
    folder.mkdir(parents=True)
    data = dict(checksum=changes.get("checksum", "a"), tokenizer=changes.get("tokenizer", "bytes"))
    runs.write_json(folder / "run.json", dict(config=config, data=data))
    runs.append(folder / "log.csv", runs.LOG_COLUMNS, [[int(s), 0, "", x, "", ""] for s, x in zip(steps, loss)])
    runs.append(folder / "scores.csv", runs.SCORES_COLUMNS, [
        [int(s), layer, head, (i + layer) / 20 + 0.2 * (head or 0), -i / 20, i / 50, "nan" if i == 0 else 0.1 * layer]
        for i, s in enumerate(steps) for layer in range(n_layer) for head in ("", *range(n_head))])
    return str(folder)


def test_a_run_that_is_the_current_folder_has_the_name_of_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "random-1"))
    assert records.read_run(".").arm == "random"


def run(*argv):
    with pytest.raises(SystemExit) as e:
        analyze.main(["--runs", *argv])
        raise SystemExit(0)
    return e.value.code


def run_arms(tmp_path, seeds=range(1, 7)):
    """random falls to 2 + seed / 100, fast is 0.2 below it from step 500 on, slow stays at 2.8, in every seed."""
    folders = []
    for seed in seeds:
        plain = FALL + seed / 100
        fast = np.where(STEPS < 500, plain, plain - 0.2)
        folders.append(write_run(tmp_path / f"fast-{seed}", fast, seed, init="symmetric"))
        folders.append(write_run(tmp_path / f"random-{seed}", plain, seed))
        folders.append(write_run(tmp_path / f"slow-{seed}", np.maximum(plain, 2.8), seed, init="skew"))
    return folders


def test_arms_are_pooled_over_seeds_and_measured_against_the_baseline_of_their_seed(tmp_path, capsys):
    assert not run(*run_arms(tmp_path), "--level", "2.35")
    random, fast, slow = [line.split() for line in capsys.readouterr().out.splitlines()[1:4]]
    assert random == ["random", "6", "of", "6", "800", "2.035", "baseline", "0.53", "-0.50", "0.05"]
    # p: all six pairs of one sign, 2 / 2^6, twice over for two arms; smoothed, 2.35 is reached at 800 and 700
    assert fast == ["fast", "6", "of", "6", "700", "0.062", "1.835", "-0.200", "[-0.200,", "-0.200]", "0.062", "20%",
                    "0.53", "-0.50", "0.05"]
    assert slow == ["slow", "0", "of", "6", "not", "passed", "0.062", "2.800", "+0.765", "[+0.740,", "+0.790]",
                    "0.062", "not", "reached", "0.53", "-0.50", "0.05"]


def test_another_baseline_can_be_chosen_and_an_unknown_one_is_refused(tmp_path, capsys):
    folders = run_arms(tmp_path, seeds=[1, 2])
    assert not run(*folders, "--baseline", "slow")
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[0] == "slow" and "baseline" in out[1] and "-0.785" in out[3] and out[3].startswith("random")
    assert "with 2 pairs and 2 tests no p can come below 0.05" in "\n".join(out)
    assert run(*folders, "--baseline", "slo") == "analyze.py: no arm is called slo: there are fast, random, slow"


def test_arms_can_be_chosen_and_then_holm_counts_these(tmp_path, capsys):
    run(*run_arms(tmp_path), "--csv", str(tmp_path / "c.csv"))
    capsys.readouterr()
    assert not run(str(tmp_path / "c.csv"), "--arms", "slow", "fast", "--baseline", "fast")
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("fast") and out[2].startswith("slow") and out[2].count("0.031") == 2  # 2 / 2^6, once
    assert "random" not in "".join(out)
    assert "no arm is called sloe: there are" in run(str(tmp_path / "c.csv"), "--arms", "sloe")
    left_out = run(str(tmp_path / "c.csv"), "--arms", "fast", "slow", "--baseline", "random")
    assert left_out == "analyze.py: --baseline=random is none of --arms: add it there"


def test_what_one_seed_gains_over_another_stands_below_the_table(tmp_path, capsys):
    folders = [write_run(tmp_path / f"random-{seed}", FALL + seed / 10, seed) for seed in (1, 2)]
    assert not run(*folders)
    # seed 1 is below seed 2's last loss, 2.3 smoothed, at step 900; seed 2 never at seed 1's
    assert "random, one seed against another: speed-up not reached, from 10% to 10%, not reached by 1 of 2" \
        in capsys.readouterr().out


def test_only_pairs_of_one_seed_are_compared(tmp_path, capsys):
    folders = [write_run(tmp_path / f"random-{seed}", FALL, seed) for seed in (1, 2)]
    folders += [write_run(tmp_path / f"other-{seed}", FALL + seed, seed, init="skew") for seed in (2, 3)]
    assert not run(*folders)
    out = capsys.readouterr().out
    assert "+2.000" in out.splitlines()[2]  # of seed 2 alone
    assert "other: 1 of its seeds are seeds of random, and only these are compared" in out


def test_a_run_in_progress_is_left_out_where_there_are_others_and_said(tmp_path, capsys, drawn):
    write_run(tmp_path / "random-1"), write_run(tmp_path / "random-2", FALL[:5], 2, STEPS[:5])
    write_run(tmp_path / "part-1", FALL[:5], steps=STEPS[:5], init="symmetric")
    assert not run(*(str(tmp_path / name) for name in ("random-1", "random-2", "part-1")), "--plot",
                   str(tmp_path / "p.png"))
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[:5] == ["random", "1", "of", "1", "600"]
    assert "random: 1 of its runs have not finished (left out), one is at 400" in out
    assert "part: 1 of its runs have not finished (counted as they are), one is at 400" in out
    assert (tmp_path / "p.png").exists() and (tmp_path / "p_layers.png").exists()


def test_a_comparison_is_drawn_again_from_its_csv_without_the_runs(tmp_path, capsys):
    folders = run_arms(tmp_path / "runs", seeds=[1, 2])
    assert not run(*folders, "--csv", str(tmp_path / "c.csv"), "--plot", str(tmp_path / "a.png"))
    first = capsys.readouterr().out
    shutil.rmtree(tmp_path / "runs")
    assert not run(str(tmp_path / "c.csv"), "--csv", str(tmp_path / "again.csv"), "--plot", str(tmp_path / "b.png"))
    assert capsys.readouterr().out == first
    for name in "", "_layers":
        assert (tmp_path / f"a{name}.png").read_bytes() == (tmp_path / f"b{name}.png").read_bytes()
    assert sorted((tmp_path / "again.csv").read_text()) == sorted((tmp_path / "c.csv").read_text())  # arms in order


def test_the_csv_of_a_comparison_holds_its_curves_and_what_its_arms_have_changed(tmp_path):
    run(*run_arms(tmp_path, seeds=[3]), "--csv", str(tmp_path / "c.csv"))
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert '"qk_std": 0.02' in lines[0] and '"init"' not in lines[0] and "out_dir" not in lines[0]
    assert '"data_dir": "data/stdlib/bytes"' in lines[0]  # `python -m config c.csv` needs it
    assert lines[2] == '# config of fast {"init": "symmetric"}'
    rows = list(csv.DictReader(lines[4:]))
    assert len(rows) == 33 and rows[1] == dict(
        arm="random", seed="3", step="100", train_loss="", val_loss="2.9300", symmetry="0.0750",
        directionality="-0.0500", directionality_eq17="0.0200", update_symmetry="0.0500", symmetry_std="0.1000",
        symmetry_0="0.0500", symmetry_1="0.1000", directionality_0="-0.0500", directionality_1="-0.0500")


def test_a_key_that_is_newer_than_a_run_or_a_comparison_has_its_default(tmp_path, capsys):
    old = write_run(tmp_path / "old-1", without=["qk_norm", "diagonal", "objective"])
    new = write_run(tmp_path / "new-1")
    assert not run(old, new, "--csv", str(tmp_path / "c.csv"))
    text = (tmp_path / "c.csv").read_text()
    assert '"diagonal": 0.0, ' in text
    (tmp_path / "c.csv").write_text(text.replace('"diagonal": 0.0, ', ""))
    capsys.readouterr()
    assert not run(str(tmp_path / "c.csv")) and "old" in capsys.readouterr().out


@pytest.mark.parametrize("content, words", [
    (b"# config {}\narm,seed,step\n", "is damaged (no run is in it)"),
    (b"model,stack\nbert,\n", "is no CSV file of --runs"),
    (b"", "is no CSV file of --runs"),
    (bytes(range(128, 256)), "is no CSV file of --runs")])
def test_a_csv_of_another_form_is_refused(tmp_path, content, words):
    (tmp_path / "x.csv").write_bytes(content)
    assert words in (code := run(str(tmp_path / "x.csv"))) and "\n" not in code


@pytest.mark.parametrize("pattern, replacement", [
    ("^# config of a .*\n", ""), ("^# config {", "# config {,"), ("^a,1,100,", "a,1,100,x"), ("^a,1,100,.*", "a"),
    ("(?s)^a,1,.*", "a,1,0\n"), ("^a,", "\udcff,")])
def test_a_comparison_that_is_damaged_is_refused_in_a_line(tmp_path, pattern, replacement):
    path = tmp_path / "c.csv"
    assert not run(write_run(tmp_path / "a-1"), "--csv", str(path))
    text, n_changed = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.M)
    path.write_text(text, errors="surrogateescape")  # \udcff is a byte that is no UTF-8
    assert n_changed == 1 and "c.csv is damaged" in (code := run(str(path))) and "\n" not in code


def test_the_name_of_an_arm_may_be_any_text(tmp_path, capsys):
    folders = [write_run(tmp_path / f"{name}-1", init=init)
               for name, init in (("of mine, too", "random"), ("#b", "skew"), ("NA", "tilted"))]
    assert not run(*folders, "--csv", str(tmp_path / "c.csv"))
    first = capsys.readouterr().out
    assert not run(str(tmp_path / "c.csv")) and capsys.readouterr().out == first
    assert all(name in first for name in ("of mine, too ", "#b ", "NA "))


def test_a_name_with_dollars_is_drawn_as_it_is(tmp_path):
    folders = [write_run(tmp_path / f"{name}-1", n_layer=1) for name in (r"a$\frac$", "lr_$1^$")]  # formulas cut short
    assert not run(*folders, "--plot", str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").exists()


def test_rows_of_a_comparison_may_be_in_any_order(tmp_path, capsys):
    path = tmp_path / "c.csv"
    assert not run(*run_arms(tmp_path), "--csv", str(path))
    first = capsys.readouterr().out
    lines = path.read_text().splitlines()
    n_head = 1 + max(i for i, line in enumerate(lines) if line.startswith(("#", "arm,")))
    arms_in_order = sorted(lines[n_head:], key=lambda line: line.split(",")[0])
    newest_first = sorted(arms_in_order, key=lambda line: -int(line.split(",")[2]))
    path.write_text("\n".join(lines[:n_head] + newest_first) + "\n")
    assert not run(str(path)) and capsys.readouterr().out == first


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, 2, 5])
def test_seeds_that_have_come_less_far_are_drawn_as_far_as_all_have(tmp_path, capsys, n):
    folders = [write_run(tmp_path / "random-1"), write_run(tmp_path / "random-2", FALL[:n], 2, STEPS[:n])]
    assert not run(*folders, "--plot", str(tmp_path / "p.png"), "--csv", str(tmp_path / "t.csv"))
    assert (tmp_path / "p.png").exists() and (tmp_path / "p_layers.png").exists()
    assert "1 of its runs have not finished" in capsys.readouterr().out


def test_seeds_with_rows_at_other_steps_are_averaged_where_both_have_one():
    steps, values = figures_runs.stack_curves([np.array([0, 10, 15, 20, 30]), np.array([0, 10, 20, 30, 40])],
                                              [np.array([0, 1, 9, 2, 3]), np.array([4, 5, 6, 7, 8])])
    assert steps.tolist() == [0, 10, 20, 30] and values.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_comparison_is_not_written_over_by_one_that_lacks_some_of_its_runs(tmp_path):
    first, second = write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", init="skew")
    path = tmp_path / "c.csv"
    assert not run(first, second, "--csv", str(path))
    before = path.read_bytes()
    assert "holds a run of b with the seed 1, which would be lost" in run(first, "--csv", str(path))
    assert "holds a run of b" in run(str(path), "--arms", "a", "--csv", str(path))
    assert path.read_bytes() == before
    other = tmp_path / "x.csv"
    other.write_bytes(bytes(range(128, 256)))
    assert "holds something else" in run(first, "--csv", str(other))
    assert not run(str(path), write_run(tmp_path / "c-1", init="tilted"), "--csv", str(path))  # one more is welcome


def test_there_is_nothing_to_write_of_the_authors_runs_alone(tmp_path):
    theirs = ROOT / "data" / "results" / "csv" / "published" / "loss_curves.csv"
    assert "nothing to write in" in run(str(theirs), "--csv", str(tmp_path / "c.csv"))


@pytest.mark.parametrize("changes, words", [
    (dict(max_iters=500), "max_iters (500, 1000)"), (dict(checksum="b"), "checksum (b, a)"),
    (dict(tokenizer="gpt2", checksum="c"), "checksum (c, a), tokenizer (gpt2, bytes)"),
    (dict(causal=True), "causal (True, False), objective (next, masked)"),
    (dict(causal=True, objective="masked"), "causal (True, False)")])
def test_runs_of_other_length_or_tokenizer_are_drawn_and_not_tested_and_it_is_said_why(tmp_path, capsys, drawn, changes,
                                                                                       words):
    steps = STEPS[STEPS <= changes.get("max_iters", 1000)]
    folders = [write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", FALL[: len(steps)], steps=steps, **changes)]
    assert not run(*folders, "--csv", str(tmp_path / "c.csv"), "--plot", str(tmp_path / "p.png"))
    out = capsys.readouterr().out
    assert [line.count("baseline") for line in out.splitlines()[1:3]] == [1, 1]
    assert f"b is not tested against a: they differ in {words}" in out
    assert {"a", "b"} <= {line.get_label() for line in drawn[0].axes[0].lines}
    assert not run(str(tmp_path / "c.csv")) and capsys.readouterr().out == out


def test_where_no_loss_comes_near_the_level_nothing_is_said_of_it(tmp_path, capsys, drawn):
    folders = [write_run(tmp_path / f"{name}-1", FALL + 4, init=name) for name in ("random", "skew")]
    assert not run(*folders, "--plot", str(tmp_path / "p.png"))
    header, *lines = capsys.readouterr().out.splitlines()
    assert "2.5" not in header and "not" not in "".join(lines[:2])
    assert "no loss comes to 2.5 nats/token: --level sets another level" in lines
    assert drawn[0].axes[0].get_ylim()[0] > 5  # losses from 6 to 7 fill their panel


def test_two_runs_of_one_name_must_differ_in_the_seed_alone(tmp_path):
    first = write_run(tmp_path / "x" / "a-1")
    deeper = write_run(tmp_path / "y" / "a-2", seed=2, n_layer=3)
    assert "two runs called a differ in n_layer: 3, 2" in run(first, deeper)
    assert "two runs called a have the seed 1" in run(first, write_run(tmp_path / "z" / "a-1"))


@pytest.mark.parametrize("damage, words", [
    (lambda f: (f / "log.csv").unlink(), "log.csv: No such file"),
    (lambda f: (f / "log.csv").write_text(""), "has no row in its CSV files yet"),
    (lambda f: (f / "log.csv").write_text(",".join(runs.LOG_COLUMNS) + "\n"), "has no row in its CSV files yet"),
    (lambda f: (f / "scores.csv").write_text("step,layer\n"), "is not a scores.csv"),
    (lambda f: (f / "run.json").write_text("{"), "run.json cannot be read")])
def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, damage, words):
    folder = write_run(tmp_path / "a-1")
    damage(tmp_path / "a-1")
    assert words in (code := run(folder)) and "\n" not in code


def test_a_row_that_is_being_written_is_left_out(tmp_path):
    folder = write_run(tmp_path / "a-1")
    with open(tmp_path / "a-1" / "scores.csv", "a") as f:
        f.write("1100,0,,0.1,0.1,0.1,0.1\n")  # the first row of a step whose other rows are still to come
    for name in "log.csv", "scores.csv":
        text = (tmp_path / "a-1" / name).read_text()
        (tmp_path / "a-1" / name).write_text(text + text.splitlines()[-1][:-3])
    whole = records.read_run(folder)
    assert len(whole.eval_steps) == len(whole.steps) == 11


def test_figures_hold_the_series_of_the_csv_files(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-{seed}", FALL + 0.1 * seed, seed, init=name)
               for name in ("random", "skew") for seed in (1, 2)]
    assert not run(*folders, "--plot", str(tmp_path / "p.png"))
    loss, ends, symmetry, directionality = drawn[0].axes
    means = [line for line in loss.lines if line.get_label() in ("random", "skew")]
    assert len(means) == 2
    for line in means:
        np.testing.assert_allclose(line.get_ydata(), FALL + 0.15)
    assert sorted(ends.lines[0].get_xdata()) == pytest.approx([2.1, 2.2])
    assert [text.get_text() for text in ends.get_yticklabels()] == ["random", "skew"]
    np.testing.assert_allclose(symmetry.lines[0].get_ydata(), (np.arange(11) + 0.5) / 20)  # median of the two layers
    np.testing.assert_allclose(directionality.lines[1].get_ydata(), -np.arange(11) / 20)
    np.testing.assert_allclose(drawn[1].axes[0].lines[1].get_ydata(), (np.arange(11) + 1) / 20)  # random, layer 1


def test_last_losses_of_other_tasks_are_not_drawn_side_by_side(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-1", causal=name == "decoder") for name in ("random", "decoder")]
    assert not run(*folders, "--plot", str(tmp_path / "p.png"))
    assert len(drawn[0].axes) == 3 and "of several tasks" in drawn[0].axes[0].get_title(loc="left")


def test_seeds_that_end_far_from_each_other_are_drawn_one_by_one(tmp_path, drawn):
    folders = [write_run(tmp_path / "far-1", FALL), write_run(tmp_path / "far-2", FALL + 0.5, 2)]
    folders += [write_run(tmp_path / f"near-{seed}", FALL + seed / 100, seed, init="skew") for seed in (1, 2)]
    run(*folders, "--plot", str(tmp_path / "p.png"))
    thin = [line for line in drawn[0].axes[0].lines if line.get_linewidth() == 0.5]
    assert [line.get_ydata()[-1] for line in thin] == pytest.approx([2.0, 2.5])


def test_a_table_that_nobody_reads_does_not_end_the_program(monkeypatch):
    read, write = os.pipe()
    os.close(read)  # as `| head` does once it has seen enough
    with open(write, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        report.show("a table")
        report.show("and one more")  # a picture could come after it
