"""
What analyze.py prints, and which pictures go with it: comparisons of runs (--runs), and scores of models (--hf,
--paper).

models.csv and printed_tables.csv in data/pretrained have what was published, and of which matrix. README.md there
explains them.
"""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pandas

from config import ORIGIN
from data.pretrained.sources import known_models
from data.results import chance
from data.results.compare import (MIN_PAIRS, SAME, compare_pairs, conditions, counted, find_baselines, pairs_of,
                                  pool)
from data.results.exact import holm
from data.results.models import by_stack, is_causal, quartiles, whole_layers
from data.results.records import Record, by_layer, read_rows, write_comparison
from data.results.runs import SCORES, require

PRINTED_TABLES = Path(__file__).parents[1] / "pretrained" / "printed_tables.csv"


# ---- runs of train.py --------------------------------------------------------------------------------------------


def report_runs(args):
    """
    Compare runs, from their folders or from the CSV file of an earlier comparison; or describe a single run. args: the
    command line of analyze.py, of which runs, baseline, arms, all, csv, plot and gamma are used.
    """
    arms = pool(args.runs)
    asked = [*(args.arms or arms), *filter(None, [args.baseline])]
    for name in asked:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    baseline_of = find_baselines({name: arms[name] for name in arms if name in asked}, args.baseline)
    arms = {name: arms[name] for name in baseline_of}
    if args.csv:
        write_comparison(args.csv, arms)
    records = list(itertools.chain(*arms.values()))
    if args.plot:
        from data.results import figures_runs  # and matplotlib with it

        if len(records) == 1:
            figures_runs.plot_run(*records, args.plot, args.gamma)
        else:
            figures_runs.plot_runs({name: counted(arms[name]) for name in arms}, args.plot, args.gamma)
    if len(records) == 1:
        print(describe_run(*records, args.runs[0]), flush=True)
        return
    table = comparison_table(arms, baseline_of)
    shown = table if args.all else table[SHORT]
    legend = f"{LEGEND}\n{LEGEND_OF_ALL}" if args.all else LEGEND
    print(shown.to_string(), legend, *comparison_notes(arms, baseline_of), sep="\n", flush=True)


SHORT = ["loss", "difference [95 %]", "p"]  # the columns that are shown without --all
LEGEND = """\
  loss: validation loss at the end of training [nats/token], mean over seeds
  difference: how much higher (+) or lower (-) the loss is than that of the baseline with the same seed, mean over
      these pairs of runs, and in brackets its 95 % confidence interval
  p: how often chance alone makes the difference as large (exact sign-flip test, Holm's correction over arms)"""
LEGEND_OF_ALL = """\
  pairs: how many runs have the same seed as a run of the baseline
  speed-up: share of the steps that an arm did not need to reach the last loss of the baseline, median over pairs. This
      is the rule of the paper's Table 1, but each loss is a mean of three evaluations: one may be low by chance
  symmetry, directionality: of W_qk at the end of training, median over layers"""


def comparison_table(arms, baseline_of):
    """
    A DataFrame of texts with one row for each arm, in the order of baseline_of, which is of find_baselines. p is
    corrected for the number of arms.
    """
    pairs = {name: pairs_of(arms[name], arms[other]) for name, other in baseline_of.items() if name != other}
    gains = {name: compare_pairs(pairs[name]) for name in pairs}
    corrected = holm({name: gain["p"] for name, gain in gains.items()})
    rows = {}
    for name in baseline_of:
        records = counted(arms[name])
        rows[name] = row = {
            "loss": mean_of_last(records, "val_loss", ".3f"),
            "difference [95 %]": "baseline",
            "p": "",
            "pairs": "",
            "speed-up": "",
            "symmetry": mean_of_last(records, "symmetry", ".2f"),
            "directionality": mean_of_last(records, "directionality", ".2f"),
        }
        if name in pairs:
            gain = gains[name]
            row |= {"difference [95 %]": text(gain["difference"]), "pairs": str(gain["n_pairs"]),
                    "speed-up": share(gain["speed_up"])}
            if gain["n_pairs"] >= MIN_PAIRS:
                low, high = gain["interval"]
                row["difference [95 %]"] += f" [{low:+.3f}, {high:+.3f}]"
                row["p"] = f"{corrected[name]:.2g}"
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(columns="arm")


def mean_of_last(records, column, form):
    return format(np.mean([record.last(column) for record in records]), form)


def text(x, form="+.3f"):
    return "-" if np.isnan(x) else format(x, form)


def share(x):
    return "not reached" if np.isinf(x) else text(x, ".0%")


def comparison_notes(arms, baseline_of):
    """What a reader must know about these runs, in lines."""
    notes = []
    first = next(iter(baseline_of))
    tested = {name: other for name, other in baseline_of.items() if name != other}
    few = [name for name, other in tested.items() if len(pairs_of(arms[name], arms[other])) < MIN_PAIRS]
    if few:
        notes.append(f"There is no p for {', '.join(few)}, because fewer than {MIN_PAIRS} pairs cannot reach p < 0.05.")
    for name, baseline in baseline_of.items():
        records = arms[name]
        if name == baseline != first:
            here, there = conditions(records[0].config), conditions(arms[first][0].config)
            keys = [key for key in SAME if here[key] != there[key]]
            notes.append(f"{name} is not compared with {first}, because they differ in {', '.join(keys)}.")
        n_finished = sum(record.is_finished() for record in records)
        if n_finished < len(records):
            shown = "Only these count." if n_finished else "So all count, as far as they are."
            notes.append(f"{name}: {n_finished} of {len(records)} runs have finished. {shown}")
    for key in ORIGIN:
        names_of = {}  # value -> the arms that have it
        for record in itertools.chain(*arms.values()):
            names_of.setdefault(record.config.get(key, "unknown"), {})[record.arm] = None
        if len(names_of) > 1:
            cases = [f"{value} ({', '.join(names)})" for value, names in names_of.items()]
            notes.append(f"The {key} of these runs differs: {'; '.join(cases)}.")
    return notes


def describe_run(run, path):
    """What a single run was about: the model, scores by layer, losses and, if path is its folder, the time it took."""
    config, step = run.config, run.curve("val_loss").index[-1]
    kind = "decoder" if config["causal"] else "encoder"
    lines = [f"{run.arm}, seed {run.seed}: {kind} of {config['n_layer']} layers and {config['n_embd']} columns, "
             f"init = {config['init']}, positions = {config['positions']}",
             f"{step:,} of {config['max_iters']:,} updates, on {config['batch_size']} sequences of "
             f"{config['block_size']} tokens each", table_of_ends(run)]
    if step > 0:
        lines.append(f"training loss {run.last('train_loss'):.4f} nats/token, mean since the evaluation before")
    if step > 0 and Path(path).is_dir():
        log = read_rows(Path(path) / "log.csv")
        seconds = (log["tokens"].diff() / log["tokens_per_s"]).sum()  # without evaluations
        lines.append(f"time {seconds / 60:.1f} minutes, {log['tokens'].iloc[-1] / seconds:,.0f} tokens/s")
    return "\n".join(lines)


def table_of_ends(run):
    """What train.py prints at the end of a run: the first and the last scores of every layer, and the last loss."""
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry, directionality = [run.curve(f"{score}_{layer}").to_numpy() for score in SCORES]  # (S,) each
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    return "\n".join([*lines, f"validation loss {run.last('val_loss'):.4f} nats/token"])


# ---- models ------------------------------------------------------------------------------------------------------


def report_models(args, table):
    """Print and draw what was asked for: the paper, a training, or single models. table: of models.table_of"""
    if table.empty and not args.paper:  # nothing could be scored
        return
    stacks = by_stack(table)
    trainings = [] if args.paper else find_trainings(table)
    is_one = table["model"].nunique() == 1
    if trainings:
        texts = [training_table(trainings)]
    else:
        show_layers = not args.paper and (is_one or (args.per_head and not args.csv))
        texts = [f"Layers:\n{layer_table(table)}\n"] if show_layers else []
        if stacks:
            texts.append(f"Whole models, medians over layers:\n{model_table(stacks)}")
    # The legend explains the columns that are shown.
    texts += [line for line in LEGEND_OF_SCORES if line.split(":")[0].strip() in "".join(texts)]
    if args.paper:
        texts.append(printed_tables())
    print(*texts, sep="\n", flush=True)
    if args.plot:
        from data.results import figures, figures_pretrained  # and matplotlib with them

        if args.paper:
            figures_pretrained.plot_pretrained(known_models(), stacks, args.plot)
        elif trainings:
            figures_pretrained.plot_training(trainings, args.plot)
        elif is_one:
            figures.plot_model(table, args.plot)
        else:
            figures.plot_models(stacks, args.plot)


LEGEND_OF_SCORES = """\
  symmetry: 1 if W_qk equals its transpose, -1 if it equals minus its transpose, and near 0 if it is random
  directionality: below 0 if a few columns of W_qk are much longer than the others, above 0 if a few rows are
  [quartiles]: first and third quartile over layers
  above chance: how many standard deviations the symmetry is above the mean of random matrices
  by chance: 95 % of random matrices with the same singular values have a directionality in this range
  beyond chance: how many layers have a directionality outside of the range of random matrices
  published: the same medians, as the authors of the paper published them""".splitlines()


def align(lines):
    """
    Lists of cells, of which the first are headings -> lines of a text, whose columns are as wide as their widest cell.
    A column that has a heading only is left out.
    """
    columns = [column for column in zip(*lines) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*padded))


def with_quartiles(values):
    q1, median, q3 = quartiles(values)
    return f"{median:5.2f} [{q1:.2f}, {q3:.2f}]"


def model_table(stacks):
    """
    A line for each stack: medians over layers, beside those that were published. * marks a published number that is
    not a score of W_qk (`matrix` in models.csv). stacks: as of by_stack
    """
    lines = [["model", "stack", "layers", "symmetry [quartiles]", "above chance", "published",
              "directionality [quartiles]", "published", "beyond chance"]]
    known = {(row[name], row["stack"]): row for row in known_models() for name in ("name", "hub_id")}
    matrices = set()  # that were scored for the published numbers, and are not W_qk
    for (model, stack), layers in stacks.items():
        published = known.get((model, stack))
        is_other = published and published["matrix"] != "wqk"
        if is_other:
            matrices.add(MATRICES[published["matrix"]])
        above_chance = chance.deviations(layers["symmetry"], layers["n"]).median()
        n_beyond = (layers["directionality"].abs() > layers["limit"]).sum()
        theirs = [f"{float(published[score]):5.2f}{'*' if is_other else ''}" if published else "" for score in SCORES]
        lines.append([model, stack, str(len(layers)),
                      with_quartiles(layers["symmetry"]), f"{above_chance:+.1f}", theirs[0],
                      with_quartiles(layers["directionality"]), theirs[1], f"{n_beyond} of {len(layers)}"])
    notes = [f"* This number is not a score of W_qk, but of {matrix}." for matrix in sorted(matrices)]
    return "\n".join([align(lines), *notes])


def layer_table(table):
    """A line for each layer and head."""
    lines = [["model", "stack", "layer", "head", "symmetry", "above chance", "directionality", "by chance"]]
    for row in table.itertuples():
        head = "" if row.head is pandas.NA else str(row.head)
        limit = "" if np.isnan(row.limit) else f"{-row.limit:.2f} to {row.limit:.2f}"  # it is not computed for heads
        lines.append([row.model, row.stack, str(row.layer), head, f"{row.symmetry:6.3f}",
                      f"{chance.deviations(row.symmetry, row.n):+6.1f}", f"{row.directionality:6.3f}", limit])
    return align(lines)


def find_trainings(table):
    """The training in a table of models.table_of, as a Record for each stack. An empty list of single models."""
    table = whole_layers(table).dropna(subset="step")
    trainings = []
    for (model, stack), layers in table.groupby(["model", "stack"], sort=False):
        layers = layers.drop_duplicates(["step", "layer"], keep="last")
        revisions = layers.groupby("step")["revision"].last()
        first = layers.iloc[0]
        config = dict(causal=is_causal(layers), n=first.n, limit=layers["limit"].median())
        trainings.append(Record(f"{model} {stack}".strip(), 1, config, by_layer(layers).assign(revision=revisions)))
    return trainings


def training_table(trainings):
    """A line for each checkpoint: median [q1, q3] over layers."""
    lines = []
    for training in trainings:
        scores = [training.layers(score) for score in SCORES]  # (S, L) each
        lines.append(f"{training.arm}: {scores[0].shape[1]} layers")
        cells = [["step", "symmetry [quartiles]", "directionality [quartiles]", "revision"]]
        for step, revision in training.table["revision"].items():
            cells.append([f"{step:,.0f}", *(with_quartiles(score.loc[step]) for score in scores), revision])
        lines.append(align(cells))
    return "\n".join(lines)


# ---- what was published ------------------------------------------------------------------------------------------


# Rows of models.csv and of printed_tables.csv are dicts of texts. Columns of both that matter here:
#     matrix      what was scored: wqk, or one of MATRICES. A second copy of a model in the printed tables may be of
#                 another matrix than the first
#     repeats     the model whose weights these are, or the earlier row that has the same symmetry in every layer


MATRICES = dict(tiled_kv="queries with the wrong keys", head_space="W_q^T W_k instead of W_q W_k^T",
                cross_attention="attention to another stack", random_init="an untrained model")


def printed_tables():
    """Tables S2 and S3, the left half and then the right, with what each row really is; and how many are of W_qk."""
    rows = pandas.read_csv(PRINTED_TABLES, dtype=str, keep_default_na=False).to_dict("records")
    lines = [["row", "printed as", "symmetry", "directionality", "what it is"]]
    for row in rows:
        scores = [f"{row[score] or '-':>5}" for score in SCORES]  # Table S3 lacks two rows
        remarks = [MATRICES.get(row["matrix"], ""), row["remark"]]
        remarks.append(f"row {row['repeats']} again" if row["repeats"] else "")
        lines.append([row["row"], row["printed_as"], *scores, "; ".join(filter(None, remarks))])
    counts = Counter(row["matrix"] for row in rows)
    of_wqk = counts.pop("wqk")
    others = ", ".join(f"{count} of {MATRICES[matrix]}" for matrix, count in counts.most_common())
    return (f"Tables S2 and S3 of the paper, medians over layers:\n{align(lines)}\n"
            f"Of {len(rows)} rows {of_wqk} are of W_qk, and {counts.total()} are not: {others}.")
