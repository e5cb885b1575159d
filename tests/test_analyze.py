"""analyze.py: the scores against their definitions in float64, and what a person sees. pytest tests/test_analyze.py"""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, FalconConfig, LlamaConfig, T5Config, logging

import analyze
from analyze import directionality, directionality_eq17, layer_factors, scores, symmetry, wqk
from data.results import figures, tables
from data.pretrained import sources
from tests.hub import hub  # noqa: F401, a fixture

SHARED = Path(__file__).parents[2] / "shared"
logging.disable_progress_bar()


def defined(m, gamma=2.0):
    """
    In float64, from the definitions: symmetry by Eq. (15, 16) without the leading 2; directionality of the published
    tables, the excess over the threshold, n - 1; and by Eq. (17-19) as printed.
    """
    m = np.asarray(m, dtype=np.float64)
    s = (np.linalg.norm((m + m.T) / 2) ** 2 - np.linalg.norm((m - m.T) / 2) ** 2) / np.linalg.norm(m) ** 2
    excess, outliers = [], []
    for norms in [np.linalg.norm(row) for row in m], [np.linalg.norm(column) for column in m.T]:
        mean = np.mean(norms)
        above = mean + gamma * np.sqrt(np.var(norms, ddof=1))
        excess.append(sum(x - above for x in norms if x > above))
        above = mean + gamma * np.sqrt(np.var(norms))
        outliers.append(sum(x for x in norms if x > above))
    return s, *((r - c) / (r + c) if r + c else 0.0 for r, c in (excess, outliers))


def factors(C, r, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heavy = 1 + 9 * (torch.rand(2, C, 1, generator=generator) < 0.05)  # some rows and columns stand out
    return (torch.randn(2, C, r, generator=generator) * heavy).unbind()


# ---- the scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C, r", [(64, 2), (64, 8), (64, 13), (64, 64), (300, 16), (200, 100), (800, 257)])
@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_scores_from_factors_are_the_definitions_to_1e_5(C, r, gamma):
    w_q, w_k = factors(C, r)
    m = w_q.double() @ w_k.double().T
    assert [x.item() for x in scores(w_q, w_k, gamma)] == pytest.approx(defined(m, gamma), abs=1e-5)
    plain = symmetry(m), directionality(m, gamma), directionality_eq17(m, gamma)
    assert [x.item() for x in plain] == pytest.approx(defined(m, gamma), abs=1e-12)


def test_norms_that_are_equal_but_for_rounding_do_not_stand_out():
    """As those of W_qk if q and k start orthogonal: every row and column of it has length 1."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        q, k = torch.linalg.qr(torch.randn(2, 256, 256, generator=generator))[0]
        assert scores(q, k)[1].item() == scores(q, k)[2].item() == 0
        assert directionality(wqk(q, k)).item() == directionality_eq17(wqk(q, k)).item() == 0


def test_nan_is_not_read_as_nothing_stands_out():
    m = torch.eye(4).index_fill(0, torch.tensor([1]), float("nan"))
    assert symmetry(m).isnan() and directionality(m).isnan() and directionality_eq17(m).isnan()
    assert symmetry(torch.zeros(3, 3)).isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_precision_are_scored_in_float64(dtype):
    w_q, w_k = (w.to(dtype) for w in factors(96, 8))
    assert [x.item() for x in scores(w_q, w_k)] == pytest.approx(defined(w_q.double() @ w_k.double().T), abs=1e-5)


@pytest.mark.parametrize("n_head, n_kv_head", [(4, 4), (8, 2), (6, 1)])
def test_grouped_keys_are_the_expanded_product_for_the_layer_and_for_every_head(n_head, n_kv_head):
    C, D = 48, 5
    w_q, w_k = torch.randn(n_head, C, D).double(), torch.randn(n_kv_head, C, D).double()
    pairs = [(w_q[h], w_k[h // (n_head // n_kv_head)]) for h in range(n_head)]
    whole = sum(q @ k.T for q, k in pairs)
    torch.testing.assert_close(wqk(*layer_factors(w_q, w_k)), whole, rtol=1e-5, atol=1e-5, check_dtype=False)
    assert [x.item() for x in scores(*layer_factors(w_q, w_k))] == pytest.approx(defined(whole), abs=1e-5)
    for pair, *values in zip(pairs, *scores(w_q, w_k.repeat_interleave(n_head // n_kv_head, 0))):
        assert [x.item() for x in values] == pytest.approx(defined(pair[0] @ pair[1].T), abs=1e-5)


# ---- where numbers run out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_head, D", [(2, 8), (2, 40), (4, 3)])
def test_heads_that_all_but_cancel_are_scored_to_1e_4(n_head, D):
    """W_q,2 = -W_q,1 (1 + 1e-5) at equal keys: of the layer's W_qk a 10^-10th is left, of squares."""
    w_q, w_k = factors(96, D)
    half = n_head // 2
    w_q = torch.cat([w_q] * half + [-w_q * (1 + 1e-5)] * half, 1)
    w_k = torch.cat([w_k] * n_head, 1)
    found = [x.item() for x in scores(w_q, w_k)]
    assert found == pytest.approx(defined(w_q.double() @ w_k.double().T), abs=1e-4)
    batch = [x.tolist() for x in scores(torch.stack([w_q, w_k]), torch.stack([w_k, w_k]))]  # one of two is such
    assert [x[0] for x in batch] == pytest.approx(found, abs=1e-6)
    assert [x[1] for x in batch] == pytest.approx(defined(w_k.double() @ w_k.double().T), abs=1e-4)


@pytest.mark.parametrize("C, D", [(64, 4), (64, 16), (300, 16), (256, 64)])
def test_heads_that_cancel_to_the_last_digit_have_no_score(C, D):
    """q = [A; -A], k = [B; B]: W_qk is zero, and what float64 leaves of it is rounding."""
    A, B = torch.randn(2, C, D)
    for values in scores(torch.cat([A, -A], 1), torch.cat([B, B], 1)):
        assert values.isnan()
    assert analyze.score_layer(torch.stack([A, -A]), torch.stack([B, B]))[0].symmetry.isnan()


def test_queries_that_share_keys_and_cancel_to_1e_6_are_scored_to_1e_4():
    """Four query heads to a key head, float32: of their sum in float32 one digit would be left."""
    torch.manual_seed(0)
    w_q, w_k = torch.randn(4, 96, 8), torch.randn(1, 96, 8)
    w_q = torch.cat([w_q, -w_q * (1 + 1e-6 * torch.randn(4, 96, 8))])
    whole = sum(q.double() @ w_k[0].double().T for q in w_q)
    found = analyze.score_layer(w_q, w_k)[0]
    assert [x.item() for x in found] == pytest.approx(defined(whole), abs=1e-4)


@pytest.mark.parametrize("r", [8, 50])
@pytest.mark.parametrize("scale", [1e-21, 1e-38, 1e21])
def test_the_size_of_the_weights_does_not_matter_however_small_or_large(r, scale):
    w_q, w_k = factors(96, r)
    scaled = w_q * scale, w_k * scale
    assert [x.item() for x in scores(*scaled)] == pytest.approx([x.item() for x in scores(w_q, w_k)], abs=1e-5)


# ---- in a notebook -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["folder", "file", Path])
def test_a_model_of_transformers_in_memory_and_in_a_folder_have_the_scores_of_its_own_projections(tmp_path, path):
    torch.manual_seed(0)
    bert = AutoModel.from_config(BERT)
    bert.save_pretrained(tmp_path)
    source = {"folder": str(tmp_path), "file": f"{tmp_path}/model.safetensors", Path: tmp_path}[path]
    scored = analyze.score_model(source)
    assert len(scored.table) == 3 and scored.facts[""].causal is False
    for block, row in zip(bert.encoder.layer, scored.table.itertuples()):
        q, k = block.attention.self.query, block.attention.self.key
        embeddings = torch.eye(32)
        queries, keys = q(embeddings) - q.bias, k(embeddings) - k.bias  # of basis vectors, without the biases
        wanted = defined((queries @ keys.T).detach())
        assert [x.item() for x in scores(q.weight.T, k.weight.T)] == pytest.approx(wanted, abs=1e-5)
        assert row[-3:] == pytest.approx(wanted, abs=1e-5)
    assert f"{row.symmetry:.3f}" in repr(scored).splitlines()[-1]


# ---- what was published ------------------------------------------------------------------------------------------


def test_tiled_keys_meet_the_wrong_queries():
    """tiled_kv: each of four query heads is a multiple of its own key head, so W_qk is symmetric; tiling pairs head h
    with h % 2 instead of h // 2."""
    keys = torch.linalg.qr(torch.randn(64, 16))[0].T.unflatten(0, (2, 8)).mT  # (2, C, D), orthonormal
    queries = torch.tensor([1.0, 1.0, -1.0, 3.0])[:, None, None] * keys.repeat_interleave(2, 0)  # (4, C, D)
    right, tiled = (scores(*layer_factors(queries, keys, tiled=t))[0].item() for t in (False, True))
    assert right == pytest.approx(1.0, abs=1e-5)
    assert tiled == pytest.approx((1 + 9 - 2) / (1 + 1 + 1 + 9), abs=1e-5)  # k0 k0' + k0 k1' - k1 k0' + 3 k1 k1'


@pytest.mark.skipif(not (SHARED / "published" / "scores.csv").exists(), reason="needs ../shared/published/scores.csv")
def test_models_csv_holds_the_medians_and_quartiles_of_the_published_layers():
    by_model = {}
    with open(SHARED / "published" / "scores.csv", newline="") as f:
        for row in csv.DictReader(f):
            by_model.setdefault((row["family"], row["model"], row["matrix"]), []).append(
                (float(row["symmetry"]), float(row["directionality"])))
    found = {(kind[2], *np.round(np.percentile(values, [50, 25, 75], axis=0), 4).T.flatten()) for kind, values in
             by_model.items()}
    for row in sources.known_models():
        numbers = [float(row[f"{score}{q}"]) for score in ("symmetry", "directionality") for q in ("", "_q1", "_q3")]
        assert (row["matrix"], *numbers) in found, row["name"]


# ---- the command -------------------------------------------------------------------------------------------------

BERT = BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
LLAMA = LlamaConfig(vocab_size=30, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                    head_dim=16, intermediate_size=32)
FALCON = FalconConfig(vocab_size=30, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, multi_query=True)
T5 = T5Config(vocab_size=30, d_model=32, num_layers=2, num_decoder_layers=3, num_heads=4, d_kv=8, d_ff=32)


def model(config, folder):
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    return str(folder)


def run(*argv):
    with pytest.raises(SystemExit) as e:
        analyze.main(list(argv))
    return e.value.code


def stop_at(monkeypatch, checkpoint):
    """Ctrl-C comes when this checkpoint is to be scored."""
    score = analyze.score_model

    def stopped(source, *rest):
        if source == checkpoint:
            raise KeyboardInterrupt
        return score(source, *rest)

    monkeypatch.setattr(analyze, "score_model", stopped)


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def test_csv_holds_every_layer_and_head_of_grouped_keys_in_full_precision(tmp_path):
    assert run("--hf", model(LLAMA, tmp_path / "m"), "--per_head", "--csv", str(tmp_path / "s.csv")) == 0
    weights, rows = load_file(tmp_path / "m" / "model.safetensors"), read(tmp_path / "s.csv")
    assert [(r["layer"], r["head"]) for r in rows] == [(str(i), h) for i in range(2) for h in ("", *"012345")]
    for i in range(2):
        q, k = (weights[f"layers.{i}.self_attn.{x}_proj.weight"].double() for x in "qk")
        heads = [q[16 * h : 16 * h + 16].T @ k[16 * (h // 3) : 16 * (h // 3) + 16] for h in range(6)]
        for row, m in zip(rows[7 * i : 7 * i + 7], [sum(heads), *heads]):
            values = [float(row[name]) for name in ("symmetry", "directionality", "directionality_eq17")]
            assert values == pytest.approx(defined(m), abs=1e-5)
            assert float(row["symmetry"]) == float(f"{float(row['symmetry'])!r}") and len(row["symmetry"]) > 8


@pytest.mark.parametrize("option, words", [
    ("--device=foo", "cannot be used here"), ("--device=meta", "cannot be used here"),
    ("--plot=x.abc", "its name ends in none of"), ("--matrices=x.abc", "its name ends in none of"),
    ("--csv=notes.txt", "holds something else, which would be lost"),
    ("--csv=.", "is a folder"), ("--plot=notes.txt/x.png", "cannot be written"), ("--matrices=", "is a folder")])
def test_what_would_fail_after_the_work_or_lose_a_file_is_one_line_before_it(tmp_path, monkeypatch, option, words):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    monkeypatch.setattr(analyze, "score_model", lambda *_: pytest.fail("it began"))
    told = run("--hf", "bert-base", *option.split())
    assert words in told and "\n" not in told and Path("notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["notes.txt"]


def test_a_name_with_control_characters_does_not_reach_the_terminal(tmp_path, capsys):
    assert run("--hf", model(LLAMA, tmp_path / "m\x1b[31m")) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "m?[31m" in out and "m?[31m" in err


def test_a_head_of_zeros_is_empty_in_the_csv_and_the_layer_has_its_score(tmp_path):
    folder = Path(model(BERT, tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.attention.self.query.weight"][8:16] = 0  # the second of four heads
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    files = ["--csv", str(tmp_path / "s.csv"), "--plot", str(tmp_path / "f.png")]
    assert run("--hf", str(folder), "--per_head", *files) == 0
    nan = [(row["layer"], row["head"]) for row in read(tmp_path / "s.csv") if row["directionality"] == ""]
    assert nan == [("1", "1")]


def test_an_encoder_decoder_gives_a_row_for_each_stack(tmp_path, capsys):
    assert run("--hf", model(T5, tmp_path / "m"), model(BERT, tmp_path / "b"), "--csv", str(tmp_path / "s.csv")) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in out[1:3]] == [["encoder", "2"], ["decoder", "3"]]
    assert out[3].split()[1] == "3"  # BERT's: one stack, without a name
    assert [(r["stack"], r["layer"]) for r in read(tmp_path / "s.csv")][:5] == \
        [("encoder", "0"), ("encoder", "1"), ("decoder", "0"), ("decoder", "1"), ("decoder", "2")]


def test_one_failure_does_not_stop_the_others_and_the_status_tells(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert run("--hf", "lama3-8b", str(tmp_path / "empty"), model(BERT, tmp_path / "m")) == 1
    out, err = capsys.readouterr()
    assert "lama3-8b: no model or folder of this name" in err
    assert "empty: no config.json" in err and "Traceback" not in err
    assert " 3 " in out.splitlines()[1] and len(out.splitlines()) == 4  # a head, one model, two lines that explain


def test_a_layer_whose_product_is_zero_is_refused(tmp_path, capsys):
    folder = Path(model(BERT, tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    for name in "query", "key":
        weight = weights[f"encoder.layer.1.attention.self.{name}.weight"]
        weight[8:16] = weight[:8] if name == "key" else -weight[:8]  # the first two heads cancel
        weight[16:] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert run("--hf", str(folder)) == 1
    assert "encoder.layer.1.attention.self.query.weight: W_qk of this layer is zero" in capsys.readouterr().err


def test_a_short_name_is_read_from_the_hub_and_stands_beside_its_published_numbers(hub, tmp_path, capsys):  # noqa: F811
    folder = Path(model(BERT, tmp_path / "m"))
    hub.add("google-bert/bert-base-uncased", {p.name: p.read_bytes() for p in folder.iterdir()})
    assert run("--hf", "bert-base") == 0
    out, err = capsys.readouterr()
    row = next(r for r in sources.known_models() if r["name"] == "bert-base")
    line = out.splitlines()[-3]
    assert line.split()[0] == "bert-base" and f" {float(row['symmetry']):.2f} " in line
    assert "bert-base: read " in err


def test_paper_goes_on_where_it_stopped(hub, tmp_path, monkeypatch, capsys):  # noqa: F811
    """Two models, one of which cannot be had the first time; the second time, only that one is read."""
    known = [row for row in sources.known_models() if row["name"] in ("bert-base", "llama3-8b")]
    monkeypatch.setattr(analyze, "known_models", lambda: known)
    monkeypatch.setattr(sources, "known_models", lambda: known)
    folders = {row["hub_id"]: Path(model(c, tmp_path / row["name"])) for row, c in zip(known, (BERT, LLAMA))}
    files = {hub_id: {p.name: p.read_bytes() for p in folder.iterdir()} for hub_id, folder in folders.items()}
    first, second = files
    hub.add(first, files[first])
    where = ["--csv", str(tmp_path / "p.csv"), "--plot", str(tmp_path / "p.png")]
    assert run("--paper", *where) == 1
    hub.add(second, files[second])
    hub.log.clear()
    assert run("--paper", *where) == 0
    assert not any(first in str(entry) for entry in hub.log)
    expected = [r["name"] for r, n in zip(known, (3, 2)) for _ in range(n)]
    assert [r["model"] for r in read(tmp_path / "p.csv")] == expected
    assert "* published: tiled_kv, not W_qk" in capsys.readouterr().out and (tmp_path / "p.png").stat().st_size > 1000


# ---- the CSV is gone on with, and nothing in it is lost ----------------------------------------------------------


@pytest.mark.parametrize("as_training", [False, True])
@pytest.mark.parametrize("first, second", [([], ["--gamma", "3"]), (["--gamma", "0.5"], []), ([], ["--published"]),
                                           (["--published"], []), ([], ["--per_head"]), (["--per_head"], [])])
def test_scores_of_another_kind_are_neither_gone_on_with_nor_written_over(tmp_path, as_training, first, second):
    folder = model(LLAMA, tmp_path / "m" / "step1")
    asked = ["--hf", str(tmp_path / "m" / "step*") if as_training else folder, "--csv", str(tmp_path / "s.csv")]
    assert run(*asked, *first) == 0
    before = (tmp_path / "s.csv").read_bytes()
    said = run(*asked, *second)
    assert "was scored with" in said and "give another --csv" in said and "\n" not in said
    assert (tmp_path / "s.csv").read_bytes() == before
    assert run(*asked, *first) == 0 and (tmp_path / "s.csv").read_bytes() == before


def test_scores_of_other_models_are_not_written_over(tmp_path):
    path = str(tmp_path / "s.csv")
    both = ["--hf", model(LLAMA, tmp_path / "a"), model(LLAMA, tmp_path / "b"), "--csv", path]
    assert run(*both) == 0 and run(*both) == 0  # the same models once more
    before = (tmp_path / "s.csv").read_bytes()
    told = run("--hf", str(tmp_path / "a"), "--csv", path)
    assert f"{path} holds the scores of {tmp_path / 'b'}, which would be lost" in told and "\n" not in told
    assert (tmp_path / "s.csv").read_bytes() == before


@pytest.mark.parametrize("damage", ["m,step1,,0,,64,64,wqk,2.0,0.1,x,0.3", "m,step1,,0", '"' + 200_000 * "a"])
def test_a_damaged_csv_is_named(tmp_path, damage):
    model(LLAMA, tmp_path / "m" / "step1")
    asked = ["--hf", str(tmp_path / "m" / "step*"), "--csv", str(tmp_path / "s.csv")]
    assert run(*asked) == 0
    with open(tmp_path / "s.csv", "a") as f:
        f.write(damage)
    said = run(*asked)
    assert f"{tmp_path / 's.csv'} is damaged" in said and "\n" not in said


def make_symmetric(folder):
    """Give the BERT of a folder keys that are its queries. Then W_qk = W_q W_q^T, whose symmetry is 1."""
    weights = load_file(Path(folder) / "model.safetensors")
    for name in list(weights):
        if name.endswith("query.weight"):
            weights[name.replace("query", "key")] = weights[name].clone()
    save_file(weights, Path(folder) / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("what_fails", ["weights", "stopped"])
def test_rows_of_a_model_that_cannot_be_read_again_are_kept_and_those_of_others_are_new(tmp_path, monkeypatch, capsys,
                                                                                      what_fails):
    first, second = model(BERT, tmp_path / "a"), model(LLAMA, tmp_path / "b")
    both = ["--hf", first, second, "--csv", str(tmp_path / "s.csv")]
    assert run(*both) == 0
    before = read(tmp_path / "s.csv")
    make_symmetric(first)
    if what_fails == "weights":
        (tmp_path / "b" / "model.safetensors").write_bytes(b"broken")
    else:
        stop_at(monkeypatch, second)
    capsys.readouterr()
    assert run(*both) == (130 if what_fails == "stopped" else 1)
    out, err = capsys.readouterr()
    after = read(tmp_path / "s.csv")
    assert after[3:] == before[3:] and [row["model"] for row in after] == 3 * [first] + 2 * [second]
    assert [float(row["symmetry"]) for row in after[:3]] == pytest.approx([1.0] * 3, abs=1e-5)
    assert second not in out and "Traceback" not in err  # what is printed was scored now
    assert what_fails != "stopped" or err.splitlines()[-1] == "analyze.py: stopped"


def test_rows_that_a_fused_weight_does_not_have_are_one_line_and_the_others_are_scored(tmp_path, capsys):
    """One key head of 12 rows, and one value head: the weight has 48 + 24 rows, and not the 96 of --published."""
    names = [model(FALCON, tmp_path / "shared"), model(LLAMA, tmp_path / "next")]
    assert run("--hf", *names, "--published", "--csv", str(tmp_path / "s.csv")) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("analyze.py: ")]
    assert names[0] in line and "has 72 rows" in line and "leave out --published" in line
    assert [row["model"] for row in read(tmp_path / "s.csv")] == 2 * [names[1]]
    assert run("--hf", names[0]) == 0


# ---- pictures ----------------------------------------------------------------------------------------------------


def test_figure_2_and_the_table_hold_medians_and_quartiles_over_layers(tmp_path, drawn, capsys):
    run("--hf", model(BERT, tmp_path / "b"), model(LLAMA, tmp_path / "l"), "--csv", str(tmp_path / "s.csv"),
        "--plot", str(tmp_path / "f.png"))
    rows = read(tmp_path / "s.csv")
    lines = capsys.readouterr().out.splitlines()[1:3]
    for axis, name in zip(drawn[0].axes, ("symmetry", "directionality")):
        dots = [c for c in axis.containers if c.has_yerr]
        for dot, folder, line in zip(dots, "bl", lines):
            layers = [float(r[name]) for r in rows if r["model"].endswith(folder)]
            q1, median, q3 = np.percentile(layers, [25, 50, 75])
            (_, y), = dot.lines[0].get_xydata()
            (low, high), = [segment[:, 1] for segment in dot.lines[2][0].get_segments()]
            assert (low, y, high) == pytest.approx((q1, median, q3))
            assert f"{median:.2f} [{q1:.2f}, {q3:.2f}]" in line
        assert [dot.lines[0].get_color() for dot in dots] == [figures.ENCODER, figures.DECODER]


def last_wqk(folder):
    weights = load_file(Path(folder) / "model.safetensors")
    q, k = (weights[f"encoder.layer.2.attention.self.{x}.weight"] for x in ("query", "key"))
    return (q.T @ k).numpy()


def test_the_picture_of_one_model_holds_its_layers_heads_and_the_last_wqk(tmp_path, drawn):
    folder = model(BERT, tmp_path / "m")
    run("--hf", folder, "--per_head", "--csv", str(tmp_path / "s.csv"), "--plot", str(tmp_path / "f.png"))
    rows = read(tmp_path / "s.csv")
    heads, layers, _zero = drawn[0].axes[0].lines  # the band of the null is no line
    for line, wanted in (heads, [r for r in rows if r["head"]]), (layers, [r for r in rows if not r["head"]]):
        assert line.get_ydata() == pytest.approx([float(r["symmetry"]) for r in wanted])
        assert list(line.get_xdata()) == [int(r["layer"]) for r in wanted]
    m = last_wqk(folder)
    for axis, part in zip(drawn[0].axes[2:5], (m, (m + m.T) / 2, (m - m.T) / 2)):
        np.testing.assert_allclose(axis.images[0].get_array(), part, atol=1e-6)
    share = np.linalg.norm((m + m.T) / 2) ** 2 / np.linalg.norm(m) ** 2
    assert drawn[0].axes[3].get_xlabel().startswith(f"{share:.0%} of")


def test_matrices_are_of_the_last_layer_of_each_model_with_its_parts_in_one_colour_scale(tmp_path, drawn):
    names = [model(BERT, tmp_path / "a"), model(BERT, tmp_path / "b")]
    make_symmetric(names[1])
    assert run("--hf", *names, "--matrices", str(tmp_path / "f.png")) == 0
    images = [axis.images[0] for axis in drawn[0].axes if axis.images]
    assert len({image.get_clim() for image in images}) == 1  # one colour scale
    pictures = [image.get_array() for image in images]
    for name, whole, symmetric, skew in zip(names, pictures[::3], pictures[1::3], pictures[2::3]):
        np.testing.assert_allclose(whole, last_wqk(name), atol=1e-6)
        np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-6)
        np.testing.assert_allclose(symmetric + skew, whole, atol=1e-6)


def test_a_moving_picture_has_a_frame_for_each_step_of_two_trainings_in_one_colour_scale(tmp_path, monkeypatch):
    shown = []  # (title, W_qk, colour scale) of every panel of every frame

    def watched(axis, m, limit):
        shown.append((m, limit))
        return draw(axis, m, limit)

    draw = figures.draw_matrix
    monkeypatch.setattr(figures, "draw_matrix", watched)
    for name, steps in ("a", (1, 20, 300)), ("b", (1, 300)):
        for step in steps:
            folder = Path(model(BERT, tmp_path / name / f"step{step}"))
            weights = load_file(folder / "model.safetensors")
            save_file({key: step * value for key, value in weights.items()}, folder / "model.safetensors")
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert run("--hf", *names, "--revisions", "step*", "--matrices", str(tmp_path / "w.gif")) == 0
    with Image.open(tmp_path / "w.gif") as movie:
        assert movie.n_frames == 3
    assert len({limit for _, limit in shown}) == 1
    latest = [("a", 1), ("b", 1), ("a", 20), ("b", 1), ("a", 300), ("b", 300)]  # of each, at steps 1, 20 and 300
    expected = [last_wqk(tmp_path / name / f"step{step}") for name, step in latest]
    for (m, _), wanted in zip(shown, expected, strict=True):
        np.testing.assert_allclose(m, wanted, rtol=1e-4, atol=1e-6)
    told = run("--hf", f"{names[0]}/step1", "--matrices", str(tmp_path / "one.gif"))
    assert "of the checkpoints of a training" in told and not (tmp_path / "one.gif").exists()


@pytest.mark.skipif(not (SHARED / "weights").exists(), reason="needs ../shared/weights")
def test_a_real_fine_tuned_bert_tiny_scores_as_the_published_base_model(tmp_path):
    assert run("--hf", str(SHARED / "weights" / "bert-tiny-sst2-qk"), "--csv", str(tmp_path / "s.csv")) == 0
    assert [float(r["symmetry"]) for r in read(tmp_path / "s.csv")] == pytest.approx([0.620, 0.917], abs=0.01)


def test_layers_outside_of_what_random_matrices_do_are_counted_by_the_nearest_size(tmp_path, monkeypatch):
    (tmp_path / "null.csv").write_text("n,r,symmetry_q025,symmetry_q975,directionality_q025,directionality_q975\n"
                                       "32,32,0,1,-0.5,0.5\n32,4,0,1,-0.9,0.9\n4096,128,0,1,-0.1,0.1\n")
    monkeypatch.setattr(tables, "NULL", tmp_path / "null.csv")
    assert tables.band("directionality", 64, 64) == (-0.5, 0.5)
    assert tables.band("directionality", 3000, 99) == (-0.1, 0.1)
    assert tables.band("directionality", 64, 64, 3.0) is None and tables.band("symmetry", 64, 64, 3.0) == (0, 1)
    layers = tables.score_table([["m", "", "", i, None, 64, 64, "wqk", 2.0, 0.1, d, 0.3]
                                 for i, d in enumerate((-0.6, 0.2, 0.49, 0.7))])
    (summary,) = tables.summarise(layers, {}).values()
    assert summary.outside() == "2/4"
    (unknown,) = tables.summarise(layers.assign(gamma=3.0), {}).values()
    assert unknown.outside() == "-"
