"""Trainings and suites: what names stand for, in which order, and what is drawn of them. pytest tests/test_suites.py"""

import csv
import glob
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import analyze
from data.pretrained import suites
from data.results import figures
from model import ModelConfig, Transformer
from tests.test_analyze import T5, bert, files_of, model, symmetry_of
from tests.hub import hub  # noqa: F401, a fixture


STEPS = [2, 10, 300]


def symmetries(folder="run"):
    """Of all layers of all checkpoints of a run."""
    return [symmetry for step in STEPS for symmetry in symmetry_of(f"{folder}/checkpoint-{step}")]


@pytest.fixture
def run(tmp_path):
    """What a Trainer leaves: checkpoints whose order by name is not that of their steps, and other folders."""
    for step, mix in zip(STEPS, (0.0, 0.4, 0.9)):
        bert(tmp_path / "run" / f"checkpoint-{step}", mix)
    (tmp_path / "run" / "logs").mkdir()
    return tmp_path / "run"


CHECKPOINTS = "--hf", "./run", "--revisions=checkpoint-*"


# ---- the order of names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, step", [
    ("stage1-step900-tokens4B", 900), ("google/multiberts-seed_3-step_20k", 20e3), ("checkpoint-500", 500),
    ("MLMvsCLM/610m-mlm40-42k-1000", 1000), ("model_000020.pt", 20), ("main", None)])
def test_the_step_is_the_number_after_step_else_the_last_one(name, step):
    found = suites.read_step(name)
    assert (found[1] if found else None) == step


@pytest.mark.parametrize("names", [
    ["step0", "step1", "step2", "step512", "step1000", "step143000"], ["chck_1M", "chck_9M", "chck_10M", "chck_100M"],
    ["step2999", "step5996", "step599525", "ext1000", "ext2000", "decay100", "decay500"],
    ["stage2-step10", "stage10-step5"]])
def test_names_are_put_in_the_order_of_training(names):
    found = suites.in_order(sorted(names))
    assert [name for name, _ in found] == names
    steps = [step for _, step in found]
    assert all(a < b for a, b in zip(steps, steps[1:]))


@pytest.mark.parametrize("stride, limit, steps", [(5, None, [0, 5, 10]), (2, 4, [0, 4, 6, 10])])
def test_stride_and_limit_spread_over_each_training(tmp_path, stride, limit, steps):
    for name in "a", "b":
        for step in range(11):
            Path(tmp_path, name, f"step{step}").mkdir(parents=True)
    found, errors = suites.find_all([f"{tmp_path}/a", f"{tmp_path}/b"], "step*", stride, limit)
    assert [target.step for target in found] == 2 * steps and not errors


# ---- a training --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["glob", "option", "run/*"])
def test_the_checkpoints_of_a_local_run_are_scored_in_the_order_of_their_steps(run, analysed, asked):
    """A glob; the option; and what a shell makes of a pattern without quotes."""
    argv = {"glob": ["run/checkpoint-*"], "option": CHECKPOINTS[1:]}.get(asked) or sorted(glob.glob(asked))
    found = analysed("--hf", *argv)
    assert found.status == 0
    assert [Path(name).name for name in found.table.revision[::3]] == [f"checkpoint-{step}" for step in STEPS]
    assert list(found.table.symmetry) == pytest.approx(symmetries(), abs=1e-5)
    assert [line.split()[0] for line in found.out.splitlines()[2:]] == ["2", "10", "300"]
    told = "1 of the 4 that match have no step in their names, and are left out: run/logs"
    assert (told in found.err) == (asked == "run/*")


@pytest.mark.parametrize("names", [("llama-7b", "llama-13b"), ("run/checkpoint-300", "other/checkpoint-300")])
def test_models_that_are_named_one_by_one_are_no_training(run, analysed, names):
    found = analysed("--hf", *(bert(name, 0.1) for name in names))
    assert found.status == 0 and list(found.table.model[::3]) == list(names) and set(found.table.revision) == {""}


def test_files_that_match_count_as_folders_do(analysed):
    sizes = dict(vocab_size=30, block_size=8, n_layer=1, n_head=2, n_embd=16, causal=True)
    names, expected = ["ckpt-00000020.pt", "ckpt-00000100.pt"], []  # of train.py --keep
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(**sizes))
        attention = model.blocks[0].attn
        m = (attention.q.weight.T @ attention.k.weight).detach().double()
        expected.append(float((m * m.T).sum() / m.square().sum()))
        torch.save({"model": model.state_dict(), "config": sizes}, name)
    table = analysed("--hf", "ckpt-*.pt").table
    assert list(table.revision) == names and list(table.symmetry) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("asked", [["{}/*/checkpoint-*"], ["{}", "*/checkpoint-*"]])
def test_two_trainings_that_one_glob_matches_are_two(run, tmp_path, asked):
    bert(tmp_path / "other" / "checkpoint-7", 0.5)
    found = suites.find_targets(*(part.format(tmp_path) for part in asked))
    assert {training[0].model: len(training) for training in found} == {
        f"{run}/checkpoint-*": 3, f"{tmp_path}/other/checkpoint-*": 1}


def test_a_link_that_leads_to_another_run_now_is_scored_anew(run, analysed):
    Path("latest").symlink_to("run")
    bert("other/checkpoint-2", 0.5)
    asked = "--hf", "latest", "--revisions=checkpoint-2"
    assert list(analysed(*asked).table.symmetry) == pytest.approx(symmetry_of("run/checkpoint-2"), abs=1e-5)
    Path("latest").unlink()
    Path("latest").symlink_to("other")
    assert list(analysed(*asked).table.symmetry) == pytest.approx(symmetry_of("other/checkpoint-2"), abs=1e-5)


def test_the_picture_holds_medians_quartiles_and_a_line_per_layer(run, analysed, drawn):
    bert("decoder/checkpoint-5", 0.1, n_layer=2, causal=True)
    analysed("--hf", "./run", "./decoder", "--revisions=checkpoint-*", "--plot=s.png")
    medians, layers, others = drawn[0].axes[:3]
    values = np.reshape(symmetries(), (3, 3))  # (P, L)
    line = medians.lines[0]
    assert list(line.get_xdata()) == STEPS
    np.testing.assert_allclose(line.get_ydata(), np.median(values, axis=1), atol=1e-5)
    corners = medians.collections[0].get_paths()[0].vertices
    for i, step in enumerate(STEPS):
        edges = corners[corners[:, 0] == step, 1]
        np.testing.assert_allclose([edges.min(), edges.max()], np.percentile(values[i], [25, 75]), atol=1e-5)
    for i in range(3):
        np.testing.assert_allclose(layers.lines[i].get_ydata(), values[:, i], atol=1e-5)
    assert [line.get_color() for line in medians.lines[:2]] == [figures.ENCODER, figures.DECODER]
    assert len(others.lines) == 3  # two layers, and the line at 0


@pytest.mark.parametrize("argv, wanted", [
    ("--hf ./run --revisions=step*", "no folder or file in ./run matches step*"),
    ("--hf run/checkpoint-* one", "one: no training, and others are"),
    ("--hf org/model --revisions=stage*", "no branch or tag of org/model matches stage*"),
    ("--suite=ettn", "no suite ettn: there are ")])
def test_what_cannot_be_found_is_one_line_and_no_csv_is_touched(hub, run, analysed, argv, wanted):  # noqa: F811
    for branch in "main", "step1":
        hub.add("org/model", files_of(run / "checkpoint-2"), branch=branch)
    bert("one", 0.5)
    before = analysed(*CHECKPOINTS).table
    found = analysed(*argv.split())
    said = str(found.status) if found.status != 1 else found.err.rstrip("\n")
    assert found.status and said.startswith("analyze.py: ") and wanted in said and "\n" not in said
    assert found.table.equals(before)


@pytest.mark.parametrize("rows, wanted", [
    ("s,m,x,,,pair,yes,x,S,,,here\n", "line 2 is no row of suite,name"),
    ("s,m,x,,,pair,0,x,S,,,a\ns,m,y,,,pair,1,x,S,,,b\n", "suite s has 2 members m of the same revision")])
def test_a_list_of_a_suite_that_makes_no_sense_is_one_line(rows, wanted, analysed):
    Path("suite.csv").write_text(",".join(suites.Member._fields) + "\n" + rows)
    told = analysed("--suite=suite.csv").status
    assert "suite.csv" in told and wanted in told and "\n" not in told


# ---- on the Hub --------------------------------------------------------------------------------------------------


def test_branches_and_tags_are_read_in_order_by_the_bytes_of_queries_and_keys(hub, analysed):  # noqa: F811
    folders = [bert(str(i), mix, n_other=30_000) for i, mix in enumerate((0.0, 0.4, 0.9))]
    hub.add("org/model", files_of(folders[2]), branch="step300")
    hub.add("org/model", files_of(folders[1]), branch="step10")
    hub.add("org/model", files_of(folders[0]), tag="step2")
    hub.add("org/model", {"README.md": b"no model here"})
    found = analysed("--hf", "org/model", "--revisions=step*")
    assert found.status == 0 and list(found.table.revision[::3]) == ["step2", "step10", "step300"]
    expected = [symmetry for folder in folders for symmetry in symmetry_of(folder)]
    assert list(found.table.symmetry) == pytest.approx(expected, abs=1e-5)
    q_and_k = 3 * 2 * 16 * 16 * 4  # layers, q and k, float32
    first_read = 1 << 15  # of each file, for its header
    whole = Path("0/model.safetensors").stat().st_size
    assert 3 * q_and_k < hub.sent("model.safetensors") <= 3 * (q_and_k + first_read) < whole


# ---- a suite -----------------------------------------------------------------------------------------------------


def write_suite(rows):
    with open("suite.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, suites.Member._fields, restval="")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Pairs of two sizes, an encoder that was made of a decoder, a dose, and a training."""
    monkeypatch.chdir(tmp_path)
    for folder, mix, n_layer, causal in [
            ("enc_s", 0.8, 3, False), ("dec_s", 0.2, 2, True), ("enc_l", 0.9, 4, False), ("dec_l", 0.1, 4, True),
            ("switched", 0.5, 4, False), ("t/step1", 0.0, 2, False), ("t/step9", 0.7, 2, False)]:
        bert(folder, mix, n_layer, causal)
    rows = [dict(name=name, hub_id=name, kind="pair", causal=causal, size=size)
            for name, causal, size in [("enc_s", 0, "S"), ("dec_s", 1, "S"), ("enc_l", 0, "L"), ("dec_l", 1, "L")]]
    rows.append(dict(name="switched", hub_id="switched", kind="switch", causal=0, size="L", partner="dec_l"))
    rows += [dict(name=f"dose {dose}", hub_id=name, kind="dose", size="L", objective="causal steps", dose=dose)
             for dose, name in [(100, "dec_l"), (0, "enc_l"), (50, "switched")]]
    rows.append(dict(name="t", hub_id="./t", revision="step*", kind="training", causal=0, size="S"))
    write_suite(row | dict(suite="toy") for row in rows)


def test_a_suite_is_scored_member_by_member_and_goes_on_where_it_stopped(suite, analysed):
    found = analysed("--suite=suite.csv")
    assert found.status == 0
    for name in "enc_s", "dec_l", "switched":
        of_member = found.table.symmetry[found.table.model == name]
        assert list(of_member) == pytest.approx(symmetry_of(name), abs=1e-5)
    assert list(found.table.revision[found.table.model == "t"]) == ["step1", "step1", "step9", "step9"]
    again = analysed("--suite=suite.csv")
    assert (again.status, again.out) == (0, found.out) and ": read " not in again.err


def test_a_local_checkpoint_that_was_replaced_is_scored_again_although_its_file_is_older(suite, monkeypatch, analysed):
    """By a file that keeps its time, as with cp -p; Ctrl-C comes when one of two was scored again."""
    assert analysed("--suite=suite.csv").status == 0
    new = Path(bert("other", 0.4, 2), "model.safetensors")
    os.utime(new, (1e9, 1e9))
    for step in "step1", "step9":
        shutil.copy2(new, f"t/{step}/model.safetensors")
    score = analyze.score_model

    def stopped(source, *rest):
        if source == "./t/step9":
            raise KeyboardInterrupt
        return score(source, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(analyze, "score_model", stopped)
        found = analysed("--suite=suite.csv")
    assert found.status == 130 and found.err.splitlines()[-1] == "analyze.py: stopped"
    found = analysed("--suite=suite.csv")
    assert found.status == 0 and found.err.count(": read ") == 1  # of step9
    for step in "step1", "step9":
        of_step = found.table.symmetry[found.table.revision == step]
        assert list(of_step) == pytest.approx(symmetry_of("other"), abs=1e-5)


def test_a_member_whose_stack_is_not_certain_is_named(run, analysed):
    model(T5, "t5")
    write_suite(dict(suite="toy", name=name, hub_id=folder, stack=stack, kind="switch", causal=0)
                for name, folder, stack in [("whole", "run/checkpoint-2", ""), ("half", "run/checkpoint-2", "decoder"),
                                            ("t5", "t5", "")])
    for _ in "as it is scored", "from the CSV alone":
        found = analysed("--suite=suite.csv")
        assert found.status == 0 and "half: has no stack 'decoder' but '', and is left out" in found.err
        assert "t5: has no stack '' but 'encoder', 'decoder', and is left out" in found.err
        assert "whole" in found.out and "half" not in found.out and "t5" not in found.out


def test_the_picture_of_a_suite(suite, analysed, drawn):
    assert analysed("--suite=suite.csv", "--plot=s.png").status == 0
    small, large, differ, switched, dose, over_steps = drawn[0].axes[:6]  # of symmetry
    for axis, names in (small, ("enc_s", "dec_s")), (large, ("enc_l", "dec_l")):
        for line, name in zip(axis.lines, names):
            np.testing.assert_allclose(line.get_ydata(), symmetry_of(name), atol=1e-5)
            assert list(line.get_xdata()) == pytest.approx(np.linspace(0, 1, len(line.get_ydata())))
    # The difference is taken at equal depth: the second of three layers of enc_s lies between the two of dec_s.
    assert differ.lines[0].get_ydata()[10] == pytest.approx(symmetry_of("enc_s")[1] - np.mean(symmetry_of("dec_s")))
    # The difference at both ends, of each size, and the mean.
    ends = np.array([[symmetry_of(f"enc_{size}")[i] - symmetry_of(f"dec_{size}")[i] for i in (0, -1)]
                     for size in "sl"])  # (sizes, ends)
    for line, wanted in zip(differ.lines, [*ends, ends.mean(0)]):
        np.testing.assert_allclose(line.get_ydata()[[0, -1]], wanted, atol=1e-5)
    (arrow,) = switched.texts
    assert arrow.xyann[1] == pytest.approx(np.median(symmetry_of("dec_l")), abs=1e-5)
    assert arrow.xy[1] == pytest.approx(np.median(symmetry_of("switched")), abs=1e-5)
    (line,) = [line for line in dose.lines if len(line.get_xdata()) == 3]
    assert list(line.get_xdata()) == [0, 50, 100]
    wanted = [np.median(symmetry_of(name)) for name in ("enc_l", "switched", "dec_l")]
    np.testing.assert_allclose(line.get_ydata(), wanted, atol=1e-5)
    assert list(over_steps.lines[0].get_xdata()) == [1, 9]


# ---- suites.csv --------------------------------------------------------------------------------------------------


def test_suites_csv_names_partners_and_both_halves_of_every_pair():
    members = suites.read_suites()
    names = {(member.suite, member.name) for member in members}
    halves = {}
    for member in members:
        assert not member.partner or (member.suite, member.partner) in names, member.name
        if member.kind == "pair":
            halves.setdefault((member.suite, member.size), []).append(member.causal)
    assert halves and all(sorted(causal) == [False, True] for causal in halves.values())
