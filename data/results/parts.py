"""
What is the symmetry of W_qk a symmetry of: of positions, or of contents?

    python -m data.results.parts out/tiny out/tiny_decoder --csv parts.csv    # folders of train.py: ARM-SEED, or ARM
    python -m data.results.parts parts.csv --plot parts.png                   # from that file alone: printed, drawn

For each layer this splits W_qk = M by the inputs x (N, T, C) that the layer has for validation batches:

    position directions    a few orthonormal columns U (C, b), which hold 95 % of what changes from one position to the
                           next: of the means of x over all texts, a vector for each position, less their own mean
    the rest               V (C, C - b), orthogonal to them

and scores U^T M U and V^T M V like M itself. COLUMNS says what is in the table. Biases, rotary positions and qk_norm
are left out.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import pandas
import torch
from tqdm import tqdm

from config import ConfigError
from data import options
from data.atomic import replacing
from data.batches import get_batch, open_corpus
from data.results import runs
from data.results.checkpoints import open_run
from data.tokens import DataError

SHARE = 0.95  # of the variance of the mean inputs
N_TOKENS = 2**16  # of validation, in at most N_SEQUENCES
N_SEQUENCES = 1024
N_DRAWS = 64
LEAST_OF_INPUTS = 0.01  # below it the inputs of an arm tell no position, and its position directions are not drawn
KEYS = ["arm", "seed", "layer"]  # of a row
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
)


def symmetry(m):
    """Returns tr(MM) / |M|^2 of m (..., n, n), as analyze.py does, which imports this folder."""
    return (m * m.mT).sum((-2, -1)) / m.square().sum((-2, -1))


def random_symmetries(m, b):
    """Returns symmetries (N_DRAWS,) of m (n, n) between b random directions. If b is small, many are high by chance."""
    drawn = torch.randn((N_DRAWS, len(m), b), generator=torch.Generator().manual_seed(0), dtype=m.dtype)
    bases = torch.linalg.qr(drawn).Q  # (N_DRAWS, n, b), orthonormal columns
    return symmetry(bases.mT @ m @ bases)


def position_directions(x):
    """
    Returns position directions U (C, b) and the rest V (C, C - b), and the share of the variance of x (N, T, C) that is
    of its means by position.
    """
    x = x - x.mean((0, 1))
    means = x.mean(0)  # (T, C)
    _, s, vt = torch.linalg.svd(means, full_matrices=True)  # (min(T, C),), (C, C)
    held = s.square().cumsum(0) / s.square().sum()  # by the first directions
    b = int((held < SHARE).sum()) + 1
    of_inputs = means.square().sum(-1).mean() / x.square().sum(-1).mean()
    return vt[:b].mT, vt[b:].mT, of_inputs


def split_layer(x, m):
    """Returns the row of a layer, a dict of COLUMNS. x (N, T, C): its inputs; m (C, C): its W_qk"""
    u, v, of_inputs = position_directions(x)  # (C, b), (C, C - b)
    b = u.shape[1]
    # If a token is x = U z, the logit x_i^T M x_j is z_i^T (U^T M U) z_j.
    on_positions = u.mT @ m @ u  # (b, b)
    on_rest = v.mT @ m @ v  # (C - b, C - b)
    drawn = random_symmetries(on_rest, b)
    norm = m.square().sum()
    row = dict(symmetry=symmetry(m), directions=b, of_inputs=of_inputs, on_positions=symmetry(on_positions),
               share_positions=on_positions.square().sum() / norm, chance=1 / b, chance_std=math.sqrt(2) / b,
               on_random=drawn.mean(), random_std=drawn.std(), on_rest=symmetry(on_rest),
               share_rest=on_rest.square().sum() / norm)
    return {name: float(value) for name, value in row.items()}


@torch.no_grad()
def split_run(folder):
    """Returns the table of a run of train.py: a row for each layer."""
    model, cfg, meta = open_run(folder)
    corpus = open_corpus(cfg)
    runs.require(corpus.meta["sha256"] == meta["sha256"], f"{cfg.data_dir} is not the corpus of {folder}: prepare that")
    n_batches = math.ceil(min(N_SEQUENCES, N_TOKENS / cfg.block_size) / cfg.batch_size)
    whole = np.arange(cfg.batch_size)  # all rows of a batch
    batches = []
    for i in range(n_batches):
        idx, *_ = get_batch(cfg, corpus, "val", i, whole)
        batches.append(idx)
    inputs = []  # of the attention of each layer, (N, T, C) each
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda attn, given: inputs.append(given[0]))
    model.hidden(torch.cat(batches))  # of idx (N, T)
    arm = Path(folder).resolve().name.removesuffix(f"-{cfg.seed}")
    rows = []
    for layer, (block, x) in enumerate(zip(model.blocks, inputs)):
        m = block.attn.q.weight.T.double() @ block.attn.k.weight.double()  # (C, C); W_q W_k^T
        rows.append(dict(arm=arm, seed=cfg.seed, layer=layer) | split_layer(x.double(), m))
    return pandas.DataFrame(rows).set_index(KEYS)


def read(path):
    """Returns the table of a run, or of a file that --csv has written. Raises RunError if it is another file."""
    if not path.endswith(".csv"):
        return split_run(path)
    try:
        # An arm may be called null, which pandas would read as nan.
        table = pandas.read_csv(path, dtype=dict(arm=str), na_values=[""], keep_default_na=False)
        if "head" in table:  # older files have rows of heads, too
            table = table[table["head"].isna()]
        return table.set_index(KEYS).reindex(columns=COLUMNS).astype(float)  # they may lack a column
    except (ValueError, KeyError) as e:
        raise runs.RunError(f"{path} is no file that --csv has written: {str(e).strip():.100}") from e


def plot(table, path):
    """Draws for each arm the symmetry of W_qk, on its position directions, and on the rest. table: of read"""
    from data.figures import ENCODER, OTHERS, figure, put_legend  # here, because matplotlib takes a second
    from data.results.figures_runs import put_names

    of_runs = table.groupby(["arm", "seed"], sort=False).median()  # over layers
    tells_positions = of_runs.groupby("arm")["of_inputs"].transform("median") >= LEAST_OF_INPUTS
    of_runs["on_positions"] = of_runs["on_positions"].where(tells_positions)
    arms = of_runs.index.unique("arm")
    with figure(path, 1, 1, 1 + 0.35 * len(arms), "Symmetry of W_qk, and of its parts") as ((axis,),):
        drawn = dict(symmetry=("all of $W_{qk}$", "black"), on_positions=("between position directions", OTHERS[0]),
                     on_rest=("between all other directions", ENCODER))
        for shift, (column, (label, colour)) in zip((-0.2, 0, 0.2), drawn.items()):
            seeds = of_runs.groupby("arm", sort=False)[column].agg(["mean", "min", "max"])
            y = np.arange(len(arms)) + shift
            axis.hlines(y, seeds["min"], seeds["max"], color=colour, lw=2, alpha=0.4)
            axis.plot(seeds["mean"], y, "o", color=colour, label=label)
        axis.axvline(0, color="0.8", lw=0.8, zorder=0)
        put_names(axis, arms)
        axis.set(xlim=(-0.5, 1.05), xlabel="symmetry, median over layers")
        put_legend([axis], title="dots: mean over seeds; bars: lowest to highest seed\n"
                                 "without an orange dot: the inputs of this model hold no positions")


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.results.parts", description=__doc__.splitlines()[1])
    cli.add_argument("runs", nargs="+", help="folders of train.py, and files that --csv has written")
    cli.add_argument("--csv", metavar="FILE", help="keep the table")
    cli.add_argument("--plot", metavar="FILE", type=options.picture, help="draw symmetry and its parts")
    args = cli.parse_args(argv)
    try:
        table = pandas.concat(map(read, tqdm(args.runs)))
        runs.require(table.index.is_unique, "two runs have the same arm and seed: name each run once")
        if args.csv:
            with replacing(args.csv) as temporary:
                table.to_csv(temporary, float_format="%.4f")
        if args.plot:
            plot(table, args.plot)
    except (DataError, ConfigError, runs.RunError, OSError) as e:
        sys.exit(f"python -m data.results.parts: {e}")
    of_layers = table.groupby(["arm", "layer"], sort=False).median().dropna(axis="columns", how="all")
    print(of_layers.to_string(float_format="%.2f", na_rep=""))


if __name__ == "__main__":
    main()
