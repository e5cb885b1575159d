"""data/fill.py: what a model puts into blanks, and how a decoder goes on. pytest tests/test_fill.py"""

import shutil
from pathlib import Path

import pytest
import torch

from data import fill
from data.runs.model import open_run
from tests.lives import run

pytestmark = pytest.mark.bert_block


def said(capsys, *argv):
    """What the command prints, or the line in which it ends."""
    try:
        fill.main([*map(str, argv)])
    except SystemExit as e:
        return e.code
    return capsys.readouterr().out


def test_the_guesses_for_a_blank_are_the_softmax_of_the_logits_of_the_masked_text(finished, capsys):
    model, _ = open_run(finished.out_dir)
    ids = [*b"re", 257, *b"urn ", 257]  # a mask token for each blank
    shares = model(torch.tensor([ids]))[0].softmax(-1)
    for line, at, before in zip(said(capsys, finished.out_dir, "re?urn ?").splitlines(), (2, 7), ("re", "return ")):
        best = shares[at].topk(3)
        values, indices = best.values.tolist(), best.indices.tolist()
        letters = [bytes([i]).decode(errors="replace") if i < 256 else "" for i in indices]
        expected = [f"{letter!r} {p:.0%}" for p, letter in zip(values, letters)]
        assert line.endswith(f"?    {', '.join(expected)}") and line.startswith("re")
    assert said(capsys, finished.out_dir, "re_urn_", "--blank=_").count("\n") == 2
    assert said(capsys, finished.out_dir, "abcdefghijklm?").startswith("...bcdefghijklm?")


def test_a_run_on_spaced_text_is_asked_in_spaced_text(finished, tmp_path, capsys):
    spaced = shutil.copytree(finished.out_dir, tmp_path / "spaced")
    record = (spaced / "run.json").read_text()
    (spaced / "run.json").write_text(record.replace('"spaced": false', '"spaced": true'))
    assert said(capsys, spaced, "re?u") == said(capsys, finished.out_dir, "r e ? u")


def test_a_decoder_goes_on_from_a_text_the_same_way_each_time(cfg, capsys):
    run(cfg, causal=True, max_iters=1)
    capsys.readouterr()
    first, again, other = [said(capsys, cfg.out_dir, "def f(", "--tokens=30", f"--seed={seed}") for seed in (0, 0, 1)]
    assert first.startswith("def f(") and len(first) > 20 and first == again != other


def test_what_cannot_be_filled_is_said_in_one_line(finished, tmp_path, capsys):
    for name, data in dict(empty=b"", damaged=b"no weights").items():
        Path(tmp_path, name).mkdir()
        Path(tmp_path, name, "ckpt.pt").write_bytes(data)
    for folder, text, words in [
            (finished.out_dir, "abc", "the text has no blank: write ? where one is"),
            (finished.out_dir, "aaaaaaaaaaaaaaaa?", "17 tokens are more than the 16 of this model"),
            (tmp_path / "none", "a?", "No such file"), (tmp_path / "empty", "a?", "ckpt.pt is damaged"),
            (tmp_path / "damaged", "a?", "ckpt.pt is damaged")]:
        line = said(capsys, folder, text)
        assert line.startswith("python -m data.fill: ") and words in line and "\n" not in line
    assert said(capsys, finished.out_dir, "a?", "--blank=") == 2
    assert capsys.readouterr().err.endswith("error: --blank is empty\n")
