"""
What is the symmetry of W_qk a symmetry of? Of position or of content, and of the layer or of its heads.

    python -m data.results.parts out/tiny out/tiny_decoder --csv parts.csv    # folders of train.py: ARM-SEED, or ARM
    python -m data.results.parts parts.csv --plot parts.png                   # from that file alone: printed, drawn

For each layer and head this splits W_qk = M by the inputs x (N, T, C) that the layer has for validation batches:

    position directions    a few orthonormal columns U (C, b), which hold 95 % of what changes from one position to the
                           next: of the means of x over all texts, a vector for each position, less their own mean
    the rest               V (C, C - b), orthogonal to them
    in the data's metric   S (C, C) with S S^T = the covariance of x: S^T M S are the logits between typical inputs

and scores U^T M U, V^T M V and S^T M S like M itself. COLUMNS says what is in the table. Biases are left out.
"""

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas
import torch
from tqdm import tqdm

from config import ConfigError
from data.batches import get_batch, open_corpus
from data.results import options, runs
from data.tokens import DataError, replacing
from data.trained import open_run
from model import rotate

SHARE = 0.95  # of the variance of the mean inputs
N_TOKENS = 2**16  # of validation, in at most N_SEQUENCES
LEAST_OF_INPUTS = 0.01  # below it the inputs of an arm tell no position, and its position directions are not drawn
N_SEQUENCES = 1024
N_DRAWS = 64
COLUMNS = dict(
    symmetry="of M",
    directions="b, the number of position directions",
    of_inputs="share of the inputs' variance that is of their means by position",
    on_positions="symmetry of U^T M U",
    share_positions="|U^T M U|^2 / |M|^2",
    chance="symmetry of a random matrix between b directions, on average: 1 / b",
    chance_std="its standard deviation: sqrt(2) / b",
    on_random="symmetry of M between b random directions of the rest, on average over N_DRAWS draws",
    random_std="its standard deviation",
    on_rest="symmetry of V^T M V",
    share_rest="|V^T M V|^2 / |M|^2",
    on_data="symmetry of S^T M S",
    positive="share of the positive eigenvalues in the squared norm of the symmetric part: 1 if like attends to like",
    turned="rotary: the symmetry of W_q R W_k^T at the distance where it is highest, R being the turn at a distance",
)


# ---- one matrix --------------------------------------------------------------------------------------------------


def symmetry(m):
    """tr(MM) / |M|^2 of m (..., n, n), as in analyze.py, which imports this folder and cannot be imported here."""
    return (m * m.mT).sum((-2, -1)) / m.square().sum((-2, -1))


def on_basis(m, basis):
    """
    M (C, C) as the tokens of a subspace see it: if a token is x = B z, with B (C, b), the logit x_i^T M x_j is
    z_i^T (B^T M B) z_j. With orthonormal columns |B^T M B|^2 is the part of |M|^2 between directions of the subspace.
    """
    return basis.mT @ m @ basis


def random_symmetries(m, rest, b):
    """
    The symmetry of M between b random directions of the rest, (C, C - b) -> (N_DRAWS,).

    Position directions are few, and few directions often score high by chance. These are as few, without positions.
    """
    drawn = torch.randn((N_DRAWS, rest.shape[1], b), generator=torch.Generator().manual_seed(0), dtype=rest.dtype)
    bases = rest @ torch.linalg.qr(drawn).Q  # (N_DRAWS, C, b), orthonormal columns
    return symmetry(on_basis(m, bases))


def positive_share(m):
    """The share of |M_s|^2, M_s = (M + M^T) / 2, that its positive eigenvalues have: |M_s|^2 is the sum of squares."""
    eigenvalues = torch.linalg.eigvalsh((m + m.mT) / 2)  # (C,)
    return eigenvalues.clamp_min(0).square().sum() / eigenvalues.square().sum()


def turned_symmetry(w_q, w_k, n_distances):
    """The highest symmetry of sum_h W_q,h R_d W_k,h^T over distances d, R_d being the rotary turn."""
    turned = [rotate(w_k[None], torch.full((1, w_k.shape[1]), d))[0] for d in range(n_distances)]  # (H, C, D) each
    return max(symmetry((w_q @ w.mT).sum(0)) for w in turned)


# ---- the inputs of a layer, x (N, T, C) --------------------------------------------------------------------------


def position_directions(x):
    """An orthonormal basis (C, C), position directions first; their number b; their share of the variance."""
    means = x.mean(0) - x.mean((0, 1))  # (T, C)
    _, s, vt = torch.linalg.svd(means, full_matrices=True)  # (min(T, C),), (C, C)
    held = s.square().cumsum(0) / s.square().sum()
    of_inputs = means.square().sum(-1).mean() / (x - x.mean((0, 1))).square().sum(-1).mean()
    return vt.mT, int((held < SHARE).sum()) + 1, of_inputs


def root_of_covariance(x):
    """S (C, C) with S S^T the covariance of all tokens."""
    values, vectors = torch.linalg.eigh(torch.cov(x.flatten(0, 1).T, correction=0))
    return vectors * values.clamp_min(0).sqrt()


# ---- a layer, a run ----------------------------------------------------------------------------------------------


@torch.no_grad()
def split_layer(x, w_q, w_k, rotary=False):
    """
    The rows of a layer and of its heads, as dicts of COLUMNS: x (N, T, C), w_q (H, C, D), w_k (Hkv, C, D).
    Heads that share a key head are added first, as in the layer's W_qk.
    """
    x, w_q, w_k = x.double(), w_q.double(), w_k.double()
    basis, n_directions, of_inputs = position_directions(x)
    u, v = basis[:, :n_directions], basis[:, n_directions:]  # (C, b), (C, C - b)
    s = root_of_covariance(x)
    w_k = w_k.repeat_interleave(len(w_q) // len(w_k), 0)  # (H, C, D): each query head with its key head
    heads = w_q @ w_k.mT  # (H, C, C)

    def row(m):
        on_u, on_v = on_basis(m, u), on_basis(m, v)
        norm = m.square().sum()
        return dict(symmetry=symmetry(m), on_positions=symmetry(on_u), share_positions=on_u.square().sum() / norm,
                    on_rest=symmetry(on_v), share_rest=on_v.square().sum() / norm, on_data=symmetry(on_basis(m, s)),
                    positive=positive_share(m))

    of_layer = row(heads.sum(0))
    drawn = random_symmetries(heads.sum(0), v, n_directions)
    of_layer |= dict(directions=n_directions, of_inputs=of_inputs, chance=1 / n_directions,
                     chance_std=math.sqrt(2) / n_directions, on_random=drawn.mean(), random_std=drawn.std())
    if rotary:
        of_layer["turned"] = turned_symmetry(w_q, w_k, x.shape[1])
    rows = [(None, of_layer), *enumerate(map(row, heads))]
    return [dict(head=head) | {name: float(value) for name, value in found.items()} for head, found in rows]


@torch.no_grad()
def split_run(folder):
    """The rows of a run of train.py, with its arm and seed."""
    model, cfg, meta = open_run(folder)
    corpus = open_corpus(cfg)
    runs.require(corpus.meta["sha256"] == meta["sha256"], f"{cfg.data_dir} is not the corpus of {folder}: prepare that")
    runs.require(not cfg.qk_norm, f"{folder} has qk_norm, so its logits are not products with W_qk")
    batches = range(math.ceil(min(N_SEQUENCES, N_TOKENS / cfg.block_size) / cfg.batch_size))
    whole = np.arange(cfg.batch_size)  # all rows of a batch
    idx = torch.cat([get_batch(cfg, corpus.meta, corpus.val, 0, i, whole)[0] for i in batches])  # (N, T)
    layers = []

    def keep(attn, inputs):  # (N, T, C), before the attention of a layer
        w_q = attn.q.weight.unflatten(0, (cfg.n_head, -1)).mT  # (H, C, D)
        w_k = attn.k.weight.unflatten(0, (cfg.n_head, -1)).mT
        layers.append((inputs[0], w_q, w_k, cfg.positions == "rotary"))

    for block in model.blocks:
        block.attn.register_forward_pre_hook(keep)
    model.hidden(idx)
    labels = dict(arm=Path(folder).resolve().name.removesuffix(f"-{cfg.seed}"), seed=cfg.seed)
    return [labels | dict(layer=i) | row for i, layer in enumerate(layers) for row in split_layer(*layer)]


def write(rows, path):
    with replacing(path) as temporary:
        pandas.DataFrame(rows).astype(dict(head="Int64")).to_csv(temporary, index=False, float_format="%.4f")


def read(path):
    """The rows of a run, or of a file that `write` has written. RunError: it is another file."""
    if not path.endswith(".csv"):
        return pandas.DataFrame(split_run(path))
    try:
        types = defaultdict(lambda: float, arm=str, seed=int, layer=int)
        table = pandas.read_csv(path, dtype=types, na_values=[""], keep_default_na=False)
        return table.astype({name: types[name] for name in ("arm", "seed", "layer", "head", "symmetry")})
    except (ValueError, KeyError) as e:
        raise runs.RunError(f"{path} is no file that --csv has written: {str(e).strip():.100}") from e


# ---- the command -------------------------------------------------------------------------------------------------


def plot_parts(table, path):
    """For each arm the symmetry of W_qk, on its position directions, and on the rest: median over layers."""
    # Here, because matplotlib takes a second.
    from data.results.figures import ENCODER, OTHERS, figure, in_words, put_legend

    of_layers = table[table["head"].isna()].groupby(["arm", "seed"], sort=False).median(numeric_only=True)
    tells_positions = of_layers.groupby("arm")["of_inputs"].transform("median") >= LEAST_OF_INPUTS
    of_layers["on_positions"] = of_layers["on_positions"].where(tells_positions)
    arms = list(dict.fromkeys(table["arm"]))
    with figure(path, 1, 1, 1 + 0.35 * len(arms), "Symmetry of W_qk, and of its parts") as ((axis,),):
        drawn = dict(symmetry=("all of $W_{qk}$", "black"), on_positions=("between position directions", OTHERS[0]),
                     on_rest=("between all other directions", ENCODER))
        for shift, (column, (label, colour)) in zip((-0.2, 0, 0.2), drawn.items()):
            seeds = of_layers.groupby("arm")[column].agg(["mean", "min", "max"]).loc[arms]
            y = np.arange(len(arms)) + shift
            axis.hlines(y, seeds["min"], seeds["max"], color=colour, lw=2, alpha=0.4)
            axis.plot(seeds["mean"], y, "o", color=colour, label=label)
        axis.axvline(0, color="0.8", lw=0.8, zorder=0)
        axis.set(yticks=range(len(arms)), yticklabels=map(in_words, arms))
        axis.set(ylim=(len(arms) - 0.5, -0.5), xlim=(-0.5, 1.05), xlabel="symmetry, median over layers")
        key = "dots: mean over seeds; bars: lowest to highest seed"
        if of_layers["on_positions"].isna().any():
            key += "\nno orange dot: the inputs of this model hold no positions"
        put_legend([axis], title=key)


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.results.parts", description=__doc__.splitlines()[1])
    cli.add_argument("runs", nargs="+", help="folders of train.py, and files that --csv has written")
    cli.add_argument("--csv", metavar="FILE", help="keep the table")
    cli.add_argument("--plot", metavar="FILE", type=options.picture, help="draw symmetry and its parts")
    args = cli.parse_args(argv)
    try:
        table = pandas.concat([read(path) for path in tqdm(args.runs)], ignore_index=True)
        is_repeated = table.duplicated(["arm", "seed", "layer", "head"]).any()
        runs.require(not is_repeated, "two runs have the same arm and seed: name each run once")
        if args.csv:
            write(table, args.csv)
        if args.plot:
            plot_parts(table, args.plot)
    except (DataError, ConfigError, runs.RunError, OSError) as e:
        sys.exit(f"python -m data.results.parts: {e}")
    of_layers = table[table["head"].isna()].groupby(["arm", "layer"], sort=False)
    print(of_layers.median(numeric_only=True).filter(COLUMNS).to_string(float_format="%.2f", na_rep=""))


if __name__ == "__main__":
    main()
