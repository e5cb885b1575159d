"""
What analyze.py prints and draws once it has the scores of models, and what train.py and analyze.py print about runs.
"""

import math
import os
import sys
from pathlib import Path

from data.pretrained import audit
from data.pretrained.files import printable
from data.pretrained.sources import known_models
from data.results import (compare, figures, figures_published, figures_runs, figures_suites, figures_tuning,
                          published, records, tables, tables_suites, tuning)
from data.results.runs import RunError, read_run, require

# ---- pretrained models -------------------------------------------------------------------------------------------
#
# rows: a list of tables.ModelScore. results: {target: its ScoredModel}, for the models that were scored just now.


def show(table):
    """
    Print a table. Names in it may hold control characters, which must not reach the terminal. If nobody reads it, as
    after `| head`, the program goes on, because a picture may come next.
    """
    try:
        for line in table.splitlines():
            print(printable(line), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def summarise_models(rows, results):
    """
    The tables.Summary of every model and stack in rows. What else is known of them is in results, and for models that
    were scored earlier in data/pretrained/models.csv.
    """
    known = known_models()
    facts = {}  # (model, stack) -> Facts
    for target, result in results.items():
        for stack, known_of_stack in result.facts.items():
            facts[target.model, stack] = known_of_stack
    for row in known:
        for name in row["name"], row["hub_id"]:
            key = name, row["stack"]
            if key not in facts:
                facts[key] = tables.Facts(float(row["params"]), row["causal"] == "1")
            facts[key] = facts[key]._replace(modality=row["modality"])  # which a config.json does not always tell
    for row in rows:  # scored earlier, and not in models.csv: another model, or a stack that the paper left out
        facts.setdefault((row.model, row.stack), tables.Facts(math.nan, None))
    return tables.summarise(rows, facts, known)


def report_models(rows, results, with_layers, plot):
    """with_layers: print a table of all layers first."""
    if with_layers:
        show(tables.layer_table(rows))
    summaries = summarise_models(rows, results)
    show(tables.summary_table(summaries))
    if not plot:
        return
    target, result = next(iter(results.items()))
    if len(results) == 1:
        causal = {stack: facts.causal for stack, facts in result.facts.items()}
        figures.plot_model(target.model, rows, causal, result.corner, plot)
    else:
        figures.plot_models(summaries, plot)


def report_trainings(rows, targets, surveys, plot):
    trainings = tables_suites.find_trainings(targets, rows, surveys)
    show(tables_suites.training_table(trainings))
    if plot and trainings:
        figures_suites.plot_training(trainings, plot)


def report_suite(members, rows, targets, surveys, plot):
    for member in tables_suites.without_their_stack(members, rows):
        told = f"analyze.py: {member.name}: it has no stack {member.stack}, and is left out"
        print(printable(told), file=sys.stderr)
    scored = tables_suites.find_scored(members, rows)
    trainings = tables_suites.find_trainings(targets, rows, surveys)
    show(tables_suites.suite_table(scored, trainings))
    if plot and (scored or trainings):
        figures_suites.plot_suite(scored, trainings, plot)


def report_paper(rows, results, plot):
    """Tables S2 and S3, Figures 2, S1 and S2: the published scores, corrected, and ours for models that have them."""
    summaries = summarise_models(rows, results)
    if summaries:
        show(tables.summary_table(summaries))
    ours = {(summary.model, summary.stack): summary for summary in summaries}
    printed_rows = audit.read_printed_tables()
    show(audit.printed_table(printed_rows, ours))
    show(audit.tally(printed_rows))
    if plot:
        figures_published.plot_pretrained(audit.read_models(), ours, plot)


# ---- runs of train.py --------------------------------------------------------------------------------------------


def report_run(folder):
    """A table with the first and the last scores of every layer of a run."""
    run = read_run(folder)
    loss = run.log["val_loss"][-1]
    return tables.run_table(run) + f"\nvalidation loss {loss:.4f} nats/token; picture: {folder}/run.png"


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
        show(tables.comparison_table(outcomes, arms, args.level))
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
        raise RunError(f"nothing to draw in {path}: it takes runs, or data/results/published/trajectories.csv")
