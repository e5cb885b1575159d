"""
Comparisons of training runs, and what `analyze.py --runs` prints of them. An arm is one configuration; it has several
runs, which differ only in their seed.

Is an arm better than its baseline? Runs with the same seed saw the same data, so we compare them in pairs: a difference
for each seed, which exact.py tests.

The loss of a small encoder falls at first, then hardly changes for hundreds of steps (the plateau), then falls again.
"""

import io
import itertools
import json
import re
from collections import defaultdict
from dataclasses import asdict
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from config import TrainConfig
from data.results.exact import holm, interval, sign_flip, sign_flip_of_ranks
from data.results.runs import FREE, HEADERS, HOW, ORIGIN, SCORES, RunError, read_config, require
from data.tokens import replacing

MEDIANS = [*SCORES, "directionality_eq17", "update_symmetry"]  # scores kept as medians over layers
# Losses mean the same, and runs are tested against each other, if they have the same values of these keys: the same
# task, the same data, and the same number of steps.
SAME = ["causal", "objective", "max_iters", "batch_size", "block_size", "eval_interval", "eval_iters",
        "mlm_probability", "sha256", "tokenizer"]
# What a file says of its runs beside their configuration. (Those of earlier code have a checksum for a SHA-256.)
TOLD = {"tokenizer", "sha256", "checksum", "n_params", *ORIGIN}
DIGITS = 4  # a run is rounded when it is read, so that it and its rows in a CSV file give the same results
MIN_PAIRS = 6  # with five, all of one sign, p is 2 / 2^5 = 0.06


# ---- a run -------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """
    A run of train.py, finished or not; or the training of a pretrained model, of which we have scores of layers only.
    """

    arm: str
    seed: int
    config: dict
    # A row for each step, as in the file of a comparison. Losses are nan at a step that has scores only, and scores at
    # one that has losses only; train_loss at step 0, and update_symmetry at the first scores.
    table: pandas.DataFrame

    def curve(self, column):
        """A column at those steps that have it: a Series by step."""
        return self.table[column].dropna()

    def last(self, column):
        return self.curve(column).iloc[-1]

    def is_finished(self):
        return self.curve("val_loss").index[-1] == self.config["max_iters"]  # the step of its last loss

    def layers(self, score):
        """One of SCORES at those steps that have it: a DataFrame (S, L) with columns such as symmetry_0."""
        return self.table.filter(regex=rf"^{score}_\d+$").dropna(how="all")


# ---- arms --------------------------------------------------------------------------------------------------------


def pool(paths):
    """Folders of runs, and files of comparisons -> {arm: its records}. RunError if two of one name are not one arm."""
    arms = {}
    for path in paths:
        for record in [read_run(path)] if Path(path).is_dir() else read_comparison(path):
            for other in arms.setdefault(record.arm, []):
                require_same_arm(record, other)
            arms[record.arm].append(record)
    return arms


def require_same_arm(record, other):
    """The configurations of two runs of one arm differ in their seeds, and else in keys of FREE at most."""
    for key in (record.config.keys() | other.config.keys()) - FREE:
        mine, theirs = record.config.get(key), other.config.get(key)
        require(mine == theirs, f"two runs called {record.arm} differ in {key}: {mine}, {theirs}")
    require(record.seed != other.seed, f"two runs called {record.arm} have the seed {record.seed}")


def is_plain(config):
    """Whether a run begins as BERT does: the default values of these keys, and none that the code does not have."""
    keys = ["init_from", "init", "qk_std", "v_std", "positions", "qk_norm", "constraint"]
    usual = asdict(TrainConfig())
    return config.keys() <= usual.keys() | TOLD and all(config[key] == usual[key] for key in keys)


def conditions(config):
    """The keys of SAME with their values in the configuration of a run. If they are equal, losses are compared."""
    known = dict(sha256=config.get("checksum")) | config  # older files have a checksum
    if known["objective"] == "auto":  # as TrainConfig.predicts_next
        known["objective"] = "next" if known["causal"] else "masked"
    return {key: known[key] for key in SAME}


def find_baselines(arms, chosen=None):
    """
    {arm: its baseline}, sorted: arms with the same conditions stand together, and the first of them is their baseline.
    This is the chosen arm, else the first with BERT's plain random start, else the first.
    """
    names_of = {}  # values of conditions -> the names of the arms that have them
    for name, records in arms.items():
        names_of.setdefault(tuple(conditions(records[0].config).values()), []).append(name)
    baseline_of = {}
    for names in names_of.values():
        plain = [name for name in names if is_plain(arms[name][0].config)]
        baseline = chosen if chosen in names else (plain or names)[0]
        baseline_of |= dict.fromkeys([baseline, *names], baseline)  # it stays in front
    return baseline_of


def counted(records):
    """The finished runs of an arm; all of its runs if none has finished."""
    return [record for record in records if record.is_finished()] or records


# ---- a loss curve in one number: losses are Series by step -------------------------------------------------------


def smooth(loss):
    """The mean of each evaluation and up to two before it."""
    return loss.rolling(3, min_periods=1).mean()


def first_step(loss, level):
    """The first step at which the smoothed loss is at or below the level; inf, later than any, if it never is."""
    reached = loss.index[smooth(loss) <= level]
    return float(reached[0]) if len(reached) else inf


def speed_up(loss, baseline_loss):
    """
    (T - t) / T, where T is the last step, and t is the first at which the smoothed loss is at or below the last one of
    the baseline. -inf, less than any number, if it never is.
    """
    T = loss.index[-1]
    return (T - first_step(loss, smooth(baseline_loss).iloc[-1])) / T


# ---- an arm and its baseline -------------------------------------------------------------------------------------


def pairs_of(records, others):
    """[(run of an arm, run of its baseline)] with the same seed, of those that count: they saw the same data."""
    of_seed = {other.seed: other for other in counted(others)}
    return [(mine, of_seed[mine.seed]) for mine in counted(records) if mine.seed in of_seed]


def compare_pairs(pairs, measure="val_loss"):
    """What an arm gains over its baseline at the end, in a column of tables, as a dict; nan if there is no pair."""
    if not pairs:
        return dict(n_pairs=0, difference=nan, interval=(nan, nan), p=nan, speed_up=nan)
    differences = np.array([mine.last(measure) - other.last(measure) for mine, other in pairs])
    gains = [speed_up(mine.curve("val_loss"), other.curve("val_loss")) for mine, other in pairs]
    return dict(
        n_pairs=len(pairs),
        difference=differences.mean(),  # arm less baseline
        interval=interval(differences),  # what these pairs, by themselves, do not exclude
        p=sign_flip(differences),
        speed_up=np.median(gains),  # -inf: not reached
    )


def compare_steps(pairs, level):
    """Does an arm come to the level, a loss, at other steps than its baseline? -> p; nan if there is no pair."""
    steps = [[first_step(record.curve("val_loss"), level) for record in pair] for pair in pairs]
    return sign_flip_of_ranks(*zip(*steps)) if steps else nan


# ---- the file of a comparison ------------------------------------------------------------------------------------
#
# One small CSV file keeps all runs of a comparison, with all that its tables and figures show:
#
#     # config {"n_layer": 2, ...}            what all arms share
#     # config of symmetric {"init": ...}     what is special to one of them
#     arm,seed,step,train_loss,val_loss,...   then a row for every step of every run that has a loss, or scores, or both


def write_comparison(path, arms):
    """arms: {name: its records}. RunError if the file at path would lose something."""
    tables = {(name, record.seed): record.table for name, records in arms.items() for record in records}
    if Path(path).exists():
        for record in read_comparison(path):
            require((record.arm, record.seed) in tables, f"{path} holds a run of {record.arm} with the seed "
                    f"{record.seed}, which would be lost: give another --csv")
    whole = pandas.concat(tables, names=["arm", "seed", "step"])
    rows = whole.to_csv(float_format=f"%.{DIGITS}f", lineterminator="\n")
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*config_lines(arms), rows]))


def config_lines(arms):
    """'# config {...}' with the keys that all arms share, and '# config of NAME {...}' with the others, as JSON."""
    configs = {}
    for name, records in arms.items():
        config = records[0].config
        configs[name] = {key: config[key] for key in config if key not in HOW - {"init_from"} | {"seed"}}
        for key in config.keys() & ORIGIN:  # in which the runs of an arm may differ
            origins = {origin for record in records for origin in record.config.get(key, "unknown").split(" and ")}
            configs[name][key] = " and ".join(sorted(origins))
    first, *others = configs.values()
    shared = {key: first[key] for key in first if all(other.get(key) == first[key] for other in others)}
    lines = [f"# config {json.dumps(shared)}"]
    for name, config in configs.items():
        special = {key: config[key] for key in config if key not in shared}
        lines.append(f"# config of {name} {json.dumps(special)}")
    return lines


def read_rows(path):
    """The rows of log.csv or scores.csv: a DataFrame of numbers, without a last row that is incomplete."""
    text, header = path.read_text(errors="replace"), HEADERS[path.name]
    require(text.startswith(header), f"{path} is not a {path.name} of train.py: it does not begin with {header[:-1]}")
    whole_rows = io.StringIO(text[: text.rfind("\n") + 1])
    return pandas.read_csv(whole_rows, dtype=float, index_col=False).astype(dict(step=int))


def read_run(folder):
    """The Record of a run in a folder. RunError if there is no run."""
    folder = Path(folder)
    config = read_config(folder)
    try:
        log = read_rows(folder / "log.csv").set_index("step")
        if not log.index.is_unique:
            raise ValueError("a step stands twice")
        scores = read_rows(folder / "scores.csv").astype(dict(layer=int))
        n_rows = config["n_layer"] * (1 + config["n_head"])  # of a step
        # The last step may lack some, as the run may be writing them.
        scores = scores.groupby("step").filter(lambda rows: len(rows) >= n_rows)
        require(len(log) and len(scores), f"{folder} has no row in its CSV files yet")
        of_layers = scores[scores["head"].isna()]
        of_heads = scores[scores["head"].notna()]
        medians = of_layers.groupby("step")[MEDIANS].median()
        spread = of_heads.groupby(["step", "layer"])["symmetry"].std(ddof=0)  # over the heads of a layer
        spread = spread.groupby("step").mean().rename("symmetry_std")
        table = pandas.concat([log, medians, spread, by_layer(of_layers)], axis="columns")
    except ValueError as e:
        raise RunError(f"{folder}: log.csv or scores.csv is damaged ({e}); --init_from=resume writes them again from "
                       "ckpt.pt") from e
    arm = folder.resolve().name.removesuffix(f"-{config['seed']}")
    return record_of_table(arm, config, table.round(DIGITS))


def by_layer(rows):
    """A row for each step and layer -> a row for each step, with columns such as symmetry_0. ValueError: one twice."""
    table = rows.pivot(index="step", columns="layer", values=SCORES)  # (S, 2 L)
    table.columns = [f"{score}_{layer}" for score, layer in table.columns]
    return table


def read_comparison(path):
    """The records in a CSV file that write_comparison wrote. RunError: it is another file, or damaged."""
    configs, rows = {}, []
    try:
        for line in Path(path).read_text().splitlines():
            comment = re.match(r"# config (?:of (.+?) )?(\{.*\})$", line)
            if comment:
                configs[comment[1]] = json.loads(comment[2])  # [None]: of the line without the name of an arm
            else:
                rows.append(line)
        types = defaultdict(lambda: float, arm=str, seed=int, step=int)
        # An arm may be called null, which pandas would read as nan.
        table = pandas.read_csv(io.StringIO("\n".join(rows)), dtype=types, na_values=[""], keep_default_na=False)
        records = []
        for (arm, seed), of_run in table.groupby(["arm", "seed"], sort=False):
            # A key that is newer than the file has its default.
            config = asdict(TrainConfig()) | configs[None] | configs[arm] | dict(seed=seed)
            records.append(record_of_table(arm, config, of_run.set_index("step")))
        return records
    except (KeyError, TypeError, ValueError) as e:
        raise RunError(f"{path} is no comparison, or damaged ({str(e).strip()}): give another file") from e


def record_of_table(arm, config, table):
    """A Record from a table with at least these columns. KeyError: it is damaged."""
    losses = ["train_loss", "val_loss"]  # [nats/token]
    spread = "symmetry_std"  # over the heads of a layer, mean over layers
    layers = [f"{score}_{layer}" for layer in range(config["n_layer"]) for score in SCORES]
    # Losses and scores may have been written at different steps.
    return Record(arm, config["seed"], config, table[[*losses, *MEDIANS, spread, *layers]].sort_index())


# ---- what is printed: analyze.py --runs --------------------------------------------------------------------------


def report_runs(args):
    """
    Compare runs, from their folders or from the CSV file of an earlier comparison. args: the command line of
    analyze.py, of which runs, level, baseline, arms, all, csv, plot and gamma are used.
    """
    arms = pool(args.runs)
    asked = [*(args.arms or arms), *filter(None, [args.baseline])]
    for name in asked:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    baseline_of = find_baselines({name: arms[name] for name in arms if name in asked}, args.baseline)
    arms = {name: arms[name] for name in baseline_of}
    if args.csv:
        write_comparison(args.csv, arms)
    if args.plot:
        from data.results.figures_runs import plot_runs  # and matplotlib with it

        plot_runs({name: counted(records) for name, records in arms.items()}, args.level, args.plot, args.gamma)
    table = comparison_table(arms, baseline_of, args.level)
    shown = table if args.all else table[SHORT]
    legend = f"{LEGEND}\n{LEGEND_OF_ALL}" if args.all else LEGEND
    print(shown.to_string(), legend, *comparison_notes(arms, baseline_of), sep="\n", flush=True)


SHORT = ["loss", "difference [95 %]", "p"]  # the columns that are shown without --all
LEGEND = """\
loss: at the end [nats/token], mean over seeds
difference: loss less the baseline's, mean over pairs of one seed, and all that these pairs do not reject at p = 0.05
p: exact sign flips of the pairs, after Holm for the number of arms"""
LEGEND_OF_ALL = """\
passed: seeds whose loss (mean of three evaluations) came to --level [nats/token]; step: the median of their first steps
there, where a seed that did not pass is later than any; p (step): as p, of the ranks of these steps
speed-up: share of the steps not needed to come to the baseline's last loss, median over pairs
symmetry, directionality: at the end, median over layers"""


def comparison_table(arms, baseline_of, level):
    """
    A DataFrame of texts, a row for each arm in the order of baseline_of, which is of find_baselines. level: a loss
    [nats/token]. Both columns of p are corrected for the number of arms.
    """
    pairs = {name: pairs_of(arms[name], arms[other]) for name, other in baseline_of.items() if name != other}
    gains = {name: compare_pairs(pairs[name]) for name in pairs}
    p_loss = holm({name: gains[name]["p"] for name in pairs})
    p_step = holm({name: compare_steps(pairs[name], level) for name in pairs})
    rows = {}
    for name in baseline_of:
        records = counted(arms[name])
        steps = [first_step(record.curve("val_loss"), level) for record in records]  # inf: never
        step = np.median(steps)  # inf if half of the seeds did not pass
        rows[name] = row = {
            "loss": mean_of_last(records, "val_loss", ".3f"),
            "difference [95 %]": "baseline",
            "p": "",
            "pairs": "",
            f"passed {level:g}": f"{np.isfinite(steps).sum()} of {len(steps)}",
            "step": f"{step:.0f}" if np.isfinite(step) else "not passed",
            "p (step)": "",
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
                row |= {"p": f"{p_loss[name]:.2g}", "p (step)": f"{p_step[name]:.2g}"}
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
        notes.append(f"no p of {', '.join(few)}: with fewer than {MIN_PAIRS} pairs of seeds none can reach 5 %")
    for name, baseline in baseline_of.items():
        records = arms[name]
        if name == baseline != first:
            here, there = conditions(records[0].config), conditions(arms[first][0].config)
            keys = [key for key in SAME if here[key] != there[key]]
            notes.append(f"{name} is not tested against {first}: they differ in {', '.join(keys)}")
        n_finished = sum(record.is_finished() for record in records)
        if n_finished < len(records):
            notes.append(f"{name}: {n_finished} of its {len(records)} runs have finished; the others count if none has")
    for key in ORIGIN:
        names_of = {}  # value -> the arms that have it
        for record in itertools.chain(*arms.values()):
            names_of.setdefault(record.config.get(key, "unknown"), {})[record.arm] = None
        if len(names_of) > 1:
            cases = [f"{value} ({', '.join(names)})" for value, names in names_of.items()]
            notes.append(f"these runs differ in {key}: {'; '.join(cases)}")
    return notes


def table_of_ends(run):
    """What train.py prints at the end of a run: the first and the last scores of every layer, and the last loss."""
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry, directionality = [run.curve(f"{score}_{layer}").to_numpy() for score in SCORES]  # (S,) each
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    return "\n".join([*lines, f"validation loss {run.last('val_loss'):.4f} nats/token"])
