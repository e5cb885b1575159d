"""Comparisons of runs: their statistics, their files, and what the command prints. pytest tests/test_runs.py"""

import contextlib
import csv
import io
import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

from config import load
from data.drawing import DECODER, ENCODER
from data.runs import __main__ as command
from data.runs import curves, kept, read, statistics

STEPS = np.arange(0, 1100, 100)
FALL = np.linspace(3, 2, 11)  # a baseline that ends at 2, and at 2.1 if it is smoothed


def test_speed_up_is_the_share_of_training_that_was_not_needed():
    baseline = pandas.Series(FALL, STEPS)
    soon = np.where(STEPS < 500, 3.0, 1.0)  # the mean of three is 2.33 at step 500 and 1.67 at 600
    once = np.where(STEPS == 500, 1.0, 3.0)  # a single good evaluation does not count
    assert statistics.speed_up(pandas.Series(soon, STEPS), baseline) == pytest.approx(0.4)
    assert statistics.speed_up(pandas.Series(once, STEPS), baseline) == -math.inf
    short = [pandas.Series([5.6, *losses], [0, 3, 6, 9]) for losses in ([1.9, 1.8, 1.7], [2.3, 2.1, 2.0])]
    assert statistics.speed_up(*short) == pytest.approx(2 / 3)  # the loss before the first step is in no mean
    assert math.isnan(statistics.speed_up(short[0][:1], short[1][:1]))  # and there is no share of no step


NORMAL = np.random.default_rng(0).normal(0.4, 1, 12)


@pytest.mark.parametrize("differences", [
    NORMAL[:5], NORMAL,  # five exclude no difference
    np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, -0.8])])  # sums are equal, but for rounding
def test_p_and_interval_are_those_of_all_signs(differences):
    signs = np.array(list(itertools.product([-1, 1], repeat=len(differences))))  # (2^n, n)
    tried = np.linspace(-4, 4, 801)
    shifted = differences - tried[:, None]  # (801, n)
    as_far = np.abs(shifted @ signs.T) >= np.abs(shifted.sum(1, keepdims=True)) - 1e-9  # (801, 2^n)
    kept = tried[as_far.mean(1) > 0.05]
    p = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    found = statistics.sign_flip(differences)
    assert found == p
    assert found == statistics.sign_flip(-1e-7 * differences)  # neither sign nor unit matters
    expected = (math.nan, math.nan) if len(kept) == 801 else (kept[0], kept[-1])
    interval = statistics.confidence_interval(differences)
    np.testing.assert_allclose(interval, expected, atol=0.01)


def test_holm_multiplies_by_the_tests_that_are_left():
    """Benjamini and Hochberg 1995, section 3.2: of these 15 tests three are significant after Holm's correction."""
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324,
          0.4262, 0.5719, 0.6528, 0.759, 1]
    corrected = statistics.holm(ps)
    assert list(corrected[:4]) == pytest.approx([15 * 0.0001, 14 * 0.0004, 13 * 0.0019, 12 * 0.0095])
    assert (corrected < 0.05).tolist() == [True] * 3 + [False] * 12 and corrected.is_monotonic_increasing


# ---- folders of runs ---------------------------------------------------------------------------------------------


def growing(i, layer):
    """Rows of scores.csv at the i-th step, of a layer and its one head: matrix, layer, head, and numbers."""
    update = 0.1 * layer if i else ""
    return [("wqk", layer, "", (i + layer**2) / 20, -i / 20, i / 50, update, 0.1 + layer / 10),
            ("wqk", layer, 0, -1.0, -i / 20, i / 50, update, 0.5)]


def write_run(folder, loss=FALL, seed=1, steps=STEPS, scores=growing, more="", lengths=(), commit="c1", speed="",
              **changes):
    """A run of config/tiny.py with 1,000 steps and one head, with these losses and scores."""
    config = vars(load([])) | dict(max_iters=1000, n_head=1, seed=seed, out_dir=str(folder)) | changes
    data = dict(sha256=dict(train=changes.get("sha256", "a"), val="b"), tokenizer=changes.get("tokenizer", "bytes"))
    of_run = dict(config=config, data=data, n_params=1, origin=dict(commit=commit), lengths=list(lengths))
    log = ["step,tokens,train_loss,val_loss,learning_rate,tokens_per_s"]
    log += [f"{step},0,,{val_loss:.6f},,{speed}" for step, val_loss in zip(steps, loss)]
    rows = [f"step,matrix,layer,head,symmetry,directionality,directionality_eq17,update_symmetry,chance{more}"]
    for (i, step), layer in itertools.product(enumerate(steps), range(config["n_layer"])):
        rows += [",".join(map(str, (step, *row))) for row in scores(i, layer)]
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(of_run))
    (folder / "log.csv").write_text("\n".join(log) + "\n")
    (folder / "scores.csv").write_text("\n".join(rows) + "\n")
    return folder


def write_plan(path, arms, planned=(), n_seeds=8):
    """A plan of such runs: {arm: its keys}, beside 1,000 steps and one head."""
    arms = {name: dict(max_iters=1000, n_head=1) | keys for name, keys in arms.items()}
    path.write_text(f"base = 'config/tiny.py'\nseeds = range(1, {n_seeds + 1})\narms = {arms}\nplanned = {planned}")
    return path


def run(*argv):
    """The line in which the command ends, if it is wrong."""
    try:
        command.main([*map(str, argv)])
    except SystemExit as e:
        return e.code


def printed(*argv):
    """The lines that it prints if nothing is wrong, with one space between two words."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert not run(*argv)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def edit(folder, part="", **changes):
    """Changes values in run.json, or in a part of it; None takes one out. -> the folder"""
    run_json = json.loads((folder / "run.json").read_text())
    values = run_json[part] if part else run_json
    for key, value in changes.items():
        values.pop(key) if value is None else values.update({key: value})
    (folder / "run.json").write_text(json.dumps(run_json))
    return folder


def test_arms_are_pooled_over_seeds_measured_against_the_baseline_of_their_seed_and_kept(tmp_path):
    for seed in range(1, 7):
        plain = FALL + seed / 100
        write_run(tmp_path / f"runs/random-{seed}", plain, seed)
        write_run(tmp_path / f"runs/fast-{seed}", np.where(STEPS < 500, plain, plain - 0.2), seed, init="symmetric")
        write_run(tmp_path / f"runs/slow-{seed}", np.maximum(plain, 2.8), seed, init="skew")
    write_run(tmp_path / "runs/null-1", n_layer=3, init="of_a_fork")  # pandas could read this name as nan
    folders, path, again = sorted((tmp_path / "runs").iterdir()), tmp_path / "c.csv", tmp_path / "again.csv"
    folders.sort(key=lambda folder: not folder.name.startswith("random"))  # the first arm is the baseline
    rows = printed(*folders, "--all", "--csv", path)[1:5]
    scores = "0.53 0.15 -1.00 -0.50"
    assert rows == [f"random 6 2.035 baseline {scores}",
                    f"fast 6 1.835 -0.200 [-0.200, -0.200] 0.031 6 of 6 random 6 20% {scores}",
                    "null 1 2.000 -0.010 random 1 0% 0.55 0.20 -1.00 -0.50",
                    f"slow 6 2.800 +0.765 [+0.740, +0.790] 0.031 6 of 6 random 6 not reached {scores}"]
    _, fast, slow, first, *_ = printed(path, "--arms", "slow", "fast")
    assert fast.startswith("fast 6 1.835 baseline") and "6 of 6 fast" in slow and first.startswith("n:")  # no random
    # The file: the configuration of each arm, and their curves. It shows what the runs do.
    lines = path.read_text().splitlines()
    assert lines[1].startswith("# config of fast {") and '"init": "symmetric"' in lines[1] and "out_dir" not in lines[1]
    expected = dict(arm="random", seed="1", step="100", train_loss="", val_loss="2.9100", symmetry="0.0750",
                    directionality_eq17="0.0200", update_symmetry="0.0500", symmetry_1="0.1000", symmetry_2="")
    rows = list(csv.DictReader(lines[4:]))
    assert len(rows) == 19 * 11 and expected.items() <= rows[1].items()
    first = printed(*folders, "--by_layer")
    shutil.rmtree(tmp_path / "runs")
    assert printed(path, "--csv", again, "--by_layer") == first and again.read_text() == path.read_text()


def test_runs_are_added_to_a_file_which_names_every_commit_that_made_an_arm(tmp_path):
    path = tmp_path / "c.csv"
    runs_of_a = [write_run(tmp_path / f"a-{seed}", seed=seed, commit=f"c{seed}") for seed in (1, 2)]
    assert not run(*runs_of_a, write_run(tmp_path / "b-1", init="skew"), "--csv", path)
    assert not run(path, write_run(tmp_path / "a-3", seed=3, commit="c3"), "--csv", path)
    assert [arm.config["commit"] for arm in kept.pool([path]).values()] == [["c1", "c2", "c3"], ["c1"]]


def test_the_first_line_says_which_runs_are_of_other_commits_or_of_code_that_is_in_none(tmp_path):
    same = [write_run(tmp_path / f"a-{seed}", seed=seed, commit="a" * 40) for seed in (1, 2)]
    dirty = [write_run(tmp_path / f"{name}-3", seed=3, commit=f"{'b' * 40}-dirty") for name in "ba"]
    words = "The code of these runs (-dirty: in no commit):"
    assert printed(*same, *dirty)[0] == f"{words} aaaaaaa (a); bbbbbbb-dirty (a, b)"
    assert printed(dirty[0])[0] == f"{words} bbbbbbb-dirty (b)"
    assert printed(*same)[0].startswith("arm")


@pytest.mark.parametrize("argv, words", [
    ("a-1 --measure steps_to_1,8", "no run has steps_to_1,8"),
    ("a-1 b-1 --measure nonsense --plot a.png", "no run has nonsense at its steps"),
    ("a-1 b-1 --arms c", "no arm is called c: there are a, b"),
    ("a-1 c.csv", "two runs called a have the seed 1"),
    ("other/a-2 c.csv", "two runs called a differ in of_a_fork"),
    ("a-1 --csv c.csv", "c.csv would lose runs of b"),
    ("short/a-1 b-1 --csv c.csv", "c.csv would lose runs of a, or steps of them"),
    ("longer/a-1 b-1 --csv c.csv", "c.csv has runs of a with another init"),
    ("cut-1", "scores.csv ends at step 400, and log.csv at step 1000"),
    ("b,c-1 --csv b.csv", "'b,c' is no name for a CSV file"),
    ("b#c-1 --csv b.csv", "'b#c' is no name for a CSV file"),
])
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_lost(tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    assert not run(write_run(Path("a-1")), write_run(Path("b-1"), init="skew"), "--csv", "c.csv")
    write_run(Path("other/a-2"), seed=2, of_a_fork=1)
    for name in "b,c", "b#c":
        write_run(Path(f"{name}-1"))
    write_run(Path("short/a-1"), FALL[:8], steps=STEPS[:8])
    write_run(Path("longer/a-1"), init="skew")
    scores = write_run(Path("cut-1")) / "scores.csv"
    scores.write_text(scores.read_text().partition("\n500,")[0] + "\n")
    before = {path: path.read_bytes() for path in Path().glob("**/*.*")}
    assert words in (said := run(*argv.split())) and said.startswith("python -m data.runs: ") and "\n" not in said
    assert {path: path.read_bytes() for path in Path().glob("**/*.*")} == before


def test_runs_of_other_length_or_tokenizer_are_not_compared_and_it_is_said_why(tmp_path):
    others = {"max_iters=500": dict(loss=FALL[:6], steps=STEPS[:6], max_iters=500),
              "tokenizer=gpt2": dict(tokenizer="gpt2", sha256="c"), "objective=next": dict(causal=True),
              "of_a_fork=1": dict(of_a_fork=1), "lengths=[600,": dict(lengths=[600, 1000])}  # was made longer
    folders = [write_run(tmp_path / f"{name}-1", **keys) for name, keys in zip("bcdef", others.values())]
    folders += [write_run(tmp_path / "h-1"), write_run(tmp_path / "i-1", FALL + 1)]
    *rows, first, last = printed(*folders, "--all")[1:8]
    assert all(reason in row and "baseline" in row for row, reason in zip(rows, others, strict=True))
    assert "baseline" in first and "+1.000" in last
    of_layers = "\n".join(printed(*folders, "--by_layer"))
    assert all(reason in of_layers for reason in others)
    rows = printed(*folders, "--measure", "symmetry")[1:8]  # a score means the same in all tasks
    assert ["baseline" in row for row in rows] == [True] + 6 * [False]


def test_a_measure_that_some_runs_lack_names_the_arms_that_it_leaves_out(tmp_path):
    folders = [write_run(tmp_path / f"a-{seed}", seed=seed, n_layer=3) for seed in (1, 2)]
    folders += [write_run(tmp_path / f"{name}-1") for name in "bc"]
    said, _, row, legend, *_ = printed(*folders, "--measure", "symmetry_2")
    assert said == "Left out, because not all of their runs have symmetry_2: b, c"
    assert row.startswith("a") and legend.startswith("n:") and printed(*folders)[0].startswith("arm")


def test_single_runs_whose_names_end_in_a_digit_are_told_how_runs_find_each_other(tmp_path):
    folders = [write_run(tmp_path / f"bi_s{seed}", seed=seed) for seed in (1, 2)]
    assert printed(*folders)[0].endswith("SETTING-SEED, such as bi-1 and bi-2")
    assert not any("SETTING-SEED" in line for line in printed(*folders, write_run(tmp_path / "c-3", seed=3)))


# ---- layers and figures ------------------------------------------------------------------------------------------


def of_positions(i, layer):
    """The same of two heads, and of a matrix of positions."""
    rows = []
    for matrix, symmetry, chance in ("wqk", 0.1, 0.2), ("positions", 0.5, 0.03 + 0.02 * layer):
        symmetry += 0.2 * layer
        rows += [(matrix, layer, "", symmetry, -0.1, 0, 0, chance),
                 (matrix, layer, 0, symmetry + 0.1, -0.4, 0, 0, 0.5 + layer / 10),
                 (matrix, layer, 1, symmetry - 0.5, -0.2, 0, 0, 0.4)]
    return rows


def test_layers_are_shown_with_heads_and_positions_at_the_last_step_that_all_have(tmp_path):
    untied = write_run(tmp_path / "a-1", scores=of_positions, n_head=2, positions="untied")
    folders = [untied, write_run(tmp_path / "b-1"), write_run(tmp_path / "b-2", FALL[:8] + 1, 2, STEPS[:8])]
    said, _, *lines = printed(*folders, "--by_layer")
    assert said == "All runs are shown at step 700, because these have not finished: b 2"
    assert lines[:3] == ["a 0 2.300 0.10 0.20 -0.10 -0.10 0.50 0.03", "1 0.30 0.20 -0.10 0.10 0.70 0.05",
                         "b 0 2.800 0.35 0.10 -0.35 -1.00"]  # a mean of steps 0 to 7 would be lower
    expected = dict(symmetry=0.2, chance=0.2, positions=0.6, positions_chance=0.04, positions_heads=0.4,
                    heads=0.0, heads_chance_0=0.45, heads_directionality_1=-0.3)
    arm = read.read_run(untied)
    assert {name: arm.at_end(name).item() for name in expected} == pytest.approx(expected)


def test_layers_are_beyond_chance_in_runs_whose_last_row_says_so_and_not_an_older_one(tmp_path):
    """Layers end at 0.5 and 0.55. A run that was made longer and stopped has a limit from its first end, step 500."""
    def limited(limits, at):
        def rows(i, layer):
            whole, head = growing(i, layer)
            return [(*whole, limits[layer] if STEPS[i] == at else ""), (*head, "")]
        return rows

    def run_of(seed, *words):
        return write_run(tmp_path / f"a-{seed}", seed=seed, scores=limited(*words), more=",symmetry_95")

    folders = [run_of(1, (0.4, 0.6), 1000), run_of(2, (0.4, 0.5), 1000), run_of(3, (0.6, 0.6), 1000)]
    assert printed(*folders, "--csv", tmp_path / "a.csv")[1] == "a 3 2.000 baseline 0.53 0.15 2, 1 of 3 -1.00 -0.50"
    first, second = printed(tmp_path / "a.csv", "--by_layer")[1:3]
    assert " 2 of 3 " in first and " 1 of 3 " in second
    longer = run_of(4, (0.1, 0.1), 500)
    assert " of " not in printed(*folders, longer)[1] and "beyond" not in printed(longer)[0]


def test_figures_hold_the_series_of_the_csv_files_with_a_thin_line_for_each_seed(tmp_path, drawn):
    folders = [write_run(tmp_path / f"{name}-{seed}", FALL + far * seed, seed, n_layer=3, init=name)
               for name, far in (("random", 0.04), ("skew", 0.5)) for seed in (1, 2)]
    assert not run(*folders, "--plot", tmp_path / "p.png")
    lines = [{line.get_label(): line.get_ydata() for line in axis.lines} for axis in drawn[0].axes]
    np.testing.assert_allclose(lines[0]["random"], FALL + 0.06)
    thin = [line.get_ydata() for line in drawn[0].axes[0].lines if line.get_linewidth() == 0.5]
    np.testing.assert_allclose(thin, [FALL + far * seed for far in (0.04, 0.5) for seed in (1, 2)])
    np.testing.assert_allclose(lines[1]["random"], (np.arange(11) + 1) / 20)  # the median of 0, 1 and 4
    dotted = [line.get_ydata() for line in drawn[0].axes[1].lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(dotted, np.full((2, 11), 0.2))  # chance of both: the median of 0.1, 0.2 and 0.3
    assert "single runs" in drawn[0].get_supxlabel()
    ends = {text.get_text().strip(): text.xy[1] for text in drawn[0].axes[1].texts}  # a line has its name at its end
    assert ends == pytest.approx(dict(random=0.55, skew=0.55, chance=0.2))
    heights = sorted(text.get_position()[1] for text in drawn[0].axes[1].texts)
    assert min(np.diff(heights)) > 0.02  # and no name lies on another
    assert not run(*folders[::2], "--plot", tmp_path / "single.png")
    assert "single runs" not in drawn[1].get_supxlabel()


def test_a_run_ends_with_its_picture_and_with_a_table_of_the_first_and_last_scores(tmp_path, drawn):
    def limited(i, layer):
        return [(*row, 0.52) for row in growing(i, layer)]

    folder = write_run(tmp_path / "a-1", scores=limited, more=",symmetry_95")
    *lines, last = curves.finish(folder).splitlines()
    titles = "layer symmetry: start end by chance 95 % below beyond heads: start end directionality: start end"
    assert " ".join(lines[0].split()) == titles
    assert lines[1].split() == "0 0.00 0.50 0.10 0.52 no -1.00 -1.00 0.00 -0.50".split()
    assert lines[2].split() == "1 0.05 0.55 0.20 0.52 yes -1.00 -1.00 0.00 -0.50".split()
    assert last == f"validation loss 2.0000 nats/token; picture: {folder}/run.png" and (folder / "run.png").exists()
    loss, layers, heads, _ = drawn[0].axes
    np.testing.assert_allclose(loss.lines[1].get_ydata(), FALL)
    assert layers.get_ylim() == heads.get_ylim() and heads.lines[0].get_ydata()[-1] == -1


def test_a_child_is_drawn_from_where_its_parent_ends_in_the_colour_of_its_own_mask(tmp_path, drawn):
    write_run(tmp_path / "old-1", causal=True)
    child = write_run(tmp_path / "child-1", FALL - 1, parent=str(tmp_path / "old-1"))
    assert not run(tmp_path / "old-1", child, "--measure", "symmetry", "--plot", tmp_path / "p.png")
    [axis] = drawn[0].axes
    old, of_child = [line for line in axis.lines if line.get_linewidth() > 1]
    assert [text.get_text() for text in axis.texts] == ["old", " chance", " child"]
    assert list(of_child.get_xdata()) == list(STEPS + 1000) and list(old.get_xdata()) == list(STEPS)
    assert (old.get_color(), of_child.get_color()) == (DECODER, ENCODER)
