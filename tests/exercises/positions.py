"""One head that compares positions and nothing else becomes symmetric: python tests/exercises/positions.py (seconds)"""

import argparse

import torch
import torch.nn.functional as F

T, V, N = 12, 20, 1000  # places, kinds of tokens, texts


def main():
    # texts in which a token repeats the one before with probability 0.8
    torch.manual_seed(0)
    text = torch.randint(V, (N, T))
    for t in range(1, T):
        text[:, t] = torch.where(torch.rand(N) < 0.8, text[:, t - 1], text[:, t])

    both_sides = ~torch.eye(T, dtype=torch.bool)  # each token is guessed from all others
    causal = torch.ones(T, T).tril(-1).bool()  # or from those before it

    # gradient descent on P alone: nothing else is learned
    for name, visible in ("both sides", both_sides), ("causal", causal):
        P = torch.zeros(T, T, requires_grad=True)  # W_qk of one-hot positions: an entry for each pair of places
        for step in range(60):
            alpha = P.masked_fill(~visible, -1e9).softmax(-1)  # (T, T)
            logits = 4 * alpha @ F.one_hot(text, V).float()  # (N, T, V)
            loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), text[:, 1:].flatten())  # nothing is before token 0
            (gradient,) = torch.autograd.grad(loss, P)
            P.data -= 40 * gradient
        print(f"{name}: symmetry of P {(P * P.T).sum() / P.square().sum():.2f}, loss {loss:.2f}")
        print("what place 5 compares with places 2 to 8:", P[5, 2:9].detach().numpy().round(1))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
