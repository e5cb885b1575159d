"""
Checks the four steps, or those that are named: python -m tests.exercises 2 3

It prints a line for each: what it shows, or what is missing or wrong. Exit status: 0 if all of these are done, else 1.
"""

import argparse
import math
import sys
from functools import partial

import torch

import analyze
import init
from tests.exercises import step_1_symmetry, step_2_directionality, step_3_attention, step_4_start


def answer(step, name, *given):
    """What the function of this name returns."""
    found = getattr(step, name)(*given)
    assert found is not None, f"{step.__name__.split('.')[-1]}.py: {name}(...) returns nothing yet."
    return found


def step_1():
    m = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    s, n = answer(step_1_symmetry, "parts", m)
    close = partial(torch.allclose, atol=1e-5)
    assert close(s, s.T) and close(n, -n.T), "S is not symmetric, or N is not skew."
    assert close(s + n, m), "S + N is not M."
    for m, expected, what in [(m + m.T, 1, "A + A^T"), (m - m.T, -1, "A - A^T"), (5 * torch.eye(3), 1, "5 I"),
                              (torch.tensor([[3.0, 1], [0, 0]]), 0.9, "[[3, 1], [0, 0]]")]:
        found = answer(step_1_symmetry, "symmetry", m)
        assert abs(found - expected) < 1e-4, f"The symmetry of {what} is {expected}, and yours is {found:.3f}."
    m = answer(step_1_symmetry, "symmetry_0_trace_1")
    s, trace = analyze.symmetry(m), m.trace()
    assert abs(s) < 1e-4 and abs(trace - 1) < 1e-4, f"Your matrix has a symmetry of {s:.3f} and a trace of {trace:.3f}."
    return "The products of S and N cancel, and what remains is tr(MM) / |M|^2. A random M has 1/n on average."


def step_2():
    m = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    m[:, 7] *= 4
    found = answer(step_2_directionality, "directionality", m)
    expected, whole = analyze.directionality(m).item(), analyze.directionality_eq17(m).item()
    assert abs(found - whole) > 1e-2, f"Yours is {found:.3f}: whole norms are added up, as in Eq. 17."
    assert abs(found + expected) > 1e-3, f"Rows and columns are exchanged, {found:.3f}: norm(dim=0) is of columns."
    assert abs(found - expected) < 1e-3, f"A matrix with a heavy column scores {expected:.3f}, and not {found:.3f}."
    flat = answer(step_2_directionality, "directionality", torch.eye(8))
    assert flat == 0, f"In the identity nothing stands out, so the score is 0, and yours is {flat}."
    m = answer(step_2_directionality, "wrong_sign")
    d, printed = analyze.directionality(m).item(), analyze.directionality_eq17(m).item()
    assert d < 0 < printed, f"Your matrix scores {d:.3f}, and {printed:.3f} by Eq. 17: make the first < 0 < the second."
    return (f"Yours scores {d:.2f}, but {printed:+.2f} by Eq. 17. The long column lifts the threshold of columns and "
            "counts once. Every row that chance lifts above the threshold of rows counts as a whole.")


def step_3():
    x, targets = torch.randn(2, 7, 5, dtype=torch.float64)
    m = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(step_3_attention.loss(m, x, targets), m)
    with torch.inference_mode():  # autograd is off
        found = answer(step_3_attention, "gradient_at_zero", x, targets)
    assert not torch.allclose(found, expected.T), "Yours is transposed: queries are rows of M, keys are its columns."
    assert torch.allclose(found, expected), ("Yours is not the gradient of autograd. It is a sum over pairs. What is "
                                             "beta_ij, the gradient by a_ij? For each i they add up to 0.")
    w_q, w_k = answer(step_3_attention, "two_heads")
    assert w_q.shape == w_k.shape and w_q.ndim == 3 and len(w_q) == 2, "w_q and w_k must both be (2, C, D)."
    heads = analyze.wqk(w_q, w_k)  # (2, C, C)
    of_heads, of_sum = analyze.symmetry(heads), analyze.symmetry(heads.sum(0))
    assert (of_heads.abs() < 0.1).all(), f"The heads should be near 0, and are at {of_heads[0]:.2f}, {of_heads[1]:.2f}."
    assert of_sum > 0.99, f"The sum of both should be near 1, and is at {of_sum:.2f}."
    return ("dL/dM = sum_ij beta_ij x_i^T x_j, here with beta_ij = delta_i . (x_j - mean of x) / T. A layer can be "
            "symmetric without any symmetric head, so measure both.")


def step_4():
    w_q, w_k = 0.02 * torch.randn(2, 2, 64, 32)  # W_q and W_k (H, C, D)
    seeds = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    first, again = [answer(step_4_start, "start", w_q.clone(), w_k.clone(), seed) for seed in seeds]
    assert all(w.shape == w_q.shape for w in first), "w_q and w_k must keep the shape (H, C, D) that they are given in."
    assert all(map(torch.equal, first, again)), "Two calls differ: draw with the generator that start(...) is given."
    assert not all(map(torch.equal, first, (w_q, w_k))), "This is the random start, which the table has."
    norms = analyze.wqk(*first).norm(dim=(1, 2))  # (H,)
    assert all(0 < norm < math.inf for norm in norms), "The W_qk of a head is zero or not finite: it would never learn."
    name = step_4_start.NAME
    assert name in init.STARTS, f"It is a start. Now copy it to init.py, and name it in STARTS: {name}."
    return f"{name} is a start of train.py now: --init={name} trains with it."


STEPS = {"1": step_1, "2": step_2, "3": step_3, "4": step_4}


def step_number(word):
    number = word.removeprefix("step_")[:1]
    if number not in STEPS:
        raise argparse.ArgumentTypeError(f"there are steps 1 to 4, and no {word}")
    return number


def main(argv):
    parser = argparse.ArgumentParser("python -m tests.exercises", description=__doc__)
    parser.add_argument("steps", nargs="*", type=step_number, metavar="STEP", help="1 to 4, or step_1; without: all")
    status = 0
    for number in parser.parse_args(argv).steps or STEPS:
        try:
            print(f"step_{number}: done. {STEPS[number]()}")
        except Exception as e:  # it is the student's code, which may raise whatever it likes
            name = "" if isinstance(e, AssertionError) else f"{type(e).__name__}: "
            print(f"step_{number}: {name}{e}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
