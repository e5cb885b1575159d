"""
The exercises: our own answers pass them, and wrong ones are told what is wrong. In micro.py the gradients are right,
and what it and positions.py print comes in the order that README.md tells.
"""

import re
import shlex
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

import analyze
import init
from tests.exercises import __main__ as exercises
from tests.exercises import micro, positions, step_1_symmetry, step_2_directionality, step_3_attention, step_4_start

HERE = Path(micro.__file__).parent
ROOT = HERE.parents[1]
PAGE = (HERE / "README.md").read_text()
CHANGES = re.findall(r"```diff\n(.*?)```", PAGE, re.S)  # no positions, no [MASK]


def gradient_at_zero(x, targets):
    delta = x.mean(0) - targets  # (T, C)
    return x.T @ (delta @ (x - x.mean(0)).T / len(x)) @ x


e1, e2 = torch.eye(4)[:, :1], torch.eye(4)[:, 1:2]  # (4, 1)
LONG_COLUMN = torch.randn(512, 512, generator=torch.Generator().manual_seed(1)) * (1 + 3 * torch.eye(512)[3])
OURS = {
    (step_1_symmetry, "parts"): lambda m: ((m + m.T) / 2, m - (m + m.T) / 2),  # which is skew but for rounding
    (step_1_symmetry, "symmetry"): analyze.symmetry,
    (step_1_symmetry, "symmetry_0_trace_1"): lambda: torch.tensor([[0.5, 0.5], [-0.5, 0.5]]),
    (step_2_directionality, "directionality"): analyze.directionality,
    (step_2_directionality, "wrong_sign"): lambda: LONG_COLUMN,
    (step_3_attention, "gradient_at_zero"): gradient_at_zero,
    (step_3_attention, "two_heads"): lambda: (torch.stack([e1, e2]), torch.stack([e2, e1])),
    (step_4_start, "start"): init.symmetric,
}


@pytest.fixture
def check(monkeypatch, capsys):
    """Returns the status of the command for a step, and what it prints. Every answer is ours."""
    for (step, name), function in OURS.items():
        monkeypatch.setattr(step, name, function)
    monkeypatch.setattr(step_4_start, "NAME", "symmetric")

    def check(step):
        status = exercises.main([step.__name__.split(".")[-1]])
        return status, capsys.readouterr().out

    return check


@pytest.mark.parametrize("step, told", [
    (step_1_symmetry, "1/n on average"), (step_2_directionality, " by Eq. 17. The long column"),
    (step_3_attention, "without any symmetric head"), (step_4_start, "symmetric is a start of train.py now")])
def test_our_own_answers_pass_every_step_and_it_is_said_what_was_learned(check, step, told):
    status, learned = check(step)
    assert status == 0 and ": done. " in learned and told in learned


@pytest.mark.parametrize("step, name, wrong, told", [
    (step_1_symmetry, "parts", lambda m: (m, 0 * m), "S is not symmetric"),
    (step_1_symmetry, "parts", lambda m: (m + m.T, m - m.T), "S + N is not M"),
    (step_1_symmetry, "symmetry", lambda m: (m * m.T).sum() / m.norm(), "The symmetry of A + A^T is 1, and yours is 7"),
    (step_1_symmetry, "symmetry_0_trace_1", lambda: torch.eye(2) / 2, "Your matrix has a symmetry of 1.000"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m.T), "norm(dim=0) is of columns"),
    (step_2_directionality, "directionality", analyze.directionality_eq17, "whole norms are added up"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m, 1), "with a heavy column scores -"),
    (step_2_directionality, "directionality", lambda m: analyze.directionality(m) + 0 / m[0, 1], "yours is nan"),
    (step_2_directionality, "wrong_sign", lambda: torch.eye(9), "scores 0.000, and 0.000 by Eq. 17"),
    (step_3_attention, "gradient_at_zero", lambda *given: gradient_at_zero(*given).T, "Yours is transposed"),
    (step_3_attention, "gradient_at_zero", lambda x, t: x.T @ (x.mean(0) - t) @ x.T @ x, "What is beta_ij"),
    (step_3_attention, "gradient_at_zero", lambda x, t: x.requires_grad_().sum().backward(), "RuntimeError"),
    (step_3_attention, "two_heads", lambda: 2 * [torch.stack([e1, e2])], "The heads should be near 0"),
    (step_3_attention, "two_heads", lambda: (torch.stack([e1, e1]), torch.stack([e2, e2])), "is at 0.00"),
    (step_4_start, "start", init.random, "the random start"),
    (step_4_start, "start", lambda w_q, w_k, generator: (w_q, torch.randn_like(w_k)), "draw with the generator"),
    (step_4_start, "start", lambda w_q, w_k, generator: (w_q[:1], w_q[:1]), "keep the shape"),  # one head of two
    (step_4_start, "start", lambda w_q, w_k, generator: (w_q, 0 * w_k), "zero or not finite"),
    (step_4_start, "NAME", "mine", "It is a start. Now copy it to init.py, and name it in STARTS: mine.")])
def test_a_wrong_answer_is_told_what_is_wrong_and_a_start_what_comes_next(check, monkeypatch, step, name, wrong, told):
    monkeypatch.setattr(step, name, wrong)
    status, said = check(step)
    assert status == 1 and told in said and "done" not in said and said.count("\n") == 1


def test_the_command_prints_a_line_for_each_step(monkeypatch, capsys):
    for step, name in OURS:
        monkeypatch.setattr(step, name, lambda *_: None)
    assert exercises.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step_{i}" for i in range(1, 5)]
    assert all(line.endswith("returns nothing yet.") for line in lines)


@pytest.mark.parametrize("word, status, told", [("-h", 0, "or step_1"), ("9", 2, "there are steps 1 to 4, and no 9")])
def test_help_is_printed_and_an_unknown_step_refused(capsys, word, status, told):
    with pytest.raises(SystemExit) as e:
        exercises.main([word])
    assert e.value.code == status and told in "".join(capsys.readouterr())


def test_every_answer_names_a_test_or_a_file_that_is_there_or_a_command_that_prints_its_numbers(analysed, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = " ".join(PAGE.split())
    tests = "".join(path.read_text() for path in ROOT.glob("tests/test_*.py"))
    answers = re.findall(r"</summary> ([^<]*) \[([^]]*)\] </details>", text)
    assert len(answers) == len(re.findall(r"<summary>\d", text)) > 9
    for answer, source in answers:
        if source.startswith("-k "):
            assert re.search(rf"def test_\w*{source.removeprefix('-k ')}_", tests), source
        elif source.startswith("python analyze.py "):
            out = analysed(*shlex.split(source)[2:], csv=False).out
            printed = {round(float(share)) for share in re.findall(r"([\d.]+)%", out)}
            assert {int(share) for share in re.findall(r"(\d+) %", answer)} <= printed
        else:
            file = source.removeprefix("open: ")
            assert (ROOT / file).exists(), file


# ---- micro.py and positions.py -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_every_entry_of_every_gradient_of_micro_equals_a_finite_difference(monkeypatch, causal):
    for name, value in dict(B=2, T=6, C=4, K=2, V=9, MASK=8).items():
        monkeypatch.setattr(micro, name, value)
    rng = np.random.default_rng(0)
    w = {name: rng.normal(0, 0.5, x.shape) for name, x in micro.new_weights(rng).items()}  # float64
    batch = micro.get_batch(rng.integers(0, 8, 99), rng)
    _, gradients = micro.loss_and_gradients(w, *batch, causal)
    assert gradients.keys() == w.keys()
    for name, x in w.items():
        for place in np.ndindex(x.shape):
            kept, losses = x[place], []
            for change in 1e-6, -1e-6:
                x[place] = kept + change
                losses.append(micro.loss_and_gradients(w, *batch, causal)[0])
            x[place] = kept
            assert gradients[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7), name


def test_micro_needs_numpy_alone_and_reads_its_text_from_this_interpreter(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    text = micro.read_text()
    assert len(text) > 1e6 and b"def " in bytes(text[:10_000].astype(np.uint8)) and text.max() < micro.MASK
    imports = re.findall(r"^(?:import|from) (\w+)", (HERE / "micro.py").read_text(), re.M)
    assert imports == ["os", "sys", "pathlib", "numpy"]


def last_symmetry(capsys, *argv, change=""):
    """Of 100 steps of micro.py, in which a student makes a change of README.md."""
    source = (HERE / "micro.py").read_text()
    for old, new in re.findall(r"^-(.*)\n\+(.*)\n", change, re.M):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    changed = dict(__name__="changed")
    exec(compile(source, "micro.py", "exec"), changed)
    changed["STEPS"] = 100
    changed["main"](argv)
    return float(capsys.readouterr().out.split()[-1])


def test_micro_becomes_symmetric_with_positions_and_both_sides_with_or_without_masks(capsys):
    no_positions, no_mask = CHANGES
    encoder = last_symmetry(capsys)
    assert encoder > 0.4 and last_symmetry(capsys, change=no_mask) > 0.4
    assert last_symmetry(capsys, "causal") < 0.25
    assert last_symmetry(capsys, change=no_positions) < 0.15


def test_a_head_that_sees_positions_only_prints_what_the_page_shows(capsys):
    positions.main()
    shown = re.findall(r"symmetry of P ([\d.]+)", PAGE)
    printed = re.findall(r"symmetry of P ([\d.]+)", capsys.readouterr().out)
    assert list(map(float, printed)) == pytest.approx(list(map(float, shown)), abs=0.011)
    assert float(printed[0]) > 0.8 and float(printed[1]) == 0
