"""What goes wrong during a run: kills, lost ranks, full disks, overflow, broken data. pytest tests/test_faults.py"""

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from config import TrainConfig
from data import runs
from tests.lives import begin, end
from tests.test_train import SMALL, argv, data_dir, result


@pytest.fixture
def cfg(data_dir, tmp_path):
    return TrainConfig(**SMALL | dict(max_iters=150, eval_interval=5), data_dir=data_dir, out_dir=str(tmp_path / "run"))


def losses(cfg):
    log = runs.read(cfg.out_dir + "/log.csv", runs.LOG)
    return [[float(row[name] or "nan") for name in ("step", "train_loss", "val_loss")] for row in log]


# ---- killed ------------------------------------------------------------------------------------------------------

MOMENTS = [  # (the function in whose n-th call a process dies, n, the share of its bytes written or the seconds passed)
    (name, rng.randint(1, most), rng.uniform(0, longest))
    for rng in [random.Random(1)]
    for name, most, longest in 4 * [("train.Run.train_step", 9, 0.05), ("torch.save", 2, 1), ("os.replace", 4, 1),
                                    ("train.Run.train_step", 9, 0.05), ("data.runs.append", 6, 1)]]


def test_a_run_that_is_killed_at_twenty_moments_ends_bit_for_bit_as_the_whole_one(cfg, tmp_path):
    whole = replace(cfg, out_dir=cfg.out_dir + "_whole")
    assert end(begin(argv(whole), tmp_path / "whole.txt"))[0] == 0
    out, stale = Path(cfg.out_dir), 0
    for moment in [("data.runs.append", 1, 0.0), ("data.runs.append", 2, 0.1), *MOMENTS]:  # first: in its first rows
        status, said = end(begin(argv(cfg, init_from="resume"), tmp_path / "life.txt", moment))
        assert status in (-signal.SIGKILL, -signal.SIGALRM) and "Traceback" not in said, (moment, said)
        stale += (out / "ckpt.pt.tmp").exists()
    assert stale >= 4
    status, said = end(begin(argv(cfg, init_from="resume"), tmp_path / "life.txt"))
    assert status == 0, said
    assert result(cfg.out_dir) == result(whole.out_dir)
    assert {p.name for p in out.iterdir()} == {p.name for p in Path(whole.out_dir).iterdir()}
