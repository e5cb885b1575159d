"""
Does the runs of a plan, for `python -m config.plan NAME --run`. Each one is a process of train.py, which goes on where
it was stopped. What it prints is added to output.txt in its folder.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

from config import ROOT


def do_all(generations, n_jobs):
    """Does the runs of config.plan.commands, n_jobs at once. Returns in words what went wrong, "" if nothing did."""
    processes, failed = [], []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to be killed is the same as Ctrl-C

    say_other_commits(generations)
    with tqdm(total=sum(map(len, generations)), unit="run") as bar, ThreadPoolExecutor(n_jobs) as pool:
        for runs in generations:
            # each thread of the pool does one run at a time, until its process ends. Children begin after all parents
            futures = [pool.submit(do, folder, words, processes) for folder, words in runs]
            try:
                for future in as_completed(futures):
                    failed += future.result()
                    bar.update()
                    bar.set_postfix(failed=len(failed))

            # let no other run begin, and end those that have: again and again, because one may be about to begin
            except KeyboardInterrupt:
                signal.signal(signal.SIGTERM, lambda *_: None)  # a second one changes nothing
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in futures):
                    for process in processes:
                        process.terminate()  # which does nothing to one that has ended
                    time.sleep(0.1)
                return "stopped; the same command goes on"
    return "\n".join(failed)


def say_other_commits(generations):
    """Prints which runs have finished with another commit than that of the code."""
    from data.runs import write  # and pandas with it

    commit = write.find_commit()
    finished = find_finished(generations)
    others = [folder for folder, run in finished.items() if commit not in run["origin"]["commit"]]  # or an older text
    if others:
        print(f"{len(others)} finished runs are not of commit {commit}, as the code is. Delete a folder to do its run "
              f"again: {' '.join(others)}", file=sys.stderr)


def find_finished(generations):
    """Returns the runs that have finished: {folder: its run.json}."""
    finished = {}
    for folder, _ in itertools.chain(*generations):
        with contextlib.suppress(OSError):  # it has not begun, or its process says what is wrong
            run = json.loads(Path(folder, "run.json").read_text("utf-8"))
            last_row = Path(folder, "log.csv").read_text("utf-8").split()[-1]
            if last_row.startswith(f"{run['config']['max_iters']},"):
                finished[folder] = run
    return finished


def do(folder, words, processes):
    """Does one run, whose process it adds to a list. Returns a list of what went wrong, in words."""
    argv = [sys.executable, ROOT / "train.py", *words]
    env = os.environ | dict(PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1")  # on every system; at once
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with open(Path(folder, "output.txt"), "ab") as output:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)
    except OSError as e:  # such as a file where the folder should be, or a full disk
        return [f"{folder} failed: {e}"]
    processes.append(process)
    return [f"{folder} failed: see its output.txt"] if process.wait() else []
