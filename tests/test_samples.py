"""What a run shows at its end."""

import pytest
import torch

from data import samples, tokens
from data.samples import open_run


@pytest.mark.parametrize("predicts_next", [False, True])
def test_a_text_is_completed_with_the_most_likely_tokens(predicts_next, finished):
    model, _, meta = open_run(finished.out_dir)
    ids = [*b"abcd"] if predicts_next else [*b"ab", 257, *b"d"]
    expected = torch.tensor([ids])
    if predicts_next:
        for _ in range(16):  # more than block_size in all, so the first tokens are out of sight at the end
            expected = torch.cat([expected, model(expected[:, -16:])[:, -1:, :256].argmax(-1)], 1)
    else:
        expected[0, 2] = model(expected)[0, 2, :256].argmax()
    assert samples.complete(model, ids, meta, predicts_next, n=16) == expected[0].tolist()


def test_a_run_ends_with_three_lines_in_which_a_sign_comes_before_what_the_model_has_made(finished):
    model, cfg, _ = open_run(finished.out_dir)
    corpus = tokens.load(cfg.data_dir)
    for predicts_next, n_signs in (False, len(range(3, 16, 7))), (True, 1):
        lines = samples.sample(model, corpus, predicts_next).splitlines()[1:]
        assert [line.count("░") for line in lines] == [n_signs] * 3 and max(map(len, lines)) <= 100
    half = " ".join(bytes(corpus.val[:8].tolist()).decode().split())  # which a decoder goes on with
    assert lines[0].startswith(f"{half}░")
