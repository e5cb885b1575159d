"""
Does the runs of a plan, for `python -m config.plan NAME --run`. Each one is a process of train.py, which goes on where
it was stopped. What it prints is added to output.txt in its folder.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from config import ROOT, read_flags


class Run(NamedTuple):
    folder: str
    words: list  # arguments of train.py
    parents: set  # the folders of runs that a key of this one names: these have to be finished before it begins


def read_runs(lines):
    """Returns the Runs of some lines of a plan."""
    all_words = [shlex.split(line) for line in lines]
    all_keys = [read_flags(flags) for _, *flags in all_words]
    folders = {keys["out_dir"] for keys in all_keys}
    runs = []
    for words, keys in zip(all_words, all_keys):
        folder = keys["out_dir"]
        runs.append(Run(folder, words, folders & set(keys.values()) - {folder}))
    return runs


def start(run):
    """Starts a run, and returns its process."""
    Path(run.folder).mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, ROOT / "train.py", *run.words]
    env = os.environ | dict(PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED="1")  # on every system; at once
    with open(Path(run.folder, "output.txt"), "ab") as output:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)


def do_all(lines, n_jobs):
    """Does the runs of some lines of a plan, n_jobs at once. Returns in words what went wrong, "" if nothing did."""
    waiting = read_runs(lines)
    running = {}  # {folder: process}
    done, failed = set(), []  # folders
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to be killed is the same as Ctrl-C
    try:
        with tqdm(total=len(waiting), unit="run") as bar:
            while True:
                ready = [run for run in waiting if run.parents <= done]
                for run in ready[: n_jobs - len(running)]:
                    waiting.remove(run)
                    running[run.folder] = start(run)
                if not running:  # all are done, or what is left waits for one that failed
                    break
                time.sleep(0.2)
                for folder in [folder for folder, process in running.items() if process.poll() is not None]:
                    if running.pop(folder).returncode == 0:
                        done.add(folder)
                    else:
                        failed.append(f"{folder} failed: see its output.txt")
                    bar.update()
                    bar.set_postfix(failed=len(failed))
    except KeyboardInterrupt:
        return "stopped; the same command goes on"
    finally:
        for process in running.values():
            process.terminate()
            process.wait()
    return "\n".join(failed + [f"{run.folder} was not begun: one that it starts from failed" for run in waiting])
