"""analyze.py: the scores against their definitions in float64, and what a person sees. pytest tests/test_analyze.py"""

import ctypes
import math
import os
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from matplotlib import cbook
from PIL import Image, ImageSequence
from safetensors.torch import load_file
from transformers import AutoModel, BertConfig, LlamaConfig, T5Config, logging

import analyze
from analyze import directionality, directionality_eq17, layer_factors, scores, split_heads, symmetry, wqk
from data import drawing
from data.pretrained import revisions, scores_table, sources
from data.pretrained.pictures import plot_models
from tests.lives import at_call
from tests.toy import files_of, model_folder

logging.disable_progress_bar()

BERT = BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
LLAMA = LlamaConfig(vocab_size=30, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                    head_dim=16, intermediate_size=32)
T5 = T5Config(vocab_size=30, d_model=32, num_layers=2, num_decoder_layers=3, num_heads=4, d_kv=8, d_ff=32)
QUERY = "encoder.layer.{i}.attention.self.query.weight"  # of BERT
KEY = "encoder.layer.{i}.attention.self.key.weight"


def defined(m, gamma=2.0):
    """In float64: symmetry, Eq. (15, 16) without the leading 2; directionality as published, and by Eq. (17-19)."""
    m = np.asarray(m, dtype=np.float64)
    s = (np.linalg.norm((m + m.T) / 2) ** 2 - np.linalg.norm((m - m.T) / 2) ** 2) / np.linalg.norm(m) ** 2
    rows = [np.linalg.norm(row) for row in m]
    columns = [np.linalg.norm(column) for column in m.T]

    def excess(norms):
        threshold = np.mean(norms) + gamma * np.std(norms, ddof=1)
        return sum(x - threshold for x in norms if x > threshold)

    def outliers(norms):
        threshold = np.mean(norms) + gamma * np.std(norms)
        return sum(x for x in norms if x > threshold)

    def balance(r, c):
        return (r - c) / (r + c) if r + c else 0.0

    return s, balance(excess(rows), excess(columns)), balance(outliers(rows), outliers(columns))


def numbers(found):
    """The three scores that `defined` returns, as numbers, or lists of them. A fork may have a score more."""
    return [score.tolist() for score in found[:3]]


def factors(C, r, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heavy = 1 + 9 * (torch.rand(2, C, 1, generator=generator) < 0.05)  # some rows and columns stand out
    return (torch.randn(2, C, r, generator=generator) * heavy).unbind()


# ---- the scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C, r", [(64, 2), (64, 8), (64, 13), (64, 64), (300, 16), (200, 100), (800, 257)])
@pytest.mark.parametrize("gamma, dtype", [(1.0, torch.float32), (2.0, torch.bfloat16), (2.0, torch.float64)])
def test_scores_from_factors_are_the_definitions_to_1e_5(C, r, gamma, dtype):
    w_q, w_k = (w.to(dtype) for w in factors(C, r))
    m = w_q.double() @ w_k.double().T
    assert numbers(scores(w_q, w_k, gamma)) == pytest.approx(defined(m, gamma), abs=1e-5)
    of_notebook = scores(torch.nn.Parameter(w_q), w_k.double().numpy(), gamma)
    assert numbers(of_notebook) == pytest.approx(defined(m, gamma), abs=1e-5) and not of_notebook.symmetry.requires_grad
    plain = symmetry(m), directionality(m, gamma), directionality_eq17(m, gamma)
    assert [x.item() for x in plain] == pytest.approx(defined(m, gamma), abs=1e-12)


def test_norms_that_are_equal_but_for_rounding_do_not_stand_out():
    """As those of W_qk if q and k start orthogonal: every row and column of it has length 1."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        q, k = torch.linalg.qr(torch.randn(2, 256, 256, generator=generator))[0]
        assert scores(q, k)[1].item() == scores(q, k)[2].item() == 0
        assert directionality(wqk(q, k)).item() == directionality_eq17(wqk(q, k)).item() == 0


def test_factors_that_do_not_fit_are_refused_and_grouped_keys_shown_the_way_on():
    w_q, w_k = torch.randn(64, 48), torch.randn(64, 16)  # six query heads and two key heads of 8
    with pytest.raises(ValueError, match=r"\(64, 48\) and \(64, 16\): .*layer_factors"):
        scores(w_q, w_k)
    of_layer = scores(*layer_factors(split_heads(w_q, 6), split_heads(w_k, 2)))
    m = sum(w_q[:, 8 * h : 8 * h + 8] @ w_k[:, 8 * (h // 3) : 8 * (h // 3) + 8].T for h in range(6))
    assert numbers(of_layer) == pytest.approx(defined(m, 2.0), abs=1e-5)


def test_nan_is_not_read_as_nothing_stands_out():
    m = torch.eye(4).index_fill(0, torch.tensor([1]), float("nan"))
    assert symmetry(m).isnan() and directionality(m).isnan() and directionality_eq17(m).isnan()
    assert symmetry(torch.zeros(3, 3)).isnan()


def test_analyze_itself_needs_torch_alone():
    code = ("import sys, analyze; print(*[m for m in sys.modules if m.partition('.')[0] in "
            "('data', 'config', 'train', 'model', 'init', 'pandas', 'transformers', 'huggingface_hub', 'matplotlib')])")
    there = Path(analyze.__file__).parent
    assert subprocess.run([sys.executable, "-c", code], cwd=there, capture_output=True, text=True).stdout == "\n"


# ---- where numbers run out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [8, 40])
def test_heads_that_all_but_cancel_are_scored_to_1e_4(D):
    """W_q,2 = -W_q,1 (1 + 1e-5) at equal keys: of the layer's W_qk a 10^-10th is left, of squares."""
    w_q, w_k = factors(96, D)
    w_q, w_k = torch.cat([w_q, -w_q * (1 + 1e-5)], 1), torch.cat([w_k, w_k], 1)
    found = numbers(scores(w_q, w_k))
    assert found == pytest.approx(defined(w_q.double() @ w_k.double().T), abs=1e-4)
    batch = numbers(scores(torch.stack([w_q, w_k]), torch.stack([w_k, w_k])))  # one of two is such
    assert [x[0] for x in batch] == pytest.approx(found, abs=1e-6)
    assert [x[1] for x in batch] == pytest.approx(defined(w_k.double() @ w_k.double().T), abs=1e-4)


@pytest.mark.parametrize("C, D", [(64, 4), (64, 16), (300, 16), (256, 64)])
def test_heads_that_cancel_to_the_last_digit_have_no_score(C, D):
    """q = [A; -A], k = [B; B]: W_qk is zero, and what float64 leaves of it is rounding."""
    A, B = torch.randn(2, C, D)
    for values in scores(torch.cat([A, -A], 1), torch.cat([B, B], 1)):
        assert values.isnan()


def test_rows_that_only_rounding_keeps_from_zero_have_a_length():
    """The keys have two directions. Half of the tokens have queries that are orthogonal to both, but for rounding."""
    w_q, w_k = (w.double() for w in factors(96, 8))
    plane = torch.linalg.qr(torch.randn(8, 2).double()).Q  # (8, 2)
    w_k = w_k @ plane @ plane.T
    w_q[:48] -= w_q[:48] @ plane @ plane.T
    for q, k in (w_q, w_k), (w_k, w_q):  # such rows, and such columns
        assert numbers(scores(q, k)) == pytest.approx(defined(q @ k.T), abs=1e-5)


def test_queries_that_share_keys_and_cancel_to_1e_6_are_scored_to_1e_4():
    """Four query heads to a key head, float32: of their sum in float32 one digit would be left."""
    w_q, w_k = torch.randn(4, 96, 8), torch.randn(1, 96, 8)
    w_q = torch.cat([w_q, -w_q * (1 + 1e-6 * torch.randn(4, 96, 8))])
    whole = sum(q.double() @ w_k[0].double().T for q in w_q)
    found = scores(*analyze.layer_factors(w_q, w_k))
    assert numbers(found) == pytest.approx(defined(whole), abs=1e-4)


@pytest.mark.parametrize("r", [8, 50])
@pytest.mark.parametrize("scale", [1e-160, 1e-38, 1e78, 1e150])
def test_the_size_of_the_weights_does_not_matter_however_small_or_large(r, scale):
    w_q, w_k = factors(96, r)
    plain = numbers(scores(w_q, w_k))
    for q, k in (w_q.double() * scale, w_k.double() * scale), (w_q, w_k.double() * scale):
        assert numbers(scores(q, k)) == pytest.approx(plain, abs=1e-5)
        assert numbers(scores(*analyze.layer_factors(q[None], k[None]))) == pytest.approx(plain, abs=1e-5)


# ---- the command -------------------------------------------------------------------------------------------------


def model(config, path):
    AutoModel.from_config(config).save_pretrained(path)
    return str(path)


def bert(path, mix):
    """A BERT whose keys are partly its queries, so that its symmetry grows with `mix`; and weights that are neither."""
    torch.manual_seed(0)
    weights = {"embeddings.word_embeddings.weight": torch.randn(10, 16)}
    for i in range(3):
        q, k = torch.randn(2, 16, 16)
        weights[QUERY.format(i=i)] = q
        weights[KEY.format(i=i)] = torch.lerp(k, q, mix)
    config = dict(model_type="bert", num_hidden_layers=3, num_attention_heads=2, hidden_size=16)
    return str(model_folder(path, weights, config))


def wqk_of(path):
    """The W_qk of every layer of a BERT, in float64."""
    weights = load_file(Path(path) / "model.safetensors")
    names = sorted(name for name in weights if name.endswith("query.weight"))
    return [(weights[name].double().T @ weights[name.replace("query", "key")].double()).numpy() for name in names]


def symmetry_of(path):
    return [defined(m)[0] for m in wqk_of(path)]


def test_the_command_keeps_its_memory_from_layer_to_layer(tmp_path, monkeypatch):
    """And score_model does not, because memory belongs to the program that calls it."""
    kept = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *option: kept.append(option)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    analyze.score_model(bert(tmp_path / "m", 0.5))
    assert not kept
    monkeypatch.setattr(sys, "argv", ["analyze.py", "--hf", str(tmp_path / "m")])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(analyze.__file__, run_name="__main__")
    assert sorted(kept) == [(-4, 0), (-1, -1)]


def test_csv_holds_every_layer_and_head_of_grouped_keys_in_full_precision(tmp_path, analysed):
    found = analysed("--hf", model(LLAMA, "m"), "--per_head")
    assert found.status == 0
    assert list(zip(found.table.layer, found.table["head"])) == [(i, h) for i in range(2) for h in ("", *range(6))]
    weights = load_file("m/model.safetensors")
    for i, rows in found.table.groupby("layer"):
        q, k = (weights[f"layers.{i}.self_attn.{x}_proj.weight"].double() for x in "qk")
        heads = [q[16 * h : 16 * h + 16].T @ k[16 * (h // 3) : 16 * (h // 3) + 16] for h in range(6)]
        expected = [defined(m) for m in (sum(heads), *heads)]
        columns = ["symmetry", "directionality", "directionality_eq17"]
        np.testing.assert_allclose(rows[columns].to_numpy(float), expected, atol=1e-5)
        w_q, w_k = [analyze.split_heads(torch.nn.Parameter(w).T, n_head) for w, n_head in ((q, 6), (k, 2))]
        assert numbers(scores(*analyze.layer_factors(w_q, w_k))) == pytest.approx(expected[0], abs=1e-5)
    scored = analyze.score_model("m", per_head=True).table
    assert list(scored.symmetry) == list(found.table.symmetry)  # to the last digit


def test_failures_do_not_stop_the_others_and_the_status_tells(analysed):
    Path("empty").mkdir()
    weights = load_file(Path(bert("zero", 0.5), "model.safetensors"))
    weights[KEY.format(i=1)].zero_()
    model_folder("zero", weights)
    found = analysed("--hf", "lama3-8b", "./empty", "--hf", "./zero", model(BERT, "m"))
    assert found.status == 1 and list(found.table.model) == 3 * ["m"]
    assert "lama3-8b: no model or folder of this name" in found.err
    assert "empty: no model.safetensors" in found.err and "Traceback" not in found.err
    assert f"{QUERY.format(i=1)}: W_qk of this layer is zero" in found.err


def test_paper_goes_on_where_it_stopped(hub, monkeypatch, analysed):
    """Two models, one of which cannot be had the first time. Their published scores are beside ours."""
    known = [row for row in sources.known_models() if row["name"] in ("bert-base", "llama3-8b")]
    for module in revisions, sources:
        monkeypatch.setattr(module, "known_models", lambda: known)
    first, second = [row["hub_id"] for row in known]
    hub.add(first, files_of(model(BERT, "b")))
    assert analysed("--paper").status == 1
    hub.add(second, files_of(model(LLAMA, "l")))
    hub.log.clear()
    found = analysed("--paper")
    assert found.status == 0 and not any(first in str(entry) for entry in hub.log)
    assert list(found.table.model) == 3 * [known[0]["name"]] + 2 * [known[1]["name"]]
    for line, row, star in zip(found.out.splitlines()[2:4], known, (" ", "*")):  # * is not of W_qk
        assert line.split()[0] == row["name"] and f" {float(row['symmetry']):.2f}{star}" in line
    assert "  *: not a score of W_qk" in found.out


def test_the_table_of_a_folder_has_no_long_path_no_minus_zero_and_nothing_published_for_its_name(analysed):
    a = torch.randn(16, 16)
    skew = 1.001 * (a - a.T) * (a + a.T).norm() / (a - a.T).norm()  # a symmetry of -0.001
    path = bert("long-" * 20 + "/gpt2", 0.5)
    model_folder(path, {name.format(i=i): weight for i in range(3)
                        for name, weight in ((QUERY, torch.eye(16)), (KEY, a + a.T + skew))})
    found = analysed("--hf", path)
    assert list(found.table.symmetry) == pytest.approx(3 * [-0.001], abs=2e-4)
    assert " -0.001 " in found.out and " 0.00 [0.00, 0.00] " in found.out and "-0.00 " not in found.out
    assert "-0.00 " not in str(analyze.score_model(path, gamma=9))  # nothing stands out so far, also by chance
    assert max(map(len, found.out.splitlines())) < 120 and "/gpt2 " in found.out and "published" not in found.out


def test_what_of_a_model_is_not_there_is_said_under_its_table_also_if_it_was_scored_before(analysed):
    config = dict(model_type="whisper", encoder_layers=1, encoder_attention_heads=2)
    weights = {f"encoder.layers.0.self_attn.{x}_proj.weight": torch.randn(16, 16) for x in "qk"}
    model_folder("m", weights, config)
    for _ in range(2):
        assert "  m: its decoder has no queries and keys here" in analysed("--hf", "m").out.splitlines()


# ---- the CSV is gone on with, and nothing in it is lost ----------------------------------------------------------


def test_models_in_the_csv_are_not_read_again_and_those_that_are_not_asked_for_stay(analysed):
    first = analysed("--hf", model(BERT, "a"), model(LLAMA, "b"))
    # Scores of another kind are not mixed with them.
    assert "was scored with gamma = 2.0, and not with 3.0" in analysed("--hf", "b", "--gamma=3").status
    assert "was scored with per_head = False, and not with True" in analysed("--hf", "b", "--per_head").status
    second = analysed("--hf", "b", model(LLAMA, "c"))
    assert (first.status, second.status) == (0, 0) and "b: read" not in second.err and "c: read" in second.err
    assert "1 of 2 are already in s.csv: delete their rows to score them again" in second.err
    assert [line.split()[0] for line in second.out.splitlines()[2:4]] == ["b", "c"]
    assert second.table[:5].equals(first.table) and list(second.table.model[5:]) == ["c"] * 2
    shutil.rmtree("b")
    third = analysed("--hf", "a", "b", "--matrices=w.png")  # which reads them again, and one of them is gone
    assert third.status == 1 and len(third.table) == len(second.table)


def test_a_row_is_known_by_the_folder_that_was_scored_however_it_is_called(tmp_path, analysed):
    """And not by a name, which is of another folder elsewhere, or leads to another one later."""
    first = analysed("--hf", "./m", "m/", bert("m", 0.1))
    assert first.err.count(": read ") == 1 and list(first.table.model) == ["m"] * 3
    assert set(first.table.source) == {str(tmp_path / "m")}
    Path("link").symlink_to("m")
    assert ": read " not in analysed("--hf", tmp_path / "m", "link/").err
    Path("link").unlink()
    Path("link").symlink_to(bert("elsewhere/m", 0.9))
    assert list(analysed("--hf", "link").table.symmetry[3:]) == pytest.approx(symmetry_of("elsewhere/m"), abs=1e-5)


@pytest.mark.parametrize("damage", [lambda lines: lines[:-1], lambda lines: lines[:2] + lines[3:],
                                    lambda lines: [*lines[:-1], lines[1]]])
def test_a_csv_that_lost_a_layer_or_has_one_twice_is_not_believed(analysed, damage):
    analysed("--hf", model(BERT, "m"))
    lines = Path("s.csv").read_text().splitlines(keepends=True)
    Path("s.csv").write_text("".join(damage(lines)))
    assert "already in" not in analysed("--hf", "m").err
    assert Path("s.csv").read_text() == "".join(lines) and "already in" in analysed("--hf", "m").err


def test_a_csv_whose_rows_were_deleted_with_pandas_is_gone_on_with(analysed):
    """It writes the heads 0 and 1 as 0.0 and 1.0, because those of layers are empty."""
    names = "--hf", model(BERT, "a"), model(T5, "b")
    first = analysed(*names, "--per_head").table
    pandas.read_csv("s.csv").query("model == 'a'").to_csv("s.csv", index=False)
    second = analysed(*names, "--per_head")
    assert second.status == 0 and "a: read" not in second.err and second.table.equals(first)


def test_what_another_process_adds_to_the_csv_meanwhile_stays_in_it(analysed):
    other = analyze.score_model(model(LLAMA, "b")).table.assign(source="/elsewhere/b")
    its_picture = Path(f"p.png.unfinished-{os.getppid()}.tmp")
    notes = Path("notes.unfinished-draft.tmp")  # of the user
    its_picture.touch()
    notes.touch()
    with at_call("analyze.score_model", 1, partial(scores_table.add_scores, "s.csv", other)):
        assert list(analysed("--hf", model(BERT, "a")).table.model) == ["b"] * 2 + ["a"] * 3
    assert its_picture.exists() and notes.exists()


def test_a_full_disk_is_one_line_and_no_success(monkeypatch, analysed):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert analysed("--hf", model(BERT, "m")).status.startswith("analyze.py: [Errno 28]")


@pytest.mark.parametrize("argv", ["--hf m --revisions=step* --limit=0", "--hf m --revisions=step* --limit=-3",
                                  "--hf m --revisions=", "--paper --limit=3", "--hf m --limit=3",
                                  "--hf m --offline", "--hf m --plot=p.txt", "--hf m --device=tpu",
                                  "--runs out --per_head", "--runs out --matrices=w.png", "--runs out --gamma=3",
                                  "--hf m --measure=loss", "--paper --offline --all",
                                  "--hf m --plot=p.png --matrices=./p.png"])
def test_options_that_make_no_sense_end_at_once(argv, analysed):
    found = analysed(*argv.split())
    assert found.status == 2 and "error: " in found.err.splitlines()[-1]


@pytest.mark.parametrize("text", [
    "mine", ",".join(scores_table.COLUMNS) + "\nm,,,,1",
    *[",".join(scores_table.COLUMNS) + f"\nm,,/m,,1,{params},0,,64,64,,,2.0,0.1,{symmetry},0.3,0.2,1"
      for params, symmetry in ((9, "x"), (10**20, 0.5))]])
def test_a_csv_that_cannot_be_gone_on_with_is_named_and_stays_as_it_is(analysed, text):
    Path("s.csv").write_text(text)
    assert "s.csv holds something else" in analysed("--hf", bert("m", 0.5)).status and Path("s.csv").read_text() == text


# ---- pictures ----------------------------------------------------------------------------------------------------


def test_figure_2_and_the_table_hold_medians_and_quartiles_over_layers(drawn, analysed):
    found = analysed("--hf", model(BERT, "b"), model(LLAMA, "l"), "--plot=f.png")
    lines = found.out.splitlines()[2:4]
    for axis, name in zip(drawn[0].axes, ("symmetry", "directionality")):
        dots = [c for c in axis.containers if c.has_yerr]
        for dot, (_, layers), line in zip(dots, found.table.groupby("model")[name], lines):
            q1, median, q3 = np.percentile(layers, [25, 50, 75])
            (_, y), = dot.lines[0].get_xydata()
            (low, high), = [segment[:, 1] for segment in dot.lines[2][0].get_segments()]
            assert (low, y, high) == pytest.approx((q1, median, q3))
            rounded = [round(x, 2) + 0.0 for x in (median, q1, q3)]  # no -0.0
            assert "{:.2f} [{:.2f}, {:.2f}]".format(*rounded) in line
        assert [dot.lines[0].get_color() for dot in dots] == [drawing.ENCODER, drawing.DECODER]


def test_sizes_of_models_that_are_nearly_alike_have_labels_that_do_not_cover_each_other(drawn, tmp_path):
    table = analyze.score_model(bert(tmp_path / "b", 0.5)).table
    table = pandas.concat([table.assign(model="a", params=122_000), table.assign(model="b", params=139_000)])
    plot_models(table.assign(step=np.nan), str(tmp_path / "f.png"))
    for axis in drawn[0].axes:
        axis.figure.draw_without_rendering()
        labels = [label for label in axis.get_xticklabels() + axis.get_xticklabels(minor=True)
                  if label.get_text() and axis.get_xlim()[0] <= label.get_position()[0] <= axis.get_xlim()[1]]
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
        assert boxes and all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:]))


def test_an_encoder_decoder_has_a_line_in_the_table_and_a_row_of_the_picture_for_each_stack(drawn, analysed):
    found = analysed("--hf", model(T5, "m"), "--per_head", "--plot=f.png")
    layers, whole = found.out.split("Whole models, medians over layers:\n")
    assert [line.split()[1:3] for line in whole.splitlines()[1:3]] == [["encoder", "2"], ["decoder", "3"]]
    limit = found.table["limit"][0]
    assert f"{-limit:.2f} to {limit:.2f}" in layers.splitlines()[2]
    encoder = found.table.query("stack == 'encoder' and head == ''")["symmetry"]
    for line, score in (layers.splitlines()[2], encoder.iloc[0]), (whole.splitlines()[1], encoder.median()):
        assert f" {(score - 1 / 32) / (math.sqrt(2) / 32):+.1f} " in line  # above chance
    assert layers == f"Layers:\n{analyze.score_model('m', per_head=True)}\n\n"
    symmetry = drawn[0].axes[::2]
    for axis, stack, colour in zip(symmetry, ("encoder", "decoder"), (drawing.ENCODER, drawing.DECODER)):
        heads, layers, _zero = axis.lines  # the band of chance is no line
        rows = found.table[found.table["stack"] == stack]
        for line, wanted in (heads, rows[rows["head"] != ""]), (layers, rows[rows["head"] == ""]):
            assert list(line.get_ydata()) == pytest.approx(list(wanted.symmetry)) and line.get_color() == colour
            assert list(line.get_xdata()) == list(wanted.layer)
    assert len({axis.get_ylim() for axis in symmetry}) == 1


@pytest.mark.parametrize("name", [b"a$x_{1}$b", b"_m^\\", b"two\nlines", b"\xff"])
def test_names_are_written_as_they_are_into_pictures_and_csv_files(drawn, analysed, name):
    folder = bert(os.fsdecode(name), 0.5)
    found = analysed("--hf", folder, "--plot=f.png", "--matrices=m.png")
    told = name.decode(errors="backslashreplace")
    assert found.status == 0 and set(found.table.model) == {told}
    for title in drawn[0].axes[0].get_title("left"), drawn[1].axes[0].get_title("left"):
        assert told.replace("\n", "?").replace("$", r"\$") in title and not cbook.is_math_text(title)
    assert "not scored again" not in found.err and analysed("--hf", folder).err.startswith("1 of 1 are already in")


def by_length(m):
    """M with its dimensions in another order: those with the longest row and column together come first."""
    order = np.argsort(-(np.linalg.norm(m, axis=1) ** 2 + np.linalg.norm(m, axis=0) ** 2))
    return m[order][:, order]


def test_matrices_are_of_the_last_layer_of_each_model_and_a_dot_is_an_entry_and_its_mirror_image(drawn, analysed):
    names = bert("a", mix=0), bert("b", mix=1)
    assert analysed("--hf", *names, "--matrices=f.png").status == 0
    for (matrix, pairs), name in zip(np.reshape(drawn[0].axes, (2, 2)), names):
        m = by_length(wqk_of(name)[-1])
        np.testing.assert_allclose(matrix.images[0].get_array(), m, rtol=1e-4, atol=1e-6)
        dots = pairs.lines[1].get_xydata()
        expected = [(m[i, j], m[j, i]) for i in range(len(m)) for j in range(i + 1, len(m))]
        np.testing.assert_allclose(dots, expected, rtol=1e-4, atol=1e-6)
        assert pairs.get_xlim() == pairs.get_ylim() and pairs.get_aspect() == 1
        assert matrix.get_title("left").endswith(f"W_qk of layer {analyze.score_model(name).table['layer'].max()}")
        assert f"symmetry {defined(m)[0]:.2f}" in pairs.get_title("left")


def test_the_title_of_a_matrix_ends_before_that_of_its_dots_whatever_the_name(drawn, analysed):
    assert analysed("--hf", bert("a_long_name_" * 5, 0.5), "--matrices=f.png").status == 0
    drawn[0].draw_without_rendering()
    matrix, pairs = (axis._left_title.get_window_extent() for axis in drawn[0].axes)
    assert matrix.x1 < pairs.x0


def test_a_moving_picture_has_a_frame_for_each_step_and_begins_with_the_last(analysed):
    def frames(revisions):
        assert analysed("--hf", "./a", f"--revisions={revisions}", "--matrices=w.gif").status == 0
        with Image.open("w.gif") as movie:
            return [(np.asarray(frame.convert("RGB")).astype(int), frame.info["duration"])
                    for frame in ImageSequence.Iterator(movie)]

    for step in 1, 20, 300:
        bert(f"a/step{step}", mix=step / 300)
    pictures, durations = zip(*frames("step*"))
    for picture, step in zip(pictures, (300, 1, 20), strict=True):
        [(alone, _)] = frames(f"step{step}")
        assert np.abs(picture - alone).mean() < 1
    assert durations[0] > durations[1] == durations[2]  # the end of the training stays longest


def test_a_moving_picture_of_several_models_is_refused_before_any_is_scored(analysed):
    found = analysed("--hf", bert("a", 0.1), bert("b", 0.2), "--matrices=w.gif")
    assert "w.gif would show 2 models" in found.status and found.err == "" and not Path("s.csv").exists()
