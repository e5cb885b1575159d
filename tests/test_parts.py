"""data/results/parts.py: W_qk on the directions of position and on the rest, by matrices whose answer is known."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

from analyze import symmetry
from data.results import parts

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


def test_a_matrix_symmetric_between_positions_and_skew_between_contents_is_taken_apart(x):
    a, b = torch.randn(B, B, dtype=torch.float64), torch.randn(C - B, C - B, dtype=torch.float64)
    m = 2 * U @ (a + a.T) @ U.T + V @ (b - b.T) @ V.T
    row = parts.split_layer(x, m)
    assert row["directions"] == B and row["symmetry"] == pytest.approx(symmetry(m).item())
    assert (row["on_positions"], row["on_rest"]) == (pytest.approx(1), pytest.approx(-1))
    assert row["share_positions"] + row["share_rest"] == pytest.approx(1)
    assert row["share_positions"] == pytest.approx((4 * (a + a.T).square().sum() / m.square().sum()).item())
    of_position = 81 * B  # squared, over all T positions: what x was made of
    of_content = (x @ V).square().sum().item() / N
    assert row["of_inputs"] == pytest.approx(of_position / (of_position + of_content))


def test_few_directions_have_their_chance_beside_them(x):
    """Of a random matrix 1/b and sqrt(2)/b, and as much between random directions of the rest, whatever is on U."""
    m = torch.randn(C, C, dtype=torch.float64)
    m = m - U @ U.T @ m + 50 * U @ U.T  # heavy, and symmetric between position directions
    row = parts.split_layer(x, m)
    assert (row["chance"], row["chance_std"]) == pytest.approx((1 / B, 2**0.5 / B))
    assert row["on_positions"] > 0.99
    bases = V @ torch.linalg.qr(torch.randn(500, C - B, B, dtype=torch.float64)).Q  # (500, C, B)
    on_rest = [symmetry(basis.T @ m @ basis).item() for basis in bases]
    assert row["on_random"] == pytest.approx(np.mean(on_rest), abs=5 * np.std(on_rest) / 64**0.5)
    assert row["random_std"] == pytest.approx(np.std(on_rest), rel=0.4)


def test_files_are_put_together_and_drawn_without_dots_for_directions_that_hold_no_position(tmp_path, capsys, drawn):
    files = []
    for arm, of_inputs, on_positions in ("64", 0.5, 0.2), ("null", 0.001, 0.3):  # names that pandas could take for more
        table = pandas.DataFrame(dict(arm=arm, seed=1, layer=0, head=[None, 0], symmetry=[0.1, 0.9], on_rest=[0.4, 0.9],
                                      on_positions=on_positions, of_inputs=of_inputs))  # older files have heads
        files.append(str(tmp_path / f"{arm}.csv"))
        table.to_csv(files[-1], index=False)
    parts.main([*files, "--plot", str(tmp_path / "p.png")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [["64", "0", "0.10", "0.50", "0.20", "0.40"], ["null", "0", "0.10", "0.00", "0.30", "0.40"]]
    dots = {line.get_label(): line.get_xdata() for line in drawn[0].axes[0].lines if line.get_marker() == "o"}
    np.testing.assert_equal(dots["between position directions"], [0.2, np.nan])
    np.testing.assert_equal(dots["between all other directions"], [0.4, 0.4])


def test_the_command_splits_a_run_into_its_table_and_its_picture(finished, tmp_path, capsys, monkeypatch):
    folder, file, picture = finished.out_dir, str(tmp_path / "parts.csv"), tmp_path / "parts.png"
    parts.main([folder, "--csv", file])
    assert f"{Path(folder).name} " in (told := capsys.readouterr().out)
    scores = pandas.read_csv(f"{folder}/scores.csv").query("step == 12 and head.isna()")
    assert pandas.read_csv(file)["symmetry"].to_list() == pytest.approx(scores["symmetry"].to_list(), abs=1e-4)
    parts.main([file, "--plot", str(picture)])
    assert capsys.readouterr().out == told and picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(parts, "open_corpus", lambda cfg: SimpleNamespace(meta=dict(sha256="of another text")))
    damaged = tmp_path / "damaged.csv"
    damaged.write_text("arm,seed,layer,symmetry\na,1,0,much\n")
    for argv, words in [
            ([folder], "is not the corpus of"), (["nowhere"], "nowhere"),
            ([f"{folder}/log.csv"], "is no file that --csv has written"),
            ([str(damaged)], "is no file that --csv has written: could not convert string to float: 'much'"),
            ([file, file], "two runs have the same arm and seed: name each run once")]:
        with pytest.raises(SystemExit, match=words):
            parts.main(argv)
    with pytest.raises(SystemExit):  # before any work
        parts.main([folder, "--plot", "parts.xyz"])
    assert "parts.xyz does not end in .png, " in capsys.readouterr().err
