"""
Checks the four steps of steps.py, or those that are named: python -m tests.exercises 2 3

It prints a line for each: what it shows, or what is missing or wrong. Exit status: 0 if all of these are done, else 1.
"""

import sys
import traceback
from functools import partial
from unittest import mock

import numpy as np
import torch

import analyze
from tests.exercises import micro, steps

close = partial(np.allclose, atol=1e-7)
near = partial(np.allclose, rtol=1e-3, atol=1e-4)  # for float32, torch's default


class WrongAnswer(Exception):
    """Its text is what the student reads."""


def expect(is_right, otherwise):
    if not is_right:
        raise WrongAnswer(otherwise)


def answer(name, *given):
    """Returns what the student's function with this name returns."""
    found = getattr(steps, name)(*given)
    expect(found is not None, f"{name}(...) returns nothing.")
    return found


def step_1():
    m = torch.randn(50, 50)
    s, n = answer("parts", m)
    expect(near(s, s.T) and near(n, -n.T) and near(s + n, m), "S = S^T, N = -N^T and S + N = M must all be true.")
    for wanted in 1, 0.9, 0.3, 0, -0.5, -1:
        found = analyze.symmetry(answer("with_symmetry", wanted).double())
        expect(abs(found - wanted) < 1e-4, f"with_symmetry({wanted}) has a symmetry of {found:.3f}. The size of a S + "
               "b N is a^2 times that of S plus b^2 times that of N: the squares of a and b share the size of M.")
    return "The products of S and N cancel, and what remains is tr(MM) / |M|^2. A random M has 1/n on average."


def step_2():
    # a long column, and the common mistakes: Eq. 17 itself, rows for columns, and a division by zero
    m = torch.randn(512, 512)
    m[:, 7] *= 4
    found, expected = answer("directionality", m), analyze.directionality(m)
    expect(not near(found, analyze.directionality_eq17(m)), "Whole norms are added up, as in Eq. 17.")
    expect(not near(found, -expected), "Rows and columns are exchanged: norm(dim=0) is of columns.")
    expect(near(found, expected), f"A matrix with a heavy column scores {expected:.3f}, and not {found:.3f}.")
    flat = answer("directionality", torch.eye(8))
    expect(flat == 0, f"In the identity nothing stands out, so the score is 0, and yours is {flat}.")

    # where Eq. 17 has the wrong sign
    m = answer("wrong_sign")
    d, printed = analyze.directionality(m), analyze.directionality_eq17(m)
    expect(d < 0 < printed, f"Yours scores {d:.3f}, and {printed:.3f} by Eq. 17: make the first < 0 < the second.")
    return (f"Yours scores {d:.2f}, but {printed:+.2f} by Eq. 17. The long column lifts the threshold of columns and "
            "counts once. Every row that chance lifts above the threshold of rows counts as a whole.")


def step_3():
    # autograd knows the answer, and also a common mistake: what it would be if tokens saw both sides
    x, targets = torch.randn(2, 7, 5)
    m = torch.zeros(5, 5, requires_grad=True)
    (expected,) = torch.autograd.grad(steps.loss(m, x, targets), m)
    (both_sides,) = torch.autograd.grad(((x @ m @ x.T).softmax(-1) @ x - targets).square().sum() / 2, m)
    with torch.inference_mode():  # autograd is off
        found = answer("gradient_at_zero", x, targets)
    expect(not near(found, expected.T), "Yours is transposed: queries are rows of M, keys are its columns.")
    expect(not near(found, both_sides), "Yours is right for tokens that see both sides. Here token i sees i tokens, "
           "if we count from 1: so what are its alpha, and which mean is x_j compared with?")
    expect(near(found, expected), "Yours is not the gradient of autograd. It is a sum over pairs. What is beta_ij, "
           "the gradient by a_ij? For each i they add up to 0.")

    # a layer can be symmetric without any symmetric head
    heads = analyze.wqk(*answer("two_heads"))  # (2, C, C)
    of_heads, of_sum = analyze.symmetry(heads), analyze.symmetry(heads.sum(0))
    expect((of_heads.abs() < 0.1).all() and of_sum > 0.99, f"The heads are at {of_heads[0]:.2f} and {of_heads[1]:.2f}, "
           f"and should be near 0. Their sum is at {of_sum:.2f}, and should be near 1.")
    return ("dL/dM = sum_ij beta_ij x_i^T x_j, beta_ij = delta_i . (x_j - mean of what i sees) / i, and 0 if j > i. "
            "No pair has a mirror image. A layer can be symmetric without any symmetric head, so measure both.")


def step_4():
    # micro.py calls this for its own beta_of, with one argument less
    def beta_of(alpha, dalpha):
        found = answer("beta", alpha, dalpha, micro.C)
        expect(close(found.sum(-1), 0.0), "The beta_ij of a token i should add up to 0: if a_ij grows, alpha_ij "
               "grows, and every other alpha_ik falls.")
        return found

    # the student's functions work inside of micro.py, and the loss moves as they say, or it does not
    found, expected = gradients_of_micro(False, beta_of=beta_of, gradient_of_M=partial(answer, "gradient"))["M"]
    expect(not close(found, expected.T), "dL/dM is transposed: queries are rows of M, keys are its columns.")
    expect(not close(found, expected * 2), "dL/dM is sqrt(C) times too large: a_ij is divided by it.")  # C = 4 here
    expect(close(found, expected), "dL/dM is not what finite differences of the loss say.")
    return ("This is all that moves M. In a real model dL/dW_q = G W_k and dL/dW_k = G^T W_q, where G is dL/dM. "
            "So a step moves W_qk by -(W_q W_q^T G + G W_k W_k^T), which need not be symmetric if G is.")


def gradients_of_micro(causal, **functions):
    """
    Returns {name: (gradient, finite differences of the loss)} for every weight in micro.py. Its sizes are so small here
    that each entry can be moved. functions: take the place of its own.
    """
    with mock.patch.multiple(micro, B=2, T=6, C=4, K=2, V=9, MASK=8, **functions):
        rng = np.random.default_rng(0)
        w = {name: rng.normal(0, 0.5, x.shape) for name, x in micro.new_weights(rng).items()}  # float64
        run = partial(micro.loss_and_gradients, w, *micro.get_batch(rng.integers(0, 8, 99), rng), causal)
        _, gradients = run()

        # move each entry up and down by a millionth: (loss above - loss below) / (2 millionths)
        found = {}
        for name, x in w.items():
            differences = np.zeros_like(x)
            for place in np.ndindex(x.shape):
                for moved in 1e-6, -1e-6:
                    x[place] += moved
                    differences[place] += run()[0] / (2 * moved)
                    x[place] -= moved
            found[name] = gradients[name], differences
        return found


STEPS = {"1": step_1, "2": step_2, "3": step_3, "4": step_4}


def main(argv):
    if "-h" in argv or "--help" in argv:
        return print(__doc__.strip())
    torch.manual_seed(0)
    if not STEPS.keys() >= set(argv):
        return f"python -m tests.exercises: expected numbers of steps, {', '.join(STEPS)}, got {' '.join(argv)}"
    status = 0
    for number in argv or STEPS:
        try:
            print(f"step {number}: done. {STEPS[number]()}")
        except WrongAnswer as e:
            print(f"step {number}: {e}")
            status = 1
        except Exception:  # in the student's code: the traceback names the line
            print(f"step {number}:", traceback.format_exc())
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
