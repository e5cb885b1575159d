"""
What analyze.py prints and draws of the runs of train.py.
"""

import itertools
from pathlib import Path

import numpy as np

from config._place import say
from data.results import compare, figures_runs, records
from data.results.runs import SCORES, require
from data.results.tables import align

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
        if Path(path).name == "loss_curves.csv":
            curves = records.read_loss_curves(path)
        elif Path(path).name == "trajectories.csv":
            trajectories = records.read_trajectories(path)
        else:
            ours.append(path)
    arms, baseline_of = choose(compare.pool(ours), args.arms, args.baseline)
    if args.csv:
        records.write_comparison(args.csv, arms)
    if curves:
        say(curves_table(curves))
    if arms:
        outcomes = compare.find_outcomes(arms, baseline_of, args.level)
        say(comparison_table(outcomes, args.level))
        for note in comparison_notes(outcomes, arms):
            say(note)
    counted = {name: compare.counted(runs) for name, runs in arms.items()}  # pictures show what the table counts
    if trajectories:
        say(ends_table(trajectories | counted))
    if args.plot:
        draw_runs(counted, args.level, trajectories, Path(args.plot))


def choose(arms, names, baseline):
    """The arms with these names (None: all), sorted, and {arm: its baseline}. baseline: the chosen one, or None."""
    asked = set(names or arms) | ({baseline} if baseline else set())
    for name in asked:
        require(name in arms, f"no arm is called {name}: there are {', '.join(arms)}")
    baseline_of = compare.find_baselines({name: arms[name] for name in arms if name in asked}, baseline)
    return {name: arms[name] for name in baseline_of}, baseline_of


def draw_runs(arms, level, trajectories, path):
    """Draw the comparison, and a second picture, NAME_layers, of every layer; with the authors' runs if given."""
    require(arms or trajectories, f"nothing to draw in {path}: it takes runs, or csv/published/trajectories.csv")
    if trajectories:
        figures_runs.plot_trajectories(trajectories, arms, path)
    else:
        figures_runs.plot_runs(arms, level, path)
    figures_runs.plot_layers(trajectories | arms, path.with_stem(path.stem + "_layers"))


# Below the table of a comparison: what its columns hold.
LEGEND = """\
passed: seeds whose loss (mean of three evaluations) came to --level [nats/token]; step: the median of their first steps
there, where a seed that did not pass is later than any
difference: loss at the end less the baseline's [nats/token], mean over pairs of one seed, and the interval of all that
the pairs of this arm alone do not reject at p = 0.05
p: exact sign flips of pairs (of steps: of their ranks), each column after Holm
speed-up: share of the steps not needed to come to the baseline's last loss, median over pairs
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
            "pairs": "" if is_baseline else str(outcome.n_pairs),
            "difference [95 %]": "baseline" if is_baseline else f"{difference} [{low}, {high}]",
            "p (loss)": "" if is_baseline else p_text(outcome.p),
            "speed-up": "" if is_baseline else share(outcome.speed_up),
            "symmetry": f"{outcome.symmetry:.2f}",
            "directionality": f"{outcome.directionality:.2f}",
            "change": f"{outcome.update_symmetry:.2f}",
        })
    cells = [list(lines[0]), *(list(line.values()) for line in lines)]
    return f"{align(cells)}\n{LEGEND}"


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
        name, runs = outcome.name, arms[outcome.name]
        if name == outcome.baseline and name != first:
            notes.append(f"{name} is not tested against {first}: they differ in "
                         f"{', '.join(differing(runs, arms[first]))}")
        if name == outcome.baseline and len(outcome.losses) > 1:
            notes.append(f"{name}: one seed has a speed-up of up to {share(largest_gain(runs))} over another")
        n_finished = sum(run.is_finished() for run in runs)
        if n_finished < len(runs):
            notes.append(f"{name}: {n_finished} of its {len(runs)} runs have finished; the others count if none has")
    return notes


def differing(runs, others):
    """The keys that keep two arms from being compared."""
    values = zip(compare.SAME, compare.conditions(runs[0].config), compare.conditions(others[0].config))
    return [key for key, here, there in values if here != there]


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
    lines = [["published run", "last loss", "with symmetric start", "speed-up: by the paper's rule", "by ours"]]
    for name, loss in curves.items():
        symmetric = curves.get(f"{name}--symmetric-init")  # of the run that starts from W_k = W_q
        if symmetric is not None:
            T = loss.index[-1]
            by_their_rule = (T - compare.first_step(symmetric, loss.iloc[-1])) / T
            by_ours = compare.speed_up(symmetric, loss)
            losses = [f"{loss.iloc[-1]:.3f}", f"{symmetric.iloc[-1]:.3f}"]
            lines.append([name, *losses, share(by_their_rule, ".1%"), share(by_ours, ".1%")])
    return align(lines)


def ends_table(arms):
    """Scores at the last step: medians over layers, means over seeds. arms: the authors' runs, and ours."""
    lines = [["run", *SCORES]]
    for name, runs in arms.items():
        cells = [name]
        for score in SCORES:
            medians = [run.layers(score).iloc[-1].median() for run in runs]
            cells.append(f"{np.mean(medians):.2f}")
        lines.append(cells)
    return align(lines)
