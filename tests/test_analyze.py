"""analyze.py: the scores against their definitions in float64, and what a person sees. pytest tests/test_analyze.py"""

import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, LlamaConfig, T5Config, logging

import analyze
from analyze import directionality, directionality_eq17, scores, symmetry
from data.pretrained import CheckpointError, tables
from data.pretrained.scoring import layer_factors
from tests.toy import model_folder

logging.disable_progress_bar()

ROOT = Path(analyze.__file__).parent
LLAMA = LlamaConfig(vocab_size=30, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                    head_dim=16, intermediate_size=32)
T5 = T5Config(vocab_size=30, d_model=32, num_layers=2, num_decoder_layers=3, num_heads=4, d_kv=8, d_ff=32)
QUERY = "encoder.layer.{i}.attention.self.query.weight"  # of BERT
KEY = "encoder.layer.{i}.attention.self.key.weight"
PAIRS = torch.randn(3, 2, 16, 16, generator=torch.Generator().manual_seed(0))  # q.weight and k.weight of three layers


def bert(path, pairs=PAIRS):
    """A BERT of three layers with these q.weight and k.weight, and a weight that is neither."""
    weights = {"embeddings.word_embeddings.weight": torch.randn(10, 16)}
    for i, (q, k) in enumerate(pairs):
        weights |= {QUERY.format(i=i): q, KEY.format(i=i): k}
    config = dict(model_type="bert", num_hidden_layers=3, num_attention_heads=2, hidden_size=pairs.shape[-1])
    return str(model_folder(path, weights, config))


def wqk_of(pairs):
    return [(q.double().T @ k.double()).numpy() for q, k in pairs]


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
    """The three scores that `defined` returns. A fork may have a score more."""
    return [score.tolist() for score in found[:3]]


def factors(C, r, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heavy = 1 + 9 * (torch.rand(2, C, 1, generator=generator) < 0.05)  # some rows and columns stand out
    return (torch.randn(2, C, r, generator=generator) * heavy).unbind()


@pytest.mark.parametrize("C, r", [(64, 8), (64, 64), (300, 16), (200, 100)])
@pytest.mark.parametrize("gamma, dtype", [(1.0, torch.float32), (2.0, torch.bfloat16)])
def test_scores_from_factors_are_the_definitions_to_1e_5_whatever_the_size_of_the_weights(C, r, gamma, dtype):
    w_q, w_k = (w.to(dtype) for w in factors(C, r))
    m = w_q.double() @ w_k.double().T
    for pair in (w_q, w_k), (torch.nn.Parameter(w_q), w_k.double().numpy()), *[
            (w_q.double() * scale, w_k.double() * scale) for scale in (1e-160, 1e150)]:
        assert numbers(scores(*pair, gamma)) == pytest.approx(defined(m, gamma), abs=1e-5)
    plain = symmetry(m), directionality(m, gamma), directionality_eq17(m, gamma)
    assert [x.item() for x in plain] == pytest.approx(defined(m, gamma), abs=1e-12)


def test_norms_that_are_equal_but_for_rounding_do_not_stand_out():
    """As those of W_qk if q and k start orthogonal: every row and column of it has length 1."""
    q, k = torch.linalg.qr(torch.randn(2, 256, 256))[0]
    assert scores(q, k)[1].item() == scores(q, k)[2].item() == 0


def test_factors_that_do_not_fit_are_refused_and_grouped_keys_shown_the_way_on():
    with pytest.raises(ValueError, match=r"\(64, 48\) and \(64, 16\): .*score_layers"):
        scores(torch.randn(64, 48), torch.randn(64, 16))  # six query heads and two key heads of 8


@pytest.mark.filterwarnings("ignore:std")
def test_nan_and_a_single_column_are_not_read_as_nothing_stands_out():
    m = torch.eye(4).index_fill(0, torch.tensor([1]), float("nan"))
    assert symmetry(m).isnan() and directionality(m).isnan() and directionality_eq17(m).isnan()
    assert symmetry(torch.zeros(3, 3)).isnan()
    assert scores(torch.ones(1, 2), torch.ones(1, 2)).directionality.isnan()


def test_a_fork_that_adds_a_score_finds_it_everywhere(analysed, monkeypatch):
    """In what scores returns, in the table of layers, and in the CSV file."""
    monkeypatch.setitem(analyze.SCORES, "trace", lambda found, _: (found.product.w_q * found.product.w_k).sum((-2, -1)))
    monkeypatch.setattr(analyze, "Scores", namedtuple("Scores", analyze.SCORES))
    assert scores(torch.ones(8, 2), torch.ones(8, 2)).trace == 16
    found = analysed("--hf", bert("m"))
    assert "trace" in found.out.splitlines()[1].split()
    assert list(np.sign(found.table.trace)) == [np.sign(np.trace(m)) for m in wqk_of(PAIRS)]


@pytest.mark.parametrize("imported", ["import data, config, model", ""])
def test_the_science_needs_torch_alone_and_models_are_scored_beside_packages_of_our_names(tmp_path, imported):
    """`from analyze import scores` loads no other file of ours, and errors are of one class in both cases."""
    assert analyze.CheckpointError is CheckpointError  # of data.pretrained
    for name in "data", "config", "model":
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    bert(tmp_path / "m")
    code = (f"{imported}\nimport sys\nsys.path.append({str(ROOT)!r})\n"
            "from analyze import scores\n"
            "files = {name: str(getattr(module, '__file__', '')) for name, module in sys.modules.items()}\n"
            f"print([name for name, file in files.items() if {str(ROOT)!r} in file and 'site-packages' not in file])\n"
            "import analyze\n"
            "print(*analyze.score_model('m').table.symmetry)\n"
            "try:\n    analyze.score_model('./nothing')\n"
            "except analyze.CheckpointError as e:\n    print(type(e).__module__)\n"
            "from data import MINE")
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    files, symmetries, module = printed.splitlines()
    assert files == "['analyze']" and module == "data_of_analyze.pretrained"
    assert list(map(float, symmetries.split())) == pytest.approx([defined(m)[0] for m in wqk_of(PAIRS)], abs=1e-6)


# ---- where numbers run out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [8, 40])
@pytest.mark.parametrize("left", [1e-5, 3e-6, 3e-7, 3e-8])
def test_heads_that_all_but_cancel_are_scored_to_1e_4(D, left):
    """W_q,2 = -W_q,1 (1 + left) at equal keys: of the squares of the layer's W_qk as little as 10^-15 is left."""
    w_q, w_k = [w.double() for w in factors(96, D)]
    w_q, w_k = torch.cat([w_q, -w_q * (1 + left)], 1), torch.cat([w_k, w_k], 1)
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


def test_queries_that_share_keys_and_cancel_to_1e_6_are_scored_to_1e_4():
    """Four query heads to a key head, float32: of their sum in float32 one digit would be left."""
    w_q, w_k = torch.randn(4, 96, 8), torch.randn(1, 96, 8)
    w_q = torch.cat([w_q, -w_q * (1 + 1e-6 * torch.randn(4, 96, 8))])
    whole = sum(q.double() @ w_k[0].double().T for q in w_q)
    factors = layer_factors(w_q, w_k)
    assert numbers(scores(*factors)) == pytest.approx(defined(whole), abs=1e-4)
    assert torch.allclose(analyze.wqk(*factors), whole, atol=1e-12)


# ---- the command -------------------------------------------------------------------------------------------------


def model(config, path):
    AutoModel.from_config(config).save_pretrained(path)
    return str(path)


def test_csv_holds_every_layer_and_head_of_grouped_keys_in_full_precision_and_so_does_score_layers(analysed):
    found = analysed("--hf", model(LLAMA, "m"), "--per_head")
    assert list(zip(found.table.layer, found.table["head"])) == [(i, h) for i in range(2) for h in ("", *range(6))]
    weights = load_file("m/model.safetensors")
    pairs = [[weights[f"layers.{i}.self_attn.{x}_proj.weight"] for x in "qk"] for i in range(2)]
    for (q, k), (_, rows) in zip(pairs, found.table.groupby("layer")):
        q, k = q.double(), k.double()
        heads = [q[16 * h : 16 * h + 16].T @ k[16 * (h // 3) : 16 * (h // 3) + 16] for h in range(6)]
        matrices = [sum(heads), *heads]
        expected = [defined(m) for m in matrices]
        columns = ["symmetry", "directionality", "directionality_eq17"]
        np.testing.assert_allclose(rows[columns].to_numpy(float), expected, atol=1e-5)
        by_chance = [((m @ m).norm() / m.norm() ** 2).square().item() for m in matrices]
        assert list(rows.symmetry_chance) == pytest.approx(by_chance, rel=1e-5)
    scored = analyze.score_model("m", per_head=True)
    assert list(scored.table.symmetry) == list(found.table.symmetry)  # to the last digit
    of_code = analyze.score_layers([(q.T, k.T) for q, k in pairs], heads=(6, 2), per_head=True)
    same = ["layer", "head", *analyze.SCORES, "symmetry_chance", "symmetry_95", "directionality_95", "mirror", "n", "r"]
    assert of_code.table[same].equals(scored.table[same]) and str(of_code) == str(scored)


def test_failures_do_not_stop_the_others_the_status_tells_and_a_model_that_is_named_twice_is_scored_once(analysed):
    Path("empty").mkdir()
    for name, value in {"zero": 0, "nan": torch.nan, "inf": -torch.inf}.items():
        pairs = PAIRS.clone()
        pairs[1, 1] *= 0
        pairs[1, 1, 0, 0] = value
        bert(name, pairs)
    found = analysed("--hf", "bert-bsae", "./empty", "--hf", "zero", "nan", "inf", bert("m"), "./m/", "m")
    assert found.status == 1 and list(found.table.model) == 3 * ["m"] and found.err.count(": read") == 1
    assert "bert-bsae: no model or folder of this name; the nearest names are bert-base" in found.err
    assert "empty: no model.safetensors, model.safetensors.index" in found.err
    assert found.err.count(f"{QUERY.format(i=1)}: W_qk of this layer is zero or NaN") == 3
    assert "gamma = nan, expected a number" in analysed("--hf", "m", "--gamma=nan", csv=False).err


def test_a_csv_is_a_new_file_that_is_complete_after_every_model(analysed, monkeypatch):
    names = bert("a"), model(T5, "b")
    assert analysed("--hf", "a", "--gamma=1", csv=False).out != analysed("--hf", "a", csv=False).out
    n_rows = []  # in the file, whenever a model begins
    count = lambda name: n_rows.append(len(Path("s.csv").read_text().splitlines())) or Path(name).resolve()
    monkeypatch.setattr(tables, "known_as", lambda name, known_as=tables.known_as: known_as(count(name)))
    first = analysed("--hf", *names, "--per_head")
    assert first.status == 0 and n_rows[0] == 0 and n_rows[-1] == 1 + len(first.table.query("model == 'a'"))
    before = Path("s.csv").read_bytes()
    again = analysed("--hf", bert("c"), keep=True)
    assert again.status == "analyze.py: s.csv is there already, with a, b: give another --csv for the rest"
    assert Path("s.csv").read_bytes() == before and "c: read" not in again.err


def test_a_csv_that_is_there_is_refused_and_one_without_scores_is_not_left(analysed):
    with tables.new_file("s.csv"):  # another command writes it
        assert "s.csv is there already, with no model" in analysed("--hf", bert("m"), keep=True).status
    assert not Path("s.csv").exists()
    assert analysed("--hf", "./nothing").status == 1 and not Path("s.csv").exists()
    Path("s.csv").write_text("layer,symmetry\n0,x\n")
    assert "s.csv is there already, with a row without a model" in analysed("--hf", "m", keep=True).status
    assert Path("s.csv").read_text() == "layer,symmetry\n0,x\n"


def test_a_csv_is_whole_or_as_it_was_if_the_disk_is_full(analysed, monkeypatch):
    names, whole = [bert("a"), bert("b")], []  # the file after the first model

    def write_half(path, data):
        written = data if not whole else data[: len(whole[0]) + 50]
        with open(path, "wb") as file:
            file.write(written)
        if whole:
            raise OSError(28, "No space left on device")
        whole.append(data)

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write_half)
        assert "No space left" in analysed("--hf", *names).status
    assert Path("s.csv").read_bytes() == whole[0]


@pytest.mark.parametrize("option", ["--csv=nowhere/s.csv", "--plot=nowhere/f.png", "--matrices=nowhere/f.png"])
def test_a_folder_that_is_not_there_is_one_line_before_the_work_and_is_not_made(analysed, drawn, option):
    file = option.partition("=")[2]
    found = analysed("--hf", bert("m"), option, csv=False)
    assert found.status == f"analyze.py: {file}: there is no folder nowhere: make it first"
    assert not Path("nowhere").exists() and found.err == ""


# ---- pictures ----------------------------------------------------------------------------------------------------


def test_the_picture_by_size_and_the_table_hold_medians_and_quartiles_over_layers(drawn, analysed):
    berts = [bert(name, PAIRS * i) for i, name in enumerate("bcde", 1)]  # up to four models are drawn by layer
    found = analysed("--hf", *berts, model(LLAMA, "l"), "--plot=f.png")
    lines = found.out.splitlines()[2:7]
    assert drawn[0].axes[0].xaxis.get_minor_formatter()(2e6, 0) == ""  # or labels lie on each other within a decade
    for axis, name in zip(drawn[0].axes, ("symmetry", "directionality")):
        dots = [c for c in axis.containers if c.has_yerr]
        for dot, (_, layers), line in zip(dots, found.table.groupby("model")[name], lines):
            q1, median, q3 = np.percentile(layers, [25, 50, 75])
            (_, y), = dot.lines[0].get_xydata()
            (low, high), = [segment[:, 1] for segment in dot.lines[2][0].get_segments()]
            assert (low, y, high) == pytest.approx((q1, median, q3))
            rounded = [round(x, 2) + 0.0 for x in (median, q1, q3)]  # no -0.0
            assert "{:.2f} [{:.2f}, {:.2f}]".format(*rounded) in line


def chance_of(rows, score):
    """What is drawn dotted: the mean symmetry, or both ends of the range of directionality."""
    return [rows.symmetry_chance] if score == "symmetry" else [-rows.directionality_95, rows.directionality_95]


def test_a_few_models_are_drawn_by_layer_with_what_chance_gives_each(drawn, analysed):
    found = analysed("--hf", bert("b"), model(LLAMA, "l"), "--plot=f.png")
    kinds = dict(b="encoder", l="decoder")
    for axis, name in zip(drawn[0].axes, ("symmetry", "directionality")):
        lines = {line.get_label(): line.get_ydata() for line in axis.lines if len(line.get_xdata()) > 1}
        dotted = [list(line.get_ydata()) for line in axis.lines if line.get_linestyle() == ":"]
        for model_name, layers in found.table.groupby("model"):
            assert list(lines[f"{model_name} ({kinds[model_name]})"]) == list(layers[name])
            assert all(list(values) in dotted for values in chance_of(layers, name))


@pytest.mark.parametrize("names", [
    ["runs/ft/checkpoint-1000", "runs/ft/checkpoint-100", "runs/ft/checkpoint-200"],
    [f"m@step{n}-of-7" for n in (1000, 100, 20, 3, 4, 5)]])
def test_checkpoints_of_one_training_are_drawn_over_the_number_in_their_names_in_its_order(drawn, analysed, names):
    found = analysed("--hf", *[bert(name, PAIRS + i * PAIRS.mT) for i, name in enumerate(names)], "--plot=f.png")
    steps = found.table.model.map(lambda name: int(re.search(r"(?:-|@step)(\d+)", name)[1]))
    medians = found.table.infer_objects().groupby(steps).median(numeric_only=True)
    assert list(medians.index) == sorted(steps.unique())
    for axis, name in zip(drawn[0].axes, ("symmetry", "directionality")):
        [line] = [line for line in axis.lines if line.get_label().endswith("(encoder)")]
        assert line.get_label() == f"{names[0].replace('1000', '*')} (encoder)"
        assert list(line.get_xdata()) == list(medians.index) and list(line.get_ydata()) == list(medians[name])
        dotted = [list(line.get_ydata()) for line in axis.lines if line.get_linestyle() == ":"]
        assert dotted == [list(values) for values in chance_of(medians, name)]
        [dots] = [line for line in axis.lines if line.get_marker() == "."]
        assert sorted(dots.get_xydata().tolist()) == sorted(map(list, zip(steps, found.table[name])))


@pytest.mark.parametrize("names, C", [
    *[(names, 16) for names in (["a-1", "a-2-3"], ["a-1", "b-2"], ["a-1", "b-1"], ["a-1-1", "a-2-2"], ["a-1"])],
    (["a-1", "a-2"], 32)])  # two sizes
def test_other_models_are_drawn_by_layer(drawn, analysed, names, C):
    *others, last = names
    analysed("--hf", *map(bert, others), bert(last, torch.randn(3, 2, C, C)), "--plot=f.png")
    assert drawn[0].axes[0].get_xlabel() == "layer"


def test_a_long_name_is_shortened_at_its_front(analysed):
    names = [bert(f"a/{40 * 'b'}/checkpoint-{n}") for n in (1, 20)]
    lines = analysed("--hf", *names).out.splitlines()[2:4]
    assert all(f"bb/checkpoint-{n} " in line for n, line in zip((1, 20), lines))


def test_matrices_are_of_the_last_layer_and_a_dot_is_an_entry_and_its_mirror_image(drawn, analysed):
    assert len(analysed("--hf", bert("m"), "--matrices=f.png").table) == 3
    matrix, pairs = drawn[0].axes
    m = wqk_of(PAIRS)[-1]
    order = np.argsort(-(np.linalg.norm(m, axis=1) ** 2 + np.linalg.norm(m, axis=0) ** 2))  # longest row and column
    m = m[order][:, order]
    shown = matrix.images[0].get_array()
    np.testing.assert_allclose(shown / np.abs(shown).max(), m / np.abs(m).max(), rtol=1e-4, atol=1e-6)
    dots = pairs.lines[1].get_xydata() / np.abs(shown).max()
    expected = [(m[i, j], m[j, i]) for i in range(len(m)) for j in range(i + 1, len(m))]
    np.testing.assert_allclose(dots, expected / np.abs(m).max(), rtol=1e-4, atol=1e-6)
