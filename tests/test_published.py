"""What the authors published, read again: rows of tables, training runs, and pictures. pytest tests/test_published.py"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import same_color

import analyze
from data.pretrained import sources
from data.pretrained.layouts import find_stacks
from data.results import figures, models, tables
from data.results.csv.published import draw

ROOT = Path(analyze.__file__).parent
HERE = ROOT / "data" / "results" / "csv" / "published"
SHARED = ROOT.parent / "shared"
PAPER = SHARED / "paper" / "002_029aa20f9913524b.txt"
needs_shared = pytest.mark.skipif(not PAPER.exists(), reason="needs ../shared: the paper and the published scores")

MODELS = list(pd.read_csv(ROOT / "data/pretrained/models.csv", keep_default_na=False).itertuples())
PRINTED = list(pd.read_csv(ROOT / "data/pretrained/printed_tables.csv", keep_default_na=False).itertuples())


def run(*argv):
    with pytest.raises(SystemExit) as e:
        analyze.main(list(argv))
        raise SystemExit(0)
    return e.value.code


# ---- Tables S2 and S3, row by row --------------------------------------------------------------------------------


def table_of_the_paper(name):
    """The left half of a table and then its right half, as (printed name, median)."""
    text = PAPER.read_text()
    text = text[text.index(f"Table {name}: ") :]
    left, right = [], []
    for line in text[text.index("|") : text.index("\n\n", text.index("|"))].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        left.append((cells[0], float(cells[1])))
        right.append((cells[3], float(cells[4])))
    return left + right


@needs_shared
def test_the_printed_rows_are_those_of_the_paper():
    assert [(row.printed_as, row.symmetry) for row in PRINTED] == table_of_the_paper("S2")
    in_s3 = [row for row in PRINTED if row.directionality]
    assert [(row.printed_as, float(row.directionality)) for row in in_s3] == table_of_the_paper("S3")


@needs_shared
def test_every_printed_number_is_the_median_of_the_published_scores_that_its_row_names():
    table = pd.read_csv(SHARED / "published" / "scores.csv").query("modality == 'language'")
    table = table[(table["family"] != "GPT") | ~table["model"].str.startswith("gpt-")]  # see README.md
    layers = {of_model: rows[tables.SCORES] for of_model, rows in table.groupby(["model", "matrix"])}
    for row in PRINTED:
        symmetry, directionality = np.median(layers[row.published_as, row.matrix], axis=0)
        assert symmetry == pytest.approx(row.symmetry, abs=0.00501), row
        if row.directionality:  # Table S3 lacks two rows
            assert directionality == pytest.approx(float(row.directionality), abs=0.00501), row
    symmetries = [layers[row.published_as, row.matrix]["symmetry"].to_numpy() for row in PRINTED]  # (L,) each
    for i, row in enumerate(PRINTED):
        same = [other.row for other, x in zip(PRINTED[:i], symmetries) if x.shape == symmetries[i].shape
                and np.allclose(x, symmetries[i], atol=1e-5, rtol=0)]
        assert row.repeats == (str(same[0]) if same else "")


def test_18_of_the_70_printed_rows_are_not_of_wqk_and_11_not_of_what_they_name():
    assert [row.row for row in PRINTED] == list(range(1, 71))
    not_of_wqk = [32, 48, 49, 50, 51, 52, 54, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67]
    assert [row.row for row in PRINTED if row.matrix != "wqk"] == not_of_wqk and len(not_of_wqk) == 18
    remarked = [row for row in PRINTED if row.matrix == "wqk" and row.remark]
    assert [row.row for row in remarked] == [15, 16, 17, 18, 19, 20, 21, 37, 46, 47, 53]
    models = {model.name: model for model in MODELS}
    for row in PRINTED:  # random_init: a second copy of a model whose first was loaded
        assert row.matrix in ("random_init", models[row.model].matrix)


# ---- the points of the figures -----------------------------------------------------------------------------------


def test_five_bidirectional_stacks_are_drawn_as_decoders_and_none_the_other_way_round():
    colours = {"0": "encoder", "1": "decoder"}
    wrong = {(model.name, model.stack) for model in MODELS if model.drawn_as not in ("", colours[str(model.causal)])}
    assert wrong == {("llama3.2-11b-vision", "vision"), ("detr-resnet-50", "decoder"), ("mask2former-tiny", "decoder"),
                     ("mask2former-base", "decoder"), ("mask2former-large", "decoder")}


def test_repeats_have_the_scores_of_what_they_repeat_to_the_last_digit():
    repeats = [model for model in MODELS if model.repeats]
    assert sum(model.family == "MusicGenEncoder" for model in repeats) == 6 and len(repeats) == 7
    for model in repeats:
        first = [other for other in MODELS if other.name == model.repeats and other.causal == model.causal]
        assert [other[10:16] for other in first] == [model[10:16]]  # both scores and their quartiles


# ---- head space --------------------------------------------------------------------------------------------------


def fused_layer(model_type, name, weight):
    """-> wqk of the weight, and the product that the authors' code scored, both (C, C) in float64."""
    config = dict(model_type=model_type, num_hidden_layers=1, num_attention_heads=2, hidden_size=4)
    (stack,) = find_stacks(config, {name: tuple(weight.shape)})
    layer = stack.layers[0]
    heads = layer.heads({name: weight})
    q, k = analyze.layer_factors(*heads)
    their_q, their_k = analyze.layer_factors(*models.published_heads(layer, {name: weight}, *heads))
    return analyze.wqk(q, k).double(), analyze.wqk(their_q, their_k).double()


def test_in_head_space_the_trace_is_the_same_if_the_rows_are_q_and_then_k():
    """ModernBERT and Phi-3: tr(W_q^T W_k W_q^T W_k) = tr(W_q W_k^T W_q W_k^T), so the published symmetry has the right
    sign, and only |M|^2, by which it is divided, is another. Pythia's rows are q and k in turns, head by head."""
    w_q = torch.tensor([[1.0, 2, 0, 0], [0, 1, 3, 0], [0, 0, 2, 1], [2, 0, 0, 5]])  # (C, H D)
    w_k = torch.tensor([[2.0, 0, 1, 0], [1, 1, 0, 0], [0, 3, 1, 0], [0, 0, 1, 1]])
    w_v = torch.zeros(4, 4)
    for model_type, name in ("modernbert", "layers.0.attn.Wqkv.weight"), ("phi3", "layers.0.self_attn.qkv_proj.weight"):
        wqk, scored = fused_layer(model_type, name, torch.cat([w_q.T, w_k.T, w_v.T]))
        torch.testing.assert_close(wqk, (w_q @ w_k.T).double())
        torch.testing.assert_close(scored, (w_q.T @ w_k).double())
        assert (scored @ scored).trace() == (wqk @ wqk).trace() > 0
        assert scored.square().sum() != wqk.square().sum()
    per_head = torch.cat([w.T.unflatten(0, (2, 2)) for w in (w_q, w_k, w_v)], dim=1)  # (H, 3 D, C)
    wqk, scored = fused_layer("gpt_neox", "layers.0.attention.query_key_value.weight", per_head.flatten(0, 1))
    torch.testing.assert_close(wqk, (w_q @ w_k.T).double())
    assert (scored @ scored).trace() != (wqk @ wqk).trace()


# ---- the authors' training runs ----------------------------------------------------------------------------------


TABLE_1 = {  # Table 1: last loss, with symmetric start, speed-up; there 0 % where the loss was not reached
    "bert_small--encoder--jigsaw": (2.782, 2.758, 0.26), "bert_small--encoder--wikipedia": (0.984, 0.812, 0.73),
    "bert_small--encoder--red_pajama": (1.106, 0.907, 0.69), "bert--encoder--jigsaw": (1.419, 1.430, -np.inf),
    "bert--encoder--wikipedia": (0.256, 0.247, 0.20), "bert--encoder--red_pajama": (0.297, 0.274, 0.35),
}


def test_table_1_and_the_scores_at_the_end_come_out_of_the_authors_files(tmp_path, capsys, drawn):
    draw.main(tmp_path / "f.png")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    found = {name: list(map(float, numbers)) for name, *numbers in lines}
    for name, (plain, symmetric, speed_up) in TABLE_1.items():
        assert found[name][:2] == pytest.approx([plain, symmetric], abs=0.0011)
        assert found[name][2] == pytest.approx(speed_up, abs=0.0051)
    curves = np.genfromtxt(HERE / "loss_curves.csv", delimiter=",", names=True, deletechars="")
    scores = pd.read_csv(HERE / "trajectories.csv").groupby(["run", "step"])[tables.SCORES].median()
    assert len(found) == 12
    for name, (_, _, speed_up, _, *ends) in found.items():
        # A row every 200 of 200,000 steps: the first below the plain run's last, as theirs counts.
        below = curves[name + "--symmetric-init"] < curves[name][-1]
        assert speed_up == pytest.approx(1 - (below.argmax() + 1) / 1000 if below.any() else -np.inf, abs=0.00051), name
        assert ends == pytest.approx(list(scores.loc[name, 200_000]), abs=0.00051)
    expected = scores.loc["bert--encoder--jigsaw", "symmetry"]
    (line,) = [line for line in drawn[0].axes[6].lines if same_color(line.get_color(), figures.ENCODER)]
    assert list(line.get_xdata()) == list(expected.index) and line.get_ydata() == pytest.approx(expected.to_numpy())


# ---- the command -------------------------------------------------------------------------------------------------


def test_paper_offline_draws_every_point_once_and_crosses_out_what_is_not_of_wqk(tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.setattr(sources, "open_checkpoint", None)  # nothing may be opened
    assert run("--paper", "--offline", "--csv", str(tmp_path / "none.csv"), "--plot", str(tmp_path / "f.png")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[57].split() == ["57", "LLaMA3-8B", "0.00", "0.01", "random_init"]
    models = [model for figure in ("2", "S1", "S2") for model in MODELS
              if model.figure == figure and not model.repeats]
    assert len(models) == 180 - 7
    for column, score in enumerate(["symmetry", "directionality"]):
        axes = drawn[0].axes[column:6:2]
        dots = [bar.lines[0] for axis in axes for bar in axis.containers]
        for dot, model in zip(dots, models, strict=True):
            assert dot.get_xydata().tolist() == [[model.params, getattr(model, score)]]
            assert same_color(dot.get_color(), figures.DECODER if model.causal else figures.ENCODER)
        points = [line for axis in axes for line in axis.lines if len(line.get_xdata()) == 1]
        assert sum(line.get_marker() == "x" for line in points) == 33


def test_our_scores_stand_beside_the_published_ones_whatever_else_is_in_the_file(tmp_path, capsys, drawn):
    for model, revision in ("gpt2", ""), ("gpt2", "step1"), ("mine", ""):  # the second is a step of its training
        symmetry = 0.9 if revision else 0.1
        rows = [[model, revision, "", 1, 9, layer, None, 768, 64, "wqk", "", 2.0, symmetry * layer, -0.5, 0.0]
                for layer in range(3)]
        models.add_scores(tmp_path / "ours.csv", models.score_table(rows))
    assert run("--paper", "--offline", "--csv", str(tmp_path / "ours.csv"), "--plot", str(tmp_path / "f.png")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (line,) = [words for words in lines if words[:2] == ["gpt2", "3"]]
    assert [line[i] for i in (3, 6, 7, 10)] == ["0.10", "0.15", "-0.50", "-0.58"]  # ours and the published ones
    assert ["mine", "3"] not in [words[:2] for words in lines]
    ends = [line.get_ydata() for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 2]
    assert any(list(y) == pytest.approx([0.1496, 0.1]) for y in ends)  # published, joined to ours
