"""
What analyze.py prints and draws of the runs of train.py.
"""

from pathlib import Path

import numpy as np

from data.results import compare, figures_published, figures_runs, figures_tuning, published, records, tuning
from data.results.report import show
from data.results.runs import RunError, read_run, require


def report_run(folder):
    """A table with the first and the last scores of every layer of a run."""
    run = read_run(folder)
    loss = run.log["val_loss"][-1]
    return run_table(run) + f"\nvalidation loss {loss:.4f} nats/token; picture: {folder}/run.png"


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
    curves, trajectories = published.read_csv_files(theirs)
    arms = compare.pool(ours)
    is_left_out = args.arms and args.baseline in arms and args.baseline not in args.arms
    require(not is_left_out, f"--baseline={args.baseline} is none of --arms: add it there")
    arms = compare.arrange(compare.choose(arms, args.arms), args.baseline)
    if args.csv:
        require(arms, f"nothing to write in {args.csv}: it takes runs of train.py")
        if Path(args.csv).exists():
            records.require_no_others(args.csv, arms)
    outcomes, cells = [], []
    if args.baseline is None and tuning.varies_rates(arms):
        cells = tuning.find_cells(arms, args.level)  # the best learning rate of each start, and no tests
    else:
        outcomes = compare.find_outcomes(arms, args.level, args.baseline)
    if curves:
        show(published.curves_table(curves))
    if cells:
        show(tuning.cells_table(cells, args.level))
    elif outcomes:
        show(comparison_table(outcomes, arms, args.level))
    if trajectories:
        show(published.ends_table(trajectories, arms))
    if args.csv:
        records.write_comparison(args.csv, arms)
    if args.plot:
        draw_runs(arms, outcomes, cells, args.level, curves, trajectories, Path(args.plot))


def draw_runs(arms, outcomes, cells, level, curves, trajectories, path):
    """
    Draw the comparison, and a second picture, NAME_layers, of every layer; with the authors' runs if given. Of a tuning
    there are cells and no outcomes, and one picture.
    """
    path_of_layers = path.with_stem(path.stem + "_layers")
    if trajectories:
        figures_published.plot_trajectories(trajectories, arms, path)
        figures_published.plot_trajectory_layers(trajectories, arms, path_of_layers)
    elif cells:
        figures_tuning.plot_tuning(cells, level, path)
    elif outcomes:
        figures_runs.plot_runs(arms, outcomes, level, curves, path)
        figures_runs.plot_arms(arms, path_of_layers)
    else:
        raise RunError(f"nothing to draw in {path}: it takes runs, or data/results/csv/published/trajectories.csv")


# ---- tables ------------------------------------------------------------------------------------------------------


def run_table(run):
    """The first and the last scores of every layer of a run."""
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry = run.layers["symmetry"][:, layer]
        directionality = run.layers["directionality"][:, layer]
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    return "\n".join(lines)


# Below the table of a comparison: what its columns hold.
COMPARISON_COLUMNS = """\
left: seeds whose loss (mean of three evaluations) came to the level; their median step, "not left" being the latest;
less: loss at the end above the baseline's [nats/token], and what the pairs of this arm alone do not exclude at 0.05;
p: exact sign flips of pairs of one seed (of steps: of their ranks), each column after Holm; speed-up: share of the
steps not needed to come to the baseline's last loss, median;
symm., direct.: at the end, median over layers; change: symmetry of what was added to W_qk, median over the run"""


def comparison_table(outcomes, arms, level):
    """
    How many seeds left the plateau, at which step, and their final losses. outcomes: from compare.find_outcomes. arms:
    {name: its records}.
    """
    width = max(12, *(len(outcome.name) for outcome in outcomes))
    left_title, less_title = f"left {level:g}: of, at step", "less [95 of 100]"
    lines = [f"{'arm':{width}} {left_title:>21} {'p':>6} {'loss':>6} {less_title:>23} {'p':>6} {'speed-up':>11}"
             f" {'symm.':>6} {'direct.':>7} {'change':>6}"]
    for outcome in outcomes:
        left = f"{np.isfinite(outcome.first_steps).sum()} of {len(outcome.first_steps)}"
        loss = f"{outcome.losses.mean():.3f}"
        p_step, less, p_loss, speed_up = "", "baseline", "", ""
        if outcome.name != outcome.baseline:
            p_step = p_text(outcome.p_step)
            low, high = outcome.interval
            less = f"{signed(outcome.difference)} [{signed(low)}, {signed(high)}]"
            p_loss = p_text(outcome.p_loss)
            speed_up = share(outcome.speed_up)
        lines.append(f"{outcome.name:{width}} {left:>10} {step_text(outcome.first_steps):>10} {p_step:>6} {loss:>6}"
                     f" {less:>23} {p_loss:>6} {speed_up:>11} {number(outcome.symmetry):>6}"
                     f" {number(outcome.directionality):>7} {number(outcome.update_symmetry):>6}")
    return "\n".join([*lines, COMPARISON_COLUMNS, *comparison_notes(outcomes, arms)])


def step_text(steps):
    """The median over seeds, in which "not left" is later than any step."""
    median = np.median(steps)
    return f"{median:.0f}" if np.isfinite(median) else "not left"


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
    """Lines below the table: what a reader must know about these runs."""
    notes = []
    for outcome in outcomes:
        if outcome.name == outcome.baseline and len(outcome.losses) > 1:
            notes.append(chance_note(outcome.name, compare.counted(arms[outcome.name])))
        elif outcome.name != outcome.baseline and outcome.n_pairs < len(outcome.losses):
            notes.append(f"{outcome.name}: {outcome.n_pairs} of its seeds are seeds of {outcome.baseline}, and only "
                         "these are compared")
    n_pairs = max(outcome.n_pairs for outcome in outcomes)
    n_tests = sum(outcome.n_pairs > 0 for outcome in outcomes)
    smallest_p = n_tests * 2 / 2**n_pairs  # of sign flips, after Holm
    if n_tests and smallest_p > 0.05:
        notes.append(f"with {n_pairs} pairs and {n_tests} tests no p can come below 0.05: nothing can be told from "
                     "chance")
    for outcome in outcomes:
        if outcome.n_unfinished:
            behind = min(record.eval_steps[-1] for record in arms[outcome.name])
            how = "counted as they are" if outcome.n_unfinished == len(arms[outcome.name]) else "left out"
            notes.append(f"{outcome.name}: {outcome.n_unfinished} of its runs have not finished ({how}), one is at "
                         f"{behind}")
    return notes


def chance_note(name, records):
    """How much faster one run of an arm is than another run of it: a speed-up within this range says nothing."""
    gains = np.array(compare.chance_speed_ups(records))
    reached = gains[np.isfinite(gains)]
    note = f"{name}, one seed against another: speed-up {share(np.median(gains))}"
    if len(reached):
        note += f", from {reached.min():.0%} to {reached.max():.0%}"
    return f"{note}, not reached by {len(gains) - len(reached)} of {len(gains)}"
