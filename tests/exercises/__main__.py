"""
What the five steps are checked by. It prints a line for each of them: what it shows, or what is missing or wrong.

    python -m tests.exercises      # all steps
    python -m tests.exercises 2    # a single one
"""

import sys
from pathlib import Path

import torch

import analyze
import init
from config import load
from data.chance import SCORES
from data.results import record, records
from tests.exercises import step_1_symmetry, step_2_directionality, step_3_attention, step_4_predict, step_5_start

UPDATES = load(["config/tiny.py"]).max_iters  # of a whole run of step 4


def answer(step, name, *given):
    """What the function of this name returns."""
    found = getattr(step, name)(*given)
    assert found is not None, f"{step.__name__.split('.')[-1]}.py: {name}(...) returns nothing yet."
    return found


def step_1():
    a = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    for m, expected, what in [(a + a.T, 1, "A + A^T"), (a - a.T, -1, "A - A^T"), (5 * torch.eye(3), 1, "5 I"),
                              (torch.tensor([[3.0, 1], [0, 0]]), 0.9, "[[3, 1], [0, 0]]")]:
        found = answer(step_1_symmetry, "symmetry", m)
        assert abs(found - expected) < 1e-4, f"The symmetry of {what} is {expected}, and yours is {found:.3f}."
    return "The score is tr(MM) / |M|^2 as well. The size of M does not change it. A random M has 1/n on average."


def step_2():
    m = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    m[:, 7] *= 4
    found = answer(step_2_directionality, "directionality", m)
    expected, whole = analyze.directionality(m).item(), analyze.directionality_eq17(m).item()
    assert abs(found - whole) > 1e-2, (f"Yours is {found:.3f}: whole norms are added up. Of a norm only what is above "
                                       "the threshold counts.")
    assert abs(found + expected) > 1e-3, (f"A heavy column scores below 0, and yours is {found:.3f}. Rows and columns "
                                          "are exchanged: norm(dim=1) is of rows, norm(dim=0) of columns.")
    assert abs(found - expected) < 1e-3, (f"The score of a matrix with a heavy column is {expected:.3f}, and yours is "
                                          f"{found:.3f}. The threshold is mean + 2 torch.std of all norms.")
    flat = answer(step_2_directionality, "directionality", torch.eye(8))
    assert flat == 0, f"In the identity nothing stands out, so the score is 0, and yours is {flat}."
    printed = answer(step_2_directionality, "directionality_as_printed", m)
    assert abs(printed - whole) < 1e-2, f"As printed it is {whole:.3f}, and yours is {printed:.3f}."
    return (f"A heavy column scores {found:.2f}, but {printed:+.2f} as printed, which is the wrong sign. The heavy "
            "column raises the threshold of columns and counts once. Every row that chance lifts above the threshold "
            "of rows counts as a whole.")


def step_3():
    x, w_q, w_k, w_v = (torch.randn(*size) for size in [(7, 12), (12, 4), (12, 4), (12, 4)])
    expected = torch.nn.functional.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v)
    y = answer(step_3_attention, "head", x, w_q, w_k, w_v)
    assert torch.allclose(y, expected, atol=1e-4), ("head(...) is not softmax(x W_q (x W_k)^T / sqrt(D)) x W_v: is the "
                                                    "softmax over keys, dim=-1, and D its size?")
    m = answer(step_3_attention, "wqk", w_q, w_k)
    assert torch.allclose(x @ m @ x.T, (x @ w_q) @ (x @ w_k).T, atol=1e-3), (
        "x M x^T is not (x W_q)(x W_k)^T: M is (C, C), its rows are the query side, its columns the key side.")
    r = torch.linalg.qr(torch.randn(4, 4))[0]
    new_q, new_k = answer(step_3_attention, "rotated", w_q, w_k, r)
    assert not torch.allclose(new_q, w_q), "rotated(...) returns the W_q that it was given."
    assert torch.allclose(new_q @ new_k.T, m, atol=1e-3), "rotated(...) changes W_qk. (W_q R)(W_k R)^T does not."
    return ("Single entries of W_q and W_k mean nothing: rotating both changes nothing. A head compares by W_q W_k^T, "
            "of rank D, so the scores are of W_qk.")


def step_4():
    predicted = answer(step_4_predict, "predictions")
    told = []
    for name, folder in step_4_predict.RUNS.items():
        assert name in predicted, f"The {name} has no prediction yet: (symmetry, directionality)."
        run = Path(folder, "run.json").exists() and records.read_run(folder)
        assert run and run.is_finished() and run.config["max_iters"] >= UPDATES, (
            f"Now train the {name} for {UPDATES:,} updates, to its end. Its command is in step_4_predict.py.")
        scores = []
        for score, guess in zip(SCORES, predicted[name]):
            measured = float(run.last(score))
            scores.append(f"{score} {measured:.2f}, predicted {guess:.2f}, off by {abs(measured - guess):.2f}")
        told.append(f"{name}: {'; '.join(scores)}")
    told.append("On average over eight seeds the encoder is the most symmetric (data/results/csv/emergence_again.csv). "
                "The masked decoder has its objective, so causal attention keeps symmetry away. The rotary encoder has "
                "it too, but its W_qk knows no positions. One run says nothing about directionality: with 64 columns "
                "random matrices have any.")
    return " ".join(told)


def step_5():
    w_q, w_k = 0.02 * torch.randn(2, 2, 64, 32)  # W_q and W_k (H, C, D)
    seeds = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    first, again = [answer(step_5_start, "start", w_q.clone(), w_k.clone(), seed) for seed in seeds]
    assert all(map(torch.equal, first, again)), "Two calls differ: draw with the generator that start(...) is given."
    assert not all(map(torch.equal, first, (w_q, w_k))), "This is the random start, which the table has."
    name = step_5_start.NAME
    assert name in init.STARTS, f"It is a start. Now copy it to init.py, and name it in STARTS: {name}."
    path = record.FOLDER / "start" / f"{name}.csv"
    assert path.exists(), f"Now train {name} with eight seeds and write {path}: README.md of record/ has the commands."
    steps = record.steps_of(record.read_entry(path), record.TRACKS["start"].loss)
    return (f"{name} takes {steps.mean():.0f} updates. python -m data.results.record shows it among the others. A new "
            "record has a lower mean than the old one, and p < 0.05 against it.")


STEPS = {"1": step_1, "2": step_2, "3": step_3, "4": step_4, "5": step_5}


def main(argv):
    for number in argv or STEPS:
        try:
            print(f"step_{number}: done. {STEPS[number]()}")
        except AssertionError as e:
            print(f"step_{number}: {e}")
        except Exception as e:  # it is the student's code, which may raise whatever it likes
            print(f"step_{number}: {type(e).__name__}: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
