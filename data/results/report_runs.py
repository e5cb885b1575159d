"""
What analyze.py prints and draws of the runs of train.py.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas

from data.results import compare, figures_runs, records
from data.results.report import show
from data.results.runs import SCORES, RunError, require

# ---- one run -----------------------------------------------------------------------------------------------------


def report_run(folder):
    """A table with the first and the last scores of every layer of a run."""
    run = records.read_run(folder)
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry = run.curve(f"symmetry_{layer}").to_numpy()  # (S,)
        directionality = run.curve(f"directionality_{layer}").to_numpy()  # (S,)
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    loss = run.last("val_loss")
    lines.append(f"validation loss {loss:.4f} nats/token; picture: {folder}/run.png")
    return "\n".join(lines)


# ---- a comparison ------------------------------------------------------------------------------------------------


def report_runs(args):
    """
    Compare runs, from their folders or from the CSV file of an earlier comparison, and the authors' runs. args: the
    command line, of which runs, level, baseline, arms, csv and plot are used.
    """
    ours, curves, trajectories = [], {}, {}
    for path in args.runs:
        if Path(path).is_file() and not records.is_comparison(path):
            more_curves, more_trajectories = records.read_published(path)
            curves |= more_curves
            trajectories |= more_trajectories
        else:
            ours.append(path)
    arms, baseline_of = choose(compare.pool(ours), args.arms, args.baseline)
    if args.csv:
        require(arms, f"nothing to write in {args.csv}: it takes runs of train.py")
        records.write_comparison(args.csv, arms)
    if curves:
        show(curves_table(curves))
    if arms:
        outcomes = compare.find_outcomes(arms, baseline_of, args.level)
        show(comparison_table(outcomes, args.level))
        for note in comparison_notes(outcomes, arms):
            show(note)
    counted = {name: compare.counted(runs) for name, runs in arms.items()}  # pictures show what the table counts
    if trajectories:
        show(ends_table(trajectories | counted))
    if args.plot:
        draw_runs(counted, args.level, trajectories, Path(args.plot))


def choose(arms, names, baseline):
    """The arms with these names (None: all), sorted, and {arm: its baseline}. baseline: the chosen one, or None."""
    asked = names or list(arms)
    for name in asked if baseline is None else [*asked, baseline]:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    require(baseline is None or baseline in asked, f"--baseline={baseline} is none of --arms: add it there")
    baseline_of = compare.find_baselines({name: arms[name] for name in asked}, baseline)
    return {name: arms[name] for name in baseline_of}, baseline_of


def draw_runs(arms, level, trajectories, path):
    """Draw the comparison, and a second picture, NAME_layers, of every layer; with the authors' runs if given."""
    if trajectories:
        figures_runs.plot_trajectories(trajectories, arms, path)
    elif arms:
        figures_runs.plot_runs(arms, level, path)
    else:
        raise RunError(f"nothing to draw in {path}: it takes runs, or data/results/csv/published/trajectories.csv")
    figures_runs.plot_layers(trajectories | arms, path.with_stem(path.stem + "_layers"))


# Below the table of a comparison: what its columns hold.
LEGEND = """\
passed: seeds whose loss (mean of three evaluations) came to --level [nats/token]; step: the median of their first steps
there, where a seed that did not pass is later than any
difference: loss at the end less the baseline's [nats/token], mean over seeds, and the interval of all differences that
the seeds of this arm alone do not reject at p = 0.05
p: exact sign flips of pairs of one seed (of steps: of their ranks), each column after Holm; significant below 0.05
speed-up: share of the steps not needed to come to the baseline's last loss, median over seeds
symmetry, directionality: at the end, median over layers
change: symmetry of what was added to W_qk between two rows of scores, median over layers and over the run"""


def comparison_table(outcomes, level):
    """A line for each of compare.find_outcomes."""
    lines = []
    for outcome in outcomes.itertuples():
        is_baseline = outcome.name == outcome.baseline
        # A seed that did not pass is later than any step, so the median may be inf.
        step = np.median(outcome.first_steps)
        n_passed = np.isfinite(outcome.first_steps).sum()
        numbers = [outcome.difference, *outcome.interval]
        difference, low, high = [text(x, "+.3f") for x in numbers]
        lines.append({
            "arm": outcome.name,
            f"passed {level:g}": f"{n_passed} of {len(outcome.first_steps)}",
            "step": f"{step:.0f}" if np.isfinite(step) else "not passed",
            "p (step)": "" if is_baseline else p_text(outcome.p_step),
            "loss": f"{np.mean(outcome.losses):.3f}",
            "difference [95 %]": "baseline" if is_baseline else f"{difference} [{low}, {high}]",
            "p (loss)": "" if is_baseline else p_text(outcome.p),
            "speed-up": "" if is_baseline else share(outcome.speed_up),
            "symmetry": text(outcome.symmetry, ".2f"),
            "directionality": text(outcome.directionality, ".2f"),
            "change": text(outcome.update_symmetry, ".2f"),
        })
    return f"{as_text(lines)}\n{LEGEND}"


def as_text(lines):
    """Dicts with the same keys -> a table with a line for each. The first column is at the left."""
    first, *_ = lines[0]
    return pandas.DataFrame(lines).set_index(first).rename_axis(index=None, columns=first).to_string()


def text(x, form):
    return "-" if np.isnan(x) else format(x, form)


def p_text(p):
    return "<0.001" if p < 0.001 else text(p, ".3f")


def share(x, form=".0%"):
    return "not reached" if np.isinf(x) else text(x, form)


def comparison_notes(outcomes, arms):
    """What a reader must know about these runs, in lines."""
    notes = []
    first = outcomes["name"].iloc[0]
    for outcome in outcomes.itertuples():
        name, baseline = outcome.name, outcome.baseline
        runs = arms[name]
        if name == baseline and name != first:
            notes.append(f"{name} is not tested against {first}: they differ in "
                         f"{differing(runs[0].config, arms[first][0].config)}")
        if name == baseline and len(outcome.losses) > 1:
            notes.append(f"{name}: one seed has a speed-up of up to {share(largest_gain(runs))} over another")
        if name != baseline and outcome.n_pairs < len(outcome.losses):
            notes.append(f"{name}: {outcome.n_pairs} of its seeds are seeds of {baseline}, and only these are compared")
        n_unfinished = sum(not run.is_finished() for run in runs)
        if n_unfinished:
            how = "counted as they are" if n_unfinished == len(runs) else "left out"
            notes.append(f"{name}: {n_unfinished} of its runs have not finished ({how})")
    n_pairs = outcomes["n_pairs"].max()
    n_tests = (outcomes["n_pairs"] > 0).sum()
    smallest_p = n_tests * 2 / 2**n_pairs  # of sign flips, after Holm
    if n_tests and smallest_p > 0.05:
        notes.append(f"with {n_pairs} pairs and {n_tests} tests no p can come below 0.05, and no difference is "
                     "significant")
    return notes


def differing(config, other):
    """The keys that keep two arms from being compared, and their values, as `max_iters (2000, 1000)`."""
    values = zip(compare.SAME, compare.conditions(config), compare.conditions(other))
    return ", ".join(f"{key} ({here}, {there})" for key, here, there in values if here != there)


def largest_gain(runs):
    """How much faster one run of an arm can be than another one: a smaller speed-up of another arm says nothing."""
    losses = [run.curve("val_loss") for run in compare.counted(runs)]
    return max(compare.speed_up(mine, other) for mine, other in itertools.permutations(losses, 2))


# ---- the authors' runs -----------------------------------------------------------------------------------------------


def curves_table(curves):
    """
    Table 1 of the paper from its training losses. Speed-up is (T - t) / T: by the paper's rule t is the first step
    whose loss is below the plain run's last one, by ours the losses are smoothed first (compare.speed_up).
    """
    lines = []
    for name, loss in curves.items():
        symmetric = curves.get(f"{name}--symmetric-init")  # of the run that starts from W_k = W_q
        if symmetric is None:
            continue
        T = loss.index[-1]
        lines.append({
            "published run": name,
            "last loss": f"{loss.iloc[-1]:.3f}",
            "with symmetric start": f"{symmetric.iloc[-1]:.3f}",
            "speed-up: by the paper's rule": share((T - compare.first_step(symmetric, loss.iloc[-1])) / T, ".1%"),
            "by ours": share(compare.speed_up(symmetric, loss), ".1%"),
        })
    return as_text(lines)


def ends_table(arms):
    """Scores at the last step: medians over layers, means over seeds. arms: the authors' runs, and ours."""
    lines = []
    for name, runs in arms.items():
        line = {"run": name}
        for score in SCORES:
            medians = [run.layers(score).iloc[-1].median() for run in runs]
            line[score] = f"{np.mean(medians):.2f}"
        lines.append(line)
    return as_text(lines)
