"""data/results/parts.py: W_qk on the directions of position and on the rest, by matrices whose answer is known."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

from analyze import symmetry
from data.results import parts
from data.results.runs import RunError
from model import rotate
from tests.lives import run

C, T, N, B = 12, 9, 400, 3  # B position directions
torch.manual_seed(0)
U, V = torch.linalg.qr(torch.randn(C, C, dtype=torch.float64)).Q.split([B, C - B], dim=1)


@pytest.fixture
def x():
    """Inputs (N, T, C): a vector of each position in the span of U, and contents in that of V."""
    centred = torch.randn(T, B, dtype=torch.float64)
    centred -= centred.mean(0)
    of_position = 9 * torch.linalg.qr(centred).Q @ U.T  # as large in each of the B directions
    of_content = torch.randn(N // 2, T, C - B, dtype=torch.float64) @ V.T
    return of_position + torch.cat([of_content, -of_content])  # contents have the mean 0 at every position


def factors(m):
    """One head with W_q W_k^T = m."""
    return m[None], torch.eye(C, dtype=torch.float64)[None]


def test_a_matrix_symmetric_between_positions_and_skew_between_contents_is_taken_apart(x):
    a, b = torch.randn(B, B, dtype=torch.float64), torch.randn(C - B, C - B, dtype=torch.float64)
    m = 2 * U @ (a + a.T) @ U.T + V @ (b - b.T) @ V.T
    of_layer, of_head = parts.split_layer(x, *factors(m))
    assert of_layer["directions"] == B
    assert (of_layer["on_positions"], of_layer["on_rest"]) == (pytest.approx(1), pytest.approx(-1))
    assert of_layer["share_positions"] + of_layer["share_rest"] == pytest.approx(1)
    assert of_layer["share_positions"] == pytest.approx((4 * (a + a.T).square().sum() / m.square().sum()).item())
    assert of_head.items() <= (of_layer | dict(head=0)).items()  # it is the only one


def test_in_the_data_metric_the_score_is_that_of_the_logits_between_all_tokens(x):
    m = torch.randn(C, C, dtype=torch.float64)
    tokens = (x - x.mean((0, 1))).flatten(0, 1)  # (N T, C)
    between_all = tokens @ m @ tokens.T  # (N T, N T)
    [of_layer, _] = parts.split_layer(x, *factors(m))
    assert of_layer["on_data"] == pytest.approx(symmetry(between_all).item())
    of_means = (x.mean(0) - x.mean((0, 1))).square().sum() / T
    assert of_layer["of_inputs"] == pytest.approx((of_means / (tokens.square().sum() / (N * T))).item())


def test_few_directions_have_their_chance_beside_them(x):
    """Of a random matrix 1/b and sqrt(2)/b, and as much between random directions of the rest, whatever is on U."""
    found = []
    for _ in range(20):
        m = torch.randn(C, C, dtype=torch.float64)
        m = m - U @ U.T @ m + 50 * U @ U.T  # heavy, and symmetric between position directions
        [of_layer, _] = parts.split_layer(x, *factors(m))
        assert (of_layer["chance"], of_layer["chance_std"]) == pytest.approx((1 / B, 2**0.5 / B))
        assert of_layer["on_positions"] > 0.99
        on_rest = [symmetry(W.T @ V.T @ m @ V @ W).item() for W in
                   torch.linalg.qr(torch.randn(500, C - B, B, dtype=torch.float64)).Q]
        assert of_layer["on_random"] == pytest.approx(np.mean(on_rest), abs=5 * np.std(on_rest) / 64**0.5)
        assert of_layer["random_std"] == pytest.approx(np.std(on_rest), rel=0.4)
        found.append(of_layer["on_random"])
    assert np.mean(found) == pytest.approx(1 / B, abs=0.15)


def test_like_attends_to_like_where_the_eigenvalues_of_the_symmetric_part_are_positive():
    m = torch.diag(torch.tensor([3.0, -1.0])) + torch.tensor([[0.0, 5.0], [-5.0, 0.0]])  # and a skew part
    assert parts.positive_share(m).item() == pytest.approx(0.9)
    assert parts.positive_share(-m).item() == pytest.approx(0.1)


def test_a_turn_between_q_and_k_hides_no_symmetry(x):
    w_q = torch.randn(2, C, 4, dtype=torch.float64)
    w_k = rotate(w_q[None], torch.full((1, C), -5))[0]  # the keys stand five positions before
    [of_layer, *_] = parts.split_layer(x, w_q, w_k, rotary=True)
    assert of_layer["turned"] == pytest.approx(1) and of_layer["symmetry"] < 0.9


def test_query_heads_that_share_a_key_head_are_added(x):
    w_q, w_k = torch.randn(4, C, 3, dtype=torch.float64), torch.randn(2, C, 3, dtype=torch.float64)
    rows = parts.split_layer(x, w_q, w_k)
    m = sum(w_q[h] @ w_k[h // 2].T for h in range(4))
    assert rows[0]["symmetry"] == pytest.approx(symmetry(m).item()) and len(rows) == 5


def test_an_arm_whose_inputs_tell_no_position_has_no_dot_between_position_directions(drawn, tmp_path):
    columns = dict(seed=0, layer=0, head=None, symmetry=0.1, on_positions=[0.2, 0.3], on_rest=0.4)
    parts.plot_parts(pandas.DataFrame(dict(arm=["yes", "no"], of_inputs=[0.5, 0.001], **columns)), tmp_path / "p.png")
    dots = {line.get_label(): line.get_xdata() for line in drawn[0].axes[0].lines if line.get_marker() == "o"}
    np.testing.assert_equal(dots["between position directions"], [0.2, np.nan])
    np.testing.assert_equal(dots["between all other directions"], [0.4, 0.4])


def test_the_command_splits_a_run_into_its_table_and_its_picture(finished, tmp_path, capsys):
    parts.main([finished.out_dir, "--csv", str(tmp_path / "parts.csv")])
    assert f"{Path(finished.out_dir).name} " in capsys.readouterr().out
    table = pandas.read_csv(tmp_path / "parts.csv")
    scores = pandas.read_csv(f"{finished.out_dir}/scores.csv").query("step == 12")
    assert table["symmetry"].to_list() == pytest.approx(scores["symmetry"].to_list(), abs=1e-4)
    parts.main([str(tmp_path / "parts.csv"), "--plot", str(tmp_path / "parts.png")])
    assert (tmp_path / "parts.png").read_bytes().startswith(b"\x89PNG")
    folder = finished.out_dir
    for argv, words in (["nowhere"], "nowhere"), ([f"{folder}/log.csv"], "is no file that --csv has written"), (
            [folder, "parts.csv"], "two runs have the same arm and seed: name each run once"):
        with pytest.raises(SystemExit, match=words):
            parts.main([str(tmp_path / path) for path in argv])
    with pytest.raises(SystemExit):  # before any work
        parts.main([finished.out_dir, "--plot", "parts.xyz"])
    assert "parts.xyz does not end in .png, " in capsys.readouterr().err


def test_files_are_put_together_and_an_arm_may_be_called_by_a_number(tmp_path, capsys, drawn):
    columns = dict(seed=1, layer=0, head=None, symmetry=[0.5], on_positions=0.5, on_rest=0.5, of_inputs=0.5)
    files = [str(tmp_path / f"{arm}.csv") for arm in ("64", "null")]
    for file in files:
        parts.write(pandas.DataFrame(dict(arm=Path(file).stem, **columns)), file)
    parts.main([*files, "--plot", str(tmp_path / "p.png")])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [["64", "0"], ["null", "0"]]


def test_a_run_whose_logits_or_corpus_are_others_is_refused(cfg, finished, monkeypatch):
    run(cfg, max_iters=2, qk_norm=True)
    with pytest.raises(RunError, match="has qk_norm"):
        parts.split_run(cfg.out_dir)
    monkeypatch.setattr(parts, "open_corpus", lambda cfg: SimpleNamespace(meta=dict(sha256="of another text")))
    with pytest.raises(RunError, match="is not the corpus of"):
        parts.split_run(finished.out_dir)
