"""python -m data.samples, and what a run shows at its end."""

import pytest
import torch

from data import samples
from data.batches import open_corpus
from data.results.checkpoints import open_run
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
    samples.main([cfg.out_dir, "--prompt=a\udce9"])  # a byte that is no UTF-8, as Python reads a command line
    assert capsys.readouterr().out.startswith("a\ufffd")


@pytest.mark.parametrize("n_tokens", [0, 17])
def test_a_prompt_that_cannot_be_completed_ends_in_one_line(n_tokens, finished):
    with pytest.raises(SystemExit, match=f"^error: the prompt has {n_tokens} tokens, and this model sees 1 to 16$"):
        samples.main([finished.out_dir, f"--prompt={'_' * n_tokens}"])
    with pytest.raises(SystemExit, match="^error: nowhere/ckpt.pt is not a checkpoint .*: missing, .*$"):
        samples.main(["nowhere", "--prompt=_"])


def test_masks_are_shown_with_a_sign_that_code_does_not_have(finished):
    model, cfg, _ = open_run(finished.out_dir)
    corpus = open_corpus(cfg)
    text = samples.sample(model, corpus, predicts_next=False)
    lines = text.splitlines()
    seen = [line.removeprefix("  seen:") for line in lines if line.startswith("  seen:")]
    completed = [line.removeprefix("  model:") for line in lines if line.startswith("  model:")]
    for row, filled_in in zip(seen, completed, strict=True):
        assert row.count("░") == len(range(3, 16, 7)) and "░" not in filled_in
    half = " ".join(bytes(corpus.val[:8].tolist()).decode().split())  # which a decoder goes on with
    assert f"  seen:  {half}\n  model: {half}" in samples.sample(model, corpus, predicts_next=True)
