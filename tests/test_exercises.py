"""The exercises: our answers pass, wrong ones are told what is wrong, and numpy does what the page says."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import analyze
from data import tokens
from data.batches import get_batch
from data.export import open_run
from model import ModelConfig, Transformer
from tests.exercises import __main__ as exercises
from tests.exercises import ledger, micro, offsets, positions

HERE = Path(micro.__file__).parent
PAGE = (HERE / "README.md").read_text()


def gradient_at_zero(x, targets, sees_all=False):
    sees = torch.ones(len(x), len(x)) if sees_all else torch.ones(len(x), len(x)).tril()
    alpha = (sees / sees.sum(1, keepdim=True)).to(x)  # (T, T)
    dalpha = (alpha @ x - targets) @ x.T
    return x.T @ (alpha * (dalpha - (alpha * dalpha).sum(1, keepdim=True))) @ x


def beta(alpha, dalpha, C):
    slope = np.eye(alpha.shape[-1]) * alpha[..., None] - alpha[..., None] * alpha[..., None, :]  # of the softmax
    return np.einsum("btj,btjk->btk", dalpha, slope) / C**0.5


def with_symmetry(s):
    return torch.tensor([[(1 + s) ** 0.5, (1 - s) ** 0.5], [-((1 - s) ** 0.5), (1 + s) ** 0.5]])


e1, e2 = torch.eye(4)[:, :1], torch.eye(4)[:, 1:2]  # (4, 1)
LONG_COLUMN = torch.randn(512, 512, generator=torch.Generator().manual_seed(1)) * (1 + 3 * torch.eye(512)[3])
OURS = {
    "parts": lambda m: ((m + m.T) / 2, m - (m + m.T) / 2),  # which is skew but for rounding
    "with_symmetry": with_symmetry,
    "directionality": analyze.directionality,
    "wrong_sign": lambda: LONG_COLUMN,
    "gradient_at_zero": gradient_at_zero,
    "two_heads": lambda: (torch.stack([e1, e2]), torch.stack([e2, e1])),
    "beta": beta,
    "gradient": lambda x, beta: np.einsum("bij,bic,bjd->cd", beta, x, x),
}


@pytest.fixture
def ours(monkeypatch):
    for name, function in OURS.items():
        monkeypatch.setattr(exercises.steps, name, function)


def test_our_own_answers_pass_every_step(ours):
    assert exercises.main([]) == 0


@pytest.mark.parametrize("step, name, wrong, told", [  # told: what the checker says
    ("1", "parts", lambda m: 1 / 0, "ZeroDivisionError"),  # with its traceback
    ("1", "with_symmetry", lambda s: with_symmetry(2 * s * s - 1), "with_symmetry(0.9) has a symmetry of 0.620"),
    ("2", "directionality", lambda m: analyze.directionality(m.T), "norm(dim=0) is of columns"),
    ("3", "gradient_at_zero", lambda *given: gradient_at_zero(*given, sees_all=True), "that see both sides"),
    ("4", "gradient", lambda x, beta: np.einsum("bij,bic,bjd->dc", beta, x, x), "dL/dM is transposed"),
])
def test_a_wrong_answer_is_told_what_is_wrong(ours, monkeypatch, capsys, step, name, wrong, told):
    monkeypatch.setattr(exercises.steps, name, wrong)
    assert exercises.main([step]) == 1
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("causal", [False, True])
def test_every_entry_of_every_gradient_of_micro_equals_a_finite_difference(causal):
    for name, (found, expected) in exercises.gradients_of_micro(causal).items():
        assert exercises.close(found, expected), name


def test_both_scores_of_micro_are_those_of_analyze():
    m = np.random.default_rng(0).normal(size=(64, 64)) * np.linspace(1, 3, 64)
    assert micro.symmetry(m) == pytest.approx(analyze.symmetry(torch.tensor(m)).item())
    assert micro.directionality(m) == pytest.approx(analyze.directionality(torch.tensor(m)).item())


def last_symmetry(capsys, *argv, change="", steps=150):
    """Of so many steps of micro.py with a quarter of its batch, in which a student makes a change of README.md."""
    source = (HERE / "micro.py").read_text()
    for old, new in re.findall(r"^-(.*)\n\+(.*)\n", change, re.M):
        assert old in source
        source = source.replace(old, new)
    changed = dict(__name__="changed")
    exec(source, changed)
    changed |= dict(STEPS=steps, B=16)
    changed["main"](argv, [steps])
    return float(re.findall(r"symmetry of M (\S+)", capsys.readouterr().out)[-1])


def test_micro_trains_several_seeds_and_says_what_each_ends_with(monkeypatch, capsys):
    monkeypatch.setattr(micro, "STEPS", 1)
    micro.main(["causal", "--seeds", "2"])
    micro.main(["--seeds", "1"])
    words = [re.sub(r"  loss.*", "", line) for line in capsys.readouterr().out.splitlines()]
    assert words == ["seed 1: step   1", "seed 2: step   1", "seed 1: step   1"]


def test_micro_becomes_symmetric_with_positions_and_both_sides_with_or_without_masks_but_not_if_one_is_hidden(capsys):
    no_positions, no_mask = re.findall(r"```diff\n(.*?)```", PAGE, re.S)
    assert min(last_symmetry(capsys), last_symmetry(capsys, change=no_mask)) > 0.4
    assert last_symmetry(capsys, "causal") < 0.25
    assert last_symmetry(capsys, change=no_positions) < 0.15
    left, right, both = [last_symmetry(capsys, word, steps=200) for word in ("left", "right", "both")]
    assert max(left, right) < 0.45 < both


@pytest.mark.parametrize("words, hidden", [  # hidden: places, counted from a blank
    ("", [0]), ("causal", [0]), ("left 1", [-2, -1, 0]), ("right", [0, 1, 2]), ("both", [-1, 0, 1])])
def test_a_word_hides_bytes_beside_each_blank_and_changes_nothing_else_in_any_batch(words, hidden, monkeypatch):
    batches, get_batch, (B, T, K) = [], micro.get_batch, (micro.B, micro.T, micro.K)
    monkeypatch.setattr(micro, "get_batch", lambda *given: batches.append(get_batch(*given)) or batches[-1])
    monkeypatch.setattr(micro, "STEPS", 1)
    micro.main(words.split())
    text, rng = micro.read_text(), np.random.default_rng(1)
    micro.new_weights(rng)
    for idx, at, targets in batches:
        starts, blanks = rng.integers(0, len(text) - T, (B, 1)), rng.random((B, T)).argsort(1)[:, :K]
        assert (at == blanks).all()
        for b, start in enumerate(starts[:, 0]):
            expected = text[start : start + T].copy()
            assert (targets[b] == expected[blanks[b]]).all()
            places = np.add.outer(blanks[b], hidden)
            expected[places[(places >= 0) & (places < T)]] = micro.MASK
            assert (idx[b] == expected).all()
    assert len(batches) == 2


@pytest.mark.parametrize("words", [["3"], ["causal", "3"]])
def test_the_parts_of_the_ledger_add_up_to_the_M_that_micro_trains_and_to_its_symmetry(words, monkeypatch):
    monkeypatch.setattr(micro, "STEPS", 25)  # five more than belong to the start
    m, parts = ledger.train(words)
    own = micro.main(words)["M"]
    assert np.array_equal(m, own)
    assert abs(parts.sum(0) - own).max() < 2e-7
    shares, adds, _ = zip(*[ledger.measure(part, own) for part in parts])
    assert (sum(shares), sum(adds)) == pytest.approx((1, analyze.symmetry(torch.tensor(own)).item()), abs=1e-5)


def test_a_part_of_the_ledger_is_a_sum_over_pairs_and_texts_that_are_all_equal_have_positions_only():
    rng = np.random.default_rng(0)
    x, beta = rng.normal(size=(5, 6, 4)), rng.normal(size=(5, 6, 6))  # (B, T, C), (B, T, T)
    p = x.sum(0) / 5
    pp, pt, tp, tt = ledger.parts_of_gradient(x, beta)
    assert exercises.close(pp, np.einsum("bij,ic,jd->cd", beta, p, p))
    assert exercises.close(pp + pt, np.einsum("bij,ic,bjd->cd", beta, p, x))
    assert exercises.close(pp + tp, np.einsum("bij,bic,jd->cd", beta, x, p))
    assert exercises.close(pp + pt + tp + tt, micro.gradient_of_M(x, beta))
    equal = np.broadcast_to(x[0], x.shape)
    assert exercises.close(ledger.parts_of_gradient(equal, beta)[1:], 0)


def test_the_ledger_prints_a_line_for_each_part_and_its_help(capsys, monkeypatch):
    monkeypatch.setattr(micro, "STEPS", 25)
    ledger.main(["1", "2"])
    header, *lines = capsys.readouterr().out.splitlines()[-7:]
    assert header.split() == ["2", "seeds", "share", "adds", "symmetry"]
    assert [line.split()[0] for line in lines] == ["start", "pp", "pt", "tp", "tt", "M"]
    assert re.match(r"M +\+1.00 \[\+1.00, \+1.00\]", lines[-1])


MICRO = "micro.py: expected [causal | left | right | both] [SEED | --seeds N], got "
LEDGER = "ledger: expected [causal | left | right | both] [SEED ...], got "


@pytest.mark.parametrize("program, line, wrong", [
    (exercises, "python -m tests.exercises: expected numbers of steps, 1, 2, 3, 4, got ", ["9"]),
    (micro, MICRO, ["casual", "--causal", "2 causal", "causal 2 3", "left right", "2 both", "--seeds x"]),
    (ledger, LEDGER, ["--seeds x"])])
def test_help_is_what_stands_above_a_program_and_a_wrong_word_ends_it_in_one_line(program, line, wrong, capsys):
    for words in "-h", "2 --help":
        assert not program.main(words.split())
        assert capsys.readouterr().out.strip() == program.__doc__.strip()
    for words in wrong:
        with pytest.raises(SystemExit) as e:
            sys.exit(program.main(words.split()))  # as each ends
        assert e.value.code == line + words


def test_the_lesson_has_no_command_that_needs_a_shell():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [*"".join(blocks).splitlines(), *re.findall(r"`(python [^`]*)`", PAGE)]
    commands = [line.partition("  #")[0] for line in lines]
    assert len(commands) > 12
    for command in commands:
        assert re.match("python |pip install ", command) and not re.search(r"[|&;<>(){}$!'\\]", command), command
        assert "*" not in command or command.startswith("python -m data.runs "), command  # which expands it


@pytest.mark.bert_block  # with a softmax
@pytest.mark.parametrize("layer, causal", [(0, True), (1, False)])
def test_offsets_finds_the_logits_that_a_layer_attends_by_and_K_the_mean_product_of_its_mean_inputs(layer, causal):
    # a model of noise, and by hand what the attention of a layer reads
    T = 6
    model = Transformer(ModelConfig(60, T, 2, 2, 12, 0.0, 0.0, causal)).double().eval()
    attn, idx = model.blocks[layer].attn, torch.randint(60, (5, T))
    for p in model.requires_grad_(False).parameters():
        p.normal_()
    x = model.ln_emb(model.tok_emb(idx) + model.pos_emb.weight)
    for block in model.blocks[:layer]:
        x = block(x)

    # the logits, by way of the attention: with values that are one-hot vectors of the keys, it gives its own weights
    attn.proj = torch.nn.Identity()
    one_hot = torch.eye(T).double().repeat(1, 2).expand(5, T, 12)  # (B, T, H D): value j is e_j, in each head
    attn.v.register_forward_hook(lambda *_: one_hot)
    log_weights = attn(x).unflatten(-1, (2, T)).log()  # (B, Q, H, T)
    log_weights = log_weights.masked_fill(log_weights.isinf(), torch.nan)
    logits = (log_weights - log_weights.nanmean(-1, keepdim=True)).nanmean(0).transpose(0, 1)  # (H, T, T)
    found = offsets.offset_logits(model, idx, layer)
    for i, offset in enumerate(range(1 - T, T)):
        torch.testing.assert_close(found[:, i], logits.diagonal(offset, -2, -1).nanmean(-1), equal_nan=True)

    # K, by the model's own projections. It is even if W_qk is symmetric
    attn.q.bias.zero_()
    attn.k.bias.zero_()
    p = x.mean(0)  # (T, C)
    product = attn.q(p) @ attn.k(p).T  # (T, T)
    expected = []
    for d in range(1 - T, T):
        pairs = [product[i, i + d] for i in range(T) if 0 <= i + d < T]
        expected.append(sum(pairs) / len(pairs))
    torch.testing.assert_close(offsets.kernel(model, idx, layer), torch.stack(expected))
    attn.k.weight.copy_(attn.q.weight)
    even = offsets.kernel(model, idx, layer)
    torch.testing.assert_close(even, even.flip(0))


@pytest.mark.bert_block
def test_offsets_draws_K_beside_the_heads_of_a_run_and_prints_its_help_without_arguments(
        finished, drawn, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    offsets.main(["1", finished.out_dir])
    *heads, dashed, zero = drawn[0].axes[0].lines
    model, cfg = open_run(finished.out_dir)
    idx, *_ = get_batch(cfg, tokens.load(cfg.data_dir), "val", 0, np.arange(cfg.batch_size))
    expected = offsets.kernel(model, idx, 1) / 8**0.5  # (31,), at offsets -15 to 15; a head has 8 dimensions
    assert len(heads) == 2 and list(dashed.get_xdata()) == list(range(-8, 9))
    assert dashed.get_ydata() == pytest.approx((expected - expected.mean())[7:24].numpy())
    for argv in [], ["--help"]:
        with pytest.raises(SystemExit, match="^0$"):
            offsets.main(argv)
        assert "python -m tests.exercises.offsets 1 out/tiny" in capsys.readouterr().out
    for argv, wrong in (["2", finished.out_dir], "has no layer 2"), (["1", "nowhere"], "No such file.*nowhere"):
        with pytest.raises(SystemExit, match=f"^python -m tests.exercises.offsets: .*{wrong}"):
            offsets.main(argv)


def test_a_head_that_sees_positions_only_prints_what_the_page_shows(capsys):
    positions.main()
    shown = re.findall(r"symmetry of P\s(\d\.\d+)", PAGE)
    printed = re.findall(r"symmetry of P ([\d.]+)", capsys.readouterr().out)
    assert list(map(float, printed)) == pytest.approx(list(map(float, shown)), abs=0.011)
