"""data/results/runs.py and analyze.py --runs: what runs say together, on hand-made curves. pytest tests/test_runs.py"""

import csv
import math

import numpy as np
import pytest
import torch

import analyze
from data.results import compare, figures, runs, tables

STEPS = np.arange(0, 1100, 100.0)
FALL = np.linspace(3, 2, 11)  # a baseline that ends at 2


# ---- speed-up, level, interval -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss, expected", [
    (np.full(11, 1.0), 1.0),  # there at once
    (FALL, 0.0),  # there at the end
    (FALL + 0.5, math.nan),  # never: neither 0 nor 100 %
    (np.where(STEPS < 500, 3.0, 1.0), 0.4),  # the mean of three is 2.33 at step 500 and 1.67 at 600
    (np.where(STEPS == 500, 0.0, 3.0), 0.5),  # a single good evaluation of 0 does count, as its mean with two of 3 is 2
    (np.where(STEPS == 500, 1.0, 3.0), math.nan),  # one of 1 does not
])
def test_speed_up_is_the_share_of_training_that_was_not_needed(loss, expected):
    assert compare.smooth(FALL)[-1] == pytest.approx(2.1)
    found = compare.speed_up(STEPS, loss, FALL)
    assert math.isnan(found) if math.isnan(expected) else found == pytest.approx(expected)


def test_rows_of_nan_do_not_count():
    holes = FALL.copy()
    holes[[3, 4, 5]] = math.nan
    assert math.isnan(compare.smooth(holes)[5]) and compare.smooth(holes)[6] == holes[6]
    assert compare.speed_up(STEPS, holes, FALL) == 0.0
    assert math.isnan(compare.speed_up(STEPS, np.full(11, math.nan), FALL))
    assert compare.first_step(STEPS, FALL, 2.75) == 300 and compare.first_step(STEPS, holes, 2.75) == 600


@pytest.mark.parametrize("n", [2, 3, 5, 11, 40])
def test_the_interval_covers_the_mean_in_95_of_100_samples(n):
    samples = np.random.default_rng(0).normal(size=(4000, n))
    mean, half = np.array([compare.interval(sample) for sample in samples]).T
    np.testing.assert_allclose(mean, samples.mean(1))
    assert (abs(mean) < half).mean() == pytest.approx(0.95, abs=0.012)


def test_one_value_has_no_interval():
    mean, half = compare.interval([2.5])
    assert mean == 2.5 and math.isnan(half)


# ---- folders of runs ---------------------------------------------------------------------------------------------


def write_run(folder, loss=FALL, seed=1, steps=STEPS, n_layer=2, n_head=2, **changes):
    """A finished run with the given validation losses; symmetry of layer l and head h at step i is known."""
    config = dict(max_iters=1000, batch_size=8, block_size=16, eval_interval=100, eval_iters=2, mlm_probability=0.15,
                  n_layer=n_layer, n_head=n_head, causal=False, init="random", qk_std=0.02, v_std=0.02,
                  constraint="none",
                  seed=seed, out_dir=str(folder)) | changes
    folder.mkdir(parents=True)
    data = dict(checksum=changes.get("checksum", "a"), tokenizer="bytes")
    torch.save(dict(config=config, data=data), folder / "ckpt.pt")
    runs.append(folder / "log.csv", runs.LOG, [[int(s), 0, "", x, "", ""] for s, x in zip(steps, loss)])
    runs.append(folder / "scores.csv", runs.SCORES, [
        [int(s), layer, head, (i + layer) / 20, -i / 20, i / 50, "nan" if i == 0 else 0.1 * layer]
        for i, s in enumerate(steps) for layer in range(n_layer) for head in ("", *range(n_head))])
    return str(folder)


def run(*argv):
    with pytest.raises(SystemExit) as e:
        analyze.main(["--runs", *argv])
        raise SystemExit(0)
    return e.value.code


def test_arms_are_pooled_over_seeds_and_measured_against_the_baseline_of_their_seed(tmp_path, capsys):
    folders = [write_run(tmp_path / f"random-{seed}", FALL + seed / 10, seed) for seed in (1, 2, 3)]
    folders += [write_run(tmp_path / f"fast-{seed}", np.minimum(FALL, 2.3) + seed / 10, seed, init="symmetric")
                for seed in (1, 2, 3)]
    assert not run(*folders, "--csv", str(tmp_path / "t.csv"))
    baseline, fast = capsys.readouterr().out.splitlines()[1:]
    assert "baseline" in baseline and baseline.split()[:2] == ["random", "3"]
    mean, half = 2.2, 4.303 * 0.1 / 3**0.5
    assert f"{mean:.3f} +- {half:.3f}" in baseline and f"{mean:.3f} +- {half:.3f}" in fast
    assert "+0.000 +- 0.000" in fast and "0% +- 0%" in fast  # each seed against its own: 2.3 is above 2.1, smoothed
    rows = list(csv.DictReader(open(tmp_path / "t.csv", newline="")))
    assert [(r["arm"], r["seed"]) for r in rows] == [(a, s) for a in ("random", "fast") for s in "123"]
    assert float(rows[4]["val_loss"]) == pytest.approx(2.2) and float(rows[4]["symmetry"]) == pytest.approx(10.5 / 20)


def test_a_speed_up_that_some_seeds_do_not_reach_is_said_and_not_averaged(tmp_path, capsys):
    folders = [write_run(tmp_path / f"random-{seed}", FALL, seed) for seed in (1, 2)]
    folders += [write_run(tmp_path / f"other-{seed}", FALL - 0.3 + 0.6 * (seed - 1), seed, init="skew")
                for seed in (1, 2)]
    assert not run(*folders)
    assert "not reached by 1 of 2" in capsys.readouterr().out.splitlines()[2]


def test_one_seed_says_so_and_a_run_in_progress_says_where_it_is(tmp_path, capsys):
    write_run(tmp_path / "random-1"), write_run(tmp_path / "part-1", FALL[:5], steps=STEPS[:5], init="symmetric")
    assert not run(str(tmp_path / "random-1"), str(tmp_path / "part-1"), "--plot", str(tmp_path / "p.png"))
    out = capsys.readouterr().out
    assert "one seed each: there is no interval" in out
    assert "1 of its runs have not finished, the first of them is at 400" in out
    assert (tmp_path / "p.png").exists() and (tmp_path / "p_layers.png").exists()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, 2, 5])
def test_seeds_that_have_come_less_far_are_drawn_as_far_as_all_have(tmp_path, capsys, n):
    folders = [write_run(tmp_path / "random-1"), write_run(tmp_path / "random-2", FALL[:n], 2, STEPS[:n])]
    assert not run(*folders, "--plot", str(tmp_path / "p.png"), "--csv", str(tmp_path / "t.csv"))
    assert (tmp_path / "p.png").exists() and (tmp_path / "p_layers.png").exists()
    assert "1 of its runs have not finished" in capsys.readouterr().out


@pytest.mark.parametrize("changes, words", [
    (dict(max_iters=2000), "b has max_iters = 2000, a has 1000"), (dict(checksum="b"), "b has checksum = b, a has a"),
    (dict(block_size=32), "b has block_size = 32, a has 16")])
def test_runs_of_different_length_or_data_are_refused_with_the_difference(tmp_path, changes, words):
    assert words in run(write_run(tmp_path / "a-1"), write_run(tmp_path / "b-1", **changes))


def test_two_runs_of_one_name_must_differ_in_the_seed_alone(tmp_path):
    first = write_run(tmp_path / "x" / "a-1")
    deeper = write_run(tmp_path / "y" / "a-2", seed=2, n_layer=3)
    assert "two runs called a differ in n_layer: 3, 2" in run(first, deeper)
    assert "two runs called a have the seed 1" in run(first, write_run(tmp_path / "z" / "a-1"))


@pytest.mark.parametrize("damage, words", [
    (lambda f: (f / "log.csv").unlink(), "log.csv: No such file"),
    (lambda f: (f / "log.csv").write_text(""), "is not a log.csv"),
    (lambda f: (f / "log.csv").write_text(",".join(runs.LOG) + "\n"), "has no row in its CSV files yet"),
    (lambda f: (f / "scores.csv").write_text("step,layer\n"), "is not a scores.csv"),
    (lambda f: (f / "ckpt.pt").write_bytes(b"PK"), "ckpt.pt cannot be read")])
def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, damage, words):
    folder = write_run(tmp_path / "a-1")
    damage(tmp_path / "a-1")
    assert words in (code := run(folder)) and "\n" not in code


def test_a_row_that_is_being_written_is_left_out(tmp_path):
    folder = write_run(tmp_path / "a-1")
    for name in "log.csv", "scores.csv":
        text = (tmp_path / "a-1" / name).read_text()
        (tmp_path / "a-1" / name).write_text(text + text.splitlines()[-1][:-3])
    with open(tmp_path / "a-1" / "scores.csv", "a") as f:
        f.write("1\n1100,0,,0.1,0.1,0.1\n")  # the first row of a step whose other rows are still to come
    whole = runs.read_run(folder)
    assert len(whole.log["step"]) == len(whole.steps) == 11


def test_figures_hold_the_series_of_the_csv_files(tmp_path, monkeypatch):
    from matplotlib import pyplot as plt

    drawn = []
    monkeypatch.setattr(plt, "close", drawn.append)
    folders = [write_run(tmp_path / f"{name}-{seed}", FALL + 0.1 * seed, seed, causal=name == "decoder")
               for name in ("random", "decoder") for seed in (1, 2)]
    assert not run(*folders, "--plot", str(tmp_path / "p.png"))
    (loss, symmetry, directionality, ends, updates, spread), layers = drawn[0].axes, drawn[1].axes
    assert [line.get_color() for line in loss.lines] == [figures.ENCODER, figures.DECODER]
    for line in loss.lines:
        np.testing.assert_allclose(line.get_ydata(), FALL + 0.15)
    np.testing.assert_allclose(symmetry.lines[0].get_ydata(), (np.arange(11) + 0.5) / 20)  # median of the two layers
    np.testing.assert_allclose(directionality.lines[1].get_ydata(), -np.arange(11) / 20)
    np.testing.assert_allclose(updates.lines[0].get_ydata()[1:], 0.05)
    np.testing.assert_allclose(spread.lines[0].get_ydata(), 0)  # all heads of a layer are alike in the fixture
    assert [text.get_text() for text in ends.get_yticklabels()] == ["random", "decoder"]
    assert sorted(ends.lines[0].get_xdata()) == pytest.approx([2.1, 2.2])
    np.testing.assert_allclose(layers[0].lines[1].get_ydata(), (np.arange(11) + 1) / 20)  # random, layer 1
