"""
The paper in one file of numpy: a layer of attention, trained with a backward pass that is written out.

    python tests/exercises/micro.py              # an encoder: every token sees both sides
    python tests/exercises/micro.py causal       # causal attention: a token sees what comes before it, and itself
    python tests/exercises/micro.py causal 2     # another seed
    python tests/exercises/micro.py --seeds 8    # the last lines of eight seeds; also with a word: causal --seeds 8
    python tests/exercises/micro.py left         # both sides, but the two bytes to the left of each blank are hidden
                                                 # right: the two to the right; both: one on each side

The model fills in masked bytes in the source code of Python's standard library. Attention compares tokens through M,
which is W_qk = W_q W_k^T as one matrix. Every 100 steps a line shows the loss [nats/byte] and both scores of M.
Shapes: B sequences of T bytes, C dimensions, V different tokens. K bytes of each sequence are masked.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: for matrices this small threads only wait

import numpy as np

B, T, C, K = 64, 32, 64, 5
V, MASK = 257, 256  # the 256 bytes, and [MASK]
STEPS, LEARNING_RATE = 400, 2e-3
BESIDE = {"causal": (), "left": (-2, -1), "right": (1, 2), "both": (-1, 1)}  # what is hidden beside each blank, by word


def read_text():
    """The bytes of all modules of the standard library, one after the other: (N,)."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).astype(int)


def get_batch(text, rng, beside=()):
    """
    Returns idx (B, T), the tokens that the model sees; at (B, K), where it has to guess; targets (B, K).
    beside: offsets from these places, at which the model sees [MASK] as well, but does not have to guess.
    """
    start = rng.integers(0, len(text) - T, (B, 1))
    idx = text[start + np.arange(T)]  # (B, T)
    at = rng.random((B, T)).argsort(1)[:, :K]  # K different places of each sequence
    targets = np.take_along_axis(idx, at, 1)
    hidden = np.full((B, K), MASK)
    np.put_along_axis(idx, at, hidden, 1)
    for offset in beside:
        # subtle: beyond an end of the text, clip stops at the blank, or at its neighbour, and both are hidden anyway
        np.put_along_axis(idx, np.clip(at + offset, 0, T - 1), MASK, 1)
    return idx, at, targets


def new_weights(rng):
    shapes = dict(tok_emb=(V, C), pos_emb=(T, C), M=(C, C), values=(C, C), up=(C, 4 * C), down=(4 * C, C))
    stds = dict(tok_emb=0.1, pos_emb=0.1, M=0.02, values=0.05, up=C**-0.5, down=0.02)
    return {name: rng.normal(0, stds[name], shape).astype(np.float32) for name, shape in shapes.items()}


def norm(x):
    rms = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x / rms, rms  # rows of length sqrt(C)


def norm_backward(dy, y, rms):
    return (dy - y * (dy * y).mean(-1, keepdims=True)) / rms


def softmax(a):
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows(x):
    return x.reshape(-1, x.shape[-1])  # (B, T, n) -> (B T, n): gradients of weights are sums over all tokens


def beta_of(alpha, dalpha):
    """Prop. 2.2: beta_ij, the gradient by a_ij, compares j with the mean of all that i sees. Its rows add up to 0."""
    return alpha * (dalpha - (alpha * dalpha).sum(-1, keepdims=True)) / C**0.5  # (B, T, T)


def gradient_of_M(x, beta):
    """Eq. 8: dL/dM = sum_ij beta_ij x_i^T x_j, over all pairs of tokens of all sequences, (C, C)."""
    return (x.mT @ beta @ x).sum(0)


def loss_and_gradients(w, idx, at, targets, causal):
    """Returns the mean loss, a number, and its gradient of every array in w, by name."""
    # Forward. 1) tokens and positions are added
    x0 = w["tok_emb"][idx] + w["pos_emb"]  # (B, T, C)

    # 2) attention: each token receives a weighted mean of what it sees
    x, rms0 = norm(x0)  # row x_i is what attention knows of token i
    a = x @ w["M"] @ x.mT / C**0.5  # (B, T, T): a_ij = x_i M x_j^T, how much token i wants to see token j
    if causal:
        a = np.where(np.tri(T, dtype=bool), a, -1e9)
    alpha = softmax(a)  # (B, T, T), each row adds up to 1
    v = x @ w["values"]  # (B, T, C)
    x1 = x0 + alpha @ v  # (B, T, C)

    # 3) an MLP, each token by itself
    y, rms1 = norm(x1)
    h = np.maximum(y @ w["up"], 0)  # (B, T, 4C)
    z, rms2 = norm(x1 + h @ w["down"])  # (B, T, C)

    # 4) guess the masked tokens; the loss is the mean of -log p of the right ones
    masked = np.arange(B)[:, None], at  # the places where the loss looks
    p = softmax(z[masked] @ w["tok_emb"].T)  # (B, K, V)
    right = np.arange(B)[:, None], np.arange(K), targets
    loss = -np.log(p[right]).mean()

    # Backward: the same lines from the last to the first. dx is the gradient of the loss by x.
    # 4) softmax and log together: p, less 1 at the right token
    g = {}
    p[right] -= 1
    dlogits = p / (B * K)  # (B, K, V)
    dz = np.zeros_like(z)  # only masked tokens have a loss, so here only they get a gradient as queries
    dz[masked] = dlogits @ w["tok_emb"]
    dx2 = norm_backward(dz, z, rms2)  # (B, T, C)

    # 3) the MLP: h > 0 is where its ReLU lets gradients pass
    g["down"] = rows(h).T @ rows(dx2)
    dh = (dx2 @ w["down"].T) * (h > 0)
    g["up"] = rows(y).T @ rows(dh)
    dx1 = dx2 + norm_backward(dh @ w["up"].T, y, rms1)  # (B, T, C); + because x1 also goes around the MLP

    # 2) attention
    dv = alpha.mT @ dx1
    g["values"] = rows(x).T @ rows(dv)
    dalpha = dx1 @ v.mT  # (B, T, T): what token i would gain from token j
    beta = beta_of(alpha, dalpha)
    g["M"] = gradient_of_M(x, beta)
    dx = dv @ w["values"].T + beta @ x @ w["M"].T + beta.mT @ x @ w["M"]  # x is value, query and key
    dx0 = dx1 + norm_backward(dx, x, rms0)

    # 1) positions; and tokens, which are used twice
    g["pos_emb"] = dx0.sum(0)
    g["tok_emb"] = rows(dlogits).T @ rows(z[masked])  # as output
    np.add.at(g["tok_emb"], idx, dx0)  # and as input
    return loss, g


def symmetry(m):
    """1 if M = M^T, -1 if M = -M^T, near 0 if M is random."""
    return (m * m.T).sum() / (m**2).sum()


def directionality(m):
    """1 if only rows stand out, -1 if only columns do: by how much norms exceed their mean plus two deviations."""
    rows, columns = np.linalg.norm(m, axis=1), np.linalg.norm(m, axis=0)
    r, c = [np.maximum(n - n.mean() - 2 * n.std(ddof=1), 0).sum() for n in (rows, columns)]
    return (r - c) / (r + c) if r + c > 0 else 0.0


def main(argv, shown=range(0, STEPS + 1, 100)):
    """Trains, prints a line at the steps that are shown, and returns the weights at the end."""
    if "-h" in argv or "--help" in argv:
        return print(__doc__.strip())
    if len(argv) > 1 and argv[-2] == "--seeds" and argv[-1].isdigit():
        for seed in range(1, int(argv[-1]) + 1):
            print(f"seed {seed}: ", end="")
            main([*argv[:-2], str(seed)], [STEPS])
        return

    word = argv[0] if argv and argv[0] in BESIDE else ""
    seeds = argv[1:] if word else argv
    causal, beside = word == "causal", BESIDE.get(word, ())
    if len(seeds) > 1 or not "".join(seeds or ["1"]).isdigit():
        sys.exit(f"micro.py: expected [causal | left | right | both] [SEED | --seeds N], got {' '.join(argv)}")
    rng = np.random.default_rng(int(seeds[0]) if seeds else 1)
    text, w, losses = read_text(), new_weights(rng), []

    # Adam needs the running mean of the gradients, and of their squares
    mean = {name: np.zeros_like(x) for name, x in w.items()}
    square = {name: np.zeros_like(x) for name, x in w.items()}
    for step in range(STEPS + 1):
        loss, g = loss_and_gradients(w, *get_batch(text, rng, beside), causal)
        losses.append(loss)
        if step in shown:
            of_M = f"symmetry of M {symmetry(w['M']):+.2f}  directionality {directionality(w['M']):+.2f}"
            print(f"step {step:3}  loss {np.mean(losses[-50:]):.2f}  {of_M}", flush=True)

        # Adam without the correction for its first steps
        for name in w:
            mean[name] += 0.1 * (g[name] - mean[name])
            square[name] += 0.01 * (g[name] ** 2 - square[name])
            w[name] -= LEARNING_RATE * mean[name] / (np.sqrt(square[name]) + 1e-8)
    return w


if __name__ == "__main__":
    main(sys.argv[1:])
