"""
What analyze.py prints and draws of the runs of train.py.
"""

from pathlib import Path

import numpy as np
import pandas

from data.results import compare, figures_runs, records
from data.results.report import show
from data.results.runs import RunError, require

# ---- one run -----------------------------------------------------------------------------------------------------


def report_run(folder):
    """A table with the first and the last scores of every layer of a run."""
    run = records.read_run(folder)
    loss = run.val_loss[-1]
    return run_table(run) + f"\nvalidation loss {loss:.4f} nats/token; picture: {folder}/run.png"


def run_table(run):
    """The first and the last scores of every layer of a run."""
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry = run.layers["symmetry"][:, layer]
        directionality = run.layers["directionality"][:, layer]
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    return "\n".join(lines)


# ---- a comparison ------------------------------------------------------------------------------------------------


def report_runs(args):
    """
    Compare runs, from their folders or from the CSV file of an earlier comparison, and the authors' runs. args: the
    command line, of which runs, level, baseline, arms, csv and plot are used.
    """
    ours, theirs = [], []
    for path in args.runs:
        if path.endswith(".csv") and not records.is_comparison(path):
            theirs.append(path)
        else:
            ours.append(path)
    curves, trajectories = records.read_csv_files(theirs)
    arms = compare.pool(ours)
    is_left_out = args.arms and args.baseline in arms and args.baseline not in args.arms
    require(not is_left_out, f"--baseline={args.baseline} is none of --arms: add it there")
    arms = compare.arrange(compare.choose(arms, args.arms), args.baseline)
    if args.csv:
        require(arms, f"nothing to write in {args.csv}: it takes runs of train.py")
        if Path(args.csv).exists() and Path(args.csv).stat().st_size > 0:
            records.require_no_others(args.csv, arms)
    outcomes = compare.find_outcomes(arms, args.level)
    is_reached = any(np.isfinite(outcome.first_steps).any() for outcome in outcomes)
    level = args.level if is_reached else None  # on other text no loss may come near it
    if curves:
        show(curves_table(curves))
    if outcomes:
        show(comparison_table(outcomes, level))
        if level is None:
            show(f"no loss comes to {args.level:g} nats/token: --level sets another level")
        for note in comparison_notes(outcomes, arms):
            show(note)
    if trajectories:
        show(ends_table(trajectories, arms))
    if args.csv:
        records.write_comparison(args.csv, arms)
    if args.plot:
        draw_runs(arms, outcomes, level, curves, trajectories, Path(args.plot))


def draw_runs(arms, outcomes, level, curves, trajectories, path):
    """Draw the comparison, and a second picture, NAME_layers, of every layer; with the authors' runs if given."""
    path_of_layers = path.with_stem(path.stem + "_layers")
    if trajectories:
        figures_runs.plot_trajectories(trajectories, arms, path)
    elif outcomes:
        figures_runs.plot_runs(arms, outcomes, level, curves, path)
    else:
        raise RunError(f"nothing to draw in {path}: it takes runs, or data/results/csv/published/trajectories.csv")
    figures_runs.plot_layers(trajectories, arms, path_of_layers)


# Below the table of a comparison: what its columns hold.
OF_LEVEL = """\
passed: seeds whose loss (mean of three evaluations) came to the level [nats/token]; step: the median of their first
steps there, where a seed that did not pass is later than any"""
OF_ARMS = """\
difference: loss at the end less the baseline's [nats/token], mean over seeds, and the interval of all differences that
the seeds of this arm alone do not reject at p = 0.05
p: exact sign flips of pairs of one seed (of steps: of their ranks), each column after Holm; significant below 0.05
speed-up: share of the steps not needed to come to the baseline's last loss, median over seeds
symmetry, directionality: at the end, median over layers
change: symmetry of what was added to W_qk between two rows of scores, median over layers and over the run"""


def comparison_table(outcomes, level):
    """A line for each of compare.find_outcomes. level: None if no run has passed it, and then nothing is said of it."""
    lines = []
    for outcome in outcomes:
        is_baseline = outcome.name == outcome.baseline
        line = dict(arm=outcome.name)
        if level is not None:
            n_passed = np.isfinite(outcome.first_steps).sum()
            line[f"passed {level:g}"] = f"{n_passed} of {len(outcome.first_steps)}"
            line["step"] = step_text(outcome.first_steps)
            line["p (step)"] = "" if is_baseline else p_text(outcome.p_step)
        low, high = outcome.interval
        difference = f"{signed(outcome.difference)} [{signed(low)}, {signed(high)}]"
        line["loss"] = f"{outcome.losses.mean():.3f}"
        line["difference [95 %]"] = "baseline" if is_baseline else difference
        line["p (loss)"] = "" if is_baseline else p_text(outcome.p_loss)
        line["speed-up"] = "" if is_baseline else share(outcome.speed_up)
        line["symmetry"] = number(outcome.symmetry)
        line["directionality"] = number(outcome.directionality)
        line["change"] = number(outcome.update_symmetry)
        lines.append(line)
    table = pandas.DataFrame(lines).set_index("arm").rename_axis(index=None, columns="arm")
    legend = [OF_LEVEL, OF_ARMS] if level is not None else [OF_ARMS]
    return "\n".join([table.to_string(), *legend])


def step_text(steps):
    """The median over seeds, in which a seed that did not pass is later than any step."""
    median = np.median(steps)
    return f"{median:.0f}" if np.isfinite(median) else "not passed"


def p_text(p):
    if np.isnan(p):
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def signed(x):
    return "-" if np.isnan(x) else f"{x:+.3f}"


def share(x):
    if np.isnan(x):
        return "-"
    return f"{x:.0%}" if np.isfinite(x) else "not reached"


def number(x):
    return "-" if np.isnan(x) else f"{x:.2f}"


def comparison_notes(outcomes, arms):
    """What a reader must know about these runs, in lines."""
    notes = []
    first = outcomes[0].baseline
    for outcome in outcomes:
        name, baseline = outcome.name, outcome.baseline
        runs_of_arm = arms[name]
        if name == baseline and name != first:
            notes.append(f"{name} is not tested against {first}: they differ in "
                         f"{differing(runs_of_arm[0].config, arms[first][0].config)}")
        if name == baseline and len(outcome.losses) > 1:
            notes.append(chance_note(name, compare.counted(runs_of_arm)))
        if name != baseline and outcome.n_pairs < len(outcome.losses):
            notes.append(f"{name}: {outcome.n_pairs} of its seeds are seeds of {baseline}, and only these are compared")
        if outcome.n_unfinished:
            behind = min(record.eval_steps[-1] for record in runs_of_arm)
            how = "counted as they are" if outcome.n_unfinished == len(runs_of_arm) else "left out"
            notes.append(f"{name}: {outcome.n_unfinished} of its runs have not finished ({how}), one is at {behind}")
    n_pairs = max(outcome.n_pairs for outcome in outcomes)
    n_tests = sum(outcome.n_pairs > 0 for outcome in outcomes)
    smallest_p = n_tests * 2 / 2**n_pairs  # of sign flips, after Holm
    if n_tests and smallest_p > 0.05:
        notes.append(f"with {n_pairs} pairs and {n_tests} tests no p can come below 0.05, and no difference is "
                     "significant")
    return notes


def differing(config, other):
    """The keys that keep two arms from being compared, and their values, as `max_iters (2000, 1000)`."""
    found = []
    for key, here, there in zip(compare.SAME, compare.conditions(config), compare.conditions(other)):
        if here != there:
            found.append(f"{key} ({here}, {there})")
    return ", ".join(found)


def chance_note(name, records):
    """How much faster one run of an arm is than another run of it: a speed-up within this range says nothing."""
    gains = np.array(compare.chance_speed_ups(records))
    reached = gains[np.isfinite(gains)]
    note = f"{name}, one seed against another: speed-up {share(np.median(gains))}"
    if len(reached):
        note += f", from {reached.min():.0%} to {reached.max():.0%}"
    return f"{note}, not reached by {len(gains) - len(reached)} of {len(gains)}"


# ---- the authors' runs -----------------------------------------------------------------------------------------------


def curves_table(curves):
    """
    Table 1 of the paper from its training losses. Speed-up is (T - t) / T: by the paper's rule t is the first step
    whose loss is below the plain run's last one, by ours the losses are smoothed first (compare.speed_up).
    """
    lines = [f"{'published run':31} last loss  with symmetric start  speed-up: by the paper's rule  by ours"]
    for name, (steps, loss) in curves.items():
        if name + records.SYMMETRIC not in curves:
            continue
        _, symmetric_loss = curves[name + records.SYMMETRIC]
        theirs = (steps[-1] - compare.first_step(steps, symmetric_loss, loss[-1])) / steps[-1]
        ours = compare.speed_up(steps, symmetric_loss, loss)
        lines.append(f"{name:31} {loss[-1]:9.3f} {symmetric_loss[-1]:21.3f} {percent(theirs):>30}  {percent(ours)}")
    return "\n".join(lines)


def percent(x):
    return f"{x:.1%}" if np.isfinite(x) else "not reached"


def ends_table(trajectories, arms):
    """Scores at the last step, medians over layers: of every published run, and of our arms as means over seeds."""
    lines = [f"{'published run':31} symmetry  directionality"]
    for run in trajectories:
        lines.append(end_line(run.name, np.median(run.symmetry[-1]), np.median(run.directionality[-1])))
    if arms:
        lines.append("ours")
    for name, records in arms.items():
        symmetry = np.mean([np.median(record.layers["symmetry"][-1]) for record in records])
        directionality = np.mean([np.median(record.layers["directionality"][-1]) for record in records])
        lines.append(end_line(name, symmetry, directionality))
    return "\n".join(lines)


def end_line(name, symmetry, directionality):
    return f"{name:31} {symmetry:8.2f}  {directionality:14.2f}"
