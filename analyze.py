"""
Symmetry and directionality of W_qk = W_q W_k^T, in pretrained models and in runs of train.py.

    python analyze.py --hf bert-base gpt2    # names of data/pretrained/models.csv, Hub ids, or folders
    python analyze.py --hf gpt2-xl --per_head --csv heads.csv --plot gpt2.png
    python analyze.py --hf ./strange --q 'blocks.{i}.attn.wq.weight' --k 'blocks.{i}.attn.wk.weight' --heads 32,8
    python analyze.py --hf EleutherAI/pythia-160m --revisions 'step*' --limit 20 --plot pythia.png
    python analyze.py --hf out/tiny --revisions 'ckpt-*' --matrices wqk.gif    # of train.py --keep=99
    python analyze.py --paper --offline --plot paper.png    # the published scores, corrected; no network
    python analyze.py --runs out/tiny out/tiny_decoder --plot runs.png

In a notebook: score_model("gpt2"), or scores(q.weight.T, k.weight.T) of two Linear layers in memory.
First come the two scores as formulas of W_qk, then the same from W_q and W_k alone, which is faster.

nn.Linear stores (out, in), so W_q = q.weight.T and wqk = q.weight.T @ k.weight, (C, C).
Rows are the query side, columns the key side. If columns dominate, directionality is below 0.
W_qk is made of the raw weights, without biases, rotary positions, scaling, and norms of queries and keys.

Shapes: C = n_embd, H query heads, Hkv key heads, D the size of a head, L layers. W_q and W_k are (C, r). r is D for one
head, and Hkv D for a layer: queries that share a key head are added first (layer_factors).
"""

import contextlib
import ctypes
import importlib.util
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

GAMMA = 2.0  # Eq. (18), (19): a norm is an outlier above mean + gamma standard deviations
N_SHOWN = 128  # pictures show this many rows and columns of a W_qk
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def answer_early(argv):
    """Answers --help and a mistake before torch is imported, which takes seconds."""
    sys.path.insert(0, str(Path(__file__).parent))  # `python -P` and `python -I` leave this folder out
    from data import options

    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until main(), Ctrl-C ends the program without a traceback
    options.parse(argv, __doc__, GAMMA)


if __name__ == "__main__":
    answer_early(sys.argv[1:])

import torch
from torch import Tensor


# ---- the two scores ----------------------------------------------------------------------------------------------
#
# Attention compares a token x_i (the query) with a token x_j (the key) by x_i W_qk x_j^T. Tokens are rows.


def wqk(w_q, w_k):
    """W_qk = W_q W_k^T, Eq. (1): (..., C, r), (..., C, r) -> (..., C, C). Of a layer: Eq. (S20)."""
    return w_q @ w_k.mT


def symmetry(m):
    """
    s = tr(MM) / |M|_F^2 of m (..., n, n): 1 if M = M^T, -1 if M = -M^T, 1/n on average if M is random.

    Eq. (15) without its leading 2, as in the paper's tables. nan for a zero matrix. float16 overflows: use m.float().
    """
    # Every matrix is the sum of a symmetric and a skew part, M = M_s + M_n:
    #     M_s = (M + M^T) / 2    i attends to j as j attends to i
    #     M_n = (M - M^T) / 2    what i adds to its attention to j, j takes from its attention to i
    # The parts are orthogonal, so |M|^2 = |M_s|^2 + |M_n|^2. The score compares the two:
    #     s = (|M_s|^2 - |M_n|^2) / |M|^2,    because |M_s|^2 - |M_n|^2 = sum_ij M_ij M_ji = tr(MM)
    trace = (m * m.mT).sum((-2, -1))
    return trace / m.square().sum((-2, -1))


def directionality(m, gamma=GAMMA):
    """
    d = (rows - columns) / (rows + columns) of m (..., n, n): 1 if only rows stand out, -1 if only columns, 0 if none.

    rows is the excess of the row norms: a norm counts by how much it exceeds mean + gamma * standard deviation of all
    row norms, or not at all. columns is the same of the columns. The published tables hold this variant.
    """
    # A row of W_qk belongs to one dimension of the query token, a column to one dimension of the key token. The paper
    # argues: under a causal mask a token is the key of all later tokens, so a few columns grow long, and d < 0.
    rows = excess(m.norm(dim=-1), gamma)  # (...)
    columns = excess(m.norm(dim=-2), gamma)  # (...)
    return balance(rows, columns)


def directionality_eq17(m, gamma=GAMMA):
    """
    The same as printed in the paper, Eq. (17)-(19): a norm above the threshold counts as a whole.

    Its sign can be wrong. Let one column be very long. It raises the threshold of the columns, so it is the only one
    above. Of the rows about 2 in 100 are above theirs by chance. Each is far shorter than that column, but counts as a
    whole too, and together they are more.
    """
    rows = outliers(m.norm(dim=-1), gamma)
    columns = outliers(m.norm(dim=-2), gamma)
    return balance(rows, columns)


def excess(norms, gamma):
    """(..., n) -> (...): by how much norms exceed the threshold, summed. As in the tables, std divides by n - 1."""
    # A norm that is barely above adds next to nothing, so one very long column outweighs many of those.
    threshold = find_threshold(norms, gamma, correction=1)
    return (norms - threshold).clamp_min(0).sum(-1)


def outliers(norms, gamma):
    """(..., n) -> (...): the sum of the norms above the threshold, Eq. (18), (19)."""
    threshold = find_threshold(norms, gamma, correction=0)
    return (norms * (norms > threshold)).sum(-1)


def find_threshold(norms, gamma, correction):
    """(..., n) -> (..., 1): mean + gamma std; std divides by n - correction. inf if all norms are equal."""
    mean = norms.mean(-1, keepdim=True)
    std = norms.std(-1, correction=correction, keepdim=True)
    is_rounding = std < 1e-5 * mean  # as of an orthogonal W_qk, whose norms are all 1
    return (mean + gamma * std).masked_fill(is_rounding, math.inf)


def balance(rows, columns):
    """(rows - columns) / (rows + columns), or 0 if nothing stands out on either side."""
    return torch.where(rows + columns == 0, 0.0, (rows - columns) / (rows + columns))


# ---- the same from the factors W_q and W_k -----------------------------------------------------------------------


class Scores(NamedTuple):
    """The scores of one W_qk, or tensors with the scores of many."""

    symmetry: Tensor
    directionality: Tensor
    directionality_eq17: Tensor

    def numbers(self):
        """{name: a number}, or of the scores of many {name: a list of numbers}, off the device."""
        return {name: values.tolist() for name, values in self._asdict().items()}


@torch.no_grad()
def scores(w_q, w_k, gamma=GAMMA):
    """
    The scores of W_qk = W_q W_k^T from W_q and W_k (..., C, r), tensors or arrays. nan for a zero matrix.
    Several W_q (H, C, r) may share one W_k (C, r). Of two Linear layers: scores(q.weight.T, k.weight.T). If these have
    grouped keys, which are fewer: scores(*layer_factors(split_heads(q.weight.T, H), split_heads(k.weight.T, Hkv))).

    They are computed in float64, on the device of W_q. data/grams.py mostly does without the (C, C) product.
    Raises ValueError if they differ in C or r.
    """
    w_q, w_k = (w if torch.is_tensor(w) else torch.as_tensor(w, device="cpu") for w in (w_q, w_k))
    if w_q.shape[-2:] != w_k.shape[-2:]:
        raise ValueError(f"expected W_q and W_k of the same (C, r), got {tuple(w_q.shape)} and {tuple(w_k.shape)}: "
                         "for grouped keys use what layer_factors returns")
    return scores_of(data_module("grams").Product(w_q, w_k), gamma)


def scores_of(product, gamma):
    """The scores of a grams.Product, which measures the symmetry and the norms of rows and columns."""
    s, row_norms, column_norms = product.measured  # (...), (..., C), (..., C)
    d = balance(excess(row_norms, gamma), excess(column_norms, gamma))
    eq17 = balance(outliers(row_norms, gamma), outliers(column_norms, gamma))
    # Of a zero matrix nothing stands out, and d would be 0. But it has no scores at all.
    return Scores(*(score.masked_fill(s.isnan(), math.nan) for score in (s, d, eq17)))


# ---- a layer and its heads ---------------------------------------------------------------------------------------


def layer_row(product, gamma):
    """The row of a layer in the table. limit: by chance 95 of 100 directionalities are between minus this and this."""
    chance = data_module("chance")
    n, r = product.w_q.shape
    # It depends on the singular values: if a few are large, directionality is far from 0 by chance.
    limit = chance.directionality_limit(n, chance.moments(product), gamma)
    return dict(head=None, n=n, r=r, limit=limit) | scores_of(product, gamma).numbers()


def head_rows(w_q, w_k, gamma):
    """The rows of the query heads of a layer, each with its key head: w_q (H, C, D), w_k (Hkv, C, D) -> a list."""
    n_kv_head, n, r = w_k.shape
    rows = []
    for queries, keys in zip(w_q.unflatten(0, (n_kv_head, -1)), w_k):  # (H / Hkv, C, D), (C, D): those that share it
        for values in zip(*scores(queries, keys, gamma)):  # of one head
            rows.append(dict(head=len(rows), n=n, r=r, limit=math.nan) | Scores(*values).numbers())
    return rows


@torch.no_grad()
def layer_factors(w_q, w_k):
    """
    The heads w_q (H, C, D) and w_k (Hkv, C, D) of a layer -> W_q and W_k (C, Hkv D), such that W_q W_k^T is the layer's
    W_qk = sum_h W_q,h W_k,g(h)^T, Eq. (S20). g(h) = h // (H / Hkv) is the key head of query head h.
    """
    # Six query heads and two key heads:      q0 q1 q2  q3 q4 q5
    #                                          \  |  /   \  |  /
    #                                             k0        k1
    # q0 k0^T + q1 k0^T + q2 k0^T = (q0 + q1 + q2) k0^T, so the queries of a group are added before the product.
    groups = w_q.unflatten(0, (len(w_k), -1)).mT  # (Hkv, H / Hkv, D, C)
    if groups.shape[1] > 1:
        # In float64, so that heads that nearly cancel lose no digit, and large ones do not overflow.
        w_q = torch.zeros_like(w_k.mT, dtype=torch.float64)  # (Hkv, D, C)
        for total, heads in zip(w_q, groups):  # (D, C), (H / Hkv, D, C)
            for head in heads:
                total += head
        w_q = w_q.mT  # (Hkv, C, D)
    return side_by_side(w_q), side_by_side(w_k)


def side_by_side(heads):
    """The heads (H, C, D) as one matrix (C, H D)."""
    return heads.mT.flatten(0, 1).mT  # if they are views of a Linear weight (H D, C), no number is copied


def split_heads(w, n_head):
    """(C, H D) -> (H, C, D): head h is columns h D to (h + 1) D of W_q or W_k."""
    return w.unflatten(-1, (n_head, -1)).movedim(-2, 0)


# ---- a model -----------------------------------------------------------------------------------------------------


class ScoredModel(NamedTuple):
    """What score_model returns. Printed, it is a table of its layers."""

    table: Any  # a DataFrame: one row for each layer, and with per_head for each head (scores_table.COLUMNS)
    shown: Any  # for pictures: an array, the N_SHOWN largest dimensions of W_qk of the last layer
    note: str  # how much was read, and what the user should know

    def __repr__(self):
        return data_module("pretrained.tables").layer_table(self.table)


def score_model(source, gamma=GAMMA, per_head=False, device="cpu", **layout):
    """
    Score every layer of a model: a name of data/pretrained/models.csv, a Hub id, a folder, a file, or a module in
    memory that has a config, as those of transformers.

        >>> model = score_model("out/tiny", per_head=True)
        >>> score_model("./strange", q="blocks.{i}.attn.wq.weight", k="blocks.{i}.attn.wk.weight", heads=(32, 8))

    layout: q and k, or qkv and order, with heads and transposed, if it is not known (data/pretrained/by_hand.py).
    Raises CheckpointError, with one line that says what to do, if the model cannot be read.
    """
    files, by_hand = data_module("pretrained.files"), data_module("pretrained.by_hand")
    files.require(0 <= gamma < math.inf, f"gamma = {gamma}, expected a number of standard deviations")
    hand = by_hand.read_hand(**layout)
    is_module = isinstance(source, torch.nn.Module)
    name = type(source).__name__ if is_module else data_module("names").as_text(str(source))
    rows = []
    # Whatever the user has set, new tensors are on the CPU, and nothing is rounded to fewer bits.
    with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        opened = data_module("pretrained.sources").open_checkpoint(source)
        shapes = {key: tuple(tensor.shape) for key, tensor in opened.tensors.items()}
        stacks, notes = data_module("pretrained.layouts").find_stacks(opened.config, shapes, hand)  # where q and k are
        for stack, layer, *heads in read_layers(opened, stacks, name):
            w_q, w_k = [w.to(device) for w in heads]  # (H, C, D), (Hkv, C, D)
            product = data_module("grams").Product(*layer_factors(w_q, w_k))  # W_qk of the layer
            found = [layer_row(product, gamma)] + (head_rows(w_q, w_k, gamma) if per_head else [])
            is_zero = math.isnan(found[0]["symmetry"])
            files.require(not is_zero, f"{layer.names[0]}: W_qk of this layer is zero")
            rows += [dict(stack=stack.name, causal=stack.causal, layer=layer.index) | row for row in found]
        shown = largest_dimensions(product)  # of the last layer
    # The columns that are the same in all rows. How much was read is told, but is no property of the model.
    common = dict(model=name, params=opened.n_params, layout=str(hand or ""), note=", ".join(notes), gamma=gamma)
    told = ", ".join(opened.notes + notes)
    return ScoredModel(data_module("pretrained.scores_table").score_table(rows, common), shown, told)


def read_layers(opened, stacks, name):
    """Yields for each layer of a checkpoint its stack, the Layer, and its heads w_q (H, C, D) and w_k (Hkv, C, D)."""
    layers = [(stack, layer) for stack in stacks for layer in stack.layers]
    # A model may be larger than the memory. So only q and k are read, and only a few layers ahead.
    stream = opened.stream([layer.names for _, layer in layers])
    for (stack, layer), tensors in zip(layers, data_module("names").bar(stream, name, "layer", len(layers))):
        yield stack, layer, *layer.heads(tensors)


def largest_dimensions(product):
    """A grams.Product -> an array (N, N): W_qk of its N_SHOWN largest dimensions, for pictures."""
    _, row_norms, column_norms = product.measured
    lengths = row_norms.square() + column_norms.square()  # (C,), of both: a mirror image stays one
    longest = lengths.argsort(descending=True)[:N_SHOWN]
    return wqk(product.w_q[longest], product.w_k[longest]).cpu().numpy()


def data_module(name):
    """A module of data/ beside this file, under a name of its own in a project that has another `data`."""
    folder = Path(__file__).resolve().parent / "data"
    its_file = getattr(sys.modules.get("data"), "__file__", None) or ""  # of a `data` that was imported before
    is_ours = Path(its_file).resolve() == folder / "__init__.py"
    package = "data" if is_ours else "data_of_analyze"
    if package not in sys.modules:
        where = dict(submodule_search_locations=[str(folder)])
        spec = importlib.util.spec_from_file_location(package, folder / "__init__.py", **where)
        sys.modules[package] = importlib.util.module_from_spec(spec)  # data/__init__.py is empty
    return importlib.import_module(f"{package}.{name}")


# ---- runs of train.py --------------------------------------------------------------------------------------------


def run_rows(step, matrix, n_heads, new, previous):
    """
    The rows of scores.csv at one step of a run, each a runs.RunScore. matrix: its name. n_heads: of each layer.

    new: the pair (W_q, W_k) of all layers, (L, C, C) each. previous: the same when scores were last written, or None.
    update_symmetry is the symmetry of the change of W_qk since then, the subject of Theorem 2.4.
    """
    from data.results.runs import RunScore  # here: the scores by themselves need torch alone

    Product = data_module("grams").Product
    if previous is None:
        previous = new  # no change yet, and the symmetry of a zero matrix is nan
    rows = []
    for layer, (n_head, q, k, old_q, old_k) in enumerate(zip(n_heads, *new, *previous)):  # q, k: (C, C) each
        w_q, w_k = split_heads(q, n_head), split_heads(k, n_head)  # (H, C, D) each
        p_q, p_k = split_heads(old_q, n_head), split_heads(old_k, n_head)
        left, right = change_factors(w_q, w_k, p_q, p_k)  # (H, C, 2 D) each
        of_layer = run_columns(Product(q, k), side_by_side(left), side_by_side(right))  # {name: a number}
        of_heads = run_columns(Product(w_q, w_k), left, right)  # {name: a list of H numbers}
        rows.append(RunScore(step, matrix, layer, "", **of_layer))  # a score that RunScore lacks is a TypeError
        for head in range(n_head):
            of_head = {name: values[head] for name, values in of_heads.items()}
            rows.append(RunScore(step, matrix, layer, head, **of_head))
    return rows


def run_columns(product, left, right):
    """The scores in such a row, {name: a number}, or a list of numbers for heads. left, right: see change_factors."""
    change = scores(left, right).symmetry
    chance = data_module("chance").mean_symmetry(product)
    return scores_of(product, GAMMA).numbers() | dict(update_symmetry=change.tolist(), chance=chance.tolist())


def change_factors(w_q, w_k, p_q, p_k):
    """The new W_q, W_k and the old P_q, P_k, (H, C, D) each -> two factors of the change, (H, C, 2 D)."""
    #     W_q W_k^T - P_q P_k^T = (W_q - P_q) W_k^T + P_q (W_k - P_k)^T = [W_q - P_q, P_q] [W_k, W_k - P_k]^T
    # The right side subtracts before it multiplies, so a small change keeps its digits. Its factors are made as (r, C)
    # and transposed, as weights are.
    left = torch.cat([(w_q - p_q).mT, p_q.mT], -2).mT
    right = torch.cat([w_k.mT, (w_k - p_k).mT], -2).mT
    return left, right


# ---- the command -------------------------------------------------------------------------------------------------


def report_models(args):
    """Score what is not in the CSV yet, print and draw all that was asked for. Returns the exit status."""
    files, names, tables = data_module("pretrained.files"), data_module("names"), data_module("pretrained.tables")
    scores_table = data_module("pretrained.scores_table")
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    files.require(device == "cpu" or torch.cuda.is_available(), "--device=cuda: torch finds no GPU here")
    targets, n_errors = data_module("pretrained.revisions").find_all(args.hf, args.revisions, args.limit)
    is_moving = args.matrices and args.matrices.endswith(".gif")
    n_models = len({target.model for target in targets.values()})
    files.require(not is_moving or n_models < 2, f"{args.matrices} would show {n_models} models: a .gif shows one")
    # A CSV is gone on with: models that are in it, scored with the same options, are not read again.
    table = scores_table.known_scores(args)
    to_score = scores_table.find_missing(table, targets, args)
    scored = {}  # for pictures of W_qk
    for source, target in names.bar(to_score.items(), "checkpoints", "model", len(to_score)):
        try:
            model = score_model(target.source, args.gamma, args.per_head, device, **args.layout)
        except files.CheckpointError as e:  # it is named, and the others go on
            names.tell(f"analyze.py: {target.label()}: {e}")
            continue
        names.tell(f"{target.label()}: {model.note}")
        rows = model.table.assign(model=target.model, revision=target.revision, source=source)
        table = scores_table.replace_rows(table, rows)
        if args.csv:  # at once, so that nothing is lost if this is stopped
            scores_table.add_scores(args.csv, rows)
        scored[target] = model
    tables.show_scores(args, scores_table.choose(table, targets))
    if args.matrices and scored:
        data_module("pretrained.pictures").plot_matrices(scored, args.matrices)
    return 1 if n_errors or len(scored) < len(to_score) else 0


def compare_runs(args):
    """Print and draw the comparison of runs of train.py. Returns the exit status, or the line of an error."""
    from config import ConfigError
    from data.results import comparison, runs

    try:
        comparison.report_runs(args)
    except (ConfigError, runs.RunError) as e:
        return f"analyze.py: {e}"
    return 0


def keep_memory():
    """Lets the C library keep memory that this program frees, for later. It knows how on Linux alone."""
    # Otherwise large tensors go back to the system, which empties every page before it gives it again. On a CPU this
    # took a fifth of a step of train.py or more, and a tenth of the time to score. The program needs up to a third more
    # memory then, because what is kept has holes (tests/bench.txt).
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another system
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # no large tensor has memory of its own, which would go back with it
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # free memory at the end of all does not go back either


def main(argv):
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # of answer_early
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C is a KeyboardInterrupt
    args = data_module("options").parse(argv, __doc__, GAMMA)
    CheckpointError = data_module("pretrained.files").CheckpointError
    try:
        status = compare_runs(args) if args.runs else report_models(args)
    except CheckpointError as e:
        status = f"analyze.py: {e}"
    except KeyboardInterrupt:  # what was scored so far is in the CSV file
        print("analyze.py: stopped", file=sys.stderr)
        status = 128 + signal.SIGINT
    except OSError as e:  # a full disk; or nobody reads, as after `| head`
        status = 0 if isinstance(e, BrokenPipeError) else f"analyze.py: {e}"
        try:
            sys.stdout.flush()
        except OSError:  # or Python would try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


if __name__ == "__main__":
    keep_memory()
    main(sys.argv[1:])
