"""python -m data.samples, and what a run shows at its end."""

import pytest
import torch

from data import samples, tokens
from data.samples import open_run
from tests.lives import run


@pytest.mark.parametrize("causal", [False, True])
def test_a_prompt_is_completed_with_the_most_likely_tokens(causal, cfg, capsys):
    run(cfg, causal=causal, max_iters=4)
    model, _, _ = open_run(cfg.out_dir)
    if causal:
        expected = torch.tensor([[*b"ab_d"]])
        for _ in range(16):  # more than block_size in all, so the first tokens are out of sight at the end
            expected = torch.cat([expected, model(expected[:, -16:])[:, -1:, :256].argmax(-1)], 1)
    else:
        expected = torch.tensor([[*b"ab", 257, *b"d"]])
        expected[0, 2] = model(expected)[0, 2, :256].argmax()
    capsys.readouterr()
    samples.main([cfg.out_dir, "--prompt=ab_d"])
    assert capsys.readouterr().out == bytes(expected[0].tolist()).decode(errors="replace") + "\n"


def test_a_prompt_is_spaced_as_its_corpus_was(finished, monkeypatch, capsys):
    model, cfg, meta = open_run(finished.out_dir)
    said = []
    for of_corpus in {}, {"spaced": True}:
        monkeypatch.setattr(samples, "open_run", lambda folder: (model, cfg, meta | of_corpus))
        samples.main([finished.out_dir, "--prompt=import"])
        said.append(capsys.readouterr().out)
    assert said == ["import\n", "i m p o r t\n"]  # an encoder keeps what is not masked


def test_a_prompt_that_cannot_be_completed_ends_in_one_line(finished):
    with pytest.raises(SystemExit, match="^error: the prompt has 17 tokens, and this model sees 1 to 16$"):
        samples.main([finished.out_dir, f"--prompt={'_' * 17}"])


def test_a_run_ends_with_three_lines_in_which_a_sign_comes_before_what_the_model_has_made(finished):
    model, cfg, _ = open_run(finished.out_dir)
    corpus = tokens.load(cfg.data_dir)
    for predicts_next, n_signs in (False, len(range(3, 16, 7))), (True, 1):
        lines = samples.sample(model, corpus, predicts_next).splitlines()[1:]
        assert [line.count("░") for line in lines] == [n_signs] * 3 and max(map(len, lines)) <= 100
    half = " ".join(bytes(corpus.val[:8].tolist()).decode().split())  # which a decoder goes on with
    assert lines[0].startswith(f"{half}░")
