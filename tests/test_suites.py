"""Trainings and suites: what names stand for, in which order, and what is drawn of them. pytest tests/test_suites.py"""

import csv
import glob
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertModel, logging

from data.pretrained import suites
from data.results import figures
from data.results.tables import GRID, Scored, difference, find_pairs
from model import ModelConfig, Transformer
from tests.test_analyze import read, run, stop_at
from tests.hub import hub  # noqa: F401, a fixture

logging.disable_progress_bar()
BERT = BertConfig(vocab_size=10, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8,
                  max_position_embeddings=8)


def bert(folder, mix, n_layer=3, causal=False, vocab_size=10):
    """A BERT in which the symmetric part of W_qk has the share `mix`: symmetry is that share of W_q itself."""
    torch.manual_seed(0)
    config = BertConfig(**(BERT.to_dict() | dict(num_hidden_layers=n_layer, is_decoder=causal, vocab_size=vocab_size)))
    model = BertModel(config)
    for block in model.encoder.layer:
        attention = block.attention.self
        attention.key.weight.data.lerp_(attention.query.weight.data, mix)
    model.save_pretrained(folder)
    return str(folder)


def symmetry_of(folder):
    """Of every layer, in float64 and as printed: Eq. (15) without its 2."""
    state = BertModel.from_pretrained(folder).double().state_dict()
    found = []
    for i in range(sum(name.endswith("query.weight") for name in state)):
        q, k = (state[f"encoder.layer.{i}.attention.self.{x}.weight"] for x in ("query", "key"))
        m = q.T @ k
        found.append(float(((m * m.T).sum() / m.square().sum())))
    return found


STEPS = [2, 10, 300]


def symmetries(folder):
    """Of all layers of all checkpoints of a run."""
    return [symmetry for step in STEPS for symmetry in symmetry_of(folder / f"checkpoint-{step}")]


@pytest.fixture
def run_folder(tmp_path):
    """What a Trainer leaves: checkpoints whose order by name is not that of their steps, and other folders."""
    for step, mix in zip(STEPS, (0.0, 0.4, 0.9)):
        bert(tmp_path / "run" / f"checkpoint-{step}", mix)
    (tmp_path / "run" / "logs").mkdir()
    return tmp_path / "run"


# ---- the order of names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, step", [
    ("step143000", 143000), ("stage1-step900-tokens4B", 900), ("stage1-step-3440000", 3440000), ("chck_10M", 10e6),
    ("google/multiberts-seed_3-step_20k", 20e3), ("checkpoint-500", 500), ("MLMvsCLM/610m-mlm40-42k-1000", 1000),
    ("global_step10", 10), ("decay0.5B", 0.5e9), ("ckpt_20.pt", 20), ("model_000020.pt", 20), ("main", None)])
def test_the_step_is_the_number_after_step_else_the_last_one(name, step):
    found = suites.read_step(name)
    assert (found[1] if found else None) == step


@pytest.mark.parametrize("names", [
    ["step0", "step1", "step2", "step512", "step1000", "step143000"],
    ["stage1-step900-tokens4B", "stage1-step1000-tokens5B", "stage1-step20000-tokens90B"],
    ["chck_1M", "chck_9M", "chck_10M", "chck_100M"],
    ["step2999", "step5996", "step599525", "ext1000", "ext2000", "decay100", "decay500"],
    ["stage2-step10", "stage10-step5"]])
def test_names_are_put_in_the_order_of_training(names):
    found = suites.in_order(sorted(names))
    assert [name for name, _ in found] == names
    steps = [step for _, step in found]
    assert all(a < b for a, b in zip(steps, steps[1:]))


def test_a_phase_that_counts_anew_goes_on_where_the_one_before_ended():
    assert suites.in_order(["ext1000", "decay100", "step2999"]) == [
        ("step2999", 2999), ("ext1000", 3999), ("decay100", 4099)]
    assert suites.in_order(["stage1-step900", "stage2-step1000"]) == [("stage1-step900", 900),
                                                                      ("stage2-step1000", 1000)]


def test_stride_and_limit_spread_over_each_training():
    training = [suites.Target("m", str(i), "", i) for i in range(11)]
    others = [suites.Target("n", "0", "", 0), suites.Target("alone", "", "")]
    for stride, limit, steps in (5, None, [0, 5, 10]), (1, 3, [0, 5, 10]), (2, 4, [0, 4, 6, 10]), (1, 1, [0]):
        found = suites.thin_out(training + others, stride, limit)
        assert [target.step for target in found] == [*steps, 0, None]
    assert suites.thin_out(training, 1, 99) == training


# ---- a training --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["glob", "option", "shell", "shell, with a slash", "shell, all"])
def test_the_checkpoints_of_a_local_run_are_scored_in_the_order_of_their_steps(run_folder, tmp_path, capsys, way):
    asked = {"glob": [f"{run_folder}/checkpoint-*"], "option": [str(run_folder), "--revisions", "checkpoint-*"],
             "shell": sorted(glob.glob(f"{run_folder}/checkpoint-*")),  # what it makes of a pattern without quotes
             "shell, with a slash": sorted(glob.glob(f"{run_folder}/checkpoint-*/")),
             "shell, all": sorted(glob.glob(f"{run_folder}/*"))}
    assert run("--hf", *asked[way], "--csv", str(tmp_path / "s.csv")) == 0
    rows = read(tmp_path / "s.csv")
    assert [Path(row["revision"]).name for row in rows[::3]] == [f"checkpoint-{step}" for step in STEPS]
    assert [float(row["symmetry"]) for row in rows] == pytest.approx(symmetries(run_folder), abs=1e-5)
    out, err = capsys.readouterr()
    size = 3 * 3 * 2 * 16 * 16 * 4  # checkpoints, layers, q and k, float32
    assert f"3 checkpoints, 3 to read: {size / 1000:.1f}kB" in err
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["2", "10", "300"]
    told = f"1 of the 4 that match have no step in their names, and are left out: {run_folder}/logs"
    assert (told in err) == (way == "shell, all")


def test_models_whose_names_hold_their_sizes_are_no_training(tmp_path, capsys):
    assert run("--hf", bert(tmp_path / "llama-7b", 0.1), bert(tmp_path / "llama-13b", 0.2)) == 0
    assert "checkpoints" not in capsys.readouterr().err


def test_files_that_match_count_as_folders_do(tmp_path):
    sizes = dict(vocab_size=30, block_size=8, n_layer=1, n_head=2, n_embd=16, causal=True)
    names, expected = ["ckpt-00000020.pt", "ckpt-00000100.pt"], []  # of train.py --keep
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(**sizes))
        attention = model.blocks[0].attn
        m = (attention.q.weight.T @ attention.k.weight).detach().double()
        expected.append(float((m * m.T).sum() / m.square().sum()))
        torch.save({"model": model.state_dict(), "config": sizes}, tmp_path / name)
    for given in [f"{tmp_path}/ckpt-*.pt"], [str(tmp_path), "--revisions", "ckpt-*.pt"]:
        assert run("--hf", *given, "--csv", str(tmp_path / f"{len(given)}.csv")) == 0
        rows = read(tmp_path / f"{len(given)}.csv")
        assert [Path(row["revision"]).name for row in rows] == names
        assert [float(row["symmetry"]) for row in rows] == pytest.approx(expected, abs=1e-5)


def test_the_config_of_accelerate_is_read_from_the_folder_above(run_folder):
    expected = symmetries(run_folder)
    for folder in run_folder.glob("checkpoint-*"):
        step = folder.rename(run_folder / folder.name.replace("checkpoint-", "step_"))
        (step / "config.json").rename(run_folder / "config.json")
    assert run("--hf", str(run_folder), "--revisions", "step_*", "--csv", str(run_folder / "s.csv")) == 0
    assert [float(row["symmetry"]) for row in read(run_folder / "s.csv")] == pytest.approx(expected, abs=1e-5)


def test_a_folder_whose_name_looks_like_a_glob_is_that_folder(run_folder, capsys):
    (run_folder / "checkpoint-2").rename(run_folder / "run[2]")
    assert run("--hf", str(run_folder / "run[2]")) == 0
    assert "run[2]: read" in capsys.readouterr().err


def test_two_trainings_that_one_glob_matches_are_two(run_folder, tmp_path):
    bert(tmp_path / "other" / "checkpoint-7", 0.5)
    found = suites.find_targets(f"{tmp_path}/*/checkpoint-*")
    assert {target.model for target in found} == {f"{run_folder}/checkpoint-*", f"{tmp_path}/other/checkpoint-*"}
    assert len(found) == 4


def test_one_that_fails_is_named_and_skipped_and_the_next_run_reads_that_one_alone(run_folder, tmp_path, capsys):
    weights = run_folder / "checkpoint-10" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:50])
    argv = ["--hf", str(run_folder), "--revisions", "checkpoint-*", "--csv", str(tmp_path / "s.csv")]
    assert run(*argv) == 1
    assert f"analyze.py: {run_folder} checkpoint-10: " in capsys.readouterr().err
    assert {row["revision"] for row in read(tmp_path / "s.csv")} == {"checkpoint-2", "checkpoint-300"}
    weights.write_bytes(whole)
    assert run(*argv) == 0
    err = capsys.readouterr().err
    assert "3 checkpoints, 1 to read" in err and "checkpoint-10: read" in err and "checkpoint-2: read" not in err
    rows = read(tmp_path / "s.csv")
    assert len(rows) == 9 and len({(row["revision"], row["layer"]) for row in rows}) == 9


def test_a_finished_training_is_drawn_again_from_its_csv_alone(run_folder, tmp_path, drawn, capsys):
    argv = ["--hf", str(run_folder), "--revisions", "checkpoint-*", "--csv", str(tmp_path / "s.csv")]
    run(*argv)
    before = (tmp_path / "s.csv").read_bytes()
    assert run(*argv, "--plot", str(tmp_path / "s.png")) == 0
    assert (tmp_path / "s.csv").read_bytes() == before and drawn
    assert "3 checkpoints, 0 to read" in capsys.readouterr().err
    told = run(*argv, "--matrices", str(tmp_path / "m.png"))  # the CSV has scores, and no W_qk
    assert "s.csv has all scores, but no W_qk: give another --csv" in told and not (tmp_path / "m.png").exists()


def test_the_picture_holds_medians_quartiles_and_a_line_per_layer(run_folder, tmp_path, drawn):
    bert(tmp_path / "decoder" / "checkpoint-5", 0.1, n_layer=2, causal=True)
    run("--hf", str(run_folder), str(tmp_path / "decoder"), "--revisions", "checkpoint-*", "--csv",
        str(tmp_path / "s.csv"), "--plot", str(tmp_path / "s.png"))
    medians, layers, others = drawn[0].axes[:3]
    values = np.reshape(symmetries(run_folder), (3, 3))  # (P, L)
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
    (["--hf", "{run}", "--revisions", "step*"], "no folder or file in {run} matches step*"),
    (["--hf", "{run}/lo*"], "nothing that matches {run}/lo* has a step in its name"),
    (["--suite", "ettn"], "no suite ettn: there are "),
    (["--suite", "{run}/none.csv"], "there is no file {run}/none.csv"),
    (["--hf", "{run}/checkpoint-*", "{run}/run[2]"], "{run}/run[2] is no training, and others are"),
    (["--suite", "{run}/alone.csv", "--plot", "{run}/s.png"], "nothing to draw"),
])
def test_what_cannot_be_scored_or_drawn_is_one_line(argv, wanted, run_folder, capsys):
    bert(run_folder / "run[2]", 0.5)
    alone = dict(suite="toy", name="a", hub_id=run_folder / "checkpoint-2", kind="switch", causal=0, partner="no")
    Path(suite_file(run_folder, [alone])).rename(run_folder / "alone.csv")
    code = run(*(word.format(run=run_folder) for word in argv))
    said = f"{code}\n{capsys.readouterr().err}"
    assert code and wanted.format(run=run_folder) in said and "Traceback" not in said


@pytest.mark.parametrize("rows, wanted", [
    ("", "lists no model"), ("s,m\n", "line 2 is no row of suite,name"), ("s,m,x,,,pair,yes,x,S,,,here\n", "line 2"),
    ("s,m,x,,,dose,1,x,S,many,,here\n", "line 2 is no row"),
    ("s,m,x,,,dose,1,x,S,,,here\n", "m: a dose goes with kind 'dose'"),
    ("s,m,x,,,pairs,1,x,S,,,here\n", "m: kind is 'pairs', expected one of pair, dose, switch, training"),
    ("s,m,x,v*,,pair,1,x,S,,,here\n", "m: hub_id or revision is a pattern"),
    ("s,m,x,v1,,training,1,x,S,,,here\n", "m: hub_id or revision is a pattern"),
    ("s,m,x,,,pair,0,x,S,,,a\ns,m,y,,,pair,1,x,S,,,b\n", "suite s has two members m of the same revision")])
def test_a_list_of_a_suite_that_makes_no_sense_is_one_line(rows, wanted, tmp_path):
    (tmp_path / "suite.csv").write_text(",".join(suites.Member._fields) + "\n" + rows)
    told = run("--suite", str(tmp_path / "suite.csv"))
    assert f"{tmp_path}/suite.csv" in told and wanted in told and "\n" not in told


# ---- on the Hub --------------------------------------------------------------------------------------------------


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_branches_and_tags_are_read_in_order_by_the_bytes_of_queries_and_keys(hub, tmp_path, capsys):  # noqa: F811
    folders = [bert(tmp_path / str(i), mix, vocab_size=30_000) for i, mix in enumerate((0.0, 0.4, 0.9))]
    hub.add("org/model", files_of(folders[2]), branch="step300")
    hub.add("org/model", files_of(folders[1]), branch="step10")
    hub.add("org/model", files_of(folders[0]), tag="step2")
    hub.add("org/model", {"README.md": b"no model here"})
    assert run("--hf", "org/model", "--revisions", "step*", "--csv", str(tmp_path / "s.csv")) == 0
    rows = read(tmp_path / "s.csv")
    assert [row["revision"] for row in rows[::3]] == ["step2", "step10", "step300"]
    for row, wanted in zip(rows, [s for folder in folders for s in symmetry_of(folder)]):
        assert row["model"] == "org/model" and float(row["symmetry"]) == pytest.approx(wanted, abs=1e-5)
    assert "org/model: 3 checkpoints, 3 to read" in capsys.readouterr().err
    whole = (tmp_path / "0" / "model.safetensors").stat().st_size
    q_and_k = 3 * 2 * 16 * 16 * 4  # layers, q and k, float32
    first_read = 1 << 15  # of each file, for its header; three checkpoints, and the first of them once more beforehand
    assert 3 * q_and_k < hub.sent("model.safetensors") <= 3 * q_and_k + 4 * first_read < whole


def test_a_model_counts_once_however_it_is_written(hub, run_folder, tmp_path):  # noqa: F811
    hub.add("org/model", files_of(run_folder / "checkpoint-2"))
    names = ["org/model", " org/model", f"{hub.url}/org/model", "https://huggingface.co/org/model"]
    assert run("--hf", *names, "--csv", str(tmp_path / "s.csv")) == 0
    assert [row["model"] for row in read(tmp_path / "s.csv")] == 3 * ["org/model"]


def test_steps_in_the_names_of_repositories(hub, run_folder, tmp_path):  # noqa: F811
    for seed in 0, 1:
        for step in 2, 10, 300:
            hub.add(f"org/bert-seed_{seed}-step_{step}k", files_of(run_folder / f"checkpoint-{step}"))
    hub.add("org/bert-seed_0", files_of(run_folder / "checkpoint-2"))
    assert run("--hf", "org/bert-seed_*-step_*k", "--stride", "2", "--csv", str(tmp_path / "s.csv")) == 0
    rows = read(tmp_path / "s.csv")
    assert [(row["model"], row["revision"]) for row in rows[::3]] == [
        (f"org/bert-seed_{seed}-step_*", f"org/bert-seed_{seed}-step_{step}k") for seed in (0, 1) for step in (2, 300)]


@pytest.mark.parametrize("argv, wanted", [
    (["org/model", "--revisions", "stage*"], "no branch or tag of org/model matches stage*; the first of its 2 are"),
    (["org/none", "--revisions", "*"], "there is no http"),
    (["org/../model", "--revisions", "*"], "there is no folder org/../model, and a Hub id is org/name"),
    (["org/none-*"], "matches org/none-*"),
    (["a/b/none-*"], "no folder or file matches a/b/none-*")])
def test_what_the_hub_does_not_have_is_one_line(hub, run_folder, tmp_path, capsys, argv, wanted):  # noqa: F811
    for name in "org/model", "org/next":
        for branch in "main", "step1":
            hub.add(name, files_of(run_folder / "checkpoint-2"), branch=branch)
    assert run("--hf", "org/next", *argv) == 1
    out, err = capsys.readouterr()
    assert f"analyze.py: {argv[0]}: " in err and wanted in err and "Traceback" not in err
    assert ("org/next" in out) == (argv[-1] != "stage*")


# ---- a suite -----------------------------------------------------------------------------------------------------


def suite_file(folder, rows):
    with open(folder / "suite.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, suites.Member._fields, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return str(folder / "suite.csv")


@pytest.fixture
def suite(tmp_path):
    """Pairs of two sizes, an encoder that was made of a decoder, a dose, and a training."""
    folders = dict(
        enc_s=bert(tmp_path / "enc-s", 0.8, 2), dec_s=bert(tmp_path / "dec-s", 0.2, 2, causal=True),
        enc_l=bert(tmp_path / "enc-l", 0.9, 4), dec_l=bert(tmp_path / "dec-l", 0.1, 4, causal=True),
        switched=bert(tmp_path / "switched", 0.5, 4), step_1=bert(tmp_path / "t" / "step1", 0.0, 2),
        step_9=bert(tmp_path / "t" / "step9", 0.7, 2))
    rows = []
    for name, causal, size in ("enc_s", 0, "S"), ("dec_s", 1, "S"), ("enc_l", 0, "L"), ("dec_l", 1, "L"):
        rows.append(dict(suite="toy", name=name, hub_id=folders[name], kind="pair", causal=causal, size=size))
    rows.append(dict(suite="toy", name="switched", hub_id=folders["switched"], kind="switch", causal=0, size="L",
                     partner="dec_l"))
    for dose, name in (100, "dec_l"), (0, "enc_l"), (50, "switched"):
        rows.append(dict(suite="toy", name=f"dose {dose}", hub_id=folders[name], kind="dose", causal="", size="L",
                         objective="causal steps", dose=dose))
    rows.append(dict(suite="toy", name="t", hub_id=str(tmp_path / "t"), revision="step*", kind="training", causal=0,
                     size="S"))
    return suite_file(tmp_path, rows), folders


def test_a_suite_is_scored_member_by_member_and_goes_on_where_it_stopped(suite, tmp_path, capsys):
    path, folders = suite
    argv = ["--suite", path, "--csv", str(tmp_path / "s.csv")]
    assert run(*argv) == 0
    rows = read(tmp_path / "s.csv")
    for name in "enc_s", "dec_l", "switched":
        found = [float(row["symmetry"]) for row in rows if row["model"] == name]
        assert found == pytest.approx(symmetry_of(folders[name]), abs=1e-5)
    assert [row["revision"] for row in rows if row["model"] == "t"] == ["step1", "step1", "step9", "step9"]
    out = capsys.readouterr().out
    assert run(*argv) == 0
    again = capsys.readouterr()
    assert again.out == out and ": read " not in again.err


def test_a_local_checkpoint_that_was_replaced_is_scored_again_although_its_file_is_older(suite, tmp_path, monkeypatch,
                                                                                        capsys):
    """Both of a training, by files that keep their time, as with cp -p; Ctrl-C comes when one was scored again."""
    path, folders = suite
    argv = ["--suite", path, "--csv", str(tmp_path / "s.csv")]
    assert run(*argv) == 0
    new = bert(tmp_path / "other", 0.4, 2)
    os.utime(Path(new) / "model.safetensors", (1e9, 1e9))
    for step in "step_1", "step_9":
        shutil.copy2(Path(new) / "model.safetensors", folders[step])
    stop_at(monkeypatch, folders["step_9"])
    assert run(*argv) == 130
    monkeypatch.undo()
    assert "t step1: read " in capsys.readouterr().err
    assert run(*argv) == 0
    err = capsys.readouterr().err
    assert "t step9: read " in err and err.count(": read ") == 1
    for step in "step1", "step9":
        found = [float(row["symmetry"]) for row in read(tmp_path / "s.csv") if row["revision"] == step]
        assert found == pytest.approx(symmetry_of(new), abs=1e-5)


def test_a_member_whose_stack_its_model_does_not_have_is_named(run_folder, tmp_path, capsys):
    rows = [dict(suite="toy", name=name, hub_id=run_folder / "checkpoint-2", stack=stack, kind="switch", causal=0)
            for name, stack in [("whole", ""), ("half", "decoder")]]
    for _ in "as it is scored", "from the CSV alone":
        assert run("--suite", suite_file(tmp_path, rows), "--csv", str(tmp_path / "s.csv")) == 0
        out, err = capsys.readouterr()
        assert "half: it has no stack decoder, and is left out" in err and "whole" in out and "half" not in out


def test_members_of_one_name_and_different_revisions_have_a_score_each(hub, run_folder, tmp_path, capsys):  # noqa: F811
    """The steps of a training, its last step, and an earlier version of that, all named m."""
    revisions = {"step2": "checkpoint-2", "": "checkpoint-300", "v1": "checkpoint-10"}
    for revision, folder in revisions.items():
        hub.add("org/m", files_of(run_folder / folder), branch=revision or "main")
    common = dict(suite="toy", name="m", hub_id="org/m", size="S", causal=0)
    members = [common | dict(kind="training", revision="step*")]
    members += [common | dict(kind="pair", revision=revision) for revision in ("", "v1")]
    assert run("--suite", suite_file(tmp_path, members), "--csv", str(tmp_path / "s.csv")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("m ")]
    medians = [np.median(symmetry_of(run_folder / revisions[revision])) for revision in ("", "v1")]
    assert [words[2:4] for words in lines] == [["3", f"{median:.2f}"] for median in medians]  # layers, median
    assert [row["revision"] for row in read(tmp_path / "s.csv")[::3]] == list(revisions)


def test_the_difference_is_taken_at_equal_depth():
    """Scores that are straight lines over depth, on 3 and 5 layers: so is their difference."""
    member = suites.Member("s", "m", "", "", "", "pair", False, "", "S", None, "", "")
    encoder = Scored(member, pd.DataFrame({"symmetry": 1 - np.linspace(0, 1, 3)}))
    decoder = Scored(member._replace(causal=True), pd.DataFrame({"symmetry": 0.5 * np.linspace(0, 1, 5)}))
    (pair,) = find_pairs([decoder, encoder])
    np.testing.assert_allclose(difference(*pair[1:], "symmetry"), 1 - 1.5 * GRID, atol=1e-12)


def test_the_picture_of_a_suite(suite, tmp_path, drawn):
    path, folders = suite
    assert run("--suite", path, "--csv", str(tmp_path / "s.csv"), "--plot", str(tmp_path / "s.png")) == 0
    small, large, differ, switched, dose, over_steps = drawn[0].axes[:6]  # of symmetry
    for axis, names in (small, ("enc_s", "dec_s")), (large, ("enc_l", "dec_l")):
        for line, name in zip(axis.lines, names):
            np.testing.assert_allclose(line.get_ydata(), symmetry_of(folders[name]), atol=1e-5)
            assert list(line.get_xdata()) == pytest.approx(np.linspace(0, 1, len(line.get_ydata())))
    # the difference at both ends, of each size, and the band of one standard deviation over the two
    ends = np.array([[symmetry_of(folders[f"enc_{size}"])[i] - symmetry_of(folders[f"dec_{size}"])[i]
                      for i in (0, -1)] for size in "sl"])  # (sizes, ends)
    for line, wanted in zip(differ.lines, [*ends, ends.mean(0)]):
        np.testing.assert_allclose(line.get_ydata()[[0, -1]], wanted, atol=1e-5)
    corners = differ.collections[0].get_paths()[0].vertices
    edges = corners[corners[:, 0] == 0, 1]
    assert edges.max() - edges.min() == pytest.approx(2 * np.std(ends[:, 0], ddof=1), abs=1e-5)
    (arrow,) = switched.texts
    assert arrow.xyann[1] == pytest.approx(np.median(symmetry_of(folders["dec_l"])), abs=1e-5)
    assert arrow.xy[1] == pytest.approx(np.median(symmetry_of(folders["switched"])), abs=1e-5)
    line = dose.lines[0]
    assert list(line.get_xdata()) == [0, 50, 100]
    wanted = [np.median(symmetry_of(folders[name])) for name in ("enc_l", "switched", "dec_l")]
    np.testing.assert_allclose(line.get_ydata(), wanted, atol=1e-5)
    assert list(over_steps.lines[0].get_xdata()) == [1, 9]


def test_a_member_that_fails_is_left_out_of_the_picture(suite, tmp_path, capsys, drawn):
    path, folders = suite
    (Path(folders["dec_s"]) / "model.safetensors").write_bytes(b"broken")
    assert run("--suite", path, "--plot", str(tmp_path / "s.png")) == 1
    out, err = capsys.readouterr()
    assert "analyze.py: dec_s: " in err and "encoder less decoder, L" in out
    assert "encoder less decoder, S" not in out and drawn


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
