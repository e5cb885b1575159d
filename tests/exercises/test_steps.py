"""What the five steps are checked by: python -m pytest tests/exercises"""

from pathlib import Path

import pytest
import torch

import analyze
import init
from config import load
from data.results import record, records, runs
from tests.exercises import step_1_symmetry, step_2_directionality, step_3_attention, step_4_predict, step_5_start

MISTAKES = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
UPDATES = load(["config/tiny.py"]).max_iters  # of a whole run of step 4


@pytest.fixture
def learned(record_property):
    return lambda text: record_property("learned", text)  # which conftest.py prints


def need(condition, missing):
    if not condition:
        pytest.fail(missing, pytrace=False)


def answer(step, name, *given):
    """What the function of this name returns."""
    place = f"{step.__name__.split('.')[-1]}.py: {name}(...)"
    try:
        found = getattr(step, name)(*given)
    except MISTAKES as e:
        pytest.fail(f"{place} ends in {type(e).__name__}: {str(e).partition(chr(10))[0]}", pytrace=False)
    need(found is not None, f"{place} returns nothing yet.")
    return found


def number(step, name, *given):
    found = answer(step, name, *given)
    is_number = torch.is_tensor(found) and found.numel() == 1 or isinstance(found, (int, float))
    need(is_number, f"{name}(...) returns {shown(found)}, and a number is expected.")
    return float(found)


def tensors(step, name, shape, *given):
    """The tensors of this shape that the function returns, one or several."""
    found = answer(step, name, *given)
    several = found if isinstance(found, (tuple, list)) else [found]
    good = all(torch.is_tensor(w) and w.shape == shape for w in several)
    need(good, f"{name}(...) returns {shown(found)}, and the shape {tuple(shape)} is expected.")
    return found


def shown(found):
    if torch.is_tensor(found):
        return f"a tensor of shape {tuple(found.shape)}"
    return f"({', '.join(map(shown, found))})" if isinstance(found, (tuple, list)) else f"{found!r:.40}"


def test_step_1(learned):
    a = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    for m, expected, what in [(a + a.T, 1, "A + A^T"), (a - a.T, -1, "A - A^T"), (5 * torch.eye(3), 1, "5 I"),
                              (torch.tensor([[3.0, 1], [0, 0]]), 0.9, "[[3, 1], [0, 0]]")]:
        found = number(step_1_symmetry, "symmetry", m)
        need(abs(found - expected) < 1e-4, f"The symmetry of {what} is {expected}, and yours is {found:.3f}.")
    learned("The score is tr(MM) / |M|^2 as well. The size of M does not change it. A random M has 1/n on average.")


def test_step_2(learned):
    m = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    m[:, 7] *= 4
    found = number(step_2_directionality, "directionality", m)
    expected, whole = analyze.directionality(m).item(), analyze.directionality_eq17(m).item()
    need(abs(found - whole) > 1e-2, f"Yours is {found:.3f}: whole norms are added up. Of a norm only what is above the "
                                    "threshold counts.")
    need(abs(found + expected) > 1e-3, f"A heavy column scores below 0, and yours is {found:.3f}. Rows and columns are "
                                       "exchanged: norm(dim=1) is of rows, norm(dim=0) of columns.")
    need(abs(found - expected) < 1e-3, f"The score of a matrix with a heavy column is {expected:.3f}, and yours is "
                                       f"{found:.3f}. The threshold is mean + 2 torch.std of all norms.")
    flat = number(step_2_directionality, "directionality", torch.eye(8))
    need(flat == 0, f"In the identity nothing stands out, so the score is 0, and yours is {flat}.")
    printed = number(step_2_directionality, "directionality_as_printed", m)
    need(abs(printed - whole) < 1e-2, f"As printed it is {whole:.3f}, and yours is {printed:.3f}.")
    learned(f"A heavy column scores {found:.2f}, but {printed:+.2f} as printed, which is the wrong sign. The heavy "
            "column raises the threshold of columns and counts once. Every row that chance lifts above the threshold "
            "of rows counts as a whole.")


def test_step_3(learned):
    x, w_q, w_k, w_v = (torch.randn(*size) for size in [(7, 12), (12, 4), (12, 4), (12, 4)])
    expected = torch.nn.functional.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v)
    y = tensors(step_3_attention, "head", expected.shape, x, w_q, w_k, w_v)
    need(torch.allclose(y, expected, atol=1e-4),
         "head(...) is not softmax(x W_q (x W_k)^T / sqrt(D)) x W_v: is the softmax over keys, dim=-1, and D its size?")
    m = tensors(step_3_attention, "wqk", (12, 12), w_q, w_k)
    need(torch.allclose(x @ m @ x.T, (x @ w_q) @ (x @ w_k).T, atol=1e-3),
         "x M x^T is not (x W_q)(x W_k)^T: M is (C, C), its rows are the query side, its columns the key side.")
    r = torch.linalg.qr(torch.randn(4, 4))[0]
    pair = tensors(step_3_attention, "rotated", w_q.shape, w_q, w_k, r)
    need(len(pair) == 2, "rotated(...) does not return a pair, another W_q and another W_k.")
    need(not torch.allclose(pair[0], w_q), "rotated(...) returns the W_q that it was given.")
    need(torch.allclose(pair[0] @ pair[1].T, m, atol=1e-3), "rotated(...) changes W_qk. (W_q R)(W_k R)^T does not.")
    learned("Single entries of W_q and W_k mean nothing: rotating both changes nothing. A head compares by W_q W_k^T, "
            "of rank D, so the scores are of W_qk.")


def is_prediction(pair):
    """Whether it is two scores."""
    return (isinstance(pair, (tuple, list)) and len(pair) == 2
            and all(isinstance(score, (int, float)) and -1 <= score <= 1 for score in pair))


def test_step_4(learned):
    predicted = answer(step_4_predict, "predictions")
    need(isinstance(predicted, dict), f"predictions() returns {shown(predicted)}, and a dict is expected.")
    for name in step_4_predict.RUNS:
        need(is_prediction(predicted.get(name)),
             f"The {name} has no prediction yet: (symmetry, directionality), two numbers from -1 to 1.")
    symmetries = {}
    for name, folder in step_4_predict.RUNS.items():
        run = Path(folder, "run.json").exists() and records.read_run(folder)
        need(run and run.is_finished() and run.config["max_iters"] >= UPDATES,
             f"Now train the {name} for {UPDATES:,} updates, to its end. Its command is in step_4_predict.py.")
        told = []
        for score, guess in zip(runs.SCORES, predicted[name]):
            measured = float(run.last(score))
            told.append(f"{score} {measured:.2f}, predicted {guess:.2f}, off by {abs(measured - guess):.2f}")
        learned(f"{name}: {'; '.join(told)}")
        symmetries[name] = run.last("symmetry")
    others = {name: symmetry for name, symmetry in symmetries.items() if name != "encoder"}
    if max(others.values()) < symmetries["encoder"]:
        learned("The encoder is the most symmetric. The masked decoder has its objective, so causal attention keeps "
                "symmetry away. The rotary encoder has its objective too, but its W_qk knows no positions.")
    else:
        learned("Here the encoder is not the most symmetric. With learned positions it was on average over eight seeds "
                "(data/results/csv/emergence_again.csv), so train another seed.")
    learned("One run says nothing about directionality: with 64 columns random matrices have any.")


def test_step_5(learned):
    w_q, w_k = 0.02 * torch.randn(2, 2, 64, 32)  # W_q and W_k (H, C, D)
    seeds = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    first, again = [tensors(step_5_start, "start", w_q.shape, w_q.clone(), w_k.clone(), seed) for seed in seeds]
    need(len(first) == 2 and not torch.is_tensor(first), "start(...) does not return a pair, W_q and W_k.")
    need(all(map(torch.equal, first, again)), "Two calls differ: draw with the generator that start(...) is given.")
    need(not all(map(torch.equal, first, (w_q, w_k))), "This is the random start, which the table has.")
    name = step_5_start.NAME
    need(name in init.STARTS, f"It is a start. Now copy it to init.py, and name it in STARTS: {name}.")
    path = record.FOLDER / "start" / f"{name}.csv"
    need(path.exists(), f"Now train {name} with eight seeds and write {path}: README.md of record/ has the commands.")
    steps = record.steps_of(record.read_entry(path), record.TRACKS["start"].loss)
    learned(f"{name} takes {steps.mean():.0f} updates. python -m data.results.record shows it among the others. A new "
            "record has a lower mean than the old one, and p < 0.05 against it.")
